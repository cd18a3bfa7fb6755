"""What `kvscope tune --tiers` recommends, on requests that no choice saw; part of `no_harm`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.held_out import HeldOut
from benchmarks.table import Table
from kvscope.app.options import TierOptions, TuneOptions
from kvscope.app.requests import TierTuningRequest, tier_tuning_request
from kvscope.app.tune_tiers import recommend_tiers, tier_plan
from kvscope.app.values import TierSize
from kvscope.characterize.windows import Windows
from kvscope.core import units
from kvscope.core.units import GIB
from kvscope.replay.workload import Workload
from kvscope.tuning.split import counted_from, first_requests
from kvscope.tuning.tier_trial import TierTrial, TierWindow, candidate_of
from kvscope.tuning.tiers import SLOW_COPIES, TierTuning
from kvscope.tuning.trial import Evaluator
from kvscope.vllm_sim.offload_engines import HICACHE, parse_offload
from kvscope.vllm_sim.offload_spec import OffloadSpec
from kvscope.vllm_sim.settings import RELEASES

DEPLOYMENTS: tuple[dict[str, Any], ...] = (
    {"gpu": "l40s", "model": "llama3.1-8b", "gpu_hour": 1.0},
    {"gpu": "h100", "model": "qwen2.5-14b", "gpu_hour": 2.5},
    {"gpu": "h200", "model": "llama3-70b", "weight_dtype": "fp8", "gpu_hour": 3.5},
    {"gpu": "h100", "model": "qwen2.5-14b", "gpu_hour": 2.5, "tiers": "HiCache"},
    {"gpu": "h100", "model": "qwen2.5-14b", "gpu_hour": 2.5, "tiers": "files"},
)
HYBRID: tuple[dict[str, Any], ...] = (
    {"gpu": "l4", "model": "gpt-oss-20b", "gpu_hour": 0.8},
    {"gpu": "h100", "model": "gpt-oss-20b", "gpu_hour": 2.5},
)
"""Of models with windows, whose retention interval is tuned, too."""
TIERS: Mapping[str, TierOptions] = {
    "": TierOptions(),
    "HiCache": TierOptions(offload=(HICACHE,)),
    "files": TierOptions(
        offload=(f"vllm@{RELEASES[-1]}", HICACHE),
        tier_sizes=tuple(TierSize("dram", times * 42 * GIB, 2**10 * GIB) for times in (1, 2)),
    ),
}
"""What `tiers` of a deployment stands for; files are below once and twice its pool of memory."""
FACTORS = (0.6, 1.5)
"""SLOs, in units of the pool's percentile without a tier."""
TIMES = (1.0, 2.0)
"""Arrival rates, in units of the highest that the pool alone keeps up with: a power of two."""
GENERATED = (("to-c", 2_000, 20_000), ("agent", 700, 20_000), ("regime-change", 4_000, 20_000))
"""Profile, requests and seed of traces beside the samples."""
_RATES = tuple(2.0**power for power in range(3, -8, -1))


def measured(
    trace: HeldOut, deployment: dict[str, Any], percentile: float, share_seen: float
) -> Iterator[dict[str, Any]]:
    """Yield a result for each rate and SLO: the verdict, and its tier on the last requests."""
    seen = first_requests(
        trace.prompts, int(len(trace.prompts.leaf) * share_seen), trace.trace.lineage
    )

    def asked(rate: float, slo_s: float) -> TierTuningRequest:
        given = {name: value for name, value in deployment.items() if name != "tiers"}
        options = TuneOptions(slo=slo_s, percentile=percentile, rate_scale=rate, **given)
        return tier_tuning_request(options, TIERS[deployment.get("tiers", "")])

    rate, alone_s = 0.0, np.inf
    for rate in _RATES:
        alone = _window(trace, asked(rate, 1.0), share_seen / 2).baseline.trial
        if alone.keeps_up and np.isfinite(alone.target_s):
            alone_s = alone.target_s
            break
    if not np.isfinite(alone_s):
        yield {"verdict": "rejects too many requests", "rate": rate}
        return
    for times in TIMES:
        for factor in FACTORS:
            request = asked(rate * times, factor * alone_s)
            tuning = recommend_tiers(trace.trace, seen, request).tuning
            facts = {"rate": rate * times, "times": times, "slo_of_alone": factor}
            window = _window(trace, request, share_seen)
            yield {**facts, "why": tuning.why, **_judged(tuning, window)}


def _window(trace: HeldOut, request: TierTuningRequest, share: float) -> TierWindow:
    """Return the requests after the first `share` of the trace, as the request replays them."""
    plan, requests = tier_plan(trace.trace, trace.prompts, request), len(trace.prompts.leaf)
    setting = counted_from(plan.setting, int(requests * share), requests)
    setting = replace(setting, slo_s=plan.target.slo_s)
    workload = Workload(trace.prompts, setting, Windows(1.0, 1))
    return TierWindow(plan, Evaluator(workload, plan.target))


def _judged(tuning: TierTuning, window: TierWindow) -> dict[str, Any]:
    """Return the verdict, its tier on the window, and which of the tiers compared do harm there.

    A tier is compared with the pool alone as it is, and at the interval that is recommended for it;
    an interval alone with today's.
    """
    window = window.keeping(window.plan.keeping(tuning.baseline[1].interval))
    alone = window.baseline
    served = window.all([candidate_of(each) for each in tuning.compared], lambda _: None)
    result: dict[str, Any] = {
        "verdict": tuning.verdict,
        "worse": [],
        "harmful": sum(bool(_worse(window, each)) for each in served) + len(window.rejections),
        "compared": len(tuning.compared),
    }
    candidate = tuning.best.candidate
    if tuning.verdict == "keep-none" or candidate in window.rejections:
        rejected = [["never starts"]] if candidate in window.rejections else []
        return {**result, "worse": rejected}
    if candidate is None:
        trials, alone = [window.baseline], window.today
    else:
        trials = [window.of(candidate, copies) for copies in (1.0, SLOW_COPIES)]
    here = trials[0].trial
    return {
        **result,
        "tier": candidate.offload if candidate else "",
        "size": " + ".join(units.format_size(size) for _, size in candidate.tiers)
        if candidate
        else "",
        "interval": f"{tuning.best.interval:g}",
        "p95": here.target_s / alone.trial.target_s - 1 if alone.trial.target_s else 0.0,
        "p50": here.times_ms.p50 / alone.trial.times_ms.p50 - 1,
        "throughput": here.served_per_s / alone.trial.served_per_s - 1,
        "meets": here.meets(window.plan.target),
        "alone meets": alone.trial.meets(window.plan.target),
        "worse": [_worse(window, trial) for trial in trials],
        "net": [window.plan.net_hour(alone, trial) for trial in trials],
    }


def _worse(window: TierWindow, trial: TierTrial) -> list[str]:
    """Return what is worse than the pool alone, as it is or at the recommended interval.

    Attainment, TEL and the percentile where the 95 % interval lies on the wrong side of none, p50
    and prefill throughput beyond 2 %.
    """
    names: list[str] = []
    for alone in (window.today.trial, window.baseline.trial):
        here = window.window.against(alone, trial.trial)
        names += [name for name, gain in here.gains.items() if name != "p50" and gain.high < 0]
        if here.attainment_gain.high < 0:
            names.append("attainment")
        if here.times_ms.p50 > alone.times_ms.p50 * 1.02:
            names.append("p50")
        if here.served_per_s < alone.served_per_s * 0.98:
            names.append("throughput")
        if alone.keeps_up and not here.keeps_up:
            names.append("queue")
    return list(dict.fromkeys(names))


def table(results: list[dict[str, Any]]) -> Table:
    """Return a row for each trace and deployment."""
    rows = []
    for trace, deployment in dict.fromkeys((each["trace"], each["deployment"]) for each in results):
        here = [
            each for each in results if (each["trace"], each["deployment"]) == (trace, deployment)
        ]
        recommended = [each for each in here if "tier" in each]
        verdicts = [each["verdict"] for each in here]
        tiers = dict.fromkeys(
            " ".join(filter(None, [each["size"], *_options(each["tier"]), _interval(each)]))
            for each in recommended
        )
        rows.append(
            [
                trace,
                deployment,
                f"{here[0]['rate']:g}",
                ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts)),
                "; ".join(tiers) or "–",
                str(sum(any(each.get("worse", ())) for each in here)),
                *(_range([each[name] for each in recommended]) for name in ("p95", "p50")),
                _range([each["throughput"] for each in recommended]),
                f"{sum(each['meets'] for each in recommended)} of {len(recommended)}",
                f"{sum(each.get('harmful', 0) for each in here)}",
            ]
        )
    chosen = [each for each in results if each.get("tier")]
    kept = sum(each["verdict"] == "set-interval" for each in results)
    intervals = f", {kept} a retention interval without one" if kept else ""
    worse = sum(any(each.get("worse", ())) for each in results)
    pays = [each for each in chosen if each["verdict"] == "pays"]
    profit = sum(each["net"][0] > 0 for each in pays)
    return Table(
        "Tiers on requests that no choice saw",
        f"{sum('times' in each for each in results)} tunings at"
        f" {' and '.join(f'{times:g}' for times in TIMES)} times the"
        " highest arrival rate (`rate`, a power of two times the trace's) that the pool alone keeps"
        f" up with, for SLOs of {', '.join(f'{factor:g}' for factor in FACTORS)} times its p95:"
        f" {len(chosen)} recommend a tier{intervals}; {len(pays)} say that it pays ({profit} save"
        f" more GPU time than it costs on the last requests too). {worse} of them are worse than"
        f" the pool alone there, as modelled or with copies {SLOW_COPIES:g} times as long. p95, p50"
        " and prefill throughput: changes by what is recommended, least and most. `would harm`:"
        " tiers compared, recommended or not, that were worse there.",
        (
            "trace",
            "deployment",
            "rate",
            "verdicts",
            "recommended",
            "worse",
            "p95",
            "p50",
            "throughput",
            "SLO met",
            "would harm",
        ),
        rows,
    )


def _interval(result: dict[str, Any]) -> str:
    """Return the retention interval of a recommendation, empty for vLLM's default."""
    return "" if result.get("interval", "0") == "0" else f"interval {result['interval']}"


def _options(offload: str) -> list[str]:
    """Return HiCache's name, and options of a way to offload without its policy's parameters."""
    if not offload:
        return []
    spec = parse_offload(offload)
    if isinstance(spec, OffloadSpec):
        return replace(spec, params=()).text.split(":")[1:]
    return spec.text.split(":")


def _range(values: list[float]) -> str:
    if not values:
        return "–"
    low, high = min(values), max(values)
    return f"{low:+.0%}" if low == high else f"{low:+.0%} to {high:+.0%}"
