"""Facts on the time between two touches of a block."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.characterize.facts.numbers import Rates, Summary


@dataclass(frozen=True, slots=True)
class GapDistribution:
    """Reuse gaps of blocks last touched by one category; `cdf` runs along the grid."""

    category: str | None
    reused_blocks: int
    gap_s: Summary
    cdf: Rates


@dataclass(frozen=True, slots=True)
class ReuseGaps:
    """Reuse gaps, weighted by blocks, on the grid `at_s`; categories without reuse are absent."""

    at_s: Rates
    overall: GapDistribution | None
    by_category: tuple[GapDistribution, ...]


@dataclass(frozen=True, slots=True)
class HazardCurve:
    """Probability along the grid that a block is reused in the next second; None: none at risk."""

    category: str | None
    probability: tuple[float | None, ...]
    at_risk_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReuseHazard:
    """Reuse in the next second of blocks untouched for `at_s`."""

    at_s: Rates
    overall: HazardCurve | None
    by_category: tuple[HazardCurve, ...]
