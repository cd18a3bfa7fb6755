"""Replay of lane policies, which keep blocks in a few queues (lanes), the least recent first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Float64s, Int32s, Int64s
from kvscope.core.jit import Function, Referenced, callable_in_kernels, lowest_bit, once
from kvscope.policies.base import ADAPT_EVERY, EARLY, RECENT, LanePolicy, PathPolicy, Turn
from kvscope.replay.kernels.loop import (
    EvictionOrder,
    Now,
    observe_nothing,
    replay_loop,
    turn_of,
)
from kvscope.replay.structures.bitset import add, discard, empty_sets, least, words_for
from kvscope.replay.structures.recent import note_recent, nothing_recent, sort_recent
from kvscope.replay.structures.runs import (
    END,
    FIRST,
    CachedRuns,
    empty_runs,
    may_shrink,
    release,
    shrink,
)
from kvscope.replay.traffic import Traffic

_ONE, _WORD = np.uint64(1), np.uint64(63)


class Lanes(NamedTuple):
    """The state of a lane policy: `queues` has a set (bitset.py) of requests for each lane.

    `busy` has a bit for each lane, set where its queue may have members. `scored` (lanes x 3)
    caches scores that change in steps: a lane's oldest request, its score, and the time (s) until
    which that holds. `places` (R x 2) has the depth where the lane of each run's deepest block
    begins, and that lane; `recent` the uncached tokens of recent requests (recent.py). The last
    four are flags (0 or 1): `selects`, the policy does not admit every turn; `adaptive`, it may
    adapt to `recent`; `timeless`, scores never change with time; `stepwise`, at certain idle times
    only.
    """

    runs: CachedRuns
    queues: NDArray[np.uint64]
    busy: NDArray[np.uint64]
    scored: Float64s
    places: Int32s
    recent: Int64s
    selects: int
    adaptive: int
    timeless: int
    stepwise: int


def empty_lanes(policy: LanePolicy, traffic: Traffic, lanes: int) -> Lanes:
    """Return an empty cache with this number of `lanes`."""
    requests, leaf = len(traffic.leaf), policy.evicts == "leaf"
    return Lanes(
        empty_runs(traffic, leaf, climb=leaf),
        empty_sets(lanes, requests),
        np.zeros(words_for(lanes), dtype=np.uint64),
        np.full((lanes, 3), -1.0),
        np.zeros((requests, 2), dtype=np.int32),
        nothing_recent(),
        int(policy.admits is not LanePolicy.admits),
        int(policy.adaptive),
        int(policy.timeless),
        int(policy.stepwise),
    )


class LaneFunctions(NamedTuple):
    """The functions of a lane policy, each called by its address; names as in `LanePolicy`."""

    admits: Function
    place: Function
    score: Function
    next_step_s: Function
    adapts: Function
    adapt: Function


@once
def lane_functions(policy: type[LanePolicy]) -> LaneFunctions:
    """Return the functions of a lane policy, for calls by address."""
    return LaneFunctions(
        admits=Function(policy.admits, PathPolicy.admits),
        place=Function(policy.place, LanePolicy.place),
        score=Function(policy.score, LanePolicy.score),
        next_step_s=Function(policy.next_step_s, LanePolicy.next_step_s),
        adapts=Function(policy.adapts, LanePolicy.adapts),
        adapt=Function(policy.adapt, LanePolicy.adapt),
    )


@once
def referenced_functions(policy: type[LanePolicy]) -> Referenced:
    """Return `lane_functions` for kernels, which take them by one address; kept for the process."""
    return Referenced(lane_functions(policy))


class Calls(NamedTuple):
    """How kernels call the functions of a lane policy, and `observe` after each request.

    With `steps`, a lane's score is kept until its oldest request changes or has been idle for
    `next_step_s`; if that is infinite, until the table changes. Else each eviction computes it.
    """

    admits: Callable[..., bool]
    place: Callable[..., tuple[int, int]]
    score: Callable[..., float]
    next_step_s: Callable[..., float]
    observe: Callable[..., None]
    steps: bool


def calls_of(policy: type[LanePolicy]) -> Calls:
    """Return how kernels call a lane policy: by address, so that policies share a kernel.

    Two kinds of policies, which calls by address slow down by 20 % or more, are compiled into
    kernels of their own: a single lane that admits every turn, and scores that change all the time.
    """
    single = policy.lanes == 1 and not policy.by_category and policy.admits is LanePolicy.admits
    if single or not (policy.timeless or policy.stepwise):
        return _compiled_in(policy.admits, policy.place, policy.score)
    return calls_by_address()


@once
def _compiled_in(
    admits: Callable[..., bool],
    place: Callable[..., tuple[int, int]],
    score: Callable[..., float],
) -> Calls:
    for function in (admits, place, score):
        callable_in_kernels(function)

    @callable_in_kernels
    def admits_turn(state: Lanes, turn: Turn, now: Now) -> bool:
        return admits(turn, now.p, now.table)

    @callable_in_kernels
    def place_end(turn: Turn, end: int, now: Now) -> tuple[int, int]:
        return place(turn, end, now.block_size, now.p)

    @callable_in_kernels
    def score_lane(lane: int, idle_s: float, now: Now) -> float:
        return score(lane, idle_s, now.p, now.table)

    return Calls(admits_turn, place_end, score_lane, no_step, observe_nothing, steps=False)


@callable_in_kernels
def no_step(state: Any, idle_s: float, now: Now) -> float:
    """Return the present idle time `idle_s` as that of the next step: scores hold for no time."""
    return idle_s


@once
def calls_by_address() -> Calls:
    """Return how kernels call the functions of any lane policy by their addresses."""

    @callable_in_kernels
    def admits(state: Lanes, turn: Turn, now: Now) -> bool:
        return state.selects == 0 or now.functions.admits(turn, now.p, now.table)

    @callable_in_kernels
    def place(turn: Turn, end: int, now: Now) -> tuple[int, int]:
        begin, lane = now.functions.place(turn, end, now.block_size, now.p)
        return begin, lane

    @callable_in_kernels
    def score(lane: int, idle_s: float, now: Now) -> float:
        return now.functions.score(lane, idle_s, now.p, now.table)  # type: ignore[no-any-return]

    @callable_in_kernels
    def next_step_s(state: Lanes, idle_s: float, now: Now) -> float:
        if state.timeless != 0:
            return np.inf
        if state.stepwise == 0:
            return idle_s
        return now.functions.next_step_s(idle_s)  # type: ignore[no-any-return]

    @callable_in_kernels
    def observe(state: Lanes, number: int, uncached_tokens: int, now: Now) -> None:
        if state.adaptive == 0 or not now.functions.adapts(now.p):
            return
        note_recent(state.recent, number, uncached_tokens)
        if (number + 1) % ADAPT_EVERY == 0:
            end = sort_recent(state.recent, number + 1)
            now.functions.adapt(state.recent[RECENT:end], now.p)

    return Calls(admits, place, score, next_step_s, observe, steps=True)


def lanes_kernel(policy: type[LanePolicy]) -> Callable[..., Any]:
    """Return the kernel that replays a lane policy.

    It takes the arguments of `replay_loop`: traffic, segments, empty `Lanes`, settings, and an
    array (R) for the leading blocks that each request hits. It returns the number of blocks
    evicted.
    """
    return _kernel_of(lanes_order(calls_of(policy)))


# The tier kernel (tiers.py) with one tier takes 1.2 to 1.4 times as long as this one.
_kernel_of = once(replay_loop)


@callable_in_kernels
def _lane_of(state: Lanes, request: int) -> int:
    return int(state.places[request, 1])


@callable_in_kernels
def _queue(state: Lanes, request: int) -> None:
    """Add a request to the lane of its run's deepest block (`places`)."""
    lane = _lane_of(state, request)
    add(state.queues, words_for(len(state.places)), lane, request)
    state.busy[lane >> 6] |= _ONE << (np.uint64(lane) & _WORD)


@callable_in_kernels
def _join(state: Lanes, traffic: Traffic, request: int, now: Now) -> None:
    _queue(state, request)


@callable_in_kernels
def _forget_scores(state: Lanes, traffic: Traffic, request: int, now: Now) -> None:
    for lane in range(len(state.scored)):
        state.scored[lane, 0] = -1.0
        state.scored[lane, 2] = -1.0


@once
def lanes_order(calls: Calls) -> EvictionOrder:
    """Return the eviction order of the lane policies that kernels call as in `calls`.

    A lane is a set of the requests whose runs end in it. A run changes lane when it shrinks past
    the depth where the lane begins, and leaves all lanes while a child run continues from its end.
    """
    admits_turn, place, score = calls.admits, calls.place, calls.score
    next_step_s, steps = calls.next_step_s, calls.steps

    @callable_in_kernels
    def admits(state: Lanes, traffic: Traffic, request: int, now: Now) -> bool:
        return admits_turn(state, turn_of(traffic, request), now)

    @callable_in_kernels
    def enter(state: Lanes, traffic: Traffic, request: int, now: Now) -> None:
        """Store in `places` the lane of a run's deepest block, and the depth where it begins.

        If tables have a row for each part of a path (divided at `Traffic.cuts`), the lane is that
        of the block's part, and begins no earlier than that part.
        """
        cuts, end = traffic.cuts, state.runs.of[request, END]
        part = cuts.shape[1]
        while part > 0 and end <= cuts[request, part - 1]:
            part -= 1
        cut = cuts[request, part - 1] if part > 0 else 0
        begin, lane = place(turn_of(traffic, request, part), end, now)
        state.places[request, 0], state.places[request, 1] = max(begin, cut), lane

    @callable_in_kernels
    def worth_of(state: Lanes, traffic: Traffic, lane: int, head: int, now: Now) -> float:
        """Return the score of a lane's oldest block, in `head`'s run; 0 if it is the only lane."""
        if len(state.queues) == 1:
            return 0.0
        scored = state.scored
        due = not steps or now.now_s >= scored[lane, 2]
        if due or (scored[lane, 0] != head and scored[lane, 2] != np.inf):
            idle_s = now.now_s - traffic.arrival_s[head]
            scored[lane, 0], scored[lane, 1] = head, score(lane, idle_s, now)
            if steps:
                step_s = next_step_s(state, idle_s, now)
                scored[lane, 2] = traffic.arrival_s[head] + step_s * EARLY
        return float(scored[lane, 1])

    @callable_in_kernels
    def lowest(state: Lanes, traffic: Traffic, now: Now) -> int:
        """Return the request whose run evicts the next block, -1 if there is none."""
        of, queues, words = state.runs.of, state.queues, words_for(len(state.places))
        victim, least_worth = -1, np.inf
        for word in range(len(state.busy)):
            busy = state.busy[word]
            while busy != 0:
                bit = lowest_bit(busy)
                busy ^= _ONE << np.uint64(bit)
                lane = (word << 6) + bit
                head = least(queues, words, lane)
                while head >= 0 and of[head, FIRST] >= of[head, END]:  # its blocks were taken over
                    discard(queues, words, lane, head)
                    head = least(queues, words, lane)
                if head < 0:
                    state.busy[word] ^= _ONE << np.uint64(bit)
                    continue
                worth = worth_of(state, traffic, lane, head, now)
                if victim < 0 or worth < least_worth or (worth == least_worth and head < victim):
                    victim, least_worth = head, worth
        return victim

    @callable_in_kernels
    def evict_from(state: Lanes, traffic: Traffic, request: int, now: Now, most: int) -> int:
        """Evict up to `most` of a run's blocks, as far as they are in its deepest block's lane."""
        runs, queues, words = state.runs, state.queues, words_for(len(state.places))
        lane, begin = _lane_of(state, request), state.places[request, 0]
        first = runs.of[request, FIRST]
        count = shrink(runs, request, most, max(first, begin))
        if first < runs.of[request, END] <= begin:
            enter(state, traffic, request, now)
        if runs.of[request, END] == first:
            discard(queues, words, lane, request)
            freed = release(runs, request)
            if freed >= 0:
                _queue(state, freed)
        elif not may_shrink(runs, request):
            discard(queues, words, lane, request)
        elif _lane_of(state, request) != lane:
            discard(queues, words, lane, request)
            _queue(state, request)
        return count

    @callable_in_kernels
    def evict(state: Lanes, traffic: Traffic, request: int, now: Now, most: int) -> int:
        victim = lowest(state, traffic, now)
        return evict_from(state, traffic, victim, now, most) if victim >= 0 else 0

    @callable_in_kernels
    def expire(state: Lanes, traffic: Traffic, request: int, now: Now) -> int:
        blocks = max(state.runs.of[request, END] - state.runs.of[request, FIRST], 0)
        left = blocks
        while left > 0:
            left -= evict_from(state, traffic, request, now, left)
        return int(blocks)

    return EvictionOrder(
        admits,
        enter=enter,
        join=_join,
        evict=evict,
        expire=expire,
        retable=_forget_scores,
        observe=calls.observe,
    )
