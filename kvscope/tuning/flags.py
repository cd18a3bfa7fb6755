"""Engine flags for a policy and a capacity.

vLLM itself evicts by LRU; for other policies it loads kvscope's plugin (`kvscope.vllm_plugin`),
which reads the policy from the recommendation file.

Source: SGLang 0.5.23, srt/arg_groups/fields/memory.py (--radix-eviction-policy,
--radix-eviction-policy-config), kv_cache_hook.py (its checks of tlru) and mem_cache/
evict_policy.py; --max-total-tokens; vLLM 0.32, EngineArgs (--block-size, --scheduler-cls,
--num-gpu-blocks-override) and kv_cache_manager.py: block 0 is never given to a request.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass

from kvscope.policies.base import Policy

VLLM_BLOCK_TOKENS = 16
VLLM_PLUGIN = "--scheduler-cls kvscope.vllm_plugin.KvscopeScheduler"
_SGLANG_POLICIES = ("lru", "lfu", "slru", "tlru")
_SGLANG_PARAMETERS = {
    "xi_tokens": "threshold",
    "next_prompt_tokens": "next_prompt_estimate",
    "protected_uses": "protected_threshold",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """Flags for each engine; None where it cannot run the policy."""

    sglang: str | None
    vllm: str | None

    @property
    def vllm_needs_plugin(self) -> bool:
        """Return whether vLLM runs the policy through kvscope's plugin alone."""
        return self.vllm is not None and VLLM_PLUGIN in self.vllm

    @property
    def built_in(self) -> bool:
        """Return whether an engine has the policy built in."""
        return self.sglang is not None or (self.vllm is not None and not self.vllm_needs_plugin)


def flags(policy: Policy, capacity_tokens: int) -> Flags:
    """Return the flags for a policy with its parameters, and a cache of so many tokens.

    The capacity covers idle cached blocks only: running requests need memory beyond it.
    """
    return Flags(_sglang(policy, capacity_tokens), _vllm(policy, capacity_tokens))


def plugin_command(path: str) -> str:
    """Return the command that starts vLLM with the plugin and the recommendation at `path`."""
    return f"KVSCOPE_RECOMMENDATION={shlex.quote(path)} vllm serve MODEL"


def _sglang(policy: Policy, tokens: int) -> str | None:
    if math.isfinite(policy.values.get("ttl_s", math.inf)) or policy.evicts != policy.leaves:
        return None
    if policy.name not in _SGLANG_POLICIES or policy.values.get("xi_percentile"):
        return None
    name, values = policy.name, policy.values
    config = {
        theirs: round(values[ours]) for ours, theirs in _SGLANG_PARAMETERS.items() if ours in values
    }
    if name == "tlru" and config["threshold"] <= config["next_prompt_estimate"]:
        name, config = "lru", {}  # nothing is TEL-safe then; SGLang refuses to start with it
    compact = json.dumps(config, separators=(",", ":"))  # no spaces, where a terminal would wrap
    options = f" --radix-eviction-policy-config '{compact}'" if config else ""
    return f"--radix-eviction-policy {name}{options} --max-total-tokens {tokens}"


def _vllm(policy: Policy, tokens: int) -> str | None:
    if not policy.runs_in_plugin():
        return None
    blocks = -(-tokens // VLLM_BLOCK_TOKENS) + 1
    size = f"--block-size {VLLM_BLOCK_TOKENS} --num-gpu-blocks-override {blocks}"
    built_in = policy.name == "lru" and math.isinf(policy.values["ttl_s"])
    return size if built_in else f"{VLLM_PLUGIN} {size}"
