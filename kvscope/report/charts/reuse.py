"""Charts of who reuses: types, users, hot blocks."""

from __future__ import annotations

import plotly.graph_objects as go

from kvscope.characterize.sources import Skew, Sources
from kvscope.characterize.traffic import Contribution
from kvscope.report.charts import style


def contribution(found: Contribution) -> go.Figure:
    """Share of the requests and of the hits, by type and by turn."""
    chart = style.figure("Requests and hits by type", "share", "type, turn", height=380)
    names = [
        f"{style.label(row.type)}, {'later turns' if row.multi_turn else 'turn 1'}"
        for row in found.rows
    ]
    requests = [row.request_share for row in found.rows]
    hits = [row.hit_share for row in found.rows]
    chart.add_bar(y=names, x=requests, name="requests", orientation="h", marker_color=style.SKY)
    chart.add_bar(y=names, x=hits, name="hits", orientation="h", marker_color=style.BLUE)
    chart.update_xaxes(tickformat=".0%")
    chart.update_yaxes(autorange="reversed", automargin=True)
    return chart


def sources(found: Sources) -> go.Figure:
    """Who had last touched the blocks that were used again."""
    chart = style.figure("Last touched by", "share of the reused blocks", "", height=220)
    shares = {
        "the same conversation": found.same_conversation_share,
        "the same user, elsewhere": found.same_user_share,
        "elsewhere" if found.same_user_share is None else "another user": found.other_share,
    }
    known = {name: share for name, share in shares.items() if share is not None}
    chart.add_bar(y=list(known), x=list(known.values()), orientation="h", marker_color=style.BLUE)
    chart.update_xaxes(tickformat=".0%", range=[0, 1])
    chart.update_yaxes(autorange="reversed", automargin=True, title_text="last user")
    return chart


def users(found: Sources) -> go.Figure:
    """Which user reuses what which user touched last; the top users by what they reuse."""
    ranks = sorted({cell.reuser_rank for cell in found.heat_map})
    sources = [*ranks, None]
    blocks = {(cell.reuser_rank, cell.source_rank): cell.blocks for cell in found.heat_map}
    names = [*(str(rank) for rank in ranks), "others"]
    chart = style.figure(
        "Blocks reused, by user", "touched last by the user of rank", "reused by rank", height=480
    )
    chart.add_heatmap(
        x=names,
        y=names[:-1],
        z=[[blocks.get((reuser, source), 0) for source in sources] for reuser in ranks],
        colorscale=style.SHADES,
        colorbar={"title": "blocks"},
        hovertemplate="rank %{y} reuses %{z} blocks of rank %{x}<extra></extra>",
    )
    chart.update_xaxes(type="category")
    chart.update_yaxes(type="category", autorange="reversed")
    return chart


def skew(found: Skew) -> go.Figure:
    """How much of the reuse the most reused blocks, and the top users, make."""
    chart = style.figure("Skew", "top share of blocks or users", "share of reuse or hits")
    lines = [("blocks, by reuse", found.reuse)]
    if found.users is not None:
        lines.append(("users, by hits", found.users.hits))
    for number, (name, tops) in enumerate(lines):
        chart.add_scatter(
            x=[0.0, *(top.top_share for top in tops), 1.0],
            y=[0.0, *(top.share for top in tops), 1.0],
            name=name,
            mode="lines+markers",
            line=style.line(number),
        )
    chart.update_xaxes(tickformat=".0%")
    chart.update_yaxes(tickformat=".0%")
    return chart
