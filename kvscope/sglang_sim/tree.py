"""SGLang's prefix tree: nodes of several blocks, split where prompts part, evicted whole.

A node is a run of blocks that one insertion added. Requests lock the nodes on their path; unlocked
nodes without a child are the leaves, one of which is evicted at a time. They lie in a binary heap
by the key of SGLang's eviction policy, so that the next one to leave is at its top.

Source: SGLang 0.5.23, srt/mem_cache/unified_cache/unified_tree_core.py (match_prefix, begin_insert,
_split_node, _add_new_node, _set_tlru_lens_and_raise_history), unified_cache/components/full.py
(acquire_component_lock, _evict_device_next_node) and evict_policy.py. Its tree in Rust, the
default on Linux, is the same tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s, Records, record_type
from kvscope.core.jit import callable_in_kernels
from kvscope.core.prefix import Paths

NONE = -1
ROOT = 0
LRU, FIFO, LFU, SLRU, TLRU, PRIORITY = range(6)  # values of `State.policy`
TICK = 2**20  # of the clock; nodes of one look-up are less than that many parts of a tick apart

NODE = record_type(
    "parent top bottom start length children locks hits priority time created history rank slot"
)
"""A run of `length` blocks of the trie from depth `start` on, from its `top` to its `bottom`.

`hits` counts the requests that inserted it, `history` is the greatest depth that was ever inserted
below it. `rank` and then `time` (of FIFO `created`) order the leaves; `slot` is its place among
them, NONE for nodes that are none. Of an unused node only `parent` counts: the next unused one.
"""

STATE = record_type(
    "policy protected_uses block_size clock capacity size locked owned promised evictions leaves "
    "made unused",
    "xi_tokens next_prompt_tokens",
)
"""One record: the policy, and counts in blocks.

`size` blocks are in the tree, of which `locked` ones cannot leave; running requests have `owned`
ones beside it, and are `promised` more. `made` nodes exist, of which the chain from `unused` on is
free.
"""


class PrefixTree(NamedTuple):
    """A prefix tree over a trie of N blocks, with the paths of the requests that run on it.

    `parents` (N + 1) are the trie's; request r has the blocks `paths[starts[r]:starts[r + 1]]`.
    `nodes` and `state` are records as above. `at` (N + 1 entries) is the node whose first block is
    this one, NONE without one. The first `state.leaves` entries of `leaves` are the heap.
    """

    parents: Int32s
    paths: Int32s
    starts: Int64s
    nodes: Records
    state: Records
    at: Int32s
    leaves: Int64s


def empty_tree(parents: Int32s, prompts: Paths, most_nodes: int, **settings: float) -> PrefixTree:
    """Return an empty tree over a trie; `settings` are fields of its state."""
    nodes = np.zeros(most_nodes + 1, dtype=NODE).view(np.recarray)
    state = np.zeros(1, dtype=STATE).view(np.recarray)
    for name, value in settings.items():
        state[name] = value
    state.made, state.unused = 1, NONE
    root = nodes[ROOT]  # the others take no memory before they are used
    root.slot = root.top = root.bottom = root.parent = NONE
    root.locks = 1
    at = np.full(len(parents), NONE, dtype=np.int32)
    leaves = np.zeros(most_nodes + 1, dtype=np.int64)
    return PrefixTree(parents, prompts.blocks, prompts.starts, nodes, state, at, leaves)


@callable_in_kernels
def now(tree: PrefixTree) -> int:
    """Return the time, and advance the clock by one tick."""
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
    """Return the first part of a leaf's key: the lowest leaves first, then by time."""
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
def place(tree: PrefixTree, node: int) -> None:
    """Put a node where it belongs among the leaves, or out of them if it is none any more."""
    nodes, leaves, state = tree.nodes, tree.leaves, tree.state[0]
    slot = nodes[node].slot
    moved = node
    if node == ROOT or nodes[node].children > 0 or nodes[node].locks > 0:
        if slot == NONE:
            return
        nodes[node].slot = NONE
        state.leaves -= 1
        moved = leaves[state.leaves]  # takes its place
        if moved == node:
            return
    else:
        nodes[node].rank = rank_of(tree, node)
        if slot == NONE:
            slot = state.leaves
            state.leaves += 1
    while slot > 0 and leaves_before(tree, moved, leaves[(slot - 1) >> 1]):
        leaves[slot] = leaves[(slot - 1) >> 1]
        nodes[leaves[slot]].slot = slot
        slot = (slot - 1) >> 1
    while True:
        child = 2 * slot + 1
        if child + 1 < state.leaves and leaves_before(tree, leaves[child + 1], leaves[child]):
            child += 1
        if child >= state.leaves or not leaves_before(tree, leaves[child], moved):
            break
        leaves[slot] = leaves[child]
        nodes[leaves[slot]].slot = slot
        slot = child
    leaves[slot] = moved
    nodes[moved].slot = slot


@callable_in_kernels
def new_node(tree: PrefixTree, parent: int, start: int, length: int, priority: int) -> int:
    """Return a new node below another one, of blocks that its caller sets."""
    state = tree.state[0]
    node = state.unused
    if node == NONE:
        node = state.made
        state.made += 1
    else:
        state.unused = tree.nodes[node].parent
    record = tree.nodes[node]
    record.parent, record.start, record.length = parent, start, length
    record.children = record.locks = record.hits = 0
    record.priority = priority
    record.time = now(tree)
    record.created = now(tree)
    record.slot = NONE
    return node  # type: ignore[no-any-return]


@callable_in_kernels
def split(tree: PrefixTree, node: int, length: int, bottom: int, top: int) -> int:
    """Split a node behind so many blocks, and return the new node, which has those.

    `bottom` is the last of them, `top` the block behind it.
    """
    lower = tree.nodes[node]
    upper_node = new_node(tree, lower.parent, lower.start, length, lower.priority)
    upper = tree.nodes[upper_node]
    upper.top, upper.bottom = lower.top, bottom
    upper.children, upper.locks, upper.hits = 1, lower.locks, lower.hits
    upper.created, upper.history = lower.created, lower.history
    lower.parent, lower.top = upper_node, top
    lower.start += length
    lower.length -= length
    tree.at[upper.top], tree.at[top] = upper_node, node
    lower.time = now(tree)
    place(tree, node)
    return upper_node


@callable_in_kernels
def child_on(tree: PrefixTree, first: int, blocks: int, child: int) -> int:
    """Return the node of the blocks that `child` shares with a path: itself, or split off it.

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


@callable_in_kernels
def look_up(tree: PrefixTree, first: int, blocks: int) -> int:
    """Return the node where the longest cached prefix of a path ends; it counts as used."""
    node, depth = ROOT, 0
    while depth < blocks:
        child = tree.at[tree.paths[first + depth]]
        if child == NONE:
            break
        node = child_on(tree, first, blocks, child)
        depth += tree.nodes[node].length
    if blocks > 0:
        time, above = now(tree), node
        while above != NONE:
            tree.nodes[above].time = time
            place(tree, above)
            time -= 1
            above = tree.nodes[above].parent
    return node


@callable_in_kernels
def insert(
    tree: PrefixTree,
    first: int,
    blocks: int,
    inserted: int,
    priority: int,
) -> int:
    """Insert a path, and return the node that ends with its last block.

    What the request had `inserted` before, so many blocks, was counted as its hit then.
    """
    nodes, node, depth = tree.nodes, ROOT, 0
    nodes[ROOT].time = now(tree)
    while depth < blocks:
        child = tree.at[tree.paths[first + depth]]
        if child == NONE:
            break
        nodes[child].time = now(tree)
        node = child_on(tree, first, blocks, child)
        depth += nodes[node].length
        nodes[node].priority = max(nodes[node].priority, priority)
        if depth > inserted:
            nodes[node].hits += 1
        place(tree, child)
        place(tree, node)
    if depth == blocks:
        return node
    leaf = new_node(tree, node, depth, blocks - depth, priority)
    record = nodes[leaf]
    record.top, record.bottom = tree.paths[first + depth], tree.paths[first + blocks - 1]
    tree.at[record.top] = leaf
    record.hits = 1 if blocks > inserted else 0
    above = leaf
    record.history = 0
    while above != NONE and nodes[above].history < blocks:
        nodes[above].history = blocks
        above = nodes[above].parent
    nodes[node].children += 1
    tree.state[0].size += blocks - depth
    place(tree, leaf)
    place(tree, node)
    return leaf


@callable_in_kernels
def lock(tree: PrefixTree, node: int, change: int) -> None:
    """Add a lock to a node and all above it, or with -1 remove it."""
    while node != ROOT:
        record = tree.nodes[node]
        if record.locks == (0 if change > 0 else 1):
            tree.state[0].locked += change * record.length
        record.locks += change
        place(tree, node)
        node = record.parent


@callable_in_kernels
def make_room(tree: PrefixTree, blocks: int) -> bool:
    """Evict leaves until so many blocks are free; return whether they are."""
    nodes, state = tree.nodes, tree.state[0]
    while state.capacity - state.size - state.owned < blocks and state.leaves > 0:
        leaf = tree.leaves[0]
        record = nodes[leaf]
        parent = record.parent
        record.locks = 1
        place(tree, leaf)
        tree.at[record.top] = NONE
        state.size -= record.length
        state.evictions += record.length
        record.parent, state.unused = state.unused, leaf
        record.length = 0
        nodes[parent].children -= 1
        place(tree, parent)
    return state.capacity - state.size - state.owned >= blocks  # type: ignore[no-any-return]
