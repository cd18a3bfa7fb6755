"""Open the store briefly: for many readers at once, or for one writer after the other.

DuckDB opens a file in one mode at a time within a process. So readers open it read-only unless
this process is writing it, and writers wait until nobody has it open read-only. The module itself
is what use cases take as `Stores` (kvscope.app.traces).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dashboard.arguments import arguments
from kvscope.store.db import Store, open_store

_CHANGED = threading.Condition()
_OPEN = {True: 0, False: 0}  # by whether it is read-only: how many have the store open
_ONE_WRITER = threading.Lock()
_OPENING = threading.Lock()  # DuckDB creates its shared instance once


def database() -> str:
    """Return the store's path."""
    return str(arguments().db)


@contextmanager
def reading() -> Iterator[Store]:
    """Open the store for reading. Raises StoreBusyError while another process writes it."""
    with _CHANGED:
        read_only = not _OPEN[False]
        _OPEN[read_only] += 1
    with _opened(read_only=read_only) as store:
        yield store


@contextmanager
def writing() -> Iterator[Store]:
    """Open the store for writing, as the only writer of this process."""
    with _ONE_WRITER:
        with _CHANGED:
            _CHANGED.wait_for(lambda: not _OPEN[True])
            _OPEN[False] += 1
        with _opened(read_only=False) as store:
            yield store


@contextmanager
def _opened(*, read_only: bool) -> Iterator[Store]:
    try:
        with _OPENING:
            store = open_store(database(), read_only=read_only)
        with store:
            yield store
    finally:
        with _CHANGED:
            _OPEN[read_only] -= 1
            _CHANGED.notify_all()
