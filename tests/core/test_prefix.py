"""Paths from a leaf to the root, as kernels and as plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor, write_path

#        0 root
#        1 ── 2 ── 4
#        └─ 3 ── 5
PARENT = np.array([0, 0, 1, 1, 2, 3], dtype=np.int32)


@kernel
def _paths(parent, leaves, starts, ids):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    for k in range(len(leaves)):
        write_path(parent, leaves[k], ids, starts[k], starts[k + 1])


@kernel
def _ancestors(parent, block, steps):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return ancestor(parent, block, steps)


def test_paths_stand_head_first_one_behind_the_other() -> None:
    """Each path fills its own stretch; one of no blocks fills nothing."""
    leaves = np.array([4, 0, 5, 1], dtype=np.int32)
    starts = np.array([0, 3, 3, 6, 7])
    ids = np.full(8, -1, dtype=np.int32)
    _paths(PARENT, leaves, starts, ids)
    assert ids.tolist() == [1, 2, 4, 1, 3, 5, 1, -1]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_path_is_its_leafs_ancestors(data: st.DataObject) -> None:
    """On random tries, block by block, compiled and uncompiled alike."""
    size = data.draw(st.integers(1, 12))
    above = [0, *(data.draw(st.integers(0, block - 1)) for block in range(1, size + 1))]
    parent = np.array(above, dtype=np.int32)
    leaf = data.draw(st.integers(1, size))
    expected = [leaf]
    while above[expected[-1]]:
        expected.append(above[expected[-1]])
    depth = len(expected)
    path = np.zeros(depth, dtype=np.int32)
    write_path(parent, leaf, path, 0, depth)
    assert path[::-1].tolist() == expected
    for steps in range(depth + 2):
        found = expected[steps] if steps < depth else 0
        assert _ancestors(parent, np.int32(leaf), steps) == found
        assert ancestor(parent, leaf, steps) == found
