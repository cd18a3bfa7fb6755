"""SGLang's cache-aware router, with its own tree of the prompts that it sent to each replica."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import MemorySizes, Prompt, Router, View, mix32

# Stamps of a replica at a tree node: not its own, its own, or its own since epoch `stamp - FIRST`.
_ABSENT, _TIMELESS, _FIRST = 0, 1, 2

_EPOCH, _NODES, _FREE, _EVICTIONS = 0, 1, 2, 3  # entries of `counters`


class Tree(NamedTuple):
    """A radix tree of prompts; node 0 is its root, and a node's edge ends where another begins.

    Per block of the trie: `node_of`, the node whose edge has it, or 0. Per node: its `parent` (of a
    freed one the next freed), the blocks above its edge, those on it and the last of them, the
    tokens on it and how many of those lie in no block, and its `owner`. Per node and replica: the
    `stamps`, and how many `children` the replica has. Per replica: the tokens of its nodes, the
    epoch up to which `stamped` was searched for its oldest leaf, and a leaf older than that, or 0.
    """

    block_parent: Int32s
    node_of: Int32s
    parent: Int32s
    above: Int32s
    blocks: Int32s
    bottom: Int32s
    tokens: Int64s
    tail_tokens: Int32s
    owner: Int32s
    stamps: Int32s
    children: Int32s
    replica_tokens: Int64s
    searched: Int64s
    oldest: Int32s
    stamped: Int32s
    counters: Int64s


class Sglang(Router):
    """Send a request where most of its prompt was sent before, unless load is imbalanced.

    One radix tree has the texts sent to all replicas. If more than `cache_threshold` of a prompt
    matches, the request goes to the replica that got the deepest matched text first. Otherwise, and
    whenever the busiest replica exceeds the least busy one by both balance thresholds, it goes to
    the replica with the fewest requests in flight, the first of equals. Every `eviction_interval_s`
    the tree drops the oldest leaves of replicas with more than `max_tree_chars`, whatever engines
    evict.

    A token stands for `characters_per_token`; blocks differ from their first character on. A text
    whose first replica was evicted falls to any other that has it: here to one drawn by its node.
    Source: sglang-router 0.3.2 (sgl-project/sglang, release commit of #17168),
    sgl-model-gateway/src/policies/cache_aware.rs and tree.rs; defaults of its launcher,
    sglang_router/router_args.py.
    """

    name = "sglang@0.3.2"
    aliases = ("sglang",)
    summary = "most of the prompt sent before, or the least busy"
    source = "sglang-router 0.3.2, cache_aware"
    sees = "load"
    needs = "text"
    parameters = (
        Parameter(
            "cache_threshold",
            0.3,
            "share of the prompt that has to match",
            high=1.0,
            search=(0.1, 0.3, 0.5, 0.7),
        ),
        Parameter(
            "balance_abs_threshold",
            64,
            "requests by which the busiest replica may exceed the least busy",
            search=(4, 16, 64),
        ),
        Parameter(
            "balance_rel_threshold",
            1.5,
            "factor by which the busiest replica may exceed the least busy",
            search=(1.1, 1.5, 3.0),
        ),
        Parameter("eviction_interval_s", 60, "seconds between evictions from the tree; 0: none"),
        Parameter("max_tree_chars", 2**26, "characters of a replica that the tree keeps"),
        Parameter("characters_per_token", 4, "characters of a token", low=0.1, high=1000),
    )

    def memory(self, sizes: MemorySizes, seed: int) -> Tree:
        """Return an empty tree: each request adds at most two nodes and two epochs."""
        replicas, nodes = sizes.replicas, 2 * sizes.requests + 2
        # Each replica that registers adds an epoch for every one registered so far and itself. As
        # they register at the same time, the real number may be anything up to their square.
        begin = replicas * (replicas + 1) // 2
        return Tree(
            block_parent=sizes.block_parent,
            node_of=np.zeros(sizes.blocks, dtype=np.int32),
            parent=np.zeros(nodes, dtype=np.int32),
            above=np.zeros(nodes, dtype=np.int32),
            blocks=np.zeros(nodes, dtype=np.int32),
            bottom=np.zeros(nodes, dtype=np.int32),
            tokens=np.zeros(nodes, dtype=np.int64),
            tail_tokens=np.zeros(nodes, dtype=np.int32),
            owner=np.zeros(nodes, dtype=np.int32),
            stamps=np.zeros((nodes, replicas), dtype=np.int32),
            children=np.zeros((nodes, replicas), dtype=np.int32),
            replica_tokens=np.zeros(replicas, dtype=np.int64),
            searched=np.zeros(replicas, dtype=np.int64),
            oldest=np.zeros(replicas, dtype=np.int32),
            stamped=np.zeros(begin + 2 * sizes.requests, dtype=np.int32),
            counters=np.array([begin, 1, 0, 0], dtype=np.int64),
        )

    def among(self, memory: Tree, replicas: int, seed: int) -> Tree:
        """Take replicas that left out of the tree."""
        left = np.flatnonzero(memory.stamps[:, replicas:].any(axis=1))
        memory.stamps[:, replicas:], memory.children[:, replicas:] = _ABSENT, 0
        memory.replica_tokens[replicas:], memory.oldest[replicas:] = 0, 0
        for node in left[left > 0].tolist():
            _free_if_unused(memory, node, replicas)
        return memory

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: Tree, p: Float64s) -> int:
        """Return the owner of what matches, or the replica with the fewest requests in flight."""
        load = view.own.in_flight
        least = most = 0
        for replica in range(1, view.replicas):
            if load[replica] < load[least]:
                least = replica
            if load[replica] > load[most]:
                most = replica
        # In 32-bit floats, as the real program compares.
        imbalanced = load[most] - load[least] > p[1] and np.float32(load[most]) > np.float32(
            load[least]
        ) * np.float32(p[2])
        if p[3] > 0:
            evictions = int(prompt.now_s / p[3])
            if evictions > memory.counters[_EVICTIONS]:
                memory.counters[_EVICTIONS] = evictions
                _evict(memory, view.replicas, p[4] / p[5])
        blocks = _matching_blocks(memory.node_of, path, prompt.blocks)
        matched = min(blocks * view.block_size, prompt.input_tokens)
        choice = least
        if not imbalanced:
            owner = _match(memory, memory.node_of[path[blocks - 1]] if blocks else 0, view.replicas)
            share = np.float32(matched) / np.float32(max(prompt.input_tokens, 1))
            if share > np.float32(p[0]):
                choice = owner
        _insert(memory, prompt, path, blocks, view, choice)
        return choice

    def flags(self) -> tuple[str, ...]:
        """Return the options of `python -m sglang_router.launch_router`."""
        threshold, requests, factor, interval_s, characters, _ = self.settings()
        return (
            "--policy cache_aware",
            f"--cache-threshold {threshold:.10g}",
            f"--balance-abs-threshold {requests:.10g}",
            f"--balance-rel-threshold {factor:.10g}",
            f"--eviction-interval-secs {interval_s:.10g}",
            f"--max-tree-size {characters:.10g}",
        )


def _matching_blocks(node_of: Int32s, path: Int32s, blocks: int) -> int:
    """Return how many leading blocks of a path the tree has."""
    low, high = 0, blocks
    while low < high:
        middle = (low + high + 1) // 2
        if node_of[path[middle - 1]]:
            low = middle
        else:
            high = middle - 1
    return low


def _match(tree: Tree, node: int, replicas: int) -> int:
    """Return the replica that owns a node, and refresh its stamp in one of 8 epochs."""
    owner = int(tree.owner[node])
    epoch = tree.counters[_EPOCH]
    tree.counters[_EPOCH] += 1
    if node:
        if tree.stamps[node, owner] == _ABSENT:
            owner = (mix32(node) * replicas) >> 32
            while tree.stamps[node, owner] == _ABSENT:
                owner = (owner + 1) % replicas
            tree.owner[node] = owner
        if epoch % 8 == 0:
            tree.stamps[node, owner] = epoch + _FIRST
            tree.stamped[epoch] = node
    return owner


def _insert(
    tree: Tree, prompt: Prompt, path: Int32s, matching: int, view: View, replica: int
) -> None:
    """Add a prompt, of which the tree has some blocks, as one of a replica."""
    size = view.block_size
    node = 0
    if matching:
        node = tree.node_of[path[matching - 1]]
        on_edge = matching - tree.above[node]
        if on_edge < tree.blocks[node] or tree.tail_tokens[node]:
            node = _split(tree, node, path[matching - 1], on_edge, view)
    above = node
    while above and tree.stamps[above, replica] == _ABSENT:
        tree.stamps[above, replica] = _TIMELESS
        tree.replica_tokens[replica] += tree.tokens[above]
        above = tree.parent[above]
        tree.children[above, replica] += 1
    rest = prompt.input_tokens - min(matching * size, prompt.input_tokens)
    if rest:
        tree.children[node, replica] += 1
        leaf = _new_node(tree)
        tree.parent[leaf] = node
        tree.above[leaf] = matching
        tree.blocks[leaf] = prompt.blocks - matching
        tree.tokens[leaf] = rest
        tree.tail_tokens[leaf] = max(prompt.input_tokens - prompt.blocks * size, 0)
        tree.owner[leaf] = replica
        tree.replica_tokens[replica] += rest
        if prompt.blocks > matching:
            tree.bottom[leaf] = path[prompt.blocks - 1]
        for place in range(matching, prompt.blocks):
            tree.node_of[path[place]] = leaf
        node = leaf
    epoch = tree.counters[_EPOCH]
    tree.counters[_EPOCH] += 1
    tree.stamps[node, replica] = epoch + _FIRST
    tree.stamped[epoch] = node


def _split(tree: Tree, node: int, bottom: int, blocks: int, view: View) -> int:
    """Cut a node's edge after some blocks, and return the new upper node."""
    upper = _new_node(tree)
    tree.parent[upper] = tree.parent[node]
    tree.above[upper] = tree.above[node]
    tree.blocks[upper] = blocks
    tree.bottom[upper] = bottom
    tree.tokens[upper] = blocks * view.block_size
    tree.tail_tokens[upper] = 0
    tree.owner[upper] = tree.owner[node]
    tree.parent[node] = upper
    tree.above[node] += blocks
    tree.blocks[node] -= blocks
    tree.tokens[node] -= tree.tokens[upper]
    for replica in range(view.replicas):
        tree.stamps[upper, replica] = tree.stamps[node, replica]
        tree.children[upper, replica] = int(tree.stamps[node, replica] != _ABSENT)
    _label(tree, bottom, blocks, upper)
    return upper


def _label(tree: Tree, bottom: int, blocks: int, node: int) -> None:
    """Write down on which node's edge some blocks lie, from the last one up."""
    block = bottom
    for _ in range(blocks):
        tree.node_of[block] = node
        block = tree.block_parent[block]


def _new_node(tree: Tree) -> int:
    """Return a node that no replica has."""
    node = int(tree.counters[_FREE])
    if node:
        tree.counters[_FREE] = tree.parent[node]
    else:
        node = int(tree.counters[_NODES])
        tree.counters[_NODES] += 1
    return node


def _evict(tree: Tree, replicas: int, most_tokens: float) -> None:
    """Take the oldest leaves from every replica that has more than `most_tokens`.

    A leaf is a node below which the replica has none. Stamps only grow, so leaves older than the
    epochs searched can only be nodes that lost their last child: at most one, and the next to go.
    """
    for replica in range(replicas):
        while tree.replica_tokens[replica] > most_tokens:
            leaf = int(tree.oldest[replica])
            if not _is_old_leaf(tree, leaf, replica):
                leaf = _search(tree, replica)
            parent = int(tree.parent[leaf])
            tree.replica_tokens[replica] -= tree.tokens[leaf]
            tree.stamps[leaf, replica] = _ABSENT
            tree.children[parent, replica] -= 1
            tree.oldest[replica] = parent if _is_old_leaf(tree, parent, replica) else 0
            _free_if_unused(tree, leaf, replicas)


def _is_old_leaf(tree: Tree, node: int, replica: int) -> bool:
    """Return True if a node, not the root, is a replica's leaf of an epoch already searched."""
    stamp = tree.stamps[node, replica]
    searched = tree.searched[replica] + _FIRST
    return node > 0 and _ABSENT < stamp < searched and tree.children[node, replica] == 0


def _search(tree: Tree, replica: int) -> int:
    """Return a replica's leaf with the lowest stamp of the epochs not yet searched."""
    while True:
        tree.searched[replica] += 1
        node = int(tree.stamped[tree.searched[replica] - 1])
        is_newest = tree.stamps[node, replica] == tree.searched[replica] - 1 + _FIRST
        if is_newest and _is_old_leaf(tree, node, replica):
            return node


def _free_if_unused(tree: Tree, node: int, replicas: int) -> None:
    """Forget a node that no replica has."""
    for replica in range(replicas):
        if tree.stamps[node, replica] != _ABSENT:
            return
    _label(tree, tree.bottom[node], tree.blocks[node], 0)
    tree.parent[node] = tree.counters[_FREE]
    tree.counters[_FREE] = node
