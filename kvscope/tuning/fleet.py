"""Choose a fleet for an SLO: router, number of replicas, eviction policy and capacity.

The first fifth of the requests fills caches, the next two fifths choose, the last two judge that
one choice. Choosing sees no later request; every replay starts at the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Event
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kvscope.fleet.sweep import Fleet, FleetRun
from kvscope.policies.base import Policy
from kvscope.replay.derived_traces import begun
from kvscope.replay.parameter_estimates import bind, estimate_parameters
from kvscope.replay.workload import Workload
from kvscope.routers.base import Router
from kvscope.tuning.comparison import Harm
from kvscope.tuning.fewest import MOST_REPLICAS, fewest, most_compared, size_of
from kvscope.tuning.fleet_size import FleetSize
from kvscope.tuning.fleet_window import LRU, FleetPlan, FleetWindow, FleetWindows, PolicyTrial
from kvscope.tuning.tuner import End
from kvscope.vllm_sim import EngineSettings

_SEARCHED = 2  # routers whose parameters are searched
_CAPACITIES = 5  # to choose from where none is named

FleetVerdict = Literal["confirmed", "resized", "misses-slo"]
WindowName = Literal["choosing", "judged"]


class RouterSize(Struct, frozen=True):
    """A router with LRU: the fewest replicas that meet the SLO on the choosing window.

    `run` is that fleet; the most that were tried where `replicas` is None. `compared` is what ranks
    it among routers with as many replicas: `run`, or two replicas where one is enough, since behind
    any router one is the same. `runs` are all that were tried, by their number of replicas.
    """

    router: Router
    replicas: int | None
    run: FleetRun
    compared: FleetRun
    runs: tuple[FleetRun, ...]

    @property
    def rank(self) -> tuple[float, float, float]:
        """The sort key of fleets, best first: replicas, attainment, the SLO's percentile."""
        return _rank(self.run)[0], *_rank(self.compared)[1:]


class CapacityChoice(Struct, frozen=True):
    """The best fleet on the choosing window with one capacity of a replica.

    `routers`, best first, are with LRU, `policies` behind the first of them. `chosen` is None where
    no fleet meets the SLO. `cost` is that of its replicas, inf for none.
    """

    capacity_blocks: int
    routers: tuple[RouterSize, ...]
    policies: tuple[PolicyTrial, ...]
    chosen: FleetRun | None
    cost: float

    @property
    def rank(self) -> tuple[float, ...]:
        """The sort key of capacities, best first: cost, replicas, size; attainment for none."""
        if self.chosen is None:
            return np.inf, *self.routers[0].rank
        return self.cost, self.chosen.fleet.replicas, self.capacity_blocks


class EndFleet(Struct, frozen=True):
    """One end of what is not known, behind the chosen router.

    `agrees`: whether the chosen policy would be chosen there as well, and harms nothing on the
    judged window. `replicas` are the fewest that meet the SLO there with the recommended policy, on
    both windows and on the engines of the recommendation; None for more than were tried.
    """

    end: End
    agrees: bool
    replicas: int | None = None


class FleetTuning(Struct, frozen=True):
    """A fleet, chosen on one window and judged on the next.

    `capacities` are the choices with each capacity that was compared, the best first. `recommended`
    is what the judged window leaves of it, on that window: the choice, or LRU with as many replicas
    as meet the SLO on both; None where none of the numbers tried do. `judged` is the choice itself
    there, with its `judged_harms` against LRU. `one_fewer` misses the SLO with one replica fewer,
    on the window `fewer_on`; None for one replica, and where the policy meets it with fewer but
    breaks a limit against LRU. `size` is the number of replicas that the judged window takes by
    itself, with its interval. `ends` are those of what is not known exactly.
    `on_engines` is what was to be recommended, on a deployment's simulated vLLMs. Where it misses
    the SLO there, `recommended` is the fewest replicas with LRU that meet it there.
    """

    windows: FleetWindows
    capacities: tuple[CapacityChoice, ...]
    judged: FleetRun | None = None
    judged_harms: tuple[Harm, ...] = ()
    recommended: FleetRun | None = None
    one_fewer: FleetRun | None = None
    fewer_on: WindowName | None = None
    size: FleetSize | None = None
    on_engines: FleetRun | None = None
    ends: tuple[EndFleet, ...] = ()

    @property
    def capacity_blocks(self) -> int:
        """The capacity of a replica that was chosen."""
        return self.capacities[0].capacity_blocks

    @property
    def routers(self) -> tuple[RouterSize, ...]:
        """The routers with LRU at that capacity, best first."""
        return self.capacities[0].routers

    @property
    def policies(self) -> tuple[PolicyTrial, ...]:
        """The policies there behind the best router."""
        return self.capacities[0].policies

    @property
    def chosen(self) -> FleetRun | None:
        """The choice on its window, None where no fleet meets the SLO there."""
        return self.capacities[0].chosen

    @property
    def verdict(self) -> FleetVerdict:
        """Whether the choice holds on the judged window, more replicas do, or nothing does."""
        if self.recommended is None:
            return "misses-slo"
        return "confirmed" if self.recommended is self.judged else "resized"


class _Pair(NamedTuple):
    """Both windows, of replicas of one capacity."""

    choosing: FleetWindow
    judging: FleetWindow

    def fewest(self, router: Router, policy: Policy, most: int) -> int | None:
        """Return the fewest replicas that meet the SLO on both windows; None for above `most`."""
        enough = [each.fewest(router, policy, most) for each in self]
        known = [count for count in enough if count is not None]
        if len(known) < len(enough):
            return None
        counts = range(max(known), most + 1)
        both = (n for n in counts if all(each.at(router, policy, n).meets for each in self))
        return next(both, None)

    def would_choose(self, router: Router, policy: Policy, most: int) -> bool:
        """Return whether the policy would be chosen over LRU, and harms nothing when judged."""
        of_lru = self.choosing.fewest(router, LRU, most)
        if of_lru is None:
            return False
        trial = self.choosing.policy(router, policy, of_lru)
        if trial.replicas is None or not trial.better(of_lru):
            return False
        return not self.judging.compared(self.judging.at(router, policy, trial.replicas)).harms


def tune_fleet(plan: FleetPlan, stop: Event) -> FleetTuning:
    """Return the fleet for the plan's SLO. Raises Stopped, and InputError for too few requests.

    Capacities are compared with each router's own parameters; those of the best two routers are
    searched at the best capacity.
    """
    windows = plan.windows
    most = min(MOST_REPLICAS, windows.choosing_requests)
    early, whole = plan.workloads(plan.prompts)
    estimates = estimate_parameters(early.traffic, early.profile, plan.slo.ttft_s)
    policies = [bind(variant, estimates) for variant in plan.variants]
    sizes = plan.capacities or early.curve.capacities(_CAPACITIES)
    choosing = {blocks: FleetWindow(early, blocks, plan, stop) for blocks in sizes}
    first, *others = sorted(
        (
            _choice(window, plan, _routers(window, plan.routers, most), policies)
            for window in choosing.values()
        ),
        key=lambda each: each.rank,
    )
    window = choosing[first.capacity_blocks]
    best = _choice(window, plan, _searched(window, first.routers, most), policies)
    tuning = FleetTuning(windows, (best, *others))
    if best.chosen is None:
        return tuning
    pair = _Pair(window, FleetWindow(whole, best.capacity_blocks, plan, stop))
    at_ends = [_at(end, plan, best.capacity_blocks, (early, whole), stop) for end in plan.ends]
    tuning = _judged(pair, tuning, plan, at_ends, most)
    if plan.engine is not None:
        tuning = _held_on_engines(pair.judging, tuning, plan.engine, most)
    return _sized_at_ends(tuning, plan.engine, at_ends, most)


def _routers(window: FleetWindow, routers: Sequence[Router], most: int) -> tuple[RouterSize, ...]:
    """Return the routers with the fewest replicas with LRU, best first."""

    def sized(router: Router) -> RouterSize:
        fewest = window.fewest(router, LRU, most)
        run = window.at(router, LRU, fewest or most)
        compared = window.at(router, LRU, 2) if fewest == 1 and most > 1 else run
        return RouterSize(router, fewest, run, compared, window.tried(router, LRU))

    return tuple(sorted(map(sized, routers), key=lambda each: each.rank))


def _searched(
    window: FleetWindow, sizes: Sequence[RouterSize], most: int
) -> tuple[RouterSize, ...]:
    """Return the routers, the best two of them with their parameters' values too, best first."""
    values = [router for each in sizes[:_SEARCHED] for router in searched_values(each.router)]
    return tuple(sorted([*sizes, *_routers(window, values, most)], key=lambda each: each.rank))


def searched_values(router: Router) -> Iterator[Router]:
    """Yield the router with each value that a parameter is searched with, one at a time."""
    for parameter in router.parameters:
        for value in parameter.search:
            if value != router.values[parameter.name]:
                yield type(router)({**router.values, parameter.name: value})


def _choice(
    window: FleetWindow,
    plan: FleetPlan,
    routers: tuple[RouterSize, ...],
    policies: Sequence[Policy],
) -> CapacityChoice:
    """Return the best fleet of a window's capacity: the best router, with LRU or a policy."""
    best, capacity = routers[0], window.sweep.capacity_blocks
    if best.replicas is None:
        return CapacityChoice(capacity, routers, (), None, np.inf)
    trials = tuple(window.policy(best.router, policy, best.replicas) for policy in policies)
    taken = [trial.run for trial in trials if trial.better(best.replicas)]
    chosen = min([best.run, *taken], key=_rank)
    cost = plan.replica_cost(capacity) * chosen.fleet.replicas
    return CapacityChoice(capacity, routers, trials, chosen, cost)


def _at(
    end: End,
    plan: FleetPlan,
    capacity_blocks: int,
    workloads: tuple[Workload, Workload],
    stop: Event,
) -> _Pair:
    """Return both windows at one end of what is not known exactly."""
    if end.sessions is not None:
        workloads = plan.workloads(begun(plan.prompts, end.sessions))
    blocks = end.capacity_blocks or capacity_blocks
    scaled = (workload.with_prefill(end.prefill_times) for workload in workloads)
    return _Pair(*(FleetWindow(workload, blocks, plan, stop) for workload in scaled))


def _judged(
    pair: _Pair, tuning: FleetTuning, plan: FleetPlan, at_ends: Sequence[_Pair], most: int
) -> FleetTuning:
    """Return the tuning with what the judged window, and both windows at ends, say of its choice.

    LRU takes its place where it misses the SLO, harms, or would not be chosen at every end.
    """
    chosen = tuning.chosen
    assert chosen is not None  # noqa: S101  (nothing is judged without a choice)
    choosing, judging = pair
    router, policy, replicas = chosen.fleet.router, chosen.fleet.policy, chosen.fleet.replicas
    judged = judging.at(router, policy, replicas)
    broken: tuple[Harm, ...] = () if policy is LRU else judging.compared(judged).harms
    ends = tuple(
        EndFleet(end, policy is LRU or there.would_choose(router, policy, most))
        for end, there in zip(plan.ends, at_ends, strict=True)
    )
    recommended: FleetRun | None = judged
    if not judged.meets or broken or not all(each.agrees for each in ends):
        policy, enough = LRU, pair.fewest(router, LRU, most)
        recommended = None if enough is None else judging.at(router, LRU, enough)
    tuning = replace(tuning, judged=judged, judged_harms=broken, recommended=recommended, ends=ends)
    if recommended is None:
        return tuning
    replicas = recommended.fleet.replicas
    compared = range(1, min(most_compared(replicas), most) + 1)
    runs = judging.runs([Fleet(router, policy, count) for count in compared])
    one_fewer: FleetRun | None = None
    fewer_on: WindowName | None = None
    if replicas > 1:
        before = choosing.at(router, policy, replicas - 1)
        if not before.meets:
            one_fewer, fewer_on = before, "choosing"
        elif not runs[replicas - 2].meets:
            one_fewer, fewer_on = runs[replicas - 2], "judged"
    return replace(
        tuning,
        one_fewer=one_fewer,
        fewer_on=fewer_on,
        size=size_of(judging.sweep, runs),
    )


def _held_on_engines(
    window: FleetWindow, tuning: FleetTuning, engine: EngineSettings, most: int
) -> FleetTuning:
    """Return the tuning with what the recommended fleet gives on simulated vLLMs.

    Where it misses the SLO there, more replicas with LRU are recommended: the fewest that meet it.
    """
    recommended = tuning.recommended
    if recommended is None:
        return tuning
    run = window.on_engines(recommended.fleet, engine)
    if run.meets:
        return replace(tuning, on_engines=run)
    more = _more_on_engines(window, replace(recommended.fleet, policy=LRU), engine, most)
    return replace(tuning, on_engines=run, recommended=more, one_fewer=None, fewer_on=None)


def _more_on_engines(
    window: FleetWindow, fleet: Fleet, engine: EngineSettings, most: int
) -> FleetRun | None:
    """Return the run on simulated vLLMs of the fewest replicas, more than the fleet's, that meet.

    None where `most` miss the SLO.
    """
    runs: dict[int, FleetRun] = {}

    def meets(replicas: int) -> bool:
        runs[replicas] = window.on_engines(replace(fleet, replicas=replicas), engine)
        return runs[replicas].meets

    enough = fewest(lambda counts: map(meets, counts), range(fleet.replicas + 1, most + 1))
    return None if enough is None else runs[enough]


def _sized_at_ends(
    tuning: FleetTuning, engine: EngineSettings | None, at_ends: Sequence[_Pair], most: int
) -> FleetTuning:
    """Return the tuning with the fewest replicas at each end."""
    if tuning.recommended is None:
        return tuning
    router, policy = tuning.recommended.fleet.router, tuning.recommended.fleet.policy

    def fewest(pair: _Pair) -> int | None:
        replicas = pair.fewest(router, policy, most)
        if replicas is None or engine is None:
            return replicas
        fleet = Fleet(router, policy, replicas)
        if pair.judging.on_engines(fleet, engine).meets:
            return replicas
        more = _more_on_engines(pair.judging, fleet, engine, most)
        return None if more is None else more.fleet.replicas

    sized = zip(tuning.ends, at_ends, strict=True)
    return replace(tuning, ends=tuple(replace(each, replicas=fewest(pair)) for each, pair in sized))


def _rank(run: FleetRun) -> tuple[float, float, float]:
    """Return the sort key of fleets, best first; those that miss the SLO come last."""
    outcome = run.outcome
    replicas = run.fleet.replicas if run.meets else np.inf
    return replicas, -outcome.latencies.attainment, outcome.target_ttft_s
