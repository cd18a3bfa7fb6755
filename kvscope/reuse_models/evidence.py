"""Waits and turns in any time window of a stored trace, censored at the window's end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec import Struct

from kvscope.characterize.history import History, load_history
from kvscope.core.arrays import Bools, Float64s, Int32s, Int64s
from kvscope.core.trace import Trace
from kvscope.reuse_models.conversation import added_tokens, next_turn_s, turn_waits
from kvscope.reuse_models.observations import RESOLUTION_S, Observations
from kvscope.store.checks import require_sound
from kvscope.store.db import Store

_MANY_TIMES = 100


class Span(Struct, frozen=True):
    """The time from `start_s` up to, but not including, `end_s`."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Length in seconds."""
        return self.end_s - self.start_s


class Turns(Struct, frozen=True):
    """Waits of R requests for their next turn, with each request's category and turn number."""

    waits: Observations
    category: Int64s
    turn: Int64s

    def of(self, picked: Bools) -> Observations:
        """Return the waits of the picked requests."""
        of = self.waits
        waited_s, reused, cluster = of.waited_s[picked], of.reused[picked], of.cluster[picked]
        return Observations.of(waited_s, reused, None, cluster, of.resolution_s)


class Evidence:
    """What reuse models are fitted to: R requests by arrival, their blocks, and the next touches.

    A touched block waits, in the category of its request, until another prompt touches it. Blocks
    are the full ones of prompt and output. Output that no later turn carries is never reused and
    counts as waiting. A touch counts neither as reused nor as waiting if the block's next touch is
    by another request's output: the wait then begins anew. Waits within one conversation may depend
    on each other: they are one cluster (see `Observations`).
    """

    def __init__(
        self,
        history: History,
        conversation: Int32s,
        parent: Int32s,
        turn: Int32s,
        input_tokens: Int32s,
        history_tokens: Int64s,
        anonymous_blocks: Int32s,
    ) -> None:
        requests = len(conversation)
        self.categories = history.categories
        self.category = history.category.astype(np.int64)
        self.arrival_s = history.arrival_s
        self.conversation = conversation.astype(np.int64)
        self.turn = turn.astype(np.int64)
        previous, request, last = history.prev[:], history.request[:], history.last[:]
        order = np.argsort(previous, kind="stable")
        self._previous = previous[order].astype(np.int64)
        self._reused_s = history.arrival_s[request[order]]
        self._blocks = history.gap.weight[:][order].astype(np.float64)
        last_touches = np.bincount(last, history.life.weight[:], minlength=requests)
        self._never = last_touches + anonymous_blocks
        self.child = np.flatnonzero(parent >= 0)
        self.parent = parent[self.child].astype(np.int64)
        self.added = added_tokens(self.child, self.parent, input_tokens, history_tokens)
        self._next_s = next_turn_s(parent, self.arrival_s)
        self._roots = parent < 0
        self.resolution_s = tick_s(self.arrival_s)

    @property
    def whole(self) -> Span:
        """The span of the trace, its last request included."""
        last = float(self.arrival_s[-1]) if len(self.arrival_s) else 0.0
        return Span(0.0, float(np.nextafter(last, np.inf)))

    def after(self, share: float) -> Span:
        """Return the span without the first `share` of the requests."""
        first = int(len(self.arrival_s) * share)
        begin = float(self.arrival_s[first]) if first < len(self.arrival_s) else 0.0
        return Span(begin, self.whole.end_s)

    def waits(self, span: Span) -> list[Observations]:
        """Return waits of blocks touched in `span`, censored at its end, by category number."""
        first, last = np.searchsorted(self.arrival_s, (span.start_s, span.end_s))
        low, high = np.searchsorted(self._previous, (first, last))
        previous, reused_s = self._previous[low:high], self._reused_s[low:high]
        reused = reused_s < span.end_s
        requests = np.arange(first, last)
        end_s = np.concatenate(
            (np.where(reused, reused_s, span.end_s), np.full(len(requests), span.end_s))
        )
        request = np.concatenate((previous, requests))
        hit = np.concatenate((reused, np.zeros(len(requests), dtype=np.bool_)))
        blocks = np.concatenate((self._blocks[low:high], self._never[requests]))
        waited = end_s - self.arrival_s[request]
        category, cluster = self.category[request], self.conversation[request]
        order = np.argsort(category, kind="stable")
        edges = np.searchsorted(category[order], np.arange(len(self.categories) + 1))
        parts = (order[a:b] for a, b in pairwise(edges.tolist()))
        tick = self.resolution_s
        return [Observations.of(waited[k], hit[k], blocks[k], cluster[k], tick) for k in parts]

    def turns(self, span: Span) -> Turns:
        """Return the wait of each request within `span` for its next turn, censored at its end."""
        first, last = np.searchsorted(self.arrival_s, (span.start_s, span.end_s))
        part = slice(int(first), int(last))
        arrival_s, next_s = self.arrival_s[part], self._next_s[part]
        cluster = self.conversation[part]
        waits = turn_waits(arrival_s, next_s, span.end_s, cluster, self.resolution_s)
        return Turns(waits, self.category[part], self.turn[part])

    def births(self, span: Span) -> int:
        """Return the number of conversations that begin within `span`."""
        first, last = np.searchsorted(self.arrival_s, (span.start_s, span.end_s))
        return int(np.count_nonzero(self._roots[first:last]))

    def next_prompts(self, span: Span) -> tuple[Float64s, Int64s]:
        """Return (tokens, category) for each turn within `span` that has a previous turn.

        The tokens are those that it adds to the history; the category is the previous turn's.
        """
        at_s = self.arrival_s[self.child]
        inside = (at_s >= span.start_s) & (at_s < span.end_s)
        return self.added[inside], self.category[self.parent[inside]]


def tick_s(arrival_s: Float64s) -> float:
    """Return the resolution in seconds of the clock of these arrivals (ascending).

    It is the smallest difference between two distinct times, at least 1 ms; 1 ms also if there are
    fewer than 100 distinct times, whose differences need not show the clock's tick.
    """
    times = np.unique(arrival_s)
    if len(times) < _MANY_TIMES:
        return RESOLUTION_S
    return max(float(np.diff(times).min()), RESOLUTION_S)


def load_evidence(store: Store, trace: Trace) -> Evidence:
    """Load the evidence of a stored trace with hashes."""
    require_sound(store, trace)
    columns = store.columns("model/requests", trace_id=trace.trace_id)
    return Evidence(load_history(store, trace), **columns)
