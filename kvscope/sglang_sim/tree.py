"""SGLang's prefix tree: nodes of several blocks, split where prompts part, on two tiers.

A node is a run of blocks that one insertion added; it is on the GPU, on the host, or on both.
Requests lock the nodes on their path. Unlocked nodes without a child on their tier are the tier's
leaves, which are evicted one at a time. Leaves on the GPU, and leaves on the host alone, have a
binary heap each, by the key of SGLang's eviction policy, with the next victim at the top.

Source: SGLang 0.5.23, srt/mem_cache/unified_cache/unified_tree_core.py (_split_node, _add_new_node,
_set_tlru_lens_and_raise_history), unified_cache/components/full.py (acquire_component_lock) and
evict_policy.py. Its tree in Rust, the default on Linux, is the same tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s, Records, record_type
from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.core.prefix import Paths

NONE = -1
ROOT = 0
GPU, HOST = range(2)  # heaps of leaves
LRU, FIFO, LFU, SLRU, TLRU, PRIORITY = range(6)  # values of `State.policy`
TICK = 2**20  # of the clock; nodes of one look-up are less than that many parts of a tick apart

NODE = record_type(
    "parent time locks on_gpu gpu_children slot start length top bottom heap rank hits priority "
    "children created history on_host loading earlier later"
)
"""A run of `length` blocks of the trie from depth `start` on, from block `top` to block `bottom`.

It is `on_gpu`, `on_host` or on both, and `loading` while it is copied to the GPU; `gpu_children`
of its `children` are on the GPU. `locks` counts the locks of requests on it or below it. `hits`
counts the requests that inserted it (not with `write_back`), `history` is the length in blocks of
the longest path that was inserted through it. `rank`, then `time` of the last use (for
FIFO `created`) order the leaves; `slot` is its place in its `heap`, NONE for nodes that are no
leaves. `priority` is the rank under policy PRIORITY. `earlier` and `later` are its neighbours in
the list of copies (NONE at the ends). The `parent` of an unused node is the next unused node.
"""

STATE = record_type(
    "policy protected_uses block_size clock capacity size locked owned evictions made "
    "unused host_capacity host_size host_evictions written store_hits write_back first_copy "
    "last_copy",
    "xi_tokens next_prompt_tokens",
)
"""One record: the policy, and counts in blocks.

The GPU has room for `capacity` blocks: `size` are in the tree, of which `locked` ones cannot be
evicted, and running requests have `owned` ones that are not in it. The host has room for
`host_capacity`, and holds `host_size`, of which some are on the GPU as well; `written` ones were
copied to it. `evictions` and `host_evictions` count evicted blocks. `made` nodes exist, of which
the chain from `unused` on is free; `clock` is the latest time. Nodes are stored on the host when
they have `store_hits` hits, or with `write_back` when they are evicted from the GPU; then the list
from `first_copy` to `last_copy` has the nodes on both tiers, in the order of their copies. Other
fields are parameters of the `policy`.
"""


class PrefixTree(NamedTuple):
    """A prefix tree over a trie of N blocks, with the paths of the requests that run on it.

    `parents` (N + 1) are the trie's; request r has the blocks `paths[starts[r]:starts[r + 1]]`.
    `nodes` are records of NODE, and `state` (1) is one of STATE. Per block, `at` (N + 1) is the
    tree node that begins with it, NONE if no node does. `leaves` (2 rows, GPU and HOST) are the
    heaps, of `leaf_counts` (2) nodes.
    """

    parents: Int32s
    paths: Int32s
    starts: Int64s
    nodes: Records
    state: Records
    at: Int32s
    leaves: Int64s
    leaf_counts: Int64s


def empty_tree(parents: Int32s, prompts: Paths, most_nodes: int, **settings: float) -> PrefixTree:
    """Return an empty tree over a trie, with room for `most_nodes` nodes below the root.

    One more than the blocks of both tiers always suffices. `settings` set fields of STATE, 0 if
    left out: the policy and its parameters, `block_size`, capacities, `store_hits`, `write_back`.
    """
    nodes = np.zeros(most_nodes + 1, dtype=NODE).view(np.recarray)
    state = np.zeros(1, dtype=STATE).view(np.recarray)
    for name, value in settings.items():
        state[name] = value
    state.made, state.unused = 1, NONE
    state.first_copy = state.last_copy = NONE
    root = nodes[ROOT]  # the others take no memory before they are used
    root.slot = root.top = root.bottom = root.parent = NONE
    root.locks = root.on_gpu = 1
    at = np.full(len(parents), NONE, dtype=np.int32)
    leaves = np.zeros((2, most_nodes + 1), dtype=np.int64)
    counts = np.zeros(2, dtype=np.int64)
    return PrefixTree(parents, prompts.blocks, prompts.starts, nodes, state, at, leaves, counts)


@callable_in_kernels
def now(tree: PrefixTree) -> int:
    """Advance the tree's clock by one tick, and return the new time (no unit)."""
    tree.state[0].clock += TICK
    return tree.state[0].clock  # type: ignore[no-any-return]


@callable_in_kernels
def leaves_before(tree: PrefixTree, node: int, other: int) -> bool:
    """Return whether a leaf is evicted before another one."""
    first, second = tree.nodes[node], tree.nodes[other]
    if first.rank != second.rank:
        return first.rank < second.rank  # type: ignore[no-any-return]
    if tree.state[0].policy == FIFO:
        return first.created < second.created  # type: ignore[no-any-return]
    return first.time < second.time  # type: ignore[no-any-return]


@callable_in_kernels
def rank_of(tree: PrefixTree, node: int) -> int:
    """Return the first part of a leaf's eviction key: lowest is evicted first, ties by time."""
    record, state = tree.nodes[node], tree.state[0]
    if state.policy == LFU:
        return record.hits  # type: ignore[no-any-return]
    if state.policy == SLRU:
        return 1 if record.hits >= state.protected_uses else 0
    if state.policy == PRIORITY:
        return record.priority  # type: ignore[no-any-return]
    if state.policy == TLRU:
        history_tokens = record.history * state.block_size
        needed = max(history_tokens + state.next_prompt_tokens - state.xi_tokens, 0.0)
        return 0 if record.start * state.block_size >= needed else 1
    return 0


@callable_in_kernels
def heap_of(tree: PrefixTree, node: int) -> int:
    """Return the heap of leaves that a node belongs to, GPU or HOST; NONE if it is no leaf."""
    record = tree.nodes[node]
    if node == ROOT or record.locks > 0:
        return NONE
    if record.on_gpu:
        return GPU if record.gpu_children == 0 else NONE
    return HOST if record.children == 0 else NONE


@called_by_kernels
def place(tree: PrefixTree, node: int) -> None:
    """Restore a changed node's place in the heaps of leaves; remove it if it is no leaf now."""
    record, counts = tree.nodes[node], tree.leaf_counts
    heap = heap_of(tree, node)
    if record.slot != NONE and record.heap != heap:
        counts[record.heap] -= 1
        last = tree.leaves[record.heap, counts[record.heap]]
        if last != node:
            sift(tree, record.heap, last, record.slot)
        record.slot = NONE
    if heap == NONE:
        return
    record.rank = rank_of(tree, node)
    if record.slot == NONE:
        record.heap, record.slot = heap, counts[heap]
        counts[heap] += 1
    sift(tree, heap, node, record.slot)


@callable_in_kernels
def sift(tree: PrefixTree, heap: int, moved: int, slot: int) -> None:
    """Move a leaf from index `slot` of its heap up or down to restore the heap's order."""
    nodes, leaves, count = tree.nodes, tree.leaves[heap], tree.leaf_counts[heap]
    while slot > 0 and leaves_before(tree, moved, leaves[(slot - 1) >> 1]):
        leaves[slot] = leaves[(slot - 1) >> 1]
        nodes[leaves[slot]].slot = slot
        slot = (slot - 1) >> 1
    while True:
        child = 2 * slot + 1
        if child + 1 < count and leaves_before(tree, leaves[child + 1], leaves[child]):
            child += 1
        if child >= count or not leaves_before(tree, leaves[child], moved):
            break
        leaves[slot] = leaves[child]
        nodes[leaves[slot]].slot = slot
        slot = child
    leaves[slot] = moved
    nodes[moved].slot = slot


@callable_in_kernels
def new_node(tree: PrefixTree, parent: int, start: int, length: int, priority: int) -> int:
    """Return a new node below `parent`, of `length` blocks from depth `start` (blocks) on.

    The caller sets `top`, `bottom` and `history` (NODE), enters the node in `at`, and updates the
    counts of children of `parent`.
    """
    state = tree.state[0]
    node = state.unused
    if node == NONE:
        node = state.made
        state.made += 1
    else:
        state.unused = tree.nodes[node].parent
    record = tree.nodes[node]
    record.parent, record.start, record.length = parent, start, length
    record.children = record.gpu_children = record.locks = record.hits = 0
    record.on_gpu, record.on_host, record.loading = 1, 0, 0
    record.priority = priority
    record.time = now(tree)
    record.created = now(tree)
    record.slot = record.earlier = record.later = NONE
    return node  # type: ignore[no-any-return]


@called_by_kernels
def split(tree: PrefixTree, node: int, length: int, bottom: int, top: int) -> int:
    """Split a node after its first `length` blocks; return the new node, which has those blocks.

    `bottom` is their last block, `top` the next block.
    """
    lower = tree.nodes[node]
    upper_node = new_node(tree, lower.parent, lower.start, length, lower.priority)
    upper = tree.nodes[upper_node]
    upper.top, upper.bottom = lower.top, bottom
    upper.children, upper.gpu_children = 1, lower.on_gpu
    upper.locks, upper.hits = lower.locks, lower.hits
    upper.on_gpu, upper.on_host, upper.loading = lower.on_gpu, lower.on_host, lower.loading
    upper.created, upper.history = lower.created, lower.history
    lower.parent, lower.top = upper_node, top
    lower.start += length
    lower.length -= length
    tree.at[upper.top], tree.at[top] = upper_node, node
    lower.time = now(tree)
    place(tree, node)
    list_copy(tree, upper_node)
    return upper_node


@callable_in_kernels
def child_on(tree: PrefixTree, first: int, blocks: int, child: int) -> int:
    """Return the node with the blocks that `child` shares with a path, split from it if needed.

    The path is paths[first : first + blocks]; it has the first block of `child`.
    """
    record = tree.nodes[child]
    common = min(record.length, blocks - record.start)
    block, behind = record.bottom, NONE
    for _ in range(record.length - common):
        block, behind = tree.parents[block], block
    while block != tree.paths[first + record.start + common - 1]:
        block, behind = tree.parents[block], block
        common -= 1
    return child if common == record.length else split(tree, child, common, block, behind)


@called_by_kernels
def drop(tree: PrefixTree, node: int) -> None:
    """Delete a node without children, with its blocks on the GPU and the host."""
    record, state = tree.nodes[node], tree.state[0]
    parent = record.parent
    record.locks = 1
    place(tree, node)
    unlist_copy(tree, node)
    tree.at[record.top] = NONE
    if record.on_host:
        state.host_size -= record.length
        state.host_evictions += record.length
    if record.on_gpu:
        state.size -= record.length
        tree.nodes[parent].gpu_children -= 1
    record.on_gpu = record.on_host = 0
    record.parent, state.unused = state.unused, node
    record.length = 0
    tree.nodes[parent].children -= 1
    place(tree, parent)


@callable_in_kernels
def lock(tree: PrefixTree, node: int, change: int) -> None:
    """Add `change` (1 or -1) to the locks of a node and of all nodes above it."""
    while node != ROOT:
        record = tree.nodes[node]
        if record.locks == (0 if change > 0 else 1):
            tree.state[0].locked += change * record.length * record.on_gpu
        record.locks += change
        place(tree, node)
        node = record.parent


@callable_in_kernels
def list_copy(tree: PrefixTree, node: int) -> None:
    """With `write_back`, list a node on both tiers as a host copy; unlist it while it loads."""
    record, state = tree.nodes[node], tree.state[0]
    if not state.write_back:
        return
    if not (record.on_gpu and record.on_host) or record.loading:
        unlist_copy(tree, node)
        return
    if record.earlier != NONE or state.first_copy == node:
        return
    record.earlier, record.later = state.last_copy, NONE
    if state.last_copy == NONE:
        state.first_copy = node
    else:
        tree.nodes[state.last_copy].later = node
    state.last_copy = node


@callable_in_kernels
def unlist_copy(tree: PrefixTree, node: int) -> None:
    """Remove a node from the list of host copies, if it is listed."""
    record, state = tree.nodes[node], tree.state[0]
    if record.earlier == NONE and state.first_copy != node:
        return
    if record.earlier == NONE:
        state.first_copy = record.later
    else:
        tree.nodes[record.earlier].later = record.later
    if record.later == NONE:
        state.last_copy = record.earlier
    else:
        tree.nodes[record.later].earlier = record.earlier
    record.earlier = record.later = NONE
