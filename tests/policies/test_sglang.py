"""lru, lfu and slru against a port of SGLang's own tree, request by request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.policies.registry import by_name
from kvscope.replay.replay import Replay, replay
from kvscope.replay.traffic import Traffic, uncut
from tests.oracles.replay import left_behind, paths
from tests.oracles.sglang import PROTECTED_THRESHOLD, RadixTree
from tests.policies.traffics import held, long_traffic, traffics

SETTINGS: tuple[tuple[str, dict[str, float]], ...] = (
    ("lru", {}),
    ("lfu", {}),
    ("slru", {}),
    ("slru", {"protected_uses": 3}),
)


def _whole(of: Traffic) -> Traffic:
    """Return the traffic with every block of a prompt looked up."""
    return of._replace(look=of.length)


def _sglang(
    of: Traffic, policy: str, values: dict[str, float], capacity: int, *, paged: bool
) -> tuple[list[int], int]:
    """Return what each request hits in SGLang's tree, and the blocks evicted."""
    protected = values.get("protected_uses", PROTECTED_THRESHOLD)
    tree = RadixTree(policy, capacity, protected=protected, paged=paged)
    hits = [
        tree.serve(path, blocks[len(path) :])
        for path, blocks in zip(paths(of), left_behind(of), strict=True)
    ]
    return hits, tree.evictions


def _longest(of: Traffic) -> int:
    return int((of.length + of.anonymous).max())


def _assert_equal(of: Traffic, policy: str, values: dict[str, float], capacity: int) -> Replay:
    done = replay(of, by_name(policy)(values), capacity)
    hits, evictions = _sglang(of, policy, values, capacity, paged=True)
    assert done.hit_blocks.tolist() == hits
    assert done.evictions == evictions
    return done


@pytest.mark.parametrize(("policy", "values"), SETTINGS)
@settings(deadline=None, max_examples=40)
@given(of=traffics(), data=st.data())
def test_equals_sglang(
    policy: str, values: dict[str, float], of: Traffic, data: st.DataObject
) -> None:
    """Block by block, at every capacity that holds the longest request, which SGLang requires."""
    of = _whole(of)
    longest = _longest(of)
    _assert_equal(of, policy, values, data.draw(st.integers(longest, max(held(of), longest))))


@pytest.mark.parametrize(("policy", "values"), SETTINGS)
@pytest.mark.parametrize("capacity", [25, 40, 60])
def test_equals_sglang_at_length(policy: str, values: dict[str, float], capacity: int) -> None:
    """The same over traffic in which blocks return often, and the policies differ."""
    of = _whole(long_traffic(700, seed=11))
    assert _longest(of) <= capacity
    done = _assert_equal(of, policy, values, capacity)
    assert done.evictions > 300
    if policy != "lru":
        lru = replay(of, by_name("lru")(), capacity)
        assert not np.array_equal(done.hit_blocks, lru.hit_blocks)


@pytest.mark.parametrize(("policy", "values"), SETTINGS)
def test_whole_nodes_change_little(policy: str, values: dict[str, float]) -> None:
    """SGLang drops whole nodes: its hits are within a few percent of those block by block."""
    of = _whole(long_traffic(700, seed=11))
    hits, _ = _sglang(of, policy, values, 60, paged=False)
    done = replay(of, by_name(policy)(values), 60)
    assert int(done.hit_blocks.sum()) == pytest.approx(sum(hits), rel=0.05)


def test_the_default_is_sglangs() -> None:
    """A block is protected from its second request on, as by SGLang's default."""
    assert by_name("slru")().values["protected_uses"] == PROTECTED_THRESHOLD


def test_a_burst_does_not_end_all_reuse() -> None:
    """A prompt stays until the next one comes, whatever the cache held: no policy refuses it.

    Once the cache is full of blocks used twice, a policy that lets a prompt's own new blocks leave
    at once would hit nothing new ever again.
    """
    path = np.array([1, 1, 2, 2, 3, 3, 4, 4], dtype=np.int32)  # eight blocks of one prompt
    starts = {1: range(1, 9), 2: range(9, 17), 3: range(17, 25), 4: range(25, 33)}
    parents = [0] + [0 if block % 8 == 1 else block - 1 for block in range(1, 33)]
    nothing = np.zeros(len(path), dtype=np.int32)
    of = Traffic(
        block_size=1,
        block_parent=np.array(parents, dtype=np.int32),
        leaf=np.array([starts[number][-1] for number in path], dtype=np.int32),
        length=nothing + np.int32(8),
        look=nothing + np.int32(8),
        anonymous=nothing,
        arrival_s=np.arange(len(path), dtype=np.float64),
        input_tokens=nothing + np.int32(8),
        history_tokens=nothing.astype(np.int64) + 8,
        category=nothing,
        parent=nothing - np.int32(1),
        next_prompt_tokens=nothing.astype(np.int64) - 1,
        cuts=uncut(len(path)),
    )
    for policy in ("lfu", "slru"):
        done = _assert_equal(of, policy, {}, 12)
        assert done.hit_blocks.tolist() == [0, 8, 0, 8, 0, 8, 0, 8]
