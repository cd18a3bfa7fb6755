"""All that knows vLLM: its scheduler with kvscope's observers around it. Imported in vLLM alone.

Nothing of vLLM is replaced but the queue of free blocks, and for policies that evict leaves three
methods of the block pool are listened to. Beside it, a logits processor for `kvscope validate`.

Source: vLLM 0.32.0, vllm/v1/core/sched/scheduler.py (Scheduler), vllm/v1/core/block_pool.py
(BlockPool), vllm/config/scheduler.py (SchedulerConfig.get_scheduler_cls),
vllm/v1/sample/logits_processor/__init__.py (AdapterLogitsProcessor).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vllm
from vllm.config import SchedulerConfig
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from kvscope.core.errors import EngineError, KvscopeError
from kvscope.core.vllm_xargs import OUTPUTS
from kvscope.learning.learners import FittedTable
from kvscope.learning.observer import NOTHING, UNFIT, Observer, log
from kvscope.policies.base import Policy
from kvscope.vllm_plugin.eviction_controller import Steering
from kvscope.vllm_plugin.recording import Recording
from kvscope.vllm_plugin.settings import settings

SUPPORTED = ("0.32.", "0.33.")
_FULL = (FullAttentionSpec, MLAAttentionSpec)
_POINTS = (
    (Scheduler, ("_free_request_blocks", "schedule", "update_from_output", "add_request")),
    (SchedulerConfig, ("get_scheduler_cls",)),
    (BlockPool, ("_maybe_evict_cached_block", "_remove_cached_block_hashes", "cache_full_blocks")),
)


def check_version() -> None:
    """Raises EngineError for a vLLM that this plugin does not know."""
    known = " and ".join(f"{one}x" for one in SUPPORTED)
    missing = [name for kind, names in _POINTS for name in names if not hasattr(kind, name)]
    if not vllm.__version__.startswith(SUPPORTED) or missing:
        raise EngineError(
            f"this is vLLM {vllm.__version__}; kvscope's plugin knows {known}",
            where="kvscope.vllm_plugin",
            remedy="install one of these, or leave --scheduler-cls and KVSCOPE_* out",
        )


class _Observed:
    """What both of vLLM's schedulers get: observers that are told of everything."""

    kvscope: tuple[Observer, ...] = ()
    deferred_frees: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version()
        super().__init__(*args, **kwargs)
        self.kvscope = observers(self)

    def add_request(self, request: Any) -> None:
        """As vLLM's."""
        self._tell("arrived", request)
        super().add_request(request)  # type: ignore[misc]  # the scheduler's, here and below

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's."""
        self._tell("stepping")
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for new in output.scheduled_new_reqs:
            self._tell("admitted", new.req_id, new.num_computed_tokens)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's."""
        self._tell("updating")
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        self._tell("updated")
        return outputs

    def shutdown(self) -> None:
        """As vLLM's."""
        self._tell("closing")
        super().shutdown()  # type: ignore[misc]

    def _free_request_blocks(self, request: Any) -> None:
        self._tell("releasing", request)
        waiting = len(self.deferred_frees)
        super()._free_request_blocks(request)  # type: ignore[misc]
        if len(self.deferred_frees) > waiting:
            self._tell("put_off", self.deferred_frees[-1][1])
        self._tell("released")

    def _tell(self, event: str, *of: Any) -> None:
        for one in self.kvscope:
            one.tell(event, *of)


class KvscopeAsyncScheduler(_Observed, AsyncScheduler):  # type: ignore[misc]  # vLLM has no types
    """vLLM's AsyncScheduler with kvscope's policy for free blocks."""


class KvscopeScheduler(_Observed, Scheduler):  # type: ignore[misc]  # as above
    """vLLM's scheduler with kvscope's policy for free blocks.

    Where vLLM schedules asynchronously, as it does on GPUs, this gives a KvscopeAsyncScheduler.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """The scheduler that vLLM itself would take, observed."""
        config = kwargs.get("vllm_config") or args[0]
        if cls is KvscopeScheduler and config.scheduler_config.async_scheduling:
            return KvscopeAsyncScheduler(*args, **kwargs)
        return super().__new__(cls)


def observers(scheduler: Any) -> tuple[Observer, ...]:
    """What is to watch a new scheduler, by its configuration and the environment.

    A mistake there is told, and costs the engine nothing but that.
    """
    try:
        chosen = settings(scheduler.vllm_config.additional_config, os.environ)
    except KvscopeError as error:
        log.error("%s; %s", NOTHING, error)
        return ()
    if chosen.policy is None and chosen.record is None:
        log.warning("kvscope has nothing to do: set KVSCOPE_RECOMMENDATION, or leave it out")
    watching: list[Observer] = []
    if chosen.policy is not None and steers(chosen.policy):
        why = unfit(scheduler)
        if why:
            log.warning("%s: %s", UNFIT, why)
        else:
            steering = steer(scheduler, chosen.policy, chosen.fitted, told_time=chosen.told_time)
            watching.append(steering)
            log.info("kvscope orders free blocks by %s", steering.in_words)
    if chosen.record is not None:
        watching += recorders(scheduler, chosen.record)
    return tuple(watching)


def recorders(scheduler: Any, folder: Path) -> list[Observer]:
    """What records an engine's requests to `folder`; nothing, which is told, where that fails."""
    if not scheduler.kv_cache_manager.enable_caching:
        log.warning("kvscope records nothing: prefix caching is off, so blocks have no hashes")
        return []
    try:
        recording = Recording(folder, scheduler.hash_block_size)
    except OSError as error:
        log.error("kvscope records nothing: %s", error)
        return []
    log.info("kvscope records requests to %s", folder)
    return [recording]


def steers(policy: Policy) -> bool:
    """Whether the order differs from vLLM's own at all."""
    return policy.name != "lru" or math.isfinite(policy.values["ttl_s"])


def unfit(scheduler: Any) -> str | None:
    """Why a policy cannot order the blocks of this engine, if it cannot."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    if not scheduler.kv_cache_manager.enable_caching:
        return "prefix caching is off"
    if len(groups) != 1 or type(groups[0].kv_cache_spec) not in _FULL:
        return "the model does not have full attention alone, for which no order is proven"
    if block_size(scheduler) != scheduler.hash_block_size:
        return "blocks are not hashed one by one"
    return None


def block_size(scheduler: Any) -> int:
    """Tokens in a block."""
    return int(scheduler.kv_cache_manager.coordinator.single_type_managers[0].block_size)


def steer(
    scheduler: Any, policy: Policy, fitted: FittedTable | None = None, *, told_time: bool = False
) -> Steering:
    """Put kvscope's queue of free blocks in the place of vLLM's."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    steering = Steering(policy, block_size(scheduler), told_time=told_time, fitted=fitted)
    pool.free_block_queue = steering.attach(
        pool.free_block_queue.get_all_free_blocks(),
        len(pool.blocks),
        pool._maybe_evict_cached_block,  # noqa: SLF001  (vLLM offers no other way)
        lambda request_id: manager.coordinator.get_blocks(request_id)[0],
    )
    if policy.evicts == "leaf":
        listen(pool, steering)
    return steering


def listen(pool: Any, steering: Steering) -> None:
    """Tell `steering` which hashes come into the cache and go."""
    cache, uncache, reset = (
        pool.cache_full_blocks,
        pool._remove_cached_block_hashes,  # noqa: SLF001  (the one way out of the cache)
        pool.reset_prefix_cache,
    )

    def cache_full_blocks(
        request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, **more: Any
    ) -> None:
        cache(request, blocks, num_cached_blocks, num_full_blocks, **more)
        steering.tell("cached", blocks, num_cached_blocks, num_full_blocks)

    def remove_cached_block_hashes(block: Any) -> Any:
        removed = uncache(block)
        if removed:
            steering.tell("uncached", removed)
        return removed

    def reset_prefix_cache() -> bool:
        done = bool(reset())
        if done:
            steering.tell("cleared")
        return done

    pool.cache_full_blocks = cache_full_blocks
    pool._remove_cached_block_hashes = remove_cached_block_hashes  # noqa: SLF001
    pool.reset_prefix_cache = reset_prefix_cache


def register() -> None:
    """Let vLLM take the observed schedulers for its own, once however often this is called."""
    check_version()
    choose = SchedulerConfig.get_scheduler_cls
    if getattr(choose, "by_kvscope", False):
        return
    observed = {Scheduler: KvscopeScheduler, AsyncScheduler: KvscopeAsyncScheduler}

    def get_scheduler_cls(self: Any) -> Any:
        chosen = choose(self)
        return observed.get(chosen, chosen)

    get_scheduler_cls.by_kvscope = True  # type: ignore[attr-defined]
    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


class ForcedOutputs(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM has no types
    """A request that names its output tokens gets exactly those: one is possible at each place.

        --logits-processors kvscope.vllm_plugin.adapter:ForcedOutputs

    and in a request `"vllm_xargs": {"kvscope_outputs": [17, 4, ...]}`. Made-up weights say nothing
    that a trace's next turn could carry on, so they are told what to say.
    """

    def is_argmax_invariant(self) -> bool:
        """It changes which token is likeliest."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[..., Any] | None:
        """What forces the output of one request; None where it asks for nothing."""
        wanted = (params.extra_args or {}).get(OUTPUTS)
        if not wanted:
            return None

        def force(outputs: list[int], logits: Any) -> Any:
            if len(outputs) < len(wanted):
                logits.fill_(float("-inf"))
                logits[int(wanted[len(outputs)])] = 0.0
            return logits

        return force
