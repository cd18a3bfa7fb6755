"""The latency profile that explains measured times, how sure it is, and where it does not.

Minimized are the squares of the relative errors, with no parameter below 0: times span decades, an
SLO is broken by shares of them, and by absolute errors the longest prompts alone would decide.
Fitted are the cells' medians, since what disturbs a measurement makes it longer, sometimes by far.

Source: Lawson & Hanson, "Solving Least Squares Problems", chapter 23 (NNLS); Efron & Tibshirani,
"An Introduction to the Bootstrap", chapter 9 (pairs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvscope.calibrate.grid import Cell
from kvscope.errors import EngineError
from kvscope.simulate.latency.profile import PARAMETERS

DRAWS = 1000
ENOUGH = 0.10
"""A model that is off by more than this share in some cell is said not to be enough."""
LEAST_CELLS = 5
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class CellFit:
    """One cell: how often it was measured, the times' median and extremes, and the fit's.

    `off` is (fitted - median) / median, `linear_off` the same of the linear model.
    """

    uncached: int
    cached: int
    n: int
    median_s: float
    least_s: float
    most_s: float
    fitted_s: float
    off: float
    linear_off: float


@dataclass(frozen=True, slots=True)
class ProfileFit:
    """The parameters by their names in a profile, in seconds, their 95 % intervals, and the cells.

    `linear` are those of the papers' model, without a cost of pairs of tokens.
    """

    parameters: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    linear: Mapping[str, float]
    cells: tuple[CellFit, ...]

    @property
    def worst(self) -> CellFit:
        """The cell in which the fit is off most."""
        return max(self.cells, key=lambda cell: abs(cell.off))

    @property
    def linear_worst(self) -> CellFit:
        """The cell in which the linear model is."""
        return max(self.cells, key=lambda cell: abs(cell.linear_off))

    @property
    def linear_is_enough(self) -> bool:
        """Whether the linear model is near every cell."""
        return abs(self.linear_worst.linear_off) <= ENOUGH

    @property
    def is_enough(self) -> bool:
        """Whether the fit is."""
        return abs(self.worst.off) <= ENOUGH


def fit(ttft_s: Mapping[Cell, Sequence[float]], *, seed: int = 0) -> ProfileFit:
    """The fit to the times of each cell; those without any are left out.

    Intervals come from drawing cells, and times within them, again. Raises EngineError where too
    few cells were measured, or longer prompts take no longer.
    """
    known = {cell: np.asarray(times, dtype=float) for cell, times in ttft_s.items() if len(times)}
    if len(known) < LEAST_CELLS or len({cell.uncached for cell in known}) < len(PARAMETERS):
        raise EngineError(
            f"{len(known)} cells measured are too few to fit {len(PARAMETERS)} parameters",
            remedy="measure again",
        )
    terms = _terms(list(known))
    medians = np.array([np.median(times) for times in known.values()])
    found, line = _least(terms, medians), _least(terms[:, :2], medians)
    if not found[1:].any():
        raise EngineError(
            "longer prompts take no longer", remedy="measure longer ones with --max-tokens"
        )
    fitted, straight = terms @ found, terms[:, :2] @ line
    cells = tuple(
        CellFit(
            uncached=cell.uncached,
            cached=cell.cached,
            n=len(times),
            median_s=float(medians[at]),
            least_s=float(times.min()),
            most_s=float(times.max()),
            fitted_s=float(fitted[at]),
            off=float(fitted[at] / medians[at] - 1),
            linear_off=float(straight[at] / medians[at] - 1),
        )
        for at, (cell, times) in enumerate(known.items())
    )
    low, high = _intervals(terms, list(known.values()), seed)
    return ProfileFit(
        parameters=dict(zip(PARAMETERS, found.tolist(), strict=True)),
        intervals={
            name: (min(low[at], found[at]), max(high[at], found[at]))
            for at, name in enumerate(PARAMETERS)
        },
        linear=dict(zip(PARAMETERS, line.tolist(), strict=False)),
        cells=cells,
    )


def _terms(cells: Sequence[Cell]) -> NDArray[np.float64]:
    """What b, a and g are multiplied by in each cell."""
    uncached, cached = np.array(cells, dtype=float).T
    return np.column_stack((np.ones_like(uncached), uncached, uncached * (cached + uncached / 2)))


def _least(terms: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The parameters, none below 0, with the least squares of relative errors."""
    from scipy.optimize import nnls

    scaled = terms / times[:, None]
    size = np.linalg.norm(scaled, axis=0)  # terms differ by millions
    found, _ = nnls(scaled / size, np.ones(len(times)))
    return np.asarray(found / size)


def _intervals(
    terms: NDArray[np.float64], times: Sequence[NDArray[np.float64]], seed: int
) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    drawn = np.empty((DRAWS, terms.shape[1]))
    for draw in range(DRAWS):
        chosen = rng.integers(len(times), size=len(times))
        medians = np.array([np.median(rng.choice(times[at], len(times[at]))) for at in chosen])
        drawn[draw] = _least(terms[chosen], medians)
    tails = ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2)
    low, high = np.quantile(drawn, tails, axis=0)
    return low.tolist(), high.tolist()
