"""Mooncake's Algorithm 1, by hand: prefixes of 16-token blocks, 160 tokens copied a second."""

from __future__ import annotations

from kvscope.routers.base import View
from kvscope.routers.mooncake import MooncakeConductor
from tests.routers.views import load, path, prompt_of, view

PATH = path(*range(1, 11))


def chosen(seen: View, **values: float) -> tuple[int, int, float]:
    """Return the choice, the blocks that it copies and the seconds that this takes."""
    router = MooncakeConductor({"transfer_tokens_per_s": 160, **values})
    choice = MooncakeConductor.choose(prompt_of(PATH), PATH, seen, None, router.settings())
    blocks = int(seen.fetch.blocks[0])
    return choice, blocks, float(seen.fetch.seconds[0]) if blocks else 0.0


def test_queue_and_prefill_decide_without_a_cached_prefix() -> None:
    seen = view(3, prefill_s=[5, 5, 5], wait_s=[2, 1, 3])
    assert chosen(seen) == (1, 0, 0.0)


def test_a_queue_outweighs_a_prefix() -> None:
    """Replica 0 holds 8 blocks: 4 + 1 = 5 s. Replica 1, with 4 of them, computes: 3.5 s."""
    seen = view(2, cached=[8, 4], prefill_s=[1, 3.5], wait_s=[4, 0])
    assert chosen(seen) == (1, 0, 0.0)
    seen = view(2, cached=[8, 4], prefill_s=[1, 3.5], wait_s=[2, 0])
    assert chosen(seen) == (0, 0, 0.0)


def test_a_prefix_is_copied_beyond_the_threshold() -> None:
    """With 3 of 8 blocks a copy of 80 tokens takes 0.5 s: 0.5 + 1 s instead of 3.5 s."""
    seen = view(2, cached=[8, 3], prefill_s=[1, 3.5], wait_s=[4, 0])
    assert chosen(seen) == (1, 8, 0.5)
    assert chosen(seen, kvcache_balancing_threshold=3) == (1, 0, 0.0)  # 8 < 3 * 3: computes
    seen = view(2, cached=[8, 3], prefill_s=[1, 3.5], wait_s=[0.4, 0])
    assert chosen(seen) == (0, 0, 0.0)  # 1.4 s against 1.5 s


def test_replicas_without_any_prefix_always_copy_one() -> None:
    seen = view(2, cached=[8, 0], prefill_s=[1, 9], wait_s=[9, 0])
    assert chosen(seen, kvcache_balancing_threshold=100) == (1, 8, 0.8)


def test_a_slow_network_makes_copies_pointless() -> None:
    """128 tokens at 8 a second take 16 s, longer than the queue of 9 s."""
    seen = view(2, cached=[8, 0], prefill_s=[1, 5], wait_s=[9, 0])
    assert chosen(seen, transfer_tokens_per_s=8) == (0, 0, 0.0)


def test_equal_estimates_go_to_the_replica_with_fewer_requests_so_far() -> None:
    seen = view(3, own=load(3, processed=[2, 1, 1]), prefill_s=[5, 5, 5])
    assert chosen(seen)[0] == 1
