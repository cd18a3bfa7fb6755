"""Measure whether recommendations hold on requests that no choice saw, and what they gain.

Every trace is compared on its first 80 %, at caches where LRU gets 30 to 85 % of the possible hits
and on simulated engines that keep up, for SLOs of 0.6, 0.8, 1.0 and 1.3 times LRU's p95. The change
of policy that the rule of `kvscope tune` grades *do now* or *canary* is then replayed beside LRU
over the whole trace and compared on the last 20 %. It is worse if the 95 % interval of its p95, TEL
or attainment lies on the wrong side of LRU's; a point harm is a p95 or TEL more than 2 % worse, or
an attainment 0.5 points lower. Captured is the share of the gain of the best setting in hindsight
that harms nothing, of all contenders with their tuned and usual xi, with and without a guard.

The rule was made on DEVELOPMENT and is judged on JUDGING and the published traces, whose folder
KVSCOPE_TRACES names. `--development` measures the former. `--resume FILE` keeps each result as it
comes and goes on from there, a file for each table; `--short` takes two traces at one cache;
`--coverage N` instead counts how often the interval of a gain holds the gain of all N seeds
together, on five kinds of generated traffic; `--tiers` measures what `kvscope tune --compare-tiers`
recommends instead (see `tier_harm`), with `--hybrid` for models with windows; `--hybrid` alone
measures retention intervals of hybrid models (see `hybrid_harm`). `--record` writes the tables into
docs/evidence/no-harm.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks import ROOT, hybrid_harm, tier_harm
from benchmarks.held_out import HeldOut, generated, published, samples
from benchmarks.hybrid_harm import quiet
from benchmarks.processes import note
from benchmarks.table import Table, record
from benchmarks.tier_harm import spread
from kvscope.characterize.distributions import Windows
from kvscope.core.errors import UsageError
from kvscope.core.hits import standard
from kvscope.latency.profile import PRESETS
from kvscope.policies.base import GUARD, Policy
from kvscope.policies.lru import RETENTION, Lru, LruRetention, retaining
from kvscope.policies.tlru import TLru
from kvscope.replay.curve import lru_curve
from kvscope.replay.settings import run_setting
from kvscope.replay.workload import Workload
from kvscope.tuning.bootstrap import Bootstrap
from kvscope.tuning.comparison import Window, WindowTrial, bounds, changes, harms
from kvscope.tuning.least import keeps_up
from kvscope.tuning.rule import PolicyComparison
from kvscope.tuning.search import XI, with_value
from kvscope.tuning.split import first_requests
from kvscope.tuning.target import LIKELY, Limits, Target
from kvscope.tuning.trial import Evaluator
from kvscope.tuning.tuner import Tuner, TuningOptions
from kvscope.usecases.tune import TuneOptions, TuneRequest, tune_request

PAGE = ROOT / "docs" / "evidence" / "no-harm.md"
SEEN = 0.8
FACTORS = (0.6, 0.8, 1.0, 1.3)
LEVELS = (0.5, 0.7, 0.3, 0.85)
"""Caches: where LRU gets these shares of the possible hits."""
ENGINES: tuple[dict[str, Any], ...] = (
    {"gpu": "a100-80", "model": "llama3-8b"},
    {"gpu": "a100-80", "model": "llama3-8b", "engine": "sglang"},
)
MOST_REPLICAS = 64
DEVELOPMENT = (
    ("to-c", 12_000, 101),
    ("birth-death", 8_000, 101),
    ("to-b", 8_000, 101),
    ("agent", 3_000, 101),
    ("regime-change", 8_000, 101),
    ("time-of-day", 8_000, 101),
    ("retrieval", 4_000, 101),
    ("shared-prefix-groups", 6_000, 101),
)
"""Profile, requests and seed of the traffic that the rule was made on, beside the samples."""
JUDGING = tuple(
    (profile, requests, seed + kind)
    for seed in (200, 400)
    for profile, requests, kind in (
        ("to-c", 6_000, 1),
        ("birth-death", 6_000, 1),
        ("to-b", 6_000, 1),
        ("agent", 2_000, 1),
        ("regime-change", 6_000, 1),
        ("time-of-day", 6_000, 1),
        ("retrieval", 4_000, 1),
        ("shared-prefix-groups", 4_000, 1),
        ("to-c", 2_000, 2),
        ("birth-death", 3_000, 2),
    )
)
"""The same of the traffic that judges it, beside the published traces."""
ON_ENGINES = ("to-c", "birth-death", "regime-change")
"""Profiles that are also replayed on simulated engines."""
SHORT = (("birth-death", 3_000, 301), ("to-c", 3_000, 301))
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
HIT_GAIN, TAIL_GAIN = 0.01, 0.05
"""What an interval that harms nothing has to gain in hindsight for LRU to be called a miss."""
WHY = (
    "worse on an earlier window",
    "with intervals too wide to exclude harm",
    "without a likely gain",
    "with a gain on one window alone",
)
"""Why a hybrid model's interval is not recommended."""
RETENTIONS = next(each.search for each in LruRetention.parameters if each.name == RETENTION)
FEW = 2_500
"""Requests below which p90 is the target, so that every window has enough beyond it."""


def measured(
    trace: HeldOut, deployment: dict[str, Any], percentile: float
) -> Iterator[dict[str, Any]]:
    """Yield a result for each SLO: what the rule says, and the last requests under that.

    `deployment` are options of `kvscope tune`; a `level` is a share of the possible hits instead,
    which LRU gets at the capacity.
    """
    options = {**deployment}
    level = options.pop("level", None)
    if level is not None:
        options["capacity_blocks"] = (_capacity(trace, level),)
    probe = tune_request(TuneOptions(slo=1.0, percentile=percentile, **options))
    seen = first_requests(trace.prompts, int(len(trace.prompts.leaf) * SEEN), trace.trace.lineage)
    replicas = 1 if level is not None else _least_replicas(trace, probe)
    if replicas is None:
        yield {"grade": f"more than {MOST_REPLICAS} replicas"}
        return
    blocks = _blocks(trace, probe)
    lru_s = _window(trace, probe, SEEN / 2, replicas).measure(Lru(), blocks).target_s
    if not np.isfinite(lru_s):
        yield {"grade": "rejects too many requests"}
        return
    for factor in FACTORS:
        request = tune_request(TuneOptions(slo=factor * lru_s, percentile=percentile, **options))
        tuning = TuningOptions(request.target, request.variants, blocks, replicas)
        tuner = Tuner(
            seen,
            request.setting,
            tuning,
            Windows(1.0, 1),
            lineage=trace.trace.lineage,
            progress=quiet,
        )
        compared = tuner.compare()
        window = _window(trace, request, SEEN, replicas)
        xi = float(request.profile.xi_tokens(request.target.slo_s))
        yield {"slo_of_lru": factor, **_judged(compared, window, xi)}


def measured_hybrid(
    trace: HeldOut, deployment: dict[str, Any], percentile: float
) -> Iterator[dict[str, Any]]:
    """Yield the same for each load of a hybrid model."""
    try:
        results = [
            {"rate": rate, "holds": holds, **_judged(compared, window)}
            for rate, compared, window, holds in hybrid_harm.tunings(
                trace, deployment, percentile, SEEN
            )
        ]
    except UsageError as error:  # of blocks that do not divide the model's
        yield {"grade": "refused", "refused": str(error)}
        return
    yield from results or [{"grade": "rejects too many requests"}]


def _capacity(trace: HeldOut, level: float) -> int:
    """Return the blocks at which LRU gets a share of the possible hits; the longest prompt fits."""
    curve = lru_curve(trace.prompts, standard(warmup=1 - SEEN))
    longest = int(trace.prompts.carried_blocks.max(initial=1))
    return max(curve.capacity_for(level * curve.ideal), longest)


def _blocks(trace: HeldOut, request: TuneRequest) -> int:
    """Return the capacity of each replica."""
    if request.deployment is None:
        return request.capacities.blocks[0]
    return request.deployment.pool.in_blocks_of(trace.trace.block_size).blocks


def _window(trace: HeldOut, request: TuneRequest, share: float, replicas: int) -> Window:
    """Return the requests after the first `share` of the trace, as the request replays them."""
    setting = request.setting
    first = int(len(trace.prompts.leaf) * share) + 0.5
    definition = replace(setting.definition, warmup=first / len(trace.prompts.leaf))
    setting = replace(setting, definition=definition, slo_s=request.target.slo_s)
    workload = Workload(trace.prompts, setting, Windows(1.0, 1))
    return Window(Evaluator(workload, request.target, replicas=replicas), request.limits)


def _least_replicas(trace: HeldOut, request: TuneRequest) -> int | None:
    blocks, count = _blocks(trace, request), 1
    while count <= MOST_REPLICAS:
        window = _window(trace, request, 0.5, count)
        if keeps_up(window.evaluator.served(Lru(), blocks), 0.0):
            return count
        count *= 2
    return None


def _judged(compared: PolicyComparison, window: Window, xi: float = 0.0) -> dict[str, Any]:
    """Return what the rule says, what that changes on the last requests, and the best there."""
    blocks, rank = compared.capacity_blocks, window.target.rank_name
    lru = window.measure(Lru(), blocks)
    hits = lru.outcome.token_hit_rate
    result: dict[str, Any] = {"grade": compared.grade, "policy": "lru", "why": _why(compared)}
    if compared.choice is not None:
        chosen = window.measure(compared.choice.policy, blocks, lru)
        result |= {
            "policy": chosen.policy.name,
            "values": dict(chosen.policy.values),
            "p95": chosen.gains[rank].value,
            "tel": chosen.gains["tel"].value,
            "attainment": chosen.attainment_gain.value,
            "hits": chosen.outcome.token_hit_rate - hits,
            "worse": _worse(chosen, rank),
        }
        result["harmed"] = (
            min(result["p95"], result["tel"]) < -0.02 or result["attainment"] < -0.005
        )
        result["right"] = not result["worse"] and (result["tel"] > 0 or result["attainment"] > 0)
    baseline = window.evaluator.trial(Lru(), blocks)
    most = bounds(window.target, window.limits, baseline)
    points = [(policy, blocks) for policy in _runnable(compared, xi)]
    harmless = [
        {**moved, "hits": hits - trial.outcome.token_hit_rate}
        for trial in window.evaluator.evaluate(points)
        if not harms(most, moved := changes(window.target, baseline, trial))
    ]
    best = {
        "best_p95": max([0.0, *(-moved[rank] for moved in harmless)]),
        "best_attainment": max([0.0, *(moved["attainment"] for moved in harmless)]),
        "best_hits": max([0.0, *(-moved["hits"] for moved in harmless)]),
    }
    return {**result, **best}


def _runnable(compared: PolicyComparison, xi: float) -> Iterator[Policy]:
    """Yield the settings to compare in hindsight, those with a guard also without it.

    Of the policy of hybrid models, all intervals that are searched.
    """
    for contender in compared.contenders:
        policy = contender.policy
        others = [policy]
        if XI in policy.values:
            others += [with_value(policy, XI, round(share * xi)) for share in (0.25, 0.5, 1.0)]
        if isinstance(policy, LruRetention):
            others += map(retaining, RETENTIONS)
        for each in others:
            yield each
            if GUARD.name in each.values:
                yield with_value(each, GUARD.name, 0.0)


def _worse(chosen: WindowTrial, rank: str) -> bool:
    """Return whether an interval lies on the wrong side of LRU's figure."""
    gains = (chosen.attainment_gain, chosen.gains[rank], chosen.gains["tel"])
    return any(gain.high < 0 for gain in gains)


def harm_table(results: Sequence[dict[str, Any]], traffic: str = "judging") -> Table:
    """Return a row for each trace, and one for all."""
    tuned = [result for result in results if "slo_of_lru" in result]
    names = dict.fromkeys(result["trace"] for result in tuned)
    groups = {name: [each for each in tuned if each["trace"] == name] for name in names}
    rows = [_harm_row(name, group) for name, group in {**groups, "all": tuned}.items()]
    caches = len({(each["trace"], each["deployment"]) for each in tuned})
    return Table(
        "Recommendations on requests that no choice saw",
        f"{len(tuned)} tunings of {caches} caches and engines, {traffic} traffic, for SLOs of"
        f" {', '.join(f'{factor:g}' for factor in FACTORS)} times LRU's p95; compared on the last"
        f" {1 - SEEN:.0%} of the requests. `worse`: a 95 % CI of p95, TEL or attainment on the"
        " wrong side; `harmed`: by value, p95 or TEL by 2 % or attainment by 0.5 points. `right`:"
        " TEL or attainment better, nothing worse. `captured`: of the gain of the best setting in"
        " hindsight that harms nothing, by changes graded do now.",
        (
            "trace",
            "tunings",
            "do now",
            "right",
            "worse",
            "harmed",
            "canary",
            "right there",
            "captured p95",
            "captured attainment",
        ),
        rows,
    )


def _harm_row(name: str, results: Sequence[dict[str, Any]]) -> list[str]:
    now = [each for each in results if each["grade"] == "do-now"]
    canary = [each for each in results if each["grade"] == "canary"]

    def captured(figure: str) -> str:
        most = sum(each[f"best_{figure}"] for each in results)
        return f"{sum(each[figure] for each in now) / most:.0%}" if most > 0 else "–"

    def times(group: Sequence[dict[str, Any]], what: str) -> str:
        return str(sum(each[what] for each in group))

    return [
        name,
        str(len(results)),
        str(len(now)),
        times(now, "right"),
        times(now, "worse"),
        times(now, "harmed"),
        str(len(canary)),
        times(canary, "right"),
        captured("p95"),
        captured("attainment"),
    ]


def hybrid_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return a row for each hybrid deployment, and one for all."""
    tuned = [result for result in results if "rate" in result]
    names = dict.fromkeys(result["deployment"] for result in tuned)
    groups = {name: [each for each in tuned if each["deployment"] == name] for name in names}
    loads = ", ".join(f"{times:g} ({slo:g})" for times, slo in hybrid_harm.LOADS)
    missed = [each["why"] for each in tuned if _missed(each)]
    refused = sum("refused" in result for result in results)
    return Table(
        "Retention intervals on requests that no choice saw",
        f"{len(tuned)} tunings on {'; '.join(dict.fromkeys(each['trace'] for each in results))}, at"
        f" {loads} times the highest arrival rate, a power of two times the trace's, that LRU keeps"
        " up with (in brackets the SLO, in units of LRU's percentile there). Of the other cases,"
        f" {refused} were refused, as the trace's blocks do not divide the model's, and in"
        f" {len(results) - len(tuned) - refused} the pool is too small for the prompts."
        " Deployments: model, share of the GPU's memory, drafter. `worse`, `harmed` and `right` as"
        " above, of changes with flags; `withheld`: changes without, since they do not hold at both"
        " ends of pool and latency, and how many of those would have harmed. `hits` (points) and"
        " `p95`: least and most change by those with flags. `missed`: no change, where an interval"
        f" that harms nothing gains over {HIT_GAIN * 100:g} point of hits or {TAIL_GAIN:.0%} of p95"
        f" in hindsight ({', '.join(f'{missed.count(each)} {each}' for each in WHY)}).",
        (
            *("deployment", "tunings", "do now", "right", "worse", "harmed"),
            *("canary", "right there", "worse there", "withheld"),
            *("intervals", "hits", "p95", "missed"),
        ),
        [_hybrid_row(name, group) for name, group in {**groups, "all": tuned}.items()],
    )


def _hybrid_row(name: str, results: Sequence[dict[str, Any]]) -> list[str]:
    given = [each for each in results if each["holds"]]
    now = [each for each in given if each["grade"] == "do-now"]
    canary = [each for each in given if each["grade"] == "canary"]
    withheld = [each for each in results if each["grade"] != "no" and not each["holds"]]
    harmed = sum(each["harmed"] for each in withheld)
    points = [each["hits"] * 100 for each in given]
    return [
        name,
        str(len(results)),
        str(len(now)),
        *(str(sum(each[what] for each in now)) for what in ("right", "worse", "harmed")),
        str(len(canary)),
        *(str(sum(each[what] for each in canary)) for what in ("right", "worse")),
        f"{len(withheld)} ({harmed})" if harmed else str(len(withheld)),
        ", ".join(f"{kept:g}" for kept in sorted({each["values"][RETENTION] for each in given}))
        or "–",
        f"{min(points):+.1f} to {max(points):+.1f}" if points else "–",
        spread([-each["p95"] for each in given]),
        str(sum(map(_missed, results))),
    ]


def _missed(result: dict[str, Any]) -> bool:
    gains: bool = result["best_hits"] > HIT_GAIN or result["best_p95"] > TAIL_GAIN
    return result["grade"] == "no" and gains


def _why(compared: PolicyComparison) -> str:
    """Return why the preferred contender is not recommended."""
    first = next(iter(compared.contenders), None)
    if first is None or not first.keeps_up or first.harms_by_value:
        return WHY[0]
    if first.harms:
        return WHY[1]
    return WHY[2] if first.later.likely < LIKELY else WHY[3]


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
    if options.tiers or options.development:
        yield from samples()
    elif options.hybrid:
        yield from samples(hybrid_harm.SAMPLES)
    made: tuple[tuple[str, int, int], ...] = SHORT
    if options.tiers:
        made = () if options.short else tier_harm.GENERATED
    elif options.hybrid:
        made = () if options.short else hybrid_harm.GENERATED
    elif not options.short:
        made = DEVELOPMENT if options.development else JUDGING
    with TemporaryDirectory() as folder:
        yield from generated(made, Path(folder))
    if not (options.short or options.development or options.hybrid):
        yield from published()


def _deployments(options: argparse.Namespace, name: str) -> Sequence[dict[str, Any]]:
    """Return the caches and engines of a trace."""
    if options.tiers:
        known = tier_harm.HYBRID if options.hybrid else tier_harm.DEPLOYMENTS
        return known[1:2] if options.short else known
    if options.hybrid:
        return hybrid_harm.DEPLOYMENTS[:1] if options.short else hybrid_harm.DEPLOYMENTS
    if options.short:
        return [{"level": LEVELS[0]}]
    engines = ENGINES if name.startswith(ON_ENGINES) else ()
    return [*({"level": level} for level in LEVELS), *engines]


def _results(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all results, those of earlier runs from the file to resume."""
    known = _kept(options.resume)
    done = {(result["trace"], result["deployment"]) for result in known}
    measure: Callable[..., Iterator[dict[str, Any]]] = measured
    if options.tiers:
        measure = partial(tier_harm.measured, share_seen=SEEN)
    elif options.hybrid:
        measure = measured_hybrid
    for trace in _traces(options):
        for deployment in _deployments(options, trace.name):
            name = " ".join(str(value) for value in deployment.values())
            if options.hybrid and not options.tiers:
                name = hybrid_harm.called(deployment)
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
    parser.add_argument("--development", action="store_true")
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
    elif options.hybrid:
        table, part = hybrid_table(_results(options)), "hybrid"
    else:
        traffic = "development" if options.development else "judging"
        part = "no-harm-development" if options.development else "no-harm"
        table = harm_table(_results(options), traffic)
    print(table.markdown())
    if options.record:
        record(PAGE, table.markdown(), part)


if __name__ == "__main__":
    main()
