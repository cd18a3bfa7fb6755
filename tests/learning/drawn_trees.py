"""Made-up trees over the features of requests, by which many are taken to end and many not."""

from __future__ import annotations

import math

import numpy as np

from kvscope.learning.ends.chances import FEATURES, Trees
from kvscope.learning.ends.file import FittedEnds

_LARGEST = {
    "new_tokens": 8000.0,
    "input_tokens": 20_000.0,
    "output_tokens": 1000.0,
    "shared_share": 1.0,
    "turns": 8.0,
    "since_s": 400.0,
    "mean_gap_s": 400.0,
    "head_requests": 500.0,
}


def drawn_ends(seed: int, trees: int = 50, threshold: float = 0.5) -> FittedEnds:
    """Return a fit of trees that compare any feature, some with an infinite edge."""
    rng = np.random.default_rng(seed)
    features, edges, values = [], [], []
    for _ in range(trees):
        first, low, high = rng.integers(0, len(FEATURES), 3).tolist()
        features.append((first, low, high))
        one, two, three = (
            _LARGEST[FEATURES[at]] * 2.0 ** float(rng.uniform(-7.0, 0.0)) for at in features[-1]
        )
        edges.append((one, two, math.inf if rng.random() < 0.2 else three))
        drawn = rng.normal(0.0, 0.3, 4)
        a, b, c, d = (drawn - drawn.mean()).tolist()
        values.append((a, b, c, d))
    start = float(rng.normal(0.0, 0.1))
    return FittedEnds(
        Trees(start, tuple(features), tuple(edges), tuple(values)), threshold, 600.0, 10_800.0, 1234
    )
