"""What `kvscope dashboard` runs: Streamlit, which begins to work before anybody looks."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from streamlit.web.cli import main

_TABLES = ("pandas", "pyarrow")  # what Streamlit imports with the first one
_CHARTS = ("Bar", "Heatmap", "Icicle", "Scatter")
_OWN = ("render", "added", "replays", "tuned", "lab_results")


def begin() -> None:
    """Find what is costly in the trace last worked on, and import what the pages will."""
    import plotly.io
    from plotly import graph_objects
    from plotly.graph_objects import Figure

    from dashboard import background_cache, data
    from kvscope import report
    from kvscope.core.errors import KvscopeError

    with suppress(KvscopeError):  # the pages say what is wrong with the store
        for trace in data.all_traces()[:1]:
            background_cache.of(trace)
    for name in (*_TABLES, *(f"dashboard.{own}" for own in _OWN)):
        importlib.import_module(name)
    for kind in _CHARTS:  # plotly imports each when it is first made
        plotly.io.to_json(Figure(getattr(graph_objects, kind)()))
    for module in pkgutil.iter_modules(report.__path__, f"{report.__name__}."):
        importlib.import_module(module.name)


def end(code: object) -> NoReturn:
    """End at once, whatever still works beside: it would be torn out of DuckDB, with complaints."""
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    threading.Thread(target=begin, name="begin", daemon=True).start()
    try:
        main()
    except SystemExit as done:
        end(done.code)
    end(0)
