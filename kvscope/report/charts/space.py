"""Charts of where in the prompt reuse lies and how many blocks are alive."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from kvscope.characterize.lifetimes import WorkingSet
from kvscope.characterize.spatial import Spatial
from kvscope.report.charts import style


def spatial(found: Spatial) -> go.Figure:
    """Ideal block hit rate by start offset and share of the request cached.

    Source: Wang et al., KVCache Cache in the Wild (ATC'25), Figures 16 to 18.
    """
    maps = [
        (name, cells)
        for name, cells in (
            ("all requests", found.overall),
            ("turn 1", found.single_turn),
            ("later turns", found.multi_turn),
        )
        if cells is not None
    ]
    chart = make_subplots(
        figure=go.Figure(layout=style.layout("Ideal block hit rate by place in the prompt")),
        cols=len(maps),
        subplot_titles=[name for name, _ in maps],
        shared_yaxes=True,
    )
    for column, (_, cells) in enumerate(maps, start=1):
        chart.add_heatmap(
            x=found.strides,
            y=found.offsets,
            z=cells,
            zmin=0,
            zmax=1,
            colorscale=style.SHADES,
            showscale=column == len(maps),
            colorbar={"tickformat": ".0%"},
            hovertemplate="from %{y:.0%}, %{x:.0%} of it: %{z:.1%} hit<extra></extra>",
            row=1,
            col=column,
        )
    chart.update_layout(margin_t=80)
    chart.update_xaxes(title_text="share cached", tickformat=".0%")
    chart.update_yaxes(tickformat=".0%", autorange="reversed")
    chart.update_yaxes(title_text="start offset", col=1)
    return chart


def working_set(found: WorkingSet) -> go.Figure:
    """Blocks that will be used again, over time."""
    chart = style.figure("Blocks alive", "time since the trace's start (h)", "blocks", height=320)
    hours = [at / 3600 for at in found.at_s]
    chart.add_scatter(x=hours, y=found.blocks, line={**style.line(0), "shape": "hv"})
    chart.update_yaxes(rangemode="tozero")
    return chart
