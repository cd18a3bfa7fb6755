"""Learn the probability of a next turn: gradient boosting of trees of depth two, in NumPy.

Own code, since an engine evaluates the trees without a library and the same requests have to give
the same trees to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.core.arrays import Bools, Int64s
from kvscope.learning.ends.chances import Trees
from kvscope.policies.base import Floats

ROUNDS, RATE = 50, 0.1
BINS = 16  # distinct values of a feature, equally frequent
_PULL = 1.0  # pseudo-observations (in units of the loss's curvature) that draw a leaf to 0
_LEAST = 2.0  # curvature on each side of a cut: 8 requests where both outcomes are as likely
_NO_CUT = float("inf")  # everything is below


class _Cut(NamedTuple):
    """Codes above `code` of feature `feature` go one way, the others the other."""

    feature: int
    code: int


class _LossSums(NamedTuple):
    """Slope and curvature of the loss by feature and code (F × BINS)."""

    slope: Floats
    curve: Floats

    def without(self, other: _LossSums) -> _LossSums:
        """Return the sums without the requests of `other`."""
        return _LossSums(self.slope - other.slope, self.curve - other.curve)


def boosted(known: Floats, returned: Bools, rounds: int = ROUNDS) -> Trees:
    """Return trees for requests with features `known` (R × F), of which some `returned`.

    Each tree takes a Newton step on the logistic loss, `RATE` of it, by the two-level cuts that
    lower the loss most; cuts lie between quantiles. Ties go to the first feature and the lowest
    cut, so the same requests give the same trees, to the bit.
    Source: Friedman, Greedy function approximation: a gradient boosting machine (2001), with the
    second-order steps of Chen and Guestrin, XGBoost (2016), section 2.2.
    """
    edges = _edges(known)
    codes = _codes(known, edges)
    share = (np.count_nonzero(returned) + 1.0) / (len(returned) + 2.0)
    start = float(np.log(share / (1.0 - share)))
    odds = np.full(len(returned), start)
    cuts, values = [], []
    for _ in range(rounds):
        p = _logistic(odds)
        slope, curve = p - returned, p * (1.0 - p)
        first, below, above = _tree(codes, slope, curve)
        if first is None:
            break
        high = codes[first.feature] > first.code
        leaf = np.where(high, 2 + _beyond(codes, above), _beyond(codes, below))
        down, bend = (np.bincount(leaf, of, minlength=4) for of in (slope, curve))
        step = -RATE * down / (bend + _PULL)
        odds += step[leaf]
        cuts.append((first, below, above))
        values.append(tuple(step.tolist()))
    return Trees(
        start,
        tuple((a.feature, b.feature if b else 0, c.feature if c else 0) for a, b, c in cuts),
        tuple((_edge(edges, a), _edge(edges, b), _edge(edges, c)) for a, b, c in cuts),
        tuple(values),
    )


def chances(trees: Trees, known: Floats) -> Floats:
    """Return `chance` of each of R requests with features `known` (R × F)."""
    odds = np.full(len(known), trees.start)
    rows = zip(trees.features, trees.edges, trees.values, strict=True)
    for (first, low, high), edges, values in rows:
        above = known[:, first] >= edges[0]
        later = np.where(above, known[:, high] >= edges[2], known[:, low] >= edges[1])
        odds += np.array(values)[2 * above + later]
    return _logistic(odds)


def _logistic(odds: Floats) -> Floats:
    small = np.exp(-np.abs(odds))
    p: Floats = np.where(odds < 0.0, small, 1.0) / (1.0 + small)
    return p


def _edges(known: Floats) -> list[Floats]:
    """Return the values at which each feature's codes begin: all but the least, or quantiles."""
    at = np.arange(1, BINS) / BINS
    edges = []
    for column in known.T:
        values = np.unique(column)
        if len(values) > BINS:
            quantiles = np.unique(np.quantile(column, at, method="inverted_cdf"))
            edges.append(quantiles[quantiles > values[0]])
        else:
            edges.append(values[1:])
    return edges


def _codes(known: Floats, edges: list[Floats]) -> Int64s:
    """Return how many edges of its feature each value reaches (F × R)."""
    both = zip(edges, known.T, strict=True)
    return np.stack([np.searchsorted(own, column, side="right") for own, column in both])


def _edge(edges: list[Floats], cut: _Cut | None) -> float:
    return _NO_CUT if cut is None else float(edges[cut.feature][cut.code])


def _beyond(codes: Int64s, cut: _Cut | None) -> Int64s:
    if cut is None:
        return np.zeros(codes.shape[1], dtype=np.int64)
    beyond: Int64s = (codes[cut.feature] > cut.code).astype(np.int64)
    return beyond


def _tree(codes: Int64s, slope: Floats, curve: Floats) -> tuple[_Cut | None, ...]:
    """Return the best cut, and those below it and above it; None where none helps."""
    whole = _sums(codes, slope, curve)
    first = _best(whole)
    if first is None:
        return None, None, None
    above = np.flatnonzero(codes[first.feature] > first.code)
    high = _sums(codes[:, above], slope[above], curve[above])
    return first, _best(whole.without(high)), _best(high)


def _sums(codes: Int64s, slope: Floats, curve: Floats) -> _LossSums:
    return _LossSums(
        np.stack([np.bincount(column, slope, minlength=BINS) for column in codes]),
        np.stack([np.bincount(column, curve, minlength=BINS) for column in codes]),
    )


def _best(sums: _LossSums) -> _Cut | None:
    """Return the cut after which the best steps on both sides lower the loss most."""
    slope, curve = sums.slope[0].sum(), sums.curve[0].sum()
    low_slope, low_curve = (of.cumsum(axis=1)[:, :-1] for of in sums)
    high_slope, high_curve = slope - low_slope, curve - low_curve
    gain = low_slope**2 / (low_curve + _PULL) + high_slope**2 / (high_curve + _PULL)
    gain[(low_curve < _LEAST) | (high_curve < _LEAST)] = 0.0
    feature, code = divmod(int(gain.argmax()), gain.shape[1])
    least = slope**2 / (curve + _PULL)
    return _Cut(feature, code) if gain[feature, code] > least * (1.0 + 1e-9) + 1e-12 else None
