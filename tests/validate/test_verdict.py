from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.tuning.bootstrap import FEWEST
from kvscope.tuning.target import Target
from kvscope.validate.predict import Prediction, compare_run
from kvscope.validate.replay import Measurement
from kvscope.validate.result import Check, RunFacts, judge
from kvscope.validate.validate import PolicyRun, interleaved
from tests.validate.test_tokens import chats

COUNT = 120
Pytest = pytest.TempPathFactory
Times = NDArray[np.float64]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: Pytest) -> RunFacts:
    """Return a run of LRU in which all went as predicted."""
    prompts = chats(tmp_path_factory.mktemp("chats"), COUNT)
    hits = np.full(COUNT, 16, dtype=np.int64)
    times = np.random.default_rng(0).uniform(0.05, 0.2, COUNT)
    sent_s = np.arange(COUNT, dtype=float)
    measured = Measurement(sent_s, times, sent_s + 2 * times, hits, hits, {})
    predicted = Prediction(hits, times, np.full(COUNT, np.nan))
    return compare_run(prompts, Lru(), predicted, measured, warmup=20, slo_s=0.1, repeat=0)


def test_the_time_to_the_last_token_is_told_where_it_is_predicted(facts: RunFacts) -> None:
    """One request after the other only TTFT is predicted."""
    assert facts.predicted.answer_ms is None
    assert facts.measured.answer_ms is not None
    assert facts.measured.answer_ms.p50 == pytest.approx(2 * facts.measured.ttft_ms.p50)


def verdict(*runs: RunFacts, sequential: bool = True) -> tuple[str, dict[str, Check]]:
    checks, _, word = judge(
        runs,
        np.arange(COUNT, dtype=np.int32),
        baseline="lru",
        target=Target(0.1),
        tolerance=0.1,
        sequential=sequential,
    )
    return word, {check.name: check for check in checks}


def faster(facts: RunFacts, times: float) -> RunFacts:
    """Return the same from T-LRU, `times` as fast, and predicted to be twice as fast."""
    return replace(
        facts,
        policy=TLru.name,
        predicted_ttft_s=facts.predicted_ttft_s / 2,
        measured_ttft_s=facts.measured_ttft_s / times,
    )


def test_what_went_as_predicted_is_confirmed(facts: RunFacts) -> None:
    """LRU alone: hits and TTFT; the warm-up is not counted."""
    word, checks = verdict(facts)
    assert word == "confirmed"
    assert set(checks) == {"hits", "p50", "p95"}
    assert facts.counted.sum() == COUNT - 20
    assert facts.measured.violations == facts.predicted.violations


def test_one_hit_off_is_too_many_in_a_sequence_but_not_at_once(facts: RunFacts) -> None:
    """One after the other leaves no room; where requests meet, up to 1 % of the hits may be off."""
    off = replace(facts, mismatched_requests=1, mismatched_tokens=16)
    assert verdict(off)[0] == "not confirmed"
    assert verdict(off, sequential=False)[0] == "confirmed"
    far = replace(facts, mismatched_requests=9, mismatched_tokens=144)
    assert verdict(far, sequential=False)[0] == "not confirmed"


@pytest.mark.parametrize(
    ("times", "word"), [(1.05, "confirmed"), (1.5, "not confirmed"), (3.0, "not confirmed")]
)
def test_slower_than_predicted(facts: RunFacts, times: float, word: str) -> None:
    """Within the tolerance it passes, far outside it fails."""
    slow = replace(facts, measured_ttft_s=facts.measured_ttft_s * times)
    assert verdict(slow)[0] == word


def test_what_may_be_chance_is_not_held_against_it(facts: RunFacts) -> None:
    """15 % slower at the median, of which 100 requests cannot tell that it is more than 10 %."""
    slow = replace(facts, measured_ttft_s=facts.measured_ttft_s * 1.15)
    _, checks = verdict(slow)
    assert checks["p50"].passed is None
    assert "+15.0% off" in checks["p50"].words


def test_few_conversations_tell_no_interval(facts: RunFacts) -> None:
    """Three times as slow as predicted, but in all of nine conversations: that fails nothing."""
    slow = replace(facts, measured_ttft_s=facts.measured_ttft_s * 3)
    checks, _, word = judge(
        [slow],
        np.arange(COUNT, dtype=np.int32) % (FEWEST - 1),
        baseline="lru",
        target=Target(0.1),
        tolerance=0.1,
        sequential=True,
    )
    assert word == "inconclusive"
    assert [one.passed for one in checks] == [True, None, None]
    assert "no interval: fewer than 10 conversations" in checks[1].words


def test_a_gain_that_may_be_chance_confirms_nothing(facts: RunFacts) -> None:
    """Faster by a little, in another order: the interval contains 0."""
    times = np.random.default_rng(1).permutation(facts.measured_ttft_s) * 0.99
    other = replace(facts, policy=TLru.name, predicted_ttft_s=times, measured_ttft_s=times)
    word, checks = verdict(facts, other)
    assert (word, checks["gain"].passed) == ("inconclusive", None)


def test_conversations_are_drawn_whole(facts: RunFacts) -> None:
    """Ten of ten requests each say less than a hundred: the interval is wider."""
    alike = np.tile(np.linspace(0.05, 0.2, COUNT // 10), 10)
    same = replace(facts, predicted_ttft_s=alike, measured_ttft_s=alike * 1.15)

    def width(conversation: NDArray[np.int32]) -> float:
        checks, *_ = judge(
            [same], conversation, baseline="lru", target=None, tolerance=0.1, sequential=True
        )
        (words,) = (one.words for one in checks if one.name == "p50")
        low, high = re.findall(r"CI ([\d.]+) ms to ([\d.]+) ms", words)[0]
        return float(high) - float(low)

    single = np.arange(COUNT, dtype=np.int32)
    assert width(single % (COUNT // 10)) > 1.5 * width(single)


def test_intervals_lie_around_what_was_measured(facts: RunFacts) -> None:
    """All requests 20 % slower than predicted, to the same 120 ms: the interval is that point."""
    counted = np.full(COUNT, 0.1), np.full(COUNT, 0.12)
    same = replace(facts, predicted_ttft_s=counted[0], measured_ttft_s=counted[1])
    word, checks = verdict(same)
    assert word == "not confirmed"
    assert "95 % CI 120 ms to 120 ms" in checks["p50"].words


def test_a_gain_is_measured_with_its_interval(facts: RunFacts) -> None:
    """Twice as fast for all is a sure gain; the same for all is none, and says nothing."""
    word, checks = verdict(facts, faster(facts, 2))
    assert (word, checks["gain"].passed) == ("confirmed", True)
    assert "-50.0%" in checks["gain"].words
    _, checks = verdict(facts, faster(facts, 1))
    assert checks["gain"].passed is None
    word, checks = verdict(facts, faster(facts, 0.5))
    assert (word, checks["gain"].passed) == ("not confirmed", False)


def test_what_is_not_whole_is_never_confirmed(facts: RunFacts) -> None:
    """A run that ended early, failed requests, an engine that does not tell its hits."""
    for lacking in (
        replace(facts, ended="the engine died"),
        replace(facts, failed=dict.fromkeys(range(5), "timed out")),
        replace(facts, mismatched_requests=None, mismatched_tokens=None),
    ):
        assert verdict(lacking)[0] == "inconclusive"


def test_policies_take_turns() -> None:
    """A B B A A B: neither is always first."""
    runs = [PolicyRun(Lru()), PolicyRun(TLru())]
    order = [(repeat, one.policy.name) for repeat, one in interleaved(runs, 3)]
    assert [name for _, name in order] == ["lru", "tlru", "tlru", "lru", "lru", "tlru"]
    assert [repeat for repeat, _ in order] == [0, 0, 1, 1, 2, 2]
