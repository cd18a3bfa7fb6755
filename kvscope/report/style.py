"""How every chart looks: colours that colour-blind readers can tell apart, units on the axes.

Only this module imports plotly, and only once a chart is made: output on a terminal needs none.
Source: Okabe & Ito, "Color Universal Design" (2008), for the palette.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from math import log10
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from plotly.graph_objects import Figure as Figure  # noqa: PLC0414  (exports it to the rooms' annotations)
    from plotly.graph_objects import layout as plotly_layout

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#6e7781"
PALE_GREY = "#b6bcc4"
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY, YELLOW)
DASHES = ("solid", "dash", "dot", "dashdot")
SHADES = "Blues"
MARKED = {"mode": "lines+markers"}
POINTS = {"mode": "markers", "marker": {"size": 8}}  # where nothing was computed between them
LONGEST_LABEL = 40
SHOWN_CATEGORIES = 12  # more lines cannot be told apart
HOURS = "time since the trace's start (h)"

_PALE = "#EBF0F8"
_FEW_DECADES = 3.2
_COUNTS = ("(blocks)", "(tokens)", "conversations")


def label(text: str) -> str:
    """Return a string from a trace for a chart: escaped, as plotly reads some HTML.

    It is cut to LONGEST_LABEL characters.
    """
    return escape(text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…")


def labels(names: Sequence[str]) -> list[str]:
    """Return the labels of an axis, cut to length; append "(2)", ... to repeated ones."""
    cut = list(map(label, names))
    known: Counter[str] = Counter()
    for at, name in enumerate(cut):
        known[name] += 1
        cut[at] = f"{name} ({known[name]})" if known[name] > 1 else name
    return cut


def line(number: int) -> dict[str, object]:
    """Return colour and dash of the series `number`; no two of the first 32 are the same."""
    rounds, at = divmod(number, len(SERIES))
    return {"color": SERIES[at], "dash": DASHES[rounds % len(DASHES)], "width": 2}


def layout(title: str, *, height: int = 380) -> dict[str, object]:
    """Return the base layout of every chart; the legend lies below, so it clips nothing."""
    below = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"}
    return {
        "title": {"text": title, "font": {"size": 16}},
        "template": template(),
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 50, "b": 60},
        "legend": {"font": {"size": 11}, **below},
        "hovermode": "closest",
    }


def figure(title: str, x: str, y: str, *, height: int = 380) -> Figure:
    """Return an empty chart with its title and the titles of its axes, units included."""
    from plotly.graph_objects import Figure

    axes = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}}
    return Figure(layout=layout(title, height=height) | axes)


def subplots(title: str, *, height: int = 380, **options: object) -> Figure:
    """Return an empty chart of several plots; `options` are those of plotly's make_subplots."""
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    return make_subplots(figure=Figure(layout=layout(title, height=height)), **options)


class Series(Struct, frozen=True):
    """A named line of a chart; without `line` (a style), it has the next colour of the palette.

    `options` are those of plotly's scatter trace. None in `y` is a gap.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    line: Mapping[str, object] | None = None
    options: Mapping[str, object] = field(default_factory=dict)


def curves(
    x: Sequence[float], values: Mapping[str, Sequence[float | None]], **options: object
) -> list[Series]:
    """Return a series per name in `values` over `x`; `options` are those of plotly's scatter."""
    return [Series(name, x, y, options=options) for name, y in values.items()]


def lines(
    title: str,
    x: str,
    y: str,
    series: Iterable[Series],
    *,
    log: str = "x",
    shares: str = "y",
    height: int = 380,
) -> Figure:
    """Draw lines; axes named in `log` ("x", "y", "xy") are logarithmic, in `shares` percentages."""
    chart = figure(title, x, y, height=height)
    for number, curve in enumerate(series):
        look = {"mode": "lines", "line": curve.line or line(number)} | dict(curve.options)
        chart.add_scatter(x=curve.x, y=curve.y, name=label(curve.name), **look)
    for axis in log:
        logarithmic(chart, axis)
    for axis in shares:
        chart.update_layout({f"{axis}axis": {"tickformat": ".0%"}})
    if "y" not in log:
        chart.update_yaxes(rangemode="tozero")
    return chart


def heat_map(
    title: str,
    x: tuple[str, Sequence[object]],
    y: tuple[str, Sequence[str]],
    cells: Sequence[Sequence[float | None]],
    hover: str,
    **options: object,
) -> Figure:
    """Draw a heat map of `cells`, a row for each value of `y`, the first one on top.

    `x` and `y` are the titles of the axes and their values; `options` those of plotly's heatmap.
    """
    chart = figure(title, x[0], y[0], height=160 + 24 * len(y[1]))
    look = {"colorscale": SHADES, "hovertemplate": f"{hover}<extra></extra>"} | options
    chart.add_heatmap(x=x[1], y=labels(y[1]), z=cells, **look)
    return chart.update_yaxes(type="category", autorange="reversed")


def bars(
    title: str,
    x: str,
    y: str,
    names: Sequence[str],
    groups: Mapping[str, Sequence[float | None]],
    *,
    height: int = 380,
    hover: str = "%{y}: %{x:.1%}",
    colours: Sequence[str] = (),
) -> Figure:
    """Draw horizontal bars, a colour a group: value i of each for `names[i]`, `names[0]` on top."""
    chart = figure(title, x, y, height=height)
    colours = colours or ((SKY, BLUE, PURPLE) if len(groups) > 1 else (BLUE,))
    for (name, values), colour in zip(groups.items(), colours, strict=False):
        look = {"marker_color": colour, "hovertemplate": f"{hover}<extra>{name}</extra>"}
        chart.add_bar(y=labels(names), x=values, name=name, orientation="h", **look)
    chart.update_yaxes(type="category", autorange="reversed")
    chart.update_layout(legend_traceorder="normal")
    return chart


@cache
def template() -> plotly_layout.Template:
    """Return axes and background as in plotly_white, without copying that large template."""
    from plotly.graph_objects import layout

    axis: dict[str, object] = dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor"), _PALE)
    axis |= {"automargin": True, "ticks": "", "zerolinewidth": 2, "title": {"standoff": 15}}
    return layout.Template(
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


def logarithmic(chart: Figure, axis: str = "x") -> None:
    """Make an axis logarithmic and label its ticks: 2k on an axis of counts, else 2,000.

    Call it after adding the series. Over few decades, where plotly would label nine ticks a decade,
    most with one small digit, label 1, 2 and 5 only.
    """
    series = (trace[axis] for trace in chart.data if trace[axis] is not None)
    values = [
        float(value) for column in series for value in column if value is not None and value > 0
    ]
    decades = log10(max(values) / min(values)) if values else 0.0
    few = {"dtick": "D2"} if decades == 0 or 1 <= decades <= _FEW_DECADES else {}
    counts = chart.layout[f"{axis}axis"].title.text.endswith(_COUNTS)
    ticks = {"type": "log", "tickformat": "~s" if counts else ",~g", **few}
    chart.update_layout({f"{axis}axis": ticks})


def mark(chart: Figure, x: float, text: str, *, at: float = 1.0, side: str = "left") -> None:
    """Draw a vertical line at `x` of a log axis, its text on its `side` at height `at` (0-1)."""
    chart.add_vline(x=x, line_dash="dot", line_color=GREY)
    anchor = "right" if side == "left" else "left"
    # plotly takes an annotation's place on such an axis as the exponent, and a line's as it is
    place = {"x": log10(x), "y": at, "yref": "paper", "xanchor": anchor, "yanchor": "top"}
    chart.add_annotation(text=text, showarrow=False, **place)


def level(chart: Figure, y: float, text: str) -> Figure:
    """Draw a horizontal line at `y`, its text above its left end; return the chart."""
    look = {"annotation_text": text, "annotation_position": "top left"}
    chart.add_hline(y=y, line_dash="dot", line_color=GREY, **look)  # seen on any ground
    if chart.layout.yaxis.type == "log":
        chart.layout.annotations[-1].y = log10(y)  # an exponent, as in `mark`
    return chart


def slo_level(chart: Figure, slo_s: float | None) -> Figure:
    """Draw the SLO, if there is one, across a chart of milliseconds; return the chart."""
    return chart if slo_s is None else level(chart, slo_s * 1e3, "SLO")


def ideal_level(chart: Figure, rate: float) -> Figure:
    """Draw the hit rate of an infinite cache; return the chart."""
    return level(chart, rate, f"infinite cache {rate:.1%}")


def nested(chart: Figure) -> Figure:
    """Lay out an icicle without axes and without text too small to read; return the chart."""
    texts = {"minsize": 10, "mode": "hide"}
    return chart.update_layout(margin={"l": 10, "r": 10, "t": 50, "b": 10}, uniformtext=texts)


def point(chart: Figure, x: float, y: float, name: str) -> None:
    """Mark a point with a circle."""
    marker = {"color": VERMILION, "size": 13, "symbol": "circle-open", "line_width": 3}
    chart.add_scatter(x=[x], y=[y], mode="markers", name=name, marker=marker)
