"""The prefixes that most prompts share: heads such as system prompts, and what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log10

from kvscope.characterize.sources import Prefix, hottest
from kvscope.report import style
from kvscope.report.section import Section, tabulate
from kvscope.report.words import count, counted

_LISTED = 10
_HEAD = 4  # child runs that make a run of blocks a head that prompts share, and no turn
_DEPTH = 8
_MOST = 100  # runs of a pixel's width cannot be pointed at, and all take time to draw


def section(prefixes: Sequence[Prefix], block_size: int) -> Section:
    """Return the icicle, and the prefixes with most hits as a table."""
    if not prefixes:
        return Section.of("Hottest prefixes", "No prompt begins as an earlier one did.")
    first = [prefix for prefix in prefixes if not prefix.parent]
    words = (
        f"{counted(len(first), 'hot prefix', 'hot prefixes')} at the head of prompts; the most"
        f" common one was reused by {counted(max(prefix.reuses for prefix in first), 'prompt')}."
    )
    columns = {
        "hash of last block": _hash,
        "from token": lambda prefix: count(prefix.depth_blocks * block_size),
        "tokens": lambda prefix: count(prefix.blocks * block_size),
        "prompts": lambda prefix: count(prefix.reuses),
        "child runs": lambda prefix: count(prefix.branches),
        "tokens hit": lambda prefix: count(prefix.hits * block_size),
    }
    by_hits = sorted(prefixes, key=lambda prefix: -prefix.hits)
    shared = [prefix for prefix in prefixes if prefix.branches >= _HEAD]
    shared.sort(key=lambda prefix: -prefix.reuses)
    most = "Runs of blocks with the most hits"
    run = "a run: blocks between two branch points; child runs: reused runs that follow it"
    heads, note = "Shared heads, such as system prompts", f"runs with {_HEAD} or more child runs"
    return Section.of(
        "Hottest prefixes",
        words,
        tabulate(most, by_hits[:_LISTED], columns, run),
        tabulate(heads, shared[:_LISTED], columns, note) if shared else None,
        partial(icicle_chart, prefixes, block_size),
    )


def _hash(prefix: Prefix) -> str:
    """Return the trace's hash of the last block as an unsigned hexadecimal."""
    return f"{prefix.hash_id & (2**64 - 1):x}"


def icicle_chart(prefixes: Sequence[Prefix], block_size: int) -> style.Figure:
    """Build the prefix trie's runs by the tokens that prompts hit there; a click zooms in.

    The widest are drawn; the hits of runs that follow them and are not drawn count as theirs.
    """
    chart = style.figure("Hottest prefixes, by hash", "", "", height=460)
    shown = hottest(prefixes, _MOST)
    hits = _hits(prefixes, shown)
    heat = [log10(prefix.reuses) for prefix in shown]
    chart.add_icicle(
        ids=["0", *(str(prefix.number) for prefix in shown)],
        labels=["all", *map(_hash, shown)],
        parents=["", *(str(prefix.parent) for prefix in shown)],
        values=[hits[0] * block_size, *(hits[prefix.number] * block_size for prefix in shown)],
        customdata=[
            (sum(prefix.reuses for prefix in prefixes if not prefix.parent), 0, 0),
            *((prefix.reuses, prefix.blocks, prefix.depth_blocks) for prefix in shown),
        ],
        branchvalues="remainder",
        maxdepth=_DEPTH,
        marker={
            "colorscale": style.SHADES,
            "colors": [0, *heat],
            "cmin": -max(heat, default=1) / 3,  # or what is pale would be white on white
        },
        tiling={"orientation": "v"},
        hovertemplate="%{label}: %{customdata[0]:,} prompts hit its %{customdata[1]:,} blocks"
        " (from block %{customdata[2]:,} on)"
        "<br>%{value:,} tokens hit from here on<extra></extra>",
    )
    chart.update_layout(margin={"l": 10, "r": 10, "t": 50, "b": 10})
    return chart


def _hits(prefixes: Sequence[Prefix], shown: Sequence[Prefix]) -> dict[int, int]:
    """Return by number the blocks hit there, and in the runs after it that are not shown."""
    parents = {prefix.number: prefix.parent for prefix in prefixes}
    hits = {0: 0} | {prefix.number: 0 for prefix in shown}
    for prefix in prefixes:
        at = prefix.number
        while at not in hits:
            at = parents[at]
        hits[at] += prefix.hits
    return hits
