"""What is known of a request: against a walk block by block, and never from the future."""

from __future__ import annotations

import math
from itertools import chain as chain_of

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.learning.ends.chances import FEATURES, NOTHING, SHARED_HEAD
from kvscope.learning.ends.offline import turn_features
from kvscope.replay.last_touch import last_touch_segments
from kvscope.replay.traffic import Traffic
from tests.learning.test_prefix_features import MEMORIES_S, answered
from tests.learning.test_refit_tables import first, told
from tests.learning.test_returns_offline import chain
from tests.oracles.replay import paths
from tests.oracles.turns import turns_before, walk

FOREVER = 1e9


def by_name(of: Traffic, memory_s: float = FOREVER) -> dict[str, list[float]]:
    """Return the features, each by its name."""
    found = turn_features(of, last_touch_segments(of), memory_s).known
    return {name: found[:, at].tolist() for at, name in enumerate(FEATURES)}


def walked(of: Traffic, memory_s: float) -> tuple[list[dict[str, float]], list[float]]:
    """Return features and waits for the next turn, found one block at a time."""
    found, next_s = walk(of, memory_s, SHARED_HEAD)
    arrival_s = of.arrival_s.tolist()
    known: list[dict[str, float]] = []
    for at, one in enumerate(found):
        full, before = int(of.input_tokens[at]) // of.block_size, turns_before(found, at)
        known.append(
            {
                "new_tokens": (full - one.known) * of.block_size,
                "input_tokens": int(of.input_tokens[at]),
                "output_tokens": int(of.history_tokens[at] - of.input_tokens[at]),
                "shared_share": one.known / max(full, 1),
                "turns": len(before),
                "since_s": arrival_s[at] - arrival_s[before[0]] if before else NOTHING,
                "mean_gap_s": (
                    (arrival_s[at] - arrival_s[before[-1]]) / len(before) if before else NOTHING
                ),
                "head_requests": one.head,
            }
        )
    return known, next_s


@settings(deadline=None, max_examples=150)
@given(answered(), MEMORIES_S)
def test_features_are_those_of_a_walk(of: Traffic, memory_s: float) -> None:
    """Every feature of every request, and how long its next turn takes."""
    found = turn_features(of, last_touch_segments(of), memory_s)
    known, next_s = walked(of, memory_s)
    assert found.next_s.tolist() == next_s
    for at, one in enumerate(known):
        assert found.known[at].tolist() == pytest.approx([one[name] for name in FEATURES])


def told_by(of: Traffic, requests: int) -> Traffic:
    """Return the first requests' traffic, with outputs as far as those requests carry them.

    None of what later ones carry on is on a path.
    """
    every, before = paths(of), first(of, requests)
    length, leaf = before.length.copy(), before.leaf.copy()
    for at in range(requests):
        touched = set(chain_of.from_iterable(every[at + 1 : requests]))
        prompt = int(of.input_tokens[at]) // of.block_size
        depths = [depth + 1 for depth, block in enumerate(every[at]) if block in touched]
        length[at] = max([min(prompt, len(every[at])), *depths])
        leaf[at] = every[at][length[at] - 1] if length[at] else 0
    return before._replace(length=length, leaf=leaf)


@settings(deadline=None, max_examples=150)
@given(answered(), MEMORIES_S, st.data())
def test_outputs_tell_nothing_before_they_are_carried_on(
    of: Traffic, memory_s: float, data: st.DataObject
) -> None:
    """Features and waits hang on no block that only later requests tell of."""
    requests = data.draw(st.integers(0, len(of.leaf)))
    whole, known = first(of, requests), told_by(of, requests)
    found, alone = (
        turn_features(one, last_touch_segments(one), memory_s) for one in (whole, known)
    )
    assert np.array_equal(alone.known, found.known)
    assert np.array_equal(alone.next_s, found.next_s)


def test_features_of_a_conversation() -> None:
    """A longer turn; a repeat; one that leaves it half-way; a repeat of a turn before that."""
    of = chain([4, 8, 8, 4, 8], [0.0, 5.0, 55.0, 300.0, 310.0], output=300)
    found = by_name(of)
    assert found["new_tokens"] == [4, 4, 0, 0, 0]
    assert found["shared_share"] == [0.0, 0.5, 1.0, 1.0, 1.0]
    assert found["turns"] == [0, 1, 2, 0, 3]
    assert found["since_s"] == [NOTHING, 5.0, 50.0, NOTHING, 255.0]
    assert found["mean_gap_s"] == [NOTHING, 5.0, 27.5, NOTHING, 310.0 / 3]
    assert found["head_requests"] == [0, 1, 2, 3, 4]
    assert found["output_tokens"] == [300] * 5
    assert by_name(of, 100.0)["head_requests"] == [0, 1, 2, 0, 1]


def test_a_head_that_many_share_is_no_turn() -> None:
    """After four ways of going on, whoever asks for the head alone is not followed by the fifth."""
    tails, size = 6, 2
    requests = 2 * tails
    leaf = np.array([1 if at % 2 == 0 else 2 + at // 2 for at in range(requests)], dtype=np.int32)
    length = np.array([1, 2] * tails, dtype=np.int32)
    of = chain([1] * requests, [float(at) for at in range(requests)])._replace(
        block_size=size,
        block_parent=np.array([0, 0, *[1] * tails], dtype=np.int32),
        leaf=leaf,
        length=length,
        look=length,
        input_tokens=length * size,
        history_tokens=(length * size).astype(np.int64),
    )
    next_s = turn_features(of, last_touch_segments(of), FOREVER).next_s
    assert next_s[::2].tolist() == [1.0] * SHARED_HEAD + [math.inf] * (tails - SHARED_HEAD)
    assert by_name(of)["turns"][1::2] == [1] * SHARED_HEAD + [0] * (tails - SHARED_HEAD)


@pytest.mark.parametrize("name", ["to-c", "agent", "regime-change"])
def test_features_do_not_change_with_the_future(name: str) -> None:
    """They are the same where later requests are others, or none; so are waits that were over."""
    of, half = told(name), 300
    whole = turn_features(of, last_touch_segments(of), FOREVER)
    before = first(of, half)
    alone = turn_features(before, last_touch_segments(before), FOREVER)
    assert np.array_equal(alone.known, whole.known[:half])
    now_s = of.arrival_s[half]
    over = of.arrival_s[:half] + whole.next_s[:half] < now_s
    assert over.any()
    assert np.array_equal(alone.next_s[over], whole.next_s[:half][over])
    assert np.all(of.arrival_s[:half][~over] + alone.next_s[~over] >= now_s)
