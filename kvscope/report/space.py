"""Reuse within prompts, shared prefixes, sizes of requests, and the working set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log10

from kvscope.characterize.lifetimes import WorkingSet
from kvscope.characterize.sources import Prefix, hottest
from kvscope.characterize.spatial import Spatial
from kvscope.characterize.traffic import RequestSize
from kvscope.core import units
from kvscope.deployment.models import Model
from kvscope.report import style
from kvscope.report.caching import sizes_of
from kvscope.report.section import Section, heat_map, sparkline, tabulate
from kvscope.report.traffic import TURNS
from kvscope.report.words import DEFAULT_HITS, Unit, count, counted, percentiles, share, significant
from kvscope.usecases.analyze import Analysis

_MAP_PX, _MARGIN_PX = 170, 120

_LISTED = 10
_HEAD = 4  # child runs that make a run of blocks a head that prompts share, and no turn
_DEPTH = 8
_MOST_RUNS = 100  # runs of a pixel's width cannot be pointed at, and all take time to draw


def sections(analysis: Analysis) -> list[Section]:
    """Return the sections on reuse within prompts, the working set, and request sizes."""
    facts = analysis.characterization
    known = []
    if facts.spatial is not None and facts.spatial.overall is not None:
        known.append(_spatial(facts.spatial))
    if facts.working_set is not None:
        known.append(_working_set(analysis, facts.working_set))
    if analysis.model is not None:
        known.append(_sizes(analysis.model, analysis, facts.request_sizes))
    return known


def _spatial(spatial: Spatial) -> Section:
    rows = zip(spatial.offsets, heat_map(list(spatial.overall or ()), 1.0), strict=True)
    plot = (
        "start offset ↓   share of the request cached: 10% … 100% →   (█: all blocks hit)",
        *(f"{offset:>12.0%}   {line}" for offset, line in rows),
    )
    table = tabulate(
        "Prefix length that an infinite cache hits",
        spatial.prefix_depth,
        {
            "requests": lambda row: TURNS[row.turns],
            "hit blocks": lambda row: count(row.hit_blocks.mean),
            "blocks p50": lambda row: count(row.hit_blocks.p50),
            "blocks p90": lambda row: count(row.hit_blocks.p90),
            "of prompt": lambda row: share(row.prompt_share.mean),
            "prompt p50": lambda row: share(row.prompt_share.p50),
            "prompt p90": lambda row: share(row.prompt_share.p90),
        },
        note="hit blocks, of prompt: means",
    )
    words = (
        "Ideal block hit rate if only a part of each request were cached: from a start offset on,"
        " a share of the request."
    )
    chart = partial(spatial_chart, spatial)
    return Section.of("Where in the prompt", words, DEFAULT_HITS, table, chart, plot=plot)


def _working_set(analysis: Analysis, working_set: WorkingSet) -> Section:
    sizes = sizes_of(analysis)
    rows = (
        ("peak", working_set.peak_blocks),
        ("p99 of the time", working_set.p99_blocks),
        ("mean", round(working_set.mean_blocks)),
    )
    columns = {"blocks alive": lambda row: row[0], **sizes.columns(lambda row: row[1])}
    return Section.of(
        "Working set",
        "Blocks that will be used again: an oracle needs a cache of this size to evict none.",
        tabulate("Blocks alive at once", rows, columns),
        partial(working_set_chart, working_set, sizes.axis),
        plot=(f"{'blocks alive':<14} {sparkline(working_set.blocks)}",),
    )


def _sizes(model: Model, analysis: Analysis, sizes: tuple[RequestSize, ...]) -> Section:
    """Return mean, quantiles and maximum of a request's KV memory: all, first and later turns."""
    hbm, memory = analysis.hbm_bytes, "the pool" if analysis.deployment else "an HBM"

    def cell(tokens: float) -> str:
        size = model.bytes_for(round(tokens))
        return f"{significant(100 * size / hbm)}%" if hbm else units.format_size(size)

    of = f"share of {memory} of {units.format_size(hbm)}" if hbm else "size"
    table = tabulate(
        f"KV cache of one request, input and output ({of})",
        sizes,
        {
            "requests": lambda size: TURNS[size.turns],
            **percentiles("mean p50 p90 p99 max", lambda size: size.tokens, cell),
        },
        note=f"{model.name} {model.dtype}: {count(model.bytes_per_token)} bytes per token",
    )
    return Section.of("Size of requests", table)


def spatial_chart(spatial: Spatial) -> style.Figure:
    """Draw the ideal block hit rate if one section of each prompt is cached, by start and length.

    Both are shares of the prompt.
    Source: Wang et al., KVCache Cache in the Wild (ATC'25), Figures 16 to 18.
    """
    by_turn = spatial.overall, spatial.single_turn, spatial.multi_turn
    maps = {name: cells for name, cells in zip(TURNS.values(), by_turn, strict=True) if cells}
    chart = style.subplots(
        "Ideal block hit rate by place in the prompt",
        height=_MARGIN_PX + _MAP_PX * len(maps),
        rows=len(maps),  # side by side they would be too narrow on a phone
        subplot_titles=list(maps),
        shared_xaxes=True,
        vertical_spacing=0.08,
    )
    for row, cells in enumerate(maps.values(), start=1):
        chart.add_heatmap(
            x=spatial.strides,
            y=spatial.offsets,
            z=cells,
            zmin=0,
            zmax=1,
            colorscale=style.SHADES,
            showscale=row == 1,
            colorbar={"tickformat": ".0%"},
            hovertemplate="from %{y:.0%}, %{x:.0%} of it: %{z:.1%} hit<extra></extra>",
            row=row,
            col=1,
        )
    chart.update_layout(margin_t=80)
    chart.update_xaxes(tickformat=".0%")
    chart.update_xaxes(title_text="share of the request cached", row=len(maps))
    chart.update_yaxes(title_text="start offset", tickformat=".0%", autorange="reversed")
    return chart


def working_set_chart(working_set: WorkingSet, unit: Unit) -> style.Figure:
    """Draw the size of the working set (blocks that will be reused), over time."""
    hours = [at / 3600 for at in working_set.at_s]
    sizes = [blocks * unit.per_block for blocks in working_set.blocks]
    series = [style.Series("", hours, sizes, style.line(0) | {"shape": "hv"})]
    title, y = "Blocks alive", f"blocks alive ({unit.name})"
    return style.lines(title, style.HOURS, y, series, log="", shares="", height=320)


def hottest_prefixes(prefixes: Sequence[Prefix], block_size: int) -> Section:
    """Return tables of the prefixes with most hits and of shared heads, and the icicle chart."""
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
    """Return the trace's hash of a prefix's last block as an unsigned hexadecimal."""
    return f"{prefix.hash_id & (2**64 - 1):x}"


def icicle_chart(prefixes: Sequence[Prefix], block_size: int) -> style.Figure:
    """Draw runs (blocks that the same prompts reuse, see `Prefix`) as an icicle; a click zooms in.

    A run is as wide as the tokens hit in it and in the runs that follow. Small runs are left out;
    their hits count for the drawn run above.
    """
    chart = style.figure("Hottest prefixes, by hash", "", "", height=460)
    shown = hottest(prefixes, _MOST_RUNS)
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
    return style.nested(chart)


def _hits(prefixes: Sequence[Prefix], shown: Sequence[Prefix]) -> dict[int, int]:
    """Return the block hits of each run in `shown` and of the hidden runs below it.

    Keys are `Prefix.number`, and 0 for hidden runs that are below no shown one. A run (a `Prefix`)
    has as many hits as it has blocks, for each prompt that reuses it.
    """
    parents = {prefix.number: prefix.parent for prefix in prefixes}
    hits = {0: 0} | {prefix.number: 0 for prefix in shown}
    for prefix in prefixes:
        at = prefix.number
        while at not in hits:
            at = parents[at]
        hits[at] += prefix.hits
    return hits
