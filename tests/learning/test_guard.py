"""The rule by which a policy goes over to another candidate, and back."""

from __future__ import annotations

from collections.abc import Sequence

from kvscope.learning.guard import FALLBACK, Guard, Rule
from kvscope.learning.returns.formulas import FIRST, LRU

RULE = Rule(begins_with=FIRST, looks=1, evidence=3, late=0, margin=0.1)
LONG = Rule(begins_with=FIRST, looks=1, evidence=6, late=0, margin=0.01)
LATE = LONG._replace(late=2)


def test_it_begins_with_the_first_class_set_and_stays_where_all_are_alike() -> None:
    """No evidence, or none of a difference, changes nothing."""
    guard = Guard(4, RULE)
    assert guard.decide(0) == FIRST
    guard.computed(0, [0.0] * 4)
    assert guard.decide(1) == FIRST
    guard.computed(1, [5.0] * 4)
    assert guard.decide(2) == FIRST
    assert guard.judged == [5.0] * 4


def test_another_is_taken_up_for_more_than_the_margin() -> None:
    """Just the margin is not enough, unless the other is what it falls back to."""
    guard = Guard(4, RULE)
    guard.computed(0, [100.0, 100.0, 100.0, 90.0])
    assert guard.decide(1) == FIRST
    guard.computed(1, [100.0, 100.0, 100.0, 89.0])
    assert guard.decide(2) == FIRST + 1
    guard.computed(2, [0.0, 50.0, 50.0, 22.0])
    assert guard.decide(3) == FALLBACK


def test_what_is_old_does_not_count_nor_what_is_not_over() -> None:
    """Three stretches, those without any request among them."""
    guard = Guard(3, RULE)
    guard.computed(0, [1.0, 9.0, 9.0])
    assert guard.decide(0) == FIRST
    assert guard.decide(4) == FIRST
    guard.computed(2, [1.0, 9.0, 9.0])
    assert guard.decide(5) == FALLBACK


def test_what_is_told_late_counts_for_its_time() -> None:
    """As of requests that end long after they came."""
    guard = Guard(3, RULE)
    guard.computed(0, [9.0, 9.0, 9.0])
    guard.computed(1, [9.0, 9.0, 9.0])
    assert guard.decide(2) == FIRST
    guard.computed(0, [0.0, 9.0, 9.0])
    assert guard.decide(3) == FALLBACK
    assert guard.judged == [18.0, 27.0, 27.0]
    assert guard.decide(4) == FALLBACK
    guard.computed(0, [99.0, 0.0, 0.0])  # too late
    assert guard.decide(5) == FALLBACK


def test_evidence_can_be_void() -> None:
    """The choice stays."""
    guard = Guard(3, RULE)
    guard.computed(0, [0.0, 9.0, 9.0])
    guard.forget()
    assert guard.decide(1) == FIRST
    assert guard.judged == [0.0] * 3


def decided(rule: Rule, computed: Sequence[Sequence[float]]) -> list[int]:
    """Return the candidate in force in each interval, by what each computed in it."""
    guard, found = Guard(len(computed[0]), rule), []
    for stretch, tokens in enumerate(computed):
        found.append(guard.decide(stretch))
        guard.computed(stretch, tokens)
    return found


def test_one_that_does_worse_than_lru_of_late_is_given_up() -> None:
    """However much it had gained before; and nothing changes before there is so much to see."""
    stretches = [[1000.0, 1000.0, 700.0] for _ in range(9)]
    stretches[0][FIRST] = 1400.0  # too early to tell in the next one, not in the one after it
    stretches[4][FIRST] = 1301.0  # more than it gained in the stretch before
    assert decided(LATE, stretches) == [FIRST, FIRST, LRU, FIRST, FIRST, LRU, LRU, FIRST, FIRST]
    assert decided(LONG, stretches) == [FIRST, LRU, LRU, *[FIRST] * 6]


def test_of_those_given_up_none_is_taken_up() -> None:
    """The best of the evidence is passed over where it has done worse than LRU of late."""
    stretches = [[1000.0, 990.0, 900.0, 950.0] for _ in range(9)]
    for stretch in (4, 5):
        stretches[stretch][FIRST] = 1050.0
    assert decided(LATE, stretches)[5:] == [FIRST, FIRST + 1, FIRST + 1, FIRST + 1]


def test_when_evidence_is_void_it_waits_again() -> None:
    """As it does at first: one stretch alone would tell little."""
    guard = Guard(3, LATE)
    for stretch in range(4):
        assert guard.decide(stretch) == FIRST
        guard.computed(stretch, [10.0] * 3)
    guard.forget()
    for stretch, expected in enumerate([FIRST, FIRST, LRU], start=4):
        assert guard.decide(stretch) == expected
        guard.computed(stretch, [10.0, 10.0, 11.0])
