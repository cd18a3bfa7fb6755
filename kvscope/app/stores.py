"""Access to a store: held open for a whole command, or opened for each read and write."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from kvscope.store.db import Store, open_store


class Stores(Protocol):
    """What use cases read from and write to. Computing happens outside of both contexts."""

    def reading(self) -> AbstractContextManager[Store]:
        """Return a context with the store open to be read."""

    def writing(self) -> AbstractContextManager[Store]:
        """Return a context with the store open to be written."""


class HeldStore:
    """A store that its owner keeps open."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def reading(self) -> AbstractContextManager[Store]:
        """Return a context with the store, which stays open behind it."""
        return nullcontext(self._store)

    writing = reading


class StoreFile:
    """A store's file, open only while it is read or written, so that others can use it too.

    Raises StoreBusyError while another process writes it.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def reading(self) -> AbstractContextManager[Store]:
        """Open the file, read-only."""
        return open_store(self.path, read_only=True)

    def writing(self) -> AbstractContextManager[Store]:
        """Open the file, and create it where there is none."""
        return open_store(self.path)
