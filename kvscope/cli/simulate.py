"""`kvscope simulate`: what would each eviction policy give at each capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvscope.cli import asked, output, recommended
from kvscope.cli.diagnostics import note
from kvscope.cli.first_use import compiled_beside
from kvscope.cli.interrupts import stop_on_interrupt
from kvscope.cli.loading import load_trace
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
from kvscope.cli.progress import progress
from kvscope.cli.simulate_options import (
    DEFAULT_POINTS,
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
from kvscope.replay.capacity_options import modelled, over_tiers, policies_for
from kvscope.replay.policy_options import parse_variants, refitted

if TYPE_CHECKING:
    from kvscope.app.simulate import Simulation
    from kvscope.core.kv_size import ModelKv
    from kvscope.core.runs import Run, RunSetting
    from kvscope.core.trace import Trace
    from kvscope.policies.base import Policy
    from kvscope.replay.variants import Found, Variant
    from kvscope.replay.workload import Asked, Workload
    from kvscope.store.db import Store


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
    told = recommended.recommendation(
        recommendation,
        {
            "--policies": policies,
            "--param": param,
            "--capacity": capacity,
            "--capacity-blocks": capacity_blocks,
            "--points": points,
            "--tiers": tiers,
            "--latency": latency,
            "--slo": slo,
        },
    )
    kv = asked.model(model, kv_dtype, capacity)
    profile = told.profile if told else asked.profile(latency)
    slo = told.target.slo_s if told else slo
    setting = asked.setting(profile, asked.definition(compat, outputs, warmup), slo)
    setting = replace(setting, rate_scale=asked.above_zero(rate_scale))
    setting = replace(setting, isolate=isolate, sample_rate=sample, coarsen=coarsen)
    setting = modelled(
        setting,
        capacity_model,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        tiers=tiers,
        tier_mode=tier_mode,
        capacities_named=any(one is not None for one in (capacity, capacity_blocks, points)),
    )
    variants = (
        recommended.beside_lru(told)
        if told
        else parse_variants(policies_for(setting, policies), param or [])
    )
    if refit is not None:
        variants = [refitted(variant, refit) for variant in variants]
    from kvscope.replay import run_cache as kept
    from kvscope.replay.workload import Asked
    from kvscope.store.db import open_store

    plain = setting.capacity_model == "cache" and not setting.tiers  # the others' kernels differ
    replayed = [one.policy for one in variants if plain]
    with open_store(db) as store, compiled_beside(replayed):
        found = load_trace(store, trace, reading)
        named = asked.capacities(capacity_blocks, capacity, kv, found.block_size)
        if told:
            named = [told.capacity_tokens // found.block_size]
        if tiers is not None and kv is not None:
            setting = replace(setting, block_bytes=kv.bytes_for(found.block_size))
        workload = _workload(store, found, setting)
        bound, values = _bound(workload, variants)
        if tiers is not None:
            wanted = [over_tiers(workload, policy, values) for policy in bound]
        else:
            grid = kept.grid(workload, named, points, DEFAULT_POINTS)
            wanted = [Asked(policy, at) for at in grid for policy in bound]
        runs, complete = _run(store, found, workload, wanted)
    _report(found, kv, workload, runs, values, as_json=as_json, html=html)
    if not complete:
        note(f"{len(runs):,} of {len(wanted):,} runs are finished and kept")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _workload(store: Store, trace: Trace, setting: RunSetting) -> Workload:
    from kvscope.characterize.windows import round_windows
    from kvscope.replay.workload import WINDOWS, Workload

    return Workload(asked.prompts(store, trace), setting, round_windows(trace, WINDOWS))


def _bound(
    workload: Workload, variants: Sequence[Variant]
) -> tuple[list[Policy], Mapping[str, Found]]:
    """The policies to replay; says on stderr which values were found for their parameters."""
    from kvscope.replay.policy_options import format_value
    from kvscope.replay.variants import bind, found_values, used

    values = found_values(workload.turns, workload.profile, workload.setting.slo_s)
    for name, one in used(variants, values).items():
        note(f"{name} is {format_value(name, one.value)}, {one.origin}")
    return [bind(variant, values) for variant in variants], values


def _run(
    store: Store, trace: Trace, workload: Workload, wanted: Sequence[Asked]
) -> tuple[list[Run], bool]:
    """The runs that are wanted, from the store or replayed and stored; whether they are all."""
    from kvscope.replay import run_cache as kept
    from kvscope.replay.workload import sweep

    found = kept.wanted(store, trace, workload.setting, wanted)
    missing, runs = found.missing, list(found.known)
    if runs:
        note(f"{len(runs):,} of {found.count:,} runs were in the store already")
    with progress("preparing"):  # compiles, where that was not done before
        workload.prepare([one.policy for one in missing])
    with (
        stop_on_interrupt() as stop,
        progress("replaying", len(missing), unit="steps") as advance,
    ):
        for run in sweep(workload, missing, stop=stop):
            runs.append(kept.keep(store, trace, run))
            advance(1)
    return runs, len(runs) == found.count


def _report(
    trace: Trace,
    model: ModelKv | None,
    workload: Workload,
    runs: Sequence[Run],
    values: Mapping[str, Found],
    *,
    as_json: bool,
    html: str | None,
) -> None:
    from kvscope.app.simulate import Simulation, ordered

    setting = workload.setting
    one_cache = setting.capacity_model == "cache" and not setting.tiers
    curve = workload.curve if one_cache else None  # LRU's in a cache of one tier
    found = Simulation(trace, model, setting, ordered(runs), curve)
    if as_json:
        output.emit_json("simulate", trace, _document(found, values))
    else:
        _print(found)
    if html is not None:
        from kvscope.report.policies import html_report

        Path(html).write_text(html_report(found), encoding="utf-8")
        note(f"report written to {html}")


def _document(found: Simulation, values: Mapping[str, Found]) -> dict[str, Any]:
    from kvscope.cli.run_records import run_record, setting_record

    return {
        **setting_record(found.setting),
        "model": found.model
        and {
            "name": found.model.name,
            "dtype": found.model.dtype,
            "bytes_per_token": found.model.bytes_per_token,
        },
        "found": {name: {"value": one.value, "origin": one.origin} for name, one in values.items()},
        "results": [run_record(run, found.trace, found.model) for run in found.runs],
    }


def _print(found: Simulation) -> None:
    from kvscope.cli.rendering import show_report
    from kvscope.report.policies import screen

    show_report(found.trace, screen(found))
