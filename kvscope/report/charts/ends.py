"""Charts of foreseen returns: what was said beside what came, and how well over time."""

from __future__ import annotations

import plotly.graph_objects as go

from kvscope.learning.ends.prediction_quality import Foreseen
from kvscope.report.charts import style


def calibration(of: Foreseen) -> go.Figure:
    """A point for requests of like prediction, beside the line on which all is as said."""
    chart = style.figure("Calibration", "probability said", "share that was continued")
    chart.add_scatter(
        x=[0, 1],
        y=[0, 1],
        name="as said",
        mode="lines",
        line={"color": style.GREY, "dash": "dot"},
    )
    chart.add_scatter(
        x=[one.predicted for one in of.calibration],
        y=[one.observed for one in of.calibration],
        name="came",
        mode="lines+markers",
        text=[f"{one.n:,} requests" for one in of.calibration],
        line=style.line(0),
    )
    chart.update_xaxes(tickformat=".0%", range=[0, 1])
    chart.update_yaxes(tickformat=".0%", range=[0, 1])
    return chart


def auc_over_time(of: Foreseen) -> go.Figure:
    """AUC, the share that was continued and what was said of it, stretch by stretch."""
    chart = style.figure("Foreseen over time", "start of the stretch (h)", "AUC, shares")
    hours = [one.start_s / 3600 for one in of.windows]
    lines = (
        ("AUC", [one.auc for one in of.windows]),
        ("continued", [one.base_rate for one in of.windows]),
        ("said on average", [one.predicted for one in of.windows]),
    )
    for number, (name, values) in enumerate(lines):
        chart.add_scatter(x=hours, y=values, name=name, line=style.line(number))
    chart.update_yaxes(range=[0, 1])
    return chart
