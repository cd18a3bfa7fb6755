"""The validations that a store keeps, as facts again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from kvscope.facts import Percentiles, Trace
from kvscope.store import validations
from kvscope.store.db import Store
from kvscope.validate.facts import EngineFacts, Figures, RunFacts, Verdict


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
            runs=tuple(_run(one) for one in validations.runs(store, row["validation_id"])),
            **{
                name: row[name]
                for name in (
                    *("pace", "forced_outputs", "latency", "tolerance"),
                    *("slo_s", "verdict", "ended"),
                )
            },
        )
        for row in validations.all_validations(store, trace)
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
