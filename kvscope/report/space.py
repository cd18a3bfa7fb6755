"""Where in the prompt reuse lies, how large requests are, how much is alive at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvscope.app.analyze import Analysis
from kvscope.characterize.lifetimes import WorkingSet
from kvscope.characterize.spatial import Spatial
from kvscope.characterize.traffic import RequestSize
from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.report import style
from kvscope.report.caching import sizes_of
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import PLOT_WIDTH, heat_map, sparkline, thinned
from kvscope.report.words import DEFAULT_HITS, significant

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TURNS = {"all": "all requests", "single": "turn 1", "multi": "follow-up turns"}


def sections(analysis: Analysis) -> list[Section]:
    """Return the sections on space."""
    facts = analysis.characterization
    made = []
    if facts.spatial is not None and facts.spatial.overall is not None:
        made.append(_spatial(facts.spatial))
    if facts.working_set is not None:
        made.append(_working_set(analysis, facts.working_set))
    if analysis.model is not None:
        made.append(_sizes(analysis.model, analysis.hbm_bytes, facts.request_sizes))
    return made


def _spatial(found: Spatial) -> Section:
    plot: tuple[str, ...] = ()
    if found.overall is not None:
        lines = heat_map(list(found.overall), 1.0)
        plot = (
            "start offset ↓   share of the request cached: 10% … 100% →   (█: all blocks hit)",
            *(
                f"{offset:>12.0%}   {line}"
                for offset, line in zip(found.offsets, lines, strict=True)
            ),
        )
    rows = tuple(
        (
            _TURNS[row.turns],
            *(
                units.format_count(value)
                for value in (row.hit_blocks.mean, row.hit_blocks.p50, row.hit_blocks.p90)
            ),
            *(
                units.format_share(value)
                for value in (row.prompt_share.mean, row.prompt_share.p50, row.prompt_share.p90)
            ),
        )
        for row in found.prefix_depth
    )
    words = (
        "Ideal block hit rate if only a part of each request were cached: from a start offset on,"
        " a share of the request."
    )
    return Section(
        title="Where in the prompt",
        sentences=(words, DEFAULT_HITS),
        tables=(
            Table(
                "Prefix length that an infinite cache hits",
                (
                    "",
                    "hit blocks",
                    "blocks p50",
                    "blocks p90",
                    "of prompt",
                    "prompt p50",
                    "prompt p90",
                ),
                rows,
            ),
        ),
        plot=plot,
        figures=(partial(spatial_chart, found),),
    )


def _working_set(analysis: Analysis, found: WorkingSet) -> Section:
    sizes = sizes_of(analysis)
    rows = tuple(
        (name, *sizes.cells(blocks))
        for name, blocks in (
            ("peak", found.peak_blocks),
            ("p99 of the time", found.p99_blocks),
            ("mean", round(found.mean_blocks)),
        )
    )
    line = sparkline(thinned(list(found.blocks), PLOT_WIDTH))
    return Section(
        title="Working set",
        sentences=(
            "Blocks that will be used again: an oracle needs a cache of this size to evict none.",
        ),
        tables=(Table("Blocks alive at once", ("", *sizes.columns), rows),),
        plot=(f"{'blocks alive':<14} {line}",),
        figures=(partial(working_set_chart, found),),
    )


def _sizes(model: ModelKv, hbm: int | None, sizes: tuple[RequestSize, ...]) -> Section:
    """Return how much memory the KV cache of one request takes."""
    columns = ["", "mean", "p50", "p90", "p99", "max"]

    def cell(tokens: float) -> str:
        size = model.bytes_for(round(tokens))
        return f"{significant(100 * size / hbm)}%" if hbm else units.format_size(size)

    rows = tuple(
        (
            _TURNS[size.turns],
            *(
                cell(value)
                for value in (
                    size.tokens.mean,
                    size.tokens.p50,
                    size.tokens.p90,
                    size.tokens.p99,
                    size.tokens.max,
                )
            ),
        )
        for size in sizes
    )
    of = f"share of an HBM of {units.format_size(hbm)}" if hbm else "size"
    return Section(
        title="Size of requests",
        tables=(
            Table(
                f"KV cache of one request, input and output ({of})",
                tuple(columns),
                rows,
                note=f"{model.name} {model.dtype}: "
                f"{units.format_count(model.bytes_per_token)} bytes per token",
            ),
        ),
    )


def spatial_chart(found: Spatial) -> go.Figure:
    """Build the ideal block hit rate by start offset and share of the request cached.

    Source: Wang et al., KVCache Cache in the Wild (ATC'25), Figures 16 to 18.
    """
    maps = [
        (name, cells)
        for name, cells in (
            ("all requests", found.overall),
            ("turn 1", found.single_turn),
            ("follow-up turns", found.multi_turn),
        )
        if cells is not None
    ]
    chart = style.subplots(
        "Ideal block hit rate by place in the prompt",
        cols=len(maps),
        subplot_titles=[name for name, _ in maps],
        shared_yaxes=True,
    )
    for column, (_, cells) in enumerate(maps, start=1):
        chart.add_heatmap(
            x=found.strides,
            y=found.offsets,
            z=cells,
            zmin=0,
            zmax=1,
            colorscale=style.SHADES,
            showscale=column == len(maps),
            colorbar={"tickformat": ".0%"},
            hovertemplate="from %{y:.0%}, %{x:.0%} of it: %{z:.1%} hit<extra></extra>",
            row=1,
            col=column,
        )
    chart.update_layout(margin_t=80)
    chart.update_xaxes(title_text="share cached", tickformat=".0%")
    chart.update_yaxes(tickformat=".0%", autorange="reversed")
    chart.update_yaxes(title_text="start offset", col=1)
    return chart


def working_set_chart(found: WorkingSet) -> go.Figure:
    """Build the number of blocks that will be used again, over time."""
    chart = style.figure("Blocks alive", "time since the trace's start (h)", "blocks", height=320)
    hours = [at / 3600 for at in found.at_s]
    chart.add_scatter(x=hours, y=found.blocks, line={**style.line(0), "shape": "hv"})
    chart.update_yaxes(rangemode="tozero")
    return chart
