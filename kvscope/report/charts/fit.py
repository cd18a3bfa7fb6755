"""Charts of fitted models: curves beside what was observed, and over time."""

from __future__ import annotations

import plotly.graph_objects as go

from kvscope.report.charts import style
from kvscope.reuse_models.results import CategoryFit, Fit, NextTurnFit, Windows

_EACH_TURN = 20
SHOWN_WINDOWS = 12  # more lines than that nobody can tell apart


def reuse(found: CategoryFit) -> go.Figure:
    """How soon touched blocks of a category are reused: observed, and by each model."""
    chart = style.figure(
        f"Reuse after {style.label(found.category)}",
        "time since the touch (s)",
        "share of the touched blocks",
    )
    curve = found.curve
    if curve is None:
        return chart
    chart.add_scatter(
        x=curve.at_s,
        y=curve.observed,
        name="observed (Kaplan-Meier)",
        line={"color": style.GREY, "width": 5, "shape": "hv"},
    )
    for number, (name, values) in enumerate(curve.by_model.items()):
        chosen = name == found.model
        chart.add_scatter(
            x=curve.at_s,
            y=values,
            name=f"{name}: use this" if chosen else name,
            line=style.line(number) | {"width": 3 if chosen else 1.5},
        )
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def by_window(windows: Windows, category: str) -> go.Figure:
    """What a category's windows show, one line each."""
    chart = style.figure(
        f"Reuse after {style.label(category)}, by window",
        "time since the touch (s)",
        "share of the touched blocks",
    )
    rows = [row for row in windows.fits if row.category == category]
    step = -(-len(rows) // SHOWN_WINDOWS)
    for number, row in enumerate(rows[::step]):
        chart.add_scatter(
            x=windows.at_s,
            y=row.observed,
            name=f"{row.start_s / 3600:.1f} h",
            line=style.line(number),
        )
    style.logarithmic(chart)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def probability_over_time(windows: Windows, categories: list[str]) -> go.Figure:
    """The probability that a touched block is reused, window by window."""
    chart = style.figure("Reuse probability over time", "start of the window (h)", "probability")
    _lines(chart, windows, categories, gap=False)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def gap_over_time(windows: Windows, categories: list[str]) -> go.Figure:
    """The mean wait of the exponential, window by window."""
    chart = style.figure(
        "Mean reuse gap over time", "start of the window (h)", "mean reuse gap (s)"
    )
    _lines(chart, windows, categories, gap=True)
    chart.update_yaxes(rangemode="tozero")
    return chart


def _lines(chart: go.Figure, windows: Windows, categories: list[str], *, gap: bool) -> None:
    for number, category in enumerate(categories):
        rows = [row for row in windows.fits if row.category == category]
        if not rows:
            continue
        chart.add_scatter(
            x=[row.start_s / 3600 for row in rows],
            y=[1 / row.rate_per_s if gap else row.reuse_probability for row in rows],
            name=style.label(category),
            mode="lines+markers",
            line=style.line(number),
        )


def next_turns(found: Fit) -> go.Figure:
    """The probability that another turn follows, by the turn it follows."""
    chart = style.figure("Next turn", "after turn", "probability of another one")
    rows = [row for row in found.next_turns if row.turn and row.probability is not None]
    chart.add_scatter(
        x=[row.turn for row in rows],
        y=[row.probability for row in rows],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [_reach(row, 1) for row in rows],
            "arrayminus": [-_reach(row, 0) for row in rows],
        },
        name="with the interval at 95 %",
        mode="markers",
        marker={"color": style.BLUE, "size": 9},
    )
    chart.update_xaxes(tickformat="d", dtick=1 if len(rows) <= _EACH_TURN else None)
    chart.update_yaxes(tickformat=".0%", range=[0, 1])
    return chart


def _reach(row: NextTurnFit, side: int) -> float:
    if row.interval is None or row.probability is None:
        return 0.0
    return row.interval[side] - row.probability
