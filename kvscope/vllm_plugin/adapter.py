"""vLLM's schedulers with kvscope's observers around them.

In vLLM only the queue of free blocks is replaced; the methods of the block pool that add and remove
the hashes of blocks are wrapped. `ForcedOutputs` is a logits processor for `kvscope validate`.

Source: vLLM 0.32.0, vllm/v1/core/sched/scheduler.py (Scheduler), vllm/v1/core/block_pool.py
(BlockPool), vllm/config/scheduler.py (SchedulerConfig.get_scheduler_cls),
vllm/v1/sample/logits_processor/__init__.py (AdapterLogitsProcessor).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import vllm
from packaging.version import InvalidVersion, Version
from vllm.config import SchedulerConfig
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from kvscope.core.errors import EngineError, KvscopeError
from kvscope.core.trace import OUTPUTS
from kvscope.deployment.engines import PLUGIN, version_text
from kvscope.learning.learners import FittedTable
from kvscope.learning.observer import NOTHING, UNFIT, Observer, log
from kvscope.policies.base import Policy
from kvscope.vllm_plugin.eviction_controller import EvictionController
from kvscope.vllm_plugin.recording import Recording
from kvscope.vllm_plugin.settings import PluginSettings, read_settings

_FULL_ATTENTION = (FullAttentionSpec, MLAAttentionSpec)
_REQUIRED = (
    (Scheduler, ("_free_request_blocks", "schedule", "update_from_output", "add_request")),
    (SchedulerConfig, ("get_scheduler_cls",)),
    (
        BlockPool,
        (
            "_maybe_evict_cached_block",
            "_remove_cached_block_hashes",
            "cache_full_blocks",
            "evict_blocks",
            "reset_prefix_cache",
        ),
    ),
)


def check_version() -> None:
    """Raise EngineError for a vLLM of an unknown version, or without the methods that are wrapped.

    Known are the versions in `kvscope.deployment.engines.PLUGIN`, such as 0.32, with their patches
    and local builds. Pre-releases (0.33.0rc1, 0.33.1.dev4) are unknown: they may have the code of
    the release before, or of neither release.
    """
    missing = [name for kind, names in _REQUIRED for name in names if not hasattr(kind, name)]
    if not _is_known(vllm.__version__) or missing:
        *earlier, last = (f"{version_text(version)}.x" for version in PLUGIN)
        known = f"{', '.join(earlier)} and {last}"
        lacking = f", without {', '.join(missing)}" if missing else ""
        raise EngineError(
            f"this is vLLM {vllm.__version__}{lacking}; kvscope's plugin knows {known}, released",
            where="kvscope.vllm_plugin",
            remedy="install one of these, or leave --scheduler-cls and KVSCOPE_* out",
        )


def _is_known(text: str) -> bool:
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    return not version.is_prerelease and (version.major, version.minor) in PLUGIN


class _Observed:
    """Mixin of both schedulers: the observers in `kvscope` are notified of every event.

    `deferred_frees` is the scheduler's own record of frees that it has put off, the newest last, as
    tuples whose second entry lists the blocks. It shows whether a request's blocks are freed later.
    """

    kvscope: tuple[Observer, ...] = ()
    deferred_frees: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version()
        super().__init__(*args, **kwargs)
        self.kvscope = observers(self)

    def add_request(self, request: Any) -> None:
        """Add a request as vLLM does, and notify the observers."""
        self._tell("arrived", request)
        super().add_request(request)  # type: ignore[misc]  # the scheduler's, here and below

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan a step as vLLM does, and notify the observers."""
        self._tell("stepping")
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for new in output.scheduled_new_reqs:
            self._tell("admitted", new.req_id, new.num_computed_tokens)
        return output

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        """Process a step's outputs as vLLM does, and notify the observers."""
        self._tell("updating")
        outputs = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        self._tell("updated")
        return outputs

    def shutdown(self) -> None:
        """Shut down as vLLM does, after notifying the observers."""
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
        for observer in self.kvscope:
            observer.tell(event, *of)


class KvscopeAsyncScheduler(_Observed, AsyncScheduler):  # type: ignore[misc]  # vLLM has no types
    """vLLM's AsyncScheduler with kvscope's policy for free blocks."""


class KvscopeScheduler(_Observed, Scheduler):  # type: ignore[misc]  # as above
    """vLLM's scheduler with kvscope's policy for free blocks.

    Where vLLM schedules asynchronously, as it does on GPUs, this makes a KvscopeAsyncScheduler.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make the scheduler that vLLM would choose, with observers."""
        config = kwargs.get("vllm_config") or args[0]
        if cls is KvscopeScheduler and config.scheduler_config.async_scheduling:
            return KvscopeAsyncScheduler(*args, **kwargs)
        return super().__new__(cls)


def observers(scheduler: Any) -> tuple[Observer, ...]:
    """Return the observers of a new scheduler, by its configuration and the environment.

    Never raises: errors are logged, and the engine starts without the failed observers.
    """
    try:
        settings = read_settings(scheduler.vllm_config.additional_config, os.environ)
    except KvscopeError as error:
        log.error("%s; %s", NOTHING, error)
        return ()
    except Exception:  # noqa: BLE001  (vLLM starts whatever this is)
        log.exception("%s, as its settings cannot be read. Please report this:", NOTHING)
        return ()
    if settings.policy is None and settings.record is None:
        log.warning("kvscope has nothing to do: set KVSCOPE_RECOMMENDATION, or leave it out")
    observing: list[Observer] = []
    for start, what in (
        (_controllers, UNFIT),
        (_recordings, "kvscope records nothing"),
    ):
        try:
            observing += start(scheduler, settings)
        except Exception:  # noqa: BLE001  (as above)
            log.exception("%s. Please report this:", what)
    return tuple(observing)


def _controllers(scheduler: Any, settings: PluginSettings) -> list[Observer]:
    """Return the controller that orders an engine's free blocks; empty to keep vLLM's order."""
    policy = settings.policy
    # Without a TTL, LRU is vLLM's own order.
    if policy is None or (policy.name == "lru" and not math.isfinite(policy.values["ttl_s"])):
        return []
    if why := unfit(scheduler):
        log.warning("%s: %s", UNFIT, why)
        return []
    controller = control_evictions(
        scheduler, policy, settings.fitted, trace_clock=settings.trace_clock
    )
    log.info("kvscope orders free blocks by %s", controller.in_words)
    return [controller]


def _recordings(scheduler: Any, settings: PluginSettings) -> list[Observer]:
    """Return the engine's recording; empty if it is not requested, or not possible (logged)."""
    if settings.record is None:
        return []
    if not scheduler.kv_cache_manager.enable_caching:
        log.warning("kvscope records nothing: prefix caching is off, so blocks have no hashes")
        return []
    config = scheduler.vllm_config.model_config
    model = config.served_model_name if config is not None else None
    try:
        recording = Recording(settings.record, scheduler.hash_block_size, model=model)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        log.error("kvscope records nothing: record %r: %s", str(settings.record), error)
        return []
    log.info("kvscope records requests to %s", settings.record)
    return [recording]


def unfit(scheduler: Any) -> str | None:
    """Return why a policy cannot order the blocks of this engine, None if it can."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    if not scheduler.kv_cache_manager.enable_caching:
        return "prefix caching is off"
    if len(groups) != 1 or type(groups[0].kv_cache_spec) not in _FULL_ATTENTION:
        return "the model does not have full attention alone, for which no order is proven"
    if block_size(scheduler) != scheduler.hash_block_size:
        return "blocks are not hashed one by one"
    return None


def block_size(scheduler: Any) -> int:
    """Return the number of tokens in a block."""
    return int(scheduler.kv_cache_manager.coordinator.single_type_managers[0].block_size)


def control_evictions(
    scheduler: Any, policy: Policy, fitted: FittedTable | None = None, *, trace_clock: bool = False
) -> EvictionController:
    """Replace vLLM's queue of free blocks by one that `policy` orders; return its controller.

    `fitted` is a table fitted offline, if any. With `trace_clock`, the policy's time is the one
    that requests state, see `EvictionController`.
    """
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    own, free = type(pool.free_block_queue), pool.free_block_queue.get_all_free_blocks()
    controller = EvictionController(
        policy, block_size(scheduler), trace_clock=trace_clock, fitted=fitted
    )
    try:
        pool.free_block_queue = controller.attach(
            pool.blocks,
            free,
            pool._maybe_evict_cached_block,  # noqa: SLF001  (vLLM offers no other way)
            lambda request_id: manager.coordinator.get_blocks(request_id)[0],
            own,
        )
        _report_losses(pool, controller)
        if policy.evicts == "leaf":
            _report_hashes(pool, controller)
    except Exception:
        controller.broken = True
        pool.free_block_queue = own(free)  # the blocks' links may be kvscope's by now
        raise
    return controller


def _report_losses(pool: Any, controller: EvictionController) -> None:
    """Wrap `pool`'s methods to notify `controller` of blocks that lose hashes without eviction.

    These are the blocks that vLLM removes from the cache by their ids ("emptied"), and all blocks
    when it resets the cache ("cleared"). Those that are free join the blocks that are taken first.
    """
    evict, reset = pool.evict_blocks, pool.reset_prefix_cache

    def evict_blocks(block_ids: set[int]) -> None:
        evict(block_ids)
        controller.tell("emptied", [pool.blocks[block_id] for block_id in block_ids])

    def reset_prefix_cache() -> bool:
        done = bool(reset())
        if done:
            controller.tell("cleared")
        return done

    pool.evict_blocks, pool.reset_prefix_cache = evict_blocks, reset_prefix_cache


def _report_hashes(pool: Any, controller: EvictionController) -> None:
    """Wrap `pool`'s methods to notify `controller` of each hash that enters or leaves the cache.

    Only a policy that evicts leaves needs these events, to know which blocks have cached children.
    """
    cache = pool.cache_full_blocks
    uncache = pool._remove_cached_block_hashes  # noqa: SLF001  (the one way out of the cache)

    def cache_full_blocks(
        request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int, **more: Any
    ) -> None:
        cache(request, blocks, num_cached_blocks, num_full_blocks, **more)
        controller.tell("cached", blocks, num_cached_blocks, num_full_blocks)

    def remove_cached_block_hashes(block: Any) -> Any:
        removed = uncache(block)
        if removed:
            controller.tell("uncached", removed)
        return removed

    pool.cache_full_blocks = cache_full_blocks
    pool._remove_cached_block_hashes = remove_cached_block_hashes  # noqa: SLF001


def register() -> None:
    """Make vLLM choose the observed schedulers instead of its own; idempotent."""
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
    """Forces the output of a request to the tokens that it names.

        --logits-processors kvscope.vllm_plugin.adapter:ForcedOutputs

    and in a request `"vllm_xargs": {"kvscope_outputs": [17, 4, ...]}`. Otherwise the output of a
    model with random weights differs from the output that the trace's next turn has in its prompt.
    """

    def is_argmax_invariant(self) -> bool:
        """Return False: the processor changes the most likely token."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[..., Any] | None:
        """Return the function that forces one request's output; None if the request names none."""
        forced = (params.extra_args or {}).get(OUTPUTS)
        if not forced:
            return None

        def force(outputs: list[int], logits: Any) -> Any:
            if len(outputs) < len(forced):
                logits.fill_(float("-inf"))
                logits[int(forced[len(outputs)])] = 0.0
            return logits

        return force
