"""Measure whether the errors of samples and of coarse blocks hold: against the whole, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

import kvscope
from benchmarks.processes import note
from benchmarks.table import Table
from benchmarks.traces import TraceFile
from kvscope.app.traces import replayable
from kvscope.characterize.windows import round_windows
from kvscope.core.errors import UsageError
from kvscope.replay.parameter_estimates import Estimates, bind, estimate_parameters
from kvscope.replay.sampling import anchored, sampled
from kvscope.replay.sweep import WINDOWS, make_run
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.usecases.simulate import SimulateOptions, simulate_request

RATES = (0.3, 0.1, 0.03, 0.01)
FACTORS = (2, 4, 8, 16)
POLICIES = "tlru,etlru,threshold-lru,wa,lfu,gdfs,arc,fifo,s3fifo,sieve"
SLO_S = 0.1
POINTS, SEEDS = 6, 5


@dataclass(frozen=True, slots=True)
class Answer:
    """An estimate of a hit rate from a sample, beside the rate of the whole."""

    name: str
    policy: str
    error: float
    missed: float


def table(traces: list[TraceFile]) -> Table:
    """Return a row per trace and rate, sieve apart."""
    return _table(
        "sampling",
        f"{SEEDS} samples a rate. kvscope refuses rates below 10 %, and sieve.",
        "sample",
        {f"{rate:.0%}": [(rate, 1, seed) for seed in range(SEEDS)] for rate in RATES},
        traces,
    )


def coarse_table(traces: list[TraceFile]) -> Table:
    """Return a row per trace and number of blocks taken as one, sieve apart."""
    return _table(
        "coarsening",
        "The whole trace in larger blocks. kvscope refuses sieve.",
        "blocks as one",
        {str(factor): [(1.0, factor, 0)] for factor in FACTORS},
        traces,
    )


TABLES = {"sampling": table, "coarsening": coarse_table}
"""By the name of the part."""


def _table(
    title: str,
    about: str,
    column: str,
    estimates: dict[str, list[tuple[float, int, int]]],
    traces: list[TraceFile],
) -> Table:
    """Return the table of `estimates`: rate, blocks as one, and seed of each, by their name."""
    rows: list[list[str]] = []
    for trace in traces:
        answers = list(_answers(trace, estimates))
        for name in estimates:
            for is_sieve in (False, True):
                own = [a for a in answers if a.name == name and (a.policy == "sieve") == is_sieve]
                rows.append(_row(trace.name, name, "sieve" if is_sieve else "all others", own))
    return Table(
        title,
        f"{POLICIES} at {POINTS} capacities each, SLO {SLO_S:g} s. {about}"
        " Answered: with an error below 1. Holds: the exact rate is within the stated error, as 95"
        " of 100 should be.",
        ("trace", column, "policies", "answered", "holds", "median error", "worst beyond it"),
        rows,
    )


def _row(name: str, estimate: str, policies: str, answers: list[Answer]) -> list[str]:
    stated = [answer for answer in answers if answer.error < 1]
    cells = [name, estimate, policies, f"{len(stated)} of {len(answers)}"]
    if not stated:
        return [*cells, "", "", ""]
    holds = np.mean([answer.missed <= answer.error for answer in stated])
    error = np.median([answer.error for answer in stated])
    beyond = max(*(answer.missed - answer.error for answer in stated), 0.0)
    return [*cells, f"{holds:.1%}", f"{100 * error:.1f} pp", f"{100 * beyond:.1f} pp"]


def _answers(
    trace: TraceFile, estimates: dict[str, list[tuple[float, int, int]]]
) -> Iterator[Answer]:
    with kvscope.open_trace(trace.path) as opened:
        request = simulate_request(SimulateOptions(policies=POLICIES, slo=SLO_S))
        prompts = replayable(opened.store, opened.facts)
        windows = round_windows(opened.facts, WINDOWS)
    whole = Workload(prompts, request.setting, windows)
    capacities = whole.curve.capacities(POINTS)
    exact = {}
    policies = [bind(variant, _estimates(whole)) for variant in request.variants]
    for policy in policies:
        note(f"{trace.name}: {policy.name}")
        for blocks in capacities:
            run = make_run(whole, ReplayRequest(policy, blocks))
            exact[policy.name, blocks] = run.outcome.token_hit_rate
    definition = request.setting.definition
    for name, kinds in estimates.items():
        for rate, factor, seed in kinds:
            note(f"{trace.name}: {name}, {1 + seed} of {len(kinds)}")
            setting = replace(request.setting, sample_rate=rate, coarsen=factor)
            try:
                sample = sampled(prompts, rate, seed=seed, coarsen=factor)
                anchor = anchored(prompts, sample, definition, whole.curve)
                part = Workload(prompts, setting, windows, anchor)
                part.prepare(policies)
            except UsageError as error:
                note(str(error))
                continue
            for policy in (bind(variant, _estimates(part)) for variant in request.variants):
                for blocks in capacities:
                    run = make_run(part, ReplayRequest(policy, blocks))
                    missed = abs(run.outcome.token_hit_rate - exact[policy.name, blocks])
                    yield Answer(name, policy.name, run.hit_rate_error or 0.0, missed)


def _estimates(workload: Workload) -> Estimates:
    return estimate_parameters(workload.request_traffic, workload.profile, SLO_S)
