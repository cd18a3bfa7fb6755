"""Many fleets over one workload, on all cores: routers, policies and numbers of replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from threading import Event
from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.core import memory
from kvscope.core.arrays import Bools, Float64s, Int32s
from kvscope.core.executor import Executor, threads_for
from kvscope.core.trace import Prompts
from kvscope.fleet.engines import replay_engines
from kvscope.fleet.kernel import Asked
from kvscope.fleet.machines import machines_bytes
from kvscope.fleet.options import Scaling
from kvscope.fleet.outcome import FleetOutcome, Slo, fleet_outcome, infinite_hit_blocks
from kvscope.fleet.replay import FleetReplay, asked, pooled_fleet, replay_fleet
from kvscope.fleet.scaling import schedule
from kvscope.fleet.split import assignment, fleet_curve
from kvscope.policies.base import TOKENS_PER_S, Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.replay.curve import HitCurve
from kvscope.replay.derived_traces import select
from kvscope.replay.footprint import fleet_bytes
from kvscope.replay.replay import Tables
from kvscope.replay.sweep import serve_replay
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.routers.base import Router
from kvscope.vllm_sim import EngineSettings, StepCost, fits

SEEDS = 3


class Fleet(Struct, frozen=True):
    """Replicas with a policy behind a router; `replicas` is the maximum if `scaling` is set."""

    router: Router
    policy: Policy
    replicas: int
    scaling: Scaling | None = None


class SeedSpread(Struct, frozen=True):
    """Minimum and maximum over a router's seeds: the SLO's percentile of TTFT, and hit rate."""

    seeds: int
    ttft_ms: tuple[float, float]
    hit_rate: tuple[float, float]


class FleetRun(Struct, frozen=True):
    """A fleet and its outcome with each seed; one seed if nothing is random.

    In its JSON, `hit_rate` = infinite - not_held - not_chosen. `ttft_at_percentile_ms` is TTFT at
    the SLO's percentile, null where the queue grows or for a rejected request. `sent_tokens` has a
    row a replica: the uncached tokens sent to it in intervals of `bin_s` seconds; it is empty
    except for the chosen number of replicas.
    """

    DOCUMENT: ClassVar[str] = (
        "router=fleet.router.name router_params=fleet.router.values"
        " reference=fleet.router.reference policy=fleet.policy.name"
        " policy_params=fleet.policy.values replicas=fleet.replicas meets *outcome"
        " spread=seed_spread bin_s=outcome.bin_s sent_tokens=outcome.sent"
    )
    fleet: Fleet
    outcomes: tuple[FleetOutcome, ...]

    @property
    def seed(self) -> int:
        """The seed with the median TTFT (at the SLO's percentile); of two middle ones the worse."""
        ttft_s = [each.target_ttft_s for each in self.outcomes]
        return sorted(range(len(ttft_s)), key=ttft_s.__getitem__)[len(ttft_s) // 2]

    @property
    def outcome(self) -> FleetOutcome:
        """The outcome of the seed with the median TTFT."""
        return self.outcomes[self.seed]

    @property
    def meets(self) -> bool:
        """Whether the SLO is met with every seed."""
        return all(each.meets for each in self.outcomes)

    def spread(self, figure: Callable[[FleetOutcome], float]) -> tuple[float, float] | None:
        """Return the minimum and maximum of a figure over seeds, None for one seed."""
        values = [figure(each) for each in self.outcomes]
        return (min(values), max(values)) if len(values) > 1 else None

    @property
    def seed_spread(self) -> SeedSpread | None:
        """The spread of TTFT and hit rate over seeds, None for one seed."""
        ttft_ms = self.spread(lambda each: each.target_ttft_s * 1e3)
        hit_rate = self.spread(lambda each: each.taken)
        if ttft_ms is None or hit_rate is None:
            return None
        return SeedSpread(len(self.outcomes), ttft_ms, hit_rate)

    @property
    def without_sent(self) -> FleetRun:
        """The run without `sent_tokens`, which are large."""
        outcomes = (replace(each, sent_tokens=each.sent_tokens[:0]) for each in self.outcomes)
        return replace(self, outcomes=tuple(outcomes))


class PooledCache(Struct, frozen=True):
    """One cache as large as all replicas' together: hit rates of LRU and Belady in trace order.

    `outcome` is that of the answer's policy with one queue for all replicas; None in closed loop
    and on engines.
    """

    DOCUMENT: ClassVar[str] = "lru belady latencies=outcome.latencies"
    lru: float
    belady: float
    outcome: FleetOutcome | None


class FleetSweep:
    """Replays of fleets over one workload; each replica has `capacity_blocks`.

    `think_s` and `after` close the loop (see `kvscope.fleet.replay.arrivals`). Randomized routers
    are replayed with `seeds` seeds. With an `engine`, replicas are simulated vLLMs whose pool is
    the capacity; else each is one queue of prefills.
    """

    def __init__(
        self,
        workload: Workload,
        capacity_blocks: int,
        slo: Slo,
        *,
        think_s: Float64s | None = None,
        after: Int32s | None = None,
        seeds: int = SEEDS,
        engine: EngineSettings | None = None,
    ) -> None:
        self.workload = workload
        self.capacity_blocks = capacity_blocks
        self.slo = slo
        self.think_s, self.after = think_s, after
        self.seeds = seeds
        self.engine = engine
        self._asked: Asked = asked(workload.prompts)

    @property
    def prompts(self) -> Prompts:
        """The requests."""
        return self.workload.prompts

    def replays(self, fleet: Fleet) -> int:
        """Return how many replays a fleet takes: one a seed."""
        return self.seeds if fleet.router.draws else 1

    def replay(
        self, fleet: Fleet, seed: int = 0, engine: EngineSettings | None = None
    ) -> FleetReplay:
        """Return a fleet's replay on `engine`, else the sweep's engine, else queues of prefills."""
        engine = engine or self.engine
        memory.require(
            self._bytes(fleet, engine),
            f"{fleet.replicas:,} replicas",
            "take fewer replicas, or more memory",
        )
        if engine is None and self._on_trees(fleet):
            return self._replay_trees(fleet, seed)
        if engine is None:
            done = self._replay_blocks(fleet, seed)
        else:
            done = self._on_engines(fleet, engine, seed)
        alone = fleet.router.sees == "order" and self.think_s is None and not fleet.router.copies
        alone = alone and fleet.scaling is None
        if fleet.replicas > 1 and fleet.policy.guarded and alone and done.pool is None:
            return self._with_own_guards(fleet, engine, done)
        return done

    def _with_own_guards(
        self, fleet: Fleet, engine: EngineSettings | None, done: FleetReplay
    ) -> FleetReplay:
        """Return `done` replayed with a guard of each replica's own, on the requests sent to it.

        Above a shared pool there is one guard for all. `best_blocks` come from `done`, the replay
        with a common guard, but are at least the hits.
        """
        hits, evictions = done.hit_blocks.copy(), done.evictions.copy()
        begin_s, token_s, end_s = done.begin_s.copy(), done.token_s.copy(), done.end_s.copy()
        read = None if done.read_blocks is None else done.read_blocks.copy()
        before = None if done.before is None else done.before.copy()
        for number in np.unique(done.replica[done.replica >= 0]):
            own = np.flatnonzero(done.replica == number)
            known = Workload(
                select(self.prompts, own), self.workload.setting, self.workload.windows
            )
            alone = FleetSweep(known, self.capacity_blocks, self.slo)
            part = alone.replay(replace(fleet, replicas=1), engine=engine)
            hits[own], evictions[number] = part.hit_blocks, part.evictions[0]
            begin_s[own], token_s[own], end_s[own] = part.begin_s, part.token_s, part.end_s
            if read is not None and part.read_blocks is not None:
                read[own] = part.read_blocks
            if before is not None and part.before is not None:
                before[own] = part.before
        return replace(
            done,
            hit_blocks=hits,
            best_blocks=np.maximum(done.best_blocks, hits),
            begin_s=begin_s,
            token_s=token_s,
            end_s=end_s,
            evictions=evictions,
            read_blocks=read,
            before=before,
        )

    def _replay_blocks(self, fleet: Fleet, seed: int) -> FleetReplay:
        """Return the replay of a fleet whose replicas evict block by block, with a queue each."""
        return replay_fleet(
            self.workload.traffic,
            self._asked,
            self.workload.profile,
            fleet.policy,
            fleet.router,
            fleet.replicas,
            self.capacity_blocks,
            think_s=self.think_s,
            after=self.after,
            tables=self._tables(fleet, self.capacity_blocks),
            seed=seed,
        )

    def _tables(self, fleet: Fleet, capacity_blocks: int, served: Bools | None = None) -> Tables:
        """Return a policy's tables for all requests: for its guard, N replicas prefill together.

        They are learned from the requests in `served` (R; default: all), which an engine does not
        reject.
        """
        policy, values = fleet.policy, dict(fleet.policy.values)
        if values.get(TOKENS_PER_S.name):
            values[TOKENS_PER_S.name] *= fleet.replicas
        together = type(policy)(values, policy.evicts)
        return self.workload.tables(policy, served).chosen(together, capacity_blocks)

    def _on_trees(self, fleet: Fleet) -> bool:
        """Return whether replicas are SGLang prefix trees, each replayed on its own requests."""
        own = self.think_s is None and not fleet.router.copies
        return own and self.workload.on_tree(fleet.policy)

    def _replay_trees(self, fleet: Fleet, seed: int) -> FleetReplay:
        """Return the replay of a fleet whose replicas are SGLang prefix trees, with a queue each.

        A router that sees loads or caches sees those of `_replay_blocks`, not of the trees.
        """
        workload, count, requests = self.workload, fleet.replicas, len(self._asked.leaf)
        hits, best = np.zeros((2, requests), dtype=np.int32)
        if fleet.router.sees == "order":
            replica = assignment(workload.traffic, self._asked, fleet.router, count, seed=seed)
        else:
            seen = self._replay_blocks(fleet, seed)
            replica, best = seen.replica, seen.best_blocks
        begin_s, token_s, end_s = np.full((3, requests), np.nan)
        evictions = np.zeros(count, dtype=np.int64)
        for number in np.unique(replica):
            own = np.flatnonzero(replica == number)
            known = Workload(select(self.prompts, own), workload.setting, workload.windows).traffic
            done = workload.serve_tree(known, fleet.policy, self.capacity_blocks)
            hits[own], begin_s[own], token_s[own] = done.hit_blocks, done.begin_s, done.token_s
            end_s[own], evictions[number] = done.end_s, done.evictions
        best = np.maximum(best, hits)
        order, arrival_s = np.arange(requests, dtype=np.int32), workload.traffic.arrival_s
        times = (arrival_s, begin_s, token_s, end_s)
        return FleetReplay(count, replica, hits, best, order, *times, evictions)

    def _on_engines(self, fleet: Fleet, engine: EngineSettings, seed: int) -> FleetReplay:
        workload, policy, scaling = self.workload, fleet.policy, fleet.scaling
        done = replay_engines(
            workload.prompts,
            policy,
            fleet.router,
            fleet.replicas,
            engine,
            StepCost.of(workload.profile),
            think_s=self.think_s,
            after=self.after,
            tables=self._tables(fleet, engine.usable_blocks, fits(workload.traffic, engine)),
            seed=seed,
            scaled=schedule(workload.prompts.arrival_s, scaling) if scaling else None,
        )
        outside_s = workload.profile.request_s  # HTTP and tokenizer: no part of the steps
        return replace(done, token_s=done.token_s + outside_s, end_s=done.end_s + outside_s)

    def run(self, fleet: Fleet, engine: EngineSettings | None = None) -> FleetRun:
        """Return a fleet's outcome with each seed, on `engine`, by default the sweep's."""
        outcomes = (
            self.outcome(self.replay(fleet, seed, engine)) for seed in range(self.replays(fleet))
        )
        return FleetRun(fleet, tuple(outcomes))

    def outcome(self, done: FleetReplay, slo: Slo | None = None) -> FleetOutcome:
        """Return the outcome of a replay against `slo`, by default the sweep's."""
        known, workload = self._infinite if self.think_s is None else None, self.workload
        return fleet_outcome(
            self.prompts, workload.traffic, workload.setting, slo or self.slo, done, known
        )

    def prepare(self, fleets: Sequence[Fleet]) -> Iterator[Fleet]:
        """Compile the kernels that fleets need; after each, yield the first fleet that needs it.

        So the caller can show progress or stop in between.
        """
        seen = set()
        _ = self._infinite
        for fleet in fleets:
            kernel = type(fleet.router), type(fleet.policy), fleet.policy.evicts
            if kernel not in seen:
                seen.add(kernel)
                self._compile(fleet)
                yield fleet

    def sweep(
        self,
        fleets: Sequence[Fleet],
        stop: Event | None = None,
        executor: Executor | None = None,
    ) -> Iterator[FleetRun]:
        """Yield the run of each fleet, in their order; once `stop` is set no replay begins.

        By default the executor has one thread a core, or as many as fit into memory.
        """
        tasks = [(fleet, seed) for fleet in fleets for seed in range(self.replays(fleet))]
        each_bytes = max((self._bytes(fleet, self.engine) for fleet in fleets), default=1)
        executor = executor or threads_for(each_bytes)
        outcomes: dict[int, FleetOutcome] = {}
        shared = executor.shared(self, self.workload.learned)
        first, left = 0, deque(fleets)
        replayed = executor.results(
            FleetSweep.replayed, tasks, shared, stop=stop, each_bytes=each_bytes
        )
        for number, outcome in replayed:
            outcomes[number] = outcome
            while left and outcomes.keys() >= {*range(first, first + self.replays(left[0]))}:
                numbers = range(first, first + self.replays(left[0]))
                yield FleetRun(left.popleft(), tuple(map(outcomes.pop, numbers)))
                first = numbers.stop

    def replayed(self, fleet_seed: tuple[Fleet, int]) -> FleetOutcome:
        """Return the outcome of a fleet with a seed."""
        return self.outcome(self.replay(*fleet_seed))

    def _bytes(self, fleet: Fleet, engine: EngineSettings | None) -> int:
        if engine is not None:
            late = fleet.router.values.get("event_lag_s", 0.0) > 0
            return machines_bytes(self.workload.traffic, engine, fleet.replicas * (1 + late))
        return fleet_bytes(
            self.workload.traffic,
            fleet.replicas,
            router_counts_blocks=fleet.router.counts_blocks,
        )

    def pooled(self, policy: Policy, replicas: int) -> PooledCache:
        """Return the outcome of one cache of all replicas' size and one queue for all replicas."""
        lru, belady = (self._pooled(each, replicas) for each in (Lru(), Belady()))
        open_queue = self.think_s is None and self.engine is None
        outcome = self._pooled(policy, replicas) if open_queue else None
        return PooledCache(lru.taken, belady.taken, outcome)

    def _pooled(self, policy: Policy, replicas: int) -> FleetOutcome:
        request = ReplayRequest(policy, replicas * self.capacity_blocks)
        hits = serve_replay(self.workload, request).served.hit_blocks
        return self.outcome(
            pooled_fleet(self.workload.traffic, hits, self.workload.profile, replicas)
        )

    def lru_curve(self, router: Router, replicas: int) -> HitCurve:
        """Return LRU's hits at every capacity of a replica, exactly, in open loop.

        Raises UsageError for a router that sees more than the order of requests.
        """
        replica = assignment(self.workload.traffic, self._asked, router, replicas)
        return fleet_curve(self.prompts, self.workload.setting.definition, replica)

    @cached_property
    def _infinite(self) -> Int32s:
        """The hit blocks of each request in an infinite cache, in the trace's order."""
        traffic = self.workload.traffic
        return infinite_hit_blocks(traffic, np.arange(len(traffic.leaf), dtype=np.int32))

    def _compile(self, fleet: Fleet) -> None:
        """Compile a fleet's kernel by replaying no request, or one request on engines."""
        if self.engine is not None:
            first = np.zeros(1, dtype=np.int64)
            tables = self.workload.tables(fleet.policy, fits(self.workload.traffic, self.engine))
            cost = StepCost.of(self.workload.profile)
            replay_engines(
                select(self.prompts, first),
                fleet.policy,
                fleet.router,
                1,
                self.engine,
                cost,
                tables=tables.chosen(fleet.policy, self.engine.usable_blocks).of_requests(first),
            )
            return
        if self._on_trees(fleet) and fleet.router.sees == "order":
            return
        replay_fleet(
            self.workload.traffic.of_requests(slice(0)),
            Asked(**{name: column[:0] for name, column in self._asked._asdict().items()}),
            self.workload.profile,
            fleet.policy,
            fleet.router,
            fleet.replicas,
            self.capacity_blocks,
            tables=self._tables(fleet, self.capacity_blocks),
        )
