"""The plan: options of a deployment on the same later requests, cheapest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

import kvscope
from kvscope.app.monitor import Monitor
from kvscope.core.files import data_folder
from kvscope.core.trace import Measurements
from kvscope.core.units import GIB
from kvscope.deployment.deployment import Deployment, ResolvedDeployment, resolve
from kvscope.deployment.models import resolve_model
from kvscope.routers.registry import router_by_name
from kvscope.tuning.comparison import Harm
from kvscope.tuning.plan import ReplicaMachine, TuningPlan
from kvscope.tuning.split import Split
from kvscope.tuning.target import Target
from kvscope.usecases.tune.recommend import _holding
from kvscope.usecases.tune.recommendation import RecordedLater
from tests.cli.replayed import write_short
from tests.deployment.logs import advice
from tests.small_traces import built, prompts
from tests.tuning.examples import in_turn

SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")
AGENT = str(data_folder("sample_traces") / "agent.jsonl.gz")
DEPLOYMENT: dict[str, Any] = {"gpu": "h100", "model": "llama3-8b", "gpu_hour": 2.5}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the first half of the sample."""
    return write_short(tmp_path_factory.mktemp("half"), 1_000)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return fewer requests, where it matters less which."""
    return write_short(tmp_path_factory.mktemp("short"), 600)


def plan_of(trace: str, slo: str, **deployment: Any) -> Mapping[str, Any]:
    """Return the plan of a trace."""
    return kvscope.tune(trace, slo=slo, db=":memory:", **DEPLOYMENT, **deployment).to_dict()


class Tight(NamedTuple):
    """The document of a plan, the plan, and what was told meanwhile."""

    made: Mapping[str, Any]
    plan: TuningPlan
    told: Sequence[str]


@pytest.fixture(scope="module")
def planned() -> Tight:
    """Return the plan for an SLO that LRU misses."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Monitor, "row", lambda _, text: told.append(text))
        tuned = kvscope.tune(SAMPLE, slo="200ms", policy="wa", db=":memory:", **DEPLOYMENT)
    plan = tuned.recommendation.plan
    assert plan is not None
    return Tight(tuned.to_dict(), plan, told)


@pytest.fixture
def tight(planned: Tight) -> Mapping[str, Any]:
    """Return its document."""
    return planned.made


def test_rows_are_told_as_they_are_known(planned: Tight) -> None:
    """Each once, today's first, with its figures."""
    told, rows = planned.told, planned.made["rows"]
    assert told[0].startswith(f"lru: {rows[0]['hit_rate']:.1%} hits, ")
    assert len(told) == len({*told}) == len(rows)


def test_today_is_first_and_the_others_by_price(tight: Mapping[str, Any]) -> None:
    """Today's figures are those of LRU on both later windows."""
    today, *others = tight["rows"]
    lru = tight["recommendation"]["lru"]["later"]
    change = today["change"]
    assert (change["policy"], change["replicas"], change["tier"]) == ("lru", 1, None)
    assert (today["grade"], today["gain"]) == ("today", {})
    assert today["ttft_ms"]["p95"]["value"] == lru["times_ms"]["p95"]
    assert today["slo"] == tight["recommendation"]["lru_slo_met"]
    prices = [row["price_per_hour"] for row in others]
    assert prices == sorted(prices)
    for at, row in enumerate(tight["rows"]):
        assert row["id"] == at
        for figure in (row["ttft_ms"]["p95"], row["within_slo"]):
            assert figure["low"] <= figure["value"] <= figure["high"]
        gained = {"p95", "tel", "attainment", "p50", "throughput"} if at else set()
        assert set(row["gain"]) >= gained
        assert (row["worth"] is None) == (row["id"] not in {tight["do_now"], tight["canary"]})
        assert (row["change"]["router"] is None) == (row["change"]["replicas"] == 1)


def test_every_kind_of_change_is_an_option(tight: Mapping[str, Any]) -> None:
    """The policy recommended, a CPU tier with LRU and with it, and the replicas that LRU needs."""
    recommended = tight["recommendation"]
    chosen, changes = recommended["policy"], [row["change"] for row in tight["rows"]]
    kinds = {(each["policy"], each["replicas"], each["tier"] is not None) for each in changes}
    assert {("lru", 1, True), (chosen, 1, False), (chosen, 1, True)} <= kinds
    assert ("lru", recommended["replicas_at_least"], False) in kinds
    more = [each for each in changes if each["replicas"] > 1]
    assert {each["router"] for each in more} == {"session"}
    tier = next(row for row in tight["rows"] if row["change"]["tier"])
    memory = tier["change"]["tier"]
    assert tier["price_per_hour"] == pytest.approx(DEPLOYMENT["gpu_hour"] + memory["price_hour"])
    assert tier["hit_rate"] > tight["rows"][0]["hit_rate"]
    grade = recommended["grade"]
    assert tight["rows"][tight[grade.replace("-", "_")]]["change"]["policy"] == chosen
    assert (tight["add_tier"], tight["tier_doubt"]) == (None, None)  # was not asked for


def test_the_cheapest_that_meets_the_slo_is_named(short: str) -> None:
    """An SLO that LRU meets needs no other option; one that nothing meets has none."""
    loose = plan_of(short, "5s", policy="lru")
    assert loose["to_meet"] == 0
    assert loose["rows"][0]["slo"] == "meets"
    assert all(row["change"]["replicas"] == 1 for row in loose["rows"])
    hopeless = plan_of(short, "10ms", policy="lru")
    assert hopeless["to_meet"] is None
    assert hopeless["unreachable"]
    assert {row["slo"] for row in hopeless["rows"]} == {"misses"}
    crowded = plan_of(short, "10ms", policy="lru", rate_scale=40.0)
    assert "no number of replicas meets the SLO" in " ".join(crowded["words"])
    today, *_, keeping_up = crowded["rows"]  # what ends the queue is told, though it misses the SLO
    assert (today["slo"], keeping_up["slo"]) == ("overloaded", "misses")
    assert keeping_up["change"]["replicas"] > 1


def test_what_is_not_certain_is_undecided(tight: Mapping[str, Any]) -> None:
    """A roofline's latency decides no SLO that lies within its band; the promise is an interval's.

    The same options with a measured latency have narrower ends.
    """
    assert tight["rows"][0]["slo"] == "undecided"
    assert tight["reachable_ms"] == tight["rows"][0]["ttft_ms"]["p95"]["high"]
    blocks = tight["rows"][tight["canary"]]["worth"]["lru_blocks"]
    assert blocks is None or blocks > 0


def test_other_machines_are_options(half: str) -> None:
    """Each with its own pool, latency and price, and as many replicas as meet the SLO with LRU."""
    plan = plan_of(half, "220ms", also="l40s@0.9,2xh100,h100:fp8", policy="lru")
    by_machine = {
        (each["tp"], each["gpu"], each["weight_dtype"]): row
        for row in plan["rows"]
        if (each := row["change"])
    }
    machines = (1, "h100", "bf16"), (1, "l40s", "bf16"), (2, "h100", "bf16"), (1, "h100", "fp8")
    assert by_machine.keys() == {*machines}
    _, slow, fast, small = (by_machine[machine] for machine in machines)
    stated = plan_of(half, "220ms", weight_dtype="fp8", policy="lru")["rows"][0]
    figures = "capacity_blocks", "hit_rate", "ttft_ms", "within_slo", "price_per_hour"
    assert [small[name] for name in figures] == [stated[name] for name in figures]
    assert small["capacity_blocks"] > plan["rows"][0]["capacity_blocks"]
    prices = slow["price_per_hour"], fast["price_per_hour"]
    assert prices == (pytest.approx(0.9), pytest.approx(5.0))
    assert slow["hit_rate"] < plan["rows"][0]["hit_rate"] < fast["hit_rate"]
    assert slow["ttft_ms"]["p50"] > plan["rows"][0]["ttft_ms"]["p50"] > fast["ttft_ms"]["p50"]
    assert plan["rows"][plan["to_meet"]] == small
    with pytest.raises(kvscope.UsageError, match="no GPU 'abacus'"):
        plan_of(half, "220ms", also="abacus")


def test_other_machines_of_sglang_are_options(half: str) -> None:
    """With the figures of a plan that states them; a host tier's links are those of one machine."""
    sglang: dict[str, Any] = {"engine": "sglang", "policy": "lru"}
    row = plan_of(half, "2s", also="2xh100", **sglang)["rows"][-1]
    stated = plan_of(half, "2s", tp=2, **sglang)["rows"][0]
    figures = "capacity_blocks", "hit_rate", "ttft_ms", "within_slo", "price_per_hour"
    assert [row[name] for name in figures] == [stated[name] for name in figures]
    with pytest.raises(kvscope.UsageError, match="without HiCache"):
        plan_of(half, "2s", also="2xh100", engine="sglang:hicache_ratio=2")


def test_gpus_that_hold_the_longest_request_are_an_option() -> None:
    """Where today's pool rejects requests: without --also, the fewest that reject none."""
    deployment = {"gpu": "h100", "model": "qwen3-32b", "gpu_hour": 2.5, "policy": "lru"}
    tuned = kvscope.tune(AGENT, slo="10s", db=":memory:", **deployment)
    plan = tuned.to_dict()
    (wider,) = [row for row in plan["rows"] if row["change"] and row["change"]["tp"] == 2]
    assert plan["rows"][0]["rejected_requests"] > 0 == wider["rejected_requests"]
    assert plan["rows"][plan["to_meet"]] == wider
    assert wider["price_per_hour"] == 2 * 2.5 * wider["change"]["replicas"]
    named = kvscope.tune(AGENT, slo="10s", db=":memory:", also="4xh100", **deployment).to_dict()
    assert [row["change"]["tp"] for row in named["rows"][1:]] == [4]
    small = kvscope.tune(AGENT, slo="10s", db=":memory:", **deployment | {"model": "llama3-8b"})
    assert {row["change"]["tp"] for row in small.to_dict()["rows"][1:]} <= {1}


def test_as_few_gpus_hold_a_request_as_can() -> None:
    """None beside a pool that was stated, for ranks, and for requests that eight do not hold."""
    stated = Deployment(gpu="h100", model="qwen3-32b")
    where = resolve(stated)

    def wider(tokens: int, where: ResolvedDeployment = where) -> list[int]:
        asked: Any = SimpleNamespace(
            input_tokens=np.array([10, tokens]), output_tokens=np.array([1, 0])
        )
        return [each.tp for each in _holding(where, asked)]

    two, four = (resolve(replace(stated, tp=tp)).pool.low_tokens for tp in (2, 4))
    assert where.pool.tokens < two < four
    assert (wider(two), wider(two + 1), wider(four), wider(10 * four)) == ([2], [4], [4], [])
    assert wider(two, resolve(replace(stated, num_gpu_blocks=100))) == []
    assert wider(two, resolve(replace(stated, dp=2, model="qwen3-30b-a3b"))) == []


def test_memory_that_the_engine_leaves_is_an_option(tmp_path: Path) -> None:
    """As its log says: the same GPU and price with a larger pool, which is replayed as stated."""
    log = tmp_path / "engine.log"
    log.write_text(
        "GPU KV cache size: 320,000 tokens\n" + advice(50 * GIB, 40.0) + "\n", encoding="utf-8"
    )
    asked = {**DEPLOYMENT, "engine_log": str(log), "policy": "wa"}
    tuned = kvscope.tune(SAMPLE, slo="300ms", db=":memory:", **asked)
    first, *rows = tuned.to_dict()["rows"]
    filled = {
        row["change"]["policy"]: row
        for row in rows
        if row["change"]["kv_cache_bytes"] == 50 * GIB and row["change"]["replicas"] == 1
    }
    assert "lru" in filled
    assert first["capacity_blocks"] == 320_000 // 16 - 1
    assert filled["lru"]["capacity_blocks"] == int(first["capacity_blocks"] * 1.25)
    assert filled["lru"]["price_per_hour"] == first["price_per_hour"] == 2.5
    blocks = filled["lru"]["capacity_blocks"] + 1
    stated = plan_of(SAMPLE, "300ms", num_gpu_blocks=blocks, policy="lru")
    figures = "capacity_blocks", "hit_rate", "within_slo"
    assert [filled["lru"][name] for name in figures] == [
        stated["rows"][0][name] for name in figures
    ]
    chosen = rows[0]["change"]["policy"]
    assert chosen == "lru" or filled[chosen]["hit_rate"] >= rows[0]["hit_rate"]
    assert f"--kv-cache-memory {50 * GIB}" in tuned._repr_html_()


def test_replicas_that_come_and_go_or_stand_apart_are_options(short: str) -> None:
    """With the figures of `fleet`, and the price of as many as serve on average."""
    traffic: dict[str, Any] = {"rate_scale": 10.0, "tpot_slo": "20ms", "num_gpu_blocks": 4000}
    varied: dict[str, Any] = {"autoscale": "1..8@1", "disaggregate": "20GB/s"}
    asked = {**DEPLOYMENT, **traffic, **varied, "policy": "lru", "db": ":memory:"}
    tuned = kvscope.tune(short, slo="2s", **asked)
    plan = tuned.to_dict()
    by_kind = {
        "apart" if change["prefill"] else "scaled" if change["mean_replicas"] else "": row
        for row in plan["rows"]
        if (change := row["change"])
    }
    fleet = kvscope.simulate_fleet(short, slo="2s", router="session", **asked).to_dict()
    scaled, apart = fleet["autoscaled"], fleet["disaggregated"]["fewest"]
    for kind, figures in (("scaled", scaled), ("apart", apart)):
        row = by_kind[kind]
        assert row["hit_rate"] == pytest.approx(figures["hit_rate"])
        assert row["ttft_ms"]["p95"]["value"] == pytest.approx(figures["ttft_at_percentile_ms"])
    change = by_kind["scaled"]["change"]
    assert change["mean_replicas"] == pytest.approx(scaled["mean_replicas"])
    assert (change["replicas"], change["prefill"]) == (8, None)
    price = DEPLOYMENT["gpu_hour"] * scaled["mean_replicas"]
    assert by_kind["scaled"]["price_per_hour"] == pytest.approx(price)
    change = by_kind["apart"]["change"]
    assert (change["prefill"], change["replicas"]) == (apart["prefill"], apart["replicas"])
    assert by_kind["apart"]["price_per_hour"] == DEPLOYMENT["gpu_hour"] * apart["replicas"]
    named = [option.label("lru", "") for option in tuned.recommendation.plan.options]
    for scaled_option in (each for each in tuned.recommendation.plan.options if each.mean_replicas):
        plain = replace(scaled_option, scaling=None, mean_replicas=None)
        assert plain.cost < replace(scaled_option, mean_replicas=scaled_option.replicas - 0.01).cost
    split = f"{apart['prefill']} prefill + {apart['decode']} decode"
    assert {"1 to 8 replicas, session, lru", f"{split} replicas, session, lru"} <= {*named}


def test_no_option_is_named_that_rejects_more_or_harms(planned: Tight) -> None:
    """A percentile forgives rejected requests, and one of TTFT forgives a slower median."""
    plan = planned.plan
    best = plan.cheapest
    assert best is not None
    assert best is not plan.today
    for worse in (
        replace(best.judged.later, rejected=plan.today.trial.rejected + 1),
        replace(best.judged.later, harms=(Harm("p50", 0.8, 0.25),)),
    ):
        judged = replace(best.judged, later=worse)
        options = (replace(each, judged=judged) if each is best else each for each in plan.options)
        named = replace(plan, options=tuple(options)).cheapest
        assert named is None or named.judged is not judged


def test_harm_counts_on_the_same_gpu_alone(planned: Tight) -> None:
    """More of its memory may not slow the median; another machine is another choice."""
    plan, best = planned.plan, planned.plan.cheapest
    assert best is not None
    judged = replace(best.judged, later=replace(best.judged.later, harms=(Harm("p50", 0.8, 0.25),)))
    where = resolve(Deployment(gpu="h100", model="llama3-8b"))
    for kv_cache_bytes, named in ((GIB, False), (None, True)):
        machine = ReplicaMachine(where, 9_000, kv_cache_bytes)
        harming = replace(best, judged=judged, machine=machine)
        cheapest = replace(plan, options=(plan.today, harming)).cheapest
        assert (cheapest is harming) is named


def test_an_option_is_judged_at_both_ends(half: str) -> None:
    """An interval within the SLO is undecided where a slower prefill misses it."""
    (fast,) = (
        row
        for row in plan_of(half, "150ms", also="2xh100", policy="lru")["rows"]
        if row["change"]["tp"] == 2
    )
    target = fast["ttft_ms"]["p95"]
    assert target["high"] < 150 < 1.65 * target["value"]
    assert fast["slo"] == "undecided"
    loose = plan_of(half, "1s", also="2xh100", policy="lru")["rows"]
    assert [row["slo"] for row in loose if row["change"]["tp"] == 2] == ["meets"]


def test_memory_is_an_option_in_all_sizes(half: str) -> None:
    """With --compare-tiers the plan says whether to add some, and has the document of `tune`."""
    result = kvscope.tune_tiers(
        half, slo="200ms", tier_size="28GiB,220GiB", policy="lru", db=":memory:", **DEPLOYMENT
    )
    made = result.to_dict()
    tiers = [row["change"]["tier"] for row in made["rows"] if row["change"]["tier"]]
    assert {round(each["gib"]) for each in tiers} == {28, 220}
    assert (made["add_tier"] is None) == (made["tier_doubt"] is not None)
    assert made["add_tier"] is not None
    added = made["rows"][made["add_tier"]]
    assert result.verdict == made["recommendation"]["verdict"] == "switch"
    assert "OffloadingConnector" in made["recommendation"]["flags"]["vllm"]
    assert made["recommendation"]["expected"]["ttft_ms"]["p95"] > 0
    assert added["saves_per_hour"] == pytest.approx(
        (made["rows"][0]["utilization"] - added["utilization"]) * DEPLOYMENT["gpu_hour"]
    )


def test_sglangs_host_tier_is_an_option(short: str) -> None:
    """Judged as the deployment that has it, whose plan has no such option."""
    plain = plan_of(short, "200ms", engine="sglang", num_gpu_blocks=200_000, policy="lru")
    changes = [row["change"] for row in plain["rows"]]
    at = next(at for at, each in enumerate(changes) if each["tier"] and each["replicas"] == 1)
    row = plain["rows"][at]
    assert row["change"]["tier"]["offload"] == "hicache"
    model = resolve_model(DEPLOYMENT["model"])
    ratio = row["change"]["tier"]["gib"] * 2**30 / model.kv_bytes_per_token(1) / 200_000
    tiered = plan_of(
        short,
        "200ms",
        engine=f"sglang:hicache_ratio={ratio}",
        num_gpu_blocks=200_000,
        policy="lru",
    )
    today = tiered["rows"][0]
    assert not any(row["change"]["tier"] for row in tiered["rows"])
    assert row["hit_rate"] == pytest.approx(today["hit_rate"], rel=1e-3)
    assert row["ttft_ms"]["p50"] == pytest.approx(today["ttft_ms"]["p50"], rel=1e-3)
    assert row["hit_rate"] > 1.05 * plain["rows"][0]["hit_rate"]
    assert row["change"]["tier"]["written_bytes_s"] > 0
    small = "sglang:hicache_ratio=1.1"
    rows = plan_of(short, "200ms", engine=small, num_gpu_blocks=200_000, policy="lru")["rows"]
    assert not any(row["change"]["tier"] for row in rows)


def test_fewer_replicas_above_a_tier_are_an_option() -> None:
    """Where they cost less than what LRU needs without; each is what `fleet --tier-size` replays.

    With --compare-tiers, memory is still weighed for as many replicas as now.
    """
    named = {**DEPLOYMENT, "gpu": "l40s", "gpu_hour": 0.9, "slo": "550ms", "db": ":memory:"}
    made = kvscope.tune(SAMPLE, policy="lru", **named).to_dict()
    rows = [row for row in made["rows"] if row["change"]["replicas"] > 1]
    assert [row["change"]["tier"] is None for row in rows] == [False, True]
    tiered, plain = rows
    assert tiered["price_per_hour"] < plain["price_per_hour"]
    assert tiered["change"]["replicas"] < plain["change"]["replicas"]
    assert made["to_meet"] == tiered["id"]
    study = kvscope.simulate_fleet(
        SAMPLE,
        router="session",
        replicas=str(tiered["change"]["replicas"]),
        offload=f"{tiered['change']['tier']['gib']:.0f}GiB",
        **named,
    ).to_dict()
    (fleet,) = study["fleets"]
    assert study["tier"]["offload"] == tiered["change"]["tier"]["offload"]
    assert fleet["hit_rate"] == tiered["hit_rate"]
    p95_ms = tiered["ttft_ms"]["p95"]["value"]
    assert fleet["ttft_at_percentile_ms"] == pytest.approx(p95_ms, rel=1e-9)
    assert fleet["latencies"]["attainment"] == tiered["within_slo"]["value"]
    weighed = kvscope.tune_tiers(SAMPLE, policy="lru", tier_size="97GiB", **named).to_dict()
    added = weighed["add_tier"]
    assert added is None or weighed["rows"][added]["change"]["replicas"] == 1
    assert any(row["change"]["tier"] and row["change"]["replicas"] > 1 for row in weighed["rows"])


def test_routers_are_options() -> None:
    """Each with the fewest replicas that meet the SLO behind it, as `fleet` finds them.

    A parameter has the value of a search that saves a replica.
    """
    draws = "production-stack-prefixaware@0.1.12"
    both, asked = f"session,{draws}", {**DEPLOYMENT, "slo": "200ms", "db": ":memory:"}
    made = kvscope.tune_fleet(SAMPLE, policy="lru", router=both, **asked).to_dict()
    routed = [row for row in made["rows"] if row["change"]["router"]]
    rows = {row["change"]["router"].partition(" ")[0]: row for row in routed}
    assert rows.keys() == {"session", draws}
    value = rows[draws]["change"]["router"].partition(" ")[2]
    study, usual = (
        kvscope.simulate_fleet(SAMPLE, router=each, replicas=some, param=param, **asked).to_dict()
        for each, some, param in ((both, "2..3", [f"{draws}.{value}"]), (draws, "2", None))
    )
    fewest = {line["router"]: line["fewest"] for line in study["lines"]}
    assert fewest[draws] == 2
    assert [line["fewest"] for line in usual["lines"]] == [None]
    fleets = {(each["router"], each["replicas"]): each for each in study["fleets"]}
    for router, row in rows.items():
        replicas = row["change"]["replicas"]
        assert replicas == fewest[router]
        fleet = fleets[router, replicas]
        if router_by_name(router).draws:  # the worst seed, where `fleet` shows the median
            assert row["ttft_ms"]["p95"]["value"] >= fleet["ttft_at_percentile_ms"]
            continue
        p95_ms = row["ttft_ms"]["p95"]["value"]
        assert p95_ms == pytest.approx(fleet["ttft_at_percentile_ms"], rel=1e-9)
        assert row["within_slo"]["value"] == pytest.approx(fleet["latencies"]["attainment"])
        assert row["hit_rate"] == pytest.approx(fleet["hit_rate"], rel=1e-9)


def test_one_replica_needs_no_router(short: str) -> None:
    """Then the plan has none, whatever was asked."""
    made = kvscope.tune_fleet(short, slo="5s", policy="lru", db=":memory:", **DEPLOYMENT)
    rows = made.to_dict()["rows"]
    assert {row["change"]["router"] for row in rows} == {None}
    assert all(row["change"]["replicas"] == 1 for row in rows)


def test_what_was_recorded_stands_beside_the_replay() -> None:
    """TTFT and hits of the later requests, where enough of them have one."""
    times = np.where(np.arange(600) % 2, np.nan, np.arange(600) / 1e3)
    trace = prompts(built(in_turn(20, 30), 16))
    measured = Measurements(
        worker=np.full(600, -1, dtype=np.int32),
        ttft_s=times,
        queue_s=np.full(600, np.nan),
        duration_s=np.full(600, np.nan),
        cached_tokens=np.where(np.arange(600) < 500, 32, -1).astype(np.int32),
        delay_s=np.full(600, np.nan),
        waits_for=np.full(600, -1, dtype=np.int32),
        workers=(),
    )
    target, split = Target(0.2, 0.5), Split(100, 200, 150, 150, 300.0, 450.0)
    recorded = RecordedLater.of(replace(trace, measurements=measured), split, target)
    assert recorded is not None
    assert (recorded.requests, recorded.target_s) == (150, 0.448)
    assert recorded.hit_rate == pytest.approx(32 / 320)
    assert RecordedLater.of(trace, split, target) is None
    few = replace(measured, ttft_s=np.where(np.arange(600) > 410, times, np.nan))
    assert RecordedLater.of(replace(trace, measurements=few), split, target) is None


def test_the_category_that_decides(tight: Mapping[str, Any]) -> None:
    """One of the trace's, with its part of what is saved of the tail."""
    worth = tight["rows"][tight["canary"]]["worth"]
    rows = tight["recommendation"]["choice"]["later"]
    assert rows["target_tel_ms"] < tight["recommendation"]["lru"]["later"]["target_tel_ms"]
    assert worth["category"].split()[0] in {"text", "multimodal", "file", "search"}
    assert worth["category_share"] > 1 / 4
