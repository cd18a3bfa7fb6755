"""Requests on SGLang's prefix tree: their hits, and the blocks that they take and leave.

A request looks up all but its last token, locks the nodes of its hit, gets blocks for its prompt
chunk by chunk, and inserts each chunk once it is computed. Outputs get blocks token by token, and
join the tree when the request finishes, as a node of their own. When a request inserts blocks that
the tree already has, it frees its own copies.

Source: SGLang 0.5.23, srt/managers/schedule_policy.py (PrefillAdder), srt/mem_cache/allocation.py
(alloc_for_extend, alloc_for_decode), unified_radix_cache.py (checkpoint_into_tree) and common.py
(release_kv_cache).
"""

from __future__ import annotations

from kvscope.core.arrays import Records, record_type
from kvscope.core.jit import callable_in_kernels
from kvscope.sglang_sim.cache import insert, load, look_up
from kvscope.sglang_sim.tree import NONE, PrefixTree, lock

LEAST_LOADED = 10
"""Fewest tokens that a request loads from the host; fewer are computed again."""
REQUEST = record_type(
    "prompt outputs end look blocks node found shared inserted owned hit loaded "
    "computed generated batch rejected retracted retractions",
    "arrival_s begin_s token_s end_s",
)
"""A request of `prompt` tokens and `outputs`; `end` tokens have KV when it is complete.

Then it leaves `blocks` blocks cached. As long as it has no outputs, at most `look` blocks can hit;
at its first admission `hit` did, of which `loaded` came from the host. It runs with a lock on
`node`, NONE where it does not run; its first `shared` blocks are in the tree, of which it has
inserted `inserted` itself, and it has `owned` blocks that are not. `found` is the node at the end
of its latest look-up. `computed` tokens have their KV or get it in the planned batch, `generated`
outputs are known, `batch` is the number of its latest batch. It was retracted `retractions` times,
and is `retracted` until it runs again. A `rejected` one does not fit into the cache. Its first
batch begins at `begin_s`, its first token comes at `token_s` and the last at `end_s`, nan before.
"""


@callable_in_kernels
def blocks_of(tree: PrefixTree, tokens: int) -> int:
    """Return the number of blocks that hold `tokens` tokens."""
    return -(-tokens // tree.state[0].block_size)  # type: ignore[no-any-return]


@callable_in_kernels
def begin(tree: PrefixTree, requests: Records, request: int, look: int) -> None:
    """Look up a request's first `look` blocks, and lock those that hit on the GPU (`shared`)."""
    record = requests[request]
    record.found = look_up(tree, tree.starts[request], look)
    record.node = lowest_on_gpu(tree, record.found)
    record.shared = end_of(tree, record.node)
    lock(tree, record.node, 1)
    record.inserted = record.owned = 0


@callable_in_kernels
def lowest_on_gpu(tree: PrefixTree, node: int) -> int:
    """Return the deepest node on the GPU among a node and its ancestors: at least the root is."""
    while not tree.nodes[node].on_gpu:
        node = tree.nodes[node].parent
    return node


@callable_in_kernels
def end_of(tree: PrefixTree, node: int) -> int:
    """Return the number of blocks from the root to a node's end."""
    return tree.nodes[node].start + tree.nodes[node].length  # type: ignore[no-any-return]


@callable_in_kernels
def load_found(tree: PrefixTree, requests: Records, request: int) -> int:
    """Load hits that only the host has; return their blocks (0: too few for a load, or no room)."""
    record = requests[request]
    blocks = end_of(tree, record.found) - record.shared
    if blocks * tree.state[0].block_size < LEAST_LOADED or not load(tree, record.found, blocks):
        return 0
    lock(tree, record.found, 1)
    lock(tree, record.node, -1)
    record.node = record.found
    record.shared += blocks
    return blocks  # type: ignore[no-any-return]


@callable_in_kernels
def take(tree: PrefixTree, requests: Records, request: int, blocks: int) -> None:
    """Allocate `blocks` free blocks to a request; a negative number frees blocks of it."""
    requests[request].owned += blocks
    tree.state[0].owned += blocks


@callable_in_kernels
def leave(tree: PrefixTree, requests: Records, request: int) -> None:
    """Free the blocks that a request owns, and unlock those that it shares."""
    record = requests[request]
    take(tree, requests, request, -record.owned)
    lock(tree, record.node, -1)
    record.node = NONE


@callable_in_kernels
def checkpoint(tree: PrefixTree, requests: Records, request: int, blocks: int) -> None:
    """Insert a running request's first `blocks` blocks into the tree, and lock them there.

    If some of them are outputs, the prompt is inserted again, with a higher priority, so that
    outputs form a node of their own.
    """
    record, first = requests[request], tree.starts[request]
    node = insert(tree, first, blocks, record.inserted, 0)
    take(tree, requests, request, record.shared - blocks)
    record.shared = blocks
    record.inserted = max(record.inserted, blocks)
    lock(tree, node, 1)
    lock(tree, record.node, -1)
    record.node = node
    whole = record.prompt // tree.state[0].block_size
    if 0 < whole < blocks:
        insert(tree, first, whole, whole, 1)
