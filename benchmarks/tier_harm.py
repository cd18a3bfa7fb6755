"""What `tune --compare-tiers` recommends, on requests that no choice saw; part of `no_harm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.held_out import HeldOut
from benchmarks.table import Table
from kvscope.app.latency import latency_for
from kvscope.app.values import TierSize
from kvscope.characterize.distributions import Windows
from kvscope.core.units import GIB
from kvscope.policies.base import Policy
from kvscope.policies.lru import Lru, LruRetention, retained_by
from kvscope.replay.derived_traces import at_rate
from kvscope.replay.settings import timed_by, with_groups
from kvscope.replay.workload import Workload
from kvscope.report.plan import tier_label
from kvscope.tuning.comparison import Window, WindowTrial
from kvscope.tuning.plan import SLOW_COPIES
from kvscope.tuning.split import counted_from, first_requests
from kvscope.tuning.tiers import TierCandidate
from kvscope.tuning.trial import Evaluator
from kvscope.usecases.tune import TuneOptions, TuneRequest, tune_request
from kvscope.usecases.tune.recommend import tune
from kvscope.usecases.tune.recommendation import Recommendation

DEPLOYMENTS: tuple[dict[str, Any], ...] = (
    {"gpu": "l40s", "model": "llama3.1-8b", "gpu_hour": 1.0},
    {"gpu": "h100", "model": "qwen2.5-14b", "gpu_hour": 2.5},
    {"gpu": "h200", "model": "llama3-70b", "weight_dtype": "fp8", "gpu_hour": 3.5},
    {"gpu": "h100", "model": "qwen2.5-14b", "gpu_hour": 2.5, "tiers": "files"},
)
HYBRID: tuple[dict[str, Any], ...] = (
    {"gpu": "l4", "model": "gpt-oss-20b", "gpu_hour": 0.8},
    {"gpu": "h100", "model": "gpt-oss-20b", "gpu_hour": 2.5},
)
"""Of models with windows, whose retention interval is tuned, too."""
TIERS: Mapping[str, dict[str, Any]] = {
    "": {},
    "files": {
        "tier_size": tuple(TierSize(times * 42 * GIB, 2**10 * GIB) for times in (1, 2)),
    },
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

    hybrid = deployment in HYBRID

    def asked(rate: float, slo_s: float) -> TuneRequest:
        given = {name: value for name, value in deployment.items() if name != "tiers"}
        given |= TIERS[deployment.get("tiers", "")]
        if not hybrid:  # tiers alone
            given["policy"] = "lru"
        return tune_request(
            TuneOptions(
                slo=slo_s, percentile=percentile, rate_scale=rate, compare_tiers=True, **given
            )
        )

    rate, alone_s = highest_rate(trace, asked, share_seen / 2)
    if not np.isfinite(alone_s):
        yield {"verdict": "rejects too many requests", "rate": rate}
        return
    for times in TIMES:
        for factor in FACTORS:
            request = asked(rate * times, factor * alone_s)
            tuned = tune(trace.trace, seen, request)
            facts = {"rate": rate * times, "times": times, "slo_of_alone": factor}
            yield {**facts, **_judged(tuned, *last_window(trace, request, share_seen))}


def highest_rate(
    trace: HeldOut, asked: Callable[[float, float], TuneRequest], share: float
) -> tuple[float, float]:
    """Return the highest rate that LRU keeps up with after `share`, and its percentile there.

    `asked` takes a rate and an SLO. The percentile is infinite where LRU keeps up with no rate.
    """
    for rate in _RATES:
        window, blocks = last_window(trace, asked(rate, 1.0), share)
        alone = window.measure(Lru(), blocks)
        if alone.keeps_up and np.isfinite(alone.target_s):
            return rate, alone.target_s
    return _RATES[-1], np.inf


def last_window(trace: HeldOut, request: TuneRequest, share: float) -> tuple[Window, int]:
    """Return the requests after the first `share` of the trace, and the blocks of the pool."""
    prompts, requests = trace.prompts, len(trace.prompts.leaf)
    latency = latency_for(trace.trace, request.profile, request.deployment, lambda: prompts)
    where = latency.deployment
    assert where is not None  # noqa: S101  (each names a GPU)
    setting = timed_by(request.setting, latency.profile)
    setting, _ = with_groups(setting, request.model, trace.trace.block_size, where)
    setting = counted_from(setting, int(requests * share), requests)
    prompts = at_rate(prompts, setting.rate_scale)
    workload = Workload(prompts, replace(setting, slo_s=request.target.slo_s), Windows(1.0, 1))
    blocks = where.pool.in_blocks_of(trace.trace.block_size).blocks
    return Window(Evaluator(workload, request.target), request.limits), blocks


def _judged(tuned: Recommendation, window: Window, blocks: int) -> dict[str, Any]:
    """Return what is recommended, what it does on the window, and which tiers compared harm there.

    Compared with the pool alone as it is and, of a hybrid model, at the interval recommended.
    """
    today, offer, plan = window.measure(Lru(), blocks), tuned.tiers, tuned.plan
    assert offer is not None  # noqa: S101  (each asks for tiers)
    free: Policy = tuned.tuning.chosen.policy if tuned.tuning.grade == "do-now" else Lru()
    alone = [today, *([window.measure(free, blocks, today)] if free.name != Lru.name else [])]

    def served(policy: Policy, tier: TierCandidate, copies: float = 1.0) -> WindowTrial:
        below = offer.below(tier, copies)
        there = window.of(window.evaluator.over(replicas=1, tier=below))
        return there.measure(policy, blocks, today)

    compared = [option for option in plan.options if option.tier]
    here = [served(each.policy, each.tier) for each in compared if each.tier]
    result: dict[str, Any] = {
        "verdict": "add",
        "worse": [],
        "harmful": sum(bool(_worse(window, [today], each)) for each in here),
        "compared": len(compared),
    }
    chosen, policy = tuned.tier, tuned.recommended.policy
    if chosen is None:
        doubt = plan.tier_doubt.why if plan.tier_doubt else ""
        if not isinstance(policy, LruRetention):
            return {**result, "verdict": doubt}
        result["verdict"], trials, alone = "set-interval", alone[1:], [today]
    else:
        trials = [served(policy, chosen, copies) for copies in (1.0, SLOW_COPIES)]
    first, base = trials[0], alone[-1]
    cost = 0.0
    if chosen is not None:
        written = offer.written_bytes_s(first, window.evaluator.workload)
        cost = offer.price_hour(chosen, 1, written)
    hour = offer.replica_hour or 0.0
    return {
        **result,
        "tier": tier_label(chosen, [chosen.offload, "other"]) if chosen else "",
        "interval": f"{retained_by(policy):g}",
        "p95": first.target_s / base.target_s - 1 if base.target_s else 0.0,
        "p50": first.times_ms.p50 / base.times_ms.p50 - 1,
        "throughput": first.served_per_s / base.served_per_s - 1,
        "meets": first.meets(window.target),
        "alone meets": base.meets(window.target),
        "worse": [_worse(window, alone, trial) for trial in trials],
        "net": [(base.utilization - trial.utilization) * hour - cost for trial in trials],
    }


def _worse(window: Window, alone: Sequence[WindowTrial], trial: WindowTrial) -> list[str]:
    """Return what is worse than the pool alone.

    Attainment, TEL and the percentile where the 95 % interval lies on the wrong side of none, p50
    and prefill throughput beyond 2 %.
    """
    names: list[str] = []
    for each in alone:
        here = window.against(each, trial)
        names += [name for name, gain in here.gains.items() if name != "p50" and gain.high < 0]
        if here.attainment_gain.high < 0:
            names.append("attainment")
        if here.times_ms.p50 > each.times_ms.p50 * 1.02:
            names.append("p50")
        if here.served_per_s < each.served_per_s * 0.98:
            names.append("throughput")
        if each.keeps_up and not here.keeps_up:
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
            " ".join(filter(None, [each["tier"], _interval(each)])) for each in recommended
        )
        rows.append(
            [
                trace,
                deployment,
                f"{here[0]['rate']:g}",
                ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts)),
                "; ".join(tiers) or "–",
                str(sum(any(each.get("worse", ())) for each in here)),
                *(spread([each[name] for each in recommended]) for name in ("p95", "p50")),
                spread([each["throughput"] for each in recommended]),
                f"{sum(each['meets'] for each in recommended)} of {len(recommended)}",
                f"{sum(each.get('harmful', 0) for each in here)}",
            ]
        )
    chosen = [each for each in results if each.get("tier")]
    kept = sum(each["verdict"] == "set-interval" for each in results)
    intervals = f", {kept} a retention interval without one" if kept else ""
    worse = sum(any(each.get("worse", ())) for each in results)
    met = sum(each["meets"] for each in chosen)
    profit = sum(each["net"][0] > 0 for each in chosen)
    return Table(
        "Tiers on requests that no choice saw",
        f"{sum('times' in each for each in results)} tunings at"
        f" {' and '.join(f'{times:g}' for times in TIMES)} times the"
        " highest arrival rate (`rate`, a power of two times the trace's) that the pool alone keeps"
        f" up with, for SLOs of {', '.join(f'{factor:g}' for factor in FACTORS)} times its p95:"
        f" {len(chosen)} recommend a tier{intervals}; on the last requests {met} of the tiers meet"
        f" the SLO and {profit} save more GPU time than they cost. {worse} of all are worse than"
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


def spread(values: list[float]) -> str:
    """Return the least and the most of some changes."""
    if not values:
        return "–"
    low, high = min(values), max(values)
    return f"{low:+.0%}" if low == high else f"{low:+.0%} to {high:+.0%}"
