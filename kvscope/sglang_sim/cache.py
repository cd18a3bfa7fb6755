"""SGLang's prefix cache over its tree: look-up, insertion, eviction and loads from the host.

Source: SGLang 0.5.23, srt/mem_cache/unified_cache/unified_tree_core.py (match_prefix, begin_insert,
build_load_back_spec), unified_cache/components/full.py (_evict_device_next_node) and
unified_radix_cache.py (_evict_components, load_back).
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.sglang_sim.host import bring, count_hit, store, store_one
from kvscope.sglang_sim.tree import (
    GPU,
    NONE,
    ROOT,
    PrefixTree,
    child_on,
    drop,
    list_copy,
    lock,
    new_node,
    now,
    place,
)


@called_by_kernels
def look_up(tree: PrefixTree, first: int, blocks: int) -> int:
    """Return the node at the end of a path's longest cached prefix; mark its nodes as used now.

    The path is paths[first : first + blocks]. A node that it shares in part is split. ROOT if the
    first block is not cached.
    """
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


@called_by_kernels
def insert(
    tree: PrefixTree,
    first: int,
    blocks: int,
    inserted: int,
    priority: int,
) -> int:
    """Insert the path paths[first : first + blocks]; return the node that ends with its last block.

    The same request inserted the first `inserted` blocks before; they count no hit again. Nodes on
    the path get at least this `priority`: policy PRIORITY evicts the lowest first.
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
        if not nodes[node].on_gpu:
            bring(tree, node)
            list_copy(tree, node)
        if depth > inserted and count_hit(tree, node):
            store(tree, node)
        place(tree, child)
        place(tree, node)
    if depth == blocks:
        return node
    leaf = new_node(tree, node, depth, blocks - depth, priority)
    record = nodes[leaf]
    record.top, record.bottom = tree.paths[first + depth], tree.paths[first + blocks - 1]
    tree.at[record.top] = leaf
    above = leaf
    record.history = 0
    while above != NONE and nodes[above].history < blocks:
        nodes[above].history = blocks
        above = nodes[above].parent
    nodes[node].gpu_children += 1
    nodes[node].children += 1
    tree.state[0].size += blocks - depth
    if blocks > inserted and count_hit(tree, leaf):
        store(tree, leaf)
    place(tree, leaf)
    place(tree, node)
    return leaf


@callable_in_kernels
def make_room(tree: PrefixTree, blocks: int) -> bool:
    """Evict leaves until `blocks` blocks are free; return whether they are."""
    nodes, state = tree.nodes, tree.state[0]
    while state.capacity - state.size - state.owned < blocks and tree.leaf_counts[GPU] > 0:
        leaf = tree.leaves[GPU, 0]
        record = nodes[leaf]
        state.evictions += record.length
        if record.on_host or (state.write_back and store_one(tree, leaf)):
            record.on_gpu = 0
            state.size -= record.length
            nodes[record.parent].gpu_children -= 1
            place(tree, leaf)
            place(tree, record.parent)
        else:
            drop(tree, leaf)
    return state.capacity - state.size - state.owned >= blocks  # type: ignore[no-any-return]


@callable_in_kernels
def load(tree: PrefixTree, node: int, blocks: int) -> bool:
    """Load a node and its ancestors from the host to the GPU; return False without room for them.

    `blocks` is the number of blocks to load. Host copies are not dropped before `settle_loads`.
    """
    lock(tree, node, 1)
    has_room, above = make_room(tree, blocks), node
    while has_room and not tree.nodes[above].on_gpu:
        bring(tree, above)
        tree.nodes[above].loading = 1
        above = tree.nodes[above].parent
    lock(tree, node, -1)
    return has_room
