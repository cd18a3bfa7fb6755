"""The table of `wa` from counts of a window: how soon each category's blocks are reused.

The simulator takes the counts from a trace, an engine's plugin from the requests that it serves;
`kvscope fit` starts from the same formulas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int64s
from kvscope.policies.wa import reuse_rows

WINDOW_REFITS = 6  # a refit looks back so many times the time between two
SLOTS, AGES = 64, 4096.0  # slots of the time since a touch; the longest over the shortest
_PRIOR_BLOCKS = 50.0  # of the overall average, added to each category
_UNKNOWN_P = 0.5
_UNKNOWN_GAP_S = 60.0
_ROUNDS = 300
_SETTLED = 1e-6  # relative change of a round that ends the search


class ReuseCounts(NamedTuple):
    """The sufficient statistics of an exponential, in any number of cells (leading axes `...`).

    `reused` blocks waited `waited_s` seconds in total. `waiting` and `since_s` (`...` × B) are of B
    groups of blocks not used again: their number, and the mean seconds since their touch.
    """

    reused: Float64s
    waited_s: Float64s
    waiting: Float64s
    since_s: Float64s


class ExponentialFit(NamedTuple):
    """Reuse probability and rate of each cell."""

    p: Float64s
    rate_per_s: Float64s


def exponentials(
    counts: ReuseCounts, prior: ExponentialFit | None = None, prior_blocks: float = 0.0
) -> ExponentialFit:
    """Fit the defective exponential of every cell at once, by expectation and maximization.

    A waiting block will be reused with probability q = p e / (1 - p + p e), e = exp(-r since);
    then p = (reused + sum of q) / all, r = reused / (waited + sum of q since). `prior` adds
    `prior_blocks` of its own distribution, which draw cells with few blocks towards it. A cell
    without any block has p = 0 and r = 1.
    Source: Dempster, Laird and Rubin, Maximum likelihood from incomplete data (1977).
    """
    before = prior or ExponentialFit(np.zeros_like(counts.reused), np.ones_like(counts.reused))
    extra_reused = prior_blocks * before.p
    extra_s = extra_reused / before.rate_per_s
    all_blocks = counts.reused + counts.waiting.sum(axis=-1) + prior_blocks
    events = counts.reused + extra_reused
    seconds = np.maximum(counts.waited_s + extra_s, 1e-9)
    known = events > 0
    p = np.where(known, events / np.maximum(all_blocks, 1e-300), 0.0)
    rate = np.where(known, events / seconds, 1.0)
    active = np.flatnonzero(known.ravel() & (counts.waiting.sum(axis=-1) > 0).ravel())
    flat_p, flat_rate = p.ravel(), rate.ravel()
    waiting = counts.waiting.reshape(flat_p.size, -1)
    since = counts.since_s.reshape(waiting.shape)
    n, d, s = all_blocks.ravel(), events.ravel(), seconds.ravel()
    for _ in range(_ROUNDS):
        if not len(active):
            break
        a = active
        to_come = flat_p[a, None] * np.exp(-flat_rate[a, None] * since[a])
        expected = waiting[a] * to_come / ((1.0 - flat_p[a, None]) + to_come + 1e-300)
        new_p = np.minimum((d[a] + expected.sum(axis=1)) / n[a], 1.0)
        new_rate = d[a] / (s[a] + (expected * since[a]).sum(axis=1))
        moved = np.maximum(np.abs(new_p / flat_p[a] - 1.0), np.abs(new_rate / flat_rate[a] - 1.0))
        flat_p[a], flat_rate[a] = new_p, new_rate
        active = a[moved > _SETTLED]
    return ExponentialFit(flat_p.reshape(p.shape), flat_rate.reshape(p.shape))


def mean_lifetimes(
    waited_s: Float64s, appeared: Float64s, unknown_s: float, prior_blocks: float
) -> Float64s:
    """Return the mean lifetime of each category (the last axis), in seconds.

    A lifetime is the sum of a block's waits, so its mean is the waits of all reuses (`waited_s`)
    over the blocks that `appeared`. Categories with few blocks are shrunk towards the mean over all
    categories, which counts as `prior_blocks` more; without any data it is `unknown_s`. Source:
    KVCache Cache in the Wild (ATC'25), section 4.2 (life).
    """
    all_waited, all_appeared = waited_s.sum(axis=-1), appeared.sum(axis=-1)
    known = (all_waited > 0) & (all_appeared > 0)
    overall = np.where(known, all_waited / np.where(known, all_appeared, 1.0), unknown_s)
    means: Float64s = (waited_s + prior_blocks * overall[..., None]) / (appeared + prior_blocks)
    return means


def slots_of(age_s: Float64s, longest_s: float) -> Int64s:
    """Return the slot of each age: one of 64 ranges of the time since a touch, counted together.

    Slots 0 to 63 divide the time from `longest_s` / 4,096 to `longest_s` on a logarithmic scale;
    shorter ages are in the first slot, longer ones in the last.
    """
    far = 1.0 + np.log(np.maximum(age_s / longest_s, 1 / AGES)) / np.log(AGES)  # 0 to 1
    slots: Int64s = np.minimum((far * SLOTS).astype(np.int64), SLOTS - 1)
    return slots


def reuse_table(counts: ReuseCounts, touched_again: Float64s) -> Float64s:
    """Return the table of `wa` for each window and category: reuse probability, rate, lifetime.

    `counts` has axes (windows, categories[, slots]), see `slots_of`; `touched_again` (windows,
    categories) counts touches of known blocks. The defective exponential, right-censored at the
    window's end, and the mean lifetime are shrunk towards all categories together, which count as a
    few blocks more; before any block was touched all categories are alike.
    """
    appeared = np.maximum(counts.reused + counts.waiting.sum(axis=-1) - touched_again, 0.0)
    total = _all_categories(counts)
    alike = np.full(len(total.reused), 1.0)
    nothing_known = ExponentialFit(_UNKNOWN_P * alike, alike / _UNKNOWN_GAP_S)
    overall = exponentials(total, nothing_known, _PRIOR_BLOCKS)
    prior = ExponentialFit(*(np.broadcast_to(of[:, None], counts.reused.shape) for of in overall))
    fit = exponentials(counts, prior, _PRIOR_BLOCKS)
    life = mean_lifetimes(counts.waited_s, appeared, _UNKNOWN_GAP_S, _PRIOR_BLOCKS)
    return reuse_rows(fit.p, fit.rate_per_s, np.maximum(life, 1e-3))


def _all_categories(counts: ReuseCounts) -> ReuseCounts:
    waiting = counts.waiting.sum(axis=1)
    seconds = (counts.waiting * counts.since_s).sum(axis=1)
    since_s = seconds / np.where(waiting > 0, waiting, 1.0)
    return ReuseCounts(counts.reused.sum(axis=1), counts.waited_s.sum(axis=1), waiting, since_s)
