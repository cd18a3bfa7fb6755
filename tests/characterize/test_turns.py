from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.characterize import history
from kvscope.characterize.turns import NextTurn, TurnCount, next_turns, turns
from kvscope.characterize.windows import Windows
from tests.characterize.tiny import CHAT_1, CHAT_2, REQUESTS, SEARCH_1, lengths_only, tiny_store


def test_turns_per_conversation() -> None:
    """Three conversations have one turn, one has two."""
    with tiny_store() as (store, trace):
        found = turns(store, trace)
    assert found is not None
    assert found.conversations == 4
    assert found.histogram == (TurnCount(1, 3), TurnCount(2, 1))
    assert found.single_turn_share == 3 / 4
    assert (found.turns.mean, found.turns.p50, found.turns.p80, found.turns.max) == (1.25, 1, 2, 2)


def test_turns_by_user() -> None:
    """User 1 has conversations of two and one turns, user 2 two of one."""
    with tiny_store() as (store, trace):
        found = turns(store, trace)
    assert found is not None
    assert found.users is not None
    assert found.users.users == 2
    assert (found.users.mean.mean, found.users.mean.p50, found.users.mean.max) == (1.25, 1, 1.5)
    assert found.users.deviation is not None
    assert found.users.deviation.p50 == 0
    assert found.users.deviation.max == pytest.approx(0.5**0.5)


def test_next_turns_by_category() -> None:
    """Only r0 is continued, after 10 s; so r4, at the end, is the one that is not settled."""
    with tiny_store() as (store, trace):
        found = next_turns(store, trace)
    assert found is not None
    assert found.settle_s == 10
    assert {row.category: row.next_turn for row in found.by_category} == {
        CHAT_1: NextTurn(2, 1 / 2, 2, 1 / 2),
        CHAT_2: NextTurn(1, 0, 1, 0),
        SEARCH_1: NextTurn(2, 0, 1, 0),
    }
    assert found.overall == NextTurn(5, 1 / 5, 4, 1 / 4)
    assert found.after_first_turn == NextTurn(4, 1 / 4, 3, 1 / 3)
    assert found.after_later_turns == NextTurn(1, 0, 1, 0)


def test_next_turns_over_time() -> None:
    """A window that reaches into the last 10 s is not settled."""
    with tiny_store() as (store, trace):
        found = next_turns(store, trace, Windows(30.0, 4))
    assert found is not None
    rows = [(r.start_s, r.category, r.requests, r.probability, r.settled) for r in found.over_time]
    assert rows == [
        (0, CHAT_1, 1, 1, True),
        (30, CHAT_1, 1, 0, True),
        (0, CHAT_2, 1, 0, True),
        (0, SEARCH_1, 1, 0, True),
        (90, SEARCH_1, 1, 0, False),
    ]


def test_turns_need_a_lineage_and_no_hashes() -> None:
    """Conversations can be known without block hashes, but not without a lineage."""
    with lengths_only("given") as (store, trace):
        found = turns(store, trace)
        assert found is not None
        assert (found.conversations, found.users) == (4, None)
        assert next_turns(store, trace) is not None
    with lengths_only("none") as (store, trace):
        assert turns(store, trace) is None
        assert next_turns(store, trace) is None


def test_what_is_asked_just_in_time_is_settled() -> None:
    """The trace ends at 100 s and turns follow within 10 s: what arrives by 90 s is settled."""
    columns = {**REQUESTS, "arrival_s": [0.0, 10.0, 85.0, 90.0, 100.0]}
    with tiny_store(columns) as (store, trace):
        found = next_turns(store, trace, Windows(10.0, 10))
    assert found is not None
    assert found.settle_s == 10
    assert (found.overall.requests, found.overall.settled_requests) == (5, 4)
    settled = {row.start_s: row.settled for row in found.over_time}
    assert settled == {0: True, 10: True, 80: True, 90: False}


@pytest.mark.parametrize("at_once", [1 << 20, 2])
def test_what_is_settled_is_the_p90_of_delays(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten turns after 1, 2, … 10 s: nine of them within 9 s, however few are read at a time."""
    numbers = list(range(11))
    columns = {name: values[:1] * len(numbers) for name, values in REQUESTS.items()} | {
        "request": numbers,
        "arrival_s": [float(k * (k + 1) // 2) for k in numbers],
        "parent": [None, *numbers[:-1]],
    }
    monkeypatch.setattr(history, "AT_ONCE", at_once)
    with tiny_store(columns) as (store, trace):
        for work in (None, tmp_path):
            found = next_turns(store, trace, work=work)
            assert found is not None
            assert found.settle_s == 9


def test_a_next_turn_of_an_unsettled_request_counts_only_among_all() -> None:
    """One conversation, turns after 10, 9, … 1 s: what arrives after 46 s of 55 is not settled."""
    numbers = list(range(11))
    columns = {name: values[:1] * len(numbers) for name, values in REQUESTS.items()} | {
        "request": numbers,
        "arrival_s": [float(55 - (10 - k) * (11 - k) // 2) for k in numbers],
        "parent": [None, *numbers[:-1]],
    }
    with tiny_store(columns) as (store, trace):
        found = next_turns(store, trace)
    assert found is not None
    assert found.settle_s == 9
    assert found.overall == NextTurn(11, 10 / 11, 7, 1.0)
