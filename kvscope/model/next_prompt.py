"""How many tokens the next turn will add: distributions as equally likely values."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvscope.model.observations import Floats

VALUES = 16


class NextPrompt:
    """P(Q > q) is the share of the prompts seen that added more than q tokens: no shape is assumed.

    Learned: `n_`, `mean_` and `values_`, `VALUES` equally likely ones, ascending, the nearest-rank
    quantiles in the middle of sixteen equal parts. There is no hazard and no censoring: a prompt
    is seen whole or not at all. Source: Tail-Optimized Caching for LLM Inference, section 4 (Q).
    """

    n_: int
    mean_: float
    values_: Floats

    def fit(self, tokens: Floats) -> Self:
        """Learn from one or more prompts."""
        ascending = np.sort(tokens)
        self.n_ = len(ascending)
        self.mean_ = float(ascending.mean())
        ranks = (np.arange(VALUES) + 0.5) / VALUES
        self.values_ = ascending[np.ceil(ranks * self.n_).astype(np.int64) - 1]
        self._ascending = ascending
        return self

    def quantile(self, rank: float) -> float:
        """The nearest-rank quantile."""
        return float(self._ascending[max(int(np.ceil(rank * self.n_)), 1) - 1])


def added_tokens(
    child: NDArray[np.int64],
    before: NDArray[np.integer],
    input_tokens: NDArray[np.integer],
    history_tokens: NDArray[np.integer],
) -> Floats:
    """Tokens that each turn `child` added to the history of `before`; 0 where that was cut."""
    added: Floats = input_tokens[child].astype(np.float64) - history_tokens[before]
    return np.maximum(added, 0.0)
