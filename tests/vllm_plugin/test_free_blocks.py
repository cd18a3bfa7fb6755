"""The plugin's queue of free blocks by itself, with blocks that are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvscope.learning.prefixes import Prefixes
from kvscope.vllm_plugin.free_blocks import FreeBlocks
from tests.vllm_plugin.fakes import FakeBlock


def lanes(lane: int, idle_s: float) -> float:
    """Lower lanes first."""
    return float(lane)


def queue(
    score: Callable[[int, float], float] = lanes, total: int = 8, leaf: bool = False
) -> tuple[FreeBlocks, list[FakeBlock]]:
    """Return a queue of empty blocks that forgets what is taken, and the blocks."""
    blocks = [FakeBlock(number) for number in range(total)]

    def forget(block: FakeBlock) -> None:
        key, block.block_hash = block.block_hash, None
        free.lost(key)

    prefixes = Prefixes() if leaf else None
    free = FreeBlocks(blocks, total, score, prefixes=prefixes, forget=forget)
    return free, blocks


def cached(free: FreeBlocks, path: str, deep_beyond: int = 99) -> None:
    """Take, fill and free blocks called by the letters as a request does: deepest first."""
    taken = free.popleft_n(len(path))
    for depth, block in enumerate(taken, start=1):
        block.hold(path[:depth], depth)
        free.gained(path[:depth], path[: depth - 1] or None)
    free.plan = ((deep_beyond, 0), (0, 1))
    free.append_n(taken[::-1])
    free.plan = None


def held(free: FreeBlocks) -> list[str | None]:
    """Return what the free blocks hold, in order."""
    return [block.block_hash for block in free.get_all_free_blocks()]


def test_empty_blocks_go_first_and_the_last_one_freed_in_front() -> None:
    """As vLLM reuses what has no hash."""
    free, blocks = queue()
    taken = free.popleft_n(4)
    assert taken == blocks[:4]
    free.prepend_n([taken[2], taken[1]])
    assert [block.block_id for block in free.get_all_free_blocks()] == [2, 1, 4, 5, 6, 7]
    assert free.num_free_blocks == 6


def test_a_head_that_was_set_aside_can_be_hit() -> None:
    """It is free, and a request that finds it takes it out from wherever it is."""
    free, blocks = queue(total=3, leaf=True)
    cached(free, "abc")
    free.remove(blocks[0])
    free.plan = ((0, 0),)
    free.append_n([blocks[0]])
    assert free.popleft_n(1)[0] is blocks[2]
    assert list(free.set_aside) == [blocks[0]]
    free.remove(blocks[0])
    assert free.num_free_blocks == 1
    assert free.popleft_n(1)[0] is blocks[1]


def test_a_head_that_was_set_aside_returns_to_its_place_by_age() -> None:
    """Evict heads in the order in which they were freed, once their children are gone."""
    free, blocks = queue(total=5, leaf=True)
    for path in ("pq", "ab", "x"):
        cached(free, path, deep_beyond=1)  # children in lane 0, heads in lane 1
    head_p, child_q, head_a, child_b, head_x = blocks
    assert free.popleft_n(1)[0] is child_q
    assert list(free.set_aside) == [head_a]
    assert list(free.lanes[1]) == [head_p, head_x]
    assert free.popleft_n(1)[0] is child_b
    assert list(free.lanes[1]) == [head_p, head_a, head_x]
    assert [free.popleft_n(1)[0] for _ in range(3)] == [head_p, head_a, head_x]


Visit = tuple[int, int, int, float]
"""A request: its blocks, how many of them it frees, where its deep lane begins, seconds before."""


def after(visits: list[Visit], worths: tuple[int, ...], leaf: bool) -> FreeBlocks:
    """Return a queue after these requests; blocks that one does not free stay in use.

    A block is worth what its lane is, less the seconds that it is idle.
    """
    free, _ = queue(lambda lane, idle_s: float(worths[lane] - round(idle_s)), 24, leaf)
    now_s = 0.0
    for number, (length, freed, deep_beyond, waited_s) in enumerate(visits):
        now_s += waited_s
        free.at(now_s)
        if length > len(list(free.unhashed)):
            break
        taken, name = free.popleft_n(length), "abcdefgh"[number]
        for depth, block in enumerate(taken, start=1):
            block.hold(name * depth, depth)
            free.gained(name * depth, name * (depth - 1) or None)
        free.plan = ((deep_beyond, 0), (0, 1 + number % 2))
        free.append_n(taken[:freed][::-1])
        free.plan = None
    free.at(now_s + 1.0)
    return free


VISIT = st.tuples(
    st.integers(1, 6), st.integers(0, 6), st.integers(0, 4), st.sampled_from((0.0, 1.0))
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(VISIT, max_size=8),
    st.tuples(*[st.integers(0, 2)] * 3),
    st.integers(0, 24),
    st.booleans(),
)
@example(
    visits=[(2, 1, 9, 0.0)] * 3, worths=(0, 0, 0), wanted=24, leaf=True
)  # heads of blocks in use
def test_blocks_taken_together_are_those_taken_one_by_one(
    visits: list[Visit], worths: tuple[int, ...], wanted: int, leaf: bool
) -> None:
    """The same blocks in the same order, and the same order of those that are left."""
    together, alone = after(visits, worths, leaf), after(visits, worths, leaf)
    wanted = min(len(list(together.unhashed)) + wanted, together.num_free_blocks)
    taken = [block.block_id for block in together.popleft_n(wanted)]
    assert taken == [alone.popleft_n(1)[0].block_id for _ in range(wanted)]
    assert held(together) == held(alone)
    assert together.evictions == alone.evictions


def test_what_is_not_free_cannot_be_removed_nor_more_taken_than_there_is() -> None:
    """The engine's own mistakes are told as its own queue tells them."""
    free, blocks = queue(total=2)
    free.popleft_n(1)[0]
    with pytest.raises(RuntimeError, match="not free"):
        free.remove(blocks[0])
    with pytest.raises(ValueError, match="2 blocks wanted, 1 are free"):
        free.popleft_n(2)


def test_a_cleared_cache_has_empty_blocks_alone() -> None:
    """Whatever lane they were in, and those set aside: all of them are taken before a full one."""
    free, blocks = queue(total=5, leaf=True)
    for path in ("pq", "ab", "x"):
        cached(free, path, deep_beyond=1)
    free.popleft_n(1)
    assert list(free.set_aside) == [blocks[2]]
    for block in blocks:
        block.block_hash = None
    free.lost_all()
    assert list(free.unhashed) == free.get_all_free_blocks()
    cached(free, "new")
    assert held(free) == [None, "new", "ne", "n"]


def test_a_block_that_loses_its_hash_is_taken_first() -> None:
    """It holds nothing that a request could hit."""
    free, blocks = queue(total=3)
    cached(free, "abc")
    blocks[0].block_hash = None
    free.emptied(blocks[0])
    assert [free.popleft_n(1)[0].block_id for _ in range(3)] == [0, 2, 1]
    free.emptied(blocks[0])  # in use: nothing to do
    assert free.get_all_free_blocks() == []


def test_the_last_free_block_is_taken_though_a_child_is_cached() -> None:
    """The child is in use by a request whose own block of that prefix has lost its hash."""
    free, _ = queue(total=3, leaf=True)
    head, child = free.popleft_n(2)
    free.gained(head.hold("a", 1).block_hash, None)
    free.gained(child.hold("ab", 2).block_hash, "a")
    head.block_hash = None
    free.lost("a")
    cached(free, "a")
    assert free.popleft_n(1)[0].block_id == 2
    assert list(free.set_aside) == []


def test_those_behind_a_block_are_told_in_order() -> None:
    """As an offloading manager walks them."""
    free, blocks = queue(total=4)
    assert list(free.iter_blocks_after(None)) == blocks
    assert list(free.iter_blocks_after(blocks[1])) == blocks[2:]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60), st.booleans())
def test_no_block_is_ever_lost(steps: list[tuple[int, bool]], leaf: bool) -> None:
    """Taken, filled and freed: every block is free or taken, once."""
    free, _ = queue(lambda lane, _: float(-lane), total=6, leaf=leaf)
    used: list[FakeBlock] = []
    for number, hashed in steps:
        if number % 2 and free.num_free_blocks:
            used.append(free.popleft_n(1)[0])
            used[-1].block_hash = None
        elif used:
            block = used.pop(number % len(used))
            if hashed:
                free.gained(block.hold(str(number), number).block_hash, None)
                free.plan = ((2, 0), (0, 1))
                free.append_n([block])
            else:
                free.prepend_n([block])
        seen = [*free.get_all_free_blocks(), *used]
        assert sorted(block.block_id for block in seen) == list(range(6))
        assert free.num_free_blocks == 6 - len(used)
