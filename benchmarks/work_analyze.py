"""Work for a fresh process: `kvscope analyze TRACE --json` with a new store, split into phases.

Prints JSON: the trace's size, seconds a phase, and seconds of what was done beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import tempfile
from pathlib import Path

from benchmarks.phases import Phases, hook
from kvscope.__main__ import prepare_collector

FUNCTIONS = (
    ("kvscope.ingest.pipeline", "ingest", "parse"),
    ("kvscope.ingest.columns", "Columns.add", "columns"),
    ("kvscope.ingest.build", "build", "build"),
    ("kvscope.ingest.pipeline", "write", "load"),
    ("kvscope.characterize.summary", "characterize", "characterize"),
    ("kvscope.app.analyze", "caching", "curve"),
)
"""Modules, the functions in them that are phases, and the names of these."""


def main() -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("trace")
    told = parser.parse_args()
    prepare_collector()
    phases = Phases()
    with phases.of("imports"):
        app = importlib.import_module("kvscope.cli.app")
        for module, _, _ in FUNCTIONS:
            importlib.import_module(module)
    for module, path, phase in FUNCTIONS:
        hook(module, path, phases.function(phase))
    hook("kvscope.store.db", "Store.transaction", phases.context("load"))
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        store = Path(folder) / "store.duckdb"
        with phases.of("the rest"):
            code = app.run(["analyze", told.trace, "--db", str(store), "--json"])
    if code:
        raise SystemExit(int(code))
    trace = json.loads(printed.getvalue())["trace"]
    print(json.dumps({"trace": trace, "phases_s": phases.seconds, "beside_s": phases.beside}))


if __name__ == "__main__":
    main()
