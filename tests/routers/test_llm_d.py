"""Dynamo's and llm-d's routers choose as the real programs do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvscope.core.arrays import Int32s
from kvscope.routers.base import View
from kvscope.routers.dynamo import Dynamo, DynamoApprox, SentBlocks
from kvscope.routers.llm_d import LlmD, LlmDPrecise, PickerMemory
from kvscope.routers.lru_index import holds, touch
from tests.routers.views import choices, load, path, prompt_of, sizes, view


def chosen(router: LlmD | LlmDPrecise, blocks: Int32s, seen: View) -> set[int]:
    """Return all replicas that 60 choices with one memory each draw."""
    found = set()
    for seed in range(60):
        memory = router.memory(sizes(seen.replicas), seed)
        found.add(type(router).choose(prompt_of(blocks), blocks, seen, memory, router.settings()))
    return found


def after(router: LlmD, sent: dict[int, list[int]], capacity_blocks: int = 100) -> PickerMemory:
    """Return the memory after these blocks were sent to replicas of three."""
    memory = router.memory(sizes(3, capacity_blocks=capacity_blocks), seed=1)
    for replica, blocks in sent.items():
        for block in blocks:
            touch(memory.sent, replica, block)
    return memory


def prefix_scores(router: LlmD, memory: PickerMemory, blocks: Int32s, tail: int = 0) -> list[float]:
    """Return the prefix score of each replica for a prompt."""
    prompt = prompt_of(blocks, tail_tokens=tail)
    LlmD.choose(prompt, blocks, view(3), memory, router.settings())
    return memory.scores.tolist()


def test_queue_and_kv_usage_are_weighed() -> None:
    """Waiting 0, 5, 10 score 1, 0.5, 0; with half of the memory of replica 0 used: 3, 3 and 2."""
    seen = view(3, own=load(3, waiting=[0, 5, 10], used_blocks=[50, 0, 0]))
    assert chosen(LlmD(), path(1), seen) == {0, 1}
    assert chosen(LlmD({"queue_weight": 2.1}), path(1), seen) == {0}
    assert chosen(LlmD({"kv_weight": 2.1}), path(1), seen) == {1}


def test_one_waiting_request_counts_as_much_as_a_hundred() -> None:
    for longest in (1, 100):
        seen = view(2, own=load(2, waiting=[longest, 0], used_blocks=[0, 99]))
        assert chosen(LlmD(), path(1), seen) == {1}  # 0 + 2 against 2 + 0.02
        assert chosen(LlmD({"kv_weight": 2.1}), path(1), seen) == {0}


def test_load_is_as_of_the_last_scrape() -> None:
    seen = view(2, own=load(2, waiting=[9, 0]), scraped=load(2, waiting=[0, 9]))
    assert chosen(LlmD(), path(1), seen) == {0}


def test_the_prefix_outweighs_a_queue() -> None:
    """Half a prompt (1.5) loses to the shortest queue (2), a whole one (3) wins."""
    seen = view(3, own=load(3, waiting=[0, 7, 7]))
    for blocks, winner in (([1], 0), ([1, 2], 2)):
        memory = after(LlmD(), {2: blocks})
        choice = LlmD.choose(prompt_of(path(1, 2)), path(1, 2), seen, memory, LlmD().settings())
        assert choice == winner


def test_the_prefix_score_is_the_share_of_full_blocks() -> None:
    memory = after(LlmD(), {0: [1, 2], 1: [1]})
    assert prefix_scores(LlmD(), memory, path(1, 2, 3, 4), tail=15) == [0.5, 0.25, 0.0]


def test_only_the_first_blocks_are_compared() -> None:
    """With 2 blocks of 32 the first 2 of the trace's 16-token blocks each make one."""
    router = LlmD({"max_prefix_blocks": 2, "engine_block_tokens": 32})
    memory = after(router, {0: [1, 2, 3, 4], 1: [1, 2]})
    assert prefix_scores(router, memory, path(1, 2, 3, 4, 5, 6, 7, 8)) == [1.0, 0.5, 0.0]
    assert not any(holds(memory.sent, replica, 5) for replica in range(3))


def test_a_prompt_shorter_than_an_engine_block_has_no_prefix() -> None:
    router = LlmD({"engine_block_tokens": 64})
    memory = after(router, {0: [1, 2, 3]})
    assert prefix_scores(router, memory, path(1, 2, 3)) == [0.0, 0.0, 0.0]


def test_blocks_behind_a_gap_count_until_no_replica_has_one() -> None:
    memory = after(LlmD(), {0: [1], 1: [2, 4], 2: [2]})
    assert prefix_scores(LlmD(), memory, path(1, 2, 3, 4)) == [0.25, 0.25, 0.25]


def test_heads_leave_the_list_first() -> None:
    """Three blocks on a list of two: the head is gone, and with it the whole prefix."""
    memory = LlmD().memory(sizes(1, capacity_blocks=2), seed=1)
    LlmD.choose(prompt_of(path(1, 2, 3)), path(1, 2, 3), view(1), memory, LlmD().settings())
    assert [holds(memory.sent, 0, block) for block in (1, 2, 3)] == [False, True, True]
    LlmD.choose(prompt_of(path(1, 2, 3)), path(1, 2, 3), view(1), memory, LlmD().settings())
    assert memory.scores.tolist() == [0.0]


def test_lists_are_as_long_as_the_cache_or_of_a_fixed_length() -> None:
    """31,250 blocks of 32 tokens are 62,500 of the trace's 16."""
    large = sizes(1, blocks=100_000, capacity_blocks=2_000)
    for auto_tune, blocks in ((1, 2_000), (0, 62_500)):
        router = LlmD({"auto_tune": auto_tune, "engine_block_tokens": 32})
        assert len(router.memory(large, seed=1).sent.blocks) == blocks + 1
        assert ("autoTune: false, blockSizeTokens: 32" in router.flags()[1]) == (not auto_tune)


def test_a_conversation_stays_where_it_began() -> None:
    assert len(set(choices(LlmD(), path(1, 2, 3), view(4), 50))) == 1


def precise_scores(*cached: int, min_max: float = 1) -> list[float]:
    """Return the prefix scores of replicas that hold so many of 10 blocks."""
    router = LlmDPrecise({"min_max": min_max})
    memory = router.memory(sizes(len(cached)), seed=1)
    blocks = path(*range(1, 11))
    seen = view(len(cached), cached=cached)
    LlmDPrecise.choose(prompt_of(blocks), blocks, seen, memory, router.settings())
    return memory.scores.tolist()


def test_precise_scores_are_normalized_over_replicas_with_a_match() -> None:
    assert precise_scores(3, 7, 0) == [0.0, 1.0, 0.0]
    assert precise_scores(4, 6, 8) == [0.0, 0.5, 1.0]
    assert precise_scores(5, 0, 5) == [1.0, 0.0, 1.0]
    assert precise_scores(0, 1, 0) == [0.0, 1.0, 0.0]
    assert precise_scores(0, 0, 0) == [0.0, 0.0, 0.0]


def test_precise_scores_follow_events_not_the_truth() -> None:
    router = LlmDPrecise()
    memory, blocks = router.memory(sizes(2), seed=1), path(1, 2)
    seen = view(2, cached=[2, 0])._replace(reported_blocks=np.array([0, 1], dtype=np.int32))
    LlmDPrecise.choose(prompt_of(blocks), blocks, seen, memory, router.settings())
    assert memory.scores.tolist() == [0.0, 1.0]


def test_precise_scores_after_0_8_are_shares_of_the_prompt() -> None:
    assert precise_scores(3, 7, 0, min_max=0) == [0.3, 0.7, 0.0]
    assert precise_scores(0, 1, 0, min_max=0) == [0.0, 0.1, 0.0]


def test_one_shared_block_draws_everything_to_the_replica_that_has_it() -> None:
    """With 1 of 10 blocks, the longest queue and 99 % of its memory used: 2 + 0 + 0.01 over 2."""
    seen = view(2, own=load(2, waiting=[50, 0], used_blocks=[99, 0]), cached=[1, 0])
    blocks = path(*range(1, 11))
    assert chosen(LlmDPrecise(), blocks, seen) == {0}
    assert chosen(LlmDPrecise({"min_max": 0}), blocks, seen) == {1}


def test_precise_weighs_the_prefix_2_and_load_1_each() -> None:
    """The longest prefix ties with the shortest queue and an unused cache: 2 + 0 + 0, 0 + 1 + 1."""
    seen = view(2, own=load(2, waiting=[1, 0], used_blocks=[100, 0]), cached=[9, 0])
    assert chosen(LlmDPrecise(), path(1), seen) == {0, 1}
    assert chosen(LlmDPrecise({"prefix_weight": 2.5}), path(1), seen) == {0}
    assert chosen(LlmDPrecise({"kv_weight": 1.5}), path(1), seen) == {1}
    assert chosen(LlmDPrecise({"queue_weight": 1.5}), path(1), seen) == {1}


def test_equal_scores_are_drawn_evenly() -> None:
    counts = np.bincount(choices(LlmDPrecise(), path(1), view(4), 4000), minlength=4)
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(750))


def test_the_configuration_has_the_weights() -> None:
    config, _, refresh = LlmD({"prefix_weight": 5, "scrape_s": 0.2}).flags()
    assert "{pluginRef: prefix-cache-scorer, weight: 5}" in config
    assert refresh == "--refresh-metrics-interval 0.2s"
    assert "precise-prefix-cache-scorer, weight: 2" in LlmDPrecise().flags()[0]


PATH = path(*range(1, 11))  # 10 blocks


def chosen_by_dynamo(seen: View, **values: float) -> int:
    """Return the choice for `PATH`, which must be the same each time."""
    (choice,) = set(choices(Dynamo(values), PATH, seen, 20))
    return choice


# Replica 0: prefill 10 - 4, decode 20 + 6 = 32. Replica 1: prefill 10, decode 15 + 10 = 35.
CACHED = view(2, own=load(2, used_blocks=[20, 15]), cached=[4, 0], new=[6, 10])


def test_cached_blocks_weigh_against_blocks_in_use() -> None:
    assert chosen_by_dynamo(CACHED) == 0
    assert chosen_by_dynamo(CACHED, prefill_load_scale=0.1) == 1  # 0.6 + 26 against 1 + 25
    assert chosen_by_dynamo(CACHED, overlap_score_credit=0) == 1  # 36 against 35
    assert chosen_by_dynamo(CACHED, overlap_score_credit=5) == 0  # max(0, 10 - 20) + 26


def test_prefills_under_way_are_charged_until_their_first_token() -> None:
    """Replica 0 has 4 of 10 blocks and 64 tokens to prefill: 10 - 4 + 4 = 10, even with 1."""
    busy = load(2, uncached_tokens=[64 + 16, 0])
    assert chosen_by_dynamo(view(2, own=busy, cached=[4, 0])) == 1
    busy = load(2, uncached_tokens=[64 - 16, 0])
    assert chosen_by_dynamo(view(2, own=busy, cached=[4, 0])) == 0


def test_what_events_reported_counts_not_the_truth() -> None:
    """By the truth alone replica 0 would win; its prefill is expected as if nothing were cached."""
    late = CACHED._replace(reported_blocks=np.zeros(2, dtype=np.int32))
    assert chosen_by_dynamo(late) == 1  # 10 + 26 against 10 + 25
    assert late.expected_blocks.tolist() == [0]
    assert chosen_by_dynamo(CACHED) == 0
    assert CACHED.expected_blocks.tolist() == [4]


def test_credit_decays_with_prefill_load_beyond_the_least() -> None:
    """10 blocks more than replica 1, as many as the prompt has: credit 8 / (1 + decay)."""
    seen = view(2, own=load(2, uncached_tokens=[160, 0]), cached=[8, 0], new=[2, 10])
    assert chosen_by_dynamo(seen) == 0  # 20 - 8 + 2 = 14 against 10 + 10 = 20
    assert chosen_by_dynamo(seen, overlap_score_credit_decay=2) == 0  # 20 - 8 / 3 + 2 = 19.3
    assert chosen_by_dynamo(seen, overlap_score_credit_decay=4) == 1  # 20 - 8 / 5 + 2 = 20.4
    assert chosen_by_dynamo(seen, overlap_score_credit_decay=4, overlap_score_credit=2) == 0  # 18.8


def test_requests_in_flight_cost_what_their_weight_says() -> None:
    seen = view(2, own=load(2, used_blocks=[20, 15], in_flight=[2, 0]), cached=[4, 0], new=[6, 10])
    assert chosen_by_dynamo(seen, decode_active_request_weight=1) == 0  # 34 against 35
    assert chosen_by_dynamo(seen, decode_active_request_weight=2) == 1  # 36 against 35


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
