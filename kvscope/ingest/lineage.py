"""Lineage: which request each request continues, as the trace says or by shared prefixes.

All arrays have an entry per request, in order of arrival; -1 stands for "none".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.disk_columns import stretches
from kvscope.core.jit import kernel
from kvscope.core.prefix import ancestor

SHARED_HEAD_CONTINUATIONS = 4


def parents_by_id(chat_id: Int64s, parent_chat_id: Int64s, none: int) -> Int32s:
    """Return each request's parent: the last earlier request with the parent's chat id.

    Without such an earlier request there is no parent, so cycles cannot arise; see
    `impossible_parents`. `none` is the id that stands for no parent.
    """
    parent = np.full(len(chat_id), -1, dtype=np.int32)
    if (parent_chat_id == none).all():
        return parent
    order = np.argsort(chat_id, kind="stable")
    ordered = chat_id[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])
    known = ordered[begins]
    del ordered
    code, parent_code = np.empty((2, len(chat_id)), dtype=np.int32)
    code[order] = np.cumsum(begins, dtype=np.int32) - 1
    del order, begins
    for part in stretches(len(chat_id)):
        wanted = parent_chat_id[part]
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        has_parent = (known[at] == wanted) & (wanted != none)
        parent_code[part] = np.where(has_parent, at, -1)
    last = np.full(len(known), -1, dtype=np.int32)
    _find_last_earlier(code, parent_code, last, parent)
    return parent


@kernel
def _find_last_earlier(code: Int32s, parent_code: Int32s, last: Int32s, parent: Int32s) -> None:
    """Fill `parent`: the `last` earlier request whose `code` (of a chat id) is `parent_code`."""
    for request in range(len(code)):
        if parent_code[request] >= 0:
            parent[request] = last[parent_code[request]]
        last[code[request]] = request


class ImpossibleParents(NamedTuple):
    """Requests whose parent by id cannot be followed, by reason, in order of arrival.

    `itself`: the parent is the request; `later`: the parent arrives after the request, which
    happens in every cycle; `missing`: no request has the parent's id.
    """

    itself: Int64s
    later: Int64s
    missing: Int64s


def impossible_parents(
    chat_id: Int64s, parent_chat_id: Int64s, parent: Int32s, none: int
) -> ImpossibleParents:
    """Return the requests with a parent's id (not `none`) that `parents_by_id` did not follow."""
    lost = np.flatnonzero((parent < 0) & (parent_chat_id != none))
    wanted = parent_chat_id[lost]
    distinct = np.unique(wanted)
    there = np.zeros(len(distinct), dtype=np.bool_)
    for part in stretches(len(chat_id)) if len(lost) else ():
        place = np.minimum(np.searchsorted(distinct, chat_id[part]), len(distinct) - 1)
        there[place[distinct[place] == chat_id[part]]] = True
    missing = ~there[np.searchsorted(distinct, wanted)]
    itself = wanted == chat_id[lost]
    return ImpossibleParents(lost[itself], lost[~(itself | missing)], lost[missing])


def parents_by_prefix(
    block_parent: Int32s, full_leaf: Int32s, input_tokens: Int32s, output_tokens: Int32s
) -> Int32s:
    """Return each request's parent: the earlier request with the longest prompt that it extends.

    The parent is the earlier request with the longest full-block path that is a proper prefix of
    the request's own and whose history (input and output) is no longer than the request's input;
    of several with the same path, the most recent. A path that four or more requests continue
    directly is a shared head, such as a system prompt: those requests begin conversations.
    """
    history = input_tokens.astype(np.int64) + output_tokens
    parent, older_end, jump, height = np.full((4, len(full_leaf)), -1, dtype=np.int32)
    last_end = np.full(len(block_parent), -1, dtype=np.int32)
    shortest = np.full(len(block_parent), 2**62, dtype=np.int64)
    _find_longest_prefix(
        block_parent, full_leaf, input_tokens, history,
        last_end, older_end, jump, height, shortest, parent,
    )  # fmt: skip
    continued = np.zeros(len(block_parent), dtype=np.int64)
    path = full_leaf[parent]
    np.add.at(continued, path[parent >= 0], 1)
    parent[(parent >= 0) & (continued[path] >= SHARED_HEAD_CONTINUATIONS)] = -1
    return parent


@kernel
def _find_longest_prefix(
    block_parent: Int32s,
    full_leaf: Int32s,
    input_tokens: Int32s,
    history: Int64s,
    last_end: Int32s,
    older_end: Int32s,
    jump: Int32s,
    height: Int32s,
    shortest: Int64s,
    parent: Int32s,
) -> None:
    """Fill `parent` in O(n log n), n being requests plus blocks, for any shape of the trie.

    The requests whose path ends at a block form a stack with the most recent on top: `last_end` is
    the top, `older_end` the next one down. A request leaves the stack once a later one has a
    history no longer than its own: it cannot become a parent any more. So histories get shorter
    down the stack, and a search skips down by each request's `jump`: a request further down, over
    distances that double; the lowest one's is itself. `height` is the number of requests below it.
    `shortest`, the least history at a block, saves the search of a stack without a candidate.

    Source: Myers, An applicative random-access stack (Information Processing Letters 17, 1983).
    """
    for request in range(len(full_leaf)):
        block = block_parent[full_leaf[request]]
        while block != 0:
            if shortest[block] <= input_tokens[request]:
                candidate = last_end[block]
                while history[candidate] > input_tokens[request]:
                    lower = jump[candidate]
                    too_long = history[lower] > input_tokens[request]
                    candidate = lower if too_long else older_end[candidate]
                parent[request] = candidate
                break
            block = block_parent[block]
        own = full_leaf[request]
        if own != 0:
            below = last_end[own]
            while below >= 0 and history[below] >= history[request]:
                below = older_end[below]
            last_end[own] = request
            older_end[request] = below
            if below < 0:
                jump[request] = request
                height[request] = 0
                shortest[own] = history[request]
            else:
                middle = jump[below]
                far = jump[middle]
                even = height[below] - height[middle] == height[middle] - height[far]
                jump[request] = far if even else below
                height[request] = height[below] + 1


def conversations(parent: Int32s) -> tuple[Int32s, Int32s]:
    """Return each request's conversation, as its first request, and its turn, from 1."""
    conversation, turn = np.empty((2, len(parent)), dtype=np.int32)
    _number_turns(parent, conversation, turn)
    return conversation, turn


@kernel
def _number_turns(parent: Int32s, conversation: Int32s, turn: Int32s) -> None:
    for request in range(len(parent)):
        above = parent[request]
        if above < 0:
            conversation[request] = request
            turn[request] = 1
        else:
            conversation[request] = conversation[above]
            turn[request] = turn[above] + 1


def carried_outputs(
    block_parent: Int32s,
    block_size: int,
    parent: Int32s,
    full_leaf: Int32s,
    full_blocks: Int32s,
    input_tokens: Int32s,
    output_tokens: Int32s,
) -> tuple[Int32s, Int32s]:
    """Return last block and length (blocks) of each request's cached path, see `carriers`."""
    carrier, blocks = carriers(
        block_parent, None, block_size, parent, full_leaf, full_blocks, input_tokens, output_tokens
    )
    leaf = ends_at(block_parent, full_leaf[carrier], full_blocks[carrier] - blocks)
    return leaf, blocks


def carriers(
    above: Int32s,
    above_blocks: Int32s | None,
    block_size: int,
    parent: Int32s,
    full_leaf: Int32s,
    full_blocks: Int32s,
    input_tokens: Int32s,
    output_tokens: Int32s,
) -> tuple[Int32s, Int32s]:
    """Return the request whose prompt contains each cached path, and the path's length in blocks.

    After a turn the cache holds blocks up to floor((I + O - 1) / B): the last sampled token has no
    KV yet. The first child whose prompt contains the whole history identifies the output blocks;
    without such a child, the request itself is returned, with the path of its own prompt.

    `above`, `above_blocks` and `full_leaf` are `above`, `blocks` and `full_leaf` of a `PathEnds`.
    """
    carrier = np.arange(len(parent), dtype=np.int32)
    blocks = full_blocks.copy()
    history = input_tokens.astype(np.int64) + output_tokens
    lengths = np.zeros(0, dtype=np.int32) if above_blocks is None else above_blocks
    _find_carriers(
        above, lengths, block_size, parent, full_leaf, full_blocks, input_tokens, history,
        carrier, blocks,
    )  # fmt: skip
    return carrier, blocks


@kernel
def _find_carriers(
    above: Int32s,
    above_blocks: Int32s,
    block_size: int,
    parent: Int32s,
    full_leaf: Int32s,
    full_blocks: Int32s,
    input_tokens: Int32s,
    history: Int64s,
    carrier: Int32s,
    blocks: Int32s,
) -> None:
    """Set `carrier` and `blocks` of requests whose output blocks are in a child's prompt."""
    for child in range(len(parent)):
        request = parent[child]
        if request < 0 or blocks[request] > full_blocks[request]:
            continue
        reach = min((history[request] - 1) // block_size, np.int64(full_blocks[child]))
        if history[request] > input_tokens[child] or reach <= full_blocks[request]:
            continue
        node = full_leaf[child]
        if len(above_blocks) == 0:
            node = ancestor(above, node, full_blocks[child] - full_blocks[request])
        else:
            while above_blocks[node] > full_blocks[request]:
                node = above[node]
        if node == full_leaf[request]:
            carrier[request] = child
            blocks[request] = reach


def ends_at(block_parent: Int32s, leaf: Int32s, steps: Int32s) -> Int32s:
    """Return the ancestor steps[k] blocks above each leaf[k]."""
    above = np.empty_like(leaf)
    _climb_steps(block_parent, leaf, steps, above)
    return above


@kernel
def _climb_steps(block_parent: Int32s, leaf: Int32s, steps: Int32s, above: Int32s) -> None:
    for k in range(len(leaf)):
        above[k] = ancestor(block_parent, leaf[k], steps[k])
