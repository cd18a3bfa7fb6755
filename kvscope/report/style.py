"""How every chart looks: colours that colour-blind readers can tell apart, units on the axes.

Only this module imports plotly, and only once a chart is made: output on a terminal needs none.
Source: Okabe & Ito, "Color Universal Design" (2008), for the palette.
"""

from __future__ import annotations

from functools import cache
from html import escape
from math import log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#6e7781"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY, YELLOW)
DASHES = ("solid", "dash", "dot", "dashdot")
SHADES = "Blues"
_PALE = "#EBF0F8"
_FEW_DECADES = 2.6


def label(text: str) -> str:
    """Return a string of a trace for use in a chart, where plotly would read some HTML."""
    return escape(text)


def line(number: int) -> dict[str, object]:
    """Return colour and dash of the series `number`; no two of the first 32 are the same."""
    return {
        "color": SERIES[number % len(SERIES)],
        "dash": DASHES[number // len(SERIES) % len(DASHES)],
        "width": 2,
    }


def layout(title: str, *, height: int = 380) -> dict[str, object]:
    """Return what every chart's layout begins with; the legend lies below, so it clips nothing."""
    return {
        "title": {"text": title, "font": {"size": 16}},
        "template": _template(),
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 50, "b": 60},
        "legend": {
            "font": {"size": 11},
            "orientation": "h",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
        },
        "hovermode": "closest",
    }


def figure(title: str, x: str, y: str, *, height: int = 380) -> go.Figure:
    """Return an empty chart with its title and the titles of its axes, units included."""
    import plotly.graph_objects as go

    whole = layout(title, height=height)
    return go.Figure(
        layout=whole | {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    )


def subplots(title: str, **options: object) -> go.Figure:
    """Return an empty chart of several plots; `options` are those of plotly's make_subplots."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    return make_subplots(figure=go.Figure(layout=layout(title)), **options)


@cache
def _template() -> go.layout.Template:
    """Return axes and background as in plotly_white, which is large and copied for each chart."""
    import plotly.graph_objects as go

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

    Call it once the series are there. Plotly labels nine ticks a decade where there are few
    decades, most of them by one small digit: here they are 1, 2 and 5.
    """
    series = (trace[axis] for trace in chart.data if trace[axis] is not None)
    values = [
        float(value) for column in series for value in column if value is not None and value > 0
    ]
    decades = log10(max(values) / min(values)) if values else 0.0
    few = {"dtick": "D2"} if 1 <= decades <= _FEW_DECADES else {}
    ticks = {"type": "log", "tickformat": "~s" if counts else ",~g", **few}
    chart.update_layout({f"{axis}axis": ticks})


def mark(chart: go.Figure, x: float, text: str, *, log: bool = True) -> None:
    """Draw a vertical line at `x`, its text alongside, also on a logarithmic axis."""
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
    """Draw a horizontal line at `y`, its text above its left end."""
    chart.add_hline(
        y=y,
        line_dash="dot",
        line_color=GREY,  # to be seen on white and on black
        annotation_text=text,
        annotation_position="top left",
    )


def point(chart: go.Figure, x: float, y: float, name: str) -> None:
    """Mark a point with a circle of its own."""
    chart.add_scatter(
        x=[x],
        y=[y],
        mode="markers",
        name=name,
        marker={"color": VERMILION, "size": 13, "symbol": "circle-open", "line_width": 3},
    )
