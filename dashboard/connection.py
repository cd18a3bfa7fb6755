"""The store of this dashboard, open only while a page or a job reads or writes it.

The module itself is what use cases take as `Stores` (kvscope.store.file).
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from functools import cache

from kvscope.store.db import DEFAULT_PATH, Store
from kvscope.store.file import StoreFile

_PATIENCE_S = 5.0  # a page that waits longer looks broken


def database() -> str:
    """Return the store's path, from the command line of `streamlit run APP -- --db PATH`."""
    arguments = sys.argv[1:]
    if "--" in arguments:  # those before it are Streamlit's
        arguments = arguments[arguments.index("--") + 1 :]
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", default=DEFAULT_PATH)
    return str(parser.parse_known_args(arguments)[0].db)


def reading() -> AbstractContextManager[Store]:
    """Open the store for reading. Raises StoreBusyError where another process keeps writing it."""
    return _file(database()).reading()


def writing(patience_s: float | None = None) -> AbstractContextManager[Store]:
    """Open the store for writing, as the only writer of this process."""
    return _file(database()).writing(patience_s)


@cache
def _file(path: str) -> StoreFile:
    return StoreFile(path, patience_s=_PATIENCE_S)
