"""The steps of an engine: which requests compute how many tokens next, and which finish.

Source: vLLM 0.32.0, vllm/v1/core/sched/scheduler.py (Scheduler.schedule, update_from_output),
vllm/v1/core/sched/async_scheduler.py (AsyncScheduler) and vllm/v1/engine/core.py (EngineCore.step,
step_with_batch_queue). First come, first served; text prompts; without accepted drafts, priorities
or adapters.
"""

from __future__ import annotations

import numpy as np

from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.vllm_sim.admission import admit, arrive, peek_waiting
from kvscope.vllm_sim.fast_forward import WORTHWHILE, fast_forward
from kvscope.vllm_sim.groups import cut, extend, free_copied, hash_filled, release
from kvscope.vllm_sim.pool import expire
from kvscope.vllm_sim.state import NONE, Machine


@callable_in_kernels
def plan(machine: Machine, request: int, tokens: int) -> None:
    """Plan to compute `tokens` more tokens of a request in the next step."""
    record, state = machine.requests[request], machine.state[0]
    before = record.computed
    last = before + tokens == record.prompt + record.generated + record.coming
    record.computed = before + tokens
    machine.batch[1, state.planned] = request
    machine.yields[1, state.planned] = last
    state.planned += 1
    state.budget -= min(state.budget, tokens + record.drafts)
    record.drafted = record.drafts
    record.drafts = state.draft_tokens if last else 0
    if last:
        record.coming += 1
    if before >= record.prompt and tokens == 1:
        state.cost_s += state.decode_token_s + state.decode_context_token_s * before
    else:
        pairs = tokens * (before + tokens / 2)
        state.prefill_tokens += tokens
        state.cost_s += state.prefill_token_s * tokens + state.prefill_pair_s * pairs


@callable_in_kernels
def begin_plan(machine: Machine) -> None:
    """Empty the planned batch, and reset its token budget, prompt tokens and cost (s)."""
    state = machine.state[0]
    state.planned = 0
    state.budget = state.max_num_batched_tokens
    state.prefill_tokens = 0
    state.cost_s = state.base_s


@callable_in_kernels
def cost_plan(machine: Machine) -> None:
    """Add to the planned step's cost (s) what depends on all its prompts; count it unless empty."""
    state = machine.state[0]
    if state.prefill_tokens == 0:
        state.cost_s += state.decode_base_s - state.base_s
    else:
        computed_s = state.prefill_token_s * state.prefill_tokens
        state.cost_s += max(0.0, state.floor_s - computed_s)
    if state.planned > 0:
        state.steps += 1


@callable_in_kernels
def preempt(machine: Machine) -> None:
    """Preempt the youngest running request, and put it in front of the waiting queue."""
    state = machine.state[0]
    request = machine.running[state.running - 1]
    release(machine, request, False)
    record = machine.requests[request]
    record.computed = 0
    record.coming = 0
    record.drafts = 0
    record.preemptions += 1
    machine.preempted[state.preempted] = request
    state.preempted += 1


@called_by_kernels
def plan_running(machine: Machine) -> bool:
    """Plan for running requests; return True if none was preempted.

    If too few blocks are free, the youngest request is preempted, possibly the one that needs them.
    A request whose last output token is in flight gets no step.
    """
    state, undisturbed, at = machine.state[0], True, 0
    while at < state.running and state.budget > 0:
        request = machine.running[at]
        record = machine.requests[request]
        at += 1
        if record.coming > 0 and record.generated + record.coming >= record.outputs:
            continue
        known = record.prompt + record.generated
        tokens = min(known + record.coming - record.computed, state.budget)
        tokens = cut(machine, request, record.computed, tokens)
        if tokens == 0:
            continue
        while record.slot != NONE and not extend(machine, request, tokens):
            preempt(machine)
            undisturbed = False
        if record.slot == NONE:
            break
        plan(machine, request, tokens)
    return undisturbed


@callable_in_kernels
def schedule(machine: Machine) -> bool:
    """Plan a step; return True if no request was preempted. Only then are new requests admitted."""
    state = machine.state[0]
    begin_plan(machine)
    undisturbed = plan_running(machine)
    while undisturbed and state.budget > 0 and state.running < state.max_num_seqs:
        request = peek_waiting(machine)
        if request == NONE:
            break
        tokens = admit(machine, request, state.budget)
        if tokens == 0:
            break
        plan(machine, request, tokens)
    free_copied(machine)
    cost_plan(machine)
    return undisturbed


@called_by_kernels
def complete(machine: Machine) -> None:
    """End the step in progress: its tokens become known, and complete requests finish."""
    state, before = machine.state[0], machine.state[0].running
    state.now_s = state.end_s
    for at in range(state.in_progress):
        if not machine.yields[0, at]:
            continue
        request = machine.batch[0, at]
        record = machine.requests[request]
        record.generated += 1
        if record.slot != NONE:
            record.coming -= 1
            hash_filled(machine, request, record.computed - record.coming, 1)
        if record.generated == 1:
            record.first_token_s = state.now_s
        if record.generated == record.outputs:
            record.finished_s = state.now_s
            state.finished += 1
            if record.slot != NONE:
                release(machine, request, True)
            else:
                leave_waiting(machine, request)
    state.in_progress = 0
    if state.running < before:
        compact_running(machine, before)


@callable_in_kernels
def leave_waiting(machine: Machine, request: int) -> None:
    """Remove a request that has finished or gets a slot from the stack of preempted ones."""
    stack, state = machine.preempted, machine.state[0]
    at = 0
    while stack[at] != request:
        at += 1
    state.preempted -= 1
    for place in range(at, state.preempted):
        stack[place] = stack[place + 1]


@callable_in_kernels
def compact_running(machine: Machine, before: int) -> None:
    """Remove finished requests from the first `before` entries of `running`."""
    count = 0
    for at in range(before):
        request = machine.running[at]
        if machine.requests[request].slot != NONE:
            machine.running[count] = request
            count += 1


@callable_in_kernels
def start(machine: Machine) -> None:
    """Make the planned step the step in progress, from now on.

    Sets when it ends (`end_s`) and when the next can be planned (`ready_s`), but not the time.
    """
    state, batch, yields = machine.state[0], machine.batch, machine.yields
    for at in range(state.planned):
        batch[0, at] = batch[1, at]
        yields[0, at] = yields[1, at]
    state.in_progress = state.planned
    state.end_s = state.now_s + state.cost_s
    launches = state.prefill_tokens > 0
    state.ready_s = state.now_s + min(state.launch_s, state.cost_s) if launches else 0.0


@callable_in_kernels
def decoded_alone(machine: Machine) -> bool:
    """Return whether the planned step decodes one token of each running request, and nothing else.

    False with a TTL, since each step then checks for expired blocks.
    """
    state = machine.state[0]
    all_planned = state.planned == state.running and state.running > 0
    return all_planned and state.prefill_tokens == 0 and state.ttl_s == np.inf  # type: ignore[no-any-return]


@called_by_kernels
def run_steps(machine: Machine, steps: int, finished: int, until_s: float) -> bool:
    """Run an engine with any policy: plan up to `steps` steps.

    Stop early once `finished` requests have finished or were rejected, or before a step that would
    be planned at `until_s` or later. Return False if nothing is left to do; requests that arrive at
    infinity, which a closed loop has yet to send, do not count.
    """
    state, requests = machine.state[0], machine.requests
    pause = waited = 0  # steps until the next try to go fast, and between the last two
    while steps > 0:
        planned_s = max(state.now_s, state.ready_s)
        if state.finished >= finished or planned_s >= until_s:
            break
        state.now_s = planned_s
        arrive(machine)
        if state.ttl_s < np.inf:
            expire(machine)
        undisturbed = schedule(machine)
        ended = state.finished
        if state.in_progress > 0:  # only where a step is planned before the last one ends
            complete(machine)
            start(machine)
        elif state.planned > 0:
            start(machine)
            if not state.overlapped:
                complete(machine)
        elif state.arrived < len(requests) and requests[state.arrived].arrival_s < np.inf:
            state.now_s = requests[state.arrived].arrival_s
        else:
            return False
        steps -= 1
        pause -= 1
        if pause < 0 and decoded_alone(machine) and steps > 0 and state.finished < finished:
            settled = undisturbed and state.finished == ended
            taken = fast_forward(machine, steps, until_s, settled)
            steps -= taken
            # Where requests end or change blocks in most steps, vain tries would cost a tenth.
            waited = 0 if taken >= WORTHWHILE else min(2 * waited + 1, 15)
            pause = waited
    return True
