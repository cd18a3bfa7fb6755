"""Reuse drawn from known distributions, as a window shows it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvscope.reuse_models.observations import Observations

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
HORIZON_S = 1_000.0

TRUTH: dict[str, tuple[Draw, dict[str, float]]] = {
    "exponential": (lambda rng, n: rng.exponential(60.0, n), {"rate_per_s": 1 / 60}),
    "hyperexponential": (
        lambda rng, n: np.where(
            rng.random(n) < 0.6, rng.exponential(5.0, n), rng.exponential(150.0, n)
        ),
        {"fast_share": 0.6, "fast_rate_per_s": 1 / 5, "slow_rate_per_s": 1 / 150},
    ),
    "weibull": (lambda rng, n: 60.0 * rng.weibull(0.7, n), {"scale_s": 60.0, "shape": 0.7}),
    "lognormal": (
        lambda rng, n: 40.0 * np.exp(1.2 * rng.standard_normal(n)),
        {"median_s": 40.0, "sigma": 1.2},
    ),
}


def observed(
    draw: Draw, runs: int, seed: int, *, p: float = 0.6, blocks: float = 1.0, alike: int = 1
) -> Observations:
    """Return runs touched evenly over the window, reused with probability `p`, seen until its end.

    A run has `blocks` blocks on average (geometric), and `alike` runs after one another are one
    cluster: they share their wait, if there is one, and when they were touched.
    """
    rng = np.random.default_rng(seed)
    several = -(-runs // alike)
    left_s = rng.uniform(0.0, HORIZON_S, several)
    waited_s = np.where(rng.random(several) < p, draw(rng, several), np.inf)
    reused = waited_s < left_s
    cluster = np.repeat(np.arange(several), alike)[:runs]
    return Observations.of(
        np.minimum(waited_s, left_s)[cluster],
        reused[cluster],
        rng.geometric(1 / blocks, runs) if blocks > 1 else None,
        cluster,
    )
