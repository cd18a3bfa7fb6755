"""A trial: one policy at one capacity, replayed over a window of the trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from threading import Event
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.core.errors import InputError, Stopped
from kvscope.core.executor import Executor, threads_for
from kvscope.core.percentiles import Percentiles, at_rank, percentiles
from kvscope.core.runs import Outcome
from kvscope.fleet.disaggregated import PrefillSplit
from kvscope.fleet.options import Scaling
from kvscope.fleet.sweep import Fleet
from kvscope.policies.base import Policy
from kvscope.replay.curve import first_counted
from kvscope.replay.footprint import replay_bytes
from kvscope.replay.metrics import ServedRequests, summarize
from kvscope.replay.sweep import blocks_each, offload_settings
from kvscope.replay.tier_spec import Tier
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.routers.balancers import Session
from kvscope.routers.base import Router
from kvscope.tuning.replicas import SESSION, serve_fleet, serve_replicas, split_over, together
from kvscope.tuning.target import Target, View
from kvscope.vllm_sim import EngineSettings

PolicyAt = tuple[Policy, int]
Advance = Callable[[int], None]
Progress = Callable[..., AbstractContextManager[Advance]]
"""Called with a step's name and, if known, its number of replays.

Returns a context manager whose value is called with the number of replays just finished.
"""
R = TypeVar("R")


class EngineTier(Struct, frozen=True):
    """Tiers below every replica's pool, for blocks of `block_bytes`; `offload` is the method."""

    offload: str
    block_bytes: int
    tiers: tuple[Tier, ...]

    @property
    def pool(self) -> bool:
        """Whether all replicas share one of the tiers."""
        return any(tier.pool for tier in self.tiers)

    def under(self, engine: EngineSettings, block_size: int) -> EngineSettings:
        """Return an engine with the tiers below its pool; trace blocks have `block_size` tokens."""
        each = blocks_each(engine.groups, block_size)
        tier = offload_settings(self.offload, self.tiers, each, self.block_bytes)
        return replace(engine, offload=tier)

    def request(self, policy: Policy, capacity_blocks: int) -> ReplayRequest:
        """Return the replay of a policy in a pool of `capacity_blocks` with these tiers below."""
        return ReplayRequest.over(policy, (Tier("hbm", capacity_blocks), *self.tiers))


class Trial(Struct, frozen=True):
    """One policy at one capacity, and its results over a window's counted requests.

    `times_ms` are percentiles of TTFT and `target_s` is the target's percentile (nearest rank); a
    request without a token counts as infinitely late in both. These, `violation_share` (0-1),
    `tel_s` (sum of excess) and `mean_s` (both over requests with a token) are in the target's view.
    `tpot_s` is the time per output token at that percentile, None without an engine. `served_per_s`
    is the number of requests that an engine could prefill per second, a proxy for throughput;
    `utilization` (0-1) is the share of time spent on prefills at the trace's arrivals, 1 in the
    unloaded view. `rejected` requests are longer than the pool; they violate every SLO.
    `stored_blocks` were written to a tier by all requests, including the warm-up.
    """

    DOCUMENT: ClassVar[str] = (
        "*outcome policy=policy.name params=policy.values hindsight=policy.hindsight"
        " capacity_blocks times_ms target_ms attainment violation_share target_tel_ms=tel_s tpot_ms"
        " prefills_per_s=served_per_s utilization rejected"
    )
    policy: Policy
    capacity_blocks: int
    outcome: Outcome
    times_ms: Percentiles
    target_s: float
    violation_share: float
    tel_s: float
    mean_s: float
    tpot_s: float | None
    served_per_s: float
    utilization: float
    rejected: int
    stored_blocks: int

    @property
    def attainment(self) -> float:
        """Return the share (0-1) of requests with a TTFT within the SLO."""
        return round(1 - self.violation_share, 12)  # 1 - 0.07 is below 0.93

    def meets(self, target: Target) -> bool:
        """Return whether the target's percentile is within the SLO, and TPOT too if limited."""
        slow = target.tpot_slo_s is not None and not (
            self.tpot_s is not None and self.tpot_s <= target.tpot_slo_s
        )
        return self.target_s <= target.slo_s and not slow

    def rank(self, target: Target) -> tuple[float, float, float]:
        """Return the sort key of trials, best first: the target's measure, TEL, the hit rate."""
        first = self.target_s if target.measure == "percentile" else self.violation_share
        return first, self.tel_s, -self.outcome.token_hit_rate


def category_times_ms(outcome: Outcome, view: View) -> Percentiles:
    """Return the percentiles of TTFT (ms) over requests with a token.

    In the view "queued" of queued TTFTs, if the outcome has these; else of TTFTs on an idle engine.
    """
    queued = outcome.queued_ttft_ms if view == "queued" else None
    return queued or outcome.ttft_ms


def ttft_s(served: ServedRequests, target: Target) -> NDArray[np.float64]:
    """Return the TTFT of the counted requests in the target's view; inf for those without a token.

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


def trial_of(
    policy: Policy,
    capacity_blocks: int,
    served: ServedRequests,
    target: Target,
    arrivals_per_s: float = math.inf,
) -> Trial:
    """Return the trial of a replay; each replica receives `arrivals_per_s` requests per second."""
    times = ttft_s(served, target)
    late = times[times > target.slo_s]
    with_token = times[np.isfinite(times)]
    served_per_s = len(times) / float(served.ttft_s[served.first :].sum())
    answered = np.isfinite(served.ttft_s if served.queued_ttft_s is None else served.queued_ttft_s)
    return Trial(
        policy=policy,
        capacity_blocks=capacity_blocks,
        outcome=summarize(served, target.slo_s),
        times_ms=percentiles(times * 1e3),
        target_s=at_rank(times, target.percentile),
        violation_share=len(late) / len(times),
        tel_s=float((late[np.isfinite(late)] - target.slo_s).sum()),
        mean_s=float(with_token.mean()) if len(with_token) else math.inf,
        tpot_s=_tpot_s(served, target.percentile),
        served_per_s=served_per_s,
        utilization=min(arrivals_per_s / served_per_s, 1.0),
        rejected=int(np.count_nonzero(~answered[served.first :])),
        stored_blocks=served.stored_blocks,
    )


def _tpot_s(served: ServedRequests, percentile: float) -> float | None:
    """Return the time per output token at the percentile, over requests with two or more tokens."""
    if served.tpot_s is None:
        return None
    counted = served.tpot_s[served.first :]
    counted = counted[np.isfinite(counted)]
    return at_rank(counted, percentile) if len(counted) else None


class RoutedReplicas(Struct, frozen=True):
    """Replicas that are replayed together behind a router; `seed` is for a random router.

    With `scaling` they start and stop with the load; with a `split` some prefill, others decode.
    """

    router: Router
    replicas: int
    seed: int = 0
    scaling: Scaling | None = None
    split: PrefillSplit | None = None


class Evaluator:
    """Replays policies at capacities over one workload, on as many cores as memory allows.

    The workload is served by `replicas` behind `router`, each with the full capacity. `trials` has
    all trials of `evaluate` so far, in order. Once `stop` is set, replays raise Stopped. The
    default executor uses threads.
    """

    def __init__(
        self,
        workload: Workload,
        target: Target,
        *,
        replicas: int = 1,
        router: Router = SESSION,
        stop: Event | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.workload = workload
        self.target = target
        self.trials: dict[object, Trial] = {}
        self._tier: EngineTier | None = None
        self._routed = None if isinstance(router, Session) else RoutedReplicas(router, replicas)
        self._replicas = split_over(workload, 1 if self._routed else replicas)
        self._stop = stop or Event()
        self.executor = executor or threads_for(replay_bytes(workload.traffic))

    def over(
        self,
        *,
        replicas: int,
        workload: Workload | None = None,
        tier: EngineTier | None = None,
        router: Router | None = None,
        seed: int = 0,
        scaling: Scaling | None = None,
        split: PrefillSplit | None = None,
    ) -> Evaluator:
        """Return an evaluator of `replicas` replicas, with an optional tier below each.

        It has the same target, executor and `stop`, and no trials yet. `workload` and `router`
        default to this evaluator's; `seed`, `scaling` and `split` are fields of RoutedReplicas.
        """
        workload = workload or self.workload
        router = router or (self._routed.router if self._routed else SESSION)
        alone = isinstance(router, Session) and not (tier and tier.pool) and not scaling
        routed = None
        if not alone or split is not None:
            routed = RoutedReplicas(router, replicas, seed, scaling, split)
        parts = split_over(workload, 1 if routed else replicas)
        if tier is not None:
            parts = tuple(
                replace(part, workload=part.workload.with_tier(tier.offload, tier.block_bytes))
                for part in parts
            )
        return self._with(workload=workload, _tier=tier, _routed=routed, _replicas=parts)

    def aiming(self, target: Target) -> Evaluator:
        """Return a copy of the evaluator with another target."""
        return self._with(target=target)

    def _with(self, **changed: object) -> Evaluator:
        """Return a copy of the evaluator with changed attributes and no trials."""
        other = copy(self)
        other.__dict__ |= {"executor": self.executor, "_stop": self._stop, "trials": {}, **changed}
        return other

    def evaluate(self, points: Sequence[PolicyAt], advance: Advance | None = None) -> list[Trial]:
        """Return a trial for each policy and capacity, in order.

        Trials in `trials` are reused, new ones added; `advance` is called with 1 after a replay.
        """
        keys = [
            (policy.name, policy.evicts, tuple(policy.values.items()), blocks)
            for policy, blocks in points
        ]
        new = {
            key: point for key, point in zip(keys, points, strict=True) if key not in self.trials
        }
        self.prepare([policy for policy, _ in new.values()])
        trials = self.each(Evaluator._trial, list(new.values()), self.shared(), advance=advance)
        self.trials |= zip(new, trials, strict=True)
        return [self.trials[key] for key in keys]

    def prepare(self, policies: Sequence[Policy]) -> None:
        """Compute and compile what replays of `policies` share, before threads start."""
        for replica in self._replicas:
            replica.workload.prepare(policies)

    def require_going(self) -> None:
        """Raise Stopped once `stop` is set."""
        if self._stop.is_set():
            raise Stopped("stopped before the search was finished")

    def shared(self) -> Self:
        """Return a reference to this evaluator, for `each` to pass to tasks instead of copies."""
        tables = sum(replica.workload.learned for replica in self._replicas)
        return self.executor.shared(self, tables)

    def each(
        self,
        step: Callable[..., R],
        items: Sequence[Any],
        *before: Any,
        advance: Advance | None = None,
        on_result: Callable[[R], None] = lambda _: None,
    ) -> list[R]:
        """Return `step(*before, item)` for each item, computed by the executor.

        `on_result` is called with each result as soon as it is known.
        """
        results: dict[int, R] = {}
        each_bytes = replay_bytes(self.workload.traffic)
        done = self.executor.results(step, items, *before, stop=self._stop, each_bytes=each_bytes)
        for number, result in done:
            results[number] = result
            on_result(result)
            if advance is not None:
                advance(1)
        if len(results) < len(items):
            self.require_going()
        return [results[number] for number in range(len(items))]

    def trial(self, policy: Policy, capacity_blocks: int) -> Trial:
        """Return the trial of one policy and capacity: that in `trials`, else a new one, added."""
        return self.evaluate([(policy, capacity_blocks)])[0]

    def served(self, policy: Policy, capacity_blocks: int) -> ServedRequests:
        """Return the results of each request, which trials do not have, from a replay."""
        self.require_going()
        if self._routed is not None:
            routed = self._routed
            fleet = Fleet(routed.router, policy, routed.replicas, routed.scaling)
            above, size = None, self.workload.prompts.block_size
            if self._tier is not None:
                above = partial(self._tier.under, block_size=size)
            more = fleet, routed.seed, above, routed.split
            return serve_fleet(self.workload, capacity_blocks, self.target, *more)
        request = ReplayRequest(policy, capacity_blocks)
        if self._tier is not None:
            request = self._tier.request(policy, capacity_blocks)
        parts = serve_replicas(self._replicas, request)
        return together(self.workload, self._replicas, parts)

    @property
    def arrivals_per_s(self) -> float:
        """Counted requests per second at each replica; infinite in the unloaded view."""
        setting, prompts = self.workload.setting, self.workload.prompts
        arrival_s = prompts.arrival_s[first_counted(prompts, setting.definition) :]
        span_s = float(arrival_s[-1] - arrival_s[0])
        if self.target.view == "unloaded" or not span_s > 0:
            return math.inf
        replicas = self._routed.replicas if self._routed else len(self._replicas)
        return len(arrival_s) / span_s / replicas

    def trial_at(self, policy: Policy, capacity_blocks: int) -> Trial:
        """Return the trial of one policy and capacity, replayed anew and not added to `trials`."""
        served = self.served(policy, capacity_blocks)
        return trial_of(policy, capacity_blocks, served, self.target, self.arrivals_per_s)

    def _trial(self, point: PolicyAt) -> Trial:
        return self.trial_at(*point)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for other processes: without executor, trials and stop event."""
        return self.__dict__ | {"trials": {}, "_stop": None, "executor": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state | {"_stop": Event()}
