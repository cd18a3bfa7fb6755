"""LRU of a hybrid model that keeps sliding windows, or states, at more places."""

from __future__ import annotations

from kvscope.core.parameters import Parameter
from kvscope.policies.base import TTL, Policy
from kvscope.policies.lru import Lru

RETENTION = "retention_tokens"


class LruRetention(Lru):
    """vLLM's order with another `--prefix-cache-retention-interval`, for hybrid models.

    By default vLLM keeps the blocks of a sliding window, and the states of linear attention, only
    before the end of a prompt and where prompts part. This keeps those before every multiple of
    `retention_tokens`, too: more places where a later prompt may continue, for blocks that others
    could use.
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
        """Return False: vLLM has it built in."""
        return False


def retaining(tokens: float) -> Policy:
    """Return LRU with windows or states kept before every multiple of `tokens`.

    0: vLLM's default; inf: all.
    """
    return LruRetention({RETENTION: tokens}) if tokens else Lru()


def retained_by(policy: Policy) -> float:
    """Return the tokens for which `retaining` makes a policy; 0 for any but LRU with retention."""
    return policy.values.get(RETENTION, 0.0)
