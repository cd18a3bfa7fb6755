"""Measure whether recommendations hold on requests that no choice saw.

Every trace is tuned on its first 80 % for four deployments, each with the least replicas that keep
up, and SLOs of 0.5, 0.8, 1.1 and 2 times LRU's p95. What is recommended, at the pool that there is,
is then replayed beside LRU over the whole trace and compared on the last 20 %. A recommendation is
worse if the 95 % interval of its attainment, TEL or p95 lies on the wrong side of LRU's; regret is
its p95 over that of the best contender in hindsight.

`--resume FILE` keeps each result as it comes and goes on from there, a file for each table;
`--short` takes one deployment and the samples below a minute; `--coverage N` instead counts how
often the interval of a gain holds the gain of all N seeds together, on five kinds of generated
traffic; `--tiers` measures what `kvscope tune --tiers` recommends instead (see `tier_harm`), with
`--hybrid` for models with windows.
`--record` writes the tables into docs/evidence/no-harm.md. KVSCOPE_TRACES names the folder of
published traces.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks import ROOT, tier_harm
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
from kvscope.tuning.bootstrap import Bootstrap
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
COVERED = (
    ("birth-death", 2_000, 1_200, 0.2, 1_500.0),
    ("to-c", 2_000, 12_000, 0.58, 9_383.0),
    ("to-b", 2_000, 660, 0.24, 3_803.0),
    ("agent", 2_000, 3_200, 7.5, 122_942.0),
    ("regime-change", 2_000, 300, 0.64, 10_368.0),
)
"""Traffic that intervals are to cover: profile, requests, capacity in blocks, SLO in seconds (about
LRU's p95, but for birth-death) and T-LRU's xi in tokens."""
FIRST_SEED = 20_000
"""Of that traffic: the intervals were designed on others, below 10,000."""
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


def _covered(traffic: tuple[str, int, int, float, float], seeds: int) -> list[list[str]]:
    """Return a row for each figure: how often its interval holds the gain of all seeds together."""
    name, requests, capacity, slo_s, xi_tokens = traffic
    note(f"{name}, {seeds} seeds")
    target = Target(slo_s)
    setting = run_setting(standard(warmup=1 - SEEN), PRESETS["llama2-7b-a100"], slo_s=slo_s)
    tlru = TLru({"xi_tokens": xi_tokens, "next_prompt_tokens": 500})
    pairs = []
    wanted = tuple((name, requests, FIRST_SEED + seed) for seed in range(seeds))
    with TemporaryDirectory() as folder:
        for trace in generated(wanted, Path(folder)):
            workload = Workload(trace.prompts, setting, Windows(1.0, 1))
            window = Window(Evaluator(workload, target), Limits())
            lru = window.measure(Lru(), capacity)
            pairs.append((lru, window.measure(tlru, capacity, lru)))
    together = [
        np.concatenate([trial.ttft_s for trial in policy]) for policy in zip(*pairs, strict=True)
    ]
    bootstrap = Bootstrap(np.zeros(len(together[0]), dtype=np.int32), target, resamples=1)
    lru_s, tlru_s = map(bootstrap.figures, together)
    truths = bootstrap.gains(lru_s, tlru_s)
    truths["attainment"] = bootstrap.attainment_gain(lru_s, tlru_s)
    rows = []
    for figure in ("p50", "p95", "violations", "tel", "attainment"):
        truth = truths[figure]
        gains = [{**trial.gains, "attainment": trial.attainment_gain}[figure] for _, trial in pairs]
        held = sum(gain.low <= truth.value <= gain.high for gain in gains) / seeds
        too_good = sum(gain.low > truth.value for gain in gains) / seeds
        rows.append([name, figure, f"{truth.value:+.1%}", f"{held:.1%}", f"{too_good:.1%}"])
    return rows


def coverage(seeds: int, resume: Path | None) -> Table:
    """Return how often the 95 % interval of a gain holds the gain of all seeds together."""
    known = {result["traffic"]: result["rows"] for result in _kept(resume)}
    for each in COVERED:
        if each[0] not in known:
            known[each[0]] = _covered(each, seeds)
            _keep(resume, [{"traffic": each[0], "rows": known[each[0]]}])
    traffic = ", ".join(f"{requests:,} of {name}" for name, requests, *_ in COVERED)
    return Table(
        "Coverage of the intervals",
        f"{seeds} generated traces a row, one seed each ({traffic} requests): share of the 95 %"
        " intervals of tlru's gain over LRU that hold the gain over the requests of all seeds"
        " together. `too good`: share of intervals that lie above it, nominally 2.5 %. `attainment`"
        " is a difference of shares.",
        ("traffic", "figure", "gain", "coverage", "too good"),
        [row for name, *_ in COVERED for row in known[name]],
    )


def _kept(path: Path | None) -> list[dict[str, Any]]:
    """Return the results of earlier runs in the file to resume."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    return [json.loads(line) for line in lines]


def _keep(path: Path | None, results: list[dict[str, Any]]) -> None:
    """Add results to the file to resume."""
    if path:
        with path.open("a") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)


def _traces(options: argparse.Namespace) -> Iterator[HeldOut]:
    """Yield the traces to tune on."""
    yield from samples()
    if options.tiers and not options.short:
        with TemporaryDirectory() as folder:
            yield from generated(tier_harm.GENERATED, Path(folder))
    if not options.short:
        yield from published()


def _results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all results, those of earlier runs from the file to resume."""
    known = _kept(options.resume)
    done = {(result["trace"], result["deployment"]) for result in known}
    deployments = DEPLOYMENTS
    if options.tiers:
        deployments = tier_harm.HYBRID if options.hybrid else tier_harm.DEPLOYMENTS
    measure = partial(tier_harm.measured, share_seen=SEEN) if options.tiers else measured
    for trace in _traces(options):
        for deployment in deployments[1:2] if options.short else deployments:
            name = " ".join(str(value) for value in deployment.values())
            if (trace.name, name) in done:
                continue
            note(f"{trace.name}, {name}")
            percentile = 0.9 if len(trace.prompts.leaf) < FEW else 0.95
            rows = [
                {"trace": trace.name, "deployment": name, **result}
                for result in measure(trace, deployment, percentile)
            ]
            known += rows
            _keep(options.resume, rows)
    return known


def main() -> None:
    """Print the tables, or record them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--tiers", action="store_true")
    parser.add_argument("--hybrid", action="store_true")
    parser.add_argument("--coverage", type=int, metavar="N")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if options.coverage:
        table = coverage(options.coverage, options.resume)
        part = "coverage"
    elif options.tiers:
        table = tier_harm.table(_results(options))
        part = "tiers-hybrid" if options.hybrid else "tiers"
    else:
        table, part = harm_table(_results(options)), "no-harm"
    print(table.markdown())
    if options.record:
        record(PAGE, table.markdown(), part)


if __name__ == "__main__":
    main()
