"""Oracles against the best of all choices, and the bound of tail excess latency against both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.tel_bound import tel_tokens_at_least
from kvscope.policies.base import ENDS, Leaves, Policy
from kvscope.policies.belady import Belady, TailBelady
from kvscope.policies.lru import Lru
from kvscope.replay.replay import replay, touch_history
from kvscope.replay.traffic import Traffic, uncut
from tests.oracles.optimum import best
from tests.policies import drawn
from tests.policies.chats import conversations
from tests.policies.traffics import held, traffics

EVERY_CASE = pytest.mark.parametrize(("policy", "leaves"), drawn.CASES, ids=drawn.case_name)


@EVERY_CASE
@settings(deadline=None, max_examples=10)
@given(st.data())
def test_no_policy_hits_more_than_belady(
    policy: type[Policy], leaves: Leaves, data: st.DataObject
) -> None:
    """At every capacity belady hits at least as many blocks, whatever the parameters."""
    of = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    told = data.draw(drawn.tables(policy.name))
    past = touch_history(of)
    for capacity in range(held(of) + 1):
        ceiling = replay(of, Belady(), capacity, history=past).hit_blocks.sum()
        assert replay(of, bound, capacity, history=past, tables=told).hit_blocks.sum() <= ceiling


@settings(deadline=None, max_examples=60)
@given(traffics(most=5).filter(lambda of: held(of) <= 7))
def test_belady_is_the_best_of_all_choices(of: Traffic) -> None:
    """On tiny traces no choice of what to keep hits more blocks."""
    for capacity in range(held(of) + 1):
        found = replay(of, Belady(), capacity).hit_blocks.sum()
        assert found == best(of, capacity, lambda _, hit_blocks: hit_blocks)


@EVERY_CASE
@settings(deadline=None, max_examples=10)
@given(st.data(), st.integers(0, 6))
def test_no_policy_has_a_smaller_tail_than_tail_belady(
    policy: type[Policy], leaves: Leaves, data: st.DataObject, xi_tokens: int
) -> None:
    """Tail excess latency is least under tail-belady, at one token a block and without sharing."""
    of = data.draw(conversations(chats=4, turns=9, tokens=4))
    bound = data.draw(drawn.policies(policy, leaves))
    told = data.draw(drawn.tables(policy.name))
    past = touch_history(of)
    for capacity in range(held(of) + 1):
        least = _excess(of, TailBelady({"xi_tokens": xi_tokens}), capacity, xi_tokens)
        done = replay(of, bound, capacity, history=past, tables=told)
        assert _tokens_beyond(of, done.hit_blocks, xi_tokens) >= least


@settings(deadline=None, max_examples=60)
@given(
    conversations(chats=3, turns=5, tokens=2).filter(lambda of: held(of) <= 8),
    st.integers(0, 4),
)
def test_tail_belady_is_the_best_of_all_choices(of: Traffic, xi_tokens: int) -> None:
    """On tiny traces no choice of what to keep leaves less tail excess latency."""
    for capacity in range(held(of) + 1):
        found = _excess(of, TailBelady({"xi_tokens": xi_tokens}), capacity, xi_tokens)
        assert found == _least_excess(of, capacity, xi_tokens)


def _excess(of: Traffic, policy: Policy, capacity: int, xi_tokens: int) -> int:
    return _tokens_beyond(of, replay(of, policy, capacity).hit_blocks, xi_tokens)


def _tokens_beyond(
    of: Traffic, hit_blocks: NDArray[np.int32], xi_tokens: int, first: int = 0
) -> int:
    """Sum of max(u - xi, 0): TEL where the latency grows by the same for every token."""
    uncached = of.input_tokens - hit_blocks * of.block_size
    return int(np.maximum(uncached - xi_tokens, 0)[first:].sum())


def _least_excess(of: Traffic, capacity: int, xi_tokens: int, *, leaf: bool = False) -> float:
    """Return the least tokens beyond xi of all choices of what to keep."""

    def saved(at: int, hit_blocks: int) -> float:
        return -max(int(of.input_tokens[at]) - hit_blocks * of.block_size - xi_tokens, 0)

    return -best(of, capacity, saved, leaf=leaf)


@settings(deadline=None, max_examples=60)
@given(traffics(most=5).filter(lambda of: held(of) <= 7), st.integers(0, 12))
def test_the_bound_is_below_the_best_of_all_choices(of: Traffic, xi_tokens: int) -> None:
    """No choice has less TEL than the bound; with one token a block, the best one reaches it."""
    past = touch_history(of)
    for capacity in range(held(of) + 1):
        bound = tel_tokens_at_least(of, past.next_touches, capacity, xi_tokens)
        least = _least_excess(of, capacity, xi_tokens)
        assert bound == least if of.block_size == 1 else bound <= least
        assert least <= _excess(of, TailBelady({"xi_tokens": xi_tokens}), capacity, xi_tokens)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(traffics(most=6).filter(lambda of: held(of) <= 7), st.integers(0, 12))
def test_tail_belady_is_the_best_choice_of_leaves_where_prefixes_are_shared(
    of: Traffic, xi_tokens: int
) -> None:
    """On these tiny traces no eviction of leaves leaves less TEL; there are others, see below."""
    of = of._replace(block_size=1)
    for capacity in range(held(of) + 1):
        found = _excess(of, TailBelady({"xi_tokens": xi_tokens}), capacity, xi_tokens)
        assert found == _least_excess(of, capacity, xi_tokens, leaf=True)


@EVERY_CASE
@settings(deadline=None, max_examples=10)
@given(st.data(), st.integers(0, 12))
def test_no_policy_has_less_tel_than_the_bound(
    policy: type[Policy], leaves: Leaves, data: st.DataObject, xi_tokens: int
) -> None:
    """At every capacity, for all requests and for the later half."""
    of = data.draw(traffics())
    bound = data.draw(drawn.policies(policy, leaves))
    told = data.draw(drawn.tables(policy.name))
    past = touch_history(of)
    for capacity in range(held(of) + 1):
        done = replay(of, bound, capacity, history=past, tables=told)
        for first in (0, len(of.leaf) // 2):
            least = tel_tokens_at_least(of, past.next_touches, capacity, xi_tokens, first)
            assert _tokens_beyond(of, done.hit_blocks, xi_tokens, first) >= least


def test_a_head_stays_that_its_last_request_does_not_need_but_the_next_one_does() -> None:
    """The need of the next request counts, not what the last one could recompute in time."""
    of = _traffic("ab", "acd", "acdef", "acdefghij", "abkl", "amno")
    found = _excess(of, TailBelady({"xi_tokens": 1}), 3, 1)
    assert found == _least_excess(of, 3, 1) == _excess(of, Lru(), 3, 1) == 12


def test_what_an_eviction_of_leaves_costs() -> None:
    """A block that the next request does not need stays as long as a block below it is cached.

    So orphans can save more, and among choices of leaves the tail that is needed first may be one
    that keeps too many such blocks.
    """
    of = _traffic("abcdef", "xy", "xy", "abc", "abcdef")
    found = _excess(of, TailBelady({"xi_tokens": 1}), 5, 1)
    assert (found, _least_excess(of, 5, 1, leaf=True), _least_excess(of, 5, 1)) == (7, 7, 6)
    of = _traffic("abc", "uv", "xy", "xyzz", "ab", "abcde", "uvww")
    found = _excess(of, TailBelady({"xi_tokens": 2}), 4, 2)
    assert (found, _least_excess(of, 4, 2, leaf=True), _least_excess(of, 4, 2)) == (4, 2, 2)


def _traffic(*prompts: str) -> Traffic:
    """Return requests of these prompts, a letter a token and a block."""
    ids: dict[str, int] = {}
    for prompt in prompts:
        for end in range(1, len(prompt) + 1):
            ids.setdefault(prompt[:end], len(ids) + 1)
    length = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    nothing = np.zeros_like(length)
    return Traffic(
        block_size=1,
        block_parent=np.array([0, *(ids.get(head[:-1], 0) for head in ids)], dtype=np.int32),
        leaf=np.array([ids[prompt] for prompt in prompts], dtype=np.int32),
        length=length,
        look=length,
        anonymous=nothing,
        arrival_s=np.arange(len(prompts), dtype=np.float64),
        input_tokens=length,
        history_tokens=length.astype(np.int64),
        category=nothing,
        parent=nothing - np.int32(1),
        next_prompt_tokens=np.full(len(prompts), ENDS, dtype=np.int64),
        cuts=uncut(len(prompts)),
    )
