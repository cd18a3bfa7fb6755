"""Facts on how long blocks are of use, and how many at once."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.characterize.facts.numbers import Rates, Summary


@dataclass(frozen=True, slots=True)
class LifetimeDistribution:
    """Lifetimes of the blocks first touched by one category, those never reused included as 0."""

    category: str | None
    blocks: int
    never_reused_share: float
    lifetime_s: Summary
    cdf: Rates


@dataclass(frozen=True, slots=True)
class WindowLifetime:
    """Mean lifetime of the blocks that one category first touched in one window."""

    start_s: float
    category: str
    blocks: int
    mean_s: float


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Lifetimes of cacheable blocks on the grid `at_s`, and over time."""

    at_s: Rates
    window_s: float
    overall: LifetimeDistribution | None
    by_category: tuple[LifetimeDistribution, ...]
    over_time: tuple[WindowLifetime, ...]


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Blocks that will be reused, over time: the capacity that would lose none of them.

    `blocks[i]` is the peak between `at_s[i]` and `at_s[i + 1]` (the last: the trace's end). Bytes
    are known once a model is named, `peak_hbm_multiple` once its memory is.
    """

    peak_blocks: int
    mean_blocks: float
    p99_blocks: int
    at_s: Rates
    blocks: tuple[int, ...]
    peak_bytes: int | None = None
    mean_bytes: float | None = None
    p99_bytes: int | None = None
    peak_hbm_multiple: float | None = None
