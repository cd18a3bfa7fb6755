"""What `tune` recommends for hybrid models, on requests that no choice saw; part of `no_harm`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.held_out import HeldOut
from benchmarks.tier_harm import highest_rate, last_window
from kvscope.app.latency import latency_for
from kvscope.policies.lru import Lru
from kvscope.replay.derived_traces import at_rate
from kvscope.tuning.comparison import Window
from kvscope.tuning.rule import PolicyComparison
from kvscope.tuning.split import first_requests
from kvscope.tuning.trial import Advance
from kvscope.tuning.tuner import Tuner, TuningOptions, eligible_at
from kvscope.usecases.tune import TuneOptions, TuneRequest, tune_request
from kvscope.usecases.tune.recommend import ends_of

_QWEN = ROOT / "tests" / "deployment" / "configs" / "qwen3-next-80b" / "config.json"
_POOLS: tuple[tuple[dict[str, Any], str, tuple[float, ...]], ...] = (
    ({"gpu": "l4", "model": "gpt-oss-20b"}, "eagle3:2@1.8", (0.92, 0.8)),
    ({"gpu": "h100", "model": "gemma3-27b"}, "eagle:2@1.8", (0.92, 0.77)),
    ({"gpu": "h200", "model": str(_QWEN), "weight_dtype": "fp8"}, "mtp:2@1.8", (0.92, 0.62)),
    ({"gpu": "h200", "tp": 2, "model": "deepseek-v4-flash"}, "mtp:2@1.8", (0.92, 0.65)),
)
DEPLOYMENTS: tuple[dict[str, Any], ...] = tuple(
    {**machine, "speculative": drafter, "gpu_memory_utilization": share}
    for machine, drafting, shares in _POOLS
    for drafter in ("none", drafting)
    for share in shares
)
"""Windows, states and compressed attention, each with and without what vLLM drafts with there, in
the usual pool and in two smaller ones."""
SAMPLES = ("to-c", "to-b", "agent", "regime-change")
GENERATED = (("to-c", 2_000, 501),)
"""Profile, requests and seed of traces beside the samples."""
LOADS = ((1.0, 0.8), (0.25, 1.3))
"""Arrival rates, in units of the highest that LRU keeps up with (a power of two), each with an SLO
in units of LRU's percentile there."""


@contextmanager
def quiet(label: str, total: int = 0) -> Iterator[Advance]:
    """Show no progress."""
    yield lambda _: None


def called(deployment: dict[str, Any]) -> str:
    """Return a deployment's name in the table."""
    model = Path(deployment["model"])
    name = model.parent.name if model.suffix else model.name
    drafter = "" if deployment["speculative"] == "none" else f" {deployment['speculative']}"
    return f"{name} {deployment['gpu_memory_utilization']:g}{drafter}"


def tunings(
    trace: HeldOut, deployment: dict[str, Any], percentile: float, share_seen: float
) -> Iterator[tuple[float, PolicyComparison, Window, bool]]:
    """Yield the rate of each load, what the rule says there, and the last requests.

    And whether that holds at both ends of pool and latency, without which no flags are given. None
    where LRU rejects too many requests at any rate.
    """
    seen = first_requests(
        trace.prompts, int(len(trace.prompts.leaf) * share_seen), trace.trace.lineage
    )

    def asked(rate: float, slo_s: float) -> TuneRequest:
        return tune_request(
            TuneOptions(slo=slo_s, percentile=percentile, rate_scale=rate, **deployment)
        )

    highest, lru_s = highest_rate(trace, asked, share_seen / 2)
    for times, factor in LOADS if np.isfinite(lru_s) else ():
        rate = highest * times
        half, blocks = last_window(trace, asked(rate, 1.0), share_seen / 2)
        request = asked(rate, factor * half.measure(Lru(), blocks).target_s)
        window, _ = last_window(trace, request, share_seen)
        workload = window.evaluator.workload
        tuner = Tuner(
            at_rate(seen, rate),
            workload.setting,
            TuningOptions(request.target, request.variants, blocks, limits=request.limits),
            workload.windows,
            lineage=trace.trace.lineage,
            progress=quiet,
        )
        compared = tuner.compare()
        yield rate, compared, window, _holds(trace, request, tuner, compared)


def _holds(trace: HeldOut, request: TuneRequest, tuner: Tuner, compared: PolicyComparison) -> bool:
    """Return whether the change may be recommended at both ends of pool and latency."""
    prompts, choice = trace.prompts, compared.choice
    latency = latency_for(trace.trace, request.profile, request.deployment, lambda: prompts)
    where = latency.deployment
    if where is None or choice is None:
        return False
    pool = where.pool.in_blocks_of(prompts.block_size)
    for end in ends_of(latency, prompts, request, pool):
        windows, blocks = tuner.at_end(end), end.capacity_blocks or compared.capacity_blocks
        lru = windows.judge(Lru(), blocks)
        if not eligible_at(end, windows.judge(choice.policy, blocks, lru), lru, compared.grade):
            return False
    return True
