"""The guard in an engine: chooses among a policy's candidates, judged by shadow caches.

Each shadow replays the traffic as its candidate alone would serve it. The tokens computed there are
the evidence (kvscope.learning.evidence) for the decision, in a simulation as here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from kvscope.learning.evidence import (
    FALLBACK,
    Goal,
    GuardEvidence,
    decided,
    largest_loss,
    note_request,
    sure_gain,
)
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

MOST_WAITING = 1024
PATIENCE_S = 300.0
AT_ONCE = 4  # requests served per event: an engine's step must not wait for a crowd


class _Waiting(Struct):
    """A request that the shadows have not served yet, with all that is known of it so far.

    `kinds` has its class and cuts under each candidate (see `Kind`), `tables` the candidates'
    tables when it arrived. `blocks` counts the tracked blocks that it touched, of prompt and
    output. `segments` are those of them that earlier requests touched last: (start depth, end
    depth, number of that request). Blocks last touched before request `forgotten` count as new.
    `ended`: no more will be known of it; `served` is False if it ended unserved.
    """

    number: int
    kinds: Sequence[Kind]
    prompt_tokens: int
    tables: Sequence[Scores]
    arrival_s: float
    forgotten: int
    segments: list[tuple[int, int, int]]
    blocks: int
    output_tokens: int = 0
    served: bool = True
    ended: bool = False


class OnlineGuard:
    """Replays served requests in a shadow cache of each candidate, and decides between them.

    `tables` has each candidate's table, until `use` replaces them. An engine serves many requests
    at a time, a shadow one after the other in order of arrival: requests wait here until they and
    all before them have ended. With more than 1,024 waiting, or after 5 minutes, the first one
    counts without its output, so that others need not wait for it.
    """

    def __init__(
        self,
        policy: LanePolicy,
        block_size: int,
        capacity_blocks: int,
        tables: Sequence[Scores],
        *,
        slots: int = MOST_REQUESTS,
        evidence: GuardEvidence | None = None,
    ) -> None:
        """Begin with the `evidence` of a policy file at half weight, or with none.

        `slots` (a power of 2) is the number of latest requests that the shadows remember: they
        evict blocks that only older requests touched.
        """
        self.capacity_blocks, self.every = capacity_blocks, 1
        self._policy, self._block_size, self._slots = policy, block_size, slots
        self._tables = tables
        self._next, self._now_s, self._judged_s = 0, 0.0, 0.0
        begun = evidence.discounted() if evidence else GuardEvidence.none(len(tables))
        self.evidence: GuardEvidence = begun.each(np.ndarray.tolist)
        self.now = decided(self.evidence, FALLBACK)
        self._queue: deque[_Waiting] = deque()
        self._waiting: dict[int, _Waiting] = {}
        self._begin(0)

    def use(self, tables: Sequence[Scores]) -> None:
        """Use these tables for requests that arrive from now on."""
        self._tables = tables

    def arrive(
        self,
        match: PrefixMatch,
        kinds: Sequence[Kind],
        prompt_tokens: int,
        arrival_s: float,
        every: int,
        forgotten: int,
    ) -> None:
        """Add a new request, and the last touches of its blocks by earlier requests (`match`).

        `kinds` has its class and cuts under each candidate. Only one block in `every` is tracked;
        when `every` changes, evidence and shadows are emptied instead. The shadows drop blocks last
        touched before request `forgotten`.
        """
        self._next, self._now_s = match.number + 1, arrival_s
        if every != self.every:  # fewer blocks are followed now, so all that was counted is void
            self.every = every
            self.evidence = GuardEvidence.none(len(self._tables)).each(np.ndarray.tolist)
            self.clear()
            return
        waiting = self._waiting[match.number] = _Waiting(
            match.number,
            kinds,
            prompt_tokens,
            self._tables,
            arrival_s,
            forgotten,
            _placed(match.segments, 0),
            match.followed,
        )
        self._queue.append(waiting)
        self._serve()

    def end(self, number: int, output_tokens: int, blocks: int, segments: TouchedSegments) -> None:
        """Note that request `number` has been served, its output on `blocks` tracked blocks.

        `segments` says which earlier requests touched some of these last.
        """
        waiting = self._waiting.get(number)
        if waiting is None:
            return
        waiting.segments += _placed(segments, waiting.blocks)
        waiting.blocks += blocks
        waiting.output_tokens, waiting.ended = output_tokens, True
        self._serve()

    def forget(self, number: int) -> None:
        """Note that a request ended unserved: it touches its cached blocks and inserts none."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.served, waiting.ended = False, True
            self._serve()

    def clear(self) -> None:
        """Empty the shadows, and drop the requests that still wait to be served there."""
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
        capacity = float(self.shadows.each[FALLBACK].capacity)
        self._goal = Goal.of(self._policy.values, capacity)

    def _serve(self) -> None:
        """Replay requests that have ended, up to the first that still runs."""
        queue, late_s = self._queue, self._now_s - PATIENCE_S
        for _ in range(AT_ONCE):
            if not queue or not (
                queue[0].ended or len(queue) > MOST_WAITING or queue[0].arrival_s < late_s
            ):
                break
            waiting = queue.popleft()
            prompt_tokens, arrival_s = waiting.prompt_tokens, waiting.arrival_s
            del self._waiting[waiting.number]
            self.shadows.use(waiting.tables)
            request = ShadowRequest(
                waiting.number,
                arrival_s,
                waiting.segments,
                waiting.blocks,
                prompt_tokens + waiting.output_tokens,
                waiting.kinds,
                waiting.served,
                waiting.forgotten,
            )
            hits = self.shadows.serve(request)
            if waiting.served:
                look = max(prompt_tokens - 1, 0) // self._block_size  # one token is computed
                cached = [min(leading * self.every, look) for leading in hits]
                tokens = [prompt_tokens - blocks * self._block_size for blocks in cached]
                blocks = [waiting.blocks - blocks / self.every for blocks in cached]
                passed_s, self._judged_s = arrival_s - self._judged_s, arrival_s
                note_request(self.evidence, self._goal, passed_s, blocks, tokens)
                self.now = decided(self.evidence, self.now)


def _placed(segments: TouchedSegments, start: int) -> list[tuple[int, int, int]]:
    """Return segments as (start depth, end depth, previous request), from depth `start` on."""
    placed = []
    for previous, blocks in segments:
        placed.append((start, start + blocks, previous))
        start += blocks
    return placed


REVERTS = "with a guard that reverts to LRU"
MEMORY = 4608  # requests whose blocks are known, as many as `gittins` has by default


class ArrivedRequest(NamedTuple):
    """A request as it arrived, with its class `kind`; more input may be streamed later.

    `match` is its match with earlier requests' blocks, None where no guard needs it. `arrival_s`
    and `turn` are 0 for learners that do not read them.
    """

    match: PrefixMatch | None
    kind: int
    prompt_tokens: int
    arrival_s: float = 0.0
    turn: int = 0


class GuardedLearner(OnlineLearner):
    """A learner that tracks recently touched blocks (`recent`) for its guard.

    The constructor's `memory` is the number of latest requests whose blocks are known; `gaps_s` (s,
    ascending) divide waits, the times since a block's previous touch, into classes. `candidate` is
    the number of the one in force, 0 for LRU; it never changes without a guard.
    """

    candidate = FALLBACK

    def __init__(
        self, policy: LanePolicy, block_size: int, memory: int, gaps_s: Sequence[float] = ()
    ) -> None:
        self.policy, self.block_size = policy, block_size
        self.slots = remembered_requests(memory)
        self.recent = RecentBlocks(memory, most_requests=self.slots, gaps_s=gaps_s)
        self.online_guard: OnlineGuard | None = None

    def called(self, candidate: int) -> str:
        """Return the name of a candidate, for the log."""
        return ("LRU", "its own order")[candidate]

    def start_guard(
        self, capacity_blocks: int, tables: Sequence[Scores], evidence: GuardEvidence | None = None
    ) -> None:
        """Start a guard that chooses between `tables` by shadow caches of `capacity_blocks`."""
        self.online_guard = OnlineGuard(
            self.policy,
            self.block_size,
            capacity_blocks,
            tables,
            slots=self.slots,
            evidence=evidence,
        )
        self.candidate = self.online_guard.now

    def switched(self) -> bool:
        """Return whether the guard has put another candidate in force; log it."""
        if self.online_guard is None or self.online_guard.now == self.candidate:
            return False
        before, now, evidence = self.candidate, self.online_guard.now, self.online_guard.evidence
        self.candidate = now
        about = now if now != FALLBACK else before
        log.info(
            "kvscope's %s switches from %s to %s: in the shadow caches, %s has gained %.0f tokens"
            " beyond xi on LRU (sure above %.0f), has lost %.0f since it was best (at most %.0f),"
            " and has made %.1f requests fewer late",
            self.policy.name,
            self.called(before),
            self.called(now),
            self.called(about),
            evidence.gain[about],
            sure_gain(evidence, about),
            evidence.loss[about],
            largest_loss(evidence, about),
            evidence.late[about],
        )
        return True

    def touch_prompt(self, request: Request, arrival_s: float) -> PrefixMatch:
        """Touch the blocks of a new prompt; return their match with earlier requests."""
        full = request.num_prompt_tokens // self.block_size
        return self.recent.arrive(request.block_hashes[:full], arrival_s)

    def show_guard(
        self, match: PrefixMatch, prompt_tokens: int, arrival_s: float, *kinds: Kind
    ) -> None:
        """Pass a new request to the guard, if any; `kinds` are for the candidates after LRU."""
        if self.online_guard is not None:
            every, forgotten = self.recent.every, self.recent.forgotten
            kinds = (None, *kinds)
            self.online_guard.arrive(match, kinds, prompt_tokens, arrival_s, every, forgotten)

    def category(self, request: Request, memo: ArrivedRequest) -> int:
        """Return the class of the request, known since its arrival."""
        return memo.kind

    def touch_output(
        self, request: Request, match: PrefixMatch, prompt_tokens: int
    ) -> tuple[int, TouchedSegments]:
        """Touch a request's output blocks; return (number tracked, their `TouchedSegments`)."""
        full, computed = prompt_tokens // self.block_size, computed_blocks(request, self.block_size)
        more: list[Key] = request.block_hashes[full:computed]
        followed, segments = self.recent.end(more, match.number)
        if self.online_guard is not None:
            outputs = request.num_tokens - prompt_tokens
            self.online_guard.end(match.number, outputs, followed, segments)
        return followed, segments

    def end(self, request: Request, memo: ArrivedRequest) -> None:
        """Touch the output's blocks of a served request."""
        if memo.match is not None:
            self.touch_output(request, memo.match, memo.prompt_tokens)

    def forget(self, memo: ArrivedRequest) -> None:
        """Drop an unserved request: it inserts nothing in the shadows, but its touches stay."""
        if self.online_guard is not None and memo.match is not None:
            self.online_guard.forget(memo.match.number)

    def cleared(self) -> None:
        """Empty the shadows; tables and evidence stay."""
        if self.online_guard is not None:
            self.online_guard.clear()
