"""How a change of policy is graded, which one is chosen, and how many requests would show it."""

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
from kvscope.tuning.comparison import Harm
from kvscope.tuning.rule import Judged, PolicyComparison
from kvscope.tuning.split import Split
from kvscope.tuning.target import Target
from tests.tuning.examples import in_turn, recorded, tuned, window_trial

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
) -> Judged:
    """Return a policy on both windows together; on the held-out one its p95 may be `rejected`."""
    held_out = replace(BASE, keeps_up=keeps_up)
    if rejected:
        held_out = replace(held_out, gains={"p95": rejected}, harms=(TAIL,))
    later = replace(BASE, likely=likely, harms=harms, gains={"p95": gain, "tel": gain})
    return Judged(BASE, held_out, later)


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
    ],
)
def test_grades(contender: Judged, grade: str) -> None:
    """No harm, and a gain that is as good as certain, or likely."""
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
    """2,000 requests of chats: how many would do, of the contender that gains."""
    trace = recorded(ToC().generate(requests=2_000, seed=3))
    setting = run_setting(standard(), PRESETS["llama2-7b-a100"])
    gittins = (Variant(by_name("gittins")),)
    result = tuned(trace, 0.35, gittins, capacity_blocks=11_417, setting=setting)
    assert result.grade == "no"
    assert result.promising is not None
    contender, needed = result.promising
    assert contender.later.gains["p95"].value > 0
    assert needed > 2_000


def test_a_window_s_two_halves_make_up_the_later_requests() -> None:
    """Times on both windows, one after the other, are those of both together."""
    result = tuned(in_turn(), 0.2, capacity_blocks=350)
    for each, window in product((result.lru, *result.contenders), ("ttft_s",)):
        parts = [*each.validation.ttft_s, *each.held_out.ttft_s]
        assert getattr(each.later, window).tolist() == parts
