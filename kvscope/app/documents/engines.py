"""The documents of the commands that work with an engine: `kvscope validate` and `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kvscope.app.documents.base import Document, Facts, GatedDocument, TraceFacts
from kvscope.app.gates import validate_figures
from kvscope.core.trace import Trace
from kvscope.latency.calibration import CalibratedEngine, Calibration
from kvscope.validate.result import (
    Check,
    EngineFacts,
    Figures,
    GainComparison,
    Validation,
)


class RequestCounts(Facts):
    """Which requests of the trace a validation sent, and which not."""

    of: int
    sent: int
    warmup: int
    not_drawn: int
    later: int
    too_long: int


class EngineRun(Facts):
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


class ValidateDocument(GatedDocument):
    """What `kvscope validate` measured, next to what was predicted, and the verdict.

    `deployment` has what was stated of it, by the keys of kvscope.toml; null without one.
    """

    command: Literal["validate"] = "validate"
    trace: TraceFacts
    engine: EngineFacts
    deployment: Mapping[str, str | int | float] | None
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


class ProfileFacts(Facts):
    """A latency profile with the 95 % intervals of its coefficients."""

    name: str
    source: str
    base_ms: float
    per_token_ms: float
    per_token_pair_ms: float
    decode_base_ms: float | None
    decode_request_ms: float
    decode_context_token_ms: float
    intervals: Mapping[str, tuple[float, float]]


class TtftRange(Facts):
    """Median, least and largest TTFT measured."""

    median: float
    least: float
    most: float


class CalibrationCell(Facts):
    """One pair of token counts; `off` is the relative distance of the fit from the median."""

    uncached_tokens: int
    cached_tokens: int
    n: int
    ttft_ms: TtftRange
    fitted_ms: float
    off: float
    linear_off: float


class NotCached(Facts):
    """A measurement that was left out, since the engine had other tokens cached than it should."""

    uncached_tokens: int
    cached_tokens: int
    were_cached: int | None


class DecodingStep(Facts):
    """Requests that get one token each, with that many tokens before; `off` as of a cell."""

    batch: int
    context_tokens: int
    n: int
    step_ms: float
    fitted_ms: float
    off: float


class CalibrateDocument(Document):
    """What `kvscope calibrate` measured, and the profile that fits it."""

    command: Literal["calibrate"] = "calibrate"
    engine: CalibratedEngine
    profile: ProfileFacts
    linear_is_enough: bool
    is_enough: bool
    cells: tuple[CalibrationCell, ...]
    steps: tuple[DecodingStep, ...]
    measurements: int
    wanted: int
    cached_tokens_checked: bool
    not_cached: tuple[NotCached, ...]
    ended: str | None


def validate_document(trace: Trace, validation: Validation) -> ValidateDocument:
    """Return the document of `kvscope validate`."""
    sample = validation.sample
    return ValidateDocument.build(
        validation,
        trace=TraceFacts.build(trace),
        requests=RequestCounts(
            of=sample.total,
            sent=len(sample.prompts.leaf),
            warmup=validation.warmup,
            not_drawn=sample.outside_sample,
            later=sample.beyond_limit,
            too_long=sample.too_long,
        ),
        runs=tuple(
            EngineRun.build(
                run,
                counted=int(run.counted.sum()),
                failed_requests=len(run.failed),
                failures=tuple(sorted(set(run.failed.values()))),
                ended=run.ended or None,
            )
            for run in validation.runs
        ),
        gain=validation.compared,
        figures=validate_figures(validation),
        ended=validation.ended or None,
    )


def calibrate_document(calibration: Calibration) -> CalibrateDocument:
    """Return the document of `kvscope calibrate`."""
    run = calibration.run
    return CalibrateDocument.build(
        calibration,
        calibration.fit,
        profile=ProfileFacts.build(
            calibration.profile,
            intervals={
                f"{key.removesuffix('_s')}_ms": (low * 1e3, high * 1e3)
                for key, (low, high) in calibration.profile.intervals.items()
            },
        ),
        cells=tuple(
            CalibrationCell.build(
                cell,
                uncached_tokens=cell.uncached,
                cached_tokens=cell.cached,
                ttft_ms=TtftRange(
                    median=cell.median_s * 1e3,
                    least=cell.least_s * 1e3,
                    most=cell.most_s * 1e3,
                ),
            )
            for cell in calibration.fit.cells
        ),
        steps=tuple(
            DecodingStep.build(step, context_tokens=step.context, step_ms=step.median_s * 1e3)
            for step in (calibration.fit.decoding.steps if calibration.fit.decoding else ())
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
