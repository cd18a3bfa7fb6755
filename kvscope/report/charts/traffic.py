"""Charts of requests over time and of conversations."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvscope.characterize.summary import Characterization
from kvscope.characterize.turns import ConversationTurns, NextTurns
from kvscope.report.charts import style


def over_time(found: Characterization) -> go.Figure:
    """Requests and ideal hit rate, window by window."""
    windows = found.over_time.windows
    hours = [window.start_s / 3600 for window in windows]
    blank = go.Figure(layout=style.layout("Traffic and ideal hit rate over time"))
    chart = make_subplots(figure=blank, specs=[[{"secondary_y": True}]])
    chart.add_bar(
        x=hours,
        y=[window.arrival_rate_per_s for window in windows],
        name="requests/s",
        marker_color=style.SKY,
    )
    if found.trace.has_hashes:
        for number, (name, field) in enumerate(
            (("hit rate by token", "token_hit_rate"), ("hit rate by block", "block_hit_rate"))
        ):
            rates = [getattr(window, field) for window in windows]
            line = style.line(number) | ({"dash": "dot"} if number else {})  # they often coincide
            chart.add_scatter(x=hours, y=rates, name=name, line=line, secondary_y=True)
    chart.update_layout(legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.2})
    chart.update_xaxes(title_text="time since the trace's start (h)")
    chart.update_yaxes(title_text="requests/s", secondary_y=False)
    chart.update_yaxes(
        title_text="ideal hit rate by default definition",
        tickformat=".0%",
        range=[0, 1],
        dtick=0.2,
        secondary_y=True,
    )
    return chart


def turns(found: ConversationTurns) -> go.Figure:
    """How many conversations have how many turns."""
    chart = style.figure("Turns per conversation", "turns", "conversations", height=320)
    chart.add_bar(
        x=[row.turns for row in found.histogram],
        y=[row.conversations for row in found.histogram],
        marker_color=style.BLUE,
    )
    style.logarithmic(chart, "y", counts=True)
    return chart


def next_turns(found: NextTurns) -> go.Figure:
    """Probability of a next turn by category and time; a gap where nothing was asked.

    Windows whose next turns the trace's end may hide lie under a grey veil.
    """
    categories = [row.category for row in found.by_category]
    starts = sorted({row.start_s for row in found.over_time})
    known = {(row.category, row.start_s): row for row in found.over_time}
    cells = [[known.get((category, start)) for start in starts] for category in categories]
    chart = style.figure(
        "Probability of a next turn over time",
        "time since the trace's start (h)",
        "category",
        height=160 + 24 * len(categories),
    )
    chart.add_heatmap(
        x=[start / 3600 for start in starts],
        y=[style.label(category) for category in categories],
        z=[[cell.probability if cell else None for cell in row] for row in cells],
        customdata=[[cell.requests if cell else 0 for cell in row] for row in cells],
        hovertemplate="%{y}, %{x:.2f} h: %{z:.0%} of %{customdata} requests<extra></extra>",
        colorscale=style.SHADES,
        zmin=0,
        zmax=1,
        colorbar={"tickformat": ".0%"},
    )
    chart.update_yaxes(type="category", autorange="reversed")
    unsettled = [row.start_s for row in found.over_time if not row.settled]
    if unsettled:
        chart.add_vrect(
            x0=(min(unsettled) - found.window_s / 2) / 3600,  # cells stand around their start
            x1=(max(starts) + found.window_s / 2) / 3600,
            fillcolor=style.GREY,
            opacity=0.35,
            line_width=0,
            annotation_text="not settled: next turns may lie beyond the trace's end",
            annotation_position="top right",
        )
    return chart
