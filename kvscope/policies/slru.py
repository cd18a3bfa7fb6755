"""Segmented LRU, as SGLang has it."""

from __future__ import annotations

from kvscope.policies.base import TTL, Block, Floats, KeyPolicy, Parameter, Turn

_PROTECTED = 0


class Slru(KeyPolicy):
    """LRU that evicts blocks touched again since their insertion after all others.

    Key (0 if uses < protected_uses else 1, r, -d). SGLang makes room before it inserts; here a
    request's own new blocks may leave as well, so with `protected_uses` 2 what is protected stays.
    Source: SGLang 0.5, python/sglang/srt/mem_cache/evict_policy.py (SLRUStrategy).
    """

    name = "slru"
    summary = "LRU that protects what was used again (SGLang's segmented LRU)"
    source = "SGLang"
    counts_uses = True
    parameters = (
        Parameter("protected_uses", 2, "touches since insertion that protect a block", low=1),
        TTL,
    )

    @staticmethod
    def key(
        turn: Turn, block: Block, now_s: float, block_size: int, p: Floats, table: Floats
    ) -> float:
        """Return 0 for a block on probation, 1 for a protected one."""
        return 0.0 if block.uses < p[_PROTECTED] else 1.0
