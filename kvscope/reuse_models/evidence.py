"""What a stored trace shows of waits and turns within any window of time, and nothing after it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvscope.characterize.history import History, load_history
from kvscope.core.trace import Trace
from kvscope.reuse_models.conversation import added_tokens, next_turn_s, turn_waits
from kvscope.reuse_models.observations import RESOLUTION_S, Floats, Ints, Observations
from kvscope.store.db import Store

_MANY_TIMES = 100


@dataclass(frozen=True, slots=True)
class Span:
    """The time from `start_s` up to, but not including, `end_s`."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long it is."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Turns:
    """Waits for the next turn, of R requests, and whose they are."""

    waits: Observations
    category: Ints
    turn: Ints

    def of(self, picked: NDArray[np.bool_]) -> Observations:
        """Those of some of them."""
        all_ = self.waits
        return Observations.of(
            all_.waited_s[picked],
            all_.reused[picked],
            None,
            all_.cluster[picked],
            all_.resolution_s,
        )


class Evidence:
    """R requests in order of arrival, the blocks that they touched, and who took these over.

    A block that is touched waits, in the category of the request that touched it, until another
    prompt touches it. Blocks are those a cache keeps: full ones of the prompt and of the output.
    Output that no later turn carries is never reused, and counts as waiting; what only another
    request's output touches again is left out. Runs of one conversation's requests are a cluster.
    """

    def __init__(
        self,
        history: History,
        conversation: NDArray[np.int32],
        parent: NDArray[np.int32],
        turn: NDArray[np.int32],
        input_tokens: NDArray[np.int32],
        history_tokens: NDArray[np.int64],
        anonymous_blocks: NDArray[np.int32],
    ) -> None:
        requests = len(conversation)
        self.categories = history.categories
        self.category = history.category
        self.arrival_s = history.arrival_s
        self.conversation = conversation.astype(np.int64)
        self.turn = turn.astype(np.int64)
        order = np.argsort(history.prev, kind="stable")
        self._giver = history.prev[order].astype(np.int64)
        self._taken_s = history.arrival_s[history.request[order]]
        self._blocks = history.gap.weight[order].astype(np.float64)
        kept = np.bincount(
            history.last.astype(np.int64), history.lifespan_blocks, minlength=requests
        )
        self._never = kept + anonymous_blocks
        self.child = np.flatnonzero(parent >= 0)
        self.parent = parent[self.child].astype(np.int64)
        self.added = added_tokens(self.child, self.parent, input_tokens, history_tokens)
        self._next_s = next_turn_s(parent, self.arrival_s)
        self._roots = parent < 0
        self.resolution_s = tick_s(self.arrival_s)

    @property
    def whole(self) -> Span:
        """All of the trace, its last request included."""
        last = float(self.arrival_s[-1]) if len(self.arrival_s) else 0.0
        return Span(0.0, float(np.nextafter(last, np.inf)))

    def after(self, share: float) -> Span:
        """The trace without the first `share` of its requests."""
        first = int(len(self.arrival_s) * share)
        begin = float(self.arrival_s[first]) if first < len(self.arrival_s) else 0.0
        return Span(begin, self.whole.end_s)

    def waits(self, span: Span) -> list[Observations]:
        """By category, the waits of the blocks touched within `span`, as seen at its end."""
        first, last = np.searchsorted(self.arrival_s, (span.start_s, span.end_s))
        low, high = np.searchsorted(self._giver, (first, last))
        giver, taken_s = self._giver[low:high], self._taken_s[low:high]
        reused = taken_s < span.end_s
        touchers = np.arange(first, last)
        end_s = np.concatenate(
            (np.where(reused, taken_s, span.end_s), np.full(len(touchers), span.end_s))
        )
        who = np.concatenate((giver, touchers))
        hit = np.concatenate((reused, np.zeros(len(touchers), dtype=np.bool_)))
        blocks = np.concatenate((self._blocks[low:high], self._never[touchers]))
        waited = end_s - self.arrival_s[who]
        category, cluster = self.category[who], self.conversation[who]
        order = np.argsort(category, kind="stable")
        edges = np.searchsorted(category[order], np.arange(len(self.categories) + 1))
        parts = (order[a:b] for a, b in pairwise(edges.tolist()))
        tick = self.resolution_s
        return [Observations.of(waited[k], hit[k], blocks[k], cluster[k], tick) for k in parts]

    def turns(self, span: Span) -> Turns:
        """Of each request within `span`, the wait for the turn after it, as seen at its end."""
        first, last = np.searchsorted(self.arrival_s, (span.start_s, span.end_s))
        some = slice(int(first), int(last))
        waits = turn_waits(
            self.arrival_s[some],
            self._next_s[some],
            span.end_s,
            self.conversation[some],
            self.resolution_s,
        )
        return Turns(waits, self.category[some], self.turn[some])

    def births(self, span: Span) -> int:
        """Conversations that begin within `span`."""
        first, last = np.searchsorted(self.arrival_s, (span.start_s, span.end_s))
        return int(np.count_nonzero(self._roots[first:last]))

    def next_prompts(self, span: Span) -> tuple[Floats, Ints]:
        """Tokens that each turn within `span` added, and the category of the turn before it."""
        at_s = self.arrival_s[self.child]
        seen = (at_s >= span.start_s) & (at_s < span.end_s)
        return self.added[seen], self.category[self.parent[seen]]


def tick_s(arrival_s: Floats) -> float:
    """The shortest time that the clock of these arrivals, ascending, tells.

    The smallest distance of two that differ, where many do, as clocks jitter about their ticks;
    never less than a millisecond.
    """
    times = np.unique(arrival_s)
    if len(times) < _MANY_TIMES:
        return RESOLUTION_S
    return max(float(np.diff(times).min()), RESOLUTION_S)


def load_evidence(store: Store, trace: Trace) -> Evidence:
    """The evidence in a stored trace with hashes."""
    columns = store.columns("model/requests", trace_id=trace.trace_id)
    return Evidence(load_history(store, trace), **columns)
