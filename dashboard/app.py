"""The dashboard: what `kvscope analyze` says of a stored trace, in a browser.

streamlit run dashboard/app.py -- --db kvscope.duckdb
"""

from __future__ import annotations

import argparse

import streamlit as st

from kvscope.errors import KvscopeError
from kvscope.show import report
from kvscope.show.analysis import Analysis, analyze
from kvscope.show.section import Section
from kvscope.store import traces
from kvscope.store.db import DEFAULT_PATH, Store, open_store


def main() -> None:
    """Choose a trace, read its analysis."""
    st.set_page_config(page_title="kvscope", layout="wide")
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", default=DEFAULT_PATH)
    db = parser.parse_args().db
    try:
        with open_store(db, read_only=True) as store:
            names = [trace.name for trace in traces.all_traces(store)]
            if not names:
                st.info(f"{db} holds no traces yet: run `kvscope ingest TRACE` first.")
                return
            wanted = st.query_params.get("trace")
            at = names.index(wanted) if wanted in names else 0
            name = st.sidebar.selectbox("Trace", names, index=at)
            st.query_params["trace"] = name
            analysis = _analyzed(db, name, store)
    except KvscopeError as error:
        st.error(str(error))
        return
    st.title(name)
    st.caption(report.trace_in_words(analysis.trace))
    for section in [report.headline(analysis), *report.sections(analysis)]:
        _show(section)


@st.cache_data(show_spinner="analyzing")
def _analyzed(db: str, name: str, _store: Store) -> Analysis:
    return analyze(_store, traces.find(_store, name))


def _show(section: Section) -> None:
    st.header(section.title)
    for sentence in section.sentences:
        st.text(sentence)
    for number, figure in enumerate(section.figures):
        st.plotly_chart(figure(), key=f"{section.title} {number}")
    for table in section.tables:
        # Blanks of different length, as two columns of one name would be one.
        columns = [title or " " * number for number, title in enumerate(table.columns, start=1)]
        cells = list(zip(*table.rows, strict=True)) or [()] * len(columns)
        st.dataframe(dict(zip(columns, cells, strict=True)), hide_index=True)
        st.caption(table.title)
        if table.note:
            st.caption(table.note)


main()
