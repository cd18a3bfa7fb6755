"""What the tail gains and the median pays: every policy or setting as a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kvscope.report.charts import style
from kvscope.report.charts.policies import policy_line

_SYMBOLS = {"solid": "circle", "dot": "square", "dashdot": "diamond"} | {
    "dash": "circle-open",
    "longdash": "square-open",
}


@dataclass(frozen=True, slots=True)
class Point:
    """A policy with its parameters (`label`), its median, and its tail; both in ms."""

    policy: str
    label: str
    median_ms: float
    tail_ms: float


def trade_off(title: str, median: str, tail: str, points: Sequence[Point]) -> go.Figure:
    """`tail` against `median`: a colour a policy, and the front that no point beats in both."""
    chart = style.figure(title, f"{median} (ms)", f"{tail} (ms)")
    for name in dict.fromkeys(one.policy for one in points):
        likes = [one for one in points if one.policy == name]
        chart.add_scatter(
            x=[one.median_ms for one in likes],
            y=[one.tail_ms for one in likes],
            text=[style.label(one.label) for one in likes],
            name=name,
            mode="markers",
            marker={"color": policy_line(name)["color"], "size": 9, "symbol": symbol(name)},
            hovertemplate=f"%{{text}}: {median} %{{x:.4~g}} ms, {tail} %{{y:.4~g}} ms"
            "<extra></extra>",
        )
    best = front(points)
    chart.add_scatter(
        x=[one.median_ms for one in best],
        y=[one.tail_ms for one in best],
        name="Pareto front",
        mode="lines",
        line={"color": style.GREY, "dash": "dot"},
        hoverinfo="skip",
    )
    return chart


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats both in the median and in the tail."""
    kept: list[Point] = []
    for one in sorted(points, key=lambda one: (one.median_ms, one.tail_ms)):
        if not kept or one.tail_ms < kept[-1].tail_ms:
            kept.append(one)
    return kept


def symbol(policy: str) -> str:
    """Hollow for those that know the future, whose lines are dashed."""
    return _SYMBOLS[str(policy_line(policy)["dash"])]
