"""The dashboard: what `kvscope` finds in the traces of a store, to look at and to try out.

streamlit run dashboard/app.py -- --db kvscope.duckdb
"""

from __future__ import annotations

import frame
import streamlit as st

from kvscope.errors import KvscopeError

PAGES = (  # file below pages/, title, icon
    ("overview", "Overview", ":material/home:"),
    ("reuse", "Reuse", ":material/recycling:"),
    ("time", "Time", ":material/schedule:"),
    ("space", "Space", ":material/account_tree:"),
    ("capacity", "Capacity", ":material/show_chart:"),
    ("lab", "Policy lab", ":material/science:"),
    ("recommendation", "Recommendation", ":material/recommend:"),
    ("validation", "Validation", ":material/verified:"),
)


def main() -> None:
    """The sidebar, then the page that is asked for; what is refused becomes a sentence."""
    st.set_page_config(page_title="kvscope", layout="wide")
    page = st.navigation(
        [
            st.Page(f"pages/{file}.py", title=title, icon=icon, default=file == "overview")
            for file, title, icon in PAGES
        ]
    )
    try:
        frame.choose()
        page.run()
    except KvscopeError as error:
        st.error(str(error))


main()
