"""LRU, alone and with a time to live, an admission threshold, or more windows kept."""

from __future__ import annotations

from msgspec.structs import replace

from kvscope.core.arrays import Float64s
from kvscope.core.parameters import Parameter
from kvscope.policies.base import (
    GUARD,
    JUDGED,
    MOST_TOKENS,
    OWN_ORDER,
    REVERTING,
    TTL,
    LanePolicy,
    Policy,
    Turn,
)


class Lru(LanePolicy):
    """Evict the least recently used block; of one request's blocks the deepest.

    Key (r, -d). It leaves no orphans: a request that touches a block touches all before it.
    Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (FreeKVCacheBlockQueue); SGLang's default.
    """

    name = "lru"
    summary = "least recently used, deepest first: what vLLM and SGLang do"
    source = "vLLM, SGLang"


class Ttl(Lru):
    """LRU that also drops blocks untouched for `ttl_s`, whether or not the cache is full.

    Other path policies take `ttl_s` as a parameter of their own.
    Source: "Layer your cache system like a wedding cake", time to live.
    """

    name = "ttl"
    summary = "LRU that also drops what was not touched for a while"
    source = "wedding-cake caching"
    parameters = (
        replace(TTL, default=600.0, search=(60.0, 300.0, 600.0, 1800.0, 3600.0), required=True),
    )


_THRESHOLD = 0


class ThresholdLru(Lru):
    """LRU that caches no new blocks of a turn whose history L is below a threshold.

    Blocks that such a turn hits become recent all the same. With `guard` all turns are cached, as
    under LRU, unless a shadow cache shows that the threshold saves computed tokens; the guard is
    our own.
    Source: Tail-Optimized Caching for LLM Inference, section 5 (Threshold LRU).
    """

    name = "threshold-lru"
    summary = "LRU that does not cache turns with a short history"
    source = "T-LRU paper"
    learner = REVERTING
    parameters = (
        Parameter(
            "threshold_tokens",
            1024,
            "histories shorter than this are not cached",
            high=MOST_TOKENS,
            search=(256, 512, 1024, 2048, 4096, 8192),
        ),
        TTL,
        GUARD,
        *JUDGED,
    )

    @staticmethod
    def admits(turn: Turn, p: Float64s, table: Float64s) -> bool:
        """Return whether the history reaches the threshold, or the guard has put LRU in force."""
        return bool(turn.history_tokens >= p[_THRESHOLD] or table[0, 0] != OWN_ORDER)


RETENTION = "retention_tokens"


class LruRetention(Lru):
    """vLLM's order with another `--prefix-cache-retention-interval`, for hybrid models.

    By default vLLM keeps the blocks of a sliding window, and the states of linear attention, only
    before the end of a prompt and where prompts part. This policy also keeps those before every
    multiple of `retention_tokens`: later prompts can continue from more places, at the cost of
    blocks.
    Source: vLLM 0.32.0, vllm/v1/core/single_type_kv_cache_manager.py (reachable_block_mask).
    """

    name = "lru-retention"
    summary = "hybrid models: LRU that keeps more windows or states"
    source = "vLLM"
    parameters = (
        Parameter(
            RETENTION,
            float("inf"),
            "tokens between windows or states that are kept, a multiple of the block; inf: all",
            search=(256, 512, 1024, 2048, 4096, 8192, 16384, float("inf")),
        ),
        TTL,
    )

    @classmethod
    def runs_in_plugin(cls) -> bool:
        """Return False: vLLM itself runs it."""
        return False


def retaining(tokens: float) -> Policy:
    """Return LRU with windows or states kept before every multiple of `tokens`.

    0: vLLM's default; inf stands for vLLM's interval None, which keeps all.
    """
    return LruRetention({RETENTION: tokens}) if tokens else Lru()


def retained_by(policy: Policy) -> float:
    """Return the interval in tokens of a policy made by `retaining`; 0 for any other policy."""
    return policy.values.get(RETENTION, 0.0)
