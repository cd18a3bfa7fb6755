"""The verdict and the SLO's answer for every combination of what was measured."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from kvscope.tuning.comparison import Harm, WindowTrial
from kvscope.tuning.rule import Judged, SloAnswer, Verdict, decide, slo_answer
from kvscope.tuning.target import Target
from tests.tuning.examples import BLOCK, in_turn, replace_request, tuned, window_trial

TARGET = Target(0.2)
BASE = window_trial()
HARM = (Harm("p50", 0.3, 0.25),)
BOTH = list(product([False, True], repeat=2))


def _window(meets: bool, keeps_up: bool = True) -> WindowTrial:
    target_s = 0.1 if meets else 0.3
    interval_s = target_s - 0.01, target_s + 0.01
    return replace(BASE, target_s=target_s, keeps_up=keeps_up, interval_s=interval_s)


def _judged(
    meets: tuple[bool, bool] = (True, True),
    keeps_up: tuple[bool, bool] = (True, True),
    harmed: bool = False,
    likely: float = 0.99,
) -> Judged:
    """Return a policy on both windows, and on both together."""
    windows = (_window(*each) for each in zip(meets, keeps_up, strict=True))
    later = replace(_window(all(meets)), harms=HARM if harmed else (), likely=likely)
    return Judged(*windows, later)


MEETS, MISSES = _judged(), _judged((False, False))
GROWS = _judged((False, False), (True, False))
REACHABLE, OUT_OF_REACH = _window(True), _window(False)


@pytest.mark.parametrize(
    ("lru", "choice", "infinite", "expected"),
    [
        (MEETS, None, REACHABLE, "keep-lru"),
        (MEETS, MEETS, REACHABLE, "switch"),  # wherever the SLO lies
        (MISSES, MISSES, REACHABLE, "switch"),
        (MISSES, MISSES, OUT_OF_REACH, "switch"),
        (GROWS, MEETS, REACHABLE, "switch"),  # the choice sustains the arrivals
        (MEETS, _judged(likely=0.9), REACHABLE, "keep-lru"),  # a canary
        (MISSES, _judged(likely=0.9), REACHABLE, "add-capacity"),
        (MISSES, _judged(harmed=True), REACHABLE, "add-capacity"),
        (MISSES, _judged(keeps_up=(True, False)), REACHABLE, "add-capacity"),
        (_judged((True, False)), None, REACHABLE, "add-capacity"),  # LRU has to meet it on both
        (MISSES, None, REACHABLE, "add-capacity"),
        (MISSES, None, OUT_OF_REACH, "unreachable"),
        (GROWS, None, OUT_OF_REACH, "overloaded"),  # before what an infinite cache would do
        (_judged(keeps_up=(False, True)), None, REACHABLE, "overloaded"),  # before keep-lru
    ],
)
def test_verdicts(
    lru: Judged, choice: Judged | None, infinite: WindowTrial, expected: Verdict
) -> None:
    """Each verdict where it belongs."""
    assert decide(TARGET, lru, choice, infinite) == expected


def test_every_combination() -> None:
    """What is to be done now first, then overload, what is kept, out of reach, lacks capacity."""
    verdicts = set()
    choices = [_judged(keeps_up=up, harmed=harm) for up in BOTH for harm in (False, True)]
    for meets, up, infinite in product(BOTH, BOTH, (REACHABLE, OUT_OF_REACH)):
        lru = _judged(meets, up)
        for choice in (None, *choices):
            verdict = decide(TARGET, lru, choice, infinite)
            verdicts.add(verdict)
            now = choice is not None and choice.keeps_up and not choice.harms
            assert (verdict == "switch") == now
            if now:
                continue
            assert (verdict == "overloaded") == (not all(up))
            assert (verdict == "keep-lru") == (all(up) and all(meets))
            if verdict not in {"overloaded", "keep-lru"}:
                assert (verdict == "unreachable") == (infinite is OUT_OF_REACH)
    assert verdicts == {"switch", "keep-lru", "add-capacity", "unreachable", "overloaded"}


def test_the_slo_of_output_tokens_counts() -> None:
    """What meets the TTFT alone does not meet the SLO."""
    target = Target(0.2, tpot_slo_s=0.05)

    def at(tpot_s: float | None) -> Judged:
        return Judged(*(replace(REACHABLE, tpot_s=tpot_s) for _ in range(3)))

    infinite = replace(REACHABLE, tpot_s=0.01)
    assert decide(target, at(0.05), None, infinite) == "keep-lru"
    assert decide(target, at(0.051), None, infinite) == "add-capacity"
    assert decide(target, at(None), None, infinite) == "add-capacity"


def _wide(judged: Judged) -> Judged:
    return replace(judged, later=replace(judged.later, interval_s=(0.05, 0.35)))


@pytest.mark.parametrize(
    ("judged", "ends", "expected"),
    [
        (MEETS, (), "meets"),
        (MEETS, (REACHABLE, REACHABLE), "meets"),
        (MEETS, (REACHABLE, OUT_OF_REACH), "undecided"),
        (_wide(MEETS), (), "undecided"),
        (_judged((True, False)), (), "undecided"),
        (MISSES, (OUT_OF_REACH,), "misses"),
        (MISSES, (REACHABLE,), "undecided"),
        (_wide(MISSES), (), "undecided"),
        (GROWS, (), "overloaded"),
    ],
)
def test_the_answer_to_the_slo(
    judged: Judged, ends: tuple[WindowTrial, ...], expected: SloAnswer
) -> None:
    """Both windows, the interval and all ends agree, or it is undecided."""
    assert slo_answer(TARGET, judged, ends) == expected


def test_what_the_held_out_window_rejects_is_not_run() -> None:
    """T-LRU wins until the held-out window, where it loses: LRU at the present capacity.

    There each of 60 conversations comes back once, 12 requests later and with 160 tokens more
    than any did before. LRU still has its 20 blocks; T-LRU has let go of what a turn without new
    tokens could have recomputed.
    """
    trace = in_turn()
    for at in range(360, 480):
        turn, place = divmod((at - 360) % 24, 12)
        who = 1_000 + (at - 360) // 24 * 12 + place
        ids = [who * 1_000 + depth for depth in range(20 + 10 * turn)]
        trace[at] = replace_request(trace[at], ids=ids, at_s=float(at), outputs=1)
        trace[at].chat_id, trace[at].parent_chat_id = at, at - 12 if turn else -1
    assert len(trace[-1].hash_ids or ()) * BLOCK == 480
    result = tuned(trace, 0.2, capacity_blocks=350)
    (best,) = result.contenders
    assert best.validation.recommendable(result.target)
    assert best.validation.meets(result.target)
    assert {harm.figure for harm in best.held_out.by_value} >= {"attainment"}
    assert {harm.figure for harm in best.harms} >= {"attainment"}
    assert (best.grade, result.choice) == ("no", None)
    assert result.verdict == "add-capacity"
    assert result.recommended.policy.name == "lru"
