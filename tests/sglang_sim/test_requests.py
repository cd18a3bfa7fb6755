"""SGLang's cache against a port of its tree to plain Python, request by request."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.arrays import Int64s
from kvscope.core.errors import UsageError
from kvscope.policies.registry import by_name
from kvscope.replay.replay import Replay
from kvscope.replay.traffic import Traffic
from kvscope.sglang_sim.replay import sglang_has
from tests.oracles.replay import left_behind
from tests.oracles.sglang import RadixTree
from tests.policies.traffics import traffics
from tests.sglang_sim.chats import chats, in_flight, policy_of, traffic_of
from tests.sglang_sim.in_order import START, replay_tree

POLICIES: tuple[tuple[str, dict[str, float]], ...] = (
    ("lru", {}),
    ("fifo", {}),
    ("lfu", {}),
    ("slru", {"protected_uses": 3}),
    ("tlru", {"xi_tokens": 40, "next_prompt_tokens": 8}),
    ("priority", {}),
)
_NAMES = {
    "xi_tokens": "threshold",
    "next_prompt_tokens": "next_prompt",
    "protected_uses": "protected",
}
_by_policy = pytest.mark.parametrize(("policy", "values"), POLICIES)


def _in_tree(
    of: Traffic, blocks: Sequence[Sequence[Hashable]], order: Int64s, tree: RadixTree
) -> list[int]:
    """Return what each request hits in the plain tree; 0 for those longer than it."""
    hits, running = [0] * len(blocks), dict[int, Any]()
    for event in order.tolist():
        at = event >> 1
        prompt = int(of.input_tokens[at])
        end = max(prompt, int(of.history_tokens[at]) - 1)
        if -(-end // of.block_size) + tree.ready > tree.capacity:
            continue
        if event & 1 == START:
            running[at] = tree.look_up(blocks[at], prompt, end, int(of.look[at]))
            hits[at] = running[at].hit
            tree.prefill(running[at])
        else:
            tree.finish(running.pop(at))
    return hits


def _assert_equal(
    of: Traffic,
    policy: str,
    values: dict[str, float],
    capacity: int,
    *,
    paged: bool = False,
    chunk: int = 48,
    order: Int64s | None = None,
) -> Replay:
    ours = replay_tree(
        of, policy_of(policy, values), capacity, paged=paged, chunk_tokens=chunk, order=order
    )
    tree = RadixTree(
        policy,
        capacity,
        block_size=of.block_size,
        chunk=chunk,
        ready=paged and of.block_size > 1,
        **{_NAMES[name]: value for name, value in values.items()},
    )
    order = np.arange(2 * len(of.leaf)) if order is None else order
    assert ours.hit_blocks.tolist() == _in_tree(of, left_behind(of), order, tree)
    assert ours.evictions == tree.evictions
    assert int(ours.at_end.sum()) == tree.size
    return ours


def _fitting(of: Traffic) -> Traffic:
    """Return the traffic with lengths that belong to its paths."""
    blocks = (of.length + of.anonymous).astype(np.int64)
    prompt = np.maximum(of.look * of.block_size + 1, of.input_tokens % of.block_size + 1)
    prompt = np.minimum(prompt, np.maximum(blocks * of.block_size, 1))
    history = np.maximum(blocks * of.block_size + of.history_tokens % of.block_size, prompt) + 1
    return of._replace(input_tokens=prompt.astype(np.int32), history_tokens=history)


@_by_policy
@settings(deadline=None, max_examples=40)
@given(of=traffics(most=20), data=st.data())
def test_equals_the_plain_tree(
    policy: str, values: dict[str, float], of: Traffic, data: st.DataObject
) -> None:
    """On random tries, with blocks that no request hits, in small caches, in chunks and pages."""
    of = _fitting(of)
    page = of.block_size
    paged, chunks = data.draw(st.booleans()), data.draw(st.integers(1, 5))
    most = int((of.length + of.anonymous).max())
    capacity = data.draw(st.integers(1, 3 * most + 2))
    _assert_equal(of, policy, values, capacity, paged=paged, chunk=chunks * page)


@_by_policy
@pytest.mark.parametrize(("page", "at_once"), [(1, 1), (4, 1), (1, 4), (4, 4)])
def test_equals_the_plain_tree_at_length(
    policy: str, values: dict[str, float], page: int, at_once: int
) -> None:
    """On chats that are edited and repeated, one after the other and several at once."""
    requests = chats(400, seed=page + at_once)
    of, order = traffic_of(requests, page), in_flight(len(requests), at_once)
    longest = max(len(each.prompt) + len(each.outputs) for each in requests)
    capacity = (at_once * longest + 200) // page + 2 * at_once
    done = _assert_equal(of, policy, values, capacity, paged=page > 1, order=order)
    assert done.evictions > 1_000 // page
    if policy != "lru" and at_once == 1:
        lru = replay_tree(of, by_name("lru")(), capacity, paged=page > 1, chunk_tokens=48)
        assert not np.array_equal(done.hit_blocks, lru.hit_blocks)


def test_requests_longer_than_the_cache_are_rejected() -> None:
    """They hit nothing and leave nothing."""
    of = traffic_of(chats(50, seed=3), 1)
    done = replay_tree(of, by_name("lru")(), int(of.length.min()) - 1)
    assert (done.hit_blocks.any(), done.evictions, done.at_end.any()) == (False, 0, False)


def test_what_does_not_fit_at_once_is_refused() -> None:
    of = traffic_of(chats(50, seed=3), 1)
    order = in_flight(50, at_once=50)
    with pytest.raises(ValueError, match=r"run at once do not fit into \d+ blocks"):
        replay_tree(of, by_name("lru")(), int(of.length.max()), order=order)


def test_policies_that_sglang_lacks_are_refused() -> None:
    """A guard, an adaptive xi and a TTL are kvscope's own."""
    assert sglang_has(by_name("tlru")({"xi_tokens": 4}))
    for policy in (by_name("wa")(), by_name("lru")({"ttl_s": 9.0}), by_name("tlru")({"guard": 1})):
        assert not sglang_has(policy)
        with pytest.raises(UsageError, match="SGLang has no "):
            replay_tree(traffic_of(chats(5, seed=1), 1), policy, 500)
