"""Measure whether recommendations hold on requests that no choice saw.

Every trace is tuned on its first 80 % for four deployments, each with the least replicas that keep
up, and SLOs of 0.5, 0.8, 1.1 and 2 times LRU's p95. What is recommended, at the pool that there is,
is then replayed beside LRU over the whole trace and compared on the last 20 %. A recommendation is
worse if the 95 % interval of its attainment, TEL or p95 lies on the wrong side of LRU's; regret is
its p95 over that of the best contender in hindsight.

`--resume FILE` keeps each result as it comes and goes on from there; `--short` takes one deployment
and the samples below a minute; `--coverage N` instead counts how often the interval of a gain holds
the gain of all N seeds together. `--record` writes the tables into docs/evidence/no-harm.md.
KVSCOPE_TRACES names the folder of published traces.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.held_out import HeldOut, generated, published, samples
from benchmarks.processes import note
from benchmarks.table import Table, record
from kvscope.app.options import TuneOptions
from kvscope.app.requests import TuneRequest, tune_request
from kvscope.app.tune import Recommendation, tune
from kvscope.characterize.windows import Windows
from kvscope.core.hits import standard
from kvscope.latency.profile import PRESETS
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.settings import run_setting
from kvscope.replay.workload import Workload
from kvscope.tuning.comparison import Window, WindowTrial
from kvscope.tuning.load import keeps_up
from kvscope.tuning.split import first_requests
from kvscope.tuning.target import Limits, Target
from kvscope.tuning.trial import Evaluator

PAGE = ROOT / "docs" / "evidence" / "no-harm.md"
SEEN = 0.8
FACTORS = (0.5, 0.8, 1.1, 2.0)
DEPLOYMENTS: tuple[dict[str, Any], ...] = (
    {"gpu": "l4", "model": "llama3-8b"},
    {"gpu": "a100-80", "model": "llama3-8b"},
    {"gpu": "h100", "tp": 2, "model": "llama3-70b", "weight_dtype": "fp8"},
    {"gpu": "h200", "tp": 4, "model": "llama3-8b"},
)
MOST_REPLICAS = 64
COVERED = 2_000
"""Requests of a trace that the coverage of intervals is measured on."""
FEW = 2_500
"""Requests below which p90 is the target, so that every window has enough beyond it."""


def measured(
    trace: HeldOut, deployment: dict[str, Any], percentile: float
) -> Iterator[dict[str, Any]]:
    """Yield a result for each SLO: the verdict, and the last requests under what it recommends."""
    probe = tune_request(TuneOptions(slo=1.0, percentile=percentile, **deployment))
    whole, requests = trace.prompts, len(trace.prompts.leaf)
    seen = first_requests(whole, int(requests * SEEN), trace.trace.lineage)
    replicas = _least_replicas(trace, probe)
    if replicas is None:
        yield {"verdict": f"more than {MOST_REPLICAS} replicas"}
        return
    options = {**deployment, "replicas": replicas}
    lru_s = _lru_s(trace, probe, replicas)
    if not np.isfinite(lru_s):
        yield {"verdict": "rejects too many requests", "replicas": replicas}
        return
    for factor in FACTORS:
        request = tune_request(TuneOptions(slo=factor * lru_s, percentile=percentile, **options))
        tuned = tune(trace.trace, seen, request)
        yield {"slo_of_lru": factor, "replicas": replicas, **_judged(tuned, request, trace)}


def _window(trace: HeldOut, request: TuneRequest, share: float, replicas: int) -> Window:
    """Return the requests after the first `share` of the trace, as the request replays them."""
    setting = request.setting
    first = int(len(trace.prompts.leaf) * share) + 0.5
    definition = replace(setting.definition, warmup=first / len(trace.prompts.leaf))
    setting = replace(setting, definition=definition, slo_s=request.target.slo_s)
    workload = Workload(trace.prompts, setting, Windows(1.0, 1))
    return Window(Evaluator(workload, request.target, replicas=replicas), request.limits)


def _least_replicas(trace: HeldOut, request: TuneRequest) -> int | None:
    blocks, count = _pool_blocks(trace, request), 1
    while count <= MOST_REPLICAS:
        window = _window(trace, request, 0.5, count)
        if keeps_up(window.evaluator.served(Lru(), blocks), 0.0):
            return count
        count *= 2
    return None


def _lru_s(trace: HeldOut, request: TuneRequest, replicas: int) -> float:
    """Return LRU's percentile in the second half of the requests that tuning sees."""
    window = _window(trace, request, SEEN / 2, replicas)
    return window.measure(Lru(), _pool_blocks(trace, request)).target_s


def _pool_blocks(trace: HeldOut, request: TuneRequest) -> int:
    if request.deployment is None:
        raise ValueError("the request is for a cache alone")
    return request.deployment.pool.in_blocks_of(trace.trace.block_size).blocks


def _judged(tuned: Recommendation, request: TuneRequest, trace: HeldOut) -> dict[str, Any]:
    tuning = tuned.tuning
    window = _window(trace, request, SEEN, tuning.replicas)
    lru = window.measure(Lru(), tuning.capacity_blocks)
    result: dict[str, Any] = {"verdict": tuning.verdict, "policy": "lru", "certain": tuning.certain}
    contenders = [
        window.measure(each.policy, tuning.capacity_blocks, lru) for each in tuning.contenders
    ]
    best_s = min([lru.target_s, *(each.target_s for each in contenders)])
    chosen = lru
    if tuning.verdict == "switch":
        chosen = window.measure(tuning.recommended.policy, tuning.capacity_blocks, lru)
        result |= {"policy": chosen.policy.name, **_changes(chosen, window)}
    regret = chosen.target_s / best_s - 1 if np.isfinite(best_s) and best_s > 0 else 0.0
    harmful = [each.policy.name for each in contenders if _worse(each, window)]
    return {**result, "regret": float(regret), "harmful": harmful}


def _changes(chosen: WindowTrial, window: Window) -> dict[str, Any]:
    rank = window.target.rank_name
    return {
        "attainment": chosen.attainment_gain.value,
        rank: -chosen.gains[rank].value,
        "tel": -chosen.gains["tel"].value,
        "worse": _worse(chosen, window),
    }


def _worse(chosen: WindowTrial, window: Window) -> bool:
    """Return whether an interval lies on the wrong side of LRU's figure."""
    gains = (chosen.attainment_gain, chosen.gains[window.target.rank_name], chosen.gains["tel"])
    return any(gain.high < 0 for gain in gains)


def harm_table(results: list[dict[str, Any]]) -> Table:
    """Return a row for each trace and deployment."""
    rows = []
    keys = dict.fromkeys((result["trace"], result["deployment"]) for result in results)
    for trace, deployment in keys:
        here = [r for r in results if (r["trace"], r["deployment"]) == (trace, deployment)]
        verdicts = [
            f"{r['verdict']}{' ' + r['policy'] if r['verdict'] == 'switch' else ''}" for r in here
        ]
        regrets = [r["regret"] for r in here if "regret" in r]
        worse = sum(r.get("worse", False) for r in here)
        would = sum(len(r.get("harmful", ())) for r in here)
        median = f"{statistics.median(regrets):.1%}" if regrets else "–"
        most = f"{max(regrets):.1%}" if regrets else "–"
        replicas = str(here[0].get("replicas", "–"))
        rows.append(
            [trace, deployment, replicas, "; ".join(verdicts), str(worse), str(would), median, most]
        )
    switches = [r for r in results if r["verdict"] == "switch"]
    tunings = sum("regret" in r for r in results)
    worse = sum(r["worse"] for r in switches)
    return Table(
        "Recommendations on requests that no choice saw",
        f"{tunings} tunings, {len(switches)} recommend a switch, {worse} of them worse than"
        f" LRU on the last {1 - SEEN:.0%} of the requests. Verdicts for SLOs of"
        f" {', '.join(f'{factor:g}' for factor in FACTORS)} times LRU's p95. `would harm`: best"
        " settings of policies, over the four SLOs, that were worse than LRU there.",
        (
            "trace",
            "deployment",
            "replicas",
            "verdicts",
            "worse",
            "would harm",
            "regret, median",
            "worst",
        ),
        rows,
    )


def _synthetic(seeds: int, target: Target) -> Iterator[Window]:
    """Yield the last four fifths of the requests of a generated trace for each seed."""
    profile = PRESETS["llama2-7b-a100"]
    with TemporaryDirectory() as folder:
        for trace in generated(
            tuple(("birth-death", COVERED, 1_000 + seed) for seed in range(seeds)), Path(folder)
        ):
            setting = run_setting(standard(warmup=0.2), profile, slo_s=target.slo_s)
            workload = Workload(trace.prompts, setting, Windows(1.0, 1))
            yield Window(Evaluator(workload, target), Limits())


def coverage(seeds: int) -> Table:
    """Return how often the 95 % interval of a gain holds the gain of all seeds together."""
    target = Target(slo_s=0.2)
    gains: dict[str, list[tuple[float, float, float]]] = {}
    for window in _synthetic(seeds, target):
        lru = window.measure(Lru(), 1_200)
        trial = window.measure(TLru({"xi_tokens": 1_500, "next_prompt_tokens": 500}), 1_200, lru)
        for name in ("p50", "p95", "violations", "tel"):
            gain = trial.gains[name]
            gains.setdefault(name, []).append((gain.value, gain.low, gain.high))
    rows = []
    for name, triples in gains.items():
        truth = statistics.fmean(value for value, _, _ in triples)
        held = sum(low <= truth <= high for _, low, high in triples)
        rows.append([name, f"{truth:+.1%}", f"{held / seeds:.1%}"])
    return Table(
        "Coverage of the intervals",
        f"{seeds} generated traces (`birth-death`, {COVERED:,} requests, one seed each): share of"
        " the 95 % intervals of tlru's gain over LRU that hold the mean gain of all.",
        ("figure", "mean gain", "coverage"),
        rows,
    )


def _results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all results, those of earlier runs from the file to resume."""
    path = options.resume
    known = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path and path.exists()
        else []
    )
    done = {(result["trace"], result["deployment"]) for result in known}
    for trace in samples() if options.short else (*samples(), *published()):
        for deployment in DEPLOYMENTS[1:2] if options.short else DEPLOYMENTS:
            name = " ".join(str(value) for value in deployment.values())
            if (trace.name, name) in done:
                continue
            note(f"{trace.name}, {name}")
            percentile = 0.9 if len(trace.prompts.leaf) < FEW else 0.95
            rows = [
                {"trace": trace.name, "deployment": name, **result}
                for result in measured(trace, deployment, percentile)
            ]
            known += rows
            if path:
                with path.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)
    return known


def main() -> None:
    """Print the tables, or record them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--coverage", type=int, metavar="N")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    table = coverage(options.coverage) if options.coverage else harm_table(_results(options))
    print(table.markdown())
    if options.record:
        record(PAGE, table.markdown(), "coverage" if options.coverage else "no-harm")


if __name__ == "__main__":
    main()
