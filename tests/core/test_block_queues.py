"""Rings, with blocks that are forgotten from the middle, do what a deque does."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from kvscope.core.block_queues import NOTES, ring_forget, ring_length, ring_remember, ring_take
from kvscope.replay.kernels.queues import empty_rings

BLOCKS, QUEUE = 12, 1


@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from("rft"), st.integers(0, 99))))
def test_a_ring_is_a_queue(most: int, steps: list[tuple[str, int]]) -> None:
    """Whatever is remembered, forgotten and taken: order and length are kept, holes closed up."""
    rings = empty_rings(QUEUE + 1, BLOCKS, most)
    expected = deque[int]()
    for step, number in steps:
        others = [block for block in range(BLOCKS) if block not in expected]
        if step == "r" and len(expected) < most:
            block = others[number % len(others)]
            ring_remember(rings, QUEUE, block)
            expected.append(block)
        elif step == "f" and expected:
            block = expected[number % len(expected)]
            ring_forget(rings, QUEUE, block)
            expected.remove(block)
            assert rings[NOTES, block] == 0
        elif step == "t" and expected:
            block = ring_take(rings, QUEUE)
            assert block == expected.popleft()
            rings[NOTES, block] = 0
        assert ring_length(rings, QUEUE) == len(expected)
        assert {block for block in range(BLOCKS) if rings[NOTES, block] < 0} == set(expected)


def test_closing_up() -> None:
    """One block stays while others come and are forgotten, far beyond the slots there are."""
    rings = empty_rings(QUEUE + 1, BLOCKS, 2)
    ring_remember(rings, QUEUE, 0)
    for _ in range(100):
        ring_remember(rings, QUEUE, 1)
        ring_forget(rings, QUEUE, 1)
    assert ring_length(rings, QUEUE) == 1
    assert ring_take(rings, QUEUE) == 0
