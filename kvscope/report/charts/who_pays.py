"""Whose TTFT changes, and by how much: left of 0 gains, right of it pays."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from kvscope.core.percentiles import Percentiles
from kvscope.report.charts import style

_SHOWN = (("p50", style.SKY), ("p95", style.BLUE), ("p99", style.PURPLE))
_ROW_PX = 40
SHOWN_CATEGORIES = 10  # more bars than that nobody reads


def changes(
    title: str, before: Mapping[str, Percentiles], after: Mapping[str, Percentiles]
) -> go.Figure:
    """The change of TTFT (ms) by category and percentile, of the first SHOWN_CATEGORIES."""
    names = list(before)[:SHOWN_CATEGORIES]
    chart = style.figure(
        title,
        "change of TTFT (ms)",
        "type, turn",
        height=170 + _ROW_PX * len(names),
    )
    for percentile, colour in _SHOWN:
        chart.add_bar(
            y=[style.label(name) for name in names],
            x=[
                getattr(after[name], percentile) - getattr(before[name], percentile)
                for name in names
            ],
            name=percentile,
            orientation="h",
            marker_color=colour,
            hovertemplate=f"%{{y}}: {percentile} %{{x:+,.4~g}} ms<extra></extra>",
        )
    chart.update_yaxes(type="category", autorange="reversed", automargin=True)
    chart.update_layout(legend_traceorder="normal")
    return chart
