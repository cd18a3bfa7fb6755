"""Routers on a hash ring: what moves when a replica joins, and how much load one may have."""

from __future__ import annotations

import numpy as np

from kvscope.routers.base import Prompt, View
from kvscope.routers.consistent_hash import ConsistentHash
from kvscope.routers.hash_ring import first_place, new_ring
from kvscope.routers.prefix_hash import PrefixHash
from tests.routers.scripted import decide, scripted
from tests.routers.views import BLOCK_TOKENS, load, path, prompt_of, sizes, view

KEYS = 4000


def homes(replicas: int) -> list[int]:
    """Return the replica of each key."""
    ring = new_ring(replicas, seed=5)
    return [int(ring.replicas[first_place(ring, key)]) for key in range(KEYS)]


def test_a_new_replica_takes_its_share_and_nothing_else_moves() -> None:
    few, more = np.array(homes(4)), np.array(homes(5))
    moved = few != more
    assert set(more[moved]) == {4}
    assert 0.15 < moved.mean() < 0.25
    assert np.bincount(few).min() > 0.7 * KEYS / 4


def choice(router: ConsistentHash | PrefixHash, seen: View, prompt: Prompt, *blocks: int) -> int:
    """Return the choice of a router that has seen nothing."""
    memory = router.memory(sizes(seen.replicas), seed=5)
    return router.choose(prompt, path(*blocks), seen, memory, router.settings())


def test_a_conversation_stays_unless_its_replica_has_no_room() -> None:
    router = ConsistentHash({"load_factor": 1.5})
    prompt = prompt_of(path(1, 2))
    home = choice(router, view(3), prompt, 1, 2)

    def with_load(count: int) -> int:
        """Return the choice with 6 requests in flight, so many of them at home."""
        rest = [(6 - count + 1) // 2, (6 - count) // 2]
        counts = [*rest[:home], count, *rest[home:]]
        return choice(router, view(3, own=load(3, in_flight=counts)), prompt, 1, 2)

    # With this one 7: at most 1.5 * 7 / 3 = 3.5, rounded up 4.
    assert with_load(3) == home
    assert with_load(4) != home
    assert choice(ConsistentHash({"load_factor": 1e9}), view(3), prompt, 1, 2) == home


def test_loads_are_bounded_for_all_traffic() -> None:
    script = scripted(500, 1)
    in_flight = [0] * 5
    choices: list[int] = []
    for number, replica in enumerate(decide(ConsistentHash(), script, 5)):
        for earlier in script.finished_before(number):
            in_flight[choices[earlier]] -= 1
        in_flight[replica] += 1
        choices.append(replica)
        assert in_flight[replica] <= -(-1.25 * sum(in_flight) // 5)


def test_prompts_that_begin_alike_go_to_one_replica() -> None:
    router = PrefixHash({"prefix_tokens": 2 * BLOCK_TOKENS})
    seen = view(8)
    alike = {choice(router, seen, prompt_of(path(1, 2, tail)), 1, 2, tail) for tail in range(3, 30)}
    other = {choice(router, seen, prompt_of(path(1, tail)), 1, tail) for tail in range(3, 30)}
    assert len(alike) == 1
    assert len(other) > 4


def test_short_prompts_whose_end_is_unknown_are_spread() -> None:
    router = PrefixHash()
    chosen = {
        choice(router, view(8), prompt_of(path(1), request, tail_tokens=3), 1)
        for request in range(50)
    }
    assert len(chosen) > 4


def test_a_prefix_moves_when_both_thresholds_are_exceeded() -> None:
    router = PrefixHash({"load_factor": 2.0, "balance_abs_threshold": 4})
    prompt = prompt_of(path(*range(1, 20)))
    blocks = range(1, 20)
    home = choice(router, view(4), prompt, *blocks)

    def moves(at_home: int, elsewhere: int) -> bool:
        """Return True if another replica gets the request."""
        counts = [elsewhere] * 4
        counts[home] = at_home
        return choice(router, view(4, own=load(4, in_flight=counts)), prompt, *blocks) != home

    assert moves(6, 0)  # average 1.75
    assert not moves(5, 0)  # average 1.5: more than twice that, not 4 more
    assert not moves(12, 5)  # average 7: 5 more, not twice that


def test_flags_name_the_parameters() -> None:
    assert "--prefix-token-count 64" in PrefixHash({"prefix_tokens": 64}).flags()
    assert "hash-balance-factor 125" in ConsistentHash().flags()
