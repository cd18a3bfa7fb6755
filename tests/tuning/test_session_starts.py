"""Sessions without a common clock: the answer is repeated with other starts of them."""

from __future__ import annotations

import pytest

from kvscope.ingest.clocks import SessionStarts
from kvscope.ingest.formats.base import Request
from kvscope.tuning.tuner import End
from tests.tuning.examples import BLOCK, in_turn, tuned

BLOCKS, TURNS = 20, 25
SLO_S = 0.2  # a hit takes 26 ms, a miss 330 ms


def back_to_back(sessions: int = 40, *, clocks: bool = True) -> list[Request]:
    """Sessions that send one prompt each, every second, one session after the other.

    Without clocks of their own they have one together.
    """
    return [
        Request(
            input_tokens=BLOCKS * BLOCK,
            output_tokens=1,
            arrival_s=float(number * TURNS + turn),
            hash_ids=[number * 1_000 + depth for depth in range(BLOCKS)],
            session_id=number,
            clock=number if clocks else None,
        )
        for number in range(sessions)
        for turn in range(TURNS)
    ]


def starts(rate: float, seed: int = 1) -> End:
    """Return sessions that begin at this rate."""
    return End(f"{rate:g} sessions/s", sessions=SessionStarts(rate, seed, 0.0))


def test_an_answer_that_depends_on_concurrency_is_shown_at_both() -> None:
    """Two sessions fit: LRU hits with few open at a time, and misses with many."""
    ends = (starts(0.001), starts(1.0), starts(1.0, seed=2))
    result = tuned(back_to_back(), SLO_S, capacity_blocks=2 * BLOCKS, ends=ends)
    few, many, other = result.ends
    assert result.verdict == few.verdict == "keep-lru"
    assert few.baseline.target_s == result.baseline.target_s == pytest.approx(0.026)
    assert many.verdict == other.verdict == "add-capacity"
    assert many.baseline.target_s == pytest.approx(0.33)
    assert many.baseline.outcome.token_hit_rate < 0.5 < few.baseline.outcome.token_hit_rate
    assert many.baseline.outcome != other.baseline.outcome
    assert not result.certain
    assert result.disagreeing == (many, other)


def test_a_choice_that_gains_nothing_elsewhere_is_not_eligible_there() -> None:
    """In turn LRU loses each conversation before it returns; one after the other it loses none."""
    trace = in_turn()
    for request in trace:
        request.clock = int(request.arrival_s or 0) % 20
    result = tuned(trace, SLO_S, capacity_blocks=350, ends=(starts(1e-4), starts(1.0)))
    assert result.verdict == "switch"
    sparse, dense = result.ends
    assert (sparse.verdict, sparse.eligible) == ("keep-lru", False)
    assert (dense.verdict, dense.eligible) == ("switch", True)
    assert sparse.choice is not None
    assert sparse.choice.policy == result.recommended.policy
    assert not result.certain
