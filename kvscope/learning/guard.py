"""The guard: which of several candidates a policy goes by, judged by what each would compute.

Shadow caches replay the traffic as each candidate alone would have it and report to `Guard`: those
of a simulation (kvscope.learning.offline.shadow_replays), and in an engine those of `OnlineGuard`,
which a `GuardedLearner` has.
It counts neither seconds nor requests but how often the cache has been written anew: until then it
holds what it held before, whatever is in force.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from kvscope.learning.lanes import Scores
from kvscope.learning.learners import OnlineLearner, computed_blocks
from kvscope.learning.observer import Request, log
from kvscope.learning.prefixes import Key
from kvscope.learning.recent_blocks import (
    MOST_REQUESTS,
    PrefixMatch,
    RecentBlocks,
    TouchedSegments,
    remembered_requests,
)
from kvscope.learning.shadow_cache import Kind, ShadowCaches, ShadowRequest
from kvscope.policies.base import LanePolicy

FALLBACK = 0  # the candidate in force without evidence for another: LRU

INTERVAL_SHARE, INTERVAL_REQUESTS = 1 / 8, 16
LEAST_INTERVALS = 8
GAIN_INTERVALS, LOSS_INTERVALS = 16, 8  # after which evidence counts half
DEVIATIONS = 2.5
_KEEP_GAIN, _KEEP_LOSS = 0.5 ** (1 / GAIN_INTERVALS), 0.5 ** (1 / LOSS_INTERVALS)

MOST_WAITING = 1024
PATIENCE_S = 300.0
AT_ONCE = 4  # requests served per event: an engine's step must not wait for a crowd


def interval_blocks(capacity_blocks: int) -> float:
    """Return the blocks that some candidate computes in an interval, of 16 requests at least."""
    return INTERVAL_SHARE * capacity_blocks


class Guard:
    """Decides which candidate is in force, by the tokens that shadows computed in each interval.

    A candidate's gain is what the fallback computed more than it. It is summed with weights that
    halve every 16 intervals, and in `lately` every 8. One whose gain exceeds 2.5 standard
    deviations of that sum, intervals taken as independent of mean zero, is taken up, the one with
    the largest gain first. It is given up once its gain or its late gain is below zero. Nothing
    changes within the first 8 intervals: the shadows fill.

    While it is in force, a candidate's losses exceed its gains by 8 intervals' tokens at the most,
    from whenever they are counted: its late gain is no more than that of an endless row of the best
    intervals, and 8 of the worst ones cancel that.
    """

    def __init__(self, candidates: int) -> None:
        self.now = FALLBACK
        self.gain, self.square, self.lately = ([0.0] * candidates for _ in range(3))
        self._intervals = 0

    def judge(self, computed: Sequence[float]) -> bool:
        """Add what each candidate computed in an interval; return whether another is in force."""
        gain, square, lately = self.gain, self.square, self.lately
        for at, tokens in enumerate(computed):
            more = computed[FALLBACK] - tokens
            gain[at] = _KEEP_GAIN * gain[at] + more
            square[at] = _KEEP_GAIN * _KEEP_GAIN * square[at] + more * more
            lately[at] = _KEEP_LOSS * lately[at] + more
        self._intervals += 1
        if self._intervals < LEAST_INTERVALS:
            return False
        before = self.now
        if gain[before] < 0 or lately[before] < 0:
            self.now = FALLBACK
        sure = [at for at in range(len(gain)) if lately[at] >= 0 and gain[at] > self.deviation(at)]
        best = max(sure, key=gain.__getitem__, default=FALLBACK)
        if self.now == FALLBACK or gain[best] > gain[self.now]:
            self.now = best
        return self.now != before

    def deviation(self, candidate: int) -> float:
        """Return 2.5 standard deviations of a candidate's gain."""
        return DEVIATIONS * math.sqrt(self.square[candidate])

    def forget(self) -> None:
        """Drop what was computed until now; the candidate stays in force."""
        for sums in (self.gain, self.square, self.lately):
            sums[:] = [0.0] * len(sums)
        self._intervals = 0


class _Intervals:
    """Adds up what each candidate computed of the requests of an interval."""

    def __init__(self, candidates: int, least_blocks: float) -> None:
        self._candidates, self._least_blocks = candidates, least_blocks
        self._begin()

    def _begin(self) -> None:
        self._requests = 0
        self._blocks, self._tokens = [0] * self._candidates, [0.0] * self._candidates

    def add(self, blocks: Sequence[int], tokens: Sequence[float]) -> list[float] | None:
        """Add a request; return the tokens of the interval if it ends with it."""
        self._requests += 1
        for at, more in enumerate(blocks):
            self._blocks[at] += more
            self._tokens[at] += tokens[at]
        if self._requests < INTERVAL_REQUESTS or max(self._blocks) < self._least_blocks:
            return None
        done = self._tokens
        self._begin()
        return done


class _Waiting(Struct):
    """A request that no shadow has served yet, as far as it is known."""

    match: PrefixMatch
    prompt_tokens: int
    tables: Sequence[Scores]
    request: ShadowRequest
    ended: bool = False


class OnlineGuard:
    """Replays served requests in a shadow cache of each candidate, and decides between them.

    `kinds_of` (match, prompt and output tokens) is a request's class and cuts for each candidate.
    `tables` are theirs, until `use`. An engine serves many requests at a time, a shadow one after
    the other in order of arrival: requests wait here until they and all before them have ended. The
    first of more than 1,024 requests at a time, and one that has been served for longer than 5
    minutes, counts without output, so that others need not wait for it.
    """

    def __init__(
        self,
        policy: LanePolicy,
        block_size: int,
        capacity_blocks: int,
        tables: Sequence[Scores],
        kinds_of: Callable[[PrefixMatch, int, int], Sequence[Kind]],
        *,
        slots: int = MOST_REQUESTS,
    ) -> None:
        self.capacity_blocks, self.every = capacity_blocks, 1
        self.guard = Guard(len(tables))
        self._policy, self._block_size, self._slots = policy, block_size, slots
        self._xi_tokens = policy.values.get("xi_tokens", 0.0)
        self._tables, self._kinds_of = tables, kinds_of
        self._next, self._now_s = 0, 0.0
        self._queue: deque[_Waiting] = deque()
        self._waiting: dict[int, _Waiting] = {}
        self._begin(0)

    @property
    def now(self) -> int:
        """The candidate in force."""
        return self.guard.now

    def use(self, tables: Sequence[Scores]) -> None:
        """Serve requests that come from now on by these tables."""
        self._tables = tables

    def arrive(
        self,
        match: PrefixMatch,
        prompt_tokens: int,
        arrival_s: float,
        every: int,
        forgotten: int,
    ) -> None:
        """Add a new request; `every` and `forgotten` are those of `RecentBlocks`."""
        self._next, self._now_s = match.number + 1, arrival_s
        if every != self.every:  # fewer blocks are followed now, so all that was counted is void
            self.every = every
            self.guard.forget()
            self.clear()
            return
        request = ShadowRequest(
            match.number,
            arrival_s,
            _placed(match.segments, 0),
            match.followed,
            prompt_tokens,
            kinds=(),
            forgotten=forgotten,
        )
        waiting = self._waiting[match.number] = _Waiting(
            match, prompt_tokens, self._tables, request
        )
        self._queue.append(waiting)
        self._serve()

    def end(self, number: int, output_tokens: int, blocks: int, segments: TouchedSegments) -> None:
        """Note that a request has been served, and touched further `blocks` of output."""
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        request = waiting.request
        waiting.request = request._replace(
            segments=[*request.segments, *_placed(segments, request.blocks)],
            blocks=request.blocks + blocks,
            history_tokens=waiting.prompt_tokens + output_tokens,
        )
        waiting.ended = True
        self._serve()

    def forget(self, number: int) -> None:
        """Note that a request ends unserved: its blocks are touched, none of them new."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.request, waiting.ended = waiting.request._replace(served=False), True
            self._serve()

    def clear(self) -> None:
        """Empty the shadows; requests that are being served leave nothing either."""
        self._begin(self._next)

    def _begin(self, first: int) -> None:
        self._queue.clear()
        self._waiting.clear()
        self.shadows = ShadowCaches(
            len(self._tables),
            self._policy,
            self._block_size,
            self.capacity_blocks,
            every=self.every,
            first=first,
            slots=self._slots,
        )
        least_blocks = interval_blocks(self.shadows.each[FALLBACK].capacity)
        self._intervals = _Intervals(len(self._tables), least_blocks)

    def _serve(self) -> None:
        """Replay requests that have ended, up to the first that still runs."""
        queue, late_s = self._queue, self._now_s - PATIENCE_S
        for _ in range(AT_ONCE):
            if not queue or not (
                queue[0].ended or len(queue) > MOST_WAITING or queue[0].request.arrival_s < late_s
            ):
                break
            waiting = queue.popleft()
            prompt_tokens, request = waiting.prompt_tokens, waiting.request
            del self._waiting[request.number]
            self.shadows.use(waiting.tables)
            outputs = request.history_tokens - prompt_tokens
            kinds = self._kinds_of(waiting.match, prompt_tokens, outputs)
            hits = self.shadows.serve(request._replace(kinds=kinds))
            if request.served:
                tokens = [self._beyond_xi(prompt_tokens, leading) for leading in hits]
                blocks = [request.blocks - leading for leading in hits]
                if (computed := self._intervals.add(blocks, tokens)) is not None:
                    self.guard.judge(computed)

    def _beyond_xi(self, prompt_tokens: int, leading: int) -> float:
        """Return the tokens beyond xi that a request computes behind `leading` cached blocks."""
        look = max(prompt_tokens - 1, 0) // self._block_size  # one token at least is computed
        hit_tokens = min(leading * self.every, look) * self._block_size
        return max(prompt_tokens - hit_tokens - self._xi_tokens, 0.0)


def _placed(segments: TouchedSegments, start: int) -> list[tuple[int, int, int]]:
    """Return segments as (start, end, previous) of a path, the first one from `start` on."""
    placed = []
    for previous, blocks in segments:
        placed.append((start, start + blocks, previous))
        start += blocks
    return placed


REVERTS = "with a guard that reverts to LRU"
MEMORY = 4608  # requests whose blocks are known, as many as `gittins` has by default


class GuardedLearner(OnlineLearner):
    """Follows the blocks of the latest `memory` requests, and has a guard decide by them.

    `candidate` is the one in force; without a guard it stays. `gaps_s` as in `RecentBlocks`.
    """

    candidate = FALLBACK

    def __init__(
        self, policy: LanePolicy, block_size: int, memory: int, gaps_s: Sequence[float] = ()
    ) -> None:
        self.policy, self.block_size = policy, block_size
        self.slots = remembered_requests(memory)
        self.recent = RecentBlocks(memory, most_requests=self.slots, gaps_s=gaps_s)
        self.online_guard: OnlineGuard | None = None

    @abstractmethod
    def kinds(self, match: PrefixMatch, prompt_tokens: int, output_tokens: int) -> Sequence[Kind]:
        """Return the class and cuts of a request for each candidate."""

    def called(self, candidate: int) -> str:
        """Return the name of a candidate, for the log."""
        return ("LRU", "its own order")[candidate]

    def start_guard(self, capacity_blocks: int, tables: Sequence[Scores]) -> None:
        """Start a guard that chooses between `tables` by shadow caches of `capacity_blocks`."""
        self.online_guard = OnlineGuard(
            self.policy, self.block_size, capacity_blocks, tables, self.kinds, slots=self.slots
        )
        self.candidate = self.online_guard.now

    def switched(self) -> bool:
        """Return whether the guard has put another candidate in force, and log it."""
        if self.online_guard is None or self.online_guard.now == self.candidate:
            return False
        before, now, judge = self.candidate, self.online_guard.now, self.online_guard.guard
        self.candidate = now
        about = now if now != FALLBACK else before
        log.info(
            "kvscope's %s switches from %s to %s: on LRU, %s gained %.0f tokens beyond xi in the"
            " shadow caches, lately %.0f; above %.0f the gain counts as sure",
            self.policy.name,
            self.called(before),
            self.called(now),
            self.called(about),
            judge.gain[about],
            judge.lately[about],
            judge.deviation(about),
        )
        return True

    def touch_prompt(self, request: Request, arrival_s: float) -> PrefixMatch:
        """Touch the blocks of a new prompt; return their match with earlier requests."""
        tokens = request.num_prompt_tokens
        match = self.recent.arrive(request.block_hashes[: tokens // self.block_size], arrival_s)
        if self.online_guard is not None:
            forgotten = self.recent.forgotten
            self.online_guard.arrive(match, tokens, arrival_s, self.recent.every, forgotten)
        return match

    def touch_output(
        self, request: Request, match: PrefixMatch, prompt_tokens: int
    ) -> tuple[int, TouchedSegments]:
        """Touch the output's blocks of a served request; return as `RecentBlocks.end` does.

        It had so many `prompt_tokens` when it came; more may have been streamed since.
        """
        full, computed = prompt_tokens // self.block_size, computed_blocks(request, self.block_size)
        more: list[Key] = request.block_hashes[full:computed]
        followed, segments = self.recent.end(more, match.number)
        if self.online_guard is not None:
            outputs = request.num_tokens - prompt_tokens
            self.online_guard.end(match.number, outputs, followed, segments)
        return followed, segments

    def forget_request(self, match: PrefixMatch) -> None:
        """Note that a request ends unserved."""
        if self.online_guard is not None:
            self.online_guard.forget(match.number)

    def cleared(self) -> None:
        """Empty the shadows; what was learned stays."""
        if self.online_guard is not None:
            self.online_guard.clear()
