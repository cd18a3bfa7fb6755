"""The one place that draws a section of kvscope.report: words, charts, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st
from plotly.graph_objects import Figure
from streamlit.elements.lib.mutable_tab_container import TabContainer

from dashboard import query_params
from dashboard.markdown import plain
from dashboard.plotly_figure import Drawn, drawn
from kvscope.report.glossary import meaning
from kvscope.report.section import Section, Table
from kvscope.report.words import WHATEVER_OPTIONS

_MOST_KEPT = 64  # sections with their charts
_SIDE_BY_SIDE = 2  # more charts or tables than that get tabs


def show(
    sections: Iterable[Section], *, titles: bool = True, within: str = "", keep: str = ""
) -> None:
    """Draw the sections, one below the other; `within` tells two of one title on a page apart.

    With `keep`, which names all that they tell of, their charts are made once.
    """
    for section in sections:
        if titles:
            st.subheader(section.title, help=meaning(section.title))
        if section.sentences:
            told = (one.replace(WHATEVER_OPTIONS, "") for one in section.sentences)  # none here
            st.markdown("  \n".join(plain(sentence) for sentence in told))
        if section.figures:
            charts(section, f"{within} {section.title}", keep)
        if section.tables:
            tables(section.tables, f"{within} {section.title}")


@st.fragment
def charts(section: Section, key: str, keep: str = "") -> None:
    """The charts of a section: in tabs, where there are several, of which one is drawn."""
    made = _kept(f"{keep} {key}", section) if keep else _made(section)
    if len(made) == 1:
        _titled(*made[0], f"{key} 0")
    elif made:
        places = _tabs("charts", key, [title for title, _ in made])
        for number, ((title, figure), place) in enumerate(zip(made, places, strict=True)):
            if place.open:  # a browser takes longer to draw a chart than anything else
                with place:
                    _draw(title, figure, f"{key} {number}")


def chart(figure: Figure, key: str) -> None:
    """One plotly figure below its title."""
    _titled(*drawn(figure), key)


def _titled(title: str, figure: Drawn, key: str) -> None:
    st.markdown(f"**{plain(title)}**")
    _draw(title, figure, key)


def _draw(title: str, figure: Drawn, key: str) -> None:
    """A button above the chart saves it as PNG."""
    saved = {"scale": 2, "filename": title}
    st.plotly_chart(
        figure,
        key=f"chart {key}",
        theme=None,
        config={"displaylogo": False, "toImageButtonOptions": saved},
        alt=f"Chart: {title}",
    )


def _made(section: Section) -> list[tuple[str, Drawn]]:
    """The charts and their titles."""
    return [drawn(figure()) for figure in section.figures]


@st.cache_resource(show_spinner=False, max_entries=_MOST_KEPT)
def _kept(key: str, _section: Section) -> list[tuple[str, Drawn]]:
    return _made(_section)


@st.fragment
def tables(found: tuple[Table, ...], key: str) -> None:
    """Tables, each with a button that saves it as CSV; in tabs, where there are many."""
    many = len(found) > _SIDE_BY_SIDE
    titles = [one.title or str(at) for at, one in enumerate(found, start=1)]
    places = _tabs("tables", key, titles) if many else None
    for number, one in enumerate(found):
        if places is None:
            if one.title:
                st.markdown(f"**{plain(one.title)}**")
            _table(one, f"{key} {number}")
        elif places[number].open:
            with places[number]:
                _table(one, f"{key} {number}")


def _tabs(kind: str, key: str, titles: Sequence[str]) -> Sequence[TabContainer]:
    """Tabs of a section's charts or tables; the address says which one is open."""
    return query_params.tabs(
        "_".join((kind, *key.lower().split())), [plain(title) for title in titles]
    )


def _table(one: Table, key: str) -> None:
    # Bars made of characters are for terminals. Blanks of different length tell columns of one
    # name apart, which would be one otherwise.
    shown = [at for at, title in enumerate(one.columns) if title or not at]
    names: list[str] = []
    for at in shown:
        name = one.columns[at] or " "
        while name in names:
            name += " "
        names.append(name)
    columns = {
        name: st.column_config.TextColumn(
            alignment="left" if at == 0 else "right", help=meaning(one.columns[at])
        )
        for at, name in zip(shown, names, strict=True)
        if name.strip()
    }
    cells = {name: [row[at] for row in one.rows] for at, name in zip(shown, names, strict=True)}
    st.dataframe(cells, hide_index=True, key=f"table {key}", column_config=columns)
    if one.note:
        st.caption(plain(one.note))
