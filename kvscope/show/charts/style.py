"""How every chart looks: colours that colour-blind readers can tell apart, units on the axes.

Source: Okabe & Ito, "Color Universal Design" (2008), for the palette.
"""

from __future__ import annotations

from html import escape
from math import log10

import plotly.graph_objects as go

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#6e7781"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY, YELLOW)
DASHES = ("solid", "dash", "dot", "dashdot")
SHADES = "Blues"


def label(text: str) -> str:
    """A string that a trace supplied, for use in a chart: plotly reads a little HTML otherwise."""
    return escape(text)


def line(number: int) -> dict[str, object]:
    """Colour and dash of the series `number`; no two of the first 32 are the same."""
    return {
        "color": SERIES[number % len(SERIES)],
        "dash": DASHES[number // len(SERIES) % len(DASHES)],
        "width": 2,
    }


def figure(title: str, x: str, y: str, *, height: int = 380) -> go.Figure:
    """An empty chart with its title and the titles of its axes, units included."""
    chart = go.Figure()
    chart.update_layout(
        title={"text": title, "font": {"size": 16}},
        template="plotly_white",
        height=height,
        margin={"l": 70, "r": 20, "t": 50, "b": 60},
        legend={"font": {"size": 11}},
        hovermode="closest",
    )
    chart.update_xaxes(title_text=x)
    chart.update_yaxes(title_text=y)
    return chart


def mark(chart: go.Figure, x: float, text: str, *, log: bool = True) -> None:
    """A vertical line at `x`, its text beside it, also on a logarithmic axis."""
    chart.add_vline(x=x, line_dash="dot", line_color=GREY)
    # plotly takes an annotation's place on such an axis as the exponent, and a line's as it is
    chart.add_annotation(
        x=log10(x) if log else x,
        y=1,
        yref="paper",
        text=text,
        showarrow=False,
        xanchor="right",
        yanchor="top",
    )


def level(chart: go.Figure, y: float, text: str) -> None:
    """A horizontal line at `y`, its text above its left end."""
    chart.add_hline(
        y=y,
        line_dash="dot",
        line_color=GREY,  # to be seen on white and on black
        annotation_text=text,
        annotation_position="top left",
    )
