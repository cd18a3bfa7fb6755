"""SGLang's host tier below its prefix tree (HiCache): stores and evictions.

Nodes are stored when enough requests have inserted them, their ancestors first, or when the GPU
evicts them (`write_back`). For room, the host evicts its leaves by the GPU's eviction policy; with
`write_back`, copies of blocks on the GPU are dropped before. Copies are instantaneous here: the
scheduler adds their time.

Source: SGLang 0.5.23, srt/mem_cache/unified_radix_cache.py (_execute_and_commit_kv_backup,
_execute_kv_backup, backup_node_for_write_back, loading_check), unified_cache/unified_tree_core.py
(_inc_hit_count_and_check, _build_backup_kv_action, _reclaim_full_host_duplicates).
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.sglang_sim.tree import (
    GPU,
    HOST,
    NONE,
    ROOT,
    PrefixTree,
    drop,
    heap_of,
    list_copy,
    place,
    unlist_copy,
)


@callable_in_kernels
def count_hit(tree: PrefixTree, node: int) -> bool:
    """Count a node's insertion; return whether to store it. With `write_back`: False, no count."""
    record, state = tree.nodes[node], tree.state[0]
    if state.write_back:
        return False
    record.hits += 1
    return state.host_capacity > 0 and not record.on_host and record.hits >= state.store_hits


@callable_in_kernels
def store(tree: PrefixTree, node: int) -> None:
    """Store a node on the host, its ancestors first; stop when the host has no room."""
    nodes = tree.nodes
    while True:
        top = node
        while nodes[top].parent != ROOT and not nodes[nodes[top].parent].on_host:
            top = nodes[top].parent
        if not store_one(tree, top) or top == node:
            return


@called_by_kernels
def store_one(tree: PrefixTree, node: int) -> bool:
    """Store one node on the host, with evictions for room; return whether it fits."""
    record, state = tree.nodes[node], tree.state[0]
    wanted = record.length - (state.host_capacity - state.host_size)
    if wanted > 0 and state.write_back:
        wanted -= drop_copies(tree, wanted, True)
        wanted -= drop_copies(tree, wanted, False)
    while wanted > 0 and tree.leaf_counts[HOST] > 0:
        leaf = tree.leaves[HOST, 0]
        wanted -= tree.nodes[leaf].length
        drop(tree, leaf)
    if wanted > 0:
        return False
    record.on_host = 1
    state.host_size += record.length
    state.written += record.length
    list_copy(tree, node)
    return True


@called_by_kernels
def drop_copies(tree: PrefixTree, wanted: int, spare_leaves: bool) -> int:
    """Drop host copies of nodes on the GPU until `wanted` blocks are free; return the number freed.

    With `spare_leaves`, copies of the GPU's leaves stay.
    """
    nodes, state, dropped = tree.nodes, tree.state[0], 0
    node = state.first_copy
    while node != NONE and dropped < wanted:
        record = nodes[node]
        later = record.later
        if not (record.on_gpu and record.on_host):
            unlist_copy(tree, node)
        elif not (record.loading or (spare_leaves and heap_of(tree, node) == GPU)):
            record.on_host = 0
            state.host_size -= record.length
            state.host_evictions += record.length
            dropped += record.length
            unlist_copy(tree, node)
        node = later
    return dropped


@callable_in_kernels
def bring(tree: PrefixTree, node: int) -> None:
    """Mark a node on the host as being on the GPU, too; the caller has made room."""
    record, state = tree.nodes[node], tree.state[0]
    record.on_gpu = 1
    state.size += record.length
    if record.locks > 0:
        state.locked += record.length
    tree.nodes[record.parent].gpu_children += 1
    place(tree, record.parent)
    place(tree, node)


@callable_in_kernels
def settle_loads(tree: PrefixTree, node: int) -> None:
    """End the loads of a node and of its ancestors: their host copies can be dropped again."""
    while node != ROOT:
        if tree.nodes[node].loading:
            tree.nodes[node].loading = 0
            list_copy(tree, node)
        node = tree.nodes[node].parent
