"""Random traffic for replays: small, but with everything in it; and the same at length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from hypothesis import strategies as st

from kvscope.policies.base import ENDS
from kvscope.replay.traffic import Traffic, uncut

CATEGORIES = 3
# Each part of a request is one choice of Hypothesis: choices take most of a small test's time.
_NEW_TOKENS = st.sampled_from(
    [
        tokens
        for length in range(5)
        for tokens in product((0, 1), repeat=length)
        for _ in range(2 ** (4 - length))
    ]
)  # as many of each length
_ANONYMOUS = st.sampled_from((0, 0, 0, 1, 3))
_STEPS = st.sampled_from((0, 0, 1, 2, 6))
_ADDED = st.sampled_from((ENDS, ENDS, 0, 1, 3, 8))


@st.composite
def traffics(draw: st.DrawFn, *, most: int = 12) -> Traffic:
    """Draw requests over a random trie, with ties in time, empty paths, repeats and branches.

    What policies are told (histories, next prompts, categories) is drawn on its own: a replay does
    not ask whether it fits.
    """
    number = draw(st.integers(1, most))
    parents, children = [0], dict[tuple[int, int], int]()
    rows: list[tuple[int, int, int, int, int, int, int, int]] = []
    ends: list[list[int]] = [[]]
    for _ in range(number):
        path = ends[draw(st.integers(0, len(ends) - 1))]
        path = path[: draw(st.integers(0, 2 * len(path)))]  # beyond its end: all of it
        for token in draw(_NEW_TOKENS):
            parent = path[-1] if path else 0
            if (parent, token) not in children:
                children[parent, token] = len(parents)
                parents.append(parent)
            path.append(children[parent, token])
        ends.append(path)
        rows.append(
            (
                path[-1] if path else 0,
                len(path),
                draw(st.integers(0, len(path))),
                draw(_ANONYMOUS),
                draw(_STEPS),
                draw(st.integers(1, 25)),
                draw(st.integers(0, CATEGORIES - 1)),
                draw(_ADDED),
            )
        )
    return _columns(draw(st.integers(1, 4)), parents, rows)


def _columns(
    size: int, parents: list[int], rows: list[tuple[int, int, int, int, int, int, int, int]]
) -> Traffic:
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 8).T
    leaf, length, look, anonymous, steps, history, category, added = columns
    return Traffic(
        block_size=size,
        block_parent=np.array(parents, dtype=np.int32),
        leaf=leaf.astype(np.int32),
        length=length.astype(np.int32),
        look=look.astype(np.int32),
        anonymous=anonymous.astype(np.int32),
        arrival_s=np.cumsum(steps) / 2.0,
        input_tokens=np.maximum(history, length * size).astype(np.int32),
        history_tokens=history.copy(),
        category=category.astype(np.int32),
        parent=np.full(len(rows), -1, dtype=np.int32),
        next_prompt_tokens=added.copy(),
        cuts=uncut(len(leaf)),
    )


@cache
def long_traffic(requests: int, seed: int) -> Traffic:
    """Draw long traffic whose repeated accesses are mostly recent."""
    draw = random.Random(seed)
    parents, children = [0], dict[tuple[int, int], int]()
    rows: list[tuple[int, int, int, int, int, int, int, int]] = []
    ends: list[list[int]] = [[]]
    for _ in range(requests):
        path = list(draw.choice(ends[-40:]))[: draw.choice((1, 2, 5, 9))]
        for _ in range(draw.randint(0, 3)):
            edge = (path[-1] if path else 0, draw.randint(0, 3))
            if edge not in children:
                children[edge] = len(parents)
                parents.append(edge[0])
            path.append(children[edge])
        ends.append(path)
        leaf, length, beyond = path[-1] if path else 0, len(path), draw.choice((0, 0, 2))
        look, step, history = (
            max(length - draw.randint(0, 1), 0),
            draw.choice((0, 1, 2)),
            4 * length,
        )
        told = (history + draw.randint(1, 16), draw.randrange(CATEGORIES), draw.randint(ENDS, 8))
        rows.append((leaf, length, look, beyond, step, *told))
    return _columns(4, parents, rows)


def chain(lengths: Sequence[int], arrival_s: Sequence[float], output: int = 0) -> Traffic:
    """Return requests for the first blocks of one chain, of one token each."""
    requests, nothing = len(lengths), np.zeros(len(lengths), dtype=np.int32)
    length = np.array(lengths, dtype=np.int32)
    return Traffic(
        block_size=1,
        block_parent=np.array([0, *range(max(lengths, default=0))], dtype=np.int32),
        leaf=length,
        length=length,
        look=length,
        anonymous=nothing,
        arrival_s=np.array(arrival_s),
        input_tokens=length,
        history_tokens=length.astype(np.int64) + output,
        category=nothing,
        parent=np.full(requests, -1, dtype=np.int32),
        next_prompt_tokens=nothing.astype(np.int64),
        cuts=uncut(len(length)),
    )


def first(of: Traffic, requests: int) -> Traffic:
    """Return the traffic as known when that many requests have arrived."""
    kept = {"block_size", "block_parent"}
    columns = {name: one[:requests] for name, one in of._asdict().items() if name not in kept}
    return of._replace(**columns)


def held(traffic: Traffic) -> int:
    """Return a number of blocks at which a cache never evicts."""
    return len(traffic.block_parent) - 1 + int(traffic.anonymous.sum())
