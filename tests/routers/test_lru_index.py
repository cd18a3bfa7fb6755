"""The lists of a router's guess, against ordered dictionaries."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from kvscope.routers.lru_index import empty_index, holds, touch


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
