"""How every chart looks: colours that colour-blind readers can tell apart, units on the axes.

Source: Okabe & Ito, "Color Universal Design" (2008), for the palette.
"""

from __future__ import annotations

from functools import cache
from html import escape
from math import log10

import plotly.graph_objects as go

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#6e7781"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY, YELLOW)
DASHES = ("solid", "dash", "dot", "dashdot")
SHADES = "Blues"
_PALE = "#EBF0F8"
_FEW_DECADES = 2.6


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


def layout(title: str, *, height: int = 380) -> dict[str, object]:
    """What every chart's layout begins with."""
    return {
        "title": {"text": title, "font": {"size": 16}},
        "template": _template(),
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 50, "b": 60},
        "legend": {"font": {"size": 11}},
        "hovermode": "closest",
    }


def figure(title: str, x: str, y: str, *, height: int = 380) -> go.Figure:
    """An empty chart with its title and the titles of its axes, units included."""
    whole = layout(title, height=height)
    return go.Figure(
        layout=whole | {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    )


@cache
def _template() -> go.layout.Template:
    """Axes and background as in plotly_white, which is copied for each chart and is large."""
    axis: dict[str, object] = dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor"), _PALE)
    axis |= {"automargin": True, "ticks": "", "zerolinewidth": 2, "title": {"standoff": 15}}
    return go.layout.Template(
        layout={
            "font": {"color": "#2a3f5f"},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "colorway": SERIES,
            "xaxis": axis,
            "yaxis": axis,
            "title": {"x": 0.05},
        }
    )


def logarithmic(chart: go.Figure, axis: str = "x", *, counts: bool = False) -> None:
    """Make the axis logarithmic, every tick labelled in full; `counts` as 2k, others as 2,000.

    To be called once the series are there. Plotly labels nine ticks a decade where there are few
    decades, most of them by one small digit: here they are 1, 2 and 5.
    """
    series = (one[axis] for one in chart.data if one[axis] is not None)
    values = [float(value) for each in series for value in each if value is not None and value > 0]
    decades = log10(max(values) / min(values)) if values else 0.0
    few = {"dtick": "D2"} if 1 <= decades <= _FEW_DECADES else {}
    ticks = {"type": "log", "tickformat": "~s" if counts else ",~g", **few}
    chart.update_layout({f"{axis}axis": ticks})


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
