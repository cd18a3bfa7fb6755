from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope.characterize.spatial as space
from kvscope.characterize.spatial import DECILES, decile_histogram, heat_map, spatial
from tests.characterize.tiny import tiny_store

Path = tuple[int, ...]


def test_spatial_by_hand() -> None:
    """Eleven lookups: three find b1 in a first tenth, two b2 in a sixth, one of them in a third.

    r4's b1 holds its last token, so it is computed again.
    """
    with tiny_store() as (store, trace):
        found = spatial(store, trace)
    assert found is not None
    assert found.overall is not None
    assert found.overall[0][0] == 3 / 11  # the first tenth
    assert found.overall[0][9] == 5 / 11  # everything
    assert found.overall[2][0] == 1 / 11  # the third tenth
    assert found.overall[2][3] == 2 / 11  # from the third to the sixth
    assert found.overall[9] == (0,) * 10
    assert found.multi_turn is not None
    assert found.multi_turn[0][9] == 2 / 4  # r1; b4 was output, which has no position
    assert found.single_turn is not None
    assert found.single_turn[0][9] == 3 / 7


def test_prefix_depth() -> None:
    """Blocks hit are 0, 3, 1, 2, 0, of prompts of 9, 17, 8, 9 and 4 tokens."""
    with tiny_store() as (store, trace):
        found = spatial(store, trace)
    assert found is not None
    everything, single, multi = found.prefix_depth
    assert (everything.turns, single.turns, multi.turns) == ("all", "single", "multi")
    assert (everything.hit_blocks.mean, everything.hit_blocks.p50) == (1.2, 1)
    assert everything.hit_blocks.max == 3
    assert everything.prompt_share.p80 == 12 / 17
    assert everything.prompt_share.max == 8 / 9
    assert multi.prompt_share.mean == 12 / 17
    assert single.prompt_share.mean == pytest.approx((0 + 4 / 8 + 8 / 9 + 0) / 4)


def slow_map(
    paths: list[Path], full: list[int], hittable: list[int], counted: list[bool]
) -> list[list[float]] | None:
    """Return the heat map by its definition: one cache per offset and stride."""
    lookups = sum(f for f, c in zip(full, counted, strict=True) if c)
    if not lookups:
        return None
    rates = []
    for offset in range(DECILES):
        row = []
        for stride in range(1, DECILES + 1):
            cache: set[Path] = set()
            hits = 0
            for path, blocks, within, counts in zip(paths, full, hittable, counted, strict=True):
                prefixes = [path[: depth + 1] for depth in range(blocks)]
                hits += counts * sum(prefix in cache for prefix in prefixes[:within])
                cache |= {
                    prefix
                    for depth, prefix in enumerate(prefixes)
                    if offset * blocks <= DECILES * depth < (offset + stride) * blocks
                }
            row.append(hits / lookups)
        rates.append(row)
    return rates


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=14),
            st.booleans(),  # the last block is partial
            st.booleans(),  # the last token is the last full block's
            st.booleans(),  # a later turn
        ),
        min_size=1,
        max_size=10,
    )
)
def test_kernel_against_caches(
    requests: list[tuple[list[int], bool, bool, bool]],
) -> None:
    """One pass over masks gives what a hundred caches give, compiled or not."""
    paths = [tuple(path) for path, *_ in requests]
    full = [len(path) - partial for path, partial, *_ in requests]
    hittable = [f - last if f else 0 for f, (_, _, last, _) in zip(full, requests, strict=True)]
    multi = [later for *_, later in requests]

    block_of: dict[Path, int] = {(): 0}
    parent = [0]
    for path in paths:
        for depth in range(len(path)):
            if path[: depth + 1] not in block_of:
                block_of[path[: depth + 1]] = len(parent)
                parent.append(block_of[path[:depth]])
    columns = (
        np.array(parent, dtype=np.int32),
        np.array([block_of[path] for path in paths], dtype=np.int32),
        np.array([len(path) for path in paths], dtype=np.int32),
        np.array(full, dtype=np.int32),
        np.array(hittable, dtype=np.int32),
        np.array(multi, dtype=np.bool_),
    )
    counts = decile_histogram(*columns)
    with pytest.MonkeyPatch.context() as patched:
        kernel: Any = space._count_by_decile  # its source, run as it is
        patched.setattr(space, "_count_by_decile", kernel.py_func)
        assert (counts == decile_histogram(*columns)).all()
    for found, counted in (
        (heat_map(counts.sum(axis=0)), [True] * len(paths)),
        (heat_map(counts[0]), [not later for later in multi]),
        (heat_map(counts[1]), multi),
    ):
        expected = slow_map(paths, full, hittable, counted)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert [list(row) for row in found] == expected
