"""SGLang's cache-aware router, with its own tree of the prompts that it sent to each replica."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.parameters import Parameter
from kvscope.routers.base import MemorySizes, Prompt, Router, View, idlest_and_most, mix32
from kvscope.routers.prefix_tree import (
    ABSENT,
    EPOCH,
    FIRST,
    TIMELESS,
    Tree,
    add_leaf,
    eviction_is_due,
    forget_replicas,
    matching_blocks,
    new_tree,
    node_at,
    stamp,
    take_out,
)


class OwnedTree(NamedTuple):
    """A tree of prompts, of which each node has an owner.

    Per node: its `owner`, the replica that gets matching requests. Per node and replica: `children`
    counts the node's child nodes that the replica has. Per replica: `oldest`, the node to evict
    next, or 0. The search for the oldest leaf passes nodes with children and never returns to
    them; `oldest` keeps such a node once its last child is evicted.
    """

    tree: Tree
    owner: Int32s
    children: Int32s
    oldest: Int32s


class Sglang(Router):
    """Send a request to the owner of its longest matching prefix, unless load is imbalanced.

    One radix tree has the texts sent to all replicas. If more than `cache_threshold` of a prompt
    matches, the request goes to the replica that got the deepest matched text first. Otherwise it
    goes to the replica with the fewest requests in flight, the first of equals; also whenever the
    busiest replica exceeds the least busy one both by more than `balance_abs_threshold` requests
    and by more than the factor `balance_rel_threshold`. Every `eviction_interval_s` the tree drops
    the oldest leaves of replicas with more than `max_tree_chars`, whatever engines evict.

    A token counts as `characters_per_token` characters. Prompts that differ within a block of the
    trace count as different from its first character on. If a text was evicted from its owner,
    another replica that has it becomes the owner: here one by a hash of the node.
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

    def memory(self, sizes: MemorySizes, seed: int) -> OwnedTree:
        """Return an empty tree, with room for the two ticks (epochs) of its clock per request.

        The clock ticks when a prompt is matched, stamped on a node or not, and when it is inserted.
        """
        replicas = sizes.replicas
        # Each replica that registers adds an epoch for every one registered so far and itself. As
        # they register at the same time, the real number may be anything up to their square.
        tree = new_tree(sizes, begin=replicas * (replicas + 1) // 2, epochs=2)
        return OwnedTree(
            tree=tree,
            owner=np.zeros(len(tree.parent), dtype=np.int32),
            children=np.zeros_like(tree.stamps),
            oldest=np.zeros(replicas, dtype=np.int32),
        )

    def among(self, memory: OwnedTree, replicas: int, seed: int) -> OwnedTree:
        """Remove replicas that left from the tree."""
        forget_replicas(memory.tree, replicas)
        memory.children[:, replicas:], memory.oldest[replicas:] = 0, 0
        return memory

    @staticmethod
    def choose(prompt: Prompt, path: Int32s, view: View, memory: OwnedTree, p: Float64s) -> int:
        """Return the owner of the matching prefix, or the replica with the fewest in flight."""
        load = view.own.in_flight
        least, most = idlest_and_most(load)
        # In 32-bit floats, as the real program compares.
        imbalanced = most - load[least] > p[1] and np.float32(most) > np.float32(
            load[least]
        ) * np.float32(p[2])
        tree = memory.tree
        if eviction_is_due(tree, prompt.now_s, p[3]):
            _evict(memory, view.replicas, p[4] / p[5])
        blocks = matching_blocks(tree.node_of, path, prompt.blocks)
        matched = min(blocks * view.block_size, prompt.input_tokens)
        choice = least
        if not imbalanced:
            owner = _match(memory, tree.node_of[path[blocks - 1]] if blocks else 0, view.replicas)
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


def _match(memory: OwnedTree, node: int, replicas: int) -> int:
    """Return the replica that owns a node, and begin a new epoch.

    In every 8th epoch, this stamps the node (unless it is the root) as the owner's newest.
    """
    tree, owner = memory.tree, int(memory.owner[node])
    if node and tree.stamps[node, owner] == ABSENT:
        owner = (mix32(node) * replicas) >> 32
        while tree.stamps[node, owner] == ABSENT:
            owner = (owner + 1) % replicas
        memory.owner[node] = owner
    if node and tree.counters[EPOCH] % 8 == 0:
        stamp(tree, node, owner)
    else:
        tree.counters[EPOCH] += 1
    return owner


def _insert(
    memory: OwnedTree, prompt: Prompt, path: Int32s, matching: int, view: View, replica: int
) -> None:
    """Add a prompt, whose first `matching` blocks are in the tree, as sent to `replica`."""
    tree, owner, children = memory.tree, memory.owner, memory.children
    lower = tree.node_of[path[matching - 1]] if matching else 0
    node = node_at(tree, path, matching, view.block_size)
    if node != lower:
        owner[node] = owner[lower]
        for each in range(view.replicas):
            children[node, each] = int(tree.stamps[node, each] != ABSENT)
    above = node
    while above and tree.stamps[above, replica] == ABSENT:
        tree.stamps[above, replica] = TIMELESS
        tree.replica_tokens[replica] += tree.tokens[above]
        above = tree.parent[above]
        children[above, replica] += 1
    leaf = add_leaf(tree, node, prompt, path, matching, view.block_size)
    if leaf != node:
        owner[leaf] = replica
        children[node, replica] += 1
        tree.replica_tokens[replica] += tree.tokens[leaf]
    stamp(tree, leaf, replica)


def _evict(memory: OwnedTree, replicas: int, most_tokens: float) -> None:
    """Remove the oldest leaves of every replica that has more than `most_tokens`.

    A replica's leaf is a node without children of that replica. `_search` never goes back, so a
    parent from an earlier epoch that has become a leaf is removed next.
    """
    tree = memory.tree
    for replica in range(replicas):
        while tree.replica_tokens[replica] > most_tokens:
            leaf = int(memory.oldest[replica])
            if not _is_old_leaf(memory, leaf, replica):
                leaf = _search(memory, replica)
            parent = take_out(tree, leaf, replica, replicas)
            memory.children[parent, replica] -= 1
            memory.oldest[replica] = parent if _is_old_leaf(memory, parent, replica) else 0


def _is_old_leaf(memory: OwnedTree, node: int, replica: int) -> bool:
    """Return whether a node, not the root, is a replica's leaf from an epoch already searched."""
    stamped = memory.tree.stamps[node, replica]
    searched = memory.tree.searched[replica] + FIRST
    return node > 0 and ABSENT < stamped < searched and memory.children[node, replica] == 0


def _search(memory: OwnedTree, replica: int) -> int:
    """Return a replica's oldest leaf, searching on from its last searched epoch.

    Call it only for a replica with tokens in the tree: then there is a leaf.
    """
    tree = memory.tree
    while True:
        epoch = tree.searched[replica]
        tree.searched[replica] += 1
        node = int(tree.stamped[epoch])
        if tree.stamps[node, replica] == epoch + FIRST and _is_old_leaf(memory, node, replica):
            return node
