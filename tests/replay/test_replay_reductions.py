"""Policies that become another one at some value of a parameter: the same, block by block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvscope.core.hits import HitDefinition
from kvscope.policies.base import Policy
from kvscope.policies.gittins import AGES, LEVELS
from kvscope.policies.registry import by_name
from kvscope.policies.wa import reuse_rows
from kvscope.replay.curve import lru_curve
from kvscope.replay.replay import NO_TABLES, Tables, replay
from kvscope.replay.traffic import Traffic, traffic, uncut
from tests import small_traces
from tests.policies import drawn
from tests.policies.traffics import CATEGORIES, held, traffics

QUICK = settings(deadline=None, max_examples=25)
RATES = ("turn_rate_per_s", "death_rate_per_s")
PER_S = (0.0, 1e-6, 0.013, 0.7, 30.0)
DEFINITIONS = st.builds(
    HitDefinition,
    name=st.just("drawn"),
    weight=st.just("block"),
    last_token_rule=st.booleans(),
    outputs=st.sampled_from(["carried", "ignored"]),
    partial=st.booleans(),
    flat=st.booleans(),
).filter(lambda one: not (one.partial and one.outputs == "carried"))


def _table(*row: float) -> Tables:
    """Return the same row for every category, from the first request on."""
    return Tables.of(np.zeros(1, dtype=np.int64), np.array([[row] * CATEGORIES], dtype=float))


def _assert_equal(of: Traffic, one: Policy, other: Policy, told: Tables = NO_TABLES) -> None:
    for capacity in range(held(of) + 1):
        a = replay(of, one, capacity, tables=told)
        b = replay(of, other, capacity)
        assert a.hit_blocks.tolist() == b.hit_blocks.tolist()
        assert a.evictions == b.evictions
        assert drawn.left(a) == drawn.left(b)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ttl", {"ttl_s": float("inf")}),
        ("tlru", {"xi_tokens": 0, "next_prompt_tokens": 1e9}),
        ("tlru", {"xi_tokens": 1e9, "next_prompt_tokens": 0}),
        ("threshold-lru", {"threshold_tokens": 0}),
        ("slru", {"protected_uses": 1}),
        ("gdfs", {"per_token_s": 0}),
    ],
)
@QUICK
@given(of=traffics())
def test_is_lru(name: str, values: dict[str, float], of: Traffic) -> None:
    """Nothing expires; all of it is needed, or none; all is admitted, protected, or for free."""
    _assert_equal(of, by_name(name)(values), by_name("lru")())


@QUICK
@given(traffics(), st.floats(0, 1), st.floats(0, 10), st.floats(0, 100))
def test_wa_with_one_category_is_lru(of: Traffic, reused: float, rate: float, life: float) -> None:
    """Whatever the distribution: within a category the older block is never worth more."""
    of = of._replace(category=np.zeros_like(of.category))
    rows = reuse_rows(*np.array([[[reused]], [[rate]], [[life]]]))
    table = Tables.of(np.zeros(1, dtype=np.int64), rows)
    _assert_equal(of, by_name("wa")(), by_name("lru")(), table)


@QUICK
@given(traffics(), st.lists(st.floats(0, 10), min_size=AGES, max_size=AGES))
def test_gittins_with_one_class_is_lru(of: Traffic, falling: list[float]) -> None:
    """With xi = 0 every block is needed, and an index that falls with age keeps their order."""
    table = _alike(np.sort(falling)[::-1])
    gittins = by_name("gittins")({"xi_tokens": 0.0})
    _assert_equal(of, gittins, by_name("lru")(), table)


@QUICK
@given(traffics(), st.integers(1, 16))
def test_gittins_without_memory_is_tlru(of: Traffic, xi: int) -> None:
    """Where all return at one rate, what no empty prompt needs is worth less, whatever its age.

    Not at xi = 0, where gittins needs every block, and T-LRU none beyond the history.
    """
    gittins = by_name("gittins")({"xi_tokens": xi, "next_prompt_tokens": 0})
    tlru = by_name("tlru")({"xi_tokens": xi, "next_prompt_tokens": 0})
    _assert_equal(of, gittins, tlru, _alike(np.full(AGES, 0.25)))


def _alike(index: NDArray[np.float64]) -> Tables:
    """Return the same index for every class."""
    return Tables.of(np.zeros(1, dtype=np.int64), np.tile(index, (1, LEVELS * CATEGORIES, 1)))


@QUICK
@given(traffics(), st.data())
def test_etlru_without_slack_is_lru(of: Traffic, data: st.DataObject) -> None:
    """With xi = 0, rates common to all conversations, and only full blocks of the history cached.

    All tokens x of such a block lie inside the history, so Q > -(L - x) for sure and every block
    weighs B; the turn rate never rises with the silence (it falls strictly where conversations
    die), so the older request's blocks leave first. Any rates do, and any prompts.
    """
    size, held = of.block_size, of.length + of.anonymous
    of = of._replace(history_tokens=np.maximum(of.history_tokens, held * size))
    values = {"xi_tokens": 0.0} | {name: data.draw(st.sampled_from(PER_S)) for name in RATES}
    prompts = data.draw(st.lists(st.integers(0, 12), min_size=3, max_size=3))
    _assert_equal(of, by_name("etlru")(values), by_name("lru")(), _table(*prompts))


def test_etlru_without_slack_sees_a_partial_block() -> None:
    """A block that reaches beyond the history weighs less, and LRU's order is lost.

    Two prompts of one block of 16 tokens each: the later has a history of one token only.
    """
    nothing = np.zeros(2, dtype=np.int32)
    of = Traffic(
        block_size=16,
        block_parent=np.zeros(3, dtype=np.int32),
        leaf=np.array([1, 2], dtype=np.int32),
        length=nothing + np.int32(1),
        look=nothing + np.int32(1),
        anonymous=nothing,
        arrival_s=np.array([0.0, 1.0]),
        input_tokens=np.array([16, 1], dtype=np.int32),
        history_tokens=np.array([16, 1], dtype=np.int64),
        category=nothing,
        parent=nothing - np.int32(1),
        next_prompt_tokens=np.full(2, 3, dtype=np.int64),
        cuts=uncut(2),
    )
    etlru = by_name("etlru")({"xi_tokens": 0.0})
    assert drawn.left(replay(of, etlru, 1, tables=_table(3.0))) == {1}
    assert drawn.left(replay(of, by_name("lru")(), 1)) == {2}


@QUICK
@given(traffics(), st.integers(0, 8), st.integers(0, 12), st.data())
def test_etlru_with_a_known_prompt_is_tlru(
    of: Traffic, added: int, slack: int, data: st.DataObject
) -> None:
    """With one and the same Q for all, common rates, and L + Q - xi a multiple of B.

    At B = 1 every whole number is one. A token x is missed if x < L + Q - xi, so a block weighs 0
    or B: what T-LRU calls safe leaves first, and of both kinds the older request's. A bound inside
    a block would let that block weigh less than older ones in front of the bound.
    """
    size = of.block_size
    of = of._replace(history_tokens=of.history_tokens // size * size)
    values = {"xi_tokens": float(slack * size)}
    rates = {name: data.draw(st.sampled_from(PER_S)) for name in RATES}
    known = by_name("tlru")(values | {"next_prompt_tokens": float(added * size)})
    _assert_equal(of, by_name("etlru")(values | rates), known, _table(float(added * size)))


@settings(deadline=None, max_examples=40)
@given(st.data(), small_traces.SIZES, DEFINITIONS)
def test_lru_is_its_curve(data: st.DataObject, size: int, definition: HitDefinition) -> None:
    """A replay of LRU hits at every capacity what the stack distances say."""
    prompts = small_traces.prompts(small_traces.built(data.draw(small_traces.requests(size)), size))
    of, curve = traffic(prompts, definition), lru_curve(prompts, definition)
    for capacity in range(held(of) + 2):
        hits = replay(of, by_name("lru")(), capacity).hit_blocks
        assert int(hits.sum()) == round(float(np.interp(capacity, curve.knots, curve.hits)))


@QUICK
@given(traffics(), st.data())
def test_hindsight_of_what_is_expected_adds_nothing(of: Traffic, data: st.DataObject) -> None:
    """Where every conversation goes on by the Q that T-LRU expects, being told changes nothing."""
    added, xi = data.draw(st.integers(0, 8)), float(data.draw(st.integers(0, 15)))
    of = of._replace(next_prompt_tokens=np.full_like(of.next_prompt_tokens, added))
    expected = {"xi_tokens": xi, "next_prompt_tokens": float(added)}
    _assert_equal(of, by_name("tlru-end")(expected), by_name("tlru")(expected))
    _assert_equal(of, by_name("tlru-length")({"xi_tokens": xi}), by_name("tlru")(expected))
