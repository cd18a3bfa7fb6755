"""Track through which prefix each cached block is reached, for policies that evict leaves."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from msgspec import Struct

Key: TypeAlias = Hashable  # an engine's hash of a block and of all before it


class _Prefix(Struct, eq=False):
    """A key, the key before it (`above`), and the numbers of blocks and children that are cached.

    `holders` counts the cached blocks with this key; `children` the cached keys right after it.
    """

    key: Key
    above: _Prefix | None = None
    holders: int = 0
    children: int = 0


class Prefixes:
    """The keys of all cached blocks, and of the prefixes right above them.

    Several blocks can have one key; any of them makes the key's children reachable. `stranded`
    becomes True when a key with cached children has only one block left, which must now not be
    evicted before the children. The caller looks at its free blocks again, and resets `stranded`.
    """

    def __init__(self) -> None:
        self._known: dict[Key, _Prefix] = {}
        self.stranded = False

    def gain(self, key: Key, above: Key | None) -> None:
        """Add a block with `key`, whose prefix is `above` (None: it begins a prompt)."""
        known = self._known
        entry = known.get(key)
        if entry is None:
            entry = known[key] = _Prefix(key)
        entry.holders += 1
        if entry.holders == 1 and above is not None:
            prefix = known.get(above)
            if prefix is None:
                prefix = known[above] = _Prefix(above)
            prefix.children += 1
            entry.above = prefix

    def lose(self, key: Key) -> Key | None:
        """Remove a block with `key`; return its prefix if that has no cached child left.

        Else return None.
        """
        entry = self._known.get(key)
        if entry is None or entry.holders == 0:
            return None
        entry.holders -= 1
        if entry.holders:
            self.stranded = self.stranded or (entry.holders == 1 and entry.children > 0)
            return None
        if entry.children == 0:
            del self._known[key]
        prefix, entry.above = entry.above, None
        if prefix is None:
            return None
        prefix.children -= 1
        if prefix.children:
            return None
        if prefix.holders == 0:
            del self._known[prefix.key]
        return prefix.key

    def has_orphans(self, key: Key) -> bool:
        """Return whether evicting a block with `key` would make cached children unreachable.

        That is so if the key has cached children, and no other block has it.
        """
        entry = self._known.get(key)
        return entry is not None and entry.children > 0 and entry.holders == 1

    def clear(self) -> None:
        """Forget everything: the cache is empty."""
        self._known.clear()
