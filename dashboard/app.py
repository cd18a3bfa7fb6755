"""Serve the dashboard's pages: streamlit run dashboard/app.py -- --db kvscope.duckdb."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import connection, query_params, sidebar
from dashboard.markdown import escape
from dashboard.wording import in_page_words
from kvscope.core.errors import KvscopeError, StoreBusyError

PAGES = (  # file below views/, title; no icons: browsers would fetch them from a network
    ("overview", "Overview"),
    ("reuse", "Reuse"),
    ("time", "Time"),
    ("space", "Space"),
    ("capacity", "Capacity"),
    ("why", "Why"),
    ("lab", "Policy lab"),
    ("fleets", "Fleets"),
    ("recommendation", "Recommendation"),
    ("validation", "Validation"),
    ("runs", "Runs and jobs"),
    ("compare", "Compare"),
)
STYLE = """<style>
.stMainBlockContainer {padding-top: 2.5rem}
h1 {font-size: 2rem !important}
h2 {font-size: 1.4rem !important}
[data-testid=stPageLink] p {text-decoration: underline}
/* Streamlit's greys are too pale for small text, in charts most of all. */
[data-testid=stCaptionContainer], [data-testid=stCaptionContainer] * {
    color: inherit !important; opacity: 0.9 !important}
.stPlotlyChart :is([class*=tick], .infolayer, .cbaxis) text {fill: currentColor !important}
.stPlotlyChart .main-svg {background: transparent !important}
</style>"""
DARK = """<style>
:is(button[kind=primary]:enabled, [data-tag], [data-tag] button) * {color: #0b0b0b !important}
</style>"""


def main() -> None:
    """Draw the sidebar, then the page of the address; show errors as sentences."""
    st.set_page_config(page_title="kvscope", layout="wide")
    page = st.navigation(
        [
            st.Page(f"views/{file}.py", title=title, default=file == "overview")
            for file, title in PAGES
        ]
    )
    st.html(STYLE + DARK if st.context.theme.type == "dark" else STYLE)
    st.session_state["page"] = f"views/{page.url_path or PAGES[0][0]}.py"
    above = st.container()
    with query_params.written_once():
        problems: Sequence[str] | None = None
        try:
            problems = sidebar.draw()
            page.run()
        except KvscopeError as error:
            if problems is None:
                st.title(page.title)
            st.error(escape(in_page_words(str(error))))
            if isinstance(error, StoreBusyError):
                _await_store()
        finally:  # pages may end early
            with above:
                _warn(problems or ())


@st.fragment(run_every=1.0)
def _await_store() -> None:
    """Draw the page anew once no other process writes the store."""
    try:
        with connection.reading():
            pass
    except StoreBusyError:
        return
    except KvscopeError:  # the page says it
        pass
    st.rerun()


def _warn(problems: Sequence[str]) -> None:
    """Say which values, typed or of the address, the page does not use."""
    for text in (*problems, *query_params.replaced()):
        st.warning(escape(in_page_words(text)))


main()
