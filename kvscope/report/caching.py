"""How much caching gives, how large the cache must be, and why the other tokens miss."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvscope.app.analyze import Analysis, Caching
from kvscope.core import units
from kvscope.replay.misses import MissReasons
from kvscope.report import style
from kvscope.report.section import Section, Table
from kvscope.report.sizes import Sizes
from kvscope.report.text_plots import bar
from kvscope.report.words import definition_in_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PLOTTED = 16  # points of the curve's upper end, where it rises
_BAR = 16  # characters

_REASONS = (
    ("evicted", "evicted before reuse"),
    ("diverged", "in a history that was edited"),
    ("cold", "never seen before"),
    ("tail", "not cacheable: partial last block, last token"),
)
_COLOURS = {
    "hit": style.GREEN,
    "evicted": style.VERMILION,
    "diverged": style.PURPLE,
    "cold": style.SKY,
    "tail": style.GREY,
}


def sections(analysis: Analysis) -> list[Section]:
    """Return the sections on caching; none where the trace has no hashes."""
    caching = analysis.caching
    if caching is None:
        return []
    return [_curve(analysis, caching), _misses(sizes_of(analysis), caching), _definitions(caching)]


def sizes_of(analysis: Analysis) -> Sizes:
    """Return how to write the capacities of an analysis."""
    return Sizes(analysis.trace.block_size, analysis.model, analysis.hbm_bytes)


def capacity_table(analysis: Analysis, caching: Caching) -> Table:
    """Return what LRU needs for each share of the ideal hit rate, and what it hits with the HBM."""
    sizes = sizes_of(analysis)
    rows = [
        (mark.point.capacity_blocks, f"{mark.share_of_ideal:.0%} of ideal")
        for mark in caching.landmarks
    ]
    rows += [(point.capacity_blocks, "--capacity") for point in caching.asked]
    if sizes.hbm_blocks:
        rows.append((sizes.hbm_blocks, "HBM"))
        rows.sort(key=lambda row: row[0])
    return Table(
        "Capacity of an LRU cache",
        ("", *sizes.columns, "hit rate", ""),
        tuple(
            (
                name,
                *sizes.cells(blocks),
                units.format_share(rate := float(caching.lru.rate(blocks))),
                bar(rate, _BAR),
            )
            for blocks, name in rows
        ),
        note="Idle cached blocks only: add KV memory for running requests.",
    )


def largest_misses(reasons: MissReasons) -> str:
    """Return why tokens miss, the largest cause first; without those that round to nothing."""
    shares = [
        (getattr(reasons, f"{name}_tokens") / reasons.input_tokens, words)
        for name, words in _REASONS
    ]
    shown = [
        f"{units.format_share(share)} {words}"
        for share, words in sorted(shares, key=lambda cause: -cause[0])
        if units.format_share(share) != units.format_share(0)
    ]
    return "; ".join(shown)


def _curve(analysis: Analysis, caching: Caching) -> Section:
    sizes = sizes_of(analysis)
    points = caching.curve[-_PLOTTED:]
    plot = tuple(
        f"{sizes.label(point.capacity_blocks):>16}  {bar(caching.rate(point))}"
        f" {units.format_share(caching.rate(point))}"
        for point in points
    )
    model = analysis.model
    return Section(
        title="Capacity",
        sentences=(
            f"LRU's exact hit rate at every capacity ({definition_in_words(caching.definition)}).",
            *(model.notes if model else ("Name a model with --model to read sizes in GiB.",)),
        ),
        tables=(_asked(sizes, caching),) if caching.asked else (),
        plot=plot,
        figures=(partial(curve_chart, caching, sizes),),
    )


def _asked(sizes: Sizes, caching: Caching) -> Table:
    return Table(
        "LRU at the capacities of --capacity",
        (*sizes.columns, "hit rate by token", "by block"),
        tuple(
            (
                *sizes.cells(point.capacity_blocks),
                units.format_share(point.token_hit_rate),
                units.format_share(point.block_hit_rate),
            )
            for point in caching.asked
        ),
    )


def _misses(sizes: Sizes, caching: Caching) -> Section:
    rows = tuple(
        (
            sizes.label(reasons.capacity_blocks),
            *(
                units.format_share(getattr(reasons, f"{name}_tokens") / reasons.input_tokens)
                for name in _COLOURS
            ),
        )
        for reasons in caching.misses
    )
    return Section(
        title="Misses",
        sentences=(f"Counted: LRU, {definition_in_words(caching.misses_definition)}.",),
        tables=(
            Table(
                "Input tokens under LRU",
                ("capacity", *_COLOURS),
                rows,
                note="evicted: cached, but evicted before reuse; diverged: the conversation"
                " continues from an edited history; cold: never seen before; tail: partial last"
                " block, last token and prompts without hashes, which no prefix cache hits",
            ),
        ),
        figures=(partial(misses_chart, caching, sizes),),
    )


def _definitions(caching: Caching) -> Section:
    rows = tuple(
        (
            rate.definition,
            rate.weight,
            rate.window,
            "kept" if rate.partial else "dropped",
            "on" if rate.last_token_rule else "off",
            rate.outputs,
            "flat" if rate.flat else "prefix",
            units.format_share(rate.ideal),
        )
        for rate in caching.hit_rates
    )
    words = (
        "A trace has as many hit rates as there are definitions of a hit. These are for an infinite"
        " cache. Most definitions differ from kvscope's in the one thing that their name says; the"
        " last ones count as other tools do."
    )
    return Section(
        title="Definitions",
        sentences=(words,),
        tables=(
            Table(
                "Ideal hit rate by definition",
                (
                    "definition",
                    "weight",
                    "window",
                    "partial",
                    "last-token rule",
                    "outputs",
                    "lookup",
                    "ideal",
                ),
                rows,
                note="lookup: prefix stops at the first missing block, flat looks up every block",
            ),
        ),
    )


def curve_chart(caching: Caching, sizes: Sizes) -> go.Figure:
    """Build LRU's hit rate over capacity, with the ideal rate, its shares, and the HBM."""
    unit, hbm_blocks = sizes.axis, sizes.hbm_blocks
    chart = style.figure(
        "LRU's exact hit rate at every capacity", f"capacity ({unit.name})", "hit rate"
    )
    blocks = [point.capacity_blocks for point in caching.curve]
    by_token = [point.token_hit_rate for point in caching.curve]
    by_block = [point.block_hit_rate for point in caching.curve]
    if hbm_blocks and hbm_blocks > blocks[-1]:  # flat from the last point on
        blocks, by_token, by_block = (
            [*blocks, hbm_blocks],
            [*by_token, by_token[-1]],
            [*by_block, by_block[-1]],
        )
    capacities = (np.array(blocks) * unit.per_block).tolist()
    for number, (name, rates) in enumerate((("by token", by_token), ("by block", by_block))):
        chart.add_scatter(x=capacities, y=rates, name=name, line=style.line(number))
    chart.add_scatter(
        x=[mark.point.capacity_blocks * unit.per_block for mark in caching.landmarks],
        y=[caching.rate(mark.point) for mark in caching.landmarks],
        text=[f"{mark.share_of_ideal:.0%}" for mark in caching.landmarks],
        mode="markers+text",
        textposition="bottom right",
        name="share of ideal",
        marker={"color": style.VERMILION, "size": 8},
    )
    style.level(chart, caching.ideal, f"infinite cache {caching.ideal:.1%}")
    if hbm_blocks and sizes.hbm_bytes:
        style.mark(chart, hbm_blocks * unit.per_block, f"{units.format_size(sizes.hbm_bytes)} HBM")
    style.logarithmic(chart, counts=unit.name == "blocks")
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def misses_chart(caching: Caching, sizes: Sizes) -> go.Figure:
    """Build what became of the input tokens at each capacity."""
    chart = style.figure("Hits and causes of misses", "capacity", "input tokens")
    labels = [sizes.label(reasons.capacity_blocks) for reasons in caching.misses]
    for name, colour in _COLOURS.items():
        shares = [
            getattr(reasons, f"{name}_tokens") / reasons.input_tokens for reasons in caching.misses
        ]
        chart.add_bar(x=labels, y=shares, name=name, marker_color=colour)
    chart.update_layout(barmode="stack")
    chart.update_xaxes(type="category")
    chart.update_yaxes(tickformat=".0%")
    return chart
