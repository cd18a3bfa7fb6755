"""From a target to a latency profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import EngineError
from kvscope.latency import LatencyProfile, write_profile
from kvscope.latency.grid import Cell, grid
from kvscope.latency.profile import PARAMETERS

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


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured TTFT; `cached_tokens` as the server tells it, None where it does not."""

    ttft_s: float
    cached_tokens: int | None


class Target(Protocol):
    """Something that can be asked how long the first token takes."""

    def read(self, cell: Cell) -> Reading:
        """Measure one cell once, with tokens that nobody has seen. Raises EngineError."""


@dataclass(slots=True)
class Readings:
    """All that was measured.

    `ttft_s` has the times of each cell in the order of measuring; `uncached_prefixes` the cells
    whose prefix the server says was not cached as asked, with what it said; `told` whether it says
    anything of it. `ended` is why it ended before its time, empty where it did not.
    """

    rounds: int
    ttft_s: dict[Cell, list[float]]
    uncached_prefixes: dict[Cell, int] = field(default_factory=dict)
    told: bool = False
    ended: str = ""

    @property
    def count(self) -> int:
        """How many times were measured."""
        return sum(map(len, self.ttft_s.values()))

    @property
    def wanted(self) -> int:
        """How many were to be."""
        return self.rounds * len(self.ttft_s)


def measure(
    target: Target,
    cells: Sequence[Cell],
    *,
    rounds: int,
    seed: int = 0,
    advance: Callable[[int], None],
    stop: Event,
) -> Readings:
    """Measure every cell `rounds` times, after one round over the smallest and the largest.

    What was measured is kept when `stop` is set or the target fails in the middle; EngineError
    where it fails before anything is measured.
    """
    found = Readings(rounds, {cell: [] for cell in cells})
    rng = np.random.default_rng(seed)
    try:
        for cell in (min(cells), max(cells, key=sum), max(cells)):
            if not stop.is_set():
                target.read(cell)  # warms up: kernels compile, memory is touched first
        for _ in range(rounds):
            for at in rng.permutation(len(cells)):
                if stop.is_set():
                    found.ended = "interrupted"
                    return found
                _note(found, cells[at], target.read(cells[at]))
                advance(1)
    except EngineError as error:
        if not found.count:
            raise
        found.ended = str(error)
    return found


def _note(found: Readings, cell: Cell, read: Reading) -> None:
    if read.cached_tokens is not None:
        found.told = True
        if read.cached_tokens != cell.cached:
            found.uncached_prefixes[cell] = read.cached_tokens
            return
    found.ttft_s[cell].append(read.ttft_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: `engine` is vLLM, torch, or `server` for one that was running already."""

    engine: str
    version: str | None
    device: str | None
    model: str
    flags: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """All of it that is known."""
        version = f"{self.engine} {self.version}" if self.version else self.engine
        return ", ".join(part for part in (self.model, version, self.device) if part)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile, the fit behind it, and how the measuring went.

    `readings` of `wanted` measurements were made; `ended` is why not all, or empty. `checked`:
    whether the server told that prefixes were cached as asked; `not_cached` are cells in which they
    were not, and which are left out, with the tokens that were.
    """

    measured: Measured
    profile: LatencyProfile
    fit: ProfileFit
    readings: int
    wanted: int
    checked: bool
    not_cached: tuple[tuple[Cell, int], ...] = ()
    ended: str = ""


def write(path: Path, calibration: Calibration) -> None:
    """Write the profile to `path`, below comments with what it was fitted to."""
    comments = [
        f"{cell.uncached} {cell.cached}: {cell.median_s * 1e3:.3f}, {cell.fitted_s * 1e3:.3f}"
        f" ({cell.off:+.1%}), n = {cell.n}"
        for cell in calibration.fit.cells
    ]
    header = "uncached cached tokens: measured (median ms), fitted ms"
    write_profile(path, calibration.profile, [header, *comments])


def calibrate(
    target: Target,
    measured: Measured,
    *,
    longest: int,
    rounds: int,
    seed: int = 0,
    name: str | None = None,
    advance: Callable[[int], None],
    stop: Event,
) -> Calibration:
    """Measure `target` with prompts of up to `longest` tokens and fit a profile.

    Raises EngineError where the target fails before there is enough, or caches nothing.
    """
    found = measure(target, grid(longest), rounds=rounds, seed=seed, advance=advance, stop=stop)
    _refuse_uncached(found)
    made = fit(found.ttft_s, seed=seed)
    done = f"{found.count} of {found.wanted}" if found.ended else str(found.count)
    source = (
        f"kvscope calibrate, {datetime.now(UTC):%Y-%m-%d}, {measured.in_words};"
        f" {done} measurements of {len(found.ttft_s)} pairs of token counts,"
        f" prompts of up to {longest:,} tokens"
    )
    profile = LatencyProfile(
        name=name or measured.in_words,
        source=source,
        intervals=made.intervals,
        **made.parameters,
    )
    return Calibration(
        measured=measured,
        profile=profile,
        fit=made,
        readings=found.count,
        wanted=found.wanted,
        checked=found.told,
        not_cached=tuple(sorted(found.uncached_prefixes.items())),
        ended=found.ended,
    )


def _refuse_uncached(found: Readings) -> None:
    """Raise EngineError where every prefix that should have been cached was not."""
    prefixed = [cell for cell in found.ttft_s if cell.cached]
    if found.uncached_prefixes and not any(found.ttft_s[cell] for cell in prefixed):
        cell, cached = max(found.uncached_prefixes.items())
        raise EngineError(
            f"{cached} of {cell.cached} tokens were cached that had just been sent",
            remedy="turn prefix caching on (vLLM: --enable-prefix-caching), give it more blocks, or"
            " ask for shorter prompts with --max-tokens",
        )
