"""The one place that draws a section of kvscope.show: words, charts, tables."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st
from plain import plain
from plotly.graph_objects import Figure

from kvscope.show.glossary import meaning
from kvscope.show.section import Section
from kvscope.show.table import Table
from kvscope.show.words import WHATEVER_OPTIONS

_MOST_KEPT = 64  # sections with their charts
_SIDE_BY_SIDE = 2  # more charts or tables than that get tabs
_CHART = {"displaylogo": False, "toImageButtonOptions": {"scale": 2}}


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
        charts(section, f"{within} {section.title}", keep)
        tables(section.tables, f"{within} {section.title}")


def charts(section: Section, key: str, keep: str = "") -> None:
    """The charts of a section: in tabs, where there are several."""
    made = _kept(f"{keep} {key}", section) if keep else _made(section)
    titles = [plain(title) for title, _ in made]
    places = st.tabs(titles) if len(made) > 1 else [st.container()]
    for number, ((title, figure), place) in enumerate(zip(made, places, strict=False)):
        with place:
            chart(figure, title, f"{key} {number}")


def _made(section: Section) -> list[tuple[str, Figure]]:
    """The charts with their titles. Where there are several, tabs say these in their place."""
    figures = [figure() for figure in section.figures]
    titled = [(str(figure.layout.title.text), figure) for figure in figures]
    if len(figures) > 1:
        for figure in figures:
            figure.update_layout(title=None, margin_t=20)
    return titled


@st.cache_resource(show_spinner=False, max_entries=_MOST_KEPT)
def _kept(key: str, _section: Section) -> list[tuple[str, Figure]]:
    return _made(_section)


def chart(figure: Figure, title: str, key: str) -> None:
    """One plotly figure in the theme's colours; its button saves it as PNG."""
    st.plotly_chart(
        figure, key=f"chart {key}", theme="streamlit", config=_CHART, alt=f"Chart: {title}"
    )


def tables(found: tuple[Table, ...], key: str) -> None:
    """Tables, each with a button that saves it as CSV; in tabs, where there are many."""
    many = len(found) > _SIDE_BY_SIDE
    titles = [plain(one.title) or str(at) for at, one in enumerate(found, start=1)]
    places = st.tabs(titles) if many else [st.container() for _ in found]
    for number, (one, place) in enumerate(zip(found, places, strict=True)):
        with place:
            if one.title and not many:
                st.markdown(f"**{plain(one.title)}**")
            _table(one, f"{key} {number}")
            if one.note:
                st.caption(plain(one.note))


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
