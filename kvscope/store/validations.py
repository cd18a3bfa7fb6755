"""The validations of a store: what engines did with a trace, beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Protocol

from kvscope import __version__
from kvscope.core.trace import Trace
from kvscope.store.db import Store

_OWN = ("pace", "forced_outputs", "latency", "tolerance", "slo_s", "verdict", "ended")
_OF_A_RUN = ("policy", "leaves", "repeat", "mismatched_requests", "mismatched_tokens", "ended")
_BY_REQUEST = (
    "predicted_hit_tokens",
    "measured_hit_tokens",
    "predicted_ttft_s",
    "measured_ttft_s",
)


class Validated(Protocol):
    """A validation, as kvscope.validate.result has it: the store stands below that room."""

    @property
    def engine(self) -> Any:
        """The engine, a dataclass with the columns of the schema."""

    @property
    def runs(self) -> tuple[Any, ...]:
        """The runs, likewise."""


def add(store: Store, trace: Trace, found: Validated) -> int:
    """Keep a validation; its number."""
    with store.transaction():
        validation_id = store.row(
            "validate/add_validation",
            trace_id=trace.trace_id,
            kvscope=__version__,
            created_at=datetime.now(UTC).replace(tzinfo=None),
            engine=asdict(found.engine) | {"flags": list(found.engine.flags)},
            **{name: getattr(found, name) for name in _OWN},
        )["validation_id"]
        rows = [_row(run) for run in found.runs]
        store.run("validate/add_runs", validation_id=validation_id, rows=rows)
    return int(validation_id)


def all_validations(store: Store, trace: Trace) -> list[dict[str, Any]]:
    """The validations of `trace`, the latest first."""
    return store.rows("validate/validations", trace_id=trace.trace_id)


def runs(store: Store, validation_id: int) -> list[dict[str, Any]]:
    """The runs of one validation, in the order of running."""
    return store.rows("validate/runs", validation_id=validation_id)


def remove_all(store: Store, trace: Trace) -> None:
    """Remove every validation of `trace`."""
    for table in ("runs", "validations"):
        store.run(f"validate/remove_{table}", trace_id=trace.trace_id)


def _row(run: Any) -> dict[str, Any]:
    params: Mapping[str, float] = run.params
    return {
        **{name: getattr(run, name) for name in _OF_A_RUN},
        "params": {"key": list(params), "value": list(params.values())},
        "flags": list(run.flags),
        "predicted": asdict(run.predicted),
        "measured": asdict(run.measured),
        "failed_requests": len(run.failed),
        **{name: getattr(run, name)[run.counted].tolist() for name in _BY_REQUEST},
    }
