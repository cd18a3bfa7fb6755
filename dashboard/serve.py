"""Run Streamlit for `kvscope dashboard`, and prepare the first page while the browser opens."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from streamlit.web.cli import main

_TABLES = ("pandas", "pyarrow")  # Streamlit imports them for the first table
_CHARTS = ("Bar", "Heatmap", "Icicle", "Scatter")
_OWN = ("render", "upload", "lab_results")


def prepare() -> None:
    """Analyze the trace last worked on, and import what the pages will."""
    import plotly.io
    from plotly import graph_objects
    from plotly.graph_objects import Figure

    from dashboard import background_cache, data
    from kvscope import report
    from kvscope.core.errors import KvscopeError

    with suppress(KvscopeError):  # the pages show what is wrong with the store
        for trace in data.all_traces()[:1]:
            background_cache.findings(trace)
    for name in (*_TABLES, *(f"dashboard.{module}" for module in _OWN)):
        importlib.import_module(name)
    for kind in _CHARTS:  # plotly imports each kind when it is first made
        plotly.io.to_json(Figure(getattr(graph_objects, kind)()))
    for module in pkgutil.iter_modules(report.__path__, f"{report.__name__}."):
        importlib.import_module(module.name)


def end(code: object) -> NoReturn:
    """End at once: threads that still use DuckDB would complain while it is torn down."""
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    threading.Thread(target=prepare, name="prepare", daemon=True).start()
    try:
        main()
    except SystemExit as done:
        end(done.code)
    end(0)
