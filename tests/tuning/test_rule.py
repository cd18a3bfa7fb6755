"""What a change is worth, the verdict, and whether the SLO is met: from what was measured."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from kvscope.core.hits import standard
from kvscope.latency.profile import PRESETS
from kvscope.policies.registry import by_name
from kvscope.replay.policy_options import Variant
from kvscope.replay.settings import run_setting
from kvscope.synth.to_c import ToC
from kvscope.tuning.bootstrap import Gain
from kvscope.tuning.comparison import Harm, WindowTrial
from kvscope.tuning.rule import Judged, PolicyComparison, SloAnswer, decide, slo_answer
from kvscope.tuning.split import Split
from kvscope.tuning.target import Target
from tests.tuning.examples import BLOCK, in_turn, recorded, replace_request, tuned, window_trial

HARM = (Harm("p50", 0.3, 0.25),)
BOTH = list(product([False, True], repeat=2))
TARGET = Target(0.2)
BASE = window_trial()
SPLIT = Split(200, 300, 250, 250, 0.0, 0.0)
WIDE = Gain(0.1, -0.06, 0.3)
WORSE = Gain(-0.05, -0.1, 0.01)
TAIL = Harm("p95", 0.06, 0.02)


def judged(
    *,
    likely: float = 0.99,
    harms: tuple[Harm, ...] = (),
    gain: Gain = WIDE,
    keeps_up: bool = True,
    rejected: Gain | None = None,
    alike: str = "",
) -> Judged:
    """Return a policy on both windows together; on the held-out one its p95 may be `rejected`.

    On a window that is `alike` it does what LRU does.
    """
    nothing = Gain(0.0, 0.0, 0.0)
    same = replace(BASE, gains={"p95": nothing, "tel": nothing})
    held_out = replace(same if alike == "held-out" else BASE, keeps_up=keeps_up)
    if rejected:
        held_out = replace(held_out, gains={"p95": rejected, "tel": WIDE}, harms=(TAIL,))
    later = replace(BASE, likely=likely, harms=harms, gains={"p95": gain, "tel": gain})
    return Judged(same if alike == "validation" else BASE, held_out, later)


def compared(*contenders: Judged) -> PolicyComparison:
    """Return contenders in this order."""
    return PolicyComparison(
        target=TARGET,
        split=SPLIT,
        capacity_blocks=10,
        replicas=1,
        lru=judged(),
        contenders=contenders,
    )


NOW, CANARY, HARMFUL = judged(), judged(likely=0.85), judged(harms=(TAIL,))


@pytest.mark.parametrize(
    ("contender", "grade"),
    [
        (NOW, "do-now"),
        (judged(likely=0.95), "do-now"),
        (CANARY, "canary"),
        (judged(likely=0.79), "no"),
        (HARMFUL, "no"),
        (judged(keeps_up=False), "no"),
        (judged(rejected=WORSE), "no"),  # by value, on the held-out window
        (judged(rejected=WIDE), "do-now"),  # one window alone has a wider interval
        (judged(alike="validation"), "no"),
        (judged(likely=0.85, alike="held-out"), "no"),
    ],
)
def test_grades(contender: Judged, grade: str) -> None:
    """No harm, and a gain that is as good as certain, or likely, and shows on both windows."""
    assert contender.grade == grade


def test_what_is_rejected_gives_way_to_the_next() -> None:
    """The first to change to now, though others came before; else the first for a canary."""
    assert compared(HARMFUL, CANARY, NOW).choice is NOW
    other = judged(likely=0.9)
    assert compared(HARMFUL, other, CANARY).choice is other
    none = compared(HARMFUL, HARMFUL)
    assert (none.choice, none.grade, none.chosen) == (None, "no", none.lru)
    assert compared().grade == "no"


def test_requests_that_would_show_it() -> None:
    """The interval of a p95 10 % lower must shrink to 12 %, with 80 % power: by 1.43 x 0.16."""
    needed = HARMFUL.requests_needed(TARGET, 1_000)
    assert 3_600 < 1_000 * (0.16 / 0.12 * 2.802 / 1.96) ** 2 <= 3_700 == needed
    assert NOW.requests_needed(TARGET, 1_000) == 1_000
    more = CANARY.requests_needed(TARGET, 1_000)
    assert more is not None
    assert more > 1_000
    for other in (
        judged(harms=(TAIL,), gain=WORSE),  # more of what is worse stays worse
        judged(harms=(Harm("p50", 0.3, 0.25),)),
        judged(likely=0.5),
        judged(harms=(TAIL,), gain=Gain(0.3, float("-inf"), float("inf"))),
    ):
        assert other.requests_needed(TARGET, 1_000) is None
    assert compared(judged(likely=0.4), HARMFUL).promising == (HARMFUL, needed)
    assert compared(HARMFUL, CANARY).promising is None
    for enough in (judged(keeps_up=False), judged(rejected=WORSE)):
        assert enough.requests_needed(TARGET, 1_001) == 1_001
        assert compared(enough).promising is None  # harm that more requests do not take away


@pytest.mark.parametrize("slo_s", [0.02, 0.2, 0.5])
def test_a_change_is_worth_the_same_wherever_the_slo_lies(slo_s: float) -> None:
    """LRU loses every conversation before it returns: whether it meets the SLO does not matter."""
    result = tuned(in_turn(), slo_s, (Variant(by_name("gittins")),), capacity_blocks=350)
    gain = result.contenders[0].later.gains["p95"]
    assert gain.value > 0.5 or slo_s == 0.5
    if slo_s == 0.5:  # no request is late, so that nothing can be better
        assert result.grade == "no"
        return
    assert (result.grade, result.verdict) == ("do-now", "switch")


def test_a_gain_of_few_requests_is_not_recommended_but_said() -> None:
    """1,500 requests of chats: how many would do, of the contender that gains."""
    trace = recorded(ToC().generate(requests=1_500, seed=3))
    setting = run_setting(standard(), PRESETS["llama2-7b-a100"])
    gittins = (Variant(by_name("gittins")),)
    result = tuned(trace, 0.35, gittins, capacity_blocks=11_417, setting=setting)
    assert result.grade == "no"
    assert result.promising is not None
    contender, needed = result.promising
    assert contender.later.gains["p95"].value > 0
    assert needed > 1_500


def test_a_window_s_two_halves_make_up_the_later_requests() -> None:
    """Times on both windows, one after the other, are those of both together."""
    result = tuned(in_turn(), 0.2, capacity_blocks=350)
    for each, window in product((result.lru, *result.contenders), ("ttft_s",)):
        parts = [*each.validation.ttft_s, *each.held_out.ttft_s]
        assert getattr(each.later, window).tolist() == parts


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


def test_every_combination() -> None:
    """What is to be done now first, then overload, what is kept, out of reach, lacks capacity."""
    verdicts = set()
    choices = [
        _judged(keeps_up=up, harmed=harm, likely=likely)
        for up in BOTH
        for harm in (False, True)
        for likely in (0.9, 0.99)  # for a canary alone, or to change to now
    ]
    for meets, up, infinite in product(BOTH, BOTH, (REACHABLE, OUT_OF_REACH)):
        lru = _judged(meets, up)
        for choice in (None, *choices):
            verdict = decide(TARGET, lru, choice, infinite)
            verdicts.add(verdict)
            now = choice is not None and choice.keeps_up and not choice.harms
            now = now and choice.later.likely == 0.99
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
    assert (best.validation.harms, best.validation.gains["p95"].low > 0) == ((), True)
    assert best.validation.meets(result.target)
    assert {harm.figure for harm in best.held_out.by_value} >= {"attainment"}
    assert {harm.figure for harm in best.harms} >= {"attainment"}
    assert (best.grade, result.choice) == ("no", None)
    assert result.verdict == "add-capacity"
    assert result.recommended.policy.name == "lru"
