"""LRU in which blocks within their time to live leave last."""

from __future__ import annotations

from kvscope.policies.base import TTL, Floats, LanePolicy, Parameter, Turn

TTL_S, PRIORITY = 0, 1
"""Columns of the table of the policies that honour directives, a row a class of requests."""
PAUSE_TTL, PIN_SHARE = "pause_ttl_s", "pin_share"


class SoftTtl(LanePolicy):
    """Evict blocks beyond their time to live first, then the others in LRU order.

    Key (end of the TTL that the request that touched it last stated if that is over, else infinite,
    r, -d): a block whose TTL is over joins the end of the queue of those without one, as in
    TensorRT-LLM. A request that expects a pause, such as a tool call, pins its blocks for
    `pause_ttl_s`; one that ends its conversation pins nothing. Pins that would hold more than
    `pin_share` of the cache together are not granted. Unlike `ttl` nothing leaves while there is
    room. Without directives it is LRU.
    Source: SGLang #21045 (soft retention); Continuum (time to live of pending tool calls).
    """

    name = "soft-ttl"
    summary = "LRU that evicts what is beyond its stated time to live first"
    source = "SGLang #21045, Continuum"
    leaves = "leaf"
    by_category = True
    learner = "directives"
    parameters = (
        TTL,
        Parameter(PAUSE_TTL, 60.0, "pin for this time where a pause is expected", high=1e9),
        Parameter(PIN_SHARE, 0.5, "share of the cache that pins may hold", high=1.0),
    )

    @staticmethod
    def place(turn: Turn, end: int, block_size: int, p: Floats) -> tuple[int, int]:
        """Return the class's lane for all blocks."""
        return 0, turn.category

    @staticmethod
    def score(lane: int, idle_s: float, p: Floats, table: Floats) -> float:
        """Return 1 within the time to live; beyond, less for a longer time since its end."""
        ttl_s = table[lane, TTL_S]
        return 1.0 if ttl_s > 0 and idle_s <= ttl_s else float(ttl_s - idle_s)

    @classmethod
    def runs_in_plugin(cls) -> bool:
        """Return False: engines take times to live from requests."""
        return False
