"""SGLang's scheduler by hand; tests/conformance/test_sglang.py compares it with SGLang's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvscope.deployment.engines import WRITE_POLICIES, WritePolicy
from kvscope.latency.profile import LatencyProfile
from kvscope.policies.registry import by_name
from kvscope.replay.traffic import Traffic
from kvscope.sglang_sim.replay import HostTier, TreeService, serve_tree
from tests.sglang_sim.chats import Chat, chats, traffic_of
from tests.sglang_sim.in_order import replay_tree

PROFILE = LatencyProfile("p", "", 1.0, 0.1, decode_base_s=0.5, decode_request_s=0.25)
"""A batch of prompts takes 1 s and 0.1 s a token, one of n outputs 0.5 s and 0.25 s for each."""
LRU = by_name("lru")()


def _chat(first: int, prompt: int, outputs: int) -> Chat:
    """Return a request whose tokens are numbers from `first` on."""
    return Chat(list(range(first, first + prompt)), list(range(9000, 9000 + outputs)))


def _at_once(requests: Sequence[Chat]) -> Traffic:
    """Return requests that arrive together, in blocks of one token."""
    of = traffic_of(requests, 1)
    return of._replace(arrival_s=np.zeros(len(of.leaf)))


def _serve(requests: Sequence[Chat], capacity: int = 10_000, **options: object) -> TreeService:
    return serve_tree(_at_once(requests), LRU, capacity, PROFILE, **options)  # type: ignore[arg-type]


def test_a_batch_computes_several_prompts_and_a_part_of_one() -> None:
    """30 + 18 tokens, then the other 12; the first request decodes once no prompt is left."""
    done = _serve([_chat(100, 30, 2), _chat(200, 30, 1)], chunk_tokens=48)
    assert done.begin_s.tolist() == [0.0, 0.0]
    assert np.allclose(done.token_s, [5.8, 5.8 + 2.2])
    assert np.allclose(done.end_s, [5.8 + 2.2 + 0.75, 5.8 + 2.2])
    assert np.allclose(done.tpot_s, [2.2 + 0.75, np.nan], equal_nan=True)
    assert done.batches == 3


def test_prompts_of_one_batch_do_not_share() -> None:
    """Neither is in the tree yet; the next one hits."""
    same = _chat(100, 30, 2)
    together = _serve([same, same])
    assert together.hit_blocks.tolist() == [0, 0]
    assert _serve([same, same, same], most_running=1).hit_blocks.tolist() == [0, 29, 29]


def test_requests_wait_for_the_limit_of_running_ones() -> None:
    done = _serve([_chat(100, 10, 3), _chat(200, 10, 1)], most_running=1)
    assert done.begin_s[1] >= done.end_s[0]


def test_the_longest_prefix_goes_first() -> None:
    head, other = _chat(100, 60, 1), _chat(300, 40, 1)
    requests = [head, other, Chat([*head.prompt, 1, 2, 3], [9000])]
    assert np.argsort(_serve(requests, most_running=1).begin_s).tolist() == [0, 1, 2]
    by_prefix = _serve(requests, most_running=1, order="lpm")
    assert np.argsort(by_prefix.begin_s).tolist() == [0, 2, 1]


def test_a_prompt_waits_for_one_with_its_first_32_tokens() -> None:
    """If neither is cached: the second is then in the third batch, and hits what the first left."""
    others = [_chat(first, 40, 1) for first in (300, 400, 500)]
    requests = [_chat(200, 40, 1), _chat(200, 40, 1), *others]
    assert _serve(requests, chunk_tokens=80).hit_blocks.tolist() == [0, 0, 0, 0, 0]
    assert _serve(requests, chunk_tokens=80, order="lpm").hit_blocks.tolist() == [0, 39, 0, 0, 0]
    short = [_chat(200, 31, 1), _chat(200, 31, 1), *others]
    assert not _serve(short, chunk_tokens=80, order="lpm").hit_blocks.any()


def test_the_one_with_fewer_outputs_is_retracted() -> None:
    """Less and less is reserved for outputs; it goes on once the other is complete."""
    requests = [_chat(100, 20, 600), _chat(300, 20, 130)]
    late = _at_once(requests)._replace(arrival_s=np.array([0.0, 378.0]))
    done = serve_tree(late, LRU, 700, PROFILE)
    assert done.begin_s[1] < done.end_s[0] < done.end_s[1]
    assert done.retractions.tolist() == [0, 1]
    assert done.hit_blocks.tolist() == [0, 0]
    assert serve_tree(late, LRU, 1000, PROFILE).retractions.tolist() == [0, 0]


def test_answers_that_would_be_cut_are_rejected() -> None:
    """A page and a token stay free beside a prompt and its outputs."""
    requests = [_chat(100, 20, 10), _chat(300, 20, 11)]
    assert np.isnan(_serve(requests, 32).end_s).tolist() == [False, True]
    assert np.isnan(_serve(requests, 33).end_s).tolist() == [False, False]


@pytest.mark.parametrize("policy", ["lru", "slru", "tlru"])
def test_an_idle_server_serves_one_by_one(policy: str) -> None:
    """Far apart, requests hit what they hit in a replay, and wait for nothing."""
    of = traffic_of(chats(200, seed=2), 4)
    of = of._replace(arrival_s=of.arrival_s * 1e6)
    profile = LatencyProfile("p", "", 0.1, 0.01)
    done = serve_tree(of, by_name(policy)(), 150, profile)
    alone = replay_tree(of, by_name(policy)(), 150)
    assert np.array_equal(done.hit_blocks, alone.hit_blocks)
    assert done.begin_s.tolist() == of.arrival_s.tolist()


def test_requests_begin_then_have_a_token_then_end() -> None:
    done = serve_tree(traffic_of(chats(200, seed=5), 4), LRU, 200, PROFILE)
    assert (done.end_s >= done.token_s).all()
    assert (done.token_s > done.begin_s).all()


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_a_large_host_tier_hits_what_an_infinite_cache_does(write_policy: WritePolicy) -> None:
    """One request at a time; what is stored on its second insertion is lost with the first."""
    traffic = traffic_of(chats(200, seed=3, longest=400), 16)
    traffic = traffic._replace(arrival_s=1e6 * np.arange(200))
    small, blocks = 40, len(traffic.block_parent)
    hits = [
        serve_tree(traffic, LRU, pool, PROFILE, paged=True, chunk_tokens=48, host=tier)
        for pool, tier in (
            (small, None),
            (small, HostTier(blocks + small, write_policy)),
            (blocks + small, None),
        )
    ]
    alone, tiered, infinite = (done.hit_blocks.sum() for done in hits)
    assert alone < tiered
    assert (tiered == infinite) == (write_policy != "write_through_selective")
    assert hits[1].loaded_blocks.sum() > 0
    assert hits[1].host_evictions == 0


def test_loads_take_the_time_of_their_blocks_beside_the_batch() -> None:
    """60 blocks come back in 12 s, in which the last prompt token would take 1.1 s to compute."""
    first, other = _chat(100, 61, 1), _chat(200, 61, 1)
    traffic = _at_once([first, other, first])._replace(arrival_s=np.array([0.0, 100.0, 200.0]))
    done = serve_tree(traffic, LRU, 70, PROFILE, host=HostTier(140, copy_block_s=0.2))
    assert done.loaded_blocks.tolist() == [0, 0, 60]
    assert np.allclose(done.token_s - traffic.arrival_s, [7.1, 7.1, 12.0])


def test_write_back_waits_for_its_copies() -> None:
    """The first prompt leaves the pool before the second one is computed."""
    traffic = _at_once([_chat(100, 61, 1), _chat(200, 61, 1)])
    traffic = traffic._replace(arrival_s=np.array([0.0, 100.0]))
    host = HostTier(140, "write_back", copy_block_s=0.2)
    done = serve_tree(traffic, LRU, 70, PROFILE, host=host)
    assert done.stored_blocks == 61
    assert np.allclose(done.token_s - traffic.arrival_s, [7.1, 7.1 + 0.2 * 61])
