"""`--router` and `--param` of a fleet: names with versions, values multiplied, mistakes refused."""

from __future__ import annotations

from threading import Event

import pytest

from kvscope.app import values
from kvscope.characterize.distributions import Windows
from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.fleet.options import parse_routers, router_label, router_variants, split_assignments
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.lru import Lru
from kvscope.replay.settings import run_setting
from kvscope.replay.workload import Workload
from kvscope.routers.balancers import RoundRobin
from kvscope.routers.dynamo import Dynamo
from kvscope.routers.registry import ROUTERS
from kvscope.routers.sglang import Sglang
from tests.small_traces import built, prompts


def test_routers_are_named_once() -> None:
    """By name or alias, in any case; all is every one."""
    assert parse_routers("rr, Round-Robin,sglang,sglang@0.3.2") == [RoundRobin, Sglang]
    assert parse_routers("all") == list(ROUTERS)


def test_versions_have_dots() -> None:
    """What stands before the last dot is the router; the rest is for policies."""
    texts = ["dynamo@1.6.temperature=0,0.5", "sglang.cache_threshold=0.7", "tlru.xi_tokens=2k"]
    taken, others = split_assignments([Dynamo, Sglang], texts)
    assert taken == {
        Dynamo: [("temperature", "0,0.5")],
        Sglang: [("cache_threshold", "0.7")],
    }
    assert others == ["tlru.xi_tokens=2k"]


def test_values_multiply() -> None:
    """Each combination is a router; its label has what is not the default."""
    routers = router_variants(
        Dynamo, [("temperature", "0,0.5"), ("prefill_load_scale", "1,4"), ("temperature", "0")]
    )
    assert [router_label(router) for router in routers] == [
        "dynamo@1.6",
        "dynamo@1.6 prefill_load_scale=4",
        "dynamo@1.6 temperature=0.5",
        "dynamo@1.6 prefill_load_scale=4 temperature=0.5",
    ]


def test_a_misspelled_parameter_has_a_neighbour() -> None:
    with pytest.raises(UsageError, match="did you mean temperature"):
        router_variants(Dynamo, [("temprature", "1")])


@pytest.mark.parametrize(
    ("text", "counts"), [("2..4", (2, 3, 4)), ("8", (8,)), ("8,2,2", (2, 8)), ("3..3", (3,))]
)
def test_numbers_of_replicas(text: str, counts: tuple[int, ...]) -> None:
    assert values.counts(text) == counts


@pytest.mark.parametrize("text", ["0..3", "4..2", "1..", "a", "1,,2", "-1"])
def test_no_numbers_of_replicas(text: str) -> None:
    with pytest.raises(UsageError):
        values.counts(text)


def test_a_stopped_sweep_begins_no_fleet() -> None:
    """Runs come in the order of the fleets, none once it is stopped."""
    trace = prompts(
        built(
            [
                Request(input_tokens=4, output_tokens=1, arrival_s=float(at), hash_ids=[at])
                for at in range(6)
            ],
            4,
        )
    )
    profile = LatencyProfile("made", "made", 0.0, 0.1)
    workload = Workload(trace, run_setting(standard(), profile), Windows(1.0, 1))
    sweep = FleetSweep(workload, 2, Slo(1.0))
    fleets = [Fleet(RoundRobin(), Lru(), replicas) for replicas in (3, 1, 2)]
    assert [each.replicas for each in sweep.prepare(fleets)] == [3]  # one kernel for all
    assert [run.fleet.replicas for run in sweep.sweep(fleets)] == [3, 1, 2]
    stop = Event()
    stop.set()
    assert list(sweep.sweep(fleets, stop)) == []
