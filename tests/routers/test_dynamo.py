"""Dynamo's cost, by hand from its published formula, in blocks of 16 tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvscope.core.arrays import Int32s
from kvscope.routers.base import View
from kvscope.routers.dynamo import Dynamo
from kvscope.routers.dynamo_approx import DynamoApprox, SentBlocks
from tests.routers.views import choices, load, path, prompt_of, sizes, view

PATH = path(*range(1, 11))  # 10 blocks


def chosen(seen: View, **values: float) -> int:
    """Return the choice for `PATH`, which must be the same each time."""
    (choice,) = set(choices(Dynamo(values), PATH, seen, 20))
    return choice


# Replica 0: prefill 10 - 4, decode 20 + 6 = 32. Replica 1: prefill 10, decode 15 + 10 = 35.
CACHED = view(2, own=load(2, used_blocks=[20, 15]), cached=[4, 0], new=[6, 10])


def test_cached_blocks_weigh_against_blocks_in_use() -> None:
    assert chosen(CACHED) == 0
    assert chosen(CACHED, prefill_load_scale=0.1) == 1  # 0.6 + 26 against 1 + 25
    assert chosen(CACHED, overlap_score_credit=0) == 1  # 36 against 35
    assert chosen(CACHED, overlap_score_credit=5) == 0  # max(0, 10 - 20) + 26


def test_prefills_under_way_are_charged_until_their_first_token() -> None:
    """Replica 0 has 4 of 10 blocks and 64 tokens to prefill: 10 - 4 + 4 = 10, even with 1."""
    busy = load(2, uncached_tokens=[64 + 16, 0])
    assert chosen(view(2, own=busy, cached=[4, 0])) == 1
    busy = load(2, uncached_tokens=[64 - 16, 0])
    assert chosen(view(2, own=busy, cached=[4, 0])) == 0


def test_what_events_reported_counts_not_the_truth() -> None:
    """By the truth alone replica 0 would win; its prefill is expected as if nothing were cached."""
    late = CACHED._replace(reported_blocks=np.zeros(2, dtype=np.int32))
    assert chosen(late) == 1  # 10 + 26 against 10 + 25
    assert late.expected_blocks.tolist() == [0]
    assert chosen(CACHED) == 0
    assert CACHED.expected_blocks.tolist() == [4]


def test_credit_decays_with_prefill_load_beyond_the_least() -> None:
    """10 blocks more than replica 1, as many as the prompt has: credit 8 / (1 + decay)."""
    seen = view(2, own=load(2, uncached_tokens=[160, 0]), cached=[8, 0], new=[2, 10])
    assert chosen(seen) == 0  # 20 - 8 + 2 = 14 against 10 + 10 = 20
    assert chosen(seen, overlap_score_credit_decay=2) == 0  # 20 - 8 / 3 + 2 = 19.3
    assert chosen(seen, overlap_score_credit_decay=4) == 1  # 20 - 8 / 5 + 2 = 20.4
    assert chosen(seen, overlap_score_credit_decay=4, overlap_score_credit=2) == 0  # 18.8


def test_requests_in_flight_cost_what_their_weight_says() -> None:
    seen = view(2, own=load(2, used_blocks=[20, 15], in_flight=[2, 0]), cached=[4, 0], new=[6, 10])
    assert chosen(seen, decode_active_request_weight=1) == 0  # 34 against 35
    assert chosen(seen, decode_active_request_weight=2) == 1  # 36 against 35


def test_an_unlisted_tail_is_a_block_to_decode_everywhere() -> None:
    """160 + 8 tokens: both costs grow by half a block to prefill and one to decode."""
    router, memory = Dynamo({"temperature": 1.0}), Dynamo().memory(sizes(2), seed=1)
    Dynamo.choose(prompt_of(PATH), PATH, CACHED, memory, router.settings())
    assert memory.costs.tolist() == [32, 35]
    Dynamo.choose(prompt_of(PATH, tail_tokens=8), PATH, CACHED, memory, router.settings())
    assert memory.costs.tolist() == [33.5, 36.5]


def test_equal_costs_are_drawn_evenly() -> None:
    drawn = choices(Dynamo(), PATH, view(3, new=[5, 5, 6]), 4000)
    counts = np.bincount(drawn, minlength=3)
    assert counts[2] == 0
    assert abs(counts[0] - 2000) < 5 * math.sqrt(1000)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_is_a_softmax_of_costs_between_0_and_1(temperature: float) -> None:
    """Costs 10, 15 and 20 normalize to 0, 0.5 and 1."""
    router = Dynamo({"temperature": temperature})
    counts = np.bincount(choices(router, PATH, view(3, new=[0, 5, 10]), 6000), minlength=3)
    weights = np.exp(-np.array([0, 0.5, 1]) / temperature)
    expected = 6000 * weights / weights.sum()
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


def test_temperature_leaves_equal_costs_even() -> None:
    counts = np.bincount(choices(Dynamo({"temperature": 0.1}), PATH, view(2), 4000), minlength=2)
    assert abs(counts[0] - 2000) < 5 * math.sqrt(1000)


def test_without_events_a_block_is_cached_for_its_time_to_live() -> None:
    """No other cost differs, so only the guess can break the tie."""
    router = DynamoApprox({"ttl_s": 60.0})
    for seed in range(30):
        memory = router.memory(sizes(4), seed)
        first = send(memory, router, 0.0, path(1, 2, 3))
        seen = view(4)
        assert send(memory, router, 59.9, path(1, 2, 4), seen) == first
        assert memory.costs[first] == 1  # 2 of 3 blocks are cached
        assert seen.expected_blocks.tolist() == [2]
        send(memory, router, 60.0, path(3))
        assert memory.costs[first] == 1  # sent at 0, gone at 60
        assert send(memory, router, 119.8, path(1, 5)) == first  # sent again at 59.9
        send(memory, router, 179.8, path(1))
        assert memory.costs.tolist() == [1, 1, 1, 1]


def send(
    memory: SentBlocks,
    router: DynamoApprox,
    now_s: float,
    blocks: Int32s,
    seen: View | None = None,
) -> int:
    """Return the choice of four idle replicas for a prompt of these blocks."""
    prompt = prompt_of(blocks, now_s=now_s)
    return DynamoApprox.choose(prompt, blocks, seen or view(4), memory, router.settings())


def test_flags_set_what_differs_from_the_defaults() -> None:
    assert Dynamo().flags() == ("--router-mode kv",)
    assert Dynamo({"prefill_load_scale": 4}).flags() == (
        "--router-mode kv",
        "--router-prefill-load-scale 4",
    )
    assert "--router-ttl-secs 300" in DynamoApprox({"ttl_s": 300}).flags()
