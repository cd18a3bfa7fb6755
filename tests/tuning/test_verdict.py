"""The verdict for every combination of what was measured, and a choice that is rejected."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from kvscope.tuning.comparison import Harm, WindowTrial
from kvscope.tuning.target import Target
from kvscope.tuning.verdict import Judged, Verdict, decide
from tests.tuning.examples import BLOCK, in_turn, replace_request, tuned, window_trial

TARGET = Target(0.2)
BASE = window_trial()
HARM = (Harm("p50", 0.3, 0.25),)
BOTH = list(product([False, True], repeat=2))


def _window(meets: bool, keeps_up: bool = True, harmed: bool = False) -> WindowTrial:
    return replace(
        BASE, target_s=0.1 if meets else 0.3, keeps_up=keeps_up, harms=HARM if harmed else ()
    )


def _judged(
    meets: tuple[bool, bool] = (True, True),
    keeps_up: tuple[bool, bool] = (True, True),
    harmed: bool = False,
) -> Judged:
    """Return a policy on both windows; what is harmed is so on the held-out one."""
    return Judged(_window(meets[0], keeps_up[0]), _window(meets[1], keeps_up[1], harmed))


MEETS, MISSES = _judged(), _judged((False, False))
GROWS = _judged((False, False), (True, False))
REACHABLE, OUT_OF_REACH = _window(True), _window(False)


@pytest.mark.parametrize(
    ("lru", "choice", "infinite", "expected"),
    [
        (MEETS, None, REACHABLE, "keep-lru"),
        (MEETS, MEETS, REACHABLE, "keep-lru"),  # nothing to mend
        (MISSES, MEETS, REACHABLE, "switch"),
        (_judged((True, False)), MEETS, REACHABLE, "switch"),  # LRU has to meet it on both
        (_judged((False, True)), MEETS, REACHABLE, "switch"),
        (MISSES, _judged((True, False)), REACHABLE, "add-capacity"),
        (MISSES, _judged((False, True)), REACHABLE, "add-capacity"),
        (MISSES, _judged(harmed=True), REACHABLE, "add-capacity"),  # rejected on the held-out one
        (MISSES, _judged(keeps_up=(True, False)), REACHABLE, "add-capacity"),
        (MISSES, None, REACHABLE, "add-capacity"),
        (MISSES, None, OUT_OF_REACH, "unreachable"),
        (MISSES, MISSES, OUT_OF_REACH, "unreachable"),
        (GROWS, None, REACHABLE, "overloaded"),
        (GROWS, GROWS, OUT_OF_REACH, "overloaded"),  # before what an infinite cache would do
        (_judged(keeps_up=(False, True)), None, REACHABLE, "overloaded"),  # before keep-lru
        (_judged(keeps_up=(True, False)), _judged(harmed=True), REACHABLE, "overloaded"),
        (GROWS, MEETS, REACHABLE, "switch"),  # the choice sustains the arrivals
        (GROWS, MISSES, REACHABLE, "add-capacity"),
    ],
)
def test_situations(
    lru: Judged, choice: Judged | None, infinite: WindowTrial, expected: Verdict
) -> None:
    """Each verdict where it belongs."""
    assert decide(TARGET, lru, choice, infinite) == expected


def test_every_combination() -> None:
    """Overload first, then what is kept, switched to, out of reach, or lacks capacity.

    LRU and the choice each meet the SLO and keep up or not on either window, and the held-out
    window finds the choice harmful or not.
    """
    verdicts = set()
    some = [_judged(meets, up, harmed) for meets in BOTH for up in BOTH for harmed in (False, True)]
    for meets, up, infinite in product(BOTH, BOTH, (REACHABLE, OUT_OF_REACH)):
        lru = _judged(meets, up)
        for choice in (None, *some):
            verdict = decide(TARGET, lru, choice, infinite)
            verdicts.add(verdict)
            sustained = choice is not None and choice.keeps_up and not choice.held_out.harms
            enough = sustained and choice is not None and choice.meets(TARGET)
            kept = all(up) and all(meets)
            left = {"overloaded", "keep-lru", "switch"}
            assert (verdict == "overloaded") == (not all(up) and not sustained)
            assert (verdict == "keep-lru") == kept
            assert (verdict == "switch") == (enough and not kept)
            if verdict not in left:
                assert (verdict == "unreachable") == (infinite is OUT_OF_REACH)
    assert verdicts == {"switch", "keep-lru", "add-capacity", "unreachable", "overloaded"}


def test_the_slo_of_output_tokens_counts() -> None:
    """A switch that meets the TTFT alone is none."""
    target = Target(0.2, tpot_slo_s=0.05)

    def at(tpot_s: float | None) -> Judged:
        return Judged(*(replace(each, tpot_s=tpot_s) for each in (REACHABLE, REACHABLE)))

    infinite = replace(REACHABLE, tpot_s=0.01)
    assert decide(target, MISSES, at(0.05), infinite) == "switch"
    assert decide(target, MISSES, at(0.051), infinite) == "add-capacity"
    assert decide(target, MISSES, at(None), infinite) == "add-capacity"
    assert decide(target, at(0.05), None, infinite) == "keep-lru"


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
    assert result.choice is not None
    assert result.choice.validation.recommendable(result.target)
    assert result.choice.validation.meets(result.target)
    assert {harm.figure for harm in result.choice.held_out.harms} >= {"attainment"}
    assert result.verdict == "add-capacity"
    assert result.recommended.policy.name == "lru"
    best = result.contenders[0]
    assert best.policy.name == "tlru"  # it stays the choice; nothing else is looked for
