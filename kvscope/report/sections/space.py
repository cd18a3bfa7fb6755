"""Where in the prompt reuse lies, how large requests are, how much is alive at once."""

from __future__ import annotations

from functools import partial

from kvscope.app.analyze import Analysis
from kvscope.characterize.lifetimes import WorkingSet
from kvscope.characterize.spatial import Spatial
from kvscope.characterize.traffic import RequestSize
from kvscope.core import units
from kvscope.report.section import Section, Table
from kvscope.report.sections.sizes import size_cells, size_columns
from kvscope.report.sections.traffic import PLOT_WIDTH
from kvscope.report.text_plots import heat_map, sparkline, thinned
from kvscope.report.words import DEFAULT_HITS

_TURNS = {"all": "all requests", "single": "turn 1", "multi": "later turns"}


def sections(analysis: Analysis) -> list[Section]:
    """The sections on space."""
    found = analysis.characterization
    made = []
    if found.spatial is not None and found.spatial.overall is not None:
        made.append(_spatial(found.spatial))
    if found.working_set is not None:
        made.append(_working_set(analysis, found.working_set))
    if analysis.model is not None:
        made.append(_sizes(analysis, found.request_sizes))
    return made


def _spatial(found: Spatial) -> Section:
    from kvscope.report.charts import space as charts

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
        "Ideal block hit rate if only a part of each request were cached: from which place on,"
        " and how much of it."
    )
    return Section(
        title="Where in the prompt",
        sentences=(words, DEFAULT_HITS),
        tables=(
            Table(
                "How deep an infinite cache hits",
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
        figures=(partial(charts.spatial, found),),
    )


def _working_set(analysis: Analysis, found: WorkingSet) -> Section:
    from kvscope.report.charts import space as charts

    rows = tuple(
        (name, *size_cells(analysis, blocks))
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
            "Blocks that will be used again: a cache this large, that knew which, would lose none.",
        ),
        tables=(Table("Blocks alive at once", ("", *size_columns(analysis)), rows),),
        plot=(f"{'blocks alive':<14} {line}",),
        figures=(partial(charts.working_set, found),),
    )


def _sizes(analysis: Analysis, sizes: tuple[RequestSize, ...]) -> Section:
    """How much of the memory one request takes."""
    model = analysis.model
    if model is None:
        raise ValueError("sizes need a model")
    columns = ["", "mean", "p50", "p90", "p99", "max"]
    hbm = analysis.hbm_bytes

    def cell(tokens: float) -> str:
        size = model.bytes_for(round(tokens))
        return units.format_share(size / hbm, 2) if hbm else units.format_size(size)

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
                f"{units.format_count(model.bytes_per_token)} bytes a token",
            ),
        ),
    )
