"""A trial: one policy at one capacity, replayed over a window of the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import InputError, Stopped
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome
from kvscope.policies.base import Policy
from kvscope.replay.metrics import ServedRequests, summarize
from kvscope.replay.sweep import cores, serve_replay
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.tuning.target import Target, View

PolicyAt = tuple[Policy, int]
Advance = Callable[[int], None]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy at one capacity, and the results of a window's counted requests.

    `target_s` is the nearest-rank TTFT at the target's percentile; it, `violation_share` (0-1) and
    `tel_s` (summed over requests) are in the target's view. `served_per_s` is the number of
    requests that an engine could prefill per second, a proxy for throughput.
    """

    policy: Policy
    capacity_blocks: int
    outcome: Outcome
    target_s: float
    violation_share: float
    tel_s: float
    served_per_s: float

    def meets(self, target: Target) -> bool:
        """Return whether the SLO is met, as the target counts."""
        return self.target_s <= target.slo_s

    def rank(self, target: Target) -> tuple[float, float, float]:
        """Return the sort key of trials, best first: the target's measure, TEL, the hit rate."""
        first = self.target_s if target.measure == "percentile" else self.violation_share
        return first, self.tel_s, -self.outcome.token_hit_rate


def times_ms(outcome: Outcome, view: View) -> Percentiles:
    """Return the percentiles of TTFT in a view, over requests that got a token."""
    queued = outcome.queued_ttft_ms if view == "queued" else None
    return queued or outcome.ttft_ms


def ttft_s(served: ServedRequests, target: Target) -> NDArray[np.float64]:
    """Return the TTFT of the counted requests in the target's view; inf for one without a token.

    Raises InputError where the view needs times that the trace lacks.
    """
    times = served.ttft_s if target.view == "unloaded" else served.queued_ttft_s
    if times is None:
        raise InputError(
            "the trace has no arrival times, so queues cannot be simulated",
            where="--view queued",
            remedy="take --view unloaded",
        )
    counted = times[served.first :]
    return np.where(np.isnan(counted), np.inf, counted)


def trial_of(policy: Policy, capacity_blocks: int, served: ServedRequests, target: Target) -> Trial:
    """Return the trial of a replay."""
    times = ttft_s(served, target)
    rank = int(np.ceil(target.percentile * len(times) - 1e-9)) - 1
    late = times[times > target.slo_s]
    return Trial(
        policy=policy,
        capacity_blocks=capacity_blocks,
        outcome=summarize(served, target.slo_s),
        target_s=float(np.partition(times, rank)[rank]),
        violation_share=len(late) / len(times),
        tel_s=float((late - target.slo_s).sum()),
        served_per_s=len(times) / float(served.ttft_s[served.first :].sum()),
    )


class Evaluator:
    """Replays policies at capacities over one workload, on all cores.

    `trials` keeps every trial in the order of the first request for it. Once `stop` is set, replays
    raise Stopped. To be closed.
    """

    def __init__(self, workload: Workload, target: Target, *, stop: Event | None = None) -> None:
        self.workload = workload
        self.target = target
        self.trials: dict[object, Trial] = {}
        self._stop = stop or Event()
        self._pool = ThreadPoolExecutor(cores(), thread_name_prefix="tune")

    def close(self) -> None:
        """Drop the replays that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def evaluate(self, points: Sequence[PolicyAt], advance: Advance | None = None) -> list[Trial]:
        """Return a trial for each policy and capacity, in their order; `advance` counts replays."""
        keys = [
            (policy.name, policy.evicts, tuple(policy.values.items()), blocks)
            for policy, blocks in points
        ]
        new = {
            key: point for key, point in zip(keys, points, strict=True) if key not in self.trials
        }
        self.workload.prepare([policy for policy, _ in new.values()])
        trials = self.each(lambda point: self._trial(*point), list(new.values()), advance)
        self.trials |= zip(new, trials, strict=True)
        return [self.trials[key] for key in keys]

    def each(
        self, work: Callable[[T], R], items: Sequence[T], advance: Advance | None = None
    ) -> list[R]:
        """Return `work` of each item, computed on all cores; `work` must not call this method."""
        futures = [self._pool.submit(work, item) for item in items]
        results = []
        for future in futures:
            results.append(future.result())
            if advance is not None:
                advance(1)
        return results

    def trial(self, policy: Policy, capacity_blocks: int) -> Trial:
        """Return the trial of one policy and capacity."""
        return self.evaluate([(policy, capacity_blocks)])[0]

    def served(self, policy: Policy, capacity_blocks: int) -> ServedRequests:
        """Replay and return the result of each request, which trials do not keep."""
        if self._stop.is_set():
            raise Stopped("stopped before the search was finished")
        return serve_replay(self.workload, ReplayRequest(policy, capacity_blocks)).served

    def _trial(self, policy: Policy, capacity_blocks: int) -> Trial:
        return trial_of(policy, capacity_blocks, self.served(policy, capacity_blocks), self.target)
