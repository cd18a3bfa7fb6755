"""Results over the traces of a store: replay runs, fitted models, validations and reports.

They are stored to be reused instead of computed again, and removed with their trace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvscope import __version__
from kvscope.core.records import as_columns, defaults
from kvscope.core.runs import PartOutcome, Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.latency.profile import STEP_PARAMETERS
from kvscope.store.db import Store

MOST_REPORTS = 50  # of a trace
FIT_PARTS = ("models", "windows", "next_prompts", "next_turns")

Rows = Sequence[Mapping[str, Any]]

_STEP_DEFAULTS = {
    name: value for name, value in defaults(RunSetting).items() if name in STEP_PARAMETERS
}
_OF_SOME = ("kv_groups", "engine")  # of a setting, empty for most runs
_VALIDATED = ("pace", "forced_outputs", "latency", "tolerance", "slo_s", "verdict", "ended")
_COMPARED = ("policy", "leaves", "repeat", "mismatched_requests", "mismatched_tokens", "ended")
_BY_REQUEST = ("predicted_hit_tokens", "measured_hit_tokens", "predicted_ttft_s", "measured_ttft_s")


class KnownRun(Struct, frozen=True):
    """A stored run, with its id and digests.

    `request` is a digest of all inputs of the run, `code` that of kvscope's sources.
    """

    run_id: int
    request: str
    code: str
    run: Run


def request_digest(
    policy: str, leaves: str, params: Mapping[str, float], capacity_blocks: int, setting: RunSetting
) -> str:
    """Return a digest of the inputs of a run (32 hex digits)."""
    values = {name: float(value) for name, value in params.items()}
    whole = (policy, leaves, values, capacity_blocks, as_columns(setting))
    text = json.dumps(whole, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_of(run: Run) -> str:
    """Return the request digest of `run`."""
    return request_digest(run.policy, run.leaves, run.params, run.capacity_blocks, run.setting)


def all_runs(store: Store, trace: Trace) -> list[KnownRun]:
    """Return every run over `trace`, smallest capacity first, then by policy; `parts` are empty."""
    return [_stored_run(row) for row in store.rows("runs/runs", trace_id=trace.trace_id)]


def known_runs(store: Store, trace: Trace, requests: Sequence[str], code: str) -> dict[str, Run]:
    """Return the runs, with parts, of these request digests and this `code` digest, by request."""
    wanted = set(requests)
    known = [run for run in all_runs(store, trace) if run.request in wanted and run.code == code]
    return {stored.request: stored.run for stored in with_parts(store, known)}


def with_parts(store: Store, runs: Sequence[KnownRun]) -> list[KnownRun]:
    """Return the same runs with their `parts`: outcomes by category and over time."""
    parts: dict[int, list[PartOutcome]] = {stored.run_id: [] for stored in runs}
    for row in store.rows("runs/parts", run_ids=list(parts)):
        parts[row["run_id"]].append(msgspec.convert(row, PartOutcome))
    return [
        replace(stored, run=replace(stored.run, parts=tuple(parts[stored.run_id])))
        for stored in runs
    ]


def add_run(store: Store, trace: Trace, run: Run, code: str) -> Run:
    """Store `run`, and remove older runs of the same request; return it with its date."""
    dated = replace(run, **_stamp())
    columns = as_columns(dated)
    params, parts, _ = columns.pop("params"), columns.pop("parts"), columns.pop("run_id")
    setting = columns["setting"]
    steps = {name: setting.pop(name) for name in STEP_PARAMETERS}
    some = {name: setting.pop(name) or None for name in _OF_SOME}
    with store.transaction():
        older = store.rows("runs/same_request", trace_id=trace.trace_id, asked=digest_of(run))
        _remove_runs(store, [row["run_id"] for row in older])
        run_id = store.row(
            "runs/add_run",
            trace_id=trace.trace_id,
            asked=digest_of(run),
            code=code,
            names=list(params),
            values=[float(value) for value in params.values()],
            steps=None if steps == _STEP_DEFAULTS else steps,
            **some
            | columns
            | {
                "tiers": list(columns["tiers"]) or None,
                "deployment": _as_json(run.deployment),
            },
        )["run_id"]
        if parts:
            store.run("runs/add_parts", run_id=run_id, parts=list(parts))
    return replace(dated, run_id=run_id)


def set_deployment(
    store: Store, trace: Trace, requests: Iterable[str], deployment: Mapping[str, Any]
) -> None:
    """Replace the deployment of the runs over `trace` that have these request digests."""
    which = set(requests)
    run_ids = [known.run_id for known in all_runs(store, trace) if known.request in which]
    store.run("runs/set_deployment", run_ids=run_ids, deployment=_as_json(deployment))


def remove_runs(store: Store, trace: Trace, which: Callable[[Run], bool]) -> int:
    """Remove the runs over `trace` for which `which` is True; return their number."""
    run_ids = [stored.run_id for stored in all_runs(store, trace) if which(stored.run)]
    with store.transaction():
        _remove_runs(store, run_ids)
    return len(run_ids)


def add_fit(store: Store, trace: Trace, about: Mapping[str, Any], parts: Mapping[str, Rows]) -> int:
    """Store a fit in place of those with the same warm-up and windows; return its id.

    `about` has `warmup`, `window_s`, `start_s`, `end_s`, `conversations`: see `all_fits`. `parts`
    has rows by key, with fields of kvscope.reuse_models.results: "models" as from `fit_models`,
    "windows" of `WindowFit` but `observed`, "next_prompts" of `NextPromptFit` but `tokens`, and
    "next_turns" of `NextTurnFit` but `interval`. Mappings are dicts, `values` is a list.
    """
    with store.transaction():
        for older in all_fits(store, trace):
            if all(older[name] == about[name] for name in ("warmup", "window_s")):
                _remove_fit(store, older["fit_id"])
        row = store.row("fits/add_fit", trace_id=trace.trace_id, **_stamp(), **about)
        for part in FIT_PARTS:
            if rows := [_with_maps(row) for row in parts[part]]:
                store.run(f"fits/add_{part}", fit_id=row["fit_id"], rows=rows)
    return int(row["fit_id"])


def all_fits(store: Store, trace: Trace) -> list[dict[str, Any]]:
    """Return the results of `kvscope fit` on `trace`, the latest first, without their parts.

    Keys: `fit_id`, `kvscope` (version), `created_at` (UTC), `warmup` (share of the first requests
    left out), `window_s` (None: no windows), `start_s`, `end_s`, and `conversations`: a dict of the
    conversation model, None for too few turns.
    """
    return store.rows("fits/fits", trace_id=trace.trace_id)


def fit_models(store: Store, fit_id: int) -> list[dict[str, Any]]:
    """Return the models of one fit, by category.

    Keys: fields of `kvscope.reuse_models.results.ModelFit`, from `category` to `chosen`, but
    `intervals` for `interval`: by parameter, a dict of `low` and `high` (95 %), None if unknown.
    """
    return store.rows("fits/models", fit_id=fit_id)


def add_validation(store: Store, trace: Trace, validation: Any) -> int:
    """Store a validation (ValidationFacts of kvscope.validate.result); return its id."""
    engine = validation.engine
    with store.transaction():
        validation_id = store.row(
            "validate/add_validation",
            trace_id=trace.trace_id,
            engine=as_columns(engine) | {"flags": list(engine.flags)},
            **_stamp(),
            **{name: getattr(validation, name) for name in _VALIDATED},
            deployment=_as_json(validation.deployment),
        )["validation_id"]
        rows = [_validation_run(run) for run in validation.runs]
        store.run("validate/add_runs", validation_id=validation_id, rows=rows)
    return int(validation_id)


def all_validations(store: Store, trace: Trace) -> list[dict[str, Any]]:
    """Return the validations of `trace`, the latest first, without their runs.

    Keys: `validation_id`, `kvscope` (version), `created_at` (UTC), and fields of `ValidationFacts`:
    `engine` (a dict), `pace`, `forced_outputs`, `latency`, `tolerance`, `slo_s`, `verdict`,
    `ended`, `deployment` (a dict, None if none was stated).
    """
    rows = store.rows("validate/validations", trace_id=trace.trace_id)
    return [row | {"deployment": _from_json(row["deployment"])} for row in rows]


def validation_runs(store: Store, validation_id: int) -> list[dict[str, Any]]:
    """Return the runs of one validation, in the order of running.

    Keys are fields of `kvscope.validate.result.RunFacts`, whose arrays are lists here, with the
    counted requests only: `policy`, `leaves`, `params`, `repeat`, `flags`, `predicted`, `measured`,
    `mismatched_requests`, `mismatched_tokens`, `ended`, `predicted_hit_tokens`,
    `measured_hit_tokens`, `predicted_ttft_s`, `measured_ttft_s`. Also `failed_requests`, a number,
    and `request_numbers`, the counted requests' numbers in the trace (None: not kept).
    """
    return store.rows("validate/runs", validation_id=validation_id)


def add_report(store: Store, trace: Trace, **columns: Any) -> int:
    """Store a report, and remove all but the latest 50 of the trace; return its id.

    All columns are required: `duration_s`, and as text `command`, `summary`, `sections` (JSON), and
    where not None `file` (a TOML file), `question` (digest of the request), `settings` (deployment
    in words), `document` (JSON).
    """
    with store.transaction():
        row = store.row("reports/add_report", trace_id=trace.trace_id, **_stamp(), **columns)
        store.run("reports/remove_reports", trace_id=trace.trace_id, kept=MOST_REPORTS)
    return int(row["report_id"])


def all_reports(store: Store) -> list[dict[str, Any]]:
    """Return the reports over all traces, the latest first, without their contents.

    Keys: `report_id`, `trace_id`, `trace` (its name), `kvscope` (version), `created_at` (UTC), and
    `command`, `summary`, `duration_s`, `question`, `settings` as in `add_report`.
    """
    return store.rows("reports/reports")


def remove_reports(store: Store, trace: Trace) -> int:
    """Remove the reports over `trace`; return their number."""
    known = [row for row in all_reports(store) if row["trace_id"] == trace.trace_id]
    store.run("reports/remove_reports", trace_id=trace.trace_id, kept=0)
    return len(known)


def report_content(store: Store, report_id: int) -> dict[str, Any] | None:
    """Return the content of a report, None where there is no such report.

    Keys: `sections` (JSON text of titles, sentences, tables and figures), `file` (the text of its
    recommendation.toml, None without one) and `document` (JSON text as `--json` prints it).
    """
    return next(iter(store.rows("reports/report", report_id=report_id)), None)


def remove_results(store: Store, trace: Trace) -> None:
    """Remove every result over `trace`; the caller holds a transaction."""
    _remove_runs(store, [stored.run_id for stored in all_runs(store, trace)])
    for fit in all_fits(store, trace):
        _remove_fit(store, fit["fit_id"])
    for table in ("runs", "validations"):
        store.run(f"validate/remove_{table}", trace_id=trace.trace_id)
    store.run("reports/remove_reports", trace_id=trace.trace_id, kept=0)


def _remove_runs(store: Store, run_ids: list[int]) -> None:
    if run_ids:
        for table in ("parts", "runs"):
            store.run(f"runs/remove_{table}", run_ids=run_ids)


def _remove_fit(store: Store, fit_id: int) -> None:
    for table in (*(f"fit_{part}" for part in FIT_PARTS), "fits"):
        store.run(f"fits/remove_{table}", fit_id=fit_id)


def _stamp() -> dict[str, Any]:
    """Return the version and the time (UTC) that a stored result carries."""
    return {"kvscope": __version__, "created_at": datetime.now(UTC).replace(tzinfo=None)}


def _as_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _from_json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _with_maps(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with each dict as the key and value lists of which DuckDB makes a map."""
    return {
        name: {"key": list(value), "value": list(value.values())}
        if isinstance(value, Mapping)
        else value
        for name, value in row.items()
    }


def _stored_run(row: dict[str, Any]) -> KnownRun:
    some = {name: row[name] or "" for name in _OF_SOME}
    setting = row["setting"] | (row["steps"] or {}) | some
    whole = row | {
        "setting": setting,
        "tiers": row["tiers"] or (),
        "deployment": _from_json(row["deployment"]),
    }
    run = msgspec.convert(whole, Run)
    return KnownRun(row["run_id"], row["asked"], row["code"], run)


def _validation_run(run: Any) -> dict[str, Any]:
    return {
        **{name: getattr(run, name) for name in _COMPARED},
        "flags": list(run.flags),
        "predicted": as_columns(run.predicted),
        "measured": as_columns(run.measured),
        "failed_requests": len(run.failed),
        **{name: getattr(run, name)[run.counted].tolist() for name in _BY_REQUEST},
        "request_numbers": run.numbers[run.counted].tolist() if len(run.numbers) else None,
        **_with_maps({"params": run.params}),
    }
