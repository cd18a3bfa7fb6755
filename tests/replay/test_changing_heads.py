"""Shared heads that change with the time: found by their period, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvscope.core.hits import standard
from kvscope.ingest.formats.base import Request
from kvscope.replay.attribution import Attribution, attribute, lru_cache_lookups
from kvscope.replay.changing_heads import HeadChange
from tests import small_traces

SIZE = 16


def explained(trace: list[Request]) -> Attribution:
    """Return the causes in an infinite cache."""
    prompts = small_traces.prompts(small_traces.built(trace, SIZE))
    return attribute(prompts, standard(), lru_cache_lookups(prompts, standard(), None))


def asks(changing: Callable[[float, int], int], hours: float, requests: int) -> list[Request]:
    """Return requests at random times: 2 blocks that stay, one that changes, 5 shared, 3 own."""
    rng = np.random.default_rng(7)
    times = np.sort(rng.uniform(0, hours * 3600, requests))
    return [
        Request(
            input_tokens=11 * SIZE + 1,
            output_tokens=1,
            arrival_s=float(at),
            hash_ids=[1, 2, 1000 + changing(at, number), 3, 4, 5, 6, 7]
            + [10**6 + 10 * number + own for own in range(4)],
        )
        for number, at in enumerate(times)
    ]


@pytest.mark.parametrize(
    ("period_s", "hours", "requests"),
    [(60, 0.2, 300), (3600, 12, 600), (86400, 143, 500)],
    ids=["minute", "hour", "day"],
)
def test_a_head_that_changes_with_the_clock_is_a_cause(
    period_s: int, hours: float, requests: int
) -> None:
    """Wherever the clock's zero lies; what each period's first request computes again counts."""
    found = explained(asks(lambda at, _: int((at + 1234) // period_s), hours, requests))
    (change,) = found.heads.changes
    assert (change.blocks, change.period_s) == (2, period_s)
    assert found.tokens["periodic"].sum() == (change.values - 1) * 6 * SIZE
    assert (sum(found.tokens.values()) == found.missed_tokens).all()


def test_late_clocks_do_not_hide_the_period() -> None:
    """A few requests carry the hour before for some seconds."""
    late = np.random.default_rng(3).uniform(0, 40, 600)
    found = explained(asks(lambda at, number: int((at - late[number]) // 3600), 12, 600))
    assert [(each.blocks, each.period_s) for each in found.heads.changes] == [(2, 3600)]


def test_turns_that_repeat_a_changed_head_lose_their_history() -> None:
    """The time stands in the system prompt of each turn: a turn in the next hour misses all."""
    rng, trace = np.random.default_rng(1), []
    for chat, begin in enumerate(np.sort(rng.uniform(0, 10 * 3600, 200))):
        for turn in range(3):
            at = float(begin + 1000 * turn)
            ids = [1, 1000 + int(at // 3600), 2, 3]
            ids += [10**6 + 100 * chat + block for block in range(4 * (turn + 1))]
            trace.append(
                Request(
                    input_tokens=len(ids) * SIZE + 1,
                    output_tokens=1,
                    arrival_s=at,
                    hash_ids=[*ids, 10**8 + 3 * chat + turn],
                    chat_id=3 * chat + turn,
                    parent_chat_id=3 * chat + turn - 1 if turn else None,
                )
            )
    trace.sort(key=lambda each: each.arrival_s or 0.0)
    found = explained(trace)
    assert [(each.blocks, each.period_s) for each in found.heads.changes] == [(1, 3600)]
    assert found.tokens["diverged"].sum() == 0
    hour = np.array([int((each.arrival_s or 0) // 3600) for each in trace])
    prompts = small_traces.prompts(small_traces.built(trace, SIZE))
    later = (prompts.parent >= 0) & (hour[prompts.parent] != hour)
    repeated = prompts.full_blocks[prompts.parent] - found.heads.end
    assert later.any()
    assert (repeated[later] <= 0).all()


@pytest.mark.parametrize(
    "changing",
    [
        lambda _, number: number,  # another one in each request: plain prompts
        lambda _, number: number % 12,  # templates in turn
        lambda at, _: int((at / 3600) ** 1.5),  # irregular: sessions one after the other
        lambda at, _: int(at // 3600) % 2,  # it comes back
    ],
    ids=["unique", "templates", "irregular", "returning"],
)
def test_other_branches_are_no_period(changing: Callable[[float, int], int]) -> None:
    """Of prompts that merely differ nothing is said."""
    assert explained(asks(changing, 12, 600)).heads.changes == ()


def test_every_change_counts_its_contents() -> None:
    """As many as there are hours."""
    found = explained(asks(lambda at, _: int(at // 3600), 12, 600))
    assert found.heads.changes == (HeadChange(2, 3600, 12),)
