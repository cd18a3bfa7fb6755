"""Belady is a ceiling that nothing exceeds; tail-belady is one where no block is shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvscope.policies.base import ENDS, Leaves, Policy
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.tail_belady import TailBelady
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
        assert found == -best(
            of,
            capacity,
            lambda at, hits: -max(int(of.input_tokens[at]) - hits - xi_tokens, 0),
        )


def _excess(of: Traffic, policy: Policy, capacity: int, xi_tokens: int) -> int:
    return _tokens_beyond(of, replay(of, policy, capacity).hit_blocks, xi_tokens)


def _tokens_beyond(of: Traffic, hit_blocks: NDArray[np.int32], xi_tokens: int) -> int:
    """Sum of max(u - xi, 0): TEL where the latency grows by the same for every token."""
    return int(np.maximum(of.input_tokens - hit_blocks - xi_tokens, 0).sum())


def test_tail_belady_is_no_bound_where_prefixes_are_shared() -> None:
    """LRU and belady have less TEL where a head's last request no longer needs it, others do."""
    prompts = ("ab", "acd", "acdef", "acdefghij", "abkl", "amno")
    turn_after = {2: 3, 0: 4}
    ids: dict[str, int] = {}
    for prompt in prompts:
        for end in range(1, len(prompt) + 1):
            ids.setdefault(prompt[:end], len(ids) + 1)
    length = np.array([len(prompt) for prompt in prompts], dtype=np.int32)
    nothing = np.zeros_like(length)
    added = [
        len(prompts[turn_after[at]]) - len(prompt) if at in turn_after else ENDS
        for at, prompt in enumerate(prompts)
    ]
    of = Traffic(
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
        next_prompt_tokens=np.array(added, dtype=np.int64),
        cuts=uncut(len(prompts)),
    )

    def tel(policy: Policy) -> int:
        return int(np.maximum(length - replay(of, policy, 3).hit_blocks - 1, 0).sum())

    assert (tel(TailBelady({"xi_tokens": 1})), tel(Belady()), tel(Lru())) == (13, 12, 12)
