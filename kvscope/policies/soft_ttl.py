"""LRU in which blocks within their time to live leave last."""

from __future__ import annotations

from kvscope.policies.base import TTL, Floats, LanePolicy, Turn

TTL_S = 0


class SoftTtl(LanePolicy):
    """Evict blocks beyond their time to live first, then the others, both in LRU order.

    Key (0 if idle for longer than the TTL of the request that touched it last else 1, r, -d). The
    table has a row a class of requests: its TTL. Unlike `ttl` nothing leaves while there is room.
    """

    name = "soft-ttl"
    summary = "LRU that evicts what is beyond its time to live first"
    source = "SGLang #21045, TensorRT-LLM"
    leaves = "leaf"
    by_category = True
    parameters = (TTL,)

    @staticmethod
    def place(turn: Turn, block_size: int, p: Floats) -> tuple[int, int, int]:
        """Return the class's lane for all blocks."""
        return 0, turn.category, turn.category

    @staticmethod
    def score(lane: int, idle_s: float, p: Floats, table: Floats) -> float:
        """Return 1 within the time to live, 0 beyond."""
        return 1.0 if idle_s <= table[lane, TTL_S] else 0.0

    @classmethod
    def runs_in_plugin(cls) -> bool:
        """Return False: engines state times to live in requests."""
        return False
