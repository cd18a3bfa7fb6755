"""Figures are those of a replay from the first request on, counted from where a window begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.errors import InputError, UsageError
from kvscope.core.runs import Run
from kvscope.ingest.formats.base import Request
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay.policy_options import Variant
from kvscope.replay.sweep import make_run, serve_replay
from kvscope.replay.workload import ReplayRequest
from kvscope.tuning.comparison import WindowTrial
from kvscope.tuning.split import split_windows
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Trial, trial_of, ttft_s
from kvscope.tuning.tuner import TuningResult
from tests.tuning.examples import (
    BLOCK,
    ENGINE,
    chats,
    in_turn,
    prompts_of,
    served,
    tuned,
    workload,
)

REQUESTS, VALIDATION_FROM, HELD_OUT_FROM = 480, 240, 360  # 20 %, 30 %, 25 % and 25 %
SLO_S = 0.4
SOME = tuple(Variant(by_name(one)) for one in ("tlru", "threshold-lru", "wa"))


def _replayed(trace: Sequence[Request], first: int, policy: Policy, capacity: int) -> Run:
    """Return the run of `kvscope simulate` of a trace with a warm-up up to request `first`."""
    whole = workload(trace, warmup=(first + 0.5) / len(trace))
    whole.setting = replace(whole.setting, slo_s=SLO_S)
    return make_run(whole, ReplayRequest(policy, capacity))


def _check(
    trials: Sequence[Trial], trace: Sequence[Request], first: int, result: TuningResult
) -> None:
    """Check that trials are runs of `simulate` over the trace, counted from `first` on."""
    for trial in trials:
        run = _replayed(trace, first, trial.policy, trial.capacity_blocks)
        assert trial.outcome == run.outcome
        assert run.outcome.requests == len(trace) - first
        assert run.outcome.queued_ttft_ms is not None
        queued = result.target.view == "queued"
        times = run.outcome.queued_ttft_ms if queued else run.outcome.ttft_ms
        tel_ms = run.outcome.queued_tel_ms if queued else run.outcome.tel_ms
        violations = run.outcome.queued_violations if queued else run.outcome.violations
        assert tel_ms is not None
        rank_ms = times.p90 if result.target.percentile == 0.9 else times.p95
        assert trial.target_s * 1e3 == pytest.approx(rank_ms, rel=1e-12)
        assert trial.tel_s * 1e3 == pytest.approx(tel_ms, rel=1e-12)
        assert trial.violation_share == (violations or 0) / run.outcome.requests
        if isinstance(trial, WindowTrial):
            assert trial.categories == tuple(part for part in run.parts if part.category)
            assert len(trial.ttft_s) == run.outcome.requests


@pytest.fixture(scope="module", params=["unloaded", "queued"])
def found(request: pytest.FixtureRequest) -> TuningResult:
    """Return a tuning in each view."""
    target = Target(SLO_S, 0.9, view=request.param)
    return tuned(chats(4, REQUESTS), SLO_S, SOME, target=target)


def test_figures_are_those_of_simulate(found: TuningResult) -> None:
    """Of what was searched, chosen and judged: each window on the trace up to its end.

    What comes later is not even in the trace that says the same.
    """
    trace, judged = chats(4, REQUESTS), (found.lru, *found.contenders)
    assert len(judged) == 1 + len(SOME)
    some = found.explored[:: max(len(found.explored) // 8, 1)]
    assert len(some) >= 8
    least = [each.held_out for each in (found.least_lru, found.least_any) if each is not None]
    assert (len(least), len(found.oracles)) == (2, 2)
    validation = [*(each.validation for each in judged), found.infinite]
    later = [*(each.later for each in judged), *found.oracles, found.limit]
    _check(some, trace[:VALIDATION_FROM], 96, found)
    _check(validation, trace[:HELD_OUT_FROM], VALIDATION_FROM, found)
    _check([found.baseline, found.recommended, *least], trace, HELD_OUT_FROM, found)
    _check(later, trace, VALIDATION_FROM, found)


def test_engine_figures_are_those_of_simulate() -> None:
    """In the engine's capacity model, queued, with TPOT; no oracle can run there."""
    trace = chats(4, REQUESTS)
    target = Target(SLO_S, view="queued", tpot_slo_s=0.5)
    result = tuned(
        trace,
        SLO_S,
        (Variant(by_name("tlru")), Variant(by_name("gittins"))),
        target=target,
        setting=ENGINE,
        capacity_blocks=200,
    )
    assert result.oracles == ()
    judged = (result.lru, *result.contenders)
    for trials, first, last in (
        ([*(each.validation for each in judged), result.infinite], 240, 360),
        ([*(each.held_out for each in judged), result.recommended], 360, 480),
    ):
        assert len(trials) == 4
        for trial in trials:
            whole = workload(trace[:last], (first + 0.5) / last, replace(ENGINE, slo_s=SLO_S))
            request = ReplayRequest(trial.policy, trial.capacity_blocks)
            assert trial.outcome == make_run(whole, request).outcome
            done = serve_replay(whole, request).served
            assert done.queued_ttft_s is not None
            assert done.tpot_s is not None
            np.testing.assert_array_equal(trial.ttft_s, done.queued_ttft_s[first:])
            tpot_s = done.tpot_s[first:][np.isfinite(done.tpot_s[first:])]
            assert trial.tpot_s == np.quantile(tpot_s, 0.95, method="inverted_cdf")
            assert trial.rejected == 0


def test_what_is_longer_than_the_pool_is_rejected_and_late() -> None:
    """Requests that no pool of this size takes are violations, not requests without a latency."""
    trace = chats(4, REQUESTS)
    result = tuned(
        trace, SLO_S, (), target=Target(SLO_S, view="queued"), setting=ENGINE, capacity_blocks=30
    )
    # as vLLM asks before it admits a request: all of its tokens, the outputs' too, fit
    long = [-(-(one.input_tokens + (one.output_tokens or 0)) // BLOCK) > 30 for one in trace[240:]]
    for trial, expected in (
        (result.lru.validation, sum(long[:120])),
        (result.lru.held_out, sum(long[120:])),
    ):
        assert trial.rejected == np.isinf(trial.ttft_s).sum()
        assert trial.rejected == pytest.approx(expected, abs=2)
        assert trial.rejected > 0
        assert trial.violation_share >= trial.rejected / 120


def test_an_infinite_cache_bounds_every_policy(found: TuningResult) -> None:
    """No request is faster than where nothing that is reused was lost."""
    for one in (found.lru, *found.contenders):
        assert (one.validation.ttft_s >= found.infinite.ttft_s - 1e-12).all()
        assert (one.later.ttft_s >= found.limit.ttft_s - 1e-12).all()
    for oracle in found.oracles:
        assert (oracle.ttft_s >= found.limit.ttft_s - 1e-12).all()


def test_an_infinite_cache_evicts_nothing_of_the_later_requests() -> None:
    """Sixty conversations go on in the held-out window, twenty before it."""
    trace = in_turn(20, HELD_OUT_FROM // 20)
    for each in in_turn(60, (REQUESTS - HELD_OUT_FROM) // 60):
        each.arrival_s += HELD_OUT_FROM
        each.hash_ids = [10**6 + block for block in each.hash_ids]
        each.chat_id += HELD_OUT_FROM
        each.parent_chat_id += HELD_OUT_FROM if each.parent_chat_id >= 0 else 0
        trace.append(each)
    result = tuned(trace, SLO_S, ())
    whole = workload(trace, (VALIDATION_FROM + 0.5) / REQUESTS)
    unlimited = make_run(whole, ReplayRequest(result.limit.policy, len(whole.traffic.block_parent)))
    assert result.limit.outcome.hit_tokens == unlimited.outcome.hit_tokens > 0


def test_gains_are_over_lru_at_the_present_capacity(found: TuningResult) -> None:
    """(LRU - policy) / LRU on the same window; none for LRU itself."""
    assert not found.lru.validation.gains
    assert not found.lru.held_out.gains

    def gain(one: WindowTrial, lru: WindowTrial, name: Literal["p50", "p90", "p99"]) -> float:
        ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        before, after = (
            np.quantile(each.ttft_s, ranks[name], method="inverted_cdf") for each in (lru, one)
        )
        return float(1 - after / before)

    pairs = [(found.infinite, found.lru.validation), (found.limit, found.lru.later)]
    for each in found.contenders:
        pairs += [
            (each.validation, found.lru.validation),
            (each.held_out, found.lru.held_out),
            (each.later, found.lru.later),
        ]
    for one, lru in pairs:
        for name in ("p50", "p90", "p99"):
            assert one.gains[name].value == pytest.approx(gain(one, lru, name), abs=1e-12)
        late = [float((each.ttft_s > SLO_S).mean()) for each in (lru, one)]
        assert one.attainment_gain.value == pytest.approx(late[0] - late[1], abs=1e-12)


@settings(deadline=None, max_examples=200)
@given(
    tenths=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    percent=st.sampled_from([1, 25, 50, 90, 95, 99, 99.9]),
    slo=st.integers(1, 31),
)
def test_the_target_is_a_nearest_rank_and_says_the_same_as_a_share(
    tenths: list[int], percent: float, slo: int
) -> None:
    """meets() if and only if at most a share 1 - p of the requests lies beyond the SLO."""
    target = Target(slo / 10, percent / 100)
    trial = trial_of(Lru(), 5, served([one / 10 for one in tenths]), target)
    ascending = sorted(tenths)
    rank = math.ceil(round(percent * len(tenths), 6) / 100)
    assert trial.target_s == ascending[max(rank, 1) - 1] / 10
    beyond = sum(one > slo for one in tenths)
    assert trial.violation_share == beyond / len(tenths)
    assert trial.tel_s == pytest.approx(sum(max(one - slo, 0) for one in tenths) / 10)
    assert trial.meets(target) == (beyond * 1_000 <= (1_000 - round(percent * 10)) * len(tenths))


def test_what_got_no_token_is_beyond_every_slo() -> None:
    """A request without a token counts as infinitely late, not as none."""
    target = Target(1.0, 0.5, view="queued")
    times = ttft_s(served([0.1, math.nan, 0.2]), target)
    assert times.tolist() == [0.1, math.inf, 0.2]


def test_queues_need_times() -> None:
    """A trace in which everything arrives at once says nothing of queues: an error, no guess."""
    trace = in_turn()
    for one in trace:
        one.arrival_s = 0.0
    with pytest.raises(InputError, match="unloaded"):
        tuned(trace, 0.2, target=Target(0.2, view="queued"))


@pytest.mark.parametrize(
    ("shares", "parts"),
    [
        ((0.2, 0.25, 0.25), (96, 144, 120, 120)),
        ((0.0, 0.25, 0.5), (0, 120, 120, 240)),
        ((0.125, 0.25, 0.375), (60, 120, 120, 180)),
        ((0.2, 0.25, 0.3), (96, 120, 120, 144)),  # 1 - 0.3 - 0.25 is a digit below 0.45
    ],
)
def test_the_split_is_by_order_of_arrival(
    shares: tuple[float, float, float], parts: tuple[int, int, int, int]
) -> None:
    """Warm-up, training, validation, held-out; together all requests."""
    split = split_windows(prompts_of(in_turn()), *shares, 0.95)
    assert (
        split.warmup_requests,
        split.training_requests,
        split.validation_requests,
        split.held_out_requests,
    ) == parts
    assert sum(parts) == 480
    assert split.validation_from_s == 480 - parts[2] - parts[3]
    assert split.held_out_from_s == 480 - parts[3]


@pytest.mark.parametrize(
    "shares",
    [(0.5, 0.25, 0.25), (0.9, 0.25, 0.25), (0.2, 0.25, 0.0), (0.2, 0.0, 0.25), (0.0, 0.0, 1.0)],
)
def test_shares_that_leave_nothing_are_misuse(shares: tuple[float, float, float]) -> None:
    """No longer trace would help, so that is not what the error says."""
    with pytest.raises(UsageError, match="--warmup, --validation, --judge"):
        split_windows(prompts_of(in_turn()), *shares, 0.95)


@pytest.mark.parametrize("percentile", [0.95, 0.99])
def test_each_window_needs_five_requests_beyond_the_percentile(percentile: float) -> None:
    """For p99 500 requests, so that a quarter of 2,000 is enough and 24.75 % are not."""
    fewest = {0.95: 100, 0.99: 500}[percentile]
    prompts = prompts_of(in_turn(20, fewest // 5, 1))
    assert split_windows(prompts, 0.2, 0.25, 0.25, percentile).held_out_requests == fewest
    with pytest.raises(InputError, match=f"needs {fewest:,} requests"):
        split_windows(prompts, 0.2, 0.25, 0.2475, percentile)
