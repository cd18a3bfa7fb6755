"""CachedRuns over one workload, on all cores, each returned as soon as it is finished."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import fields, replace
from threading import Event
from typing import Any

from kvscope.core.arrays import Int32s
from kvscope.core.runs import Misses, Outcome, Run
from kvscope.replay.capacity_models import serve_replay
from kvscope.replay.metrics import by_category, over_time, summarize
from kvscope.replay.misses import reasons
from kvscope.replay.workload import ReplayRequest, Workload

WINDOWS = 24  # that results over time are cut into, at most


def make_run(workload: Workload, request: ReplayRequest) -> Run:
    """Replay and measure one policy at one capacity.

    Raises UsageError where the capacity model cannot run the policy.
    """
    policy, setting = request.policy, workload.setting
    workload.prepare([policy])
    done = serve_replay(workload, request)
    served = done.served
    outcome = summarize(served, setting.slo_s)
    outcome, error = _estimated(workload, outcome, served.hit_blocks, request.capacity_blocks)
    return Run(
        policy=policy.name,
        leaves=policy.evicts,
        params={name: float(value) for name, value in policy.values.items()},
        hindsight=policy.hindsight,
        capacity_blocks=request.capacity_blocks,
        setting=setting,
        outcome=outcome,
        evictions=done.evictions,
        misses=_misses(workload, served.hit_blocks, served.first),
        parts=(
            *by_category(served, setting.slo_s),
            *over_time(served, workload.windows, setting.slo_s),
        ),
        hit_rate_error=error,
        tiers=done.tiers,
        preemptions=done.preemptions,
        turned_away=done.turned_away,
    )


def sweep(
    workload: Workload,
    requests: Sequence[ReplayRequest],
    *,
    workers: int | None = None,
    stop: Event | None = None,
) -> Iterator[Run]:
    """Yield the run of every request, in the order in which they finish.

    `workers` threads replay at once (default: one a core; kernels run without the interpreter
    lock). Once `stop` is set no further run starts, and the sweep ends with those under way.
    """
    stop = stop or Event()

    def run(request: ReplayRequest) -> Run | None:
        return None if stop.is_set() else make_run(workload, request)

    workload.prepare([request.policy for request in requests])
    pool = ThreadPoolExecutor(workers or cores(), thread_name_prefix="replay")
    futures = [pool.submit(run, request) for request in requests]
    position = {future: number for number, future in enumerate(futures)}
    waiting = set(futures)
    try:
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(finished, key=position.__getitem__):
                if (result := future.result()) is not None:
                    yield result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an early exit need not wait


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _estimated(
    workload: Workload, outcome: Outcome, hit_blocks: Int32s, capacity: int
) -> tuple[Outcome, float | None]:
    """Return the outcome with the hit rate of the whole trace, and that rate's error."""
    if workload.anchor is None:
        return outcome, None
    estimate = workload.anchor.estimate(hit_blocks, capacity)
    changed: dict[str, Any] = {f"{workload.setting.definition.weight}_hit_rate": estimate.rate}
    return replace(outcome, **changed), estimate.error


def _misses(workload: Workload, hit_blocks: Int32s, first: int) -> Misses | None:
    if workload.novelty is None:
        return None
    why = reasons(workload.prompts, workload.novelty, hit_blocks, 0, first)
    return Misses(**{field.name: getattr(why, field.name) for field in fields(Misses)})
