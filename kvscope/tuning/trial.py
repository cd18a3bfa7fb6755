"""A trial: one policy at one capacity, replayed over a window of the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvscope.core import memory
from kvscope.core.errors import InputError, Stopped
from kvscope.core.percentiles import Percentiles, at_rank, percentiles
from kvscope.core.runs import Outcome
from kvscope.policies.base import Policy
from kvscope.replay.footprint import replay_bytes
from kvscope.replay.metrics import ServedRequests, summarize
from kvscope.replay.sweep import cores
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.tuning.replicas import serve_replicas, split_over, together
from kvscope.tuning.target import Target, View

PolicyAt = tuple[Policy, int]
Advance = Callable[[int], None]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy at one capacity, and the results of a window's counted requests.

    `times_ms` are percentiles of TTFT and `target_s` the one that the target names, nearest rank;
    a request without a token counts as infinitely late in both. They, `violation_share` (0-1) and
    `tel_s` (summed over requests that got a token) are in the target's view. `tpot_s` is the time
    per output token at that percentile, None but for an engine. `served_per_s` is the number of
    requests that an engine could prefill per second, a proxy for throughput. `rejected` requests
    are longer than the pool; they violate every SLO.
    """

    policy: Policy
    capacity_blocks: int
    outcome: Outcome
    times_ms: Percentiles
    target_s: float
    violation_share: float
    tel_s: float
    tpot_s: float | None
    served_per_s: float
    rejected: int

    @property
    def attainment(self) -> float:
        """Return the share (0-1) of requests with a TTFT within the SLO."""
        return round(1 - self.violation_share, 12)  # 1 - 0.07 is below 0.93

    def meets(self, target: Target) -> bool:
        """Return whether the SLO is met, as the target counts; that of output tokens too."""
        slow = target.tpot_slo_s is not None and not (
            self.tpot_s is not None and self.tpot_s <= target.tpot_slo_s
        )
        return self.target_s <= target.slo_s and not slow

    def rank(self, target: Target) -> tuple[float, float, float]:
        """Return the sort key of trials, best first: the target's measure, TEL, the hit rate."""
        first = self.target_s if target.measure == "percentile" else self.violation_share
        return first, self.tel_s, -self.outcome.token_hit_rate


def category_times_ms(outcome: Outcome, view: View) -> Percentiles:
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
    late = times[times > target.slo_s]
    answered = np.isfinite(served.ttft_s if served.queued_ttft_s is None else served.queued_ttft_s)
    return Trial(
        policy=policy,
        capacity_blocks=capacity_blocks,
        outcome=summarize(served, target.slo_s),
        times_ms=percentiles(times * 1e3),
        target_s=at_rank(times, target.percentile),
        violation_share=len(late) / len(times),
        tel_s=float((late[np.isfinite(late)] - target.slo_s).sum()),
        tpot_s=_tpot_s(served, target.percentile),
        served_per_s=len(times) / float(served.ttft_s[served.first :].sum()),
        rejected=int(np.count_nonzero(~answered[served.first :])),
    )


def _tpot_s(served: ServedRequests, percentile: float) -> float | None:
    """Return the time per output token at the percentile, over requests with two tokens or more."""
    if served.tpot_s is None:
        return None
    counted = served.tpot_s[served.first :]
    counted = counted[np.isfinite(counted)]
    return at_rank(counted, percentile) if len(counted) else None


class Evaluator:
    """Replays policies at capacities over one workload, on all cores that memory suffices for.

    The workload's conversations are served by `replicas`, each with the capacity to itself.
    `trials` keeps every trial in the order of the first request for it. Once `stop` is set, replays
    raise Stopped. To be closed.
    """

    def __init__(
        self, workload: Workload, target: Target, *, replicas: int = 1, stop: Event | None = None
    ) -> None:
        self.workload = workload
        self.target = target
        self.trials: dict[object, Trial] = {}
        self._replicas = split_over(workload, replicas)
        self._stop = stop or Event()
        threads = memory.at_once(replay_bytes(workload.traffic), cores())
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tune")

    def over(self, *, replicas: int, workload: Workload | None = None) -> Evaluator:
        """Return an evaluator of other replicas or another workload; it closes with this one."""
        other = copy(self)  # the target, the pool and the stop are shared
        other.workload = workload or self.workload
        other.trials = {}
        other._replicas = split_over(other.workload, replicas)  # noqa: SLF001 - one class
        return other

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
        self.prepare([policy for policy, _ in new.values()])
        trials = self.each(lambda point: self._trial(*point), list(new.values()), advance)
        self.trials |= zip(new, trials, strict=True)
        return [self.trials[key] for key in keys]

    def prepare(self, policies: Sequence[Policy]) -> None:
        """Compute and compile what replays of `policies` share, before threads need it."""
        for replica in self._replicas:
            replica.workload.prepare(policies)

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
        parts = serve_replicas(self._replicas, ReplayRequest(policy, capacity_blocks))
        return together(self.workload, self._replicas, parts)

    def _trial(self, policy: Policy, capacity_blocks: int) -> Trial:
        return trial_of(policy, capacity_blocks, self.served(policy, capacity_blocks), self.target)
