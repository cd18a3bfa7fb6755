"""The store of this dashboard, open only while a page or a job reads or writes it.

The module itself is what use cases take as `Stores` (kvscope.store.file).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from dashboard.arguments import arguments
from dashboard.work import store_at
from kvscope.store.db import Store
from kvscope.store.file import StoreFile


def database() -> str:
    """Return the store's path."""
    return str(arguments().db)


def reading() -> AbstractContextManager[Store]:
    """Open the store for reading. Raises StoreBusyError where another process keeps writing it."""
    return _file(database()).reading()


def writing(patience_s: float | None = None) -> AbstractContextManager[Store]:
    """Open the store for writing, as the only writer of this process."""
    return _file(database()).writing(patience_s)


@cache
def _file(path: str) -> StoreFile:
    return store_at(path)
