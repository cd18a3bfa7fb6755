"""The store, opened briefly: by many readers at once, or by writers, of which each waits its turn.

DuckDB opens a file in one mode at a time within a process. So readers open it read-only, unless
something here is writing it just then; and who wants to write waits until none reads.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvscope.store.db import DEFAULT_PATH, Store, open_store


class _Gate:
    """Who has the store open. Readers never wait for writers; writers wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0  # of those that opened it read-only
        self._writable = 0

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Within the block one may open the store, read-only if that is what this gives."""
        with self._changed:
            read_only = not self._writable
            self._enter(read_only=read_only)
        try:
            yield read_only
        finally:
            self._leave(read_only=read_only)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within the block one may open the store to write it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._readers)
            self._enter(read_only=False)
        try:
            yield
        finally:
            self._leave(read_only=False)

    def _enter(self, *, read_only: bool) -> None:
        if read_only:
            self._readers += 1
        else:
            self._writable += 1

    def _leave(self, *, read_only: bool) -> None:
        with self._changed:
            if read_only:
                self._readers -= 1
            else:
                self._writable -= 1
            self._changed.notify_all()


_GATE = _Gate()
_ONE_WRITER = threading.Lock()
_OPENING = threading.Lock()  # DuckDB creates its shared instance once


def database() -> str:
    """The store's path, from the command line of `streamlit run APP -- --db PATH`."""
    given = sys.argv[1:]
    own = given[given.index("--") + 1 :] if "--" in given else given  # Streamlit takes the others
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", default=DEFAULT_PATH)
    return str(parser.parse_known_args(own)[0].db)


@contextmanager
def reading() -> Iterator[Store]:
    """The store while the block runs. Raises StoreBusyError while another process writes it."""
    with _GATE.reading() as read_only, _open(read_only=read_only) as store:
        yield store


@contextmanager
def writing() -> Iterator[Store]:
    """The store to be written while the block runs, by nobody else in this process."""
    with _ONE_WRITER, _GATE.writing(), _open(read_only=False) as store:
        yield store


def _open(*, read_only: bool) -> Store:
    with _OPENING:
        return open_store(database(), read_only=read_only)
