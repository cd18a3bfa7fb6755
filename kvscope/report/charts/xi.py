"""What xi does to the tail: a line a policy, LRU and the SLO as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from kvscope.report.charts import style
from kvscope.report.charts.policies import policy_line

Points = Sequence[tuple[float, float]]


def sensitivity(title: str, measure: str, by_policy: Mapping[str, Points]) -> go.Figure:
    """`measure` in ms against xi in tokens; points are (xi_tokens, ms), a line for each policy."""
    chart = style.figure(title, "xi (tokens)", f"{measure} (ms)")
    for name, points in by_policy.items():
        chart.add_scatter(
            x=[xi for xi, _ in points],
            y=[ms for _, ms in points],
            name=name,
            mode="lines+markers",
            line=policy_line(name),
            hovertemplate=f"{name}, xi %{{x:,.0f}} tokens: {measure} %{{y:.4~g}} ms<extra></extra>",
        )
    style.logarithmic(chart, counts=True)
    return chart


def chosen(chart: go.Figure, xi_tokens: float, ms: float) -> None:
    """The point that is looked at."""
    chart.add_scatter(
        x=[xi_tokens],
        y=[ms],
        mode="markers",
        name="chosen",
        marker={"color": style.VERMILION, "size": 13, "symbol": "circle-open", "line_width": 3},
    )
