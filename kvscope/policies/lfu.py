"""Least frequently used, as SGLang has it."""

from __future__ import annotations

from kvscope.core.arrays import Float64s
from kvscope.policies.base import Block, KeyPolicy, Turn


class Lfu(KeyPolicy):
    """Evict the block with the fewest touches since its insertion; of equals the oldest touched.

    Key (uses, r, -d), where the request that inserts a block counts as its first use. Room is made
    before a prompt is inserted: its own blocks leave last.

    On prefix caches this is a poor policy. A prompt is inserted whole, so all its new blocks have
    one use and are next to leave, those of a conversation that is about to go on among them, while
    a block used twice stays as long as anything used once is cached. Nothing ages: the cache fills
    with the heads of conversations that are over. A block's ancestors were used at least as often:
    no orphans.
    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py (LFUStrategy), radix_cache.py
    (_insert_helper: one hit a request, counted from its insertion).
    """

    name = "lfu"
    summary = "fewest touches since insertion, then LRU (SGLang's)"
    source = "SGLang"
    makes_room = True
    counts_uses = True

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Float64s, table: Float64s
    ) -> float:
        """Return the touches since insertion."""
        return float(block.uses)
