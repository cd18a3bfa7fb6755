"""A store whose file is open only during reads and writes, not while its user computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

from msgspec.structs import replace

from kvscope.core.errors import (
    DiskFullError,
    OutdatedStoreError,
    ReadOnlyStoreError,
    StoreBusyError,
)
from kvscope.store.db import MEMORY, Store, check_new, open_store
from kvscope.store.failures import Waiting

CANNOT_STORE = (StoreBusyError, ReadOnlyStoreError, DiskFullError)
"""Errors after which a result that is complete cannot be stored: it is shown all the same."""


class Stores(Protocol):
    """Access to a store that is held open, or opened for each read and write."""

    def exists(self) -> bool:
        """Return whether the store exists; a missing one reads as an empty one."""

    def reading(self) -> AbstractContextManager[Store]:
        """Return a context with the store open for reading."""

    def writing(self, patience_s: float | None = None) -> AbstractContextManager[Store]:
        """Return a context with the store open for writing.

        Waits for other processes up to `patience_s` (None: the store's own limit, 20 s if none was
        stated), then raises StoreBusyError.
        """


class StoreFile:
    """The store at `path`, open only while it is read or written. Safe for threads.

    Other processes can read it between two writes. Within a process DuckDB opens a file in one mode
    at a time: readers open it read-only unless this process is writing it, and writers wait until
    no reader has it open. The wait for other processes is limited (`patience_s` of `Waiting`). A
    store in memory stays open until `close`. Without `create`, a missing file is an InputError.
    """

    def __init__(
        self,
        path: str,
        note: Callable[[str], None] = lambda _: None,
        patience_s: float | None = None,
        *,
        create: bool = True,
    ) -> None:
        self.path = path
        self._create = create
        self._waiting = Waiting(patience_s, note)
        self._changed = threading.Condition()
        self._open = {True: 0, False: 0}  # by whether it is read-only: how many have it open
        self._known = False  # to be kvscope's
        self._one_writer = threading.Lock()
        self._opening = threading.Lock()  # DuckDB creates its shared instance once
        self._in_memory = open_store(MEMORY) if path == MEMORY else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close a store in memory; a file is open only while it is in use."""
        if self._in_memory is not None:
            self._in_memory.close()

    def exists(self) -> bool:
        """Return whether the store exists; a missing one reads as an empty one.

        Raises InputError for a missing store that cannot be created.
        """
        exists = self._in_memory is not None or Path(self.path).exists()
        if self._create and not exists:
            check_new(Path(self.path))
        return exists

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Open the store for reading; a missing one is empty.

        Raises the errors of `open_store`, also for a store that could not be created.
        """
        if self._in_memory is not None:
            yield self._in_memory
            return
        if self._create and not self.exists():
            yield self._empty
            return
        with ExitStack() as stack:
            try:
                store = stack.enter_context(self._opened_to_read())
            except OutdatedStoreError:
                with suppress(ReadOnlyStoreError), self.writing():
                    pass  # which brings its schema up to date
                store = stack.enter_context(self._opened_to_read())
            yield store

    @contextmanager
    def writing(self, patience_s: float | None = None) -> Iterator[Store]:
        """Open the store for writing, as the only writer of this process."""
        if self._in_memory is not None:
            yield self._in_memory
            return
        if not self._create and not self.exists():
            open_store(self.path, read_only=True)  # which raises
        with self._one_writer:
            with self._changed:
                self._changed.wait_for(lambda: not self._open[True])
                self._open[False] += 1
            with self._opened(read_only=False, patience_s=patience_s) as store:
                yield store

    @cached_property
    def _empty(self) -> Store:
        empty = open_store(MEMORY)
        empty.path = self.path
        return empty

    @contextmanager
    def _opened_to_read(self) -> Iterator[Store]:
        with self._changed:
            read_only = not self._open[False]
            self._open[read_only] += 1
        with self._opened(read_only=read_only) as store:
            yield store

    @contextmanager
    def _opened(self, *, read_only: bool, patience_s: float | None = None) -> Iterator[Store]:
        try:
            with self._opening:
                waiting = self._waiting
                if patience_s is not None:
                    waiting = replace(waiting, patience_s=patience_s)
                store = open_store(
                    self.path, read_only=read_only, known=self._known, waiting=waiting
                )
                self._known = True
            with store:
                yield store
        finally:
            with self._changed:
                self._open[read_only] -= 1
                self._changed.notify_all()
