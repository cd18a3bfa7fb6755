"""Charts of when blocks are reused and how long they live."""

from __future__ import annotations

import plotly.graph_objects as go

from kvscope.characterize.gaps import GapDistribution, ReuseGaps, ReuseHazard
from kvscope.characterize.lifetimes import Lifetimes
from kvscope.report.charts import style

SHOWN_CATEGORIES = 12  # more lines than that nobody can tell apart


def gaps(found: ReuseGaps) -> go.Figure:
    """How much of the reuse comes within a time, by category."""
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


def hazard(found: ReuseHazard) -> go.Figure:
    """The probability that a block untouched for a time is used in the next second."""
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


def lifetimes(found: Lifetimes) -> go.Figure:
    """How many blocks are dead after a time, by category."""
    chart = style.figure(
        "Lifetime of blocks", "time since the first use (s)", "share of blocks used no more"
    )
    largest = sorted(found.by_category, key=lambda row: -row.blocks)[:SHOWN_CATEGORIES]
    for number, row in enumerate([row for row in (found.overall, *largest) if row is not None]):
        name = style.label(row.category) if row.category else "all"
        chart.add_scatter(x=found.at_s, y=row.cdf, name=name, line=style.line(number))
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", range=[0, 1])
    return chart


def lifetimes_over_time(found: Lifetimes) -> go.Figure:
    """Mean lifetime of blocks by the window of their first use, by category."""
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
