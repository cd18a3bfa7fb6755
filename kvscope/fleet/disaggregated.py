"""Prefill and decode on separate replicas (disaggregation), next to fleets whose replicas do both.

A prefill replica computes a prompt and its first token, then its KV moves over the replica's link
to a decode replica, which generates the output. Prefill replicas never hold the KV of outputs, so
the next turn computes them again: the cost of disaggregation in hits.

Both stages are simulated vLLMs, replayed one after the other, since decoding does not affect
prefill. vLLM's connector is approximated: the KV of the whole prompt moves, and takes blocks of the
decode replica on arrival; meanwhile the prefill replica does not hold its blocks; a decode replica
that preempts a request gets its KV back at no cost.

Source: vLLM 0.32.0, vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py: a prefill
of one token, whose KV the decode replica reads to compute the prompt's last token itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import ClassVar, NamedTuple, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core import memory
from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.trace import Prompts
from kvscope.fleet.engines import replay_engines
from kvscope.fleet.machines import machines_bytes
from kvscope.fleet.outcome import FleetOutcome
from kvscope.fleet.replay import FleetReplay
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.policies.lru import Lru
from kvscope.replay.derived_traces import retimed, select
from kvscope.replay.workload import Workload
from kvscope.routers.balancers import LeastRequests
from kvscope.vllm_sim import EngineSettings, StepCost
from kvscope.vllm_sim.settings import NO_LIMIT

_KEPT = 16  # numbers of prefill replicas of which the replay is kept


class Link(NamedTuple):
    """A replica's link: its bandwidth in bytes a second, and the bytes of a block of KV."""

    bytes_per_s: float
    block_bytes: int


class PrefillSplit(NamedTuple):
    """The number of `prefill` replicas of a fleet, and the `link` over which each sends KV."""

    prefill: int
    link: Link


class SplitFleet(Struct, frozen=True):
    """A fleet of `prefill` and `decode` replicas; hits are those of the prefill replicas.

    `link_busy` is the share of the time in which the busiest prefill replica sends KV.
    """

    DOCUMENT: ClassVar[str] = (
        "prefill decode replicas link_busy meets=outcome.meets hit_rate=outcome.taken"
        " ttft_at_percentile_ms=outcome.target_ttft_s tpot_at_percentile_ms=outcome.target_tpot_s"
        " latencies=outcome.latencies"
    )
    prefill: int
    decode: int
    outcome: FleetOutcome
    link_busy: float

    @property
    def replicas(self) -> int:
        """Total number of replicas."""
        return self.prefill + self.decode

    @property
    def rank(self) -> tuple[bool, float]:
        """The sort key, best first: splits that meet the SLO, then by TTFT."""
        return not self.outcome.meets, self.outcome.target_ttft_s


class DisaggregatedFleet(Struct, frozen=True):
    """Fleets with the answer's router and policy for prefill replicas, and decode replicas after.

    The target is the SLO's TTFT and `tpot_s`: the SLO's TPOT, else the answer's (None if no output
    has two tokens). `fewest` is the best split of the fewest replicas that meet it, None if all up
    to `tried` replicas miss it. `alike` are all splits of the answer's number of replicas.
    """

    DOCUMENT: ClassVar[str] = "bytes_per_s tpot_target_ms=tpot_s tried fewest alike"
    bytes_per_s: float
    tpot_s: float | None
    tried: int
    fewest: SplitFleet | None
    alike: tuple[SplitFleet, ...]

    @classmethod
    def of(
        cls,
        sweep: FleetSweep,
        answer: FleetRun,
        link: Link,
        most: int,
        require_going: Callable[[], None] = lambda: None,
    ) -> Self:
        """Replay all splits of the answer's replicas; search the fewest replicas that meet the SLO.

        At most `most` replicas are tried. `require_going` precedes each replay; may raise Stopped.
        """
        slo = sweep.slo
        tpot_s = answer.outcome.target_tpot_s if slo.tpot_s is None else slo.tpot_s
        stages = Stages(sweep, answer.fleet, link, tpot_s, answer.seed, require_going)
        count = answer.fleet.replicas
        alike = tuple(stages.split(each, count - each) for each in range(1, count))
        return cls(link.bytes_per_s, tpot_s, most, stages.fewest(most), alike)


class Prefilled(NamedTuple):
    """The replay of prefill replicas, when each prompt's KV arrives (s), and `link_busy`."""

    done: FleetReplay
    sent_s: Float64s
    link_busy: float


class Stages:
    """Replays of a fleet split into prefill and decode replicas, with one seed of the router.

    `require_going` is called before each replay, and raises Stopped to end them.
    """

    def __init__(
        self,
        sweep: FleetSweep,
        fleet: Fleet,
        link: Link,
        tpot_s: float | None = None,
        seed: int = 0,
        require_going: Callable[[], None] = lambda: None,
    ) -> None:
        assert sweep.engine is not None  # noqa: S101  (checked with the options)
        self._sweep, self._fleet, self._link, self._seed = sweep, fleet, link, seed
        self._slo = replace(sweep.slo, tpot_s=tpot_s)
        known = sweep.workload
        prompts = with_first_tokens(sweep.prompts)
        self._first = FleetSweep(
            Workload(prompts, known.setting, known.windows),
            sweep.capacity_blocks,
            sweep.slo,
            engine=sweep.engine,
        )
        self._decoder = decoding(sweep.engine)
        self._cost = decode_cost(StepCost.of(known.profile))
        self._outside_s = known.profile.request_s
        self._require_going = require_going
        self.prefilled = lru_cache(_KEPT)(self._prefilled)
        self.split = cache(self._split)

    def fewest(self, most: int) -> SplitFleet | None:
        """Return the best split of the fewest replicas that meet the SLO; None: `most` miss it."""
        able = [  # which miss it with the most decode replicas miss it with fewer
            each
            for each in range(1, most)
            if self.in_time(each) and self.split(each, most - each).outcome.meets
        ]
        for total in range(2, most + 1) if able else ():
            splits = [self.split(each, total - each) for each in able if each < total]
            best = min(splits, key=lambda split: split.rank, default=None)
            if best is not None and best.outcome.meets:
                return best
        return None

    def in_time(self, prefill: int) -> bool:
        """Return whether KV reaches decode replicas within the SLO's TTFT, at its percentile."""
        prefilled = self.prefilled(prefill)
        done = replace(prefilled.done, token_s=prefilled.sent_s, end_s=prefilled.sent_s)
        return self._first.outcome(done).target_ttft_s <= self._slo.ttft_s

    def _prefilled(self, prefill: int) -> Prefilled:
        self._require_going()
        done = self._first.replay(replace(self._fleet, replicas=prefill), self._seed)
        prompts = self._sweep.prompts
        blocks = -(-prompts.input_tokens // prompts.block_size)
        each_s = np.float64(self._link.block_bytes / self._link.bytes_per_s) * blocks
        sent_s = arrived_s(done.token_s, each_s, done.replica)
        served = np.isfinite(sent_s)
        busy_s = np.bincount(done.replica[served], each_s[served], minlength=prefill)
        span_s = float(np.nanmax(sent_s, initial=0.0) - prompts.arrival_s[0])
        return Prefilled(done, sent_s, float(busy_s.max()) / span_s if span_s > 0 else 0.0)

    def _split(self, prefill: int, decode: int) -> SplitFleet:
        outcome = self._sweep.outcome(self.replayed(prefill, decode), self._slo)
        return SplitFleet(prefill, decode, outcome, self.prefilled(prefill).link_busy)

    def replayed(self, prefill: int, decode: int) -> FleetReplay:
        """Return the replay of a split; `replica` is the prefill replica of each request."""
        first, sent_s, _ = self.prefilled(prefill)
        sweep, outside_s = self._sweep, self._outside_s
        served = np.flatnonzero(np.isfinite(sent_s))
        prompts = select(sweep.prompts, served)  # turns may get there in another order
        prompts = replace(prompts, parent=np.full_like(prompts.parent, -1))
        prompts, order = retimed(prompts, sent_s[served])
        self._require_going()
        needed = machines_bytes(sweep.workload.traffic, self._decoder, decode)
        memory.require(needed, f"{decode:,} decode replicas", "take fewer replicas, or more memory")
        then = replay_engines(prompts, Lru(), LeastRequests(), decode, self._decoder, self._cost)
        begin_s, token_s, end_s = np.full((3, len(sent_s)), np.nan)
        place = served[order]
        waited_s = then.begin_s - then.arrival_s
        begin_s[place] = first.begin_s[place] + waited_s
        token_s[place], end_s[place] = then.token_s + outside_s, then.end_s + outside_s
        return replace(first, begin_s=begin_s, token_s=token_s, end_s=end_s)


def arrived_s(ready_s: Float64s, each_s: Float64s, replica: Int32s) -> Float64s:
    """Return the time (s) at which each request's KV has arrived (R); a replica sends one by one.

    `ready_s` is the end of each prefill, nan for rejected requests; `each_s` the transfer time.
    """
    moved_s = np.full_like(ready_s, np.nan)
    order = np.argsort(ready_s, kind="stable")
    order = order[np.isfinite(ready_s[order])]
    for number in np.unique(replica[order]):
        own = order[replica[order] == number]
        sums = np.cumsum(each_s[own])
        moved_s[own] = sums + np.maximum.accumulate(ready_s[own] - (sums - each_s[own]))
    return moved_s


def with_first_tokens(prompts: Prompts) -> Prompts:
    """Return the requests as prefill replicas see them: one output token, which has no KV."""
    return replace(
        prompts,
        output_tokens=np.minimum(prompts.output_tokens, 1),
        carried_leaf=prompts.full_leaf.astype(np.int32),
        carried_blocks=prompts.full_blocks,
        cached_blocks=prompts.input_tokens // prompts.block_size,
    )


def decoding(engine: EngineSettings) -> EngineSettings:
    """Return the settings of a decode replica: no token limit, so each prompt takes one step."""
    return replace(engine, max_num_batched_tokens=NO_LIMIT // 2)


def decode_cost(cost: StepCost) -> StepCost:
    """Return the cost of a decode replica's steps: prompts cost nothing."""
    base_s = cost.decode_base_s or cost.base_s
    return replace(
        cost, base_s=base_s, prefill_token_s=0.0, prefill_pair_s=0.0, floor_s=0.0, launch_s=base_s
    )
