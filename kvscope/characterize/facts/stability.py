"""Facts on how much all of it changes over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Quantity = Literal["ideal_hit_rate", "reuse_gap_p50_s", "reuse_gap_p80_s", "next_turn_probability"]


@dataclass(frozen=True, slots=True)
class Variation:
    """How much one quantity varies between windows that have a value for it.

    `variation` is the coefficient of variation, deviation / mean; None where the mean is 0.
    """

    quantity: Quantity
    category: str | None
    windows: int
    mean: float
    deviation: float
    variation: float | None


@dataclass(frozen=True, slots=True)
class Stability:
    """Variation between equal windows; between days where the trace spans several."""

    window_s: float
    between_windows: tuple[Variation, ...]
    between_days: tuple[Variation, ...]
