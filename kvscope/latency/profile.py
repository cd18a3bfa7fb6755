"""The time to first token (TTFT) of a prompt, as a function of what had to be computed.

TTFT(u, c) = β + α·u + γ·u·(c + u/2), u uncached and c cached tokens. β is the cost of a request,
α that of a token, γ that of attending from one token to another: each of the u computed tokens
looks at the c cached ones before it and, on average, at half of the others. γ = 0 is the papers'
linear model.

Source: Tail-Optimized Caching for LLM Inference, equation 2 (the linear model).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import UsageError

Tokens = int | NDArray[np.integer]

PARAMETERS = ("base_s", "per_token_s", "per_token_pair_s")


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """How long one engine takes to the first token of a prompt that does not wait.

    `base_s` is β, `per_token_s` α and `per_token_pair_s` γ, all in seconds, at least 0; a longer
    prompt takes longer, so one of the last two is above 0. `source` says where they come from.
    `intervals` holds (low, high) of a parameter, in seconds, where it was measured.
    Raises UsageError for values that no engine has.
    """

    name: str
    source: str
    base_s: float
    per_token_s: float
    per_token_pair_s: float = 0.0
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for parameter in PARAMETERS:
            value = getattr(self, parameter)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(
                    f"{parameter} is {value}",
                    where=f"latency profile {self.name!r}",
                    remedy="give a time of 0 or more",
                )
        if not (self.per_token_s or self.per_token_pair_s):
            raise UsageError(
                "tokens cost no time",
                where=f"latency profile {self.name!r}",
                remedy="give per_token_s or per_token_pair_s above 0",
            )

    def ttft_s(self, uncached: Tokens, cached: Tokens) -> NDArray[np.float64]:
        """Seconds to the first token, unloaded, for each pair of token counts."""
        computed = np.asarray(uncached, dtype=np.float64)
        seen = np.asarray(cached, dtype=np.float64) + computed / 2
        per_token = self.per_token_s + self.per_token_pair_s * seen
        return np.asarray(self.base_s + computed * per_token)

    def xi_tokens(self, xi_s: float) -> int:
        """The most tokens that may stay uncached: the largest u with TTFT(u, 0) ≤ `xi_s`.

        0 where even an empty prompt takes longer. Raises UsageError if `xi_s` is not finite.
        """
        if not math.isfinite(xi_s):
            raise UsageError(f"{xi_s} is no latency threshold", remedy="write for example 200ms")
        budget = xi_s - self.base_s
        if budget <= 0:
            return 0
        alpha, gamma = self.per_token_s, self.per_token_pair_s
        # The quadratic's root in the form that γ = 0 does not divide by zero.
        most = math.floor(2 * budget / (alpha + math.sqrt(alpha * alpha + 2 * gamma * budget)))
        while self.ttft_s(most, 0) > xi_s:  # rounding: by one at the most
            most -= 1
        while self.ttft_s(most + 1, 0) <= xi_s:
            most += 1
        return most
