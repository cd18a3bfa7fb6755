"""`kvscope tune`: which policy, with which parameters, at which capacity, for an SLO."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvscope.cli import output
from kvscope.cli.diagnostics import note
from kvscope.cli.first_use import trace_and_kernels
from kvscope.cli.loading import check_name
from kvscope.cli.monitor import stoppable
from kvscope.cli.options import (
    AS_IT_SAYS,
    DEFAULT_DB,
    Db,
    Hbm,
    Html,
    Json,
    KvDtype,
    Model,
    Outputs,
    Reading,
    TraceArgument,
    with_reading,
)
from kvscope.cli.simulate_options import Isolate, Latency, Params, RateScale
from kvscope.cli.tune_options import (
    Capacity,
    CapacityBlocks,
    CapacityRange,
    Explain,
    Judged,
    MaxViolations,
    Output,
    Percentile,
    Policies,
    Share,
    Slo,
    View,
)
from kvscope.cli.values import STANDARD_STREAM
from kvscope.core.errors import ExitCode, Stopped
from kvscope.core.files import write_text

if TYPE_CHECKING:
    from kvscope.app.requests import TuneRequest
    from kvscope.app.tune import Tuned
    from kvscope.core.trace import Prompts, Trace

BASELINE = "lru"
DEFAULT_PERCENTILE = 0.95
DEFAULT_OUTPUT = "recommendation.toml"


@with_reading
def tune(
    slo: Slo,
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    percentile: Percentile = None,
    max_violations: MaxViolations = None,
    view: View = "unloaded",
    capacity: Capacity = None,
    capacity_blocks: CapacityBlocks = None,
    capacity_range: CapacityRange = None,
    model: Model = None,
    kv_dtype: KvDtype = None,
    hbm: Hbm = None,
    latency: Latency = None,
    policies: Policies = None,
    param: Params = None,
    rate_scale: RateScale = 1.0,
    outputs: Outputs = "carried",
    isolate: Isolate = None,
    warmup: Share = None,
    judge: Judged = None,
    explain: Explain = False,
    path: Output = DEFAULT_OUTPUT,
    html: Html = None,
    as_json: Json = False,
    reading: Reading = AS_IT_SAYS,
) -> None:
    """Recommend policy, parameters and capacity for an SLO, with the gain and how sure it is.

    Chosen on one part of the trace, judged on the next. Writes recommendation.toml.
    """
    from kvscope.app.requests import tune_request

    request = tune_request(
        slo_s=slo,
        percentile=percentile,
        max_violations=max_violations,
        view=view,
        capacity_bytes=capacity,
        capacity_blocks=capacity_blocks,
        range_bytes=capacity_range,
        model=model,
        kv_dtype=kv_dtype,
        hbm_bytes=hbm,
        latency=latency,
        policies=policies,
        params=param,
        rate_scale=rate_scale,
        outputs=outputs,
        isolate=isolate,
        warmup=warmup,
        judge=judge,
    )
    from kvscope.store.db import open_store

    with open_store(db) as store:
        check_name(store, trace)
        from kvscope.app.traces import replayable
        from kvscope.app.tune import write_recommended
        from kvscope.tuning.tuner import CEILINGS

        replayed = [*(variant.policy for variant in request.variants), *CEILINGS]
        with trace_and_kernels(store, trace, reading, replayed) as stored:
            prompts = replayable(store, stored)
            tuned = _tuned(stored, prompts, request)
    if path != STANDARD_STREAM:
        tuned = replace(tuned, path=path)
    _report(tuned, explain=explain, as_json=as_json, html=html)
    if path != STANDARD_STREAM:
        write_recommended(Path(path), tuned, prompts)
        note(f"recommendation written to {path}")


def _tuned(trace: Trace, prompts: Prompts, request: TuneRequest) -> Tuned:
    """Tune; Ctrl-C ends it with nothing written."""
    from kvscope.app.tune import tune as recommend

    with stoppable() as terminal:
        try:
            return recommend(trace, prompts, request, terminal)
        except Stopped as error:
            note(f"{error}; nothing was written")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _report(tuned: Tuned, *, explain: bool, as_json: bool, html: str | None) -> None:
    from kvscope.report.recommendation import html_report, screen, sections

    if as_json:
        from kvscope.app.documents.tune import tune_document

        output.emit_json(tune_document(tuned))
    else:
        from kvscope.cli.rendering import show_report

        show_report(tuned.trace, sections(tuned) if explain else screen(tuned))
    if html is not None:
        write_text(Path(html), html_report(tuned))
        note(f"report written to {html}")
