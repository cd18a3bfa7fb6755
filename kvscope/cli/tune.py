"""`kvscope tune`: which policy, with which parameters, at which capacity, for an SLO."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvscope.cli import asked, output
from kvscope.cli.diagnostics import note
from kvscope.cli.first_use import compiled_beside
from kvscope.cli.interrupts import stop_on_interrupt
from kvscope.cli.loading import load_trace
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
from kvscope.cli.progress import progress
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
from kvscope.core.errors import ExitCode, UsageError
from kvscope.replay.policy_options import ALL, CONTENDERS, parse_policies, parse_variants

if TYPE_CHECKING:
    from kvscope.app.tune import Tuned
    from kvscope.core.kv_size import ModelKv
    from kvscope.core.runs import RunSetting
    from kvscope.core.trace import Trace
    from kvscope.latency import LatencyProfile
    from kvscope.replay.variants import Variant
    from kvscope.store.prompts import Prompts
    from kvscope.tune.objective import Question, Target
    from kvscope.tune.result import Tuning

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
    goal = _target(slo, percentile, max_violations, view)
    profile = asked.profile(latency)
    setting = asked.setting(profile, asked.definition(None, outputs, 0.0), slo)
    setting = replace(setting, rate_scale=asked.above_zero(rate_scale), isolate=isolate)
    kv = asked.model(model or _model_of(profile), kv_dtype)
    variants = _contenders(policies, param)
    from kvscope.app.tune import Tuned, assumptions
    from kvscope.store.db import open_store
    from kvscope.tune.objective import JUDGED, SCALES, WARMUP, Question
    from kvscope.tune.tuner import CEILINGS

    replayed = [*(one.policy for one in variants), *CEILINGS]
    with open_store(db) as store, compiled_beside(replayed):
        found = load_trace(store, trace, reading)
        have = _capacity(capacity, capacity_blocks, kv, found)
        low, high = _range(capacity_range, kv, found)
        question = Question(
            target=goal,
            variants=tuple(variants),
            capacity_blocks=have,
            lowest_blocks=low,
            highest_blocks=high,
            warmup=WARMUP if warmup is None else warmup,
            judged=JUDGED if judge is None else judge,
            scales=SCALES if latency is None else (),
        )
        prompts = asked.prompts(store, found)
        tuning = _tuning(prompts, found, setting, question)
    tuned = Tuned(found, kv, hbm, profile, tuning)
    given = {
        "--latency": latency,
        "--model": model,
        "--capacity": have,
        "--percentile": percentile or max_violations,
        "--warmup, --judge": None if warmup is None and judge is None else True,
        "--policies": policies,
    }
    tuned = replace(tuned, assumptions=assumptions(tuned, given, CONTENDERS))
    _report(tuned, explain=explain, as_json=as_json, html=html)
    if path != STANDARD_STREAM:
        _write(Path(path), tuned, prompts)


def _target(
    slo: float, percentile: float | None, max_violations: float | None, view: View
) -> Target:
    from kvscope.tune.objective import Target

    if percentile is not None and max_violations is not None:
        raise UsageError(
            "says the same in another way",
            where="--max-violations",
            remedy="leave out --percentile or --max-violations",
        )
    if max_violations is not None:
        return Target(slo, round(1 - max_violations, 9), "violations", view)
    return Target(slo, percentile or DEFAULT_PERCENTILE, view=view)


def _model_of(profile: LatencyProfile) -> str | None:
    """The model that a latency preset was measured on."""
    from kvscope.latency import MODELS

    return MODELS.get(profile.name)


def _contenders(policies: str | None, param: list[str] | None) -> list[Variant]:
    """What may replace LRU. Raises UsageError for what knows the future."""
    named = parse_policies(policies or CONTENDERS)
    for policy in named:
        if policy.hindsight and policies != ALL:
            raise UsageError(
                f"{policy.name} knows the future, and cannot be run",
                where="--policies",
                remedy="leave it out: the ceilings are always shown",
            )
    kinds = [one for one in named if not one.hindsight and one.name != BASELINE]
    return parse_variants(kinds, param or [])


def _capacity(size: int | None, blocks: int | None, kv: ModelKv | None, trace: Trace) -> int | None:
    if size is not None and blocks is not None:
        raise UsageError(
            "says the same in another unit", where="--capacity-blocks", remedy="leave out one"
        )
    named = asked.capacities(
        (blocks,) if blocks else None, (size,) if size else None, kv, trace.block_size
    )
    return named[0] if named else None


def _range(
    sizes: tuple[int, int] | None, kv: ModelKv | None, trace: Trace
) -> tuple[int, int | None]:
    if sizes is None:
        return 0, None
    if kv is None:
        raise UsageError("bytes need a model", where="--capacity-range", remedy="name --model")
    low, high = (kv.blocks_in(size, trace.block_size) for size in sizes)
    return low, high


def _tuning(prompts: Prompts, trace: Trace, setting: RunSetting, question: Question) -> Tuning:
    """The procedure, which Ctrl-C ends with nothing written."""
    from kvscope.characterize.windows import round_windows
    from kvscope.tune.search import Stopped
    from kvscope.tune.tuner import tune as recommend

    with stop_on_interrupt() as stop:
        try:
            return recommend(
                prompts,
                setting,
                question,
                round_windows(trace),
                lineage=trace.lineage,
                progress=_steps,
                stop=stop,
            )
        except Stopped as error:
            note(f"{error}; nothing was written")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _steps(label: str) -> AbstractContextManager[Callable[[int], None]]:
    return progress(label, unit="steps")


def _report(tuned: Tuned, *, explain: bool, as_json: bool, html: str | None) -> None:
    from kvscope.report.recommendation import html_report, screen, sections

    if as_json:
        from kvscope.cli.tune_record import tune_record

        output.emit_json("tune", tuned.trace, tune_record(tuned))
    else:
        from kvscope.cli.rendering import show_report

        show_report(tuned.trace, sections(tuned) if explain else screen(tuned))
    if html is not None:
        Path(html).write_text(html_report(tuned), encoding="utf-8")
        note(f"report written to {html}")


def _write(path: Path, tuned: Tuned, prompts: Prompts) -> None:
    """Write the recommendation, with a fit to all of the trace for a policy that has such a table.

    As in the replays it was judged by, an engine goes on fitting, where it can.
    """
    from kvscope.learning.offline.single_fit import fit_for
    from kvscope.learning.returns.file import Fitted
    from kvscope.replay.derived_traces import isolate
    from kvscope.replay.traffic import traffic

    trial, setting = tuned.tuning.recommended.trial, tuned.tuning.setting
    fitted = None
    if trial.policy.table is not None:
        whole = isolate(prompts, setting.isolate) if setting.isolate else prompts
        fitted = fit_for(traffic(whole, setting.definition), trial.policy, trial.capacity_blocks)
    if isinstance(fitted, Fitted):
        fitted = replace(fitted, refits=True)
    tuned.write(path, fitted)
    note(f"recommendation written to {path}")
