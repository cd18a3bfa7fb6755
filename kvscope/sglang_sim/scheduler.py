"""SGLang's scheduler: batches of waiting prompts, or of outputs of running requests.

A batch computes prompts, or one output token of every running request: decoding pauses while
prompts are computed. A prompt is admitted if its tokens, and a share (`ratio`) of the outputs that
running requests may still produce, fit into memory next to locked blocks; `ratio` sinks from batch
to batch until memory runs out. Then requests with the fewest outputs are retracted: they wait
again, behind all others, and compute their outputs as prompts.

The next batch is planned while a batch runs, before the tokens of the running batch are known. A
request whose last token is in flight is left out. The limit of a request's outputs,
`max_new_tokens`, is taken to be its number of outputs, as no trace states it.

Source: SGLang 0.5.23, srt/managers/scheduler.py (event_loop_overlap, get_next_batch_to_run,
_get_new_batch_prefill_raw, update_running_batch), schedule_policy.py (SchedulePolicy,
PrefillAdder), schedule_batch.py (retract_decode, release_req), mem_cache/prefill_budget.py,
scheduler_components/batch_result_processor.py and new_token_ratio_tracker.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Int32s, Int64s, Records, record_type
from kvscope.core.jit import by_reference, callable_in_kernels, kernel
from kvscope.deployment.engines import WAITING_ORDERS
from kvscope.sglang_sim.cache import look_up, make_room
from kvscope.sglang_sim.host import settle_loads
from kvscope.sglang_sim.requests import (
    begin,
    blocks_of,
    checkpoint,
    end_of,
    leave,
    load_found,
    lowest_on_gpu,
    take,
)
from kvscope.sglang_sim.tree import LRU, NONE, PrefixTree, lock

LPM = WAITING_ORDERS.index("lpm")
MOST_PREFILL = 16_384
"""Prompt tokens of a batch from which on no prompt is added to it (`--max-prefill-tokens`)."""
MOST_OUTPUTS = 4096
"""Most output tokens for which memory is reserved for a request."""
MOST_MATCHED = 128
"""The longest queue that is sorted by cached prefix; longer ones are first come, first served."""
TOUCHED_EVERY = 32
"""Plans of prompts from one in which waiting requests' prefixes are marked as used to the next."""
SHARED_PREFIX = 32
"""Of waiting prompts with the same first 32 tokens, and no more on the GPU, all but one go last."""
RETRACTED_TOKENS = 20
"""Tokens of room, for each request that still runs, that a retraction makes by evictions."""
FIRST_RATIO = 0.7
LAST_RATIO = FIRST_RATIO * 0.14
DECAY = (FIRST_RATIO - LAST_RATIO) / 600

COSTS = (
    *("base_s", "floor_s", "prefill_token_s", "prefill_pair_s", "launch_s"),
    *("decode_base_s", "decode_token_s", "decode_context_token_s"),
)
"""The fields of `StepCost` from which a batch's time is computed."""
STATE = record_type(
    "order page chunk most_running arrived head waiting running full chunked passes made in_flight "
    "input_left chunk_left tokens",
    " ".join(("now_s free_s ratio reserved load_s copy_block_s", *COSTS)),
)
"""One record: options, queues, and what is left for the batch that is being planned.

Options: the waiting queue's `order` (an index in WAITING_ORDERS), tokens per `page` and per `chunk`
of prompts, `most_running` requests at once, the costs as in `StepCost`, and `copy_block_s` for the
copy of a block from the host or to it.

`arrived` requests have come so far. `waiting` ones are in the queue from index `head` on, `running`
ones decode, `chunked` is the request with a part of its prompt computed, NONE without one. No
prompt is admitted while `full` is set. `passes` counts plans that did not sort the queue. `made`
batches were planned, and `in_flight` says whether the last of them has not ended; the GPU is free
from `free_s` on.

The batch that is being planned has `tokens` prompt tokens, and room for `input_left` and
`chunk_left` more by MOST_PREFILL and by `chunk`; `reserved` tokens of memory are kept free for its
prompts and for outputs, of which running requests' count by the share `ratio`. Its loads from the
host take `load_s`.
"""

BATCH = record_type("size prompts chunked", "cost_s begin_s end_s")
"""A batch of `size` requests: of their prompts if `prompts` is set, else of an output token each.

`chunked` is the request whose prompt it computes in part, NONE without one. It takes `cost_s`.
"""


class ServerQueues(NamedTuple):
    """The state of a server with R requests, without its cache.

    `state` (1) and `batches` (2) are records of STATE and BATCH; batch n and its requests in
    `members` (2 x (R + 1)) have index n & 1. `waiting` has room for 2 (R + 1) requests, `running`
    for R + 1. `matched` (sort keys) and `heads` (the block that ends a prompt's first SHARED_PREFIX
    tokens) are scratch for sorting the first waiting requests.
    """

    state: Records
    batches: Records
    members: Int32s
    waiting: Int32s
    running: Int32s
    matched: Int64s
    heads: Int64s


def empty_queues(requests: int, **settings: float) -> ServerQueues:
    """Return the empty queues of a server for R `requests`.

    `settings` set the options of STATE: order, page, chunk, most_running, copy_block_s and COSTS.
    """
    state = np.zeros(1, dtype=STATE).view(np.recarray)
    for name, value in settings.items():
        state[name] = value
    state.chunked, state.ratio = NONE, FIRST_RATIO
    batches = np.zeros(2, dtype=BATCH).view(np.recarray)
    members, waiting = np.zeros((2, 2, requests + 1), dtype=np.int32)
    matched, heads = np.zeros((2, MOST_MATCHED), dtype=np.int64)
    running = np.zeros(requests + 1, dtype=np.int32)
    return ServerQueues(state, batches, members, waiting.reshape(-1), running, matched, heads)


@kernel
def serve(tree: PrefixTree, requests: Records, queues: ServerQueues) -> None:
    """Serve requests in order of arrival, and write their hits and times into their records."""
    tree, queues = by_reference(tree), by_reference(queues)
    state = queues.state[0]
    while True:
        arrive(requests, queues)
        written = tree.state[0].written
        planned = plan(tree, requests, queues)
        if tree.state[0].write_back:  # what is evicted is copied first, and the scheduler waits
            state.now_s += (tree.state[0].written - written) * state.copy_block_s
        last, batch = queues.batches[state.made & 1], queues.batches[(state.made + 1) & 1]
        if planned:
            batch.begin_s = max(state.now_s, state.free_s)
            batch.end_s = state.free_s = batch.begin_s + batch.cost_s
        if state.in_flight:
            state.now_s = max(state.now_s, last.end_s)
            complete(tree, requests, queues)
        elif not planned:
            state.ratio = FIRST_RATIO
            if state.arrived == len(requests):
                break
            state.now_s = max(state.now_s, requests[state.arrived].arrival_s)
        state.in_flight = planned
        if planned:
            state.made += 1
            launch_s = min(state.launch_s, batch.cost_s) if batch.prompts else 0.0
            state.now_s = max(state.now_s, batch.begin_s + launch_s)


@callable_in_kernels
def arrive(requests: Records, queues: ServerQueues) -> None:
    """Queue the requests that have arrived, except rejected ones."""
    state = queues.state[0]
    while state.arrived < len(requests):
        record = requests[state.arrived]
        if record.arrival_s > state.now_s:
            break
        if not record.rejected:
            wait(queues, state.arrived)
        state.arrived += 1


@callable_in_kernels
def wait(queues: ServerQueues, request: int) -> None:
    """Append a request to the waiting queue."""
    state, waiting = queues.state[0], queues.waiting
    if state.head + state.waiting == len(waiting):
        for at in range(state.waiting):
            waiting[at] = waiting[state.head + at]
        state.head = 0
    waiting[state.head + state.waiting] = request
    state.waiting += 1


@callable_in_kernels
def plan(tree: PrefixTree, requests: Records, queues: ServerQueues) -> bool:
    """Plan the next batch, of prompts if possible, else of outputs; return False if it is empty."""
    state = queues.state[0]
    batch = queues.batches[(state.made + 1) & 1]
    if state.in_flight and queues.batches[state.made & 1].prompts:
        for at in range(queues.batches[state.made & 1].size):
            settle_loads(tree, requests[queues.members[state.made & 1, at]].node)
    if state.chunked != NONE:
        computed = requests[state.chunked].computed
        blocks = whole_blocks(tree, requests[state.chunked], computed)
        checkpoint(tree, requests, state.chunked, blocks)
    settle_running(requests, queues)
    batch.size, batch.prompts, batch.chunked, batch.cost_s = 0, True, NONE, 0.0
    plan_prompts(tree, requests, queues)
    if batch.size == 0:
        batch.prompts = False
        plan_outputs(tree, requests, queues)
    return batch.size > 0  # type: ignore[no-any-return]


@callable_in_kernels
def settle_running(requests: Records, queues: ServerQueues) -> None:
    """Add the last prompt batch's requests to the running ones, and remove complete ones."""
    state, running = queues.state[0], queues.running
    last, members = queues.batches[state.made & 1], queues.members[state.made & 1]
    if state.in_flight and last.prompts:
        if state.running == 0 or last.chunked != NONE:
            state.full = False
        for at in range(last.size):
            if members[at] != last.chunked:
                running[state.running] = members[at]
                state.running += 1
    count = 0
    for at in range(state.running):
        record = requests[running[at]]
        if record.generated < record.outputs:
            running[count] = running[at]
            count += 1
    if count < state.running:
        state.full = False
    state.running = count


@callable_in_kernels
def plan_prompts(tree: PrefixTree, requests: Records, queues: ServerQueues) -> None:
    """Plan a batch of prompts as far as memory lasts, a partly computed prompt first."""
    state = queues.state[0]
    batch = queues.batches[(state.made + 1) & 1]
    if state.running == 0:
        state.full = False
    if state.chunked == NONE:
        if state.full or state.waiting == 0:
            return
        if state.running >= state.most_running:
            state.full = True
            return
    order_waiting(tree, requests, queues)
    state.input_left, state.chunk_left, state.tokens = MOST_PREFILL, state.chunk, 0
    state.reserved = state.load_s = 0.0
    for at in range(state.running):
        record = requests[queues.running[at]]
        state.reserved += min(record.outputs - record.generated, MOST_OUTPUTS) * state.ratio
    if state.chunked != NONE:
        record = requests[state.chunked]
        most = min(state.chunk_left, int(free_tokens(tree) - state.reserved))
        most = most if most > 0 else state.chunk_left
        rest = record.prompt + record.generated - record.computed
        admit(tree, requests, queues, state.chunked, min(rest, most), most < rest)
    admitted = 0
    while admitted < state.waiting and may_admit(tree, queues):
        request = queues.waiting[state.head + admitted]
        if not admit_waiting(tree, requests, queues, request):
            break
        admitted += 1
        if free_tokens(tree) - state.reserved <= 0:
            state.full = True
    state.head += admitted
    state.waiting -= admitted
    if batch.size > 0:
        batch.chunked = state.chunked
        batch.cost_s += max(state.floor_s, state.prefill_token_s * state.tokens) + state.base_s
        batch.cost_s = max(batch.cost_s, state.load_s)  # layers are loaded while others compute
        give_blocks(tree, requests, queues, state.tokens)


@callable_in_kernels
def may_admit(tree: PrefixTree, queues: ServerQueues) -> bool:
    """Return whether the planned batch may have another request, by tokens and requests."""
    state = queues.state[0]
    batch = queues.batches[(state.made + 1) & 1]
    if free_tokens(tree) > state.reserved and (state.input_left <= 0 or state.chunk_left <= 0):
        return False
    if batch.size >= state.most_running - state.running:
        state.full = True
    return not state.full


@callable_in_kernels
def admit_waiting(
    tree: PrefixTree,
    requests: Records,
    queues: ServerQueues,
    request: int,
) -> bool:
    """Look up a waiting request and add it to the batch; return False if it has to wait."""
    state, record = queues.state[0], requests[request]
    known = record.prompt + record.generated
    look = record.look if record.generated == 0 else whole_blocks(tree, record, known - 1)
    begin(tree, requests, request, look)
    on_host, loaded = end_of(tree, record.found) - record.shared, 0
    tokens = first_chunk(tree, requests, state, request, on_host * tree.state[0].block_size)
    if tokens > 0 and on_host > 0:
        loaded = load_found(tree, requests, request)
        if loaded == 0:
            tokens = first_chunk(tree, requests, state, request, 0)
    if tokens <= 0:
        lock(tree, record.node, -1)
        record.node = NONE
        if tokens < 0:
            size = queues.batches[(state.made + 1) & 1].size
            state.full = size > 0 or state.running > 0
        return False
    state.load_s += loaded * state.copy_block_s
    if np.isnan(record.begin_s):
        record.hit, record.loaded = record.shared, loaded
    record.computed = record.shared * tree.state[0].block_size
    admit(tree, requests, queues, request, tokens, record.computed + tokens < known)
    return True


@callable_in_kernels
def free_tokens(tree: PrefixTree) -> int:
    """Return the tokens for which free blocks and unlocked (evictable) blocks have room."""
    state = tree.state[0]
    return (state.capacity - state.owned - state.locked) * state.block_size  # type: ignore[no-any-return]


@callable_in_kernels
def whole_blocks(tree: PrefixTree, record: Records, tokens: int) -> int:
    """Return how many cacheable blocks a request's first `tokens` tokens fill."""
    return min(tokens // tree.state[0].block_size, record.blocks)  # type: ignore[no-any-return]


@callable_in_kernels
def first_chunk(
    tree: PrefixTree, requests: Records, state: Records, request: int, on_host: int
) -> int:
    """Return how many tokens of a request the batch computes, after hits on the GPU and the host.

    `on_host` tokens are hits on the host alone. 0 if the batch has no room, -1 if memory has none.
    """
    record, size = requests[request], tree.state[0].block_size
    cached = record.shared * size
    new = record.prompt + record.generated - cached
    outputs = min(record.outputs - record.generated, MOST_OUTPUTS)
    if new + outputs + size >= free_tokens(tree) - state.reserved:
        return -1
    cached += on_host
    new -= on_host
    if -(-new // state.page) * state.page <= state.chunk_left:
        return new  # type: ignore[no-any-return]
    end = (cached + state.chunk_left // state.page * state.page) // state.page * state.page
    return max(end - cached, 0)  # type: ignore[no-any-return]


@callable_in_kernels
def admit(
    tree: PrefixTree, requests: Records, queues: ServerQueues, request: int, tokens: int, cut: bool
) -> None:
    """Add `tokens` tokens of a prompt to the batch; if `cut`, later batches compute the rest."""
    state, record, size = queues.state[0], requests[request], tree.state[0].block_size
    place = (state.made + 1) & 1
    batch = queues.batches[place]
    queues.members[place, batch.size] = request
    batch.size += 1
    batch.cost_s += state.prefill_pair_s * tokens * (record.computed + tokens / 2)
    state.tokens += tokens
    record.computed += tokens
    record.retracted = False
    if cut:
        state.chunked = request
    elif state.chunked == request:
        state.chunked = NONE
    charged = -(-tokens // state.page) * state.page
    state.input_left -= charged
    state.chunk_left -= charged
    outputs = 0 if cut else min(record.outputs, MOST_OUTPUTS)
    state.reserved += (blocks_of(tree, tokens) + 1) * size + outputs


@callable_in_kernels
def give_blocks(tree: PrefixTree, requests: Records, queues: ServerQueues, tokens: int) -> None:
    """Allocate the blocks for the planned batch's `tokens` prompt tokens."""
    state, place, needed = queues.state[0], (queues.state[0].made + 1) & 1, 0
    batch, members = queues.batches[place], queues.members[place]
    for at in range(batch.size):
        needed += lacks(tree, requests[members[at]])
    if state.page > 1:  # one page more for each request, which it may not need
        needed = blocks_of(tree, tokens) + batch.size
    make_room(tree, needed)
    for at in range(batch.size):
        record = requests[members[at]]
        record.batch = state.made + 1
        take(tree, requests, members[at], lacks(tree, record))


@callable_in_kernels
def lacks(tree: PrefixTree, record: Records) -> int:
    """Return how many blocks a request still needs for its computed tokens."""
    return blocks_of(tree, record.computed) - record.shared - record.owned  # type: ignore[no-any-return]


@callable_in_kernels
def order_waiting(tree: PrefixTree, requests: Records, queues: ServerQueues) -> None:
    """Sort a waiting queue of up to MOST_MATCHED requests by cached prefix, if its order is LPM.

    Other queues stay as they are; but if the cache evicts by LRU, every TOUCHED_EVERY calls the
    cached prefixes of the first MOST_MATCHED requests are marked as used.
    """
    state = queues.state[0]
    if state.order == LPM and state.waiting <= MOST_MATCHED:
        by_prefix(tree, requests, queues)
    elif state.waiting > 0 and tree.state[0].policy == LRU:
        if state.passes % TOUCHED_EVERY == 0:
            for at in range(min(state.waiting, MOST_MATCHED) - 1, -1, -1):
                request = queues.waiting[state.head + at]
                look_up_all(tree, requests, request)
        state.passes += 1


@callable_in_kernels
def look_up_all(tree: PrefixTree, requests: Records, request: int) -> int:
    """Return the node at the end of a waiting request's cached blocks; mark them as used now.

    All full blocks of its known tokens count, also one that ends with the last token, which must be
    computed again when the request is admitted.
    """
    record = requests[request]
    blocks = max(record.look, whole_blocks(tree, record, record.prompt + record.generated))
    return look_up(tree, tree.starts[request], blocks)


@callable_in_kernels
def by_prefix(tree: PrefixTree, requests: Records, queues: ServerQueues) -> None:
    """Sort the waiting queue by cached tokens, requests with the most first.

    Of requests that share an uncached beginning, all but the first go to the end.
    """
    state, waiting, matched = queues.state[0], queues.waiting, queues.matched
    size = tree.state[0].block_size
    shared = -(-SHARED_PREFIX // size)
    for at in range(state.waiting):
        request = waiting[state.head + at]
        record = requests[request]
        known = record.prompt + record.generated
        node = look_up_all(tree, requests, request)
        rank, head = -min(end_of(tree, node) * size, known - 1), NONE
        cached = end_of(tree, lowest_on_gpu(tree, node)) * size
        if cached <= SHARED_PREFIX and shared <= whole_blocks(tree, record, known):
            head = tree.paths[tree.starts[request] + shared - 1]
            for other in range(at):
                if queues.heads[other] == head:
                    rank, head = 1, NONE
                    break
        matched[at], queues.heads[at] = rank, head
    for at in range(1, state.waiting):
        request, rank, place = waiting[state.head + at], matched[at], at
        while place > 0 and matched[place - 1] > rank:
            waiting[state.head + place] = waiting[state.head + place - 1]
            matched[place] = matched[place - 1]
            place -= 1
        waiting[state.head + place], matched[place] = request, rank


@callable_in_kernels
def plan_outputs(tree: PrefixTree, requests: Records, queues: ServerQueues) -> None:
    """Plan the next token of every running request, except those whose last token is in flight."""
    state, running, place = queues.state[0], queues.running, (queues.state[0].made + 1) & 1
    batch, size, count = queues.batches[place], tree.state[0].block_size, 0
    for at in range(state.running):
        record = requests[running[at]]
        in_flight = state.in_flight and record.batch == state.made
        if not (in_flight and record.generated + 1 >= record.outputs):
            running[count] = running[at]
            count += 1
    complete_soon = state.running - count
    state.running = count
    if complete_soon > 0:
        state.full = False
    if count == 0:
        state.full = False
        return
    if make_room(tree, blocks_begun(tree, requests, queues)):
        state.ratio = max(state.ratio - DECAY, LAST_RATIO)
    elif complete_soon > 0:
        return
    else:
        retract(tree, requests, queues)
    if state.page > 1:
        make_room(tree, state.running)
    batch.size = state.running
    batch.cost_s = state.decode_base_s + state.decode_token_s * state.running
    for at in range(state.running):
        request = running[at]
        record = requests[request]
        take(tree, requests, request, 1 if record.computed % size == 0 else 0)
        batch.cost_s += state.decode_context_token_s * record.computed
        record.computed += 1
        record.batch = state.made + 1
        queues.members[place, at] = request


@callable_in_kernels
def blocks_begun(tree: PrefixTree, requests: Records, queues: ServerQueues) -> int:
    """Return how many running requests begin a new block with their next token."""
    count = 0
    for at in range(queues.state[0].running):
        if requests[queues.running[at]].computed % tree.state[0].block_size == 0:
            count += 1
    return count


@callable_in_kernels
def retract(tree: PrefixTree, requests: Records, queues: ServerQueues) -> None:
    """Retract running requests, fewest outputs first, until the others have room or one is left."""
    state, running = queues.state[0], queues.running
    for at in range(1, state.running):
        request, place = running[at], at
        while place > 0 and keeps_longer(requests, request, running[place - 1]):
            running[place] = running[place - 1]
            place -= 1
        running[place] = request
    while state.running > 1:
        state.running -= 1
        request = running[state.running]
        record = requests[request]
        leave(tree, requests, request)
        record.computed = 0
        record.retracted = True
        record.retractions += 1
        make_room(tree, blocks_of(tree, state.running * RETRACTED_TOKENS))
        wait(queues, request)
        if make_room(tree, blocks_begun(tree, requests, queues)):
            break
    state.full = False
    generated = outputs = 0
    for at in range(state.running):
        generated += requests[running[at]].generated + RETRACTED_TOKENS
        outputs += requests[running[at]].outputs
    state.ratio = min(1.0, generated / (outputs + 1))


@callable_in_kernels
def keeps_longer(requests: Records, request: int, other: int) -> bool:
    """Return whether `request` is retracted after `other`: more outputs, else a shorter prompt."""
    first, second = requests[request], requests[other]
    if first.generated != second.generated:
        return first.generated > second.generated  # type: ignore[no-any-return]
    return first.prompt < second.prompt  # type: ignore[no-any-return]


@callable_in_kernels
def complete(tree: PrefixTree, requests: Records, queues: ServerQueues) -> None:
    """End the batch in flight: requests get one output token, and complete requests leave."""
    place = queues.state[0].made & 1
    batch, members = queues.batches[place], queues.members[place]
    for at in range(batch.size):
        request = members[at]
        record = requests[request]
        if np.isnan(record.begin_s):
            record.begin_s = batch.begin_s
        if record.retracted or request == batch.chunked:
            continue
        known = record.prompt + record.generated
        record.generated += 1
        if record.generated == 1:
            record.token_s = batch.end_s
        if record.generated == record.outputs:
            record.end_s = batch.end_s
            checkpoint(tree, requests, request, record.blocks)
            leave(tree, requests, request)
        elif batch.prompts:
            blocks = whole_blocks(tree, record, known)
            checkpoint(tree, requests, request, blocks)
