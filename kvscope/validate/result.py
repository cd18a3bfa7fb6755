"""The validations that a store keeps, as facts again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvscope.core.percentiles import Percentiles
from kvscope.core.trace import Trace
from kvscope.store import results
from kvscope.store.db import Store
from kvscope.tuning.bootstrap import Gain
from kvscope.validate.request_share import Part

Verdict = Literal["confirmed", "not confirmed", "inconclusive"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine that was measured, as far as it is known.

    `blocks` are those that requests can use, `flags` what it was started with for every policy.
    """

    name: str
    version: str | None
    device: str | None
    model: str
    blocks: int
    block_size: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """What a side says of the counted requests; TEL and violations need an SLO."""

    hit_tokens: int
    token_hit_rate: float
    ttft_ms: Percentiles
    tel_ms: float | None
    violations: int | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run of one policy on the engine, prediction beside measurement.

    Figures are of the `counted` requests: those after the warm-up that were answered.
    `mismatched_requests` hit other tokens than predicted, `mismatched_tokens` in all; None where
    the engine does not tell hits. Arrays have an entry a request that was to be sent; `failed` says
    what became of those without an answer. `ended` is why the run ended early, or empty.
    """

    policy: str
    leaves: str
    params: Mapping[str, float]
    repeat: int
    flags: tuple[str, ...]
    predicted: Figures
    measured: Figures
    counted: NDArray[np.bool_]
    mismatched_requests: int | None
    mismatched_tokens: int | None
    predicted_hit_tokens: NDArray[np.int64]
    measured_hit_tokens: NDArray[np.int64]
    predicted_ttft_s: NDArray[np.float64]
    measured_ttft_s: NDArray[np.float64]
    failed: Mapping[int, str]
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was compared; `passed` is None where the measurement cannot tell."""

    name: str
    passed: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class Compared:
    """The gain over LRU of what is recommended: as predicted, and as measured (95 % intervals)."""

    predicted: Mapping[str, Gain]
    measured: Mapping[str, Gain]


@dataclass(frozen=True, slots=True)
class Validation:
    """All runs and what follows from them."""

    engine: EngineFacts
    pace: str
    forced_outputs: bool
    latency: str
    tolerance: float
    slo_s: float | None
    warmup: int
    part: Part
    runs: tuple[RunFacts, ...]
    compared: Compared | None
    checks: tuple[Check, ...]
    verdict: Verdict
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the store has of a validation; fields as in `Validation`, runs with counted requests."""

    created_at: datetime
    engine: EngineFacts
    pace: str
    forced_outputs: bool
    latency: str
    tolerance: float
    slo_s: float | None
    verdict: Verdict
    ended: str
    runs: tuple[RunFacts, ...]


def kept_validations(store: Store, trace: Trace) -> tuple[Kept, ...]:
    """The validations of `trace`, the latest first."""
    return tuple(
        Kept(
            created_at=row["created_at"],
            engine=EngineFacts(**row["engine"] | {"flags": tuple(row["engine"]["flags"])}),
            runs=tuple(_run(one) for one in results.validation_runs(store, row["validation_id"])),
            **{
                name: row[name]
                for name in (
                    *("pace", "forced_outputs", "latency", "tolerance"),
                    *("slo_s", "verdict", "ended"),
                )
            },
        )
        for row in results.all_validations(store, trace)
    )


def _run(row: Mapping[str, Any]) -> RunFacts:
    counted = np.ones(len(row["measured_ttft_s"]), dtype=np.bool_)
    return RunFacts(
        policy=row["policy"],
        leaves=row["leaves"],
        params=dict(row["params"]),
        repeat=row["repeat"],
        flags=tuple(row["flags"]),
        predicted=_figures(row["predicted"]),
        measured=_figures(row["measured"]),
        counted=counted,
        mismatched_requests=row["mismatched_requests"],
        mismatched_tokens=row["mismatched_tokens"],
        predicted_hit_tokens=np.array(row["predicted_hit_tokens"], dtype=np.int64),
        measured_hit_tokens=np.array(row["measured_hit_tokens"], dtype=np.int64),
        predicted_ttft_s=np.array(row["predicted_ttft_s"], dtype=np.float64),
        measured_ttft_s=np.array(row["measured_ttft_s"], dtype=np.float64),
        # which ones, and why, is not kept
        failed=dict.fromkeys(range(row["failed_requests"]), ""),
        ended=row["ended"],
    )


def _figures(struct: Mapping[str, Any]) -> Figures:
    return Figures(**{**struct, "ttft_ms": Percentiles(**struct["ttft_ms"])})
