"""Least frequently used."""

from __future__ import annotations

from kvscope.policies.base import Block, Floats, KeyPolicy, Turn


class Lfu(KeyPolicy):
    """Least touched since it was inserted; of those the least recently used.

    Key (uses, r, -d). As a request's own new blocks, used once, may leave too, what was used twice
    never leaves: where insertion is optional a block stays if it was used again while there was
    room. A block's ancestors were touched at least as often, so no orphans.
    """

    name = "lfu"
    summary = "least frequently used since insertion, then least recently"
    source = "classic"
    counts_uses = True

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Floats, table: Floats
    ) -> float:
        """The touches since insertion."""
        return float(block.uses)
