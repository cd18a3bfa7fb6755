"""Which cached prefixes are needed to find others: what a policy that evicts leaves must know."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

Key: TypeAlias = Hashable  # an engine's hash of a block and of all that is before it


class _Prefix:
    """One key: the blocks that hold it, the keys right below it that are held, its own prefix."""

    __slots__ = ("above", "children", "holders", "key")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.above: _Prefix | None = None
        self.holders = self.children = 0


class Prefixes:
    """All keys that some block holds, or that are the prefix of one that is held.

    `stranded` is set when of several blocks with a key the last but one has lost it, and others are
    found through the one that is left.
    """

    def __init__(self) -> None:
        self._known: dict[Key, _Prefix] = {}
        self.stranded = False

    def gain(self, key: Key, above: Key | None) -> None:
        """One more block holds `key`, whose prefix is `above` (None: it begins a prompt)."""
        known = self._known
        one = known.get(key)
        if one is None:
            one = known[key] = _Prefix(key)
        one.holders += 1
        if one.holders == 1 and above is not None:
            prefix = known.get(above)
            if prefix is None:
                prefix = known[above] = _Prefix(above)
            prefix.children += 1
            one.above = prefix

    def lose(self, key: Key) -> Key | None:
        """One block less holds `key`; the prefix that has no cached child any more, if any."""
        one = self._known.get(key)
        if one is None or one.holders == 0:
            return None
        one.holders -= 1
        if one.holders:
            self.stranded = self.stranded or (one.holders == 1 and one.children > 0)
            return None
        if one.children == 0:
            del self._known[key]
        prefix, one.above = one.above, None
        if prefix is None:
            return None
        prefix.children -= 1
        if prefix.children:
            return None
        if prefix.holders == 0:
            del self._known[prefix.key]
        return prefix.key

    def has_orphans(self, key: Key) -> bool:
        """Whether cached keys could not be found any more without the one block that has `key`."""
        one = self._known.get(key)
        return one is not None and one.children > 0 and one.holders == 1

    def clear(self) -> None:
        """Nothing is held."""
        self._known.clear()
