"""What policies are told of the traffic: numbers from its past alone, never from its future."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvscope.policies.base import Policy
from kvscope.policies.wa import LIFE_S, RATE_PER_S, REUSE_PROBABILITY
from kvscope.simulate.handovers import handovers
from kvscope.simulate.replay import NO_TABLES, Tables
from kvscope.simulate.traffic import Traffic

REFIT_S = 600.0
WINDOW_REFITS = 6  # one hour of past
FIT_SHARE = 0.2
QUANTILES = 16
_PSEUDO_BLOCKS = 50.0  # so much of the overall average is mixed into each category
_UNKNOWN_GAP_S = 60.0
_UNKNOWN_PROMPT_TOKENS = 256.0

Sums: TypeAlias = NDArray[np.float64]


def parameters_from(traffic: Traffic, share: float = FIT_SHARE) -> Mapping[str, float]:
    """Values for the parameters that a policy leaves to the trace, from its first requests.

    `next_prompt_tokens`: the mean of the next prompts. `turn_rate_per_s` and `death_rate_per_s` of
    the birth-death model: an alive conversation's next event comes after 1 / (turn + death) on
    average, and is a turn with the probability that a turn is followed by another. What `share` of
    the requests does not show keeps the policy's own default.
    Source: Tail-Optimized Caching for LLM Inference, section 4 (Q) and Definition 1.
    """
    seen = int(len(traffic.leaf) * share)
    child = np.flatnonzero(traffic.parent[:seen] >= 0)
    before = traffic.parent[:seen][child]
    gaps = traffic.arrival_s[child] - traffic.arrival_s[before]
    if not len(child) or gaps.sum() <= 0:
        return {}
    events_per_s = len(child) / gaps.sum()
    followed = len(np.unique(before)) / seen
    return {
        "next_prompt_tokens": float(_added(traffic, child, before).mean()),
        "turn_rate_per_s": float(events_per_s * followed),
        "death_rate_per_s": float(events_per_s * (1 - followed)),
    }


def tables_for(traffic: Traffic, policy: type[Policy]) -> Tables:
    """The tables that a policy wants, refitted every ten minutes on the hour before."""
    if policy.table is None:
        return NO_TABLES
    return {"reuse": reuse_tables, "next-prompts": next_prompt_tables}[policy.table](traffic)


def reuse_tables(traffic: Traffic, refit_s: float = REFIT_S) -> Tables:
    """Reuse probability, rate and lifetime of each category, as `Wa` reads them.

    By blocks, within the window: p = reused / touched, rate = reused / sum of their gaps (maximum
    likelihood of the exponential), life = sum of gaps / blocks that appeared, which is the mean
    lifetime since a lifetime is the sum of a block's gaps. Each with some pseudo-blocks of the
    average over all categories. Before anything was seen all categories are alike.
    """
    moved = handovers(traffic)
    bins = _bins(traffic, refit_s)
    shape = (int(bins[-1]) + 2 if len(bins) else 1, int(traffic.category.max(initial=0)) + 1)
    held = (traffic.length + traffic.anonymous).astype(np.float64)
    came_from = traffic.category[moved.giver]
    blocks = (moved.end - moved.start).astype(np.float64)
    gap_s = traffic.arrival_s[moved.taker] - traffic.arrival_s[moved.giver]
    when = bins[moved.taker]
    touched = _past(shape, bins, traffic.category, held)
    reused = _past(shape, when, came_from, blocks)
    idle_s = _past(shape, when, came_from, blocks * gap_s)
    appeared = touched - _past(shape, when, traffic.category[moved.taker], blocks)
    values = np.empty((*shape, 3))
    values[..., REUSE_PROBABILITY] = np.minimum(_ratio(reused, touched, 1.0), 1.0)
    values[..., RATE_PER_S] = _ratio(reused, idle_s, 1.0 / _UNKNOWN_GAP_S, scale_s=_UNKNOWN_GAP_S)
    values[..., LIFE_S] = np.maximum(_ratio(idle_s, appeared, _UNKNOWN_GAP_S), 1e-3)
    return Tables(_since(bins, shape[0]), values)


def next_prompt_tables(traffic: Traffic, refit_s: float = REFIT_S) -> Tables:
    """Equally likely next prompts (tokens) of each category, as `Etlru` reads them.

    Nearest-rank quantiles of the next prompts seen in the window after turns of the category; of
    all categories where it has fewer than the quantiles asked for.
    """
    child = np.flatnonzero(traffic.parent >= 0)
    before = traffic.parent[child]
    added = _added(traffic, child, before)
    bins = _bins(traffic, refit_s)
    periods = int(bins[-1]) + 2 if len(bins) else 1
    categories = int(traffic.category.max(initial=0)) + 1
    values = np.full((periods, categories, QUANTILES), _UNKNOWN_PROMPT_TOKENS)
    edges = np.searchsorted(bins[child], np.arange(periods + 1))
    for period in range(1, periods):
        window = slice(edges[max(period - WINDOW_REFITS, 0)], edges[period])
        recent, of = np.sort(added[window]), traffic.category[before[window]]
        if len(recent):
            values[period] = _quantiles(recent)
        for category in np.flatnonzero(np.bincount(of, minlength=categories) >= QUANTILES):
            values[period, category] = _quantiles(np.sort(added[window][of == category]))
    return Tables(_since(bins, periods), values)


def _added(
    traffic: Traffic, child: NDArray[np.int64], before: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Tokens that each turn added to the history before it."""
    added = traffic.input_tokens[child].astype(np.float64) - traffic.history_tokens[before]
    return np.maximum(added, 0.0)


def _quantiles(ascending: NDArray[np.float64]) -> NDArray[np.float64]:
    ranks = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return ascending[np.ceil(ranks * len(ascending)).astype(np.int64) - 1]


def _bins(traffic: Traffic, refit_s: float) -> NDArray[np.int64]:
    """Between which refits each request arrives."""
    return (traffic.arrival_s // refit_s).astype(np.int64)


def _since(bins: NDArray[np.int64], periods: int) -> NDArray[np.int64]:
    """The first request of each period, ascending."""
    return np.searchsorted(bins, np.arange(periods)).astype(np.int64)


def _past(
    shape: tuple[int, int],
    when: NDArray[np.int64],
    category: NDArray[np.int32],
    weight: NDArray[np.float64],
) -> Sums:
    """Sums of `weight` over the window before each period, by category."""
    cell = when * shape[1] + category
    within = np.bincount(cell, weights=weight, minlength=shape[0] * shape[1]).reshape(shape)
    total = np.zeros((shape[0] + 1, shape[1]))
    np.cumsum(within, axis=0, out=total[1:])
    period = np.arange(shape[0])
    return total[period] - total[np.maximum(period - WINDOW_REFITS, 0)]


def _ratio(above: Sums, below: Sums, unknown: float, scale_s: float = 1.0) -> Sums:
    """above / below, drawn towards the ratio over all categories."""
    every_above, every_below = above.sum(axis=1), below.sum(axis=1)
    known = (every_above > 0) & (every_below > 0)
    overall = np.where(known, every_above / np.where(known, every_below, 1.0), unknown)[:, None]
    pseudo = _PSEUDO_BLOCKS * scale_s
    return (above + pseudo * overall) / (below + pseudo)
