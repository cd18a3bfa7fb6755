"""How to tell an engine: the exact flags for a policy and a capacity.

vLLM itself evicts by LRU; for other policies it loads kvscope's plugin (`kvscope.engine`), which
reads the policy from the recommendation file.

Source: SGLang, server_args.py (--radix-eviction-policy, --tlru-threshold,
--tlru-next-prompt-estimate, --max-total-tokens); vLLM 0.32, EngineArgs (--block-size,
--scheduler-cls, --num-gpu-blocks-override) and kv_cache_manager.py: block 0 is never given to a
request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvscope.policies.base import LanePolicy, Policy

VLLM_BLOCK_TOKENS = 16
VLLM_PLUGIN = "--scheduler-cls kvscope.engine.vllm_plugin.KvscopeScheduler"
_SGLANG_OWN = ("lru", "lfu", "slru")


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags for each engine; None where it does not have the policy."""

    sglang: str | None
    vllm: str | None

    @property
    def vllm_needs_plugin(self) -> bool:
        """Whether vLLM has the policy through kvscope's plugin alone."""
        return self.vllm is not None and VLLM_PLUGIN in self.vllm

    @property
    def built_in(self) -> bool:
        """Whether an engine has the policy as it is."""
        return self.sglang is not None or (self.vllm is not None and not self.vllm_needs_plugin)


def flags(policy: Policy, capacity_tokens: int) -> Flags:
    """The flags for a policy with its parameters, and a cache of so many tokens.

    The capacity is what is kept between requests: the tokens of running ones come on top of it.
    """
    return Flags(_sglang(policy, capacity_tokens), _vllm(policy, capacity_tokens))


def _sglang(policy: Policy, tokens: int) -> str | None:
    if math.isfinite(policy.values.get("ttl_s", math.inf)) or policy.evicts != policy.leaves:
        return None
    size = f"--max-total-tokens {tokens}"
    if policy.name in _SGLANG_OWN:
        return f"--radix-eviction-policy {policy.name} {size}"
    if policy.name == "tlru" and not policy.values["xi_percentile"]:
        xi, prompt = (round(policy.values[one]) for one in ("xi_tokens", "next_prompt_tokens"))
        return (
            f"--radix-eviction-policy tlru --tlru-threshold {xi}"
            f" --tlru-next-prompt-estimate {prompt} {size}"
        )
    return None


def _vllm(policy: Policy, tokens: int) -> str | None:
    if not isinstance(policy, LanePolicy) or policy.hindsight or not policy.in_plugin:
        return None
    blocks = -(-tokens // VLLM_BLOCK_TOKENS) + 1
    size = f"--block-size {VLLM_BLOCK_TOKENS} --num-gpu-blocks-override {blocks}"
    own = policy.name == "lru" and math.isinf(policy.values["ttl_s"])
    return size if own else f"{VLLM_PLUGIN} {size}"
