"""The choice of a fleet: the best of all on its window, blind to what follows, and judged there."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.characterize.windows import Windows
from kvscope.core.errors import InputError
from kvscope.core.hits import standard
from kvscope.core.trace import Prompts
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import Fleet, FleetRun, FleetSweep
from kvscope.policies.gittins import Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.wa import Wa
from kvscope.replay.policy_options import Variant
from kvscope.replay.workload import Workload
from kvscope.routers.base import Router
from kvscope.routers.consistent_hash import ConsistentHash
from kvscope.routers.least_requests import LeastRequests
from kvscope.routers.round_robin import RoundRobin
from kvscope.tuning.comparison import Harm
from kvscope.tuning.fleet import FleetTuning, searched_values, tune_fleet
from kvscope.tuning.fleet_window import FleetPlan, FleetWindow, PolicyTrial
from kvscope.tuning.split import first_requests
from kvscope.tuning.target import Limits
from kvscope.tuning.tuner import End
from kvscope.vllm_sim import EngineSettings
from tests.small_traces import built, prompts
from tests.tuning.examples import SETTING, chats, in_turn

ROUTERS: tuple[Router, ...] = (RoundRobin(), LeastRequests(), ConsistentHash())
CAPACITY = 300
SLO = Slo(0.45, 0.9)
MOST = 16


def a_trace(seconds: float = 60.0) -> Prompts:
    """Return 600 requests of conversations within so many seconds."""
    trace = prompts(built(chats(5, 600), 16))
    return replace(trace, arrival_s=trace.arrival_s / trace.arrival_s[-1] * seconds)


def plan(trace: Prompts, slo: Slo = SLO) -> FleetPlan:
    """Return what is tuned."""
    return FleetPlan(
        prompts=trace,
        lineage="given",
        setting=SETTING,
        capacities=(CAPACITY,),
        slo=slo,
        routers=ROUTERS,
        variants=(Variant(Wa), Variant(Gittins)),
        limits=Limits(),
        seeds=1,
        advance=lambda _: None,
    )


def tuned(trace: Prompts, slo: Slo = SLO) -> FleetTuning:
    """Return the tuning of a trace."""
    return tune_fleet(plan(trace, slo), Event())


def swept(trace: Prompts, warmup: float, slo: Slo = SLO) -> FleetSweep:
    """Return replays of fleets as `kvscope fleet` makes them, with this warm-up."""
    setting = replace(SETTING, definition=standard(warmup=warmup))
    return FleetSweep(Workload(trace, setting, Windows(1.0, 1)), CAPACITY, slo, seeds=1)


def rank(run: FleetRun) -> tuple[float, float, float]:
    """Return the order of fleets that meet the SLO."""
    outcome = run.outcome
    return run.fleet.replicas, -outcome.latencies.attainment, outcome.target_ttft_s


def same(tuning: FleetTuning, other: FleetTuning) -> None:
    """Check that both chose the same fleet, of the same routers and policies."""
    assert tuning.chosen is not None
    assert other.chosen is not None
    assert rank(tuning.chosen) == rank(other.chosen)
    assert tuning.chosen.fleet.router.values == other.chosen.fleet.router.values
    assert tuning.chosen.fleet.policy.values == other.chosen.fleet.policy.values
    ranked = [
        [(each.router.name, each.replicas) for each in one.routers] for one in (tuning, other)
    ]
    assert ranked[0] == ranked[1]
    assert [rank(each.run) for each in tuning.policies] == [
        rank(each.run) for each in other.policies
    ]


def test_the_choice_is_the_best_of_all() -> None:
    """No router with any number of replicas is better with LRU on the choosing window."""
    trace = a_trace()
    tuning = tuned(trace)
    sweep = swept(first_requests(trace, 360, "given"), 120.5 / 360)
    defaults = [each for each in tuning.routers if each.router in ROUTERS]
    assert len(defaults) == len(ROUTERS)
    searched = [router for each in defaults[:2] for router in searched_values(each.router)]
    routers = [*ROUTERS, *searched]
    assert len(tuning.routers) == len(routers)
    fleets = [Fleet(router, Lru(), count) for router in routers for count in range(1, MOST + 1)]
    runs = list(sweep.sweep(fleets))
    best = min((run for run in runs if run.meets), key=rank)
    assert 1 < best.fleet.replicas < MOST
    assert rank(tuning.routers[0].run) == rank(best)
    assert tuning.routers[0].router.name == best.fleet.router.name
    for each in defaults:
        meeting = [
            run.fleet.replicas for run in runs if run.meets and run.fleet.router is each.router
        ]
        assert each.replicas == min(meeting)
    assert tuning.chosen is not None
    assert tuning.chosen.fleet.replicas <= best.fleet.replicas
    for trial in tuning.policies:
        assert trial.replicas is None or trial.replicas <= best.fleet.replicas
        if trial.harms:
            assert tuning.chosen is not trial.run


def test_where_one_replica_is_enough_two_rank_the_routers() -> None:
    """Behind one replica all routers are alike; what a fleet grows to, on engines, is not."""
    trace, slo = a_trace(600.0), Slo(20.0, 0.9)
    tuning = tune_fleet(replace(plan(trace, slo), routers=ROUTERS[::-1]), Event())
    sweep = swept(first_requests(trace, 360, "given"), 120.5 / 360, slo)
    assert {each.replicas for each in tuning.routers} == {1}
    best = min((sweep.run(Fleet(router, Lru(), 2)) for router in ROUTERS), key=rank)
    assert best.fleet.router.name == "round-robin"  # the last in the order of the plan
    assert tuning.routers[0].router.name == "round-robin"


def test_the_judged_window_is_not_seen_by_the_choice() -> None:
    """Later requests that come at once change the judgement, not the choice."""
    trace = a_trace()
    burst = trace.arrival_s.copy()
    burst[360:] = burst[359] + (burst[360:] - burst[359]) / 3
    before, after = tuned(trace), tuned(replace(trace, arrival_s=burst))
    same(before, after)
    assert before.judged is not None
    assert after.judged is not None
    assert after.judged.outcome.target_ttft_s > before.judged.outcome.target_ttft_s
    assert after.verdict != "confirmed"
    assert not after.judged.meets
    if after.recommended is not None:
        assert after.recommended.fleet.policy.name == "lru"
        assert after.recommended.meets


def test_figures_are_those_of_a_fleet() -> None:
    """On both windows; what one replica fewer gives misses the SLO."""
    trace = a_trace()
    tuning = tuned(trace)
    assert tuning.windows.warmup_requests == 120
    assert tuning.windows.choosing_requests == tuning.windows.judged_requests == 240
    early = swept(first_requests(trace, 360, "given"), 120.5 / 360)
    whole = swept(trace, 360.5 / 600)
    assert tuning.chosen is not None
    assert tuning.judged is not None
    assert rank(early.run(tuning.chosen.fleet)) == rank(tuning.chosen)
    assert rank(whole.run(tuning.judged.fleet)) == rank(tuning.judged)
    assert tuning.recommended is not None
    assert tuning.one_fewer is not None
    sweep = early if tuning.fewer_on == "choosing" else whole
    fewer = sweep.run(tuning.one_fewer.fleet)
    assert rank(fewer) == rank(tuning.one_fewer)
    assert not fewer.meets
    assert fewer.fleet.replicas == tuning.recommended.fleet.replicas - 1
    assert tuning.size is not None


def test_what_no_fleet_meets() -> None:
    """An SLO below the time of one prefill is met by none; too short a trace is refused."""
    tuning = tuned(a_trace(), Slo(0.001))
    assert tuning.verdict == "misses-slo"
    assert tuning.chosen is tuning.recommended is tuning.size is None
    with pytest.raises(InputError, match="100 requests"):
        tuned(first_requests(a_trace(), 200, "given"))
    assert np.isfinite(tuning.routers[0].run.outcome.target_ttft_s)


@pytest.mark.parametrize(
    ("meets", "fewest"),
    [({4, 5, 6, 7, 8}, 4), ({3, 5, 6, 8}, 8), ({1}, 1), ({3, 5, 6, 7, 9}, None)],
)
def test_a_number_that_meets_the_slo_alone_is_luck(
    meets: set[int], fewest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fewest replicas are those from which on all numbers up to the doubled one meet it."""

    def runs(window: FleetWindow, fleets: list[Fleet]) -> list[Any]:
        return [SimpleNamespace(fleet=each, meets=each.replicas in meets) for each in fleets]

    monkeypatch.setattr(FleetWindow, "runs", runs)
    made = plan(a_trace())
    window = FleetWindow(made.workloads(made.prompts)[0], CAPACITY, made, Event())
    assert window.fewest(RoundRobin(), Lru(), 16) == fewest


def test_an_answer_that_engines_do_not_hold_is_not_recommended() -> None:
    """One request at a time, decoding included, takes more replicas than prefills in a queue do."""
    trace = a_trace()
    large = replace(
        plan(trace, Slo(0.6, 0.9)), capacities=(10_000,), routers=ROUTERS[:1], variants=()
    )
    usual, serial = EngineSettings(1), EngineSettings.one_at_a_time(1)  # blocks: the capacity
    relaxed = replace(large, prompts=a_trace(600.0), slo=Slo(3.0, 0.9), engine=usual)
    held = tune_fleet(relaxed, Event())
    assert held.recommended is not None
    assert held.recommended is held.judged
    assert held.on_engines is not None
    assert held.on_engines.meets
    assert held.on_engines.fleet == held.recommended.fleet

    queued = tune_fleet(large, Event())
    assert queued.recommended is not None
    slower = End("prefill 1.1x as long", 1.1)
    more = tune_fleet(replace(large, engine=serial, ends=(slower,)), Event())
    assert more.on_engines is not None
    assert not more.on_engines.meets
    assert more.recommended is not None
    assert more.recommended.meets
    assert more.recommended.fleet.replicas > queued.recommended.fleet.replicas
    assert (more.recommended.fleet.policy.name, more.verdict) == ("lru", "resized")
    (end,) = more.ends
    assert end.replicas is None or end.replicas >= more.recommended.fleet.replicas


def rounds(ends: tuple[End, ...] = (), **changes: Any) -> FleetTuning:
    """Return the tuning of conversations that return in turn: of 300 blocks, gittins keeps some."""
    trace = prompts(built(in_turn(20, 160), 16))
    arrival_s = np.arange(len(trace.leaf)) / 8
    made = plan(replace(trace, arrival_s=arrival_s), Slo(0.1, 0.6))
    routers, variants = (LeastRequests(), ConsistentHash()), (Variant(Gittins),)
    made = replace(made, routers=routers, variants=variants, ends=ends)
    return tune_fleet(replace(made, **changes), Event())


def test_a_policy_stands_only_where_both_ends_choose_it() -> None:
    """Else LRU takes its place, with as many replicas as it needs on both windows."""
    large, small = End("the largest pool", capacity_blocks=380), End("the smallest pool", 1.0, 200)
    held = rounds((large,))
    assert held.recommended is not None
    fleet = held.recommended.fleet
    assert (held.verdict, fleet.policy.name, fleet.replicas) == ("confirmed", "gittins", 1)
    assert [(each.agrees, each.replicas) for each in held.ends] == [(True, 1)]
    rejected = rounds((large, small))
    assert rejected.chosen is not None
    assert rejected.chosen.fleet.policy.name == "gittins"
    assert [each.agrees for each in rejected.ends] == [True, False]
    assert rejected.recommended is not None
    fleet = rejected.recommended.fleet
    assert (rejected.verdict, fleet.policy.name, fleet.replicas) == ("resized", "lru", 2)
    assert not rejected.judged_harms


def test_what_harms_on_the_judged_window_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it was chosen before, and meets the SLO on both windows."""
    compared, windows = FleetWindow.compared, []

    def harming(window: FleetWindow, run: FleetRun) -> PolicyTrial:
        trial = compared(window, run)
        if window.sweep.workload not in windows:
            windows.append(window.sweep.workload)
        judged = windows.index(window.sweep.workload) == 1
        return replace(trial, harms=(Harm("p50", 0.5, 0.25),)) if judged else trial

    monkeypatch.setattr(FleetWindow, "compared", harming)
    tuning = rounds()
    assert tuning.judged is not None
    assert tuning.judged.meets
    assert [harm.figure for harm in tuning.judged_harms] == ["p50"]
    assert tuning.recommended is not None
    assert (tuning.recommended.fleet.policy.name, tuning.verdict) == ("lru", "resized")


def test_replicas_at_both_ends() -> None:
    """Slower prefill takes more of them, faster prefill fewer; the answer is that between."""
    trace = a_trace()
    slo, factors = Slo(0.9, 0.9), (0.6, 1.0, 1.5)
    ends = tuple(End(f"prefill {factor:g}x as long", factor) for factor in factors)
    limited = replace(plan(trace, slo), routers=(LeastRequests(),), variants=(), ends=ends)
    tuning = tune_fleet(limited, Event())
    assert tuning.recommended is not None
    fast, same, slow = (each.replicas for each in tuning.ends)
    assert same == tuning.recommended.fleet.replicas
    assert fast is not None
    assert slow is not None
    assert fast < same < slow
    fleet = replace(tuning.recommended.fleet, replicas=slow)
    for requests, warmup in ((first_requests(trace, 360, "given"), 120.5 / 360), (trace, 0.60083)):
        setting = replace(SETTING, definition=standard(warmup=warmup))
        workload = Workload(requests, setting, Windows(1.0, 1)).with_prefill(factors[-1])
        sweep = FleetSweep(workload, CAPACITY, slo, seeds=1)
        assert sweep.run(fleet).meets


def test_the_cheapest_capacity_is_chosen() -> None:
    """Without a price the fewest replicas, then the least capacity; each row is that capacity's."""
    several = replace(plan(a_trace()), capacities=(CAPACITY, 1200, 5000))
    tuning = tune_fleet(several, Event())
    alone = {
        blocks: tune_fleet(replace(several, capacities=(blocks,)), Event())
        for blocks in (CAPACITY, tuning.capacity_blocks)
    }
    same(tuning, alone[tuning.capacity_blocks])
    sizes = [(each.cost, each.capacity_blocks) for each in tuning.capacities]
    assert sizes == sorted(sizes)
    assert tuning.capacity_blocks > CAPACITY
    assert tuning.capacities[0].chosen is not None
    (small,) = (each for each in tuning.capacities if each.capacity_blocks == CAPACITY)
    assert small.chosen is not None
    assert small.cost == small.chosen.fleet.replicas > tuning.capacities[0].cost
    dear = tune_fleet(replace(several, replica_cost=lambda blocks: blocks**2), Event())
    assert dear.capacity_blocks == CAPACITY
    same(dear, alone[CAPACITY])


def test_capacities_of_the_choosing_window() -> None:
    """Unnamed, they are some of LRU's curve there, which later requests do not change."""
    trace = a_trace()
    limited = replace(plan(trace), capacities=(), routers=(RoundRobin(),), variants=())
    tuning = tune_fleet(limited, Event())
    workload, _ = limited.workloads(trace)
    sizes = sorted(each.capacity_blocks for each in tuning.capacities)
    assert sizes == workload.curve.capacities(5)
