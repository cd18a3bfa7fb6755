"""A radix tree of the prompts sent to N replicas, as kept by routers that compare texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.routers.base import MemorySizes, Prompt

# Stamps of a replica at a tree node: not its own, its own, or its own since epoch `stamp - FIRST`.
ABSENT, TIMELESS, FIRST = 0, 1, 2

EPOCH, _NODES, _FREE, _EVICTIONS = 0, 1, 2, 3  # entries of `counters`


class Tree(NamedTuple):
    """A radix tree of texts; node 0 is the root, any other node stands for the edge above it.

    Epochs are a clock that counts: a router adds one or two for every request. A stamp says that a
    replica has a node, and in which epoch the replica was last sent it.

    Per block of the trie: `node_of`, the node whose edge contains the block, or 0. Per node:
    `parent` (of a freed node: the next free one), the number of blocks `above` its edge and of
    `blocks` on it, the `bottom` one of these, the edge's `tokens`, and the `tail_tokens` of them
    that are in no block of the trie. Per node and replica: `stamps` (ABSENT, TIMELESS if it has the
    node only above others of its own, or FIRST plus an epoch). Per replica: `replica_tokens`, the
    tokens of its nodes, and `searched`: the search for its oldest node continues at this epoch. Per
    epoch: `stamped`, the lowest node that got a stamp in it, or 0. `counters`: the present epoch,
    the nodes ever made, the first free node (0: none), and the eviction intervals that had ended
    at the last eviction.
    """

    block_parent: Int32s
    node_of: Int32s
    parent: Int32s
    above: Int32s
    blocks: Int32s
    bottom: Int32s
    tokens: Int64s
    tail_tokens: Int32s
    stamps: Int32s
    replica_tokens: Int64s
    searched: Int64s
    stamped: Int32s
    counters: Int64s


def new_tree(sizes: MemorySizes, begin: int, epochs: int) -> Tree:
    """Return an empty tree whose first epoch is `begin`, with room for `epochs` per request.

    A real router may have counted epochs before its first request, so `begin` can be above 0. Each
    request adds at most two nodes.
    """
    replicas, nodes = sizes.replicas, 2 * sizes.requests + 2
    return Tree(
        block_parent=sizes.block_parent,
        node_of=np.zeros(sizes.blocks, dtype=np.int32),
        parent=np.zeros(nodes, dtype=np.int32),
        above=np.zeros(nodes, dtype=np.int32),
        blocks=np.zeros(nodes, dtype=np.int32),
        bottom=np.zeros(nodes, dtype=np.int32),
        tokens=np.zeros(nodes, dtype=np.int64),
        tail_tokens=np.zeros(nodes, dtype=np.int32),
        stamps=np.zeros((nodes, replicas), dtype=np.int32),
        replica_tokens=np.zeros(replicas, dtype=np.int64),
        searched=np.zeros(replicas, dtype=np.int64),
        stamped=np.zeros(begin + epochs * sizes.requests, dtype=np.int32),
        counters=np.array([begin, 1, 0, 0], dtype=np.int64),
    )


def forget_replicas(tree: Tree, replicas: int) -> None:
    """Remove the stamps of all but the first `replicas`, and nodes that no replica has then."""
    left = np.flatnonzero(tree.stamps[:, replicas:].any(axis=1))
    tree.stamps[:, replicas:], tree.replica_tokens[replicas:] = ABSENT, 0
    for node in left[left > 0].tolist():
        free_if_unused(tree, node, replicas)


def eviction_is_due(tree: Tree, now_s: float, interval_s: float) -> bool:
    """Return whether an interval of `interval_s` has ended since the last eviction, and record it.

    Intervals begin at multiples of `interval_s`. Always False for an `interval_s` of 0.
    """
    evictions = int(now_s / interval_s) if interval_s > 0 else 0
    if evictions <= tree.counters[_EVICTIONS]:
        return False
    tree.counters[_EVICTIONS] = evictions
    return True


def matching_blocks(node_of: Int32s, path: Int32s, blocks: int) -> int:
    """Return how many leading blocks of a path are in the tree."""
    low, high = 0, blocks
    while low < high:
        middle = (low + high + 1) // 2
        if node_of[path[middle - 1]]:
            low = middle
        else:
            high = middle - 1
    return low


def node_at(tree: Tree, path: Int32s, blocks: int, block_size: int) -> int:
    """Return the node that ends with the path's first `blocks` blocks, all of them in the tree.

    If they end inside an edge, it is split; the new upper node copies the stamps of the lower one.
    """
    if blocks == 0:
        return 0
    bottom = path[blocks - 1]
    node = int(tree.node_of[bottom])
    on_edge = blocks - tree.above[node]
    if on_edge == tree.blocks[node] and not tree.tail_tokens[node]:
        return node
    upper = _new_node(tree)
    tree.parent[upper] = tree.parent[node]
    tree.above[upper] = tree.above[node]
    tree.blocks[upper] = on_edge
    tree.bottom[upper] = bottom
    tree.tokens[upper] = on_edge * block_size
    tree.tail_tokens[upper] = 0
    tree.parent[node] = upper
    tree.above[node] += on_edge
    tree.blocks[node] -= on_edge
    tree.tokens[node] -= tree.tokens[upper]
    for replica in range(tree.stamps.shape[1]):
        tree.stamps[upper, replica] = tree.stamps[node, replica]
    _label(tree, bottom, on_edge, upper)
    return upper


def add_leaf(
    tree: Tree, node: int, prompt: Prompt, path: Int32s, matching: int, block_size: int
) -> int:
    """Return a new child of `node` for the tokens after `matching` blocks; `node` if none."""
    rest = prompt.input_tokens - min(matching * block_size, prompt.input_tokens)
    if rest == 0:
        return node
    leaf = _new_node(tree)
    tree.parent[leaf] = node
    tree.above[leaf] = matching
    tree.blocks[leaf] = prompt.blocks - matching
    tree.tokens[leaf] = rest
    tree.tail_tokens[leaf] = max(prompt.input_tokens - prompt.blocks * block_size, 0)
    if prompt.blocks > matching:
        tree.bottom[leaf] = path[prompt.blocks - 1]
    for place in range(matching, prompt.blocks):
        tree.node_of[path[place]] = leaf
    return leaf


def stamp(tree: Tree, node: int, replica: int) -> None:
    """Make a node a replica's newest one: stamp it with a new epoch."""
    epoch = tree.counters[EPOCH]
    tree.counters[EPOCH] += 1
    tree.stamps[node, replica] = epoch + FIRST
    tree.stamped[epoch] = node


def take_out(tree: Tree, node: int, replica: int, replicas: int) -> int:
    """Remove a node from a replica, with its tokens, and return the node's parent."""
    parent = int(tree.parent[node])
    tree.replica_tokens[replica] -= tree.tokens[node]
    tree.stamps[node, replica] = ABSENT
    free_if_unused(tree, node, replicas)
    return parent


def free_if_unused(tree: Tree, node: int, replicas: int) -> None:
    """Delete a node if no replica has it."""
    for replica in range(replicas):
        if tree.stamps[node, replica] != ABSENT:
            return
    _label(tree, tree.bottom[node], tree.blocks[node], 0)
    tree.parent[node] = tree.counters[_FREE]
    tree.counters[_FREE] = node


def _label(tree: Tree, bottom: int, blocks: int, node: int) -> None:
    """Set `node_of` for `blocks` blocks of a node's edge, from its `bottom` one up."""
    block = bottom
    for _ in range(blocks):
        tree.node_of[block] = node
        block = tree.block_parent[block]


def _new_node(tree: Tree) -> int:
    """Return an unused node, without stamps."""
    node = int(tree.counters[_FREE])
    if node:
        tree.counters[_FREE] = tree.parent[node]
    else:
        node = int(tree.counters[_NODES])
        tree.counters[_NODES] += 1
    return node
