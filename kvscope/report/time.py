"""How soon blocks are reused, how long they live, and how stable that is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from kvscope.characterize.distributions import Summary
from kvscope.characterize.gaps import GapDistribution, ReuseGaps, ReuseHazard
from kvscope.characterize.lifetimes import LifetimeDistribution, Lifetimes
from kvscope.characterize.stability import WINDOWS, Quantity, Stability, Variation
from kvscope.characterize.summary import Characterization
from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Table
from kvscope.report.text_plots import PLOT_WIDTH, sparkline, thinned
from kvscope.report.words import FEWEST, NONE, TimeUnit, share, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

_VARYING: dict[Quantity, str] = {
    "reuse_gap_p50_s": "gap p50",
    "reuse_gap_p80_s": "gap p80",
    "next_turn_probability": "next turn",
}
_FEW_NOTE = f"categories below {FEWEST} requests left out"


def sections(facts: Characterization) -> list[Section]:
    """Return the sections on time; none where the trace has no hashes."""
    requests = {row.category: row.requests for row in facts.categories}
    made = []
    if facts.reuse_gaps is not None and facts.reuse_gaps.overall is not None:
        gaps = facts.reuse_gaps
        made.append(_gaps(gaps, facts.reuse_gaps.overall, facts.reuse_hazard, requests))
    if facts.lifetimes is not None and facts.lifetimes.overall is not None:
        made.append(_lifetimes(facts.lifetimes, facts.lifetimes.overall, requests))
    if facts.stability.between_windows:
        made.append(_stability(facts.stability, requests))
    return made


def _gaps(
    found: ReuseGaps,
    overall: GapDistribution,
    hazard: ReuseHazard | None,
    requests: Mapping[str, int],
) -> Section:
    rows = [overall, *(row for row in found.by_category if _many(row.category, requests))]
    unit = time_unit(row.gap_s.p50 for row in rows)
    figures = [partial(gaps_chart, found)]
    if hazard is not None and hazard.overall is not None:
        figures.append(partial(hazard_chart, hazard))
    p50, p80 = (units.duration_in_words(value) for value in (overall.gap_s.p50, overall.gap_s.p80))
    return Section(
        title="Reuse gaps",
        sentences=(f"Half of the reuse comes within {p50}, 80% within {p80}.",),
        tables=(
            Table(
                f"Time to the next touch, by the category of the last touch ({unit.name})",
                ("type, turn", "reused blocks", "mean", "p50", "p80", "p90", "p99"),
                tuple(
                    (
                        row.category or "all",
                        units.format_count(row.reused_blocks),
                        *_quantiles(row.gap_s, unit),
                    )
                    for row in sorted(rows, key=lambda row: -row.reused_blocks)
                ),
                note=_FEW_NOTE,
            ),
        ),
        plot=_cdf_plot("reused within", found.at_s, overall.cdf),
        figures=tuple(figures),
    )


def _lifetimes(
    found: Lifetimes, overall: LifetimeDistribution, requests: Mapping[str, int]
) -> Section:
    rows = [overall, *(row for row in found.by_category if _many(row.category, requests))]
    unit = time_unit(row.lifetime_s.p90 for row in rows)
    words = (
        f"{units.format_share(overall.never_reused_share)} of the blocks are never used again;"
        f" 90% have had their last use {units.duration_in_words(overall.lifetime_s.p90)} after"
        " their first."
    )
    return Section(
        title="Lifetimes",
        sentences=(words,),
        tables=(
            Table(
                f"First to last use of a block, by the category of the first ({unit.name})",
                ("type, turn", "blocks", "never reused", "mean", "p50", "p80", "p90", "p99"),
                tuple(
                    (
                        row.category or "all",
                        units.format_count(row.blocks),
                        units.format_share(row.never_reused_share),
                        *_quantiles(row.lifetime_s, unit),
                    )
                    for row in sorted(rows, key=lambda row: -row.blocks)
                ),
                note=_FEW_NOTE,
            ),
        ),
        plot=_cdf_plot("last use within", found.at_s, overall.cdf),
        figures=(partial(lifetimes_chart, found), partial(lifetimes_over_time_chart, found)),
    )


def _many(category: str | None, requests: Mapping[str, int]) -> bool:
    return category is not None and requests.get(category, 0) >= FEWEST


def _quantiles(summary: Summary, unit: TimeUnit) -> tuple[str, ...]:
    values = (summary.mean, summary.p50, summary.p80, summary.p90, summary.p99)
    return tuple(unit.cell(value) for value in values)


def _cdf_plot(label: str, at_s: tuple[float, ...], cdf: tuple[float, ...]) -> tuple[str, ...]:
    if not at_s:
        return ()
    line = sparkline(thinned(cdf, PLOT_WIDTH), 1.0)
    first, last = (units.duration_in_words(at) for at in (at_s[0], at_s[-1]))
    return (f"{label:<16} {line}", f"{'':<16} {first:<{len(line) - len(last)}}{last}")


def _stability(found: Stability, requests: Mapping[str, int]) -> Section:
    """Return how windows differ, of what has enough requests in each for that to mean anything."""
    tables = [
        _varying(unit, rows, requests)
        for unit, rows in (("window", found.between_windows), ("day", found.between_days))
    ]
    words = (
        f"Windows of {units.duration_in_words(found.window_s)}. Varies by: standard deviation"
        " between the windows that have a value, relative to their mean."
    )
    rates = [
        f"Ideal hit rate (token-weighted): mean {units.format_share(row.mean)}, varies by"
        f" {share(row.variation)} between {row.windows} windows."
        for row in found.between_windows
        if row.quantity == "ideal_hit_rate"
    ]
    return Section(
        title="Stability",
        sentences=(words, *rates),
        tables=tuple(table for table in tables if table.rows),
    )


def _varying(unit: str, variations: tuple[Variation, ...], requests: Mapping[str, int]) -> Table:
    """Return a row a category: the mean of each quantity and how much it varies."""
    known = {(row.category, row.quantity): row for row in variations}
    categories = [
        category
        for category, count in sorted(requests.items(), key=lambda item: -item[1])
        if count >= FEWEST * WINDOWS and any(category == other for other, _ in known)
    ]
    gaps = time_unit(row.mean for row in variations if row.quantity == "reuse_gap_p50_s")

    def cells(row: Variation | None) -> tuple[str, str]:
        if row is None:
            return NONE, NONE
        in_seconds = row.quantity.endswith("_s")
        mean = gaps.cell(row.mean) if in_seconds else units.format_share(row.mean)
        return mean, share(row.variation)

    columns = [
        column
        for quantity, title in _VARYING.items()
        for column in (
            f"{title} ({gaps.name})" if quantity.endswith("_s") else title,
            f"{title} varies by",
        )
    ]
    return Table(
        f"From {unit} to {unit}",
        ("type, turn", *columns),
        tuple(
            (category, *(cell for name in _VARYING for cell in cells(known.get((category, name)))))
            for category in categories
        ),
        note=f"only categories of at least {FEWEST * WINDOWS} requests: fewer vary by chance",
    )


SHOWN_CATEGORIES = 12  # more lines cannot be told apart


def gaps_chart(found: ReuseGaps) -> go.Figure:
    """Build how much of the reuse comes within a time, by category."""
    chart = style.figure(
        "Reuse within a time", "time since the last use (s)", "share of the reused blocks"
    )
    lines = [row for row in (found.overall, *_largest(found)) if row is not None]
    for number, row in enumerate(lines):
        name = style.label(row.category) if row.category else "all"
        chart.add_scatter(x=found.at_s, y=row.cdf, name=name, line=style.line(number))
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", range=[0, 1])
    return chart


def _largest(found: ReuseGaps) -> list[GapDistribution]:
    rows = sorted(found.by_category, key=lambda row: -row.reused_blocks)
    return rows[:SHOWN_CATEGORIES]


def hazard_chart(found: ReuseHazard) -> go.Figure:
    """Build the probability that a block untouched for a time is used in the next second."""
    chart = style.figure(
        "Reuse in the next second",
        "time since the last use (s)",
        "probability in the next second",
    )
    largest = sorted(found.by_category, key=lambda row: -max(row.at_risk_blocks, default=0))
    rows = [row for row in (found.overall, *largest[:SHOWN_CATEGORIES]) if row is not None]
    for number, row in enumerate(rows):
        name = style.label(row.category) if row.category else "all"
        known = [
            p or None for p in row.probability
        ]  # zero is a gap: a log axis has no place for it
        chart.add_scatter(
            x=found.at_s,
            y=known,
            name=name,
            mode="lines+markers",
            line=style.line(number),
        )
    style.logarithmic(chart)
    chart.update_yaxes(type="log", tickformat=".1e")
    return chart


def lifetimes_chart(found: Lifetimes) -> go.Figure:
    """Build how many blocks have had their last use after a time, by category."""
    chart = style.figure(
        "Lifetime of blocks", "time since the first use (s)", "share of blocks after their last use"
    )
    largest = sorted(found.by_category, key=lambda row: -row.blocks)[:SHOWN_CATEGORIES]
    for number, row in enumerate([row for row in (found.overall, *largest) if row is not None]):
        name = style.label(row.category) if row.category else "all"
        chart.add_scatter(x=found.at_s, y=row.cdf, name=name, line=style.line(number))
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", range=[0, 1])
    return chart


def lifetimes_over_time_chart(found: Lifetimes) -> go.Figure:
    """Build the mean lifetime of blocks by the window of their first use, by category."""
    starts = sorted({row.start_s for row in found.over_time})
    categories = sorted({row.category for row in found.over_time})
    mean = {(row.category, row.start_s): row.mean_s for row in found.over_time}
    chart = style.figure(
        "Mean lifetime over time",
        "first use, since the trace's start (h)",
        "category",
        height=160 + 24 * len(categories),
    )
    chart.add_heatmap(
        x=[start / 3600 for start in starts],
        y=[style.label(category) for category in categories],
        z=[[mean.get((category, start)) for start in starts] for category in categories],
        colorscale=style.SHADES,
        colorbar={"title": "s"},
        hovertemplate="%{y}, %{x:.2f} h: %{z:.0f} s<extra></extra>",
    )
    chart.update_yaxes(type="category", autorange="reversed")
    return chart
