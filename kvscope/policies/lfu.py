"""Frequency as SGLang counts it: touches since insertion."""

from __future__ import annotations

from kvscope.core.arrays import Float64s
from kvscope.core.parameters import Parameter
from kvscope.policies.base import TTL, Block, KeyPolicy, Turn


class Lfu(KeyPolicy):
    """Evict the block with the fewest touches since its insertion; of equals the least recent.

    Key (uses, r, -d), where the request that inserts a block counts as its first use. Room is made
    before a prompt is inserted: its own blocks leave last.

    On prefix caches this is poor: a prompt's new blocks have one use and are next to leave, even
    those of a conversation about to continue, and nothing ages: the cache fills with the heads of
    conversations that are over. A block's ancestors were used at least as often: no orphans.
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


_PROTECTED = 0


class Slru(KeyPolicy):
    """LRU that evicts blocks touched again since their insertion after all others.

    Key (0 if uses < protected_uses else 1, r, -d), where the request that inserts a block counts as
    its first use: at SGLang's default of 2 the second request protects it. Room is made before a
    prompt is inserted: its own blocks leave last.

    Nothing returns to probation: where the cache is small against its traffic, protected blocks
    fill it, and a conversation's new blocks rarely last until its next turn, as under `lfu`.
    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py (SLRUStrategy), radix_cache.py
    (_insert_helper: one hit a request, counted from its insertion).
    """

    name = "slru"
    summary = "LRU that protects what was used again (SGLang's segmented LRU)"
    source = "SGLang"
    makes_room = True
    counts_uses = True
    parameters = (
        Parameter("protected_uses", 2, "touches since insertion that protect a block", low=1),
        TTL,
    )

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Float64s, table: Float64s
    ) -> float:
        """Return 0 for a block on probation, 1 for a protected one."""
        return 0.0 if block.uses < p[_PROTECTED] else 1.0
