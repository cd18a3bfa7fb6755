"""What policies are told of the traffic: numbers from its past alone, never from its future.

The estimators are those of `kvscope.model`; here the traffic is cut into windows for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.model.conversation import turn_and_death_rates
from kvscope.model.next_prompt import VALUES, NextPrompt, added_tokens
from kvscope.model.turns import next_turn_s, turn_waits
from kvscope.policies.base import REFIT_S, Policy
from kvscope.policies.reuse import SLOTS, WINDOW_REFITS, Sums, reuse_values, slots_of
from kvscope.simulate.handovers import handovers
from kvscope.simulate.replay import NO_TABLES, Tables
from kvscope.simulate.traffic import Traffic

FIT_SHARE = 0.2
_UNKNOWN_PROMPT_TOKENS = 256.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def parameters_from(traffic: Traffic, share: float = FIT_SHARE) -> Mapping[str, float]:
    """Values for the parameters that a policy leaves to the trace, from its first requests.

    `next_prompt_tokens`: the mean of the next prompts. `turn_rate_per_s` and `death_rate_per_s`:
    the conversation model, by maximum likelihood with deaths unseen. What `share` of the requests
    does not show keeps the policy's own default.
    Source: Tail-Optimized Caching for LLM Inference, section 4 (Q) and Definition 1.
    """
    seen = int(len(traffic.leaf) * share)
    parent, arrival_s = traffic.parent[:seen], traffic.arrival_s[:seen]
    child = np.flatnonzero(parent >= 0)
    if not len(child):
        return {}
    next_s = next_turn_s(parent, arrival_s)
    end_s = float(np.nextafter(arrival_s[-1], np.inf))
    rates = turn_and_death_rates(turn_waits(arrival_s, next_s, end_s).merged())
    if rates is None or not np.any(next_s[parent[child]] > arrival_s[parent[child]]):
        return {}
    return {
        "next_prompt_tokens": NextPrompt().fit(_added(traffic, child)).mean_,
        "turn_rate_per_s": rates.turn_per_s,
        "death_rate_per_s": rates.death_per_s,
    }


def tables_for(traffic: Traffic, policy: type[Policy], refit_s: float = REFIT_S) -> Tables:
    """The tables that a policy wants, refitted every `refit_s` on six times as long before."""
    if policy.table is None:
        return NO_TABLES
    return {"reuse": reuse_tables, "next-prompts": next_prompt_tables}[policy.table](
        traffic, refit_s
    )


def reuse_tables(traffic: Traffic, refit_s: float = REFIT_S) -> Tables:
    """Reuse probability, rate and lifetime of each category, as `Wa` reads them.

    The defective exponential of the blocks touched within the window, right-censored at its end;
    and their mean lifetime. Each is drawn to that of all categories together as by some blocks
    more; before anything was seen all categories are alike.
    """
    refits = _refits(traffic, refit_s)
    seen = _seen(traffic, refits, refit_s)
    return Tables(refits.since, reuse_values(seen.waits, seen.taken))


def next_prompt_tables(traffic: Traffic, refit_s: float = REFIT_S) -> Tables:
    """Equally likely next prompts (tokens) of each category, as `Etlru` reads them.

    Those seen in the window after turns of the category; after turns of any category where it has
    fewer than the values asked for.
    """
    child = np.flatnonzero(traffic.parent >= 0)
    added, of = _added(traffic, child), traffic.category[traffic.parent[child]]
    refits = _refits(traffic, refit_s)
    categories = _categories(traffic)
    values = np.full((len(refits.number), categories, VALUES), _UNKNOWN_PROMPT_TOKENS)
    when = refits.bin[child]
    for row, number in enumerate(refits.number):
        window = slice(*np.searchsorted(when, (number - WINDOW_REFITS, number)))
        recent, whose = added[window], of[window]
        if len(recent):
            values[row] = NextPrompt().fit(recent).values_
        for category in np.flatnonzero(np.bincount(whose, minlength=categories) >= VALUES):
            values[row, category] = NextPrompt().fit(recent[whose == category]).values_
    return Tables(refits.since, values)


class _Refits(NamedTuple):
    """When tables are fitted anew: every so often, if requests arrive before the next time.

    `bin` is the number of the latest refit before each request; refit `number[k]` holds from
    request `since[k]` on.
    """

    bin: Ints
    number: Ints
    since: Ints

    def row(self, number: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Which of them are refits that hold for somebody, and their place among those."""
        at = np.minimum(np.searchsorted(self.number, number), len(self.number) - 1)
        return at, self.number[at] == number


def _refits(traffic: Traffic, refit_s: float) -> _Refits:
    bins = (traffic.arrival_s // refit_s).astype(np.int64)
    if not len(bins):
        bins = np.zeros(1, dtype=np.int64)
    number, since = np.unique(bins, return_index=True)
    return _Refits(bins, number, since.astype(np.int64))


def _categories(traffic: Traffic) -> int:
    return int(traffic.category.max(initial=0)) + 1


class _Seen(NamedTuple):
    """What each refit sees of each category: waits of the blocks touched, and those not new."""

    waits: Sums
    taken: Floats


def _seen(traffic: Traffic, refits: _Refits, refit_s: float) -> _Seen:
    """Every refit's window; a touch is within those of the next `WINDOW_REFITS` refits."""
    moved = handovers(traffic)
    giver, taker = moved.giver.astype(np.int64), moved.taker.astype(np.int64)
    blocks = (moved.end - moved.start).astype(np.float64)
    gap_s = traffic.arrival_s[taker] - traffic.arrival_s[giver]
    held = (traffic.length + traffic.anonymous).astype(np.float64)
    requests = np.arange(len(held))
    sums = _Sums((len(refits.number), _categories(traffic)))
    for ahead in range(1, WINDOW_REFITS + 1):
        window = _Window(traffic, refits, refit_s, ahead)
        sums.wait(window, requests, held)
        in_time = refits.bin[taker] < refits.bin[giver] + ahead
        sums.wait(window, giver[in_time], -blocks[in_time])
        sums.reuse(window, giver[in_time], blocks[in_time], gap_s[in_time])
        sums.take(window, taker, blocks)
    return sums.seen()


class _Window(NamedTuple):
    """The windows that see a touch when it is `ahead` refits old."""

    traffic: Traffic
    refits: _Refits
    refit_s: float
    ahead: int

    def cells(self, who: Ints) -> tuple[Ints, NDArray[np.bool_], Floats]:
        """Of touches by requests `who`: refit and category in one, if any, and age at the refit."""
        number = self.refits.bin[who] + self.ahead
        row, some = self.refits.row(number)
        category = self.traffic.category[who]
        age_s = np.maximum(number * self.refit_s - self.traffic.arrival_s[who], 0.0)
        return row * _categories(self.traffic) + category, some, age_s


class _Sums:
    """Sums by refit and category, and of waiting blocks also by the slot of their age."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._cells = shape[0] * shape[1]
        self._reused, self._waited_s, self._taken = np.zeros((3, self._cells))
        self._waiting, self._since_s = np.zeros((2, self._cells * SLOTS))

    def wait(self, window: _Window, who: Ints, blocks: Floats) -> None:
        """Blocks that wait since requests `who` touched them; fewer than 0 do so no longer."""
        cell, some, age_s = window.cells(who)
        longest = WINDOW_REFITS * window.refit_s
        slot = slots_of(age_s, longest)
        at, many, size = (cell * SLOTS + slot)[some], blocks[some], len(self._waiting)
        self._waiting += np.bincount(at, many, minlength=size)
        self._since_s += np.bincount(at, many * age_s[some], minlength=size)

    def reuse(self, window: _Window, who: Ints, blocks: Floats, gap_s: Floats) -> None:
        """Blocks that `who` touched and that were touched again after `gap_s`."""
        cell, some, _ = window.cells(who)
        at, many = cell[some], blocks[some]
        self._reused += np.bincount(at, many, minlength=self._cells)
        self._waited_s += np.bincount(at, many * gap_s[some], minlength=self._cells)

    def take(self, window: _Window, who: Ints, blocks: Floats) -> None:
        """Blocks that `who` touched and that had been there before."""
        cell, some, _ = window.cells(who)
        self._taken += np.bincount(cell[some], blocks[some], minlength=self._cells)

    def seen(self) -> _Seen:
        """All of it, by refit and category."""
        waiting = np.maximum(self._waiting, 0.0)
        since_s = np.maximum(self._since_s, 0.0) / np.where(waiting > 0, waiting, 1.0)
        slots = (*self._shape, SLOTS)
        waits = Sums(
            self._reused.reshape(self._shape),
            self._waited_s.reshape(self._shape),
            waiting.reshape(slots),
            since_s.reshape(slots),
        )
        return _Seen(waits, self._taken.reshape(self._shape))


def _added(traffic: Traffic, child: Ints) -> Floats:
    """Tokens that each turn added to the history before it."""
    before = traffic.parent[child]
    return added_tokens(child, before, traffic.input_tokens, traffic.history_tokens)
