"""Draw sections of kvscope.report: sentences, charts, tables.

Streamlit hands every figure to plotly twice, with its theme as a new template or at least with new
arrays, and plotly would draw it again. So figures go out without template and title, with a
revision that declares their arrays unchanged, and without Streamlit's theme. The second figure may
be a copy from before the first was drawn, without its ranges: another revision makes plotly keep
them, or it would go on with its default axes. A saved PNG is black on white; on the page, the
style sheet in `app.py` colours texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, Literal

import streamlit as st
from plotly.graph_objects import Figure
from streamlit.elements.lib.mutable_tab_container import TabContainer

from dashboard import query_params
from dashboard.wording import escape, escape_around_commands
from kvscope.report.glossary import meaning
from kvscope.report.report import tiles
from kvscope.report.section import Section, Table
from kvscope.report.words import WHATEVER_OPTIONS

_MOST_CACHED = 64  # sections with their charts
_MOST_UNSCROLLED = 20  # rows of a table
_LONG, _CHARACTER_PX, _WIDEST = 20, 7, 440  # of cells, which a narrower column cuts
_MOST_SIDE_BY_SIDE = 2  # tables; more of them get tabs

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
    "ticks": "",  # beside a heat map plotly draws some
}
_LAYOUT = {
    "datarevision": 1,
    "uirevision": 1,
    "autosize": True,  # else a figure without a width gets one when it is drawn
    "font": {"family": _FONT, "size": 12, "color": _INK},
    "paper_bgcolor": "white",
    "plot_bgcolor": _CLEAR,
    "margin": {"pad": 8},
    "legend": {"bgcolor": _CLEAR},
    "modebar": {"bgcolor": _CLEAR, "color": "#808495", "activecolor": "#0072B2"},
    "hoverlabel": {"font": {"family": _FONT}},
}


def show(
    sections: Iterable[Section], *, titles: bool = True, within: str = "", cache_key: str = ""
) -> None:
    """Draw sections one below the other.

    `within` tells two sections of one title on a page apart. With `cache_key`, which names all that
    the sections depend on, their charts are made once.
    """
    for section in sections:
        name = section.title.partition(":")[0]  # what follows may change with each replay
        if titles:
            st.header(section.title, help=meaning(name))
        if section.tiles:
            st.html(tiles(section.tiles))
        if section.sentences:
            sentences = (text.replace(WHATEVER_OPTIONS, "") for text in section.sentences)
            st.markdown("  \n".join(map(escape_around_commands, sentences)))
        if section.figures:
            charts(section, f"{within} {name}", cache_key)
        if section.tables:
            tables(section, f"{within} {name}")


def download(file: str) -> None:
    """Draw the button that saves a recommendation's file."""
    name, kind = "recommendation.toml", "application/toml"
    st.download_button(f"Download {name}", file, name, kind, key="download", on_click="ignore")


@st.fragment
def charts(section: Section, key: str, cache_key: str = "") -> None:
    """Draw the charts of a section; several in tabs, of which only the open one is drawn."""
    dark = st.context.theme.type == "dark"
    if cache_key:
        made = _cached(f"{cache_key} {key}", section, dark=dark)
    else:
        made = _made(section, dark=dark)
    if len(made) == 1:
        _draw(*made[0], f"{key} 0", titled=made[0][0] != section.title)
    elif made:
        containers = _tabs("charts", key, [title for title, _ in made])
        for number, ((title, figure), tab) in enumerate(zip(made, containers, strict=True)):
            if tab.open:  # nothing takes a browser longer than a chart
                with tab:
                    _draw(title, figure, f"{key} {number}", titled=False)


def chart(figure: Figure, key: str) -> None:
    """Draw one plotly figure below its title."""
    _draw(*ready(figure, dark=st.context.theme.type == "dark"), key, titled=True)


def _draw(title: str, figure: ReadyFigure, key: str, *, titled: bool) -> None:
    """Draw a chart with an alternative text and a button that saves it as PNG."""
    if titled:
        st.markdown(f"**{escape(title)}**")
    image = {"scale": 2, "filename": title}
    st.plotly_chart(
        figure,
        key=f"chart {key}",
        theme=None,
        config={"displaylogo": False, "toImageButtonOptions": image},
        alt=f"Chart: {title}",
    )


def _made(section: Section, *, dark: bool) -> list[tuple[str, ReadyFigure]]:
    """Return the charts with their titles."""
    return [ready(figure(), dark=dark) for figure in section.figures]


@st.cache_resource(show_spinner=False, max_entries=_MOST_CACHED)
def _cached(key: str, _section: Section, *, dark: bool) -> list[tuple[str, ReadyFigure]]:
    return _made(_section, dark=dark)


@st.fragment
def tables(section: Section, key: str) -> None:
    """Draw the tables of a section, each with a button that saves it as CSV; many in tabs."""
    tables = section.tables
    many = len(tables) > _MOST_SIDE_BY_SIDE
    titles = [table.title or str(number) for number, table in enumerate(tables, start=1)]
    containers = _tabs("tables", key, titles) if many else None
    for number, table in enumerate(tables):
        if containers is None:
            if table.title not in {"", section.title}:
                st.markdown(f"**{escape(table.title)}**")
            _table(table, f"{key} {number}")
        elif containers[number].open:
            with containers[number]:
                _table(table, f"{key} {number}")


def _tabs(kind: str, key: str, titles: Sequence[str]) -> Sequence[TabContainer]:
    """Draw tabs of a section's charts or tables."""
    name = "_".join((kind, *key.lower().split()))
    return query_params.tabs(name, [escape(title) for title in titles])


def column_px(cells: Sequence[str]) -> int | None:
    """Return the width in pixels of a column of long texts; of others the browser chooses it."""
    longest = max(map(len, cells), default=0)
    return min(_CHARACTER_PX * longest + 20, _WIDEST) if longest > _LONG else None


def clickable(table: Table, key: str) -> int | None:
    """Draw a table; return the number of the row that is clicked, None for none."""
    cells = _table(table, key, on_select="rerun", selection_mode="single-cell")["selection"][
        "cells"
    ]
    return int(cells[0][0]) if cells else None


def _table(table: Table, key: str, **selecting: Any) -> Any:
    names: dict[str, int] = {}  # to the column's number
    for number, title in enumerate(table.columns):
        if not title and number:  # bars of characters, for terminals
            continue
        name = title or " "
        while name in names:  # blanks tell columns of one title apart
            name += " "
        names[name] = number
    cells = {name: [row[number] for row in table.rows] for name, number in names.items()}
    configuration = {
        name: st.column_config.TextColumn(
            width=column_px(cells[name]),
            alignment="left" if number == 0 or number in table.words else "right",
            help=meaning(table.columns[number]),
        )
        for name, number in names.items()
        if name.strip()
    }
    height: Literal["content", "auto"] = "auto"
    if len(table.rows) <= _MOST_UNSCROLLED:
        height = "content"
    look = {"column_config": configuration, "height": height, **selecting}
    drawn = st.dataframe(cells, hide_index=True, key=f"table {key}", **look)
    if table.note:
        st.caption(escape(table.note))
    return drawn


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
