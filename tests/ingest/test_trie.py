"""Interning: a block is its whole prefix, whatever the hash ids and the batches look like."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.ingest.trie import Trie

PATHS = st.lists(st.lists(st.integers(-2, 2) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=6))


def oracle(paths: list[list[int]]) -> tuple[dict[tuple[int, ...], int], list[int]]:
    """Blocks numbered from 1 in order of appearance by their prefix, and each path's last one."""
    numbers: dict[tuple[int, ...], int] = {}
    leaves = []
    for path in paths:
        for end in range(1, len(path) + 1):
            numbers.setdefault(tuple(path[:end]), len(numbers) + 1)
        leaves.append(numbers[tuple(path)] if path else 0)
    return numbers, leaves


def intern(trie: Trie, paths: list[list[int]]) -> list[int]:
    """Return the last block of each path, interned in one batch."""
    starts = np.cumsum([0, *map(len, paths)], dtype=np.int64)
    ids = np.array([one for path in paths for one in path], dtype=np.int64)
    return [int(leaf) for leaf in trie.intern(starts, ids)]


@settings(deadline=None, max_examples=200)
@given(st.lists(PATHS, max_size=4))
def test_equals_a_dict_of_prefixes(batches: list[list[list[int]]]) -> None:
    """However the paths are batched, numbers, parents, depths and hash ids are a dict's."""
    trie = Trie()
    leaves = [leaf for batch in batches for leaf in intern(trie, batch)]
    numbers, expected = oracle([path for batch in batches for path in batch])
    assert leaves == expected
    assert trie.count == len(numbers) + 1
    for prefix, block in numbers.items():
        assert trie.parent[block] == numbers.get(prefix[:-1], 0)
        assert trie.depth[block] == len(prefix) - 1
        assert trie.hash_id[block] == prefix[-1]


def test_grows_beyond_its_first_capacity() -> None:
    """A wide and a deep trie of 300,000 blocks survive several rehashes and reallocations."""
    rng = np.random.default_rng(7)
    paths = [[int(one) for one in rng.integers(0, 1000, 3)] for _ in range(60_000)]
    paths += [list(range(start, start + 3000)) for start in range(0, 120_000, 3000)]
    trie = Trie()
    leaves = [
        leaf for at in range(0, len(paths), 9000) for leaf in intern(trie, paths[at : at + 9000])
    ]
    _, expected = oracle(paths[:60_000])
    assert leaves[:60_000] == expected
    deep = trie.count
    assert deep > 2 * (1 << 16)
    assert intern(trie, paths) == leaves
    assert trie.count == deep


def test_the_same_hash_below_different_blocks_is_different() -> None:
    """Content hashes repeat: only the same id after the same prefix is the same block."""
    trie = Trie()
    assert intern(trie, [[1, 9], [2, 9], [1, 9]]) == [2, 4, 2]
