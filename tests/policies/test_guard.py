"""Which candidate a guard goes by, from what each one computed."""

from __future__ import annotations

from collections.abc import Sequence

from kvscope.policies.guard import FIRST, LRU, NEED, Guard, Rule

PLAIN = Rule(begins_with=FIRST, looks=1, evidence=6, late=0, margin=0.01)
LATE = PLAIN._replace(late=2)


def decided(rule: Rule, computed: Sequence[Sequence[float]]) -> list[int]:
    """The candidate in force in each stretch, given what each candidate computed in it."""
    guard, found = Guard(len(computed[0]), rule), []
    for stretch, tokens in enumerate(computed):
        found.append(guard.decide(stretch))
        guard.computed(stretch, tokens)
    return found


def test_one_is_taken_up_for_a_margin_and_left_where_lru_is_better() -> None:
    """Judged by the six stretches before."""
    stretches = [[1000.0] * 4 for _ in range(9)]
    stretches[0][FIRST] = 995.0  # better than the other set, by less than the margin
    stretches[1][FIRST + 1] = 950.0  # now the other set is better by more
    stretches[2][FIRST + 1] = 1051.0  # worse than LRU, over all three: LRU
    stretches[3][NEED] = 900.0  # need alone
    assert decided(PLAIN, stretches) == [FIRST, FIRST, FIRST + 1, LRU, *[NEED] * 5]
    assert decided(PLAIN, [[0.0] * 4] * 9) == [FIRST] * 9


def test_one_that_does_worse_than_lru_of_late_is_given_up() -> None:
    """However much it had gained before; and nothing changes before there is so much to see."""
    stretches = [[1000.0, 1000.0, 700.0] for _ in range(9)]
    stretches[0][FIRST] = 1400.0  # too early to tell in the next one, not in the one after it
    stretches[4][FIRST] = 1301.0  # more than it gained in the stretch before
    assert decided(LATE, stretches) == [FIRST, FIRST, LRU, FIRST, FIRST, LRU, LRU, FIRST, FIRST]
    assert decided(PLAIN, stretches) == [FIRST, LRU, LRU, *[FIRST] * 6]


def test_of_those_given_up_none_is_taken_up() -> None:
    """The best of the evidence is passed over where it has done worse than LRU of late."""
    stretches = [[1000.0, 990.0, 900.0, 950.0] for _ in range(9)]
    for stretch in (4, 5):
        stretches[stretch][FIRST] = 1050.0
    assert decided(LATE, stretches)[5:] == [FIRST, FIRST + 1, FIRST + 1, FIRST + 1]


def test_what_is_told_late_counts_when_it_was_computed() -> None:
    """A request that ends after the stretch it came in counts in that one."""
    guard = Guard(3, LATE)
    for stretch in range(4):
        assert guard.decide(stretch) == FIRST
    guard.computed(2, [10.0, 10.0, 12.0])
    assert guard.decide(4) == LRU
    assert guard.judged == guard.lately == [10.0, 10.0, 12.0]
    guard.forget()
    assert guard.decide(5) == LRU
    assert guard.judged == [0.0] * 3
