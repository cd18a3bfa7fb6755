"""Make plotly figures ready for Streamlit: drawn once, in colours for light and dark pages.

Streamlit hands every figure to plotly twice, with its theme as a new template or at least with new
arrays, and plotly would draw it again. So figures go out without template and title, with a
revision that declares their arrays unchanged, and without Streamlit's theme. A saved PNG is black
on white; on the page, the style sheet in `app.py` colours texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from plotly.graph_objects import Figure

_FONT = '"Source Sans", "Source Sans Pro", sans-serif'
_INK, _FAINT, _CLEAR = "#31333F", "rgba(128, 132, 149, 0.25)", "rgba(0, 0, 0, 0)"
# Pixels: of a title in the margin above a chart, and the least margin; of a letter; of a colour
# bar; of the axes' titles and ticks; and by how much the last label of an axis sticks out.
_TITLE, _LEAST, _LETTER, _BAR, _BELOW, _AXIS, _HALF = 35, 22, 6, 105, 76, 62, 30
_DIGITS = 3  # at an axis
_DARK_SHADES = [[0, "#14283c"], [1, "#7cc4f0"]]
_NAME = 14  # letters of a line of a bar's name: a phone has no room for more
_AXES = {
    "gridcolor": _FAINT,
    "zerolinecolor": _FAINT,
    "title": {"font": {"size": 14}, "standoff": 20},
    "automargin": True,
}
_LAYOUT = {
    "datarevision": 1,
    "autosize": True,  # else a figure without a width gets one when it is drawn
    "font": {"family": _FONT, "size": 12, "color": _INK},
    "paper_bgcolor": "white",
    "plot_bgcolor": _CLEAR,
    "margin": {"pad": 8},
    "legend": {"bgcolor": _CLEAR},
    "modebar": {"bgcolor": _CLEAR, "color": "#808495", "activecolor": "#0072B2"},
    "hoverlabel": {"font": {"family": _FONT}},
}


class ReadyFigure(Figure):  # type: ignore[misc]  # plotly has no types
    """A figure that is sent as it is, without plotly's defaults."""

    sent: Mapping[str, Any]

    def to_dict(self) -> Mapping[str, Any]:
        """Return what the browser gets."""
        return self.sent


def ready(figure: Figure, *, dark: bool = False) -> tuple[str, ReadyFigure]:
    """Return the title, to be written above the chart, and the figure without it.

    On a `dark` page, colour scales begin near its ground, and none ends in white.
    """
    sent = figure.to_dict()
    for trace in sent["data"]:
        _fit_to_page(trace, dark=dark)
    layout = sent["layout"]
    layout.pop("template")
    title = str(layout.pop("title", {}).get("text", ""))
    for name in {"xaxis", "yaxis", *(key for key in layout if key[1:5] == "axis")}:
        own = {**_AXES, "showgrid": False, "zeroline": False} if name[0] == "x" else _AXES
        layout[name] = _merged(own, layout.get(name, {}))
    layout["margin"] |= _margins(sent["data"], layout)
    complete = ReadyFigure()
    complete.__dict__["sent"] = sent | {"layout": _merged(_LAYOUT, layout)}
    return title, complete


def _fit_to_page(trace: dict[str, Any], *, dark: bool) -> None:
    """Take a colour scale for a dark page there, and wrap the names of bars."""
    for holder in (trace, trace.get("marker", {})):
        if dark and "colorscale" in holder:
            holder["colorscale"] = _DARK_SHADES
    if trace.get("orientation") == "h":
        trace["y"] = ["<br>".join(wrap(str(name), _NAME)) or name for name in trace["y"]]


def _merged(below: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, as deep as they go; `top` where both have a value."""
    both = {**below, **top}
    for name in below.keys() & top.keys():
        if isinstance(below[name], Mapping) and isinstance(top[name], Mapping):
            both[name] = _merged(below[name], top[name])
    return both


def _margins(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> dict[str, float]:
    """Return margins (pixels) for all that stands in them: too small ones make plotly draw twice.

    The legend lies below the chart, where plotly makes room for it.
    """
    margin = layout["margin"]
    above = max(margin["t"] - _TITLE, _LEAST)
    if margin["l"] < _LEAST:  # no axes
        return {"t": above}
    right = [max(margin["r"], _HALF)]
    if any(trace.get("showscale", trace["type"] == "heatmap") for trace in data):
        right.append(_BAR)
    if "side" in layout.get("yaxis2", {}) and any(trace.get("yaxis") == "y2" for trace in data):
        right.append(_AXIS + _LETTER * _DIGITS)
    columns = [trace["y"] for trace in data if isinstance(trace.get("y"), (list, tuple))]
    values = (value for column in columns for value in column if isinstance(value, str))
    names = [line for value in values for line in value.split("<br>")]
    left = _AXIS + _LETTER * max(map(len, names), default=_DIGITS)
    return {
        "t": above,
        "r": max(right),
        "l": max(margin["l"], left),
        "b": max(margin["b"], _BELOW),
    }
