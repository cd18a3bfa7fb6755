"""Models over sliding windows: are they what they were an hour, and a day, before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvscope.characterize.distributions import log_grid
from kvscope.characterize.windows import DAY_S
from kvscope.reuse_models.base import ReuseModel
from kvscope.reuse_models.evidence import Evidence, Span
from kvscope.reuse_models.exponential import Exponential
from kvscope.reuse_models.kaplan_meier import KaplanMeier
from kvscope.reuse_models.observations import Floats, Observations
from kvscope.reuse_models.results import StabilityFit, WindowFit, Windows
from kvscope.reuse_models.selection import MODELS, enough

DEFAULT_LENGTH_S = 3_600.0
_PER_WINDOW = 2  # a new window begins every half window
_LEAST_COUNT = 5  # so many windows' lengths fit into a trace if nobody chose a length
_MOST = 96
_ALIKE = 0.1  # of the reuse: windows that differ by less are called stable
_SURELY = 1.5  # so many times what chance does is a change
_CHANCE = 0.8687  # mean of the two-sample KS distance times sqrt(n m / (n + m))

_KINDS: Mapping[str, type[ReuseModel]] = {kind.name: kind for kind in MODELS}


@dataclass(frozen=True)
class _Seen:
    """One category in one window that shows enough of it."""

    span: Span
    waits: Observations
    curve: KaplanMeier
    exponential: Exponential
    chosen: ReuseModel

    @property
    def mean_gap_s(self) -> float:
        return 1.0 / self.exponential.params_["rate_per_s"]


def default_length_s(span: Span) -> float:
    """An hour, as in the paper, or a fifth of a shorter trace."""
    return min(DEFAULT_LENGTH_S, span.length_s / _LEAST_COUNT)


def sliding(span: Span, length_s: float) -> list[Span]:
    """Windows of that length that lie in `span`, one every half of it or rarer if too many."""
    halves = int((span.length_s - length_s) / length_s * _PER_WINDOW * (1 + 1e-12)) + 1
    every = max(-(-halves // _MOST), 1)
    step_s = every * length_s / _PER_WINDOW
    starts = [span.start_s + at * step_s for at in range(-(-halves // every))]
    return [Span(start, start + length_s) for start in starts]


def over_windows(
    evidence: Evidence,
    span: Span,
    length_s: float,
    use: Mapping[str, str],
    step: Callable[[str], None] = lambda _: None,
) -> Windows:
    """Fit every window on its own; `use` names the model of each category that has one.

    `step` is told of each window before it is fitted.

    A window is fitted to what was touched in it and seen before its end. Source: KVCache Cache in
    the Wild (ATC'25), Figures 15, 23 and 29.
    """
    spans = sliding(span, length_s)
    grid = log_grid(length_s)
    seen: dict[str, list[_Seen | None]] = {name: [] for name in use}
    for number, one in enumerate(spans, start=1):
        step(f"window {number} of {len(spans)}")
        for name, waits in zip(evidence.categories, evidence.waits(one), strict=True):
            if name in use:
                seen[name].append(_seen(one, waits, use[name]))
    step_s = spans[1].start_s - spans[0].start_s if len(spans) > 1 else length_s
    ahead = max(round(length_s / step_s), 1)
    fits: list[WindowFit] = []
    stability: list[StabilityFit] = []
    for name, row in seen.items():
        fits += _fits(name, row, ahead, grid)
        stability += _stability(name, row, ahead, step_s)
    return Windows(length_s, step_s, tuple(grid.tolist()), tuple(fits), tuple(stability))


def _seen(span: Span, waits: Observations, use: str) -> _Seen | None:
    if not enough(waits):
        return None
    merged = waits.merged()
    curve = KaplanMeier().fit(merged, waits.effective)
    exponential = Exponential().fit(waits, curve, intervals=False)
    if use == Exponential.name:
        return _Seen(span, waits, curve, exponential, exponential)
    chosen = _KINDS[use]().fit(waits, curve, intervals=False)
    return _Seen(span, waits, curve, exponential, chosen)


def _fits(name: str, row: Sequence[_Seen | None], ahead: int, grid: Floats) -> Iterator[WindowFit]:
    for at, one in enumerate(row):
        if one is None:
            continue
        later = row[at + ahead] if at + ahead < len(row) else None
        yield WindowFit(
            category=name,
            start_s=one.span.start_s,
            end_s=one.span.end_s,
            n=one.exponential.n_,
            censored=one.exponential.censored_,
            runs=one.waits.reused_runs,
            effective_n=one.waits.effective,
            reuse_probability=one.exponential.reuse_probability_,
            rate_per_s=one.exponential.params_["rate_per_s"],
            ks=one.exponential.ks_,
            next_ks=later.curve.distance(one.exponential.reuse_within) if later else None,
            distance=later.curve.distance(one.curve.reuse_within) if later else None,
            params={"reuse_probability": one.chosen.reuse_probability_, **one.chosen.params_},
            observed=tuple(one.curve.reuse_within(grid).tolist()),
        )


def _stability(
    name: str, row: Sequence[_Seen | None], ahead: int, step_s: float
) -> Iterator[StabilityFit]:
    if found := _alike(name, "window", row, ahead):
        yield found
    day = round(DAY_S / step_s)
    if day < len(row) and (found := _alike(name, "day", row, day)):
        yield found


def _alike(
    name: str, between: Literal["window", "day"], row: Sequence[_Seen | None], ahead: int
) -> StabilityFit | None:
    pairs = [(a, b) for a, b in zip(row, row[ahead:], strict=False) if a and b]
    if not pairs:
        return None
    known = [one for one in row if one]
    distances = [b.curve.distance(a.curve.reuse_within) for a, b in pairs]
    distance, chance = float(np.mean(distances)), float(np.mean([_chance(a, b) for a, b in pairs]))
    return StabilityFit(
        category=name,
        between=between,
        pairs=len(pairs),
        distance=distance,
        largest_distance=max(distances),
        by_chance=chance,
        next_ks=float(np.mean([b.curve.distance(a.exponential.reuse_within) for a, b in pairs])),
        reuse_probability_variation=_variation([w.exponential.reuse_probability_ for w in known]),
        mean_gap_variation=_variation([w.mean_gap_s for w in known]),
        stable=_stable(distance, chance),
    )


def _stable(distance: float, chance: float) -> bool | None:
    """None where windows show so little that they differ by chance alone."""
    if distance <= _ALIKE:
        return True
    return None if distance <= _SURELY * chance else False


def _chance(a: _Seen, b: _Seen) -> float:
    """What the curves of two such samples differ by on average if nothing has changed."""
    rate = 1.0 / a.waits.effective_reused + 1.0 / b.waits.effective_reused
    return float(_CHANCE * rate**0.5)


def _variation(values: Sequence[float]) -> float:
    mean = float(np.mean(values))
    return float(np.std(values)) / mean if mean else 0.0
