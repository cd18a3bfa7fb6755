"""Judged figures are those of a replay of the whole trace, counted from where judging begins."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.errors import InputError, UsageError
from kvscope.core.runs import Run
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru
from kvscope.policies.registry import by_name
from kvscope.replay.metrics import ServedRequests
from kvscope.replay.policy_options import Variant
from kvscope.replay.sweep import make_run, serve_replay
from kvscope.replay.workload import ReplayRequest
from kvscope.tuning.split import FEWEST, split_windows
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Trial, trial_of, ttft_s
from kvscope.tuning.tuner import HeldOutTrial, TuningResult
from tests.tuning.examples import chats, in_turn, prompts_of, tuned, workload

REQUESTS, JUDGED_FROM = 320, 192
SLO_S = 0.4
SOME = tuple(Variant(by_name(one)) for one in ("tlru", "threshold-lru", "wa"))


def _replayed(policy: Policy, capacity: int) -> Run:
    """Return the run of `kvscope simulate` with a warm-up up to the held-out window."""
    whole = workload(chats(4, REQUESTS), warmup=(JUDGED_FROM + 0.5) / REQUESTS)
    whole.setting = replace(whole.setting, slo_s=SLO_S)
    return make_run(whole, ReplayRequest(policy, capacity))


@pytest.fixture(scope="module", params=["unloaded", "queued"])
def found(request: pytest.FixtureRequest) -> TuningResult:
    """Return a tuning in each view."""
    target = Target(SLO_S, 0.9, view=request.param)
    return tuned(chats(4, REQUESTS), SLO_S, SOME, target=target)


def test_judged_figures_are_those_of_simulate(found: TuningResult) -> None:
    """LRU, every contender, the ceilings, the infinite cache, the least capacities."""
    every: list[Trial] = [found.baseline, *found.contenders, *found.oracles, found.infinite]
    every += [one.held_out for one in (found.least_lru, found.least_any) if one is not None]
    assert len(every) > 6
    for trial in every:
        run = _replayed(trial.policy, trial.capacity_blocks)
        assert trial.outcome == run.outcome
        assert run.outcome.requests == REQUESTS - JUDGED_FROM
        assert run.outcome.queued_ttft_ms is not None
        queued = found.target.view == "queued"
        times = run.outcome.queued_ttft_ms if queued else run.outcome.ttft_ms
        tel_ms = run.outcome.queued_tel_ms if queued else run.outcome.tel_ms
        violations = run.outcome.queued_violations if queued else run.outcome.violations
        assert tel_ms is not None
        assert trial.target_s * 1e3 == pytest.approx(times.p90, rel=1e-12)
        assert trial.tel_s * 1e3 == pytest.approx(tel_ms, rel=1e-12)
        assert trial.violation_share == (violations or 0) / run.outcome.requests


def test_an_infinite_cache_bounds_every_policy(found: TuningResult) -> None:
    """No request is faster than where nothing that is reused was lost."""
    for one in (found.baseline, *found.contenders, *found.oracles):
        assert (one.ttft_s >= found.infinite.ttft_s - 1e-12).all()


def test_gains_are_over_lru_at_the_present_capacity(found: TuningResult) -> None:
    """(LRU - policy) / LRU of the judged figures; none for LRU itself."""
    assert not found.baseline.gains

    def gain(one: HeldOutTrial, name: Literal["p50", "p90", "p99"]) -> float:
        ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        before, after = (
            np.quantile(each.ttft_s, ranks[name], method="inverted_cdf")
            for each in (found.baseline, one)
        )
        return float(1 - after / before)

    for one in (*found.contenders, found.infinite):
        for name in ("p50", "p90", "p99"):
            assert one.gains[name].value == pytest.approx(gain(one, name), abs=1e-12)


def _served(times_s: list[float]) -> ServedRequests:
    trace = in_turn(len(times_s), 1, 1)
    done = serve_replay(workload(trace), ReplayRequest(Lru(), 5)).served
    return replace(done, ttft_s=np.array(times_s), queued_ttft_s=np.array(times_s))


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
    trial = trial_of(Lru(), 5, _served([one / 10 for one in tenths]), target)
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
    times = ttft_s(_served([0.1, math.nan, 0.2]), target)
    assert times.tolist() == [0.1, math.inf, 0.2]


def test_queues_need_times() -> None:
    """A trace in which everything arrives at once says nothing of queues: an error, no guess."""
    trace = in_turn()
    for one in trace:
        one.arrival_s = 0.0
    with pytest.raises(InputError, match="unloaded"):
        tuned(trace, 0.2, target=Target(0.2, view="queued"))


@pytest.mark.parametrize(
    ("warmup", "judged", "parts"),
    [(0.2, 0.4, (80, 160, 160)), (0.0, 0.5, (0, 200, 200)), (0.25, 0.25, (100, 200, 100))],
)
def test_the_split_is_by_order_of_arrival(
    warmup: float, judged: float, parts: tuple[int, int, int]
) -> None:
    """Warm-up, part to choose on, judged part; together all requests."""
    found = split_windows(prompts_of(in_turn()), warmup, judged, 0.95)
    assert (found.warmup_requests, found.chosen_on_requests, found.judged_requests) == parts
    assert found.judged_from_s == 400 - parts[2]


@pytest.mark.parametrize(("warmup", "judged"), [(0.6, 0.4), (0.9, 0.5), (0.2, 0.0), (0.0, 1.0)])
def test_shares_that_leave_nothing_are_misuse(warmup: float, judged: float) -> None:
    """No longer trace would help, so that is not what the error says."""
    with pytest.raises(UsageError, match="--judge"):
        split_windows(prompts_of(in_turn()), warmup, judged, 0.95)


def test_too_short_a_trace_is_refused() -> None:
    """Each part needs FEWEST requests."""
    with pytest.raises(InputError, match=str(FEWEST)):
        tuned(in_turn(rounds=12), 0.2)
