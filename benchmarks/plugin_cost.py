"""Measure what the vLLM plugin costs, in vLLM's own scheduler.

Run it in an environment that has vLLM. No model: outputs are given. No prompt is repeated, so under
every policy each request takes the same number of blocks and only their order differs: the
difference in time is the plugin's. Times are CPU time of this thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import Table
from benchmarks.tiny_llama import tiny_llama
from kvscope.learning.lanes import Scores
from kvscope.policies.base import Policy

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
BLOCK, OUTPUTS, IN_FLIGHT, KINDS = 16, 16, 16, 20
LONGEST = 1 << 16
PUBLISHED_US = 79.0  # KVCache Cache in the Wild, ATC'25: a workload-aware eviction
MODEL = tiny_llama(LONGEST)
POLICIES: dict[str, dict[str, Any] | None] = {
    "vLLM's own queue": None,
    "lru in the plugin's": {"name": "lru", "params": {"ttl_s": 1e9}},
    "threshold-lru": {"name": "threshold-lru", "params": {"threshold_tokens": 256}},
    "tlru, any": {"name": "tlru", "leaves": "any", "params": {"xi_tokens": 512}},
    "tlru": {"name": "tlru", "params": {"xi_tokens": 512}},
    "tlru with guard": {"name": "tlru", "params": {"xi_tokens": 512, "guard": 1.0}},
    f"wa, {KINDS} categories": {"name": "wa"},
    f"wa with guard, {KINDS} categories": {"name": "wa", "params": {"guard": 1.0}},
    "gittins, no guard": {"name": "gittins", "params": {"xi_tokens": 512}},
    "gittins": {"name": "gittins", "params": {"xi_tokens": 512}},
}
GITTINS, UNGUARDED = "gittins", ", no guard"


@dataclass(frozen=True)
class SchedulerRun:
    """CPU seconds of all steps, and the number of evicted blocks with content."""

    seconds: float
    evictions: int


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=8000, help="blocks of the pool")
    parser.add_argument("--prompt-blocks", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each, interleaved")
    options = parser.parse_args()
    runs: dict[str, list[SchedulerRun]] = {name: [] for name in POLICIES}
    shadow_bytes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        for _ in range(options.rounds):
            for name, policy in POLICIES.items():
                plugin = {"policy": policy} if policy else None
                scheduler = scheduler_without_model(folder, BLOCK, options.blocks, plugin)
                if name.removesuffix(UNGUARDED) == GITTINS:
                    blocks = options.blocks if name == GITTINS else None
                    _of_all_classes(scheduler.kvscope[0], blocks)
                runs[name].append(_serve(scheduler, options.requests, options.prompt_blocks))
                if name == GITTINS:
                    guard = scheduler.kvscope[0].learner.online_guard
                    shadow_bytes[name] = _bytes(guard.shadows, set())
    print(_table(runs, options.requests).markdown())
    for name, size in shadow_bytes.items():
        print(f"The shadow caches of {name} take {size:,} bytes.")


def _table(runs: dict[str, list[SchedulerRun]], requests: int) -> Table:
    """Return each policy's medians and its cost above vLLM's own queue."""
    own, *_ = runs.values()
    rows = []
    for name, policy_runs in runs.items():
        seconds = statistics.median(run.seconds for run in policy_runs)
        evictions = policy_runs[0].evictions or own[0].evictions
        added = [run.seconds - base.seconds for run, base in zip(policy_runs, own, strict=True)]
        counted = policy_runs[-1].evictions
        each_us = statistics.median(added) / counted * 1e6 if counted else 0
        cells = [
            f"{seconds / requests * 1e6:,.0f}",
            f"{evictions / requests:.1f}",
            f"{each_us:.2f}",
        ]
        rows.append([name, *cells])
    return Table(
        "The plugin in vLLM's scheduler",
        f"{requests:,} requests, {IN_FLIGHT} in flight, no model. The published workload-aware"
        f" policy takes {PUBLISHED_US:g} µs per eviction.",
        ("policy", "µs per request", "evictions per request", "added µs per eviction"),
        rows,
    )


def scheduler_without_model(
    folder: str, block_size: int, blocks: int, plugin: dict[str, Any] | None = None, **more: Any
) -> Any:
    """Return vLLM's scheduler, or kvscope's with the settings `plugin`; `more` configures vLLM.

    `folder` has the model's configuration.
    """
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from kvscope.vllm_plugin import KvscopeScheduler

    config = VllmConfig(
        model_config=ModelConfig(
            model=folder, skip_tokenizer_init=True, max_model_len=LONGEST, dtype="bfloat16"
        ),
        scheduler_config=SchedulerConfig(
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            max_num_seqs=IN_FLIGHT,
            max_num_batched_tokens=8192,
        ),
        cache_config=CacheConfig(block_size=block_size, enable_prefix_caching=True),
        additional_config={"kvscope": plugin} if plugin else {},
        **more,
    )
    config.cache_config.num_gpu_blocks = blocks + 1
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return (KvscopeScheduler if plugin else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=False,
    )


def _of_all_classes(steering: Any, guarded_blocks: int | None) -> None:
    """Assign requests to every class in turn, for as many queues as possible: two per class.

    The index falls with age, from another height in each class. All other work per request is
    done, except the guard's if `guarded_blocks` is None.
    """
    from kvscope.learning import guard
    from kvscope.learning.evidence import decided
    from kvscope.learning.returns.file import FittedReturns
    from kvscope.learning.returns.formulas import OWN, PARTS, ROWS, began_s
    from kvscope.learning.returns.online import ReturnsLearner
    from kvscope.policies.gittins import AGES

    falling = 1.0 / (30.0 + began_s(np.arange(AGES)))
    index = np.outer(1.0 + np.arange(ROWS) * 7 % ROWS / ROWS, falling)
    fitted = FittedReturns(index, sys.maxsize, refits=True)
    learner = steering.learner = ReturnsLearner(steering.policy, BLOCK, fitted)
    if guarded_blocks is not None:
        learner.guard(guarded_blocks)

        def own(known: Any, now: int) -> int:
            now = decided(known, now)
            return OWN if len(known.gain) > OWN else now  # its own order, whatever is known

        vars(guard)["decided"] = own
        learner.online_guard.now = learner.candidate = OWN  # type: ignore[union-attr]
        learner.table = learner._in_force()  # noqa: SLF001
    find = learner._class  # noqa: SLF001

    def in_turn(match: Any, prompt_tokens: int) -> int:
        find(match, prompt_tokens)
        return int(match.number % (ROWS // PARTS))

    learner._class = in_turn  # type: ignore[method-assign]  # noqa: SLF001
    steering.use(learner.table)


def _bytes(value: Any, counted: set[int]) -> int:
    """Return the bytes of an object and all that it holds, without policies, tables and code."""
    if id(value) in counted or callable(value) or isinstance(value, Policy | Scores):
        return 0
    counted.add(id(value))
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set):
        parts = list(value)
    elif names := getattr(value, "__struct_fields__", getattr(value, "__slots__", ())):
        parts = [getattr(value, name) for name in names]
    elif hasattr(value, "__dict__"):
        parts = [value.__dict__]
    return sys.getsizeof(value) + sum(_bytes(part, counted) for part in parts)


def _serve(scheduler: Any, requests: int, prompt_blocks: int) -> SchedulerRun:
    """Serve new prompts, IN_FLIGHT at a time; return the time that the scheduler takes."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    init_none_hash(sha256)
    rng = np.random.default_rng(1)
    waiting = []
    for number in range(requests):
        prompt = rng.integers(0, 1 << 30, prompt_blocks * BLOCK + 1).tolist()
        hints = {"kvscope_type": f"kind{number % KINDS}", "kvscope_turn": 1}
        params = SamplingParams(max_tokens=OUTPUTS, ignore_eos=True, extra_args=hints)
        hasher = get_request_block_hasher(BLOCK, sha256)
        waiting.append(Request(str(number), prompt, params, None, block_hasher=hasher))
    waiting.reverse()
    seconds = 0.0
    gc.collect()
    gc.disable()
    while waiting or scheduler.requests:
        start = time.thread_time()
        while waiting and len(scheduler.requests) < IN_FLIGHT:
            scheduler.add_request(waiting.pop())
        planned = scheduler.schedule()
        seconds += time.thread_time() - start
        names = list(planned.num_scheduled_tokens)
        sampled = [[] if scheduler.requests[name].is_prefill_chunk else [7] for name in names]
        places = {name: place for place, name in enumerate(names)}
        result = ModelRunnerOutput(names, places, sampled_token_ids=sampled)
        start = time.thread_time()
        scheduler.update_from_output(planned, result)
        seconds += time.thread_time() - start
    gc.enable()
    observers = getattr(scheduler, "kvscope", ())
    return SchedulerRun(seconds, observers[0].free.evictions if observers else 0)


if __name__ == "__main__":
    main()
