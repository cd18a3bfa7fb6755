"""The guard: which of several candidates a policy goes by, judged by what each would compute.

Shadow caches replay the traffic as each candidate alone would have it and report to `Guard`: those
of a simulation (kvscope.learning.offline.shadow_replays), and in an engine those of `OnlineGuard`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvscope.learning.lane_heap import Scores
from kvscope.learning.recent_blocks import MOST_REQUESTS, PrefixMatch, TouchedSegments
from kvscope.learning.shadow_cache import Kind, ShadowCaches, ShadowRequest
from kvscope.policies.base import LanePolicy

FALLBACK = 0  # the candidate in force where the present one does worse than it
MOST_WAITING = 1024
AT_ONCE = 4  # requests served per event: an engine's step must not wait for a crowd


class Rule(NamedTuple):
    """How a guard decides.

    It looks `looks` times from one refit to the next, and counts by the intervals in between. The
    candidate `begins_with` is in force until another one has computed less by the share `margin` in
    the `evidence` intervals before. One that has computed more than the fallback in those, or in
    the `late` intervals before, is replaced by it. Nothing changes before so many have passed.
    """

    begins_with: int
    looks: int
    evidence: int
    late: int
    margin: float


class Guard:
    """Decides which candidate is in force, by the tokens that their shadows `computed`.

    Time is cut into numbered intervals. `judged` and `lately` are what each candidate computed in
    the evidence, and in the late part of it, of the latest decision.
    """

    def __init__(self, candidates: int, rule: Rule) -> None:
        self.now = rule.begins_with
        self.judged = self.lately = [0.0] * candidates
        self._candidates, self._rule = candidates, rule
        self._computed: dict[int, list[float]] = {}
        self._first: int | None = None  # interval of the first decision

    def computed(self, interval: int, tokens: Sequence[float]) -> None:
        """Add the tokens that each candidate had to compute in an interval."""
        sums = self._computed.get(interval)
        if sums is None:
            self._computed[interval] = list(tokens)
            return
        for at, more in enumerate(tokens):
            sums[at] += more

    def decide(self, interval: int) -> int:
        """Return the candidate in force from the beginning of an interval on."""
        rule = self._rule
        if self._first is None:
            self._first = interval
        for old in [known for known in self._computed if known < interval - rule.evidence]:
            del self._computed[old]
        cost = self.judged = self._sums(interval - rule.evidence, interval)
        late = self.lately = self._sums(interval - rule.late, interval)
        if interval < self._first + rule.late:
            return self.now
        sound = [at for at, tokens in enumerate(late) if tokens <= late[FALLBACK]]
        if self.now not in sound:
            self.now = FALLBACK
        best = min(sound, key=cost.__getitem__)
        if cost[best] < (1 - rule.margin) * cost[self.now]:
            self.now = best
        elif cost[FALLBACK] < cost[self.now]:
            self.now = FALLBACK
        return self.now

    def _sums(self, since: int, until: int) -> list[float]:
        """Return what each candidate computed from one interval to another."""
        sums = [0.0] * self._candidates
        for interval in range(since, until):
            for at, tokens in enumerate(self._computed.get(interval, ())):
                sums[at] += tokens
        return sums

    def forget(self) -> None:
        """Drop what was computed until now; the candidate stays in force."""
        self._computed.clear()
        self._first = None


@dataclass(slots=True)
class _Waiting:
    """A request that no shadow has served yet, as far as it is known."""

    match: PrefixMatch
    prompt_tokens: int
    tables: Sequence[Scores]
    request: ShadowRequest
    ended: bool = False


class OnlineGuard:
    """Replays what an engine serves for every candidate, and goes by the one that `rule` takes.

    `kinds_of` (match, prompt and output tokens) is a request's class and cuts for each candidate.
    `tables` are theirs, until `use`. Time is judged by intervals of `look_s`. An engine serves many
    requests at a time, a shadow one after the other in order of arrival: requests wait here until
    they and all before them have ended. The first of more than 1,024 requests at a time, and one
    that has been served for longer than from one refit to the next, counts without output, so that
    others need not wait for it.
    """

    def __init__(
        self,
        policy: LanePolicy,
        block_size: int,
        capacity_blocks: int,
        tables: Sequence[Scores],
        kinds_of: Callable[[PrefixMatch, int, int], Sequence[Kind]],
        rule: Rule,
        look_s: float,
        *,
        slots: int = MOST_REQUESTS,
    ) -> None:
        self.capacity_blocks, self.every = capacity_blocks, 1
        self.guard, self.look_s = Guard(len(tables), rule), look_s
        self._policy, self._block_size, self._slots = policy, block_size, slots
        self._xi_tokens = policy.values.get("xi_tokens", 0.0)
        self._tables, self._kinds_of = tables, kinds_of
        self._patience_s = rule.looks * look_s
        self._interval: int | None = None
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

    def at(self, now_s: float) -> bool:
        """Advance the clock; return whether another candidate is in force from now on."""
        interval, before = int(now_s // self.look_s), self.guard.now
        if self._interval is not None and interval <= self._interval:
            return False
        self._interval = interval
        return self.guard.decide(interval) != before

    def arrive(
        self,
        match: PrefixMatch,
        prompt_tokens: int,
        arrival_s: float,
        every: int,
        forgotten_s: float,
    ) -> None:
        """Take in a new request; `every` and `forgotten_s` are those of `RecentBlocks`."""
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
            forgotten_s=forgotten_s,
        )
        waiting = self._waiting[match.number] = _Waiting(
            match, prompt_tokens, self._tables, request
        )
        self._queue.append(waiting)
        self._serve()

    def end(self, number: int, output_tokens: int, blocks: int, segments: TouchedSegments) -> None:
        """Note that a request has been served, and touched so many blocks more."""
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

    def _serve(self) -> None:
        """Serve some of those that have ended, as long as none before them still runs."""
        queue, late_s = self._queue, self._now_s - self._patience_s
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
                cost = [self._beyond_xi(prompt_tokens, leading) for leading in hits]
                self.guard.computed(int(request.arrival_s // self.look_s), cost)

    def _beyond_xi(self, prompt_tokens: int, leading: int) -> float:
        """Return the tokens beyond xi that a request computes with so many leading blocks."""
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
