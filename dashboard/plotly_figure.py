"""Charts as a browser is to draw them: once, in colours that go with a light and a dark page.

Streamlit gives every figure to plotly twice, with its colours as a new template, or at least with
new arrays: to plotly that is another figure, which it draws anew. So figures are sent without
template and title, with a revision that says their arrays are the same, and are told not to use
Streamlit's theme. What is saved as PNG is black on white; on the page the app's style sheet
(`app.py`) gives texts the colour of the page's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plotly.graph_objects import Figure

_FONT = '"Source Sans", "Source Sans Pro", sans-serif'
_INK, _FAINT, _CLEAR = "#31333F", "rgba(128, 132, 149, 0.25)", "rgba(0, 0, 0, 0)"
_TITLE, _LEAST = 35, 22  # pixels: what a title takes of the margin above a chart, what is kept
_LETTER, _SIGN, _BAR = 6, 60, 105  # pixels: of a legend's text, before it; of a colour bar
_ABOVE, _BELOW, _AXIS = 66, 76, 62  # pixels: of a legend, of the axes' titles and ticks
_DIGITS, _HALF = 3, 30  # digits at an axis; pixels that the last of its labels takes beyond it
_AXES = {
    "gridcolor": _FAINT,
    "zerolinecolor": _FAINT,
    "title": {"font": {"size": 14}, "standoff": 20},
    "automargin": True,
}
_LAYOUT = {
    "datarevision": 1,
    "autosize": True,  # the first time no width is given, the second time that which it then had
    "font": {"family": _FONT, "size": 12, "color": _INK},
    "paper_bgcolor": "white",
    "plot_bgcolor": _CLEAR,
    "margin": {"pad": 8},
    "legend": {"bgcolor": _CLEAR},
    "modebar": {"bgcolor": _CLEAR, "color": "#808495", "activecolor": "#0072B2"},
    "hoverlabel": {"font": {"family": _FONT}},
}


class Drawn(Figure):  # type: ignore[misc]  # plotly has no types
    """A figure that is complete as `sent`: nothing is added to it."""

    sent: Mapping[str, Any]

    def to_dict(self) -> Mapping[str, Any]:
        """What the browser gets."""
        return self.sent


def drawn(figure: Figure) -> tuple[str, Drawn]:
    """Its title, which is to stand above it, and the figure without."""
    sent = figure.to_dict()
    layout = sent["layout"]
    layout.pop("template")
    title = str(layout.pop("title", {}).get("text", ""))
    for name in {"xaxis", "yaxis", *(one for one in layout if one[1:5] == "axis")}:
        own = {**_AXES, "showgrid": False, "zeroline": False} if name[0] == "x" else _AXES
        layout[name] = _over(own, layout.get(name, {}))
    layout["margin"] |= _room(sent["data"], layout)
    made = Drawn()
    made.__dict__["sent"] = sent | {"layout": _over(_LAYOUT, layout)}
    return title, made


def _over(below: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Both, as deep as they go; `top` where both say something."""
    both = {**below, **top}
    for name in below.keys() & top.keys():
        if isinstance(below[name], Mapping) and isinstance(top[name], Mapping):
            both[name] = _over(below[name], top[name])
    return both


def _room(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> dict[str, float]:
    """Margins, in pixels, for what stands there; where there is too little, plotly draws twice."""
    given = layout["margin"]
    above = max(given["t"] - _TITLE, _LEAST)
    if given["l"] < _LEAST:  # no axes
        return {"t": above}
    names = [one.get("name", "") for one in data if one.get("showlegend", True)]
    legend = len(data) > 1 and any(names)
    over = layout["legend"].get("orientation") == "h"
    right = [max(given["r"], _HALF)]
    right += [_SIGN + _LETTER * max(map(len, names), default=0)] * (legend and not over)
    right += [_BAR] * any(one.get("showscale", one["type"] == "heatmap") for one in data)
    if "side" in layout.get("yaxis2", {}):
        right += [_AXIS + _LETTER * _DIGITS] * any(one.get("yaxis") == "y2" for one in data)
    left = _AXIS + _LETTER * max(map(len, _labels(data)), default=_DIGITS)
    return {
        "t": max(above, _ABOVE * (legend and over)),
        "r": max(right),
        "l": max(given["l"], left),
        "b": max(given["b"], _BELOW),
    }


def _labels(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that stand at the vertical axis."""
    columns = [one["y"] for one in data if isinstance(one.get("y"), (list, tuple))]
    return [value for column in columns for value in column if isinstance(value, str)]
