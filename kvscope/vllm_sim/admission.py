"""The waiting queue, and the admission of its first request.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_manager.py (KVCacheManager.get_computed_blocks,
allocate_slots) and vllm/v1/core/sched/scheduler.py (Scheduler.schedule).
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.core.prefix import write_path
from kvscope.policies.base import ADAPT_EVERY, RECENT
from kvscope.replay.kernels.loop import advance_table
from kvscope.replay.structures.recent import note_recent, sort_recent
from kvscope.vllm_sim.group_hits import count_written, look_up
from kvscope.vllm_sim.groups import allocate, cut, fits, hash_planned, known_tokens, use_hits
from kvscope.vllm_sim.state import NONE, Machine


@called_by_kernels
def arrive(machine: Machine) -> None:
    """Queue the requests that have arrived by now, and switch to the policy table in force."""
    requests, state = machine.requests, machine.state[0]
    while state.arrived < len(requests) and requests[state.arrived].arrival_s <= state.now_s:
        state.arrived += 1
    state.period = advance_table(machine.tables, state.period, state.arrived)


@callable_in_kernels
def peek_waiting(machine: Machine) -> int:
    """Return the first request of the waiting queue, NONE if it is empty; write its path.

    Preempted requests come first, the latest in front; then the others by arrival. Oversized ones
    are rejected. The nodes of its path go into the last row of `path`, kept for the front request.
    """
    requests, state = machine.requests, machine.state[0]
    if state.preempted > 0:
        request = machine.preempted[state.preempted - 1]
    else:
        while state.next < state.arrived and requests[state.next].oversized:
            state.next += 1
            state.finished += 1
        if state.next == state.arrived:
            return NONE
        request = state.next
    if state.front != request:
        row = machine.path[len(machine.path) - 1]
        record = requests[request]
        write_path(machine.parents, record.leaf, row, 0, record.length)
        state.front = request
    return request  # type: ignore[no-any-return]


@callable_in_kernels
def write_front(machine: Machine, request: int) -> None:
    """Make a waiting request `front` (STATE): write its path into the last row of `path`."""
    if machine.state[0].front != request:
        row, record = machine.path[len(machine.path) - 1], machine.requests[request]
        write_path(machine.parents, record.leaf, row, 0, record.length)
        machine.state[0].front = request


@called_by_kernels
def enter_running(machine: Machine, request: int) -> None:
    """Move the first request of the waiting queue to a slot of the running ones, with its path."""
    record, path, state = machine.requests[request], machine.path, machine.state[0]
    record.slot = machine.slots[state.max_num_seqs - state.running - 1]
    machine.running[state.running] = request
    state.running += 1
    if state.preempted > 0:
        state.preempted -= 1
    else:
        state.next += 1
    for at in range(record.length):
        path[record.slot, at] = path[len(path) - 1, at]


@callable_in_kernels
def note_admission(machine: Machine, request: int, hits: int) -> None:
    """Record hits (blocks) and time of a request's first admission."""
    record, state = machine.requests[request], machine.state[0]
    record.hits = hits
    record.admitted_s = state.now_s
    state.admitted += 1


@called_by_kernels
def learn(machine: Machine, number: int, uncached_tokens: int) -> None:
    """Let an adaptive policy learn from a request's uncached tokens.

    `number` is the count of requests that were admitted for the first time before this one.
    """
    if machine.state[0].adaptive and machine.functions.adapts(machine.p):
        note_recent(machine.recent, number, uncached_tokens)
        if (number + 1) % ADAPT_EVERY == 0:
            end = sort_recent(machine.recent, number + 1)
            machine.functions.adapt(machine.recent[RECENT:end], machine.p)


@callable_in_kernels
def look_up_front(machine: Machine, request: int) -> int:
    """Return the hit (tokens) of the waiting queue's front request, and record its `junction`.

    The junction is the longest prefix (tokens) that only some groups cache; 0: none beyond the hit.
    """
    record, size = machine.requests[request], machine.state[0].block_size
    look = record.look if record.hits == NONE else (known_tokens(machine, request) - 1) // size
    hit, record.junction = look_up(machine, look * size)
    return hit


@callable_in_kernels
def note_written(machine: Machine, request: int, hit: int) -> None:
    """Record what a request with a `hit` (tokens) would hit had nothing been evicted.

    Its field `written` is the number of its leading blocks that were ever cached, `kept` the same,
    or for a hybrid model the hit (blocks) of a look-up in which evicted blocks count. This look-up
    leaves `cached_tokens` of the first SPEC as it was: `use_hits` reads it to pin the real hit.
    """
    record, state = machine.requests[request], machine.state[0]
    record.written = max(count_written(machine, record.look), hit // state.block_size)
    record.kept = record.written
    if state.hybrid:
        leading = machine.specs[0].cached_tokens
        kept, _ = machine.grouped.look_up(machine, record.look * state.block_size, True)
        record.kept = kept // state.block_size
        record.written = max(record.written, record.kept)
        machine.specs[0].cached_tokens = leading


@called_by_kernels
def admit(machine: Machine, request: int, budget: int) -> int:
    """Try to admit the first waiting request, given a budget of tokens.

    Return the tokens to compute in the step being planned; 0 if the request has to wait. Hits are
    recorded at a request's first admission only.
    """
    record, first = machine.requests[request], machine.requests[request].hits == NONE
    hit = look_up_front(machine, request)
    tokens = cut(machine, request, hit, min(known_tokens(machine, request) - hit, budget))
    if tokens == 0 or not fits(machine, request, hit, hit, hit + tokens, 0):
        return 0
    enter_running(machine, request)
    if first:
        note_written(machine, request, hit)
    use_hits(machine, request, hit, hit)
    record.computed = hit
    allocate(machine, request, hit + tokens, True)
    hash_planned(machine, request, hit + tokens)
    if first:
        learn(machine, machine.state[0].admitted, record.prompt - hit)
        note_admission(machine, request, hit // machine.state[0].block_size)
    return tokens
