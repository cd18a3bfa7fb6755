"""The one place that draws a section of kvscope.show: words, charts, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

import streamlit as st

from kvscope.show.glossary import meaning
from kvscope.show.section import Section
from kvscope.show.table import Table

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>$~:])")
_SIDE_BY_SIDE = 2  # more charts or tables than that get tabs
_CHART = {"displaylogo": False, "toImageButtonOptions": {"scale": 2}}


def plain(text: str) -> str:
    """Text that a trace may have supplied, with nothing in it that Markdown would read."""
    return _MARKDOWN.sub(r"\\\1", text)


def show(sections: Iterable[Section], *, titles: bool = True, within: str = "") -> None:
    """Draw the sections, one below the other; `within` tells two of one title on a page apart."""
    for section in sections:
        if titles:
            st.subheader(section.title, help=meaning(section.title))
        if section.sentences:
            st.markdown("  \n".join(plain(sentence) for sentence in section.sentences))
        charts(section, f"{within} {section.title}")
        tables(section.tables, f"{within} {section.title}")


def charts(section: Section, key: str) -> None:
    """The charts of a section: in tabs, where there are several."""
    figures = [figure() for figure in section.figures]
    titles = [str(figure.layout.title.text) for figure in figures]
    places = st.tabs([plain(title) for title in titles]) if len(figures) > 1 else [st.container()]
    for number, (figure, title, place) in enumerate(zip(figures, titles, places, strict=False)):
        if len(figures) > 1:  # the tab says it
            figure.update_layout(title=None, margin_t=20)
        with place:
            chart(figure, title, f"{key} {number}")


def chart(figure: object, title: str, key: str) -> None:
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
