"""Random settings for replays: policies, parameters, capacities, tables; and running them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from kvscope.core.parameters import Parameter
from kvscope.policies.base import Leaves, Policy
from kvscope.policies.gittins import AGES, LEVELS
from kvscope.policies.registry import POLICIES
from kvscope.policies.wa import reuse_rows
from kvscope.replay.replay import NO_TABLES, Replay, Tables, replay
from kvscope.replay.traffic import Traffic
from tests.oracles.replay import Setting
from tests.policies.traffics import CATEGORIES, held

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
    "given_silence": (0.0, 1.0),
    "pause_ttl_s": (1.0, 4.0),
    "retention_tokens": (0.0, 64.0),
    "pin_share": (0.5, 1.0),
}
"""What a test draws from, by the name of a parameter; binary fractions where keys may tie."""


def case_name(case: object) -> str:
    """Return the name of a policy or a way of evicting in test names."""
    return case.name if isinstance(case, type) and issubclass(case, Policy) else str(case)


@st.composite
def policies(draw: st.DrawFn, policy: type[Policy], leaves: Leaves) -> Policy:
    """Draw the policy with random parameters."""
    values = {one.name: draw(st.sampled_from(_choices(one))) for one in policy.parameters}
    return policy(values, leaves)


def everything_kept(policy: type[Policy], leaves: Leaves) -> Policy:
    """Return the policy with parameters under which nothing expires and everything is admitted."""
    lasting = {"ttl_s": float("inf"), "threshold_tokens": 0.0}
    known = {one.name for one in policy.parameters}
    return policy({name: value for name, value in lasting.items() if name in known}, leaves)


def _choices(parameter: Parameter) -> tuple[float, ...]:
    return _VALUES.get(parameter.name, (parameter.default, *parameter.search))


@st.composite
def tables(draw: st.DrawFn, policy: str) -> Tables:
    """Draw tables of the categories, for one to three segments of requests."""
    if policy not in _ROWS:
        return NO_TABLES
    periods = draw(st.integers(1, 3))
    later = draw(st.lists(st.integers(1, 9), min_size=periods - 1, max_size=periods - 1))
    rows = CATEGORIES * (LEVELS if policy == "gittins" else 1)
    values = draw(st.lists(_ROWS[policy], min_size=periods * rows, max_size=periods * rows))
    return Tables.of(
        np.array([0, *sorted(later)], dtype=np.int64),
        np.array(values, dtype=np.float64).reshape(periods, rows, -1),
    )


def _reuse_row(told: tuple[float, float, float]) -> list[float]:
    row: list[float] = reuse_rows(*np.array(told)).tolist()
    return row


_WA_ROWS = st.tuples(
    st.sampled_from((0.0, 0.12, 0.47, 0.81)),
    st.sampled_from((0.0, 0.011, 0.31, 1.7)),
    st.sampled_from((0.0, 0.9, 3.3, 40.0)),
).map(_reuse_row)
_LANES = range(1, LEVELS * CATEGORIES + 1)
_PROMPTS = st.lists(st.integers(0, 12), min_size=3, max_size=3)
_INDEX = st.lists(st.sampled_from((0.0, 0.125, 0.5, 1.0, 3.0)), min_size=5, max_size=5).map(
    lambda drawn: np.repeat(sorted(drawn, reverse=True), (5, 6, 7, 6, AGES - 24)).tolist()
)
"""Falls with age, at 0.3 s, 1.3 s, 6.3 s and 25 s."""
_STATED = st.tuples(
    st.sampled_from((0.0, 1.0, 2.0, 5.0, float("inf"))), st.sampled_from((0, 20, 35, 36, 80, 100))
)
_ROWS = {
    "wa": _WA_ROWS,
    "etlru": _PROMPTS,
    "gittins": _INDEX,
    "trtllm-priority": _STATED,
}


def plain_tables(policy: type[Policy]) -> Tables:
    """Return tables with one row per category, valid from the first request on."""
    if not policy().reads_table:
        return NO_TABLES
    wa = _reuse_row((0.5, 0.1, 10.0)), _reuse_row((0.8, 0.02, 60.0)), _reuse_row((0.3, 0.4, 2.0))
    prompts = ((5.0, 9.0, 2.0), (1.0, 1.0, 3.0), (8.0, 0.0, 4.0))
    index = tuple(tuple(1.0 / (lane + age) for age in range(AGES)) for lane in _LANES)
    stated = (60.0, 35.0), (5.0, 80.0), (float("inf"), 10.0)
    by_name = {"wa": wa, "etlru": prompts, "gittins": index}
    rows = by_name.get(policy.name, stated)
    return Tables.of(np.zeros(1, dtype=np.int64), np.array([rows]))


def capacities(traffic: Traffic) -> st.SearchStrategy[int]:
    """From nothing to more than all blocks, and as good as infinite."""
    return st.one_of(st.integers(0, held(traffic) + 1), st.just(INFINITE))


def setting(
    policy: Policy, capacity: int, told: Tables = NO_TABLES, *, mandatory: bool = False
) -> Setting:
    """Return the same for the oracle."""
    mandatory = mandatory or policy.makes_room
    return Setting(policy.name, policy.values, policy.evicts, capacity, told, mandatory)


def left(traffic: Traffic, done: Replay) -> set[int]:
    """Return the blocks that are cached at the end: those above the end of their owner's run."""
    cached = np.zeros(len(traffic.block_parent), dtype=np.bool_)
    if done.at_end.dtype == np.bool_:
        cached = np.asarray(done.at_end)
    else:
        for block, length, end in zip(traffic.leaf, traffic.length, done.at_end, strict=True):
            for depth in range(length - 1, -1, -1):
                cached[block] = depth < end
                block = traffic.block_parent[block]  # noqa: PLW2901
    return set(np.flatnonzero(cached).tolist())


def replayed(traffic: Traffic, policy: Policy, given: Setting) -> Replay:
    """Return the kernel's result."""
    return replay(traffic, policy, given.capacity, tables=given.tables, mandatory=given.mandatory)
