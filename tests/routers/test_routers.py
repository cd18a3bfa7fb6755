"""Routers do what the programs that they are named after do."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from kvscope.core.errors import UsageError
from kvscope.routers import prefixaware
from kvscope.routers.balancers import PowerOfTwo, SglangDp, SglangDpTokens, VllmDp
from kvscope.routers.base import (
    Fetch,
    MemorySizes,
    Prompt,
    ReplicaLoad,
    Router,
    Truth,
    View,
    draw,
    mix32,
    new_dice,
)
from kvscope.routers.hash_ring import ConsistentHash, PrefixHash, first_place, new_ring
from kvscope.routers.lru_index import empty_index, holds, touch
from kvscope.routers.prefixaware import Prefixaware
from kvscope.routers.references import MooncakeConductor
from kvscope.routers.registry import ROUTERS, router_by_name
from tests.routers.scripted import decide, scripted
from tests.routers.views import BLOCK_TOKENS, choices, load, path, prompt_of, sizes, view

PARENTS = np.array([0, 0, 1, 2, 1], dtype=np.int32)  # 1-2-3 and 1-4


def a_view(replicas: int) -> View:
    whole = np.zeros(replicas, dtype=np.int64)
    load = ReplicaLoad(*(whole.copy() for _ in ReplicaLoad._fields))
    truth = Truth(whole.astype(np.int32), whole.copy(), np.ones(replicas), np.zeros(replicas))
    fetch = Fetch(np.zeros(1, dtype=np.int32), np.zeros(1))
    expected = np.zeros(1, dtype=np.int32)
    return View(replicas, 100, 16, load, load, truth.cached_blocks, expected, truth, fetch)


@pytest.mark.parametrize("kind", ROUTERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_choice_is_a_replica(kind: type[Router], replicas: int) -> None:
    router = kind()
    memory = router.memory(MemorySizes(replicas, 40, len(PARENTS), 3, 16, 100, PARENTS), seed=1)
    path = np.array([1, 2, 3], dtype=np.int32)
    for request in range(40):
        prompt = Prompt(request, request * 0.5, 50, request % 7, 3, 3)
        choice = kind.choose(prompt, path, a_view(replicas), memory, router.settings())
        assert 0 <= choice < replicas


def test_names_are_found_in_any_case_and_versions_are_offered() -> None:
    assert router_by_name("Round-Robin").name == "round-robin"
    assert router_by_name("rr").name == "round-robin"
    with pytest.raises(UsageError, match="did you mean random"):
        router_by_name("randon")
    names = [name for known in ROUTERS for name in (known.name, *known.aliases)]
    assert len(names) == len(set(names))


def test_random_numbers_are_even_and_follow_the_seed() -> None:
    dice, again = new_dice(7), new_dice(7)
    drawn = [draw(dice, 5) for _ in range(10_000)]
    assert drawn[:50] == [draw(again, 5) for _ in range(50)]
    counts = np.bincount(drawn, minlength=5)
    assert counts.sum() == 10_000
    assert np.all(np.abs(counts - 2000) < 5 * np.sqrt(2000))
    hashed = np.array([mix32(number) for number in range(10_000)])
    assert len(np.unique(hashed)) == 10_000
    assert abs(hashed.mean() / 2**31 - 1) < 0.02


KEYS = 4000


def homes(replicas: int) -> list[int]:
    """Return the replica of each key."""
    ring = new_ring(replicas, seed=5)
    return [int(ring.replicas[first_place(ring, key)]) for key in range(KEYS)]


def test_a_key_at_a_place_is_its() -> None:
    """The keys from the seed's hash on fall exactly on the places."""
    ring, first = new_ring(4, seed=5), mix32(5)
    assert all(ring.places[first_place(ring, first + n)] == mix32(first + n) for n in range(600))


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


def test_the_busiest_of_all_is_never_chosen() -> None:
    seen = view(4, own=load(4, in_flight=[5, 2, 9, 0]))
    counts = np.bincount(choices(PowerOfTwo(), path(1), seen, 6000), minlength=4)
    # Of the 6 pairs the least busy replica is in 3, the next then wins 2, the third 1.
    assert counts[2] == 0
    assert np.all(np.abs(counts[[3, 1, 0]] - [3000, 2000, 1000]) < 200)


def test_equals_are_drawn_evenly_and_one_needs_no_draw() -> None:
    counts = np.bincount(choices(PowerOfTwo(), path(1), view(5), 5000), minlength=5)
    assert np.all(np.abs(counts - 1000) < 160)
    assert set(choices(PowerOfTwo(), path(1), view(1), 5)) == {0}


@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_every_list_keeps_its_most_recent_blocks(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    replicas, blocks = 3, 20
    index = empty_index(replicas, capacity)
    lists: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]
    for _ in range(3000):
        replica, block = int(rng.integers(replicas)), int(rng.integers(blocks))
        touch(index, replica, block)
        lists[replica][block] = None
        lists[replica].move_to_end(block)
        if len(lists[replica]) > capacity:
            lists[replica].popitem(last=False)
        for other in range(replicas):
            held = {known for known in range(blocks) if holds(index, other, known)}
            assert held == set(lists[other])


def chosen_by_vllm(seen: View, request: int = 0) -> int:
    """Return the choice for a request."""
    return VllmDp.choose(
        prompt_of(path(1), request), path(1), seen, VllmDp().memory, VllmDp().settings()
    )


def test_equal_engines_take_turns() -> None:
    assert [chosen_by_vllm(view(3), request) for request in range(5)] == [0, 1, 2, 0, 1]


def test_the_greater_of_own_count_and_snapshot_counts() -> None:
    """Scores: max(4, 1 + 1) = 4, max(1, 2 + 3) = 5, max(3, 0) = 3."""
    scraped = load(3, waiting=[1, 2, 0], running=[1, 3, 0])
    seen = view(3, own=load(3, in_flight=[4, 1, 3]), scraped=scraped)
    assert chosen_by_vllm(seen) == 2
    seen = view(3, own=load(3, in_flight=[4, 1, 6]), scraped=scraped)
    assert chosen_by_vllm(seen) == 0


def test_requests_sent_since_the_snapshot_wait() -> None:
    """Replica 0 ran 2 then and got 2 since, none of them in flight any more; replica 1 ran 3."""
    own = load(2, processed=[9, 5])
    seen = view(2, own=own, scraped=load(2, running=[2, 3], processed=[7, 5]))
    assert chosen_by_vllm(seen) == 1
    seen = view(2, own=own, scraped=load(2, running=[2, 3], processed=[9, 5]))
    assert chosen_by_vllm(seen) == 0


def test_a_queue_counts_up_to_four_times_as_memory_fills() -> None:
    """2 waiting at 90 % usage: 2 + 6 * 2 * 0.4 = 6.8, between 6 and 7 running; at 50 %: 2."""

    def full(used_blocks: int, running: int) -> int:
        scraped = load(2, waiting=[2, 0], running=[0, running], used_blocks=[used_blocks, 0])
        return chosen_by_vllm(view(2, scraped=scraped))

    assert [full(90, 6), full(90, 7)] == [1, 0]
    assert [full(50, 1), full(50, 3)] == [1, 0]
    assert [full(500, 7), full(500, 9)] == [1, 0]  # at most 100 %: 2 + 6 = 8


@pytest.mark.parametrize(
    ("kind", "then", "since", "best"),
    [
        (SglangDp, {"waiting": [0, 1, 0], "running": [2, 0, 3]}, [0, 0, 0], 1),
        (SglangDp, {"waiting": [0, 1, 0], "running": [2, 0, 3]}, [0, 1, 0], 0),  # the first
        (SglangDp, {"running": [2, 0, 3], "used_blocks": [0, 9, 9]}, [0, 3, 0], 0),
        (SglangDpTokens, {"used_blocks": [2, 1, 3], "running": [0, 9, 0]}, [0, 0, 0], 1),
        (SglangDpTokens, {"used_blocks": [2, 1, 3], "waiting_tokens": [0, 17, 0]}, [0, 0, 0], 0),
        (SglangDpTokens, {"used_blocks": [1, 1, 1], "running": [2, 1, 1]}, [0, 0, 0], 1),
        (SglangDpTokens, {"used_blocks": [1, 0, 1]}, [0, 2, 0], 0),
    ],
)
def test_sglangs_ranks_have_what_they_told_and_what_was_sent_since(
    kind: type[Router], then: dict[str, list[int]], since: list[int], best: int
) -> None:
    """`since` is how many requests of 16 tokens each rank was sent; all had 5 before."""
    before = {"processed": [5, 5, 5], "sent_tokens": [80, 80, 80]}
    own = load(
        3, processed=[5 + each for each in since], sent_tokens=[80 + 16 * each for each in since]
    )
    seen = view(3, own=own, scraped=load(3, **then, **before))
    assert kind.choose(prompt_of(path(1)), path(1), seen, None, kind().settings()) == best


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


CHUNK = 128


@pytest.mark.parametrize("characters", [16, 24, 40, 128])
def test_choices_are_of_those_that_had_the_longest_prefix(
    characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a half, three quarters, more than one and four chunks."""
    script, replicas = scripted(500, 3), 4
    draws = prefixaware.draw
    candidates: list[int] = []

    def noted(dice: object, below: int) -> int:
        """Draw, and note from how many."""
        candidates.append(below)
        return draws(dice, below)  # type: ignore[arg-type]

    monkeypatch.setattr(prefixaware, "draw", noted)
    had: dict[str, set[int]] = {}
    router = Prefixaware({"characters_per_token": characters})
    matched = 0
    for number, choice in enumerate(decide(router, script, replicas)):
        text = script.text(number, characters)
        assert len(text) == script.requests[number].input_tokens * characters
        ends = [*range(CHUNK, len(text) + 1, CHUNK), *([len(text)] if len(text) % CHUNK else [])]
        matching = set(range(replicas))
        for end in ends:
            if not had.get(text[:end]):
                break
            matching = had[text[:end]]
            matched += 1
        assert choice in matching
        assert candidates[-1] == len(matching)
        for end in ends:
            had.setdefault(text[:end], set()).add(choice)
    assert len(candidates) == 500
    assert 0 < candidates.count(1) < 500
    assert matched > 500


def test_a_shared_beginning_draws_all_requests_to_one_replica() -> None:
    """So it is with any system prompt of 128 characters."""
    router = Prefixaware()
    memory = router.memory(sizes(4), seed=1)
    chosen = set()
    for request in range(20):
        blocks = path(1, 2, 3 + request)
        chosen.add(
            router.choose(prompt_of(blocks, request), blocks, view(4), memory, router.settings())
        )
    assert len(chosen) == 1


def test_below_the_least_match_the_fewest_recent_requests_decide() -> None:
    router = Prefixaware({"prefix_min_match_length": 4 * BLOCK_TOKENS * 3})
    memory = router.memory(sizes(3), seed=1)

    def choice(request: int, now_s: float, sent: list[int], *blocks: int) -> int:
        """Return the choice for a request, of which replicas got so many before."""
        return router.choose(
            prompt_of(path(*blocks), request, now_s),
            path(*blocks),
            view(3, own=load(3, processed=sent)),
            memory,
            router.settings(),
        )

    assert choice(0, 0.0, [0, 0, 0], 1, 2, 3, 4) == 0
    assert choice(1, 1.0, [1, 0, 0], 1, 2, 5) == 1  # matches two blocks only
    assert choice(2, 2.0, [1, 1, 0], 1, 2, 3, 4) == 0  # matches all
    assert choice(3, 3.0, [2, 1, 0], 9) == 2  # never had any
    assert choice(4, 4.0, [2, 1, 1], 10) == 1  # one request as replica 2: the first of equals
    assert choice(5, 61.5, [2, 2, 1], 11) == 0  # of the last minute each has one
