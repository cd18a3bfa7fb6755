"""Fast-forward over steps in which every running request decodes one token and nothing else.

Most steps of an engine are of this kind: only counters, times and now and then a block change. The
functions add up the same numbers in the same order as `scheduler`: all results are bit-identical.
"""

from __future__ import annotations

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.vllm_sim.admission import arrive
from kvscope.vllm_sim.groups import extend, free_copied, quiet_until
from kvscope.vllm_sim.state import ALWAYS, NONE, Machine

WORTHWHILE = 3  # steps in one go: fewer take as long one by one


@callable_in_kernels
def next_arrival_s(machine: Machine) -> float:
    """Return when the next request arrives (s), infinity if none does."""
    arrived = machine.state[0].arrived
    return machine.requests[arrived].arrival_s if arrived < len(machine.requests) else float("inf")


@callable_in_kernels
def admits_any(machine: Machine) -> bool:
    """Return whether the next step has a free sequence and token budget for another request."""
    state = machine.state[0]
    tokens = state.running * (1 + state.draft_tokens)
    return state.running < state.max_num_seqs and tokens < state.max_num_batched_tokens  # type: ignore[no-any-return]


@callable_in_kernels
def is_queue_empty(machine: Machine) -> bool:
    """Return whether no request waits."""
    state = machine.state[0]
    return state.preempted == 0 and state.next == state.arrived  # type: ignore[no-any-return]


@callable_in_kernels
def decode_steps(machine: Machine, coming: int) -> int:
    """Return for how many steps every running request decodes without reaching its last token.

    0 if fewer than WORTHWHILE, or unless each decodes next with `coming` (0, 1) outputs in flight.
    """
    steps = ALWAYS
    for at in range(machine.state[0].running):
        record = machine.requests[machine.running[at]]
        known = record.prompt + record.generated
        decodes = record.generated > 0 and record.computed == known + coming - 1
        if record.coming != coming or not decodes:
            return 0
        steps = min(steps, record.outputs - 1 - record.generated)
        if steps < WORTHWHILE:
            return 0
    return steps


@callable_in_kernels
def set_progress(machine: Machine, request: int, computed: int, coming: int) -> None:
    """Set a decoding request's counters to `computed` tokens: those before the next step.

    Sets the fields `computed`, `generated` (known outputs), `planned_step` and `computed_before`.
    `coming` (0 or 1) of its outputs are in flight before that step: being computed, not yet known.
    """
    record, steps = machine.requests[request], machine.state[0].steps
    record.computed = computed
    record.generated = computed + 1 - coming - record.prompt
    record.planned_step, record.computed_before = steps, computed - 1


@callable_in_kernels
def decode_cost_s(machine: Machine, step: int) -> float:
    """Return the time (s) of step `step` (from 0) of a fast-forward, by the same sums as `plan`."""
    state, computed = machine.state[0], machine.batch[1]
    cost_s = state.base_s
    for at in range(state.running):
        before = computed[at] + step
        cost_s += state.decode_token_s + state.decode_context_token_s * before
    return cost_s + (state.decode_base_s - state.base_s)  # type: ignore[no-any-return]


@callable_in_kernels
def end_decodes(machine: Machine, coming: int, steps: int) -> None:
    """Advance running requests by `steps` tokens from their computed tokens in row 1 of `batch`.

    Both rows of `batch` then list the running requests, `coming` (0, 1) outputs of each in flight.
    """
    for at in range(machine.state[0].running):
        request = machine.running[at]
        if steps > 0:
            set_progress(machine, request, machine.batch[1, at] + steps, coming)
            machine.yields[0, at] = True
            machine.yields[1, at] = True
        machine.batch[0, at] = request
        machine.batch[1, at] = request


@callable_in_kernels
def first_change(machine: Machine, coming: int) -> int:
    """Return the number of steps until any running request's blocks change.

    Fill row 0 of `batch` with each request's number of steps, row 1 with its computed tokens. NONE
    if the end of a step may hash blocks, too. `coming` (0, 1) outputs of each are in flight.
    """
    running, changes, computed = machine.running, machine.batch[0], machine.batch[1]
    first = ALWAYS
    for at in range(machine.state[0].running):
        computed[at] = machine.requests[running[at]].computed
        quiet = quiet_until(machine, running[at], coming)
        if quiet == NONE:
            return NONE
        changes[at] = quiet - computed[at]
        first = min(first, changes[at])
    return first


@callable_in_kernels
def change_blocks(machine: Machine, coming: int, step: int) -> int:
    """Allocate, hash and free the blocks due to change at step `step` (from 0) of a fast-forward.

    Return the next step with a change; NONE if too few blocks are free, and then nothing changes.
    `coming` (0, 1) outputs of each request are in flight.
    """
    state, running = machine.state[0], machine.running
    changes, computed = machine.batch[0], machine.batch[1]
    due = 0
    for at in range(state.running):
        due += changes[at] <= step
    if due * len(machine.groups) > state.free:
        return NONE
    first = ALWAYS
    for at in range(state.running):
        if changes[at] <= step:
            set_progress(machine, running[at], computed[at] + step, coming)
            extend(machine, running[at], 1)
            changes[at] = quiet_until(machine, running[at], coming) - computed[at]
        first = min(first, changes[at])
    free_copied(machine)
    return first


@called_by_kernels
def fast_forward(machine: Machine, steps: int, until_s: float, settled: bool) -> int:
    """Run decode-only steps until another kind of step is due, and return their number.

    At most `steps`, none at `until_s` or later. The last step must have decoded one token of each
    running request; `settled`: it also tried to admit waiting requests, and none has ended since.
    """
    state, coming = machine.state[0], int(machine.state[0].in_progress > 0)
    admits, empty = admits_any(machine), is_queue_empty(machine)
    # Waiting requests go on waiting until a block is freed, or hashed, which they may hit.
    # States are hit one step later than they are hashed.
    if admits and not empty and (not settled or state.state_tokens > 0):
        return 0
    steps = min(steps, decode_steps(machine, coming))
    if steps < WORTHWHILE:
        return 0
    change = first_change(machine, coming)
    if change == NONE or (admits and not empty):
        steps = min(steps, max(change, 0))
    arrival_s, before, step = next_arrival_s(machine), state.steps, 0
    while step < steps and state.now_s < until_s:
        if arrival_s <= state.now_s:
            if admits and empty:
                break
            arrive(machine)
            arrival_s = next_arrival_s(machine)
        if step >= change:
            change = change_blocks(machine, coming, step)
            if change == NONE:
                break
        state.cost_s = decode_cost_s(machine, step)
        if coming:
            state.now_s = state.end_s
        state.end_s = state.now_s + state.cost_s
        if not coming:
            state.now_s = state.end_s
        step += 1
        state.steps = before + step
    end_decodes(machine, coming, step)
    return step
