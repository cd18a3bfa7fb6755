"""The hottest prefixes as an icicle: what is wide is hit often, what lies below goes on from it."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

import plotly.graph_objects as go

from kvscope.characterize.prefixes import Prefix
from kvscope.show.charts import style

_DEPTH = 8


def icicle(found: Sequence[Prefix], block_size: int) -> go.Figure:
    """Stretches of the prefix trie by the tokens that prompts found there; a click zooms in."""
    chart = style.figure("Hottest prefixes, by hash", "", "", height=460)
    ids = {one.number: str(one.number) for one in found}
    chart.add_icicle(
        ids=["root", *ids.values()],
        labels=["all", *(f"{one.hash_id & (2**64 - 1):x}" for one in found)],
        parents=["", *(ids.get(one.parent, "root") for one in found)],
        values=[0, *(one.hits * block_size for one in found)],
        customdata=[
            (sum(one.reuses for one in found if not one.parent), 0, 0),
            *((one.reuses, one.blocks, one.depth_blocks) for one in found),
        ],
        branchvalues="remainder",
        maxdepth=_DEPTH,
        marker={"colorscale": style.SHADES, "colors": [0, *(log10(one.reuses) for one in found)]},
        tiling={"orientation": "v"},
        hovertemplate="%{label}: %{customdata[0]:,} prompts found its %{customdata[1]:,} blocks"
        " (from block %{customdata[2]:,} on)"
        "<br>%{value:,} tokens hit from here on<extra></extra>",
    )
    chart.update_layout(margin={"l": 10, "r": 10, "t": 50, "b": 10})
    return chart
