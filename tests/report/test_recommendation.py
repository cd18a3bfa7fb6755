"""A recommendation in words, tables and charts: nothing is said that was not found."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.core.trace import Trace
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.models import resolve_model
from kvscope.ingest.clocks import SessionStarts
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay.policy_options import Variant
from kvscope.report import explanation, recommendation
from kvscope.report.explanation import sensitivity
from kvscope.report.plan import _said_elsewhere
from kvscope.report.recommendation import (
    change,
    interval,
    sections,
    verdict_in_words,
)
from kvscope.report.ttft import Point, front
from kvscope.report.words import significant
from kvscope.store.db import MEMORY, open_store
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Trial
from kvscope.tuning.tuner import End, EndVerdict, RequiredCapacity, TuningResult
from kvscope.usecases.tune import USE_CASE
from kvscope.usecases.tune.recommendation import Recommendation
from tests import small_traces
from tests.tuning.examples import BLOCK, PROFILE, TLRU, in_turn, plan_of, tuned

ALL = tuple(Variant(by_name(trial)) for trial in ("tlru", "etlru", "threshold-lru", "wa", "ttl"))
SURE = Gain(0.2, 0.1, 0.3)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Return what is known of the trace as a whole."""
    with open_store(MEMORY) as store:
        return small_traces.stored(store, in_turn(), BLOCK)


@pytest.fixture(scope="module")
def tuning() -> TuningResult:
    """Return a switch to tlru, all contenders beside it."""
    return tuned(in_turn(), 0.2, ALL, capacity_blocks=350)


@pytest.fixture
def result(trace: Trace, tuning: TuningResult) -> Recommendation:
    """Return the same with its trace."""
    return Recommendation(trace, None, None, PROFILE, tuning, plan_of(tuning))


def _text(result: Recommendation) -> str:
    return "\n".join(" ".join([section.title, *section.sentences]) for section in sections(result))


def test_gains_read_as_changes() -> None:
    """Less is a minus; the interval runs from the best to the worst end; zero has no sign."""
    gain = Gain(0.241, 0.179, 0.302)
    assert (change(gain), interval(gain)) == ("-24.1%", "-30.2% to -17.9%")
    nothing = Gain(0.0, -0.0004, 0.0004)
    assert (change(nothing), interval(nothing)) == ("0.0%", "-0.04% to +0.04%")
    same = Gain(0.0, 0.0, 0.0)
    assert (change(same), interval(same)) == ("0.0%", "same as LRU")
    alike = Gain(0.8, 0.8, 0.8 + 1e-12)  # sums of times that differ by rounding alone
    assert interval(alike) == "no spread: all resamples agree"
    unknown = Gain(0.3, float("-inf"), float("inf"))
    assert interval(unknown) == "unknown: fewer than 10 conversations"


def test_the_tables_show_what_was_judged(result: Recommendation) -> None:
    """LRU first, contenders in their order, the infinite cache, then the starred ceilings."""
    policies = next(trial for trial in sections(result) if trial.title == "Policies")
    table, gains = policies.tables
    names = [row[0].split()[0].rstrip(",") for row in table.rows]
    contenders = [trial.policy.name for trial in result.tuning.contenders]
    assert names == ["lru", *contenders, "infinite", "belady*", "tail-belady*"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert [row[0].split()[0].rstrip(",") for row in gains.rows] == contenders
    for row, trial in zip(gains.rows, result.tuning.contenders, strict=True):
        gain = trial.later.gains["p95"]
        assert row[1:3] == (trial.grade, f"{trial.later.likely:.0%}")
        assert row[3:5] == (change(gain), interval(gain).partition(":")[0])


def test_what_decides_leads(result: Recommendation) -> None:
    """With a target of violations these are the first column, and no figure stands twice."""
    target = replace(result.tuning.target, measure="violations")
    other = replace(result, tuning=replace(result.tuning, target=target))
    gains = next(trial for trial in sections(other) if trial.title == "Policies").tables[1]
    assert gains.columns[3:5] == ("violations", "violations, 95% CI")
    assert len(set(gains.columns)) == len(gains.columns)


def test_sizes_in_every_unit(result: Recommendation) -> None:
    """With a model also GiB, and multiples of HBM where that is named."""
    model = resolve_model("vicuna-7b")
    shown = replace(result, model=model, hbm_bytes=2**30)
    policies = next(trial for trial in sections(shown) if trial.title == "Policies").tables[0]
    assert policies.title == "TTFT on the later requests at 2.73 GiB (350 blocks)"
    (table,) = next(trial for trial in sections(shown) if trial.title == "Capacity").tables
    assert "× 1 GiB HBM" in table.columns
    assert all(len(row) == len(table.columns) for row in table.rows)


def _least(
    result: Recommendation, policy: str, blocks: int, judged_s: float, need: int | None
) -> RequiredCapacity:
    trial: Trial = replace(result.tuning.baseline, policy=by_name(policy)(), capacity_blocks=blocks)
    return RequiredCapacity(replace(trial, target_s=0.19), replace(trial, target_s=judged_s), need)


def _adding(
    result: Recommendation, blocks: int, target_s: float, least: RequiredCapacity | None
) -> Recommendation:
    gains = {"p50": SURE, "p95": SURE}
    best = replace(result.tuning.baseline, capacity_blocks=blocks, target_s=target_s, gains=gains)
    other = replace(result.tuning, verdict="add-capacity", enough=best, least_lru=least)
    return replace(result, tuning=replace(other, contenders=(), least_any=None))


def test_capacity_that_the_judged_requests_need_is_called_so(result: Recommendation) -> None:
    """Where less was enough for the part to choose on, nobody takes the figure for a forecast."""
    least = _least(result, "lru", 300, 0.3, 500)
    words = " ".join(verdict_in_words(_adding(result, 500, 0.19, least)))
    assert "lru meets it at 500 blocks: p95 TTFT 190 ms on held-out requests." in words
    assert "Held-out requests need that much" in words
    as_chosen = _least(result, "lru", 500, 0.19, None)
    words = " ".join(verdict_in_words(_adding(result, 500, 0.19, as_chosen)))
    assert "Held-out requests need" not in words


def test_capacity_that_was_not_enough_after_all_is_called_so(result: Recommendation) -> None:
    """Chosen as enough, judged as not: both are said, and what would have been needed."""
    least = _least(result, "lru", 500, 0.21, 520)
    adding = _adding(result, 500, 0.21, least)
    words = " ".join(verdict_in_words(adding))
    assert "lru meets it at 500 blocks in the training window but not on held-out" in words
    assert "p95 TTFT 210 ms there. Held-out requests would need 520 blocks" in words
    (table,) = next(trial for trial in sections(adding) if trial.title == "Capacity").tables
    assert table.rows[0][-1] == "no, needs 520 blocks"


def _deployed(result: Recommendation, **stated: object) -> Recommendation:
    known = {"gpu": "h100", "model": "llama3-8b", "num_gpu_blocks": 351, **stated}
    return replace(result, deployment=resolve(Deployment(**known)))  # type: ignore[arg-type]


def test_the_launch_line_names_the_file_that_was_written(result: Recommendation) -> None:
    """Whatever `--output` was, quoted for a shell."""
    deployed = _deployed(result)
    assert "KVSCOPE_RECOMMENDATION=recommendation.toml vllm serve" in _text(deployed)
    words = _text(replace(deployed, path="/tmp/my r.toml"))
    assert "KVSCOPE_RECOMMENDATION='/tmp/my r.toml' vllm serve" in words
    assert "recommendation.toml" not in words


def test_flags_are_those_of_the_engine(result: Recommendation) -> None:
    """SGLang's, with how it was simulated; none without a deployment."""
    words = _text(_deployed(result, engine="sglang"))
    assert "SGLang: --radix-eviction-policy " in words
    assert "Simulated by SGLang's scheduler and prefix tree" in words
    assert "vllm serve" not in words
    words = _text(result)
    assert "A cache study" in words
    assert "--radix-eviction-policy" not in words
    assert "vllm serve" not in words


def test_a_verdict_that_changes_at_an_end_has_no_flags(result: Recommendation) -> None:
    """Pool and latency are known within bounds: where these move the verdict, measure first."""
    lru = result.tuning.baseline
    end = EndVerdict(End("the smallest pool"), "keep-lru", lru, None, eligible=False)
    other = _deployed(replace(result, tuning=replace(result.tuning, ends=(end,))))
    words = _text(other)
    assert "No flags: the comparison does not hold within the uncertainty of pool and" in words
    assert "With the smallest pool: keep-lru, LRU 330 ms." in words
    assert "vllm serve" not in words
    assert "Recommendation: not certain" in words
    assert "Do now" not in words
    assert other.do_now_row is None is other.canary_row
    assert _deployed(result).do_now_row is not None
    tiered = replace(other, plan=replace(other.plan, tier=other.plan.today))
    assert tiered.do_now_row is None
    assert "Do now" not in "\n".join(verdict_in_words(tiered))


def test_a_verdict_that_changes_with_session_starts_has_no_flags(result: Recommendation) -> None:
    """LRU is no answer either, where sessions that begin otherwise need another one."""
    lru, choice = result.tuning.baseline, result.tuning.recommended
    starts = SessionStarts(0.5, 1, 7.25)
    end = EndVerdict(End("other starts", sessions=starts), "keep-lru", lru, choice, eligible=False)
    words = _text(_deployed(replace(result, tuning=replace(result.tuning, ends=(end,)))))
    assert "No flags: the answer changes with when the sessions begin." in words
    assert "With 7.25 open (Poisson arrivals, 1 layout): keep-lru in 1." in words
    assert "With other starts: keep-lru, LRU 330 ms, tlru 58 ms (not eligible)." in words
    assert "tlru, ξ 57 there: p95 TTFT 58 ms, hit rate 85.0%, eligible in 0 of 1." in words
    keep = replace(result.tuning, verdict="keep-lru", recommended=lru, contenders=())
    keeping = _deployed(replace(result, tuning=keep))
    assert not keeping.why_no_flags
    unsure = replace(keep, ends=(replace(end, verdict="add-capacity", eligible=None),))
    assert "when the sessions begin" in replace(keeping, tuning=unsure).why_no_flags
    assert "Recommendation: not certain" not in _text(replace(keeping, tuning=unsure))


def test_sensitivity_is_by_xi(result: Recommendation) -> None:
    """Each xi once, ascending, at the present capacity alone; for policies that have one."""
    by_policy = sensitivity(result)
    assert set(by_policy) == {"tlru", "etlru"}
    for trials in by_policy.values():
        xi = [trial.policy.values["xi_tokens"] for trial in trials]
        assert xi == sorted(set(xi))
        assert {trial.capacity_blocks for trial in trials} == {350}


def test_the_front_is_not_beaten(result: Recommendation) -> None:
    """No trial is better in both the median and the tail; every other is beaten by one of them."""
    trials = [trial for trial in result.tuning.explored if trial.capacity_blocks == 350]
    points = [
        Point(trial.policy.name, "", trial.outcome.ttft_ms.p50, trial.target_s * 1e3)
        for trial in trials
    ]
    best = front(points)
    assert best
    for trial in points:
        beaten = any(
            other is not trial
            and other.price_ms <= trial.price_ms
            and other.tail_ms <= trial.tail_ms
            for other in best
        )
        assert beaten or trial in best


@pytest.mark.parametrize("verdict", ["switch", "keep-lru", "unreachable", "add-capacity"])
def test_every_chart_is_drawn_whatever_the_verdict(
    trace: Trace, tuning: TuningResult, verdict: str
) -> None:
    """Figures are JSON, with no NaN, and the page holds them all."""
    other = {
        "switch": tuning,
        "keep-lru": tuned(in_turn(), 0.2, TLRU, capacity_blocks=1_000),
        "unreachable": tuned(in_turn(), 0.02, (), capacity_blocks=350),
        "add-capacity": tuned(in_turn(), 0.1, (), capacity_blocks=100),
    }[verdict]
    assert other.verdict == verdict
    result = Recommendation(trace, None, None, PROFILE, other, plan_of(other))
    drawing = (
        recommendation.distributions_chart,
        explanation.sensitivity_chart,
        explanation.capacities_chart,
    )
    drawn = [draw(result) for draw in drawing]
    drawn += [draw() for draw in recommendation.trade_off_charts(result)]
    for chart in drawn:
        json.loads(chart.to_json(), parse_constant=_no_constant)
    title = "do now" if verdict == "switch" else verdict
    assert f"Recommendation: {title}" in USE_CASE.report(result).html()
    assert result.trace.name in USE_CASE.report(result).html()


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_the_distribution_is_that_of_the_later_requests(result: Recommendation) -> None:
    """On both later windows: LRU's curve ends at its slowest request there."""
    chart = recommendation.distributions_chart(result)
    (lru, best, infinite) = chart.data
    assert lru.x[-1] == result.tuning.lru.later.ttft_s.max() * 1e3
    assert best.x[-1] == result.tuning.contenders[0].later.ttft_s.max() * 1e3
    assert infinite.x[0] == result.tuning.limit.ttft_s.min() * 1e3
    assert list(lru.y) == sorted(lru.y)


def test_a_target_of_violations_says_what_changed(result: Recommendation) -> None:
    """The change in brackets is that of the figures before it: shares, not milliseconds."""
    tuning = tuned(
        in_turn(),
        0.2,
        target=Target(0.2, 0.95, "violations"),
        capacity_blocks=350,
    )
    words = " ".join(verdict_in_words(replace(result, tuning=tuning)))
    assert "100.0% -> 0.0% of the requests over the SLO (-100.0%, 95% CI" in words


def test_where_the_percentile_is_infinite_shares_change(result: Recommendation) -> None:
    """As where the pool rejects more requests than the percentile leaves out."""
    lru = result.tuning.lru
    rejecting = replace(lru, later=replace(lru.later, target_s=math.inf))
    words = " ".join(
        verdict_in_words(replace(result, tuning=replace(result.tuning, lru=rejecting)))
    )
    assert "of the requests over the SLO (" in words


def test_the_queued_view_is_shown_as_such(result: Recommendation) -> None:
    """All figures are those of the queue, and so the target's p95 is the p95 in the table."""
    tuning = tuned(
        in_turn(), 0.2, target=Target(0.2, view="queued"), capacity_blocks=350, lowest_blocks=300
    )
    shown = replace(result, tuning=tuning)
    table = next(trial for trial in sections(shown) if trial.title == "Policies").tables[0]
    assert table.columns[1] == "queued TTFT p50 (ms)"
    lru = tuning.lru.later
    assert lru.outcome.queued_ttft_ms is not None
    assert table.rows[0][1] == significant(lru.outcome.queued_ttft_ms.p50)
    assert table.rows[0][3] == significant(lru.target_s * 1e3)


@pytest.mark.parametrize(
    ("price", "replicas", "said"), [(2.5, 1, False), (1.0, 1, True), (None, 1, False)]
)
def test_what_costs_no_less_is_not_offered(
    price: float | None, replicas: int, *, said: bool
) -> None:
    """Where today meets the SLO as estimated, a policy that surely does is a change of its own."""
    shared: dict[str, Any] = dict.fromkeys(("machine", "tier", "router", "scaling", "split"))
    shared |= {"policy": Lru(), "meets": True}
    today = SimpleNamespace(**shared, price_hour=price and 2.5, replicas=1)
    cheapest: Any = SimpleNamespace(**shared, price_hour=price, replicas=replicas)
    plan: Any = SimpleNamespace(today=today)
    assert _said_elsewhere(cheapest, plan) is not said
