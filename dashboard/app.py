"""Serve the dashboard's pages: streamlit run dashboard/app.py -- --db kvscope.duckdb."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import streamlit as st

from dashboard import connection, data, job, query_params, sidebar
from dashboard.wording import escape, in_page_words
from kvscope.core.errors import KvscopeError, StoreBusyError
from kvscope.report.report import TILES

PAGES = {  # files below views/ and titles; no icons: browsers would fetch them from a network
    "Trace": {
        "overview": "Overview",
        "reuse": "Reuse",
        "time": "Time",
        "space": "Space",
        "live": "Live",
    },
    "Cache": {"capacity": "Capacity", "why": "Why", "lab": "Policy lab"},
    "Decide": {"recommendation": "Recommendation", "fleets": "Fleets"},
    "Kept": {"runs": "Runs and jobs", "compare": "Compare", "validation": "Validation"},
}
FIRST = "overview"
STYLE = (
    f"<style>{TILES}</style>"
    """<style>
.stMainBlockContainer {padding-top: 3.75rem}
h1 {font-size: 2rem !important}
h2 {font-size: 1.4rem !important}
[data-testid=stPageLink] p {text-decoration: underline}
/* Streamlit's greys are too pale for small text, in charts most of all. */
[data-testid=stCaptionContainer], [data-testid=stCaptionContainer] * {
    color: inherit !important; opacity: 0.9 !important}
.stPlotlyChart :is([class*=tick], .infolayer, .cbaxis) text {fill: currentColor !important}
.stPlotlyChart .main-svg {background: transparent !important}
@media (max-width: 640px) { /* where bars of tools would lie above titles */
    .stPlotlyChart .modebar-container, [data-testid=stElementToolbar] {display: none !important}
}
</style>"""
)
DARK = """<style>
:is(button[kind^=primary]:enabled, [data-tag], [data-tag] button) * {color: #0b0b0b !important}
</style>"""


def main() -> None:
    """Draw the sidebar, then the page of the address; show errors as sentences."""
    st.set_page_config(page_title="kvscope", layout="wide")
    page = st.navigation(
        {group: [_page(*page) for page in pages.items()] for group, pages in PAGES.items()}
    )
    st.html(STYLE + DARK if st.context.theme.type == "dark" else STYLE)
    st.session_state["page"] = f"views/{page.url_path or FIRST}.py"
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
            with above:  # which values, typed or of the address, the page does not use
                for text in (*(problems or ()), *query_params.replaced()):
                    st.warning(escape(in_page_words(text)))


def _page(file: str, title: str) -> st.Page:
    """Return a page; Validation is in the menu only where the store has one."""
    visibility: Literal["visible", "hidden"] = "visible"
    if file == "validation":
        visibility = "hidden"
        with suppress(KvscopeError):  # the pages say it
            visibility = "visible" if data.stored_results().validated else "hidden"
    return st.Page(f"views/{file}.py", title=title, default=file == FIRST, visibility=visibility)


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
    job.redraw()


main()
