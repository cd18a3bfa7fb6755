"""Charts of what caching gives: LRU's curve and why tokens missed."""

from __future__ import annotations

import plotly.graph_objects as go

from kvscope.app.analyze import Caching
from kvscope.report.charts import style


def curve(caching: Caching) -> go.Figure:
    """LRU's hit rate at every capacity, with the ideal rate and the landmarks."""
    chart = style.figure("LRU's exact hit rate at every capacity", "capacity (blocks)", "hit rate")
    capacities = [point.capacity_blocks for point in caching.curve]
    token = [point.token_hit_rate for point in caching.curve]
    block = [point.block_hit_rate for point in caching.curve]
    for number, (name, rates) in enumerate((("by token", token), ("by block", block))):
        chart.add_scatter(x=capacities, y=rates, name=name, line=style.line(number))
    chart.add_scatter(
        x=[mark.point.capacity_blocks for mark in caching.landmarks],
        y=[caching.rate(mark.point) for mark in caching.landmarks],
        text=[f"{mark.share_of_ideal:.0%}" for mark in caching.landmarks],
        mode="markers+text",
        textposition="bottom right",
        name="share of ideal",
        marker={"color": style.VERMILION, "size": 8},
    )
    style.level(chart, caching.ideal, f"infinite cache {caching.ideal:.1%}")
    style.logarithmic(chart, counts=True)
    chart.update_yaxes(tickformat=".0%", rangemode="tozero")
    return chart


def misses(caching: Caching) -> go.Figure:
    """What became of the input tokens at each landmark capacity."""
    chart = style.figure("Why tokens had to be computed", "capacity (blocks)", "input tokens")
    parts = (
        ("hit", "hit_tokens", style.GREEN),
        ("evicted", "evicted_tokens", style.VERMILION),
        ("diverged", "diverged_tokens", style.PURPLE),
        ("cold", "cold_tokens", style.SKY),
        ("tail", "tail_tokens", style.GREY),
    )
    names = [f"{reasons.capacity_blocks:,}" for reasons in caching.misses]
    for name, field, colour in parts:
        shares = [getattr(reasons, field) / reasons.input_tokens for reasons in caching.misses]
        chart.add_bar(x=names, y=shares, name=name, marker_color=colour)
    chart.update_layout(barmode="stack")
    chart.update_xaxes(type="category")
    chart.update_yaxes(tickformat=".0%")
    return chart
