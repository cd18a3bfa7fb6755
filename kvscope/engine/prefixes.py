"""Which cached prefixes are needed to find others: what a policy that evicts leaves must know."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

Key: TypeAlias = Hashable  # an engine's hash of a block and of all that is before it


class Prefixes:
    """Counts, by key: the blocks that hold it, and the keys right below it that are held."""

    def __init__(self) -> None:
        self._holders: dict[Key, int] = {}
        self._children: dict[Key, int] = {}
        self._above: dict[Key, Key | None] = {}

    def gain(self, key: Key, above: Key | None) -> None:
        """One more block holds `key`, whose prefix is `above` (None: it begins a prompt)."""
        holders = self._holders.get(key, 0)
        self._holders[key] = holders + 1
        if holders == 0:
            self._above[key] = above
            if above is not None:
                self._children[above] = self._children.get(above, 0) + 1

    def lose(self, key: Key) -> Key | None:
        """One block less holds `key`; the prefix that has no cached child any more, if any."""
        holders = self._holders.get(key)
        if holders is None:
            return None
        if holders > 1:
            self._holders[key] = holders - 1
            return None
        del self._holders[key]
        above = self._above.pop(key)
        if above is None:
            return None
        children = self._children[above] - 1
        if children:
            self._children[above] = children
            return None
        del self._children[above]
        return above

    def has_orphans(self, key: Key) -> bool:
        """Whether cached keys could not be found any more without the one block that has `key`."""
        return key in self._children and self._holders.get(key) == 1

    def clear(self) -> None:
        """Nothing is held."""
        self.__init__()  # type: ignore[misc]  # empty as at first
