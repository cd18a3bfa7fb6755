"""Least frequently used."""

from __future__ import annotations

from kvscope.policies.base import Block, Floats, KeyPolicy, Turn


class Lfu(KeyPolicy):
    """Evict what was touched least since its insertion; of those the least recently used.

    Key (uses, r, -d). Insertion is optional, so a request's own new blocks, touched once, leave
    before any block touched twice. A block's ancestors were touched at least as often: no orphans.
    """

    name = "lfu"
    summary = "least frequently used since insertion, then least recently"
    source = "classic"
    counts_uses = True

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Floats, table: Floats
    ) -> float:
        """Return the touches since insertion."""
        return float(block.uses)
