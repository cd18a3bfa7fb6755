"""The rule by which a policy goes over to another candidate, and back."""

from __future__ import annotations

from kvscope.policies.guard import FALLBACK, FIRST, Guard, Rule

RULE = Rule(begins_with=FIRST, evidence=3, margin=0.1)


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
