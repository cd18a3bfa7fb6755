"""Why tokens missed: hand-computed on a conversation of three turns, and against plain sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope.core.hits import KVCACHE_SIMULATOR, HitDefinition, standard
from kvscope.core.trace import Prompts
from kvscope.replay.misses import MissReasons, lru_hit_blocks, novelty, reasons
from kvscope.replay.path_facts import TracePaths
from kvscope.replay.stack_distances import lru_distances
from tests import small_traces
from tests.oracles import lru


def int32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@pytest.fixture
def prompts() -> Prompts:
    """Blocks of 4 tokens. Turn 1 has blocks 1-2-3, a stranger block 4, turn 2 repeats turn 1 and
    adds block 5, turn 3 keeps 1-2 only and goes on with 6-7 where 3-5 stood, then 8.
    """
    return Prompts(
        block_size=4,
        arrival_s=np.arange(4, dtype=np.float64),
        input_tokens=int32(13, 5, 17, 22),
        output_tokens=int32(0, 0, 0, 0),
        conversation=int32(0, 1, 0, 0),
        parent=int32(-1, -1, 0, 2),
        user=int32(-1, -1, -1, -1),
        category=int32(0, 0, 1, 2),
        clock=int32(-1, -1, -1, -1),
        categories=("unknown 1", "unknown 2", "unknown 3"),
        blocks=int32(3, 1, 4, 5),
        full_blocks=int32(3, 1, 4, 5),
        leaf=int32(3, 4, 5, 8),
        cached_blocks=int32(3, 1, 4, 5),
        carried_leaf=int32(3, 4, 5, 8),
        carried_blocks=int32(3, 1, 4, 5),
        block_parent=int32(0, 0, 1, 2, 0, 3, 2, 6, 7),
    )


def misses(prompts: Prompts, capacities: list[int]) -> tuple[MissReasons, ...]:
    """Return why tokens missed at each capacity, as an analysis finds it."""
    return TracePaths(prompts).follow([standard()]).misses(standard(), capacities)


def test_the_parts_add_up_to_the_input(prompts: Prompts) -> None:
    """Whatever the capacity, every input token is in exactly one part."""
    for each in misses(prompts, list(range(12))):
        parts = (
            each.hit_tokens
            + each.evicted_tokens
            + each.diverged_tokens
            + each.cold_tokens
            + each.tail_tokens
        )
        assert parts == each.input_tokens == 57


def test_hits_and_evictions_follow_capacity(prompts: Prompts) -> None:
    """Turn 2 finds its 3 blocks behind the stranger's, turn 3 its 2 in front: places 2-4, 1-2."""
    hits = [each.hit_tokens // 4 for each in misses(prompts, [0, 1, 2, 3, 4])]
    assert hits == [0, 1, 3, 4, 5]
    evicted = [r.evicted_tokens // 4 for r in misses(prompts, [0, 1, 2, 3, 4])]
    assert evicted == [5, 4, 2, 1, 0]


def test_an_edited_history_diverges(prompts: Prompts) -> None:
    """Turn 3 has other blocks at places 2 and 3 than turn 2 had; place 4 is merely new."""
    (each,) = misses(prompts, [10])
    assert each.diverged_tokens == 2 * 4
    assert each.cold_tokens == (3 + 1 + 1 + 1) * 4  # turn 1, stranger, block 5, block 8
    assert each.tail_tokens == 1 + 1 + 1 + 2


DEFINITIONS = st.sampled_from(
    [standard(), standard(outputs="ignored"), replace(KVCACHE_SIMULATOR, warmup=0.0)]
)


@settings(deadline=None, max_examples=100)
@given(st.data(), small_traces.SIZES, DEFINITIONS, st.integers(0, 12))
def test_lru_hits_each_block_that_a_replay_hits(
    data: st.DataObject, size: int, definition: HitDefinition, capacity: int
) -> None:
    """Distances, cut at one capacity, are what each request finds in a cache of that size."""
    trace = data.draw(small_traces.requests(size))
    made = small_traces.built(trace, size)
    prompts = small_traces.prompts(made)
    found = lru_hit_blocks(lru_distances(prompts, definition), len(trace), capacity)
    depths = lru._prefix(trace, small_traces.parents(made), size, capacity, definition)
    assert found.tolist() == [len(one) for one in depths]


@settings(deadline=None, max_examples=100)
@given(st.data(), small_traces.SIZES, DEFINITIONS)
def test_any_replay_is_explained_token_by_token(
    data: st.DataObject, size: int, definition: HitDefinition
) -> None:
    """Whatever was hit of what could be: each token counted once, in sets of paths and in loops."""
    trace = data.draw(small_traces.requests(size, chats=True))
    made = small_traces.built(trace, size)
    prompts, parents = small_traces.prompts(made), small_traces.parents(made)
    new = novelty(prompts, definition)
    hits = [data.draw(st.integers(0, int(seen))) for seen in new.seen]
    first = data.draw(st.integers(0, len(trace) - 1))
    expected = {"hit": 0, "evicted": 0, "diverged": 0, "cold": 0, "tail": 0}
    written: set[object] = set()
    for at, request in enumerate(trace):
        left = lru.kept(trace, parents, at, size, definition)
        before = parents[at]
        earlier = [] if before is None else lru.kept(trace, parents, before, size, definition)
        for token in range(request.input_tokens if at >= first else 0):
            depth = token // size
            if depth >= lru.looked_up(request, size, definition):
                reason = "tail"
            elif depth < hits[at]:
                reason = "hit"
            elif left[depth] in written:
                reason = "evicted"
            else:
                other = depth < len(earlier) and earlier[depth] != left[depth]
                reason = "diverged" if other and _named(earlier[depth]) else "cold"
            expected[reason] += 1
        written.update(left)
    found = reasons(prompts, new, np.array(hits, dtype=np.int32), 7, first)
    assert {name: getattr(found, f"{name}_tokens") for name in expected} == expected
    assert found.input_tokens == sum(one.input_tokens for one in trace[first:])
    assert found.capacity_blocks == 7


def _named(block: object) -> bool:
    """Whether a block's identity is known: an anonymous one is nobody's history."""
    return not (isinstance(block, tuple) and block[:1] == ("anonymous",))
