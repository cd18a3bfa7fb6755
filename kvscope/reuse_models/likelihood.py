"""Maximum likelihood of a defective model under right-censoring, and its covariance.

A touched block is ever reused with probability p, after a wait distributed by F: S(t) = 1 - p F(t).
A block reused after t contributes log p + log f(t), a block still waiting after t log S(t).
Parameters are unbounded here: first the logit of p, then those of F as its shape defines them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s
from kvscope.reuse_models.observations import Observations

LEVEL = 0.95
_LOGIT_BOUND = 15.0  # p within 3e-7 of 0 or 1 is 0 or 1
_NEWTON_STEPS = 6
_LEAST = 1e-15  # least probability, so that it has a logarithm
_STEP = 1e-4  # of the central differences
_FLAT = 5.0  # a free parameter with a larger standard deviation is unknown


class Shape(Protocol):
    """A distribution of waits with K free parameters, at N times t."""

    def log_density(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        """Return log f(t) and its derivatives, K × N."""
        ...

    def survival(self, t: Float64s, free: Float64s) -> tuple[Float64s, Float64s]:
        """Return 1 - F(t) and its derivatives, K × N."""
        ...


class Maximum(Struct, frozen=True):
    """Free parameters of the greatest likelihood, logit of p first.

    `log_likelihood` is the sum over blocks. `converged` is false where no maximum was reached.
    """

    free: Float64s
    log_likelihood: float
    converged: bool


def expit(x: float) -> float:
    """Return the probability whose logit is x."""
    return float(1.0 / (1.0 + np.exp(-x)))


def logit(p: float) -> float:
    """Return the inverse of `expit`, bounded."""
    edge = expit(-_LOGIT_BOUND)
    inside = min(max(p, edge), 1.0 - edge)
    return float(np.log(inside / (1.0 - inside)))


def scores(shape: Shape, of: Observations, free: Float64s) -> tuple[Float64s, Float64s]:
    """Return a block's log-likelihood by run, N, and its derivatives, (1 + K) × N."""
    p = expit(free[0])
    value, slope = np.empty(len(of.weight)), np.empty((len(free), len(of.weight)))
    hit, waiting, soon = of.reused & ~of.at_once, ~of.reused, of.at_once
    log_f, d_log_f = shape.log_density(of.waited_s[hit], free[1:])
    value[hit] = np.log(p) + log_f
    slope[0, hit], slope[1:, hit] = 1.0 - p, d_log_f
    if np.any(soon):
        left, d_left = shape.survival(of.waited_s[soon], free[1:])
        within = np.maximum(1.0 - left, _LEAST)
        value[soon] = np.log(p * within)
        slope[0, soon], slope[1:, soon] = 1.0 - p, -d_left / within
    left, d_left = shape.survival(of.waited_s[waiting], free[1:])
    still = (1.0 - p) + p * left
    value[waiting] = np.log(still)
    slope[0, waiting] = -p * (1.0 - p) * (1.0 - left) / still
    slope[1:, waiting] = p * d_left / still
    return value, slope


def maximize(shape: Shape, of: Observations, start: Float64s, bounds: Float64s) -> Maximum:
    """Return the maximum from `start` within `bounds` (K × 2, of the shape's own parameters)."""
    from scipy.optimize import minimize

    box = np.vstack(([[-_LOGIT_BOUND, _LOGIT_BOUND]], bounds))
    share = of.weight / of.total

    def loss(free: Float64s) -> tuple[float, Float64s]:
        inside = np.clip(free, box[:, 0], box[:, 1])
        value, slope = scores(shape, of, inside)
        outside = free - inside
        return float(outside @ outside - share @ value), 2 * outside - slope @ share

    # Not L-BFGS-B: its tiny BLAS calls wait for each other's threads on a busy machine.
    begin = np.clip(start, box[:, 0], box[:, 1])
    solution = minimize(
        loss, begin, jac=True, method="BFGS", options={"maxiter": 200, "gtol": 1e-6}
    )
    near = np.clip(np.asarray(solution.x, dtype=np.float64), box[:, 0], box[:, 1])
    free = _polished(shape, of, near, box)
    least, slope = loss(free)
    inside = (free > box[:, 0]) & (free < box[:, 1])
    settled = bool(np.all(np.abs(slope[inside]) < 1e-5))
    return Maximum(free, -least * of.total, settled)


def _polished(shape: Shape, of: Observations, free: Float64s, box: Float64s) -> Float64s:
    """Take Newton's last steps while each raises the likelihood; none where a bound is met."""
    if np.any((free <= box[:, 0]) | (free >= box[:, 1])):
        return free
    value = float(of.weight @ scores(shape, of, free)[0])
    for _ in range(_NEWTON_STEPS):
        slope = scores(shape, of, free)[1] @ of.weight
        curvature = information(shape, of, free)
        if not _positive(curvature):
            return free
        step = np.linalg.solve(curvature, slope)
        further = free + step
        if np.any((further <= box[:, 0]) | (further >= box[:, 1])):
            return free
        higher = float(of.weight @ scores(shape, of, further)[0])
        if not higher >= value:
            return free
        free, value = further, higher
        if np.all(np.abs(step) < 1e-9):
            return free
    return free


def information(shape: Shape, of: Observations, free: Float64s) -> Float64s:
    """Return minus the second derivatives of the log-likelihood, by central differences."""
    columns = []
    for at in range(len(free)):
        step = np.zeros(len(free))
        step[at] = _STEP
        up = scores(shape, of, free + step)[1] @ of.weight
        down = scores(shape, of, free - step)[1] @ of.weight
        columns.append((down - up) / (2 * _STEP))
    whole = np.array(columns)
    return (whole + whole.T) / 2


def covariance(shape: Shape, of: Observations, free: Float64s) -> Float64s | None:
    """Return the covariance of the free parameters, None where the data do not identify them.

    Blocks of one run share their wait, and runs of one cluster may be alike, so the inverse of the
    information is too small. This is the sandwich: scores are summed by cluster, and their spread
    between clusters counts.
    Source: Liang and Zeger, Longitudinal data analysis using generalized linear models (1986).
    """
    bread = information(shape, of, free)
    if of.clusters < 2 or not _positive(bread):
        return None
    slope = scores(shape, of, free)[1] * of.weight
    by_cluster = np.array([np.bincount(of.cluster, row, minlength=of.clusters) for row in slope])
    by_cluster -= by_cluster.mean(axis=1, keepdims=True)
    filling = by_cluster @ by_cluster.T * of.clusters / (of.clusters - 1)
    inverse = np.linalg.inv(bread)
    sandwich: Float64s = inverse @ filling @ inverse
    if not np.all(np.isfinite(sandwich)) or np.any(np.diag(sandwich) > _FLAT**2):
        return None
    return sandwich


def quantile(clusters: int) -> float:
    """Return the half-width of an interval of `LEVEL` in standard deviations (Student's t)."""
    from scipy.special import stdtrit

    return float(stdtrit(max(clusters - 1, 1), 0.5 + LEVEL / 2))


def _positive(matrix: Float64s) -> bool:
    return bool(np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix)[0] > 0)
