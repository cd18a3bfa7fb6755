"""The steps of an engine: which requests compute how many tokens next, and what becomes of them.

Source: vLLM 0.32.0, vllm/v1/core/sched/scheduler.py (Scheduler.schedule, update_from_output),
vllm/v1/core/sched/async_scheduler.py (AsyncScheduler) and vllm/v1/engine/core.py (EngineCore.step,
step_with_batch_queue). First come, first served; text; no speculative decoding, no priorities, no
adapters, one kind of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from kvscope.core.jit import callable_in_kernels, kernel
from kvscope.policies.base import LanePolicy
from kvscope.vllm_sim.admission import (
    Grow,
    Release,
    admitter,
    blocks_for,
    front_of_line,
    grower,
    hash_blocks,
    preempter,
    releaser,
)
from kvscope.vllm_sim.eviction import Take, taker
from kvscope.vllm_sim.pool import expire
from kvscope.vllm_sim.state import NONE, Machine

Run: TypeAlias = Callable[..., Any]
Step: TypeAlias = Callable[[Machine], None]
Ask: TypeAlias = Callable[[Machine], bool]


@callable_in_kernels
def arrive(machine: Machine) -> None:
    """Let everybody into the waiting line who has arrived by now."""
    requests, since, state = machine.requests, machine.since, machine.state[0]
    while state.arrived < len(requests) and requests[state.arrived].arrival_s <= state.now_s:
        state.arrived += 1
    while state.period + 1 < len(since) and since[state.period + 1] < state.arrived:
        state.period += 1


@callable_in_kernels
def plan(machine: Machine, request: int, tokens: int) -> None:
    """Compute `tokens` more tokens of a request in the step being planned."""
    served, state = machine.requests[request], machine.state[0]
    before = served.computed
    last = before + tokens == served.prompt + served.generated + served.coming
    served.computed = before + tokens
    machine.batch[1, state.planned] = request
    machine.yields[1, state.planned] = last
    state.planned += 1
    state.budget -= tokens
    if last:
        served.coming += 1
    if before >= served.prompt and tokens == 1:
        state.cost_s += state.decode_token_s + state.decode_context_token_s * before
    else:
        pairs = tokens * (before + tokens / 2)
        state.cost_s += state.prefill_token_s * tokens + state.prefill_pair_s * pairs


def runners_planner(grow: Grow, preempt: Take, leaf: bool) -> Ask:
    """The function that plans for those who run; whether it went without sending anybody away.

    A request that needs a block where none is free sends the youngest one away, in the end itself.
    One whose last output is on its way needs nothing.
    """

    @callable_in_kernels
    def plan_runners(machine: Machine) -> bool:
        state, calm, at = machine.state[0], True, 0
        while at < state.running and state.budget > 0:
            request = machine.running[at]
            served = machine.requests[request]
            at += 1
            if served.coming > 0 and served.generated + served.coming >= served.outputs:
                continue
            known = served.prompt + served.generated
            tokens = min(known + served.coming - served.computed, state.budget)
            blocks = blocks_for(served.computed + tokens, state.block_size)
            while served.slot != NONE and blocks - served.held > state.free:
                preempt(machine)
                calm = False
            if served.slot == NONE:
                break
            # Most steps fill no block: a test here is much cheaper than a call.
            if blocks > served.held:
                grow(machine, request, blocks)
            filled = min(served.computed + tokens, known)
            if filled // state.block_size > served.hashed:
                hash_blocks(machine, request, filled, leaf)
            plan(machine, request, tokens)
        return calm

    return plan_runners


def scheduler(policy: type[LanePolicy], release: Release, leaf: bool) -> Step:
    """The function that plans one step: those who run, then, if nobody was sent away, new ones."""
    grow = grower(taker(policy, leaf))
    plan_runners = runners_planner(grow, preempter(release), leaf)
    let_in = admitter(policy, grow, leaf)

    @callable_in_kernels
    def schedule(machine: Machine) -> None:
        state = machine.state[0]
        state.planned = 0
        state.budget = state.max_num_batched_tokens
        state.cost_s = state.base_s
        calm = plan_runners(machine)
        while calm and state.budget > 0 and state.running < state.max_num_seqs:
            request = front_of_line(machine)
            if request == NONE:
                break
            tokens = let_in(machine, request, state.budget)
            if tokens == 0:
                break
            plan(machine, request, tokens)
        if state.planned > 0:
            state.steps += 1

    return schedule


def completer(release: Release, leaf: bool) -> Step:
    """The function that ends a step: its tokens are known, and who has got all of them leaves."""

    @callable_in_kernels
    def complete(machine: Machine) -> None:
        state, before = machine.state[0], machine.state[0].running
        state.now_s = state.end_s
        for at in range(state.in_progress):
            if not machine.yields[0, at]:
                continue
            request = machine.batch[0, at]
            served = machine.requests[request]
            served.generated += 1
            if served.slot != NONE:
                served.coming -= 1
                filled = served.computed - served.coming
                if filled // state.block_size > served.hashed:
                    hash_blocks(machine, request, filled, leaf)
            if served.generated == 1:
                served.first_token_s = state.now_s
            if served.generated == served.outputs:
                served.finished_s = state.now_s
                state.finished += 1
                if served.slot != NONE:
                    release(machine, request, True)
                else:
                    forget(machine, request)
        state.in_progress = 0
        if state.running < before:
            close_ranks(machine, before)

    return complete


@callable_in_kernels
def forget(machine: Machine, request: int) -> None:
    """Take a request out of the line that was sent away while its last token was on its way."""
    stack, state = machine.preempted, machine.state[0]
    at = 0
    while stack[at] != request:
        at += 1
    state.preempted -= 1
    for place in range(at, state.preempted):
        stack[place] = stack[place + 1]


@callable_in_kernels
def close_ranks(machine: Machine, before: int) -> None:
    """Fill the places of those who no longer run; there were `before` of them."""
    kept = 0
    for at in range(before):
        request = machine.running[at]
        if machine.requests[request].slot != NONE:
            machine.running[kept] = request
            kept += 1


@callable_in_kernels
def start(machine: Machine) -> None:
    """The planned step begins."""
    state, batch, yields = machine.state[0], machine.batch, machine.yields
    for at in range(state.planned):
        batch[0, at] = batch[1, at]
        yields[0, at] = yields[1, at]
    state.in_progress = state.planned
    state.end_s = state.now_s + state.cost_s


_STEPPERS: dict[tuple[type[LanePolicy], bool], Run] = {}


def stepper(policy: type[LanePolicy], leaf: bool) -> Run:
    """The kernel that runs an engine whose blocks leave by the rules of `policy`.

    Called as run(machine, steps, finished): plans up to so many steps, and stops early once that
    many requests are done with. False when there is nothing left to do. `leaf` as in
    `Policy.leaves`.
    """
    if (policy, leaf) not in _STEPPERS:
        _STEPPERS[policy, leaf] = _stepper(policy, leaf)
    return _STEPPERS[policy, leaf]


def _stepper(policy: type[LanePolicy], leaf: bool) -> Run:
    release = releaser(policy, leaf)
    schedule = scheduler(policy, release, leaf)
    complete = completer(release, leaf)

    @kernel
    def run(machine: Machine, steps: int, finished: int) -> bool:
        state, requests = machine.state[0], machine.requests
        for _ in range(steps):
            if state.finished >= finished:
                break
            arrive(machine)
            if state.ttl_s < np.inf:
                expire(machine, leaf)
            schedule(machine)
            if state.in_progress > 0:  # only where a step is planned before the last one ends
                complete(machine)
                start(machine)
            elif state.planned > 0:
                start(machine)
                if not state.overlapped:
                    complete(machine)
            elif state.arrived < len(requests):
                state.now_s = requests[state.arrived].arrival_s
            else:
                return False
        return True

    return run
