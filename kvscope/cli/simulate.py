"""`kvscope simulate`: what would each eviction policy give at each capacity."""

from __future__ import annotations

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
    Compat,
    Db,
    Html,
    Json,
    KvDtype,
    Model,
    Outputs,
    Reading,
    TraceArgument,
    Warmup,
    with_reading,
)
from kvscope.cli.simulate_options import (
    Capacities,
    Capacity,
    CapacityBlocks,
    Coarsen,
    Isolate,
    Latency,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Mode,
    Params,
    Points,
    Policies,
    RateScale,
    Recommended,
    Refit,
    Sample,
    Slo,
    Tiers,
)
from kvscope.core.errors import ExitCode
from kvscope.core.files import write_text

if TYPE_CHECKING:
    from kvscope.app.simulate import Simulation


@with_reading
def simulate(
    trace: TraceArgument = None,
    db: Db = DEFAULT_DB,
    policies: Policies = None,
    capacity: Capacity = None,
    capacity_blocks: CapacityBlocks = None,
    points: Points = None,
    capacity_model: Capacities = "cache",
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    tiers: Tiers = None,
    tier_mode: Mode = None,
    param: Params = None,
    model: Model = None,
    kv_dtype: KvDtype = None,
    latency: Latency = None,
    slo: Slo = None,
    recommendation: Recommended = None,
    refit: Refit = None,
    rate_scale: RateScale = 1.0,
    warmup: Warmup = 0.0,
    outputs: Outputs = "carried",
    compat: Compat = None,
    isolate: Isolate = None,
    sample: Sample = 1.0,
    coarsen: Coarsen = 1,
    html: Html = None,
    as_json: Json = False,
    reading: Reading = AS_IT_SAYS,
) -> None:
    """Replay a trace with eviction policies at several capacities: hits, TTFT, what is left.

    Finished runs are kept in the store (see `kvscope runs`) and not repeated. Ctrl-C ends with
    those that are finished.
    """
    from kvscope.app.requests import simulate_request

    request = simulate_request(
        policies=policies,
        params=param,
        capacity_bytes=capacity,
        capacity_blocks=capacity_blocks,
        points=points,
        capacity_model=capacity_model,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        tiers=tiers,
        tier_mode=tier_mode,
        model=model,
        kv_dtype=kv_dtype,
        latency=latency,
        slo_s=slo,
        recommendation=recommendation,
        refit_s=refit,
        rate_scale=rate_scale,
        warmup=warmup,
        outputs=outputs,
        compat=compat,
        isolate=isolate,
        sample=sample,
        coarsen=coarsen,
    )
    from kvscope.store.db import open_store

    setting = request.setting
    plain = setting.capacity_model == "cache" and not setting.tiers  # the others' kernels differ
    replayed = [variant.policy for variant in request.variants if plain]
    with open_store(db) as store:
        check_name(store, trace)
        from kvscope.app.simulate import simulate as simulated
        from kvscope.app.stores import HeldStore
        from kvscope.app.traces import replayable

        with trace_and_kernels(store, trace, reading, replayed) as stored:
            prompts = replayable(store, stored)
            with stoppable() as terminal:
                simulation = simulated(HeldStore(store), stored, prompts, request, terminal)
    _report(simulation, as_json=as_json, html=html)
    if simulation.unfinished:
        count = len(simulation.runs)
        note(f"{count:,} of {count + simulation.unfinished:,} runs are finished and kept")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _report(simulation: Simulation, *, as_json: bool, html: str | None) -> None:
    if as_json:
        from kvscope.app.documents.runs import simulate_document

        output.emit_json(simulate_document(simulation))
    else:
        _print(simulation)
    if html is not None:
        from kvscope.report.policies import html_report

        write_text(Path(html), html_report(simulation))
        note(f"report written to {html}")


def _print(found: Simulation) -> None:
    from kvscope.cli.rendering import show_report
    from kvscope.report.policies import screen

    show_report(found.trace, screen(found))
