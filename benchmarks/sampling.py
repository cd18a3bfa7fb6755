"""Measure whether the errors that a sample states hold: the sample against the whole, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

import kvscope
from benchmarks.processes import note
from benchmarks.table import Table
from benchmarks.traces import TraceFile
from kvscope.app.options import SimulateOptions
from kvscope.app.requests import simulate_request
from kvscope.app.traces import replayable
from kvscope.characterize.windows import round_windows
from kvscope.core.errors import UsageError
from kvscope.replay.parameter_estimates import Estimates, bind, estimate_parameters
from kvscope.replay.sampling import anchored, sampled
from kvscope.replay.sweep import WINDOWS, make_run
from kvscope.replay.workload import ReplayRequest, Workload

RATES = (0.3, 0.1, 0.03, 0.01)
POLICIES = "tlru,etlru,threshold-lru,wa,lfu,gdfs,arc,fifo,s3fifo,sieve"
SLO_S = 0.1
POINTS, SEEDS = 6, 5


@dataclass(frozen=True, slots=True)
class Answer:
    """An estimate of a hit rate from a sample, beside the rate of the whole."""

    rate: float
    policy: str
    error: float
    missed: float


def table(traces: list[TraceFile]) -> Table:
    """Return a row per trace and rate, sieve apart."""
    rows: list[list[str]] = []
    for trace in traces:
        answers = list(_answers(trace))
        for rate in RATES:
            for is_sieve in (False, True):
                own = [a for a in answers if a.rate == rate and (a.policy == "sieve") == is_sieve]
                rows.append(_row(trace.name, rate, "sieve" if is_sieve else "all others", own))
    return Table(
        "sampling",
        f"{POLICIES} at {POINTS} capacities each, SLO {SLO_S:g} s; {SEEDS} samples a rate."
        " Answered: with an error below 1. Holds: the exact rate is within the stated error, as 95"
        " of 100 should be. kvscope refuses rates below 10 %, and sieve.",
        ("trace", "sample", "policies", "answered", "holds", "median error", "worst beyond it"),
        rows,
    )


def _row(name: str, rate: float, policies: str, answers: list[Answer]) -> list[str]:
    stated = [answer for answer in answers if answer.error < 1]
    cells = [name, f"{rate:.0%}", policies, f"{len(stated)} of {len(answers)}"]
    if not stated:
        return [*cells, "", "", ""]
    holds = np.mean([answer.missed <= answer.error for answer in stated])
    error = np.median([answer.error for answer in stated])
    beyond = max(*(answer.missed - answer.error for answer in stated), 0.0)
    return [*cells, f"{holds:.1%}", f"{100 * error:.1f} pp", f"{100 * beyond:.1f} pp"]


def _answers(trace: TraceFile) -> Iterator[Answer]:
    with kvscope.open_trace(trace.path) as opened:
        request = simulate_request(SimulateOptions(policies=POLICIES, slo=SLO_S))
        prompts = replayable(opened.store, opened.facts, request.setting)
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
    for rate in RATES:
        setting = replace(request.setting, sample_rate=rate)
        for seed in range(SEEDS):
            note(f"{trace.name}: {rate:.0%}, sample {seed + 1} of {SEEDS}")
            try:
                sample = sampled(prompts, rate, seed=seed)
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
                    yield Answer(rate, policy.name, run.hit_rate_error or 0.0, missed)


def _estimates(workload: Workload) -> Estimates:
    return estimate_parameters(workload.request_traffic, workload.profile, SLO_S)
