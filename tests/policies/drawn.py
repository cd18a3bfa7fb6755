"""Random traffic and random settings for replays: small, but with everything in them."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from hypothesis import strategies as st

from kvscope.policies.base import ENDS, Leaves, Parameter, Policy
from kvscope.policies.registry import POLICIES
from kvscope.simulate.replay import NO_TABLES, Replay, Tables, replay
from kvscope.simulate.traffic import Traffic
from tests.oracles.replay import Setting

CATEGORIES = 3
INFINITE = 10**9
CASES: tuple[tuple[type[Policy], Leaves], ...] = tuple(
    (policy, leaves) for policy in POLICIES for leaves in (policy.leaves, *policy.offers)
)
"""Every policy with every way of evicting that it offers."""

_VALUES: dict[str, tuple[float, ...]] = {
    "ttl_s": (float("inf"), float("inf"), 0.0, 0.5, 1.0, 4.0),
    "xi_tokens": tuple(range(16)),
    "next_prompt_tokens": tuple(range(9)),
    "xi_percentile": (0.0,),
    "threshold_tokens": tuple(range(0, 30, 3)),
    "protected_uses": (1, 2, 3),
    "small_share": (0.0, 0.1, 0.25, 0.5, 1.0),
    "per_token_s": (0.0, 0.5, 1.0, 3.0),
    "per_token_pair_s": (0.0, 0.25, 1.0),
    "turn_rate_per_s": (0.0, 0.013, 0.7),
    "death_rate_per_s": (0.0, 0.011, 0.43),
}
"""What a test draws from, by the name of a parameter; binary fractions where keys may tie."""


def case_name(case: object) -> str:
    """A policy or a way of evicting, as test names show it."""
    return case.name if isinstance(case, type) and issubclass(case, Policy) else str(case)


@st.composite
def traffics(draw: st.DrawFn, *, most: int = 12) -> Traffic:
    """Requests over a random trie, with ties in time, empty paths, repeats and branches.

    What policies are told (histories, next prompts, categories) is drawn on its own: a replay does
    not ask whether it fits.
    """
    number = draw(st.integers(1, most))
    parents, children = [0], dict[tuple[int, int], int]()
    rows: list[tuple[int, int, int, int, int, int, int, int]] = []
    ends: list[list[int]] = [[]]
    for _ in range(number):
        path = list(draw(st.sampled_from(ends)))
        if draw(st.booleans()):
            path = path[: draw(st.integers(0, len(path)))]
        for token in draw(st.lists(st.integers(0, 1), max_size=4)):
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
                draw(st.sampled_from((0, 0, 0, 1, 3))),
                draw(st.sampled_from((0, 0, 1, 2, 6))),
                draw(st.integers(1, 25)),
                draw(st.integers(0, CATEGORIES - 1)),
                draw(st.sampled_from((ENDS, ENDS, 0, 1, 3, 8))),
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
    )


@cache
def long_traffic(requests: int, seed: int) -> Traffic:
    """The same at length: what is asked for again lies mostly in the recent past."""
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


def held(traffic: Traffic) -> int:
    """A cache of so many blocks never evicts."""
    return len(traffic.block_parent) - 1 + int(traffic.anonymous.sum())


@st.composite
def policies(draw: st.DrawFn, policy: type[Policy], leaves: Leaves) -> Policy:
    """The policy with random parameters."""
    values = {one.name: draw(st.sampled_from(_choices(one))) for one in policy.parameters}
    return policy(values, leaves)


def _choices(parameter: Parameter) -> tuple[float, ...]:
    return _VALUES.get(parameter.name, (parameter.default, *parameter.search))


@st.composite
def tables(draw: st.DrawFn, policy: str) -> Tables:
    """What `wa` and `etlru` are told of the categories, for one to three stretches of requests."""
    if policy not in ("wa", "etlru"):
        return NO_TABLES
    periods = draw(st.integers(1, 3))
    later = draw(st.lists(st.integers(1, 9), min_size=periods - 1, max_size=periods - 1))
    row = _WA_ROWS if policy == "wa" else _PROMPTS
    values = draw(st.lists(row, min_size=periods * CATEGORIES, max_size=periods * CATEGORIES))
    return Tables(
        np.array([0, *sorted(later)], dtype=np.int64),
        np.array(values, dtype=np.float64).reshape(periods, CATEGORIES, -1),
    )


_WA_ROWS = st.tuples(
    st.sampled_from((0.0, 0.12, 0.47, 0.81)),
    st.sampled_from((0.0, 0.011, 0.31, 1.7)),
    st.sampled_from((0.0, 0.9, 3.3, 40.0)),
)
_PROMPTS = st.lists(st.integers(0, 12), min_size=3, max_size=3)


def plain_tables(policy: type[Policy]) -> Tables:
    """A row a category that holds from the first request on."""
    if not policy.reads_tables:
        return NO_TABLES
    wa = ((0.5, 0.1, 10.0), (0.8, 0.02, 60.0), (0.3, 0.4, 2.0))
    prompts = ((5.0, 9.0, 2.0), (1.0, 1.0, 3.0), (8.0, 0.0, 4.0))
    rows = wa if policy.name == "wa" else prompts
    return Tables(np.zeros(1, dtype=np.int64), np.array([rows]))


def capacities(traffic: Traffic) -> st.SearchStrategy[int]:
    """From nothing to more than all blocks, and as good as infinite."""
    return st.one_of(st.integers(0, held(traffic) + 1), st.just(INFINITE))


def setting(
    policy: Policy, capacity: int, told: Tables = NO_TABLES, *, mandatory: bool = False
) -> Setting:
    """The same for the oracle."""
    return Setting(policy.name, policy.values, policy.evicts, capacity, told, mandatory)


def left(done: Replay) -> set[int]:
    """The blocks that were left at the end."""
    return set(np.flatnonzero(done.cached).tolist())


def replayed(traffic: Traffic, policy: Policy, given: Setting) -> Replay:
    """What the kernel makes of it."""
    return replay(traffic, policy, given.capacity, tables=given.tables, mandatory=given.mandatory)
