"""The hottest prefixes as an icicle: what is wide is hit often, what lies below goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

import plotly.graph_objects as go

from kvscope.characterize.prefixes import Prefix, hottest
from kvscope.report.charts import style

_DEPTH = 8
_MOST = 100  # stretches of a pixel's width nobody can point at, and all take time to draw


def icicle(found: Sequence[Prefix], block_size: int) -> go.Figure:
    """Stretches of the prefix trie by the tokens that prompts found there; a click zooms in.

    The widest are drawn; the hits of those that go on from them count as theirs.
    """
    chart = style.figure("Hottest prefixes, by hash", "", "", height=460)
    shown = hottest(found, _MOST)
    hits = _hits(found, shown)
    heat = [log10(one.reuses) for one in shown]
    chart.add_icicle(
        ids=["0", *(str(one.number) for one in shown)],
        labels=["all", *(f"{one.hash_id & (2**64 - 1):x}" for one in shown)],
        parents=["", *(str(one.parent) for one in shown)],
        values=[hits[0] * block_size, *(hits[one.number] * block_size for one in shown)],
        customdata=[
            (sum(one.reuses for one in found if not one.parent), 0, 0),
            *((one.reuses, one.blocks, one.depth_blocks) for one in shown),
        ],
        branchvalues="remainder",
        maxdepth=_DEPTH,
        marker={
            "colorscale": style.SHADES,
            "colors": [0, *heat],
            "cmin": -max(heat, default=1) / 3,  # or what is pale would be white on white
        },
        tiling={"orientation": "v"},
        hovertemplate="%{label}: %{customdata[0]:,} prompts found its %{customdata[1]:,} blocks"
        " (from block %{customdata[2]:,} on)"
        "<br>%{value:,} tokens hit from here on<extra></extra>",
    )
    chart.update_layout(margin={"l": 10, "r": 10, "t": 50, "b": 10})
    return chart


def _hits(found: Sequence[Prefix], shown: Sequence[Prefix]) -> dict[int, int]:
    """By number, the blocks that prompts found there, or after it where that is not shown."""
    parents = {one.number: one.parent for one in found}
    hits = {0: 0} | {one.number: 0 for one in shown}
    for one in found:
        at = one.number
        while at not in hits:
            at = parents[at]
        hits[at] += one.hits
    return hits
