"""Calibration: measure TTFT over a grid of token counts and fit a latency profile to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from kvscope.core.arrays import Float64s
from kvscope.core.errors import EngineError, UsageError
from kvscope.latency.decoding import DecodingFit, Step, StepFit, fit_steps, least_squares
from kvscope.latency.file import write_profile
from kvscope.latency.profile import PARAMETERS, LatencyProfile

DRAWS = 1000
ENOUGH = 0.10
"""A model that is off by more than this share in some cell is reported as insufficient."""
LEAST_CELLS = 5
_CONFIDENCE = 0.95
_SHORTEST = 64
_ALIGNED = 256  # a multiple of every usual block size: only full blocks are cached
_CACHED_SHARES = (1 / 8, 1 / 2, 3 / 4)
_FLOORS = 40  # tried, from the shortest to half of the longest prompt
_EXACT = 1e-12  # errors below it are rounding


class Cell(NamedTuple):
    """A prompt of `cached` tokens, which the engine has cached, and `uncached` further ones."""

    uncached: int
    cached: int


def grid(longest: int) -> tuple[Cell, ...]:
    """Return the cells to measure, for prompts of up to `longest` tokens.

    Cold prompts double in length from 64 tokens on, which separates β, α and the curvature; every
    other length recurs behind three cached prefixes, which shows the cost of attention to cached
    tokens. Raises UsageError where `longest` is too short for such a grid.
    """
    if longest < 2 * _ALIGNED:
        raise UsageError(
            f"prompts of {longest} tokens are too short to calibrate with",
            where="--max-tokens",
            remedy=f"measure at least {2 * _ALIGNED}",
        )
    cold = [_SHORTEST]
    while 2 * cold[-1] < longest:
        cold.append(2 * cold[-1])
    cold.append(longest)
    prefixes = {int(longest * share) // _ALIGNED * _ALIGNED for share in _CACHED_SHARES} - {0}
    behind = [
        Cell(uncached, cached)
        for cached in sorted(prefixes)
        for uncached in cold[::2]
        if uncached + cached <= longest
    ]
    return (*(Cell(uncached, 0) for uncached in cold), *behind)


class TtftReading(Struct, frozen=True):
    """One measured TTFT; `cached_tokens` is None where the server does not report them."""

    ttft_s: float
    cached_tokens: int | None


class Measurable(Protocol):
    """An engine whose TTFT and steps of decoding can be measured."""

    def read(self, cell: Cell) -> TtftReading:
        """Return a cell's TTFT, measured once with tokens never sent before. Raises EngineError."""

    def step_s(self, step: Step) -> float:
        """Return the seconds of a step of decoding, measured once. Raises EngineError."""

    def request_s(self) -> float | None:
        """Return a request's mean seconds outside the engine's steps (HTTP), None if unknown."""


class CalibrationRun(Struct):
    """All measurements of a calibration.

    `ttft_s` has the times of each cell in the order of measuring, `step_s` those of each step.
    `uncached_prefixes` has the cells whose prefix the server had not cached as intended, with the
    number of tokens cached instead. `reports_cached`: the server reports cached tokens at all.
    `request_s` is the time of a request outside the engine's steps, None if the engine does not
    report it. `ended` is why the run ended early, or empty.
    """

    rounds: int
    ttft_s: dict[Cell, list[float]]
    step_s: dict[Step, list[float]] = field(default_factory=dict)
    uncached_prefixes: dict[Cell, int] = field(default_factory=dict)
    reports_cached: bool = False
    request_s: float | None = None
    ended: str = ""

    @property
    def count(self) -> int:
        """Return the number of measurements made."""
        return sum(map(len, (*self.ttft_s.values(), *self.step_s.values())))

    @property
    def planned(self) -> int:
        """Return the number of measurements of a complete run."""
        return self.rounds * (len(self.ttft_s) + len(self.step_s))


def measure(
    engine: Measurable,
    cells: Sequence[Cell],
    steps: Sequence[Step] = (),
    *,
    rounds: int,
    seed: int = 0,
    advance: Callable[[int], None],
    stop: Event,
) -> CalibrationRun:
    """Measure every cell and step `rounds` times, after a warm-up with the extreme cells.

    Steps of decoding come last: on a GPU they need the memory of the prefixes. Measurements are
    kept when `stop` is set or the engine fails later; raises EngineError if it fails before the
    first one. After each one `advance(1)` is called.
    """
    run = CalibrationRun(rounds, {cell: [] for cell in cells}, {step: [] for step in steps})
    rng = np.random.default_rng(seed)
    try:
        for cell in (min(cells), max(cells, key=sum), max(cells)):
            if not stop.is_set():
                engine.read(cell)  # warms up: kernels compile, memory is touched first
        for _ in range(rounds):
            for index in rng.permutation(len(cells)):
                if stop.is_set():
                    run.ended = "interrupted"
                    return run
                cell = cells[index]
                reading = engine.read(cell)
                run.reports_cached |= reading.cached_tokens is not None
                if reading.cached_tokens in {None, cell.cached}:
                    run.ttft_s[cell].append(reading.ttft_s)
                elif reading.cached_tokens is not None:
                    run.uncached_prefixes[cell] = reading.cached_tokens
                advance(1)
        run.request_s = engine.request_s()
        for step in sorted(rounds * list(steps)):
            if stop.is_set():
                run.ended = "interrupted"
                return run
            run.step_s[step].append(engine.step_s(step))
            advance(1)
    except EngineError as error:
        if not run.count:
            raise
        run.ended = str(error)
    return run


class TtftRange(Struct, frozen=True):
    """Median, least and largest of the measured TTFTs (ms)."""

    median: float
    least: float
    most: float


class CellFit(Struct, frozen=True):
    """The TTFT of one cell in seconds: median and extremes of `n` measurements, and the fitted one.

    `off` is (fitted - median) / median, `linear_off` the same for the linear model.
    """

    DOCUMENT: ClassVar[str] = (
        "uncached_tokens=uncached cached_tokens=cached n ttft_ms fitted_ms off linear_off"
    )
    uncached: int
    cached: int
    n: int
    median_s: float
    least_s: float
    most_s: float
    fitted_s: float
    off: float
    linear_off: float

    @property
    def ttft_ms(self) -> TtftRange:
        """The measured times in milliseconds."""
        return TtftRange(self.median_s * 1e3, self.least_s * 1e3, self.most_s * 1e3)


class ProfileFit(Struct, frozen=True):
    """Parameters by their names in a profile, in seconds, their 95 % intervals, and the cells.

    `decoding` is None where no steps were measured or none could be fitted, `request_s` (time of a
    request outside the engine's steps) where the engine does not report it.
    """

    parameters: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    cells: tuple[CellFit, ...]
    decoding: DecodingFit | None = None
    request_s: float | None = None

    def profile(self, name: str, source: str, measured_tokens: int) -> LatencyProfile:
        """Return the latency profile of these parameters and intervals.

        `source` says where they come from. `measured_tokens` is the longest prompt measured; the
        profile states it, so that use cases can note prompts beyond it.
        """
        steps = self.decoding.parameters if self.decoding else {}
        return LatencyProfile(
            name=name,
            source=source,
            **self.parameters,
            **steps,
            request_s=min(self._outside_s(), self.parameters["base_s"]),
            intervals=self.intervals,
            measured_tokens=measured_tokens,
        )

    def _outside_s(self) -> float:
        """Return the part of β that passes outside of the engine's steps, in seconds.

        If unknown, it is estimated as the time of a short prompt minus a step of decoding: too
        much, as a GPU launches the kernels of a prompt more slowly than those of outputs.
        """
        if self.request_s is not None or self.decoding is None:
            return self.request_s or 0.0
        base_s, floor_s = (self.parameters.get(name, 0.0) for name in ("base_s", "floor_s"))
        return max(base_s + floor_s - self.decoding.parameters["decode_base_s"], 0.0)

    @property
    def worst(self) -> CellFit:
        """Return the cell with the largest relative error of the fit."""
        return max(self.cells, key=lambda cell: abs(cell.off))

    @property
    def linear_worst(self) -> CellFit:
        """Return the cell with the largest relative error of the model β + α·u (γ = 0)."""
        return max(self.cells, key=lambda cell: abs(cell.linear_off))

    @property
    def linear_is_enough(self) -> bool:
        """Return whether the linear model is off by at most 10 % (`ENOUGH`) in every cell."""
        return abs(self.linear_worst.linear_off) <= ENOUGH

    @property
    def is_enough(self) -> bool:
        """Return whether the fit is off by at most 10 % (`ENOUGH`) in every cell."""
        return abs(self.worst.off) <= ENOUGH


def fit(ttft_s: Mapping[Cell, Sequence[float]], *, seed: int = 0, draws: int = DRAWS) -> ProfileFit:
    """Return the profile's parameters, fitted to the times (s) of the cells that have any.

    A floor, the least time of the uncached tokens, is fitted where it improves the Bayesian
    information criterion despite the added parameter. Intervals come from `draws` resamples of
    cells, and of times within them; the tokens up to which the floor holds stay the same. Raises
    EngineError where too few cells were measured, or longer prompts take no longer.

    Source: the criterion: Schwarz, Estimating the dimension of a model, Annals of Statistics 1978.
    """
    times = {cell: np.asarray(each, dtype=float) for cell, each in ttft_s.items() if len(each)}
    if len(times) < LEAST_CELLS or len({cell.uncached for cell in times}) < len(PARAMETERS):
        raise EngineError(
            f"{len(times)} cells measured are too few to fit {len(PARAMETERS)} parameters",
            remedy="measure again",
        )
    terms = _terms(list(times))
    medians = np.array([np.median(each) for each in times.values()])
    line = least_squares(terms[:, :2], medians)
    straight = terms[:, :2] @ line
    terms, values, above = _with_floor(terms, medians)
    if not values[1:].any():
        raise EngineError(
            "longer prompts take no longer", remedy="measure longer ones with --max-tokens"
        )
    fitted = terms @ values
    floor = {"floor_s": above * float(values[1])} if above else {}
    cells = tuple(
        CellFit(
            uncached=cell.uncached,
            cached=cell.cached,
            n=len(each),
            median_s=float(medians[at]),
            least_s=float(each.min()),
            most_s=float(each.max()),
            fitted_s=float(fitted[at]),
            off=float(fitted[at] / medians[at] - 1),
            linear_off=float(straight[at] / medians[at] - 1),
        )
        for at, (cell, each) in enumerate(times.items())
    )
    low, high = _intervals(terms, list(times.values()), seed, draws)
    return ProfileFit(
        parameters=dict(zip(PARAMETERS, values.tolist(), strict=True)) | floor,
        intervals={
            name: (min(low[at], values[at]), max(high[at], values[at]))
            for at, name in enumerate(PARAMETERS)
        },
        cells=cells,
    )


def _terms(cells: Sequence[Cell]) -> Float64s:
    """Return the factors of β, α and γ in each cell's TTFT (cells × 3)."""
    uncached, cached = np.array(cells, dtype=float).T
    return np.column_stack((np.ones_like(uncached), uncached, uncached * (cached + uncached / 2)))


def _with_floor(terms: Float64s, times: Float64s) -> tuple[Float64s, Float64s, float]:
    """Return (terms, parameters, tokens) of the best fit, with a floor where the criterion falls.

    `terms` are the factors of β, α and γ for each cell (cells × 3), `times` the medians (s). With a
    floor, α counts at least `tokens` uncached tokens in each of the returned terms; 0 is no floor,
    which leaves the terms as they are.
    """
    best = terms, least_squares(terms, times), 0.0
    least = _criterion(*best[:2], times)
    cost = math.log(len(times))
    uncached = terms[:, 1]
    shortest, longest = float(uncached.min()), float(uncached.max())
    for above in np.geomspace(shortest, max(longest / 2, shortest), _FLOORS).tolist():
        floored = terms.copy()
        floored[:, 1] = np.maximum(uncached, above)
        values = least_squares(floored, times)
        criterion = _criterion(floored, values, times) + cost
        if criterion < least and values[1]:
            best, least = (floored, values, above), criterion
    return best


def _criterion(terms: Float64s, values: Float64s, times: Float64s) -> float:
    """Return the Bayesian information criterion of a fit, without the cost of its parameters.

    It is n log of the mean square of the relative errors of n `times`.
    """
    errors = terms @ values / times - 1
    return len(times) * math.log(max(float(np.mean(errors**2)), _EXACT))


def _intervals(
    terms: Float64s, times: Sequence[Float64s], seed: int, draws: int
) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    medians = np.column_stack(
        [np.median(rng.choice(each, (draws, len(each))), axis=1) for each in times]
    )
    resampled = np.empty((draws, terms.shape[1]))
    for draw in range(draws):
        chosen = rng.integers(len(times), size=len(times))
        resampled[draw] = least_squares(terms[chosen], medians[draw, chosen])
    tails = ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2)
    low, high = np.quantile(resampled, tails, axis=0)
    return low.tolist(), high.tolist()


class CalibratedEngine(Struct, frozen=True):
    """The engine that was calibrated."""

    name: str  # vLLM, torch, or `server` for one that was running already
    version: str | None
    device: str | None
    model: str
    flags: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """Return model, engine, version and device in one line, as far as known."""
        version = f"{self.name} {self.version}" if self.version else self.name
        return ", ".join(part for part in (self.model, version, self.device) if part)


class MeasuredProfile(Struct, frozen=True):
    """A latency profile with the 95 % intervals of its coefficients."""

    DOCUMENT: ClassVar[str] = (
        "name=profile.name source=profile.source base_ms=profile.base_s"
        " per_token_ms=profile.per_token_s per_token_pair_ms=profile.per_token_pair_s"
        " floor_ms=profile.floor_s request_ms=profile.request_s"
        " decode_base_ms=profile.decode_base_s decode_request_ms=profile.decode_request_s"
        " decode_context_token_ms=profile.decode_context_token_s intervals"
    )
    profile: LatencyProfile

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The 95 % interval (low, high; ms) of each measured coefficient, by name."""
        return {
            f"{key.removesuffix('_s')}_ms": (low * 1e3, high * 1e3)
            for key, (low, high) in self.profile.intervals.items()
        }


class UncachedPrefix(Struct, frozen=True):
    """A cell with measurements left out: `were_cached` tokens were cached, not `cached_tokens`."""

    uncached_tokens: int
    cached_tokens: int
    were_cached: int | None


class Calibration(Struct, frozen=True):
    """The measurements of `kvscope calibrate`, and the profile that fits them.

    Of `wanted` measurements (`run.planned`), `measurements` (`run.count`) were made. `ended` is why
    it ended early, null if it did not.
    """

    DOCUMENT: ClassVar[str] = (
        "engine profile=measured linear_is_enough=fit.linear_is_enough is_enough=fit.is_enough"
        " cells=fit.cells steps measurements=run.count wanted=run.planned"
        " cached_tokens_checked=run.reports_cached not_cached ended"
    )
    engine: CalibratedEngine
    profile: LatencyProfile
    fit: ProfileFit
    run: CalibrationRun

    @property
    def heading(self) -> tuple[str, str]:
        """The model, and the engine, version and device it was measured on."""
        model = self.engine.model
        return model, self.engine.in_words.removeprefix(f"{model}, ")

    @property
    def measured(self) -> MeasuredProfile:
        """The profile with its intervals."""
        return MeasuredProfile(self.profile)

    @property
    def steps(self) -> tuple[StepFit, ...]:
        """The measured steps of decoding, with median and fitted time; () if none were fitted."""
        return self.fit.decoding.steps if self.fit.decoding else ()

    @property
    def not_cached(self) -> tuple[UncachedPrefix, ...]:
        """The cells of the measurements that were left out."""
        left_out = sorted(self.run.uncached_prefixes.items())
        return tuple(UncachedPrefix(*cell, were_cached) for cell, were_cached in left_out)

    @property
    def ended(self) -> str | None:
        """Why the run ended early, None where it did not."""
        return self.run.ended or None


def calibrate(
    engine: Measurable,
    description: CalibratedEngine,
    *,
    longest: int,
    steps: Sequence[Step] = (),
    rounds: int,
    seed: int = 0,
    name: str | None = None,
    advance: Callable[[int], None],
    stop: Event,
) -> Calibration:
    """Measure `engine` with prompts of up to `longest` tokens; return the run and its profile.

    Raises EngineError where the engine fails before enough was measured, or caches nothing.
    """
    cells = grid(longest)
    run = measure(engine, cells, steps, rounds=rounds, seed=seed, advance=advance, stop=stop)
    _refuse_uncached(run)
    fitted = fit(run.ttft_s, seed=seed)
    fitted = replace(fitted, decoding=fit_steps(run.step_s), request_s=run.request_s)
    count = f"{run.count} of {run.planned}" if run.ended else str(run.count)
    source = (
        f"kvscope calibrate, {datetime.now(UTC):%Y-%m-%d}, {description.in_words};"
        f" {count} measurements of {len(run.ttft_s)} pairs of token counts,"
        f" prompts of up to {longest:,} tokens"
    )
    profile = fitted.profile(name or description.in_words, source, longest)
    return Calibration(description, profile, fitted, run)


def _refuse_uncached(run: CalibrationRun) -> None:
    """Raise EngineError where none of the prefixes to be cached was cached."""
    prefixed = [cell for cell in run.ttft_s if cell.cached]
    if run.uncached_prefixes and not any(run.ttft_s[cell] for cell in prefixed):
        cell, cached = max(run.uncached_prefixes.items())
        raise EngineError(
            f"only {cached} of the {cell.cached} tokens just sent were cached",
            remedy="turn prefix caching on (vLLM: --enable-prefix-caching), give it more blocks, or"
            " shorten the prompts with --max-tokens",
        )


def write(path: Path, calibration: Calibration) -> None:
    """Write the profile to `path`, below comments on the measurements."""
    comments = [
        f"{cell.uncached} {cell.cached}: {cell.median_s * 1e3:.3f}, {cell.fitted_s * 1e3:.3f}"
        f" ({cell.off:+.1%}), n = {cell.n}"
        for cell in calibration.fit.cells
    ]
    header = "uncached cached tokens: measured (median ms), fitted ms"
    steps = [
        f"{step.batch} x {step.context}: {step.median_s * 1e3:.3f}, {step.fitted_s * 1e3:.3f}"
        f" ({step.off:+.1%}), n = {step.n}"
        for step in calibration.steps
    ]
    if steps:
        steps.insert(0, "steps of decoding, requests x tokens before: measured, fitted ms")
    write_profile(path, calibration.profile, [header, *comments, *steps])
