"""Engine flags for a policy on a deployment.

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
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from kvscope.deployment.engines import (
    AUTO_LENGTH,
    DEFAULT_ENGINE,
    THIN_RETENTION,
    Engine,
    parse_engine,
)
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.speculative import parse_drafter
from kvscope.policies.base import Policy
from kvscope.policies.lru import RETENTION, LruRetention

if TYPE_CHECKING:
    from kvscope.deployment.deployment import Deployment, ResolvedDeployment

NEWEST = parse_engine(DEFAULT_ENGINE)
VLLM_PLUGIN = "--scheduler-cls kvscope.vllm_plugin.KvscopeScheduler"
_SGLANG_POLICIES = ("lru", "lfu", "slru", "tlru")
_SGLANG_PARAMETERS = {
    "xi_tokens": "threshold",
    "next_prompt_tokens": "next_prompt_estimate",
    "protected_uses": "protected_threshold",
}


class Flags(Struct, frozen=True):
    """Flags for each engine; None if the engine cannot run the policy."""

    sglang: str | None
    vllm: str | None

    @property
    def vllm_needs_plugin(self) -> bool:
        """Whether vLLM needs kvscope's plugin to run the policy."""
        return self.vllm is not None and VLLM_PLUGIN in self.vllm


class EngineLaunch(Struct, frozen=True):
    """How an engine is started, apart from its policy.

    `block_size` and `num_gpu_blocks` are the engine's own, including vLLM's block 0 and the blocks
    of running requests; None leaves them to the engine. `engine` is its version: features it lacks
    get no flags. `options` are further flags in the engine's syntax, `groups` those of a hybrid
    model, to which a retention interval is rounded.
    """

    block_size: int | None = None
    num_gpu_blocks: int | None = None
    options: tuple[str, ...] = ()
    groups: KvGroups | None = None
    engine: Engine = NEWEST

    @classmethod
    def of(cls, where: ResolvedDeployment, groups: KvGroups | None) -> Self:
        """Return the launch of a deployment's engine, with flags for all options stated in it."""
        stated, vllm = where.stated, where.engine.name == NEWEST.name
        if where.shortens_requests:
            stated = replace(stated, max_model_len=None)
        moe = where.model is not None and where.model.moe
        words = stated_words(stated, vllm=vllm, moe=moe) | {
            "--max-num-seqs" if vllm else "--max-running-requests": where.max_num_seqs,
            "--max-num-batched-tokens" if vllm else "--chunked-prefill-size": (
                where.max_num_batched_tokens
            ),
        }
        return cls(
            block_size=stated.block_size,
            num_gpu_blocks=where.pool.num_gpu_blocks if where.pool.origin == "stated" else None,
            options=(
                *(
                    shlex.join([name] if value == "" else [name, str(value)])
                    for name, value in words.items()
                ),
                *([AUTO_LENGTH] if where.shortens_requests else []),
            ),
            groups=groups,
            engine=where.engine if vllm else NEWEST,
        )


def stated_words(
    stated: Deployment, *, vllm: bool = True, moe: bool = False
) -> dict[str, float | str]:
    """Return a deployment's stated options as {launch flag: value}; SGLang's flags if not `vllm`.

    Left out: limits of running requests and of batched tokens, size and number of blocks. A switch
    has an empty value. `moe`: the model has experts, which data-parallel ranks share out.
    """
    engine = parse_engine(stated.engine)
    words = {
        "--tensor-parallel-size" if vllm else "--tp": stated.tp if stated.tp > 1 else None,
        "--data-parallel-size": stated.dp if stated.dp > 1 else None,
        "--enable-expert-parallel": "" if stated.dp > 1 and moe else None,
        "--kv-cache-dtype": stated.kv_dtype if stated.kv_dtype == "fp8" else None,
        "--prefix-match-unit": stated.prefix_match_unit,
        "--speculative-config": _speculative_config(stated),
        "--max-model-len" if vllm else "--context-length": stated.max_model_len,
        "--schedule-policy": engine.order if engine.order != "fcfs" else None,
        **_hicache_words(engine),
        "--gpu-memory-utilization" if vllm else "--mem-fraction-static": (
            stated.gpu_memory_utilization
        ),
    }
    return {name: value for name, value in words.items() if value is not None}


def _hicache_words(engine: Engine) -> dict[str, float | str | None]:
    """Return {launch flag: value} of SGLang's host tier (HiCache), "" for a switch; else empty."""
    if engine.hicache is None:
        return {}
    return {
        "--enable-hierarchical-cache": "",
        "--hicache-ratio": f"{engine.hicache.ratio:g}",
        "--hicache-write-policy": engine.hicache.write_policy,
    }


def _speculative_config(stated: Deployment) -> str | None:
    """Return the value of vLLM's --speculative-config, None without a drafter."""
    drafter = parse_drafter(stated.speculative or "none")
    return None if drafter is None else drafter.config


def flags(policy: Policy, launch: EngineLaunch | None = None) -> Flags:
    """Return the flags for a policy with its parameters and, if stated, for the `launch`."""
    launch = launch or EngineLaunch()
    return Flags(_sglang(policy, launch), _vllm(policy, launch))


def retention_arguments(policy: Policy, groups: KvGroups | None) -> tuple[str, ...]:
    """Return vLLM's arguments for a retention interval; () for policies without one."""
    if not isinstance(policy, LruRetention):
        return ()
    kept = groups.retaining(policy.values[RETENTION]).retention_tokens if groups else None
    return "--prefix-cache-retention-interval", str(kept)  # vLLM reads None


def plugin_command(path: str) -> str:
    """Return the command that starts vLLM with the plugin and the recommendation at `path`."""
    return f"KVSCOPE_RECOMMENDATION={shlex.quote(path)} vllm serve MODEL"


def _sglang(policy: Policy, launch: EngineLaunch) -> str | None:
    if math.isfinite(policy.values.get("ttl_s", math.inf)) or policy.evicts != policy.leaves:
        return None
    if policy.name not in _SGLANG_POLICIES or policy.values.get("xi_percentile"):
        return None
    name, values = policy.name, policy.values
    taken = {theirs: values[ours] for ours, theirs in _SGLANG_PARAMETERS.items() if ours in values}
    if not all(map(math.isfinite, taken.values())):
        return None  # JSON has no infinity
    config = {theirs: round(value) for theirs, value in taken.items()}
    if name == "tlru" and config["threshold"] <= config["next_prompt_estimate"]:
        name, config = "lru", {}  # nothing is TEL-safe then; SGLang refuses to start with it
    compact = json.dumps(config, separators=(",", ":"))  # no spaces, where a terminal would wrap
    chosen = [f"--radix-eviction-policy {name}"]
    chosen += [f"--radix-eviction-policy-config '{compact}'"] if config else []
    if launch.num_gpu_blocks is not None:
        chosen.append(f"--max-total-tokens {launch.num_gpu_blocks * (launch.block_size or 1)}")
    return " ".join([*chosen, *launch.options])


def _vllm(policy: Policy, launch: EngineLaunch) -> str | None:
    chosen, engine = [], launch.engine
    if isinstance(policy, LruRetention):
        if not engine.has(THIN_RETENTION):
            return None
        chosen += [shlex.join(retention_arguments(policy, launch.groups))]
    elif not policy.runs_in_plugin():
        return None
    elif policy.name != "lru" or math.isfinite(policy.values["ttl_s"]):
        if not engine.runs_plugin:
            return None
        chosen.append(VLLM_PLUGIN)
    if launch.block_size is not None:
        chosen.append(f"--block-size {launch.block_size}")
    if launch.num_gpu_blocks is not None:
        chosen.append(f"--num-gpu-blocks-override {launch.num_gpu_blocks}")
    return " ".join([*chosen, *launch.options])
