"""The numbers that every fact is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvscope.facts import Quantiles

Rates = tuple[float, ...]
HeatMap = tuple[Rates, ...]
Turns = Literal["all", "single", "multi"]


@dataclass(frozen=True, slots=True)
class Summary:
    """One distribution in six numbers; the field that holds it names the unit."""

    mean: float
    p50: float
    p80: float
    p90: float
    p99: float
    max: float

    @property
    def quantiles(self) -> Quantiles:
        """The four quantiles alone, as the JSON documents carry them."""
        return Quantiles(self.p50, self.p80, self.p90, self.p99)
