"""The plan: options of a deployment on the same later requests, cheapest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

import kvscope
from kvscope.core.files import data_folder
from kvscope.tuning.comparison import Harm

SAMPLE = str(data_folder("sample_traces") / "to-c.jsonl.gz")
DEPLOYMENT: dict[str, Any] = {"gpu": "h100", "model": "llama3-8b", "gpu_hour": 2.5}


def plan_of(slo: str, **deployment: Any) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the plan of the sample, and the whole document."""
    document = kvscope.tune(SAMPLE, slo=slo, db=":memory:", **DEPLOYMENT, **deployment).to_dict()
    return document["plan"], document


@pytest.fixture(scope="module")
def tight() -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the plan for an SLO that LRU misses."""
    return plan_of("200ms")


def test_today_is_first_and_the_others_by_price(
    tight: tuple[dict[str, Any], Mapping[str, Any]],
) -> None:
    """Today's figures are those of LRU on both later windows."""
    plan, document = tight
    today, *others = plan["options"]
    lru = document["recommendation"]["lru"]["later"]
    assert (today["policy"], today["replicas"], today["tier_gib"]) == ("lru", 1, 0)
    assert today["target_ms"] == lru["times_ms"]["p95"]
    assert today["slo"] == document["recommendation"]["lru_slo_met"]
    prices = [option["price_hour"] for option in others]
    assert prices == sorted(prices)
    for option in plan["options"]:
        low, high = option["interval_ms"]
        assert low <= option["target_ms"] <= high
        below, above = option["attainment_interval"]
        assert below <= option["attainment"] <= above
        assert (option["router"] is None) == (option["replicas"] == 1)


def test_every_kind_of_change_is_an_option(
    tight: tuple[dict[str, Any], Mapping[str, Any]],
) -> None:
    """The policy recommended, a CPU tier with LRU and with it, and the replicas that LRU needs."""
    plan, document = tight
    recommended = document["recommendation"]
    chosen = recommended["policy"]
    kinds = {(each["policy"], each["replicas"], each["tier_gib"] > 0) for each in plan["options"]}
    assert {("lru", 1, True), (chosen, 1, False), (chosen, 1, True)} <= kinds
    assert ("lru", recommended["replicas_at_least"], False) in kinds
    more = [each for each in plan["options"] if each["replicas"] > 1]
    assert {each["router"] for each in more} == {"session"}
    tier = next(each for each in plan["options"] if each["tier_gib"])
    assert tier["price_hour"] > DEPLOYMENT["gpu_hour"]
    assert tier["hit_rate"] > plan["options"][0]["hit_rate"]


def test_the_cheapest_that_meets_the_slo_is_named() -> None:
    """An SLO that LRU meets needs no other option; one that nothing meets has none."""
    loose, _ = plan_of("5s")
    assert loose["cheapest"] == 0
    assert loose["options"][0]["slo"] == "meets"
    assert all(each["replicas"] == 1 for each in loose["options"])
    hopeless, _ = plan_of("10ms")
    assert hopeless["cheapest"] is None
    assert {each["slo"] for each in hopeless["options"]} == {"misses"}


def test_what_is_not_certain_is_undecided(
    tight: tuple[dict[str, Any], Mapping[str, Any]],
) -> None:
    """A roofline's latency decides no SLO that lies within its band; the promise is an interval's.

    The same options with a measured latency have narrower ends.
    """
    plan, _ = tight
    assert plan["options"][0]["slo"] == "undecided"
    assert plan["promise_ms"] == plan["options"][0]["interval_ms"][1]
    assert plan["worth_blocks"] is None or plan["worth_blocks"] > 0


def test_other_machines_are_options() -> None:
    """Each with its own pool, latency and price, and as many replicas as meet the SLO with LRU."""
    plan, _ = plan_of("200ms", also="l40s@0.9,2xh100@2.5", policies="lru")
    by_machine = {each["machine"]: each for each in plan["options"]}
    assert by_machine.keys() == {None, "1 x l40s", "2 x h100"}
    slow, fast = by_machine["1 x l40s"], by_machine["2 x h100"]
    assert (slow["price_hour"], fast["price_hour"]) == (pytest.approx(0.9), pytest.approx(5.0))
    assert slow["hit_rate"] < plan["options"][0]["hit_rate"] < fast["hit_rate"]
    assert slow["p50_ms"] > plan["options"][0]["p50_ms"] > fast["p50_ms"]
    assert plan["options"][plan["cheapest"]]["price_hour"] == pytest.approx(5.0)
    with pytest.raises(kvscope.UsageError, match="no GPU 'abacus'"):
        plan_of("200ms", also="abacus")


def test_no_option_is_named_that_rejects_more_or_harms() -> None:
    """A percentile forgives rejected requests, and one of TTFT forgives a slower median."""
    tuned = kvscope.tune(SAMPLE, slo="200ms", policies="lru", db=":memory:", **DEPLOYMENT)
    plan = tuned.recommendation.plan
    assert plan is not None
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


def test_an_option_is_judged_at_both_ends() -> None:
    """An interval within the SLO is undecided where a slower prefill misses it."""
    plan, _ = plan_of("190ms", also="2xh100", policies="lru")
    (fast,) = (each for each in plan["options"] if each["machine"])
    assert fast["interval_ms"][1] < 190 < 1.65 * fast["target_ms"]
    assert fast["slo"] == "undecided"
    plan, _ = plan_of("1s", also="2xh100", policies="lru")
    assert [each["slo"] for each in plan["options"] if each["machine"]] == ["meets"]
