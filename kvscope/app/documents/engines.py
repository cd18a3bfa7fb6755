"""The documents of the commands that work with an engine: `kvscope validate` and `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvscope.app.documents.base import Document, TraceFacts, trace_facts
from kvscope.core.trace import Trace
from kvscope.latency.calibration import Calibration
from kvscope.validate.result import (
    Check,
    EngineFacts,
    Figures,
    GainComparison,
    RunFacts,
    Validation,
)


@dataclass(frozen=True, kw_only=True)
class RequestCounts:
    """Which requests of the trace a validation sent, and which not."""

    of: int
    sent: int
    warmup: int
    not_drawn: int
    later: int
    too_long: int


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """One run of one policy on the engine: prediction and measurement."""

    policy: str
    leaves: str
    params: Mapping[str, float]
    repeat: int
    flags: tuple[str, ...]
    counted: int
    predicted: Figures
    measured: Figures
    mismatched_requests: int | None
    mismatched_tokens: int | None
    failed_requests: int
    failures: tuple[str, ...]
    ended: str | None


@dataclass(frozen=True, kw_only=True)
class ValidateDocument(Document):
    """What `kvscope validate` measured, next to what was predicted, and the verdict."""

    command: Literal["validate"] = "validate"
    trace: TraceFacts
    engine: EngineFacts
    pace: str
    forced_outputs: bool
    latency: str
    tolerance: float
    slo_ms: float | None
    requests: RequestCounts
    runs: tuple[EngineRun, ...]
    gain: GainComparison | None
    checks: tuple[Check, ...]
    verdict: str
    ended: str | None


@dataclass(frozen=True, kw_only=True)
class CalibratedEngine:
    """The engine that was measured."""

    name: str
    version: str | None
    device: str | None
    model: str
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ProfileFacts:
    """A latency profile with the 95 % intervals of its coefficients."""

    name: str
    source: str
    base_ms: float
    per_token_ms: float
    per_token_pair_ms: float
    intervals: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class TtftRange:
    """Median, least and largest TTFT measured."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True)
class CalibrationCell:
    """One pair of token counts; `off` is the relative distance of the fit from the median."""

    uncached_tokens: int
    cached_tokens: int
    n: int
    ttft_ms: TtftRange
    fitted_ms: float
    off: float
    linear_off: float


@dataclass(frozen=True, kw_only=True)
class NotCached:
    """A measurement that was left out, since the engine had other tokens cached than it should."""

    uncached_tokens: int
    cached_tokens: int
    were_cached: int | None


@dataclass(frozen=True, kw_only=True)
class CalibrateDocument(Document):
    """What `kvscope calibrate` measured, and the profile that fits it."""

    command: Literal["calibrate"] = "calibrate"
    engine: CalibratedEngine
    profile: ProfileFacts
    linear_is_enough: bool
    is_enough: bool
    cells: tuple[CalibrationCell, ...]
    measurements: int
    wanted: int
    cached_tokens_checked: bool
    not_cached: tuple[NotCached, ...]
    ended: str | None


def validate_document(trace: Trace, validation: Validation) -> ValidateDocument:
    """Return the document of `kvscope validate`."""
    sample = validation.sample
    return ValidateDocument(
        trace=trace_facts(trace),
        engine=validation.engine,
        pace=validation.pace,
        forced_outputs=validation.forced_outputs,
        latency=validation.latency,
        tolerance=validation.tolerance,
        slo_ms=None if validation.slo_s is None else validation.slo_s * 1e3,
        requests=RequestCounts(
            of=sample.total,
            sent=len(sample.prompts.leaf),
            warmup=validation.warmup,
            not_drawn=sample.outside_sample,
            later=sample.beyond_limit,
            too_long=sample.too_long,
        ),
        runs=tuple(_engine_run(run) for run in validation.runs),
        gain=validation.compared,
        checks=validation.checks,
        verdict=validation.verdict,
        ended=validation.ended or None,
    )


def calibrate_document(calibration: Calibration) -> CalibrateDocument:
    """Return the document of `kvscope calibrate`."""
    engine, profile = calibration.engine, calibration.profile
    fit, run = calibration.fit, calibration.run
    return CalibrateDocument(
        engine=CalibratedEngine(
            name=engine.name,
            version=engine.version,
            device=engine.device,
            model=engine.model,
            flags=engine.flags,
        ),
        profile=ProfileFacts(
            name=profile.name,
            source=profile.source,
            base_ms=profile.base_s * 1e3,
            per_token_ms=profile.per_token_s * 1e3,
            per_token_pair_ms=profile.per_token_pair_s * 1e3,
            intervals={
                f"{key.removesuffix('_s')}_ms": (low * 1e3, high * 1e3)
                for key, (low, high) in profile.intervals.items()
            },
        ),
        linear_is_enough=fit.linear_is_enough,
        is_enough=fit.is_enough,
        cells=tuple(
            CalibrationCell(
                uncached_tokens=cell.uncached,
                cached_tokens=cell.cached,
                n=cell.n,
                ttft_ms=TtftRange(
                    median=cell.median_s * 1e3,
                    least=cell.least_s * 1e3,
                    most=cell.most_s * 1e3,
                ),
                fitted_ms=cell.fitted_s * 1e3,
                off=cell.off,
                linear_off=cell.linear_off,
            )
            for cell in fit.cells
        ),
        measurements=run.count,
        wanted=run.planned,
        cached_tokens_checked=run.reports_cached,
        not_cached=tuple(
            NotCached(
                uncached_tokens=cell.uncached, cached_tokens=cell.cached, were_cached=were_cached
            )
            for cell, were_cached in sorted(run.uncached_prefixes.items())
        ),
        ended=run.ended or None,
    )


def _engine_run(run: RunFacts) -> EngineRun:
    return EngineRun(
        policy=run.policy,
        leaves=run.leaves,
        params=run.params,
        repeat=run.repeat,
        flags=run.flags,
        counted=int(run.counted.sum()),
        predicted=run.predicted,
        measured=run.measured,
        mismatched_requests=run.mismatched_requests,
        mismatched_tokens=run.mismatched_tokens,
        failed_requests=len(run.failed),
        failures=tuple(sorted(set(run.failed.values()))),
        ended=run.ended or None,
    )
