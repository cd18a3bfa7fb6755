"""Tune tiers of memory below a GPU's pool: whether they pay, their sizes, and how they store."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.cluster import replays_on
from kvscope.app.ends import ends_of
from kvscope.app.latency import latency_for
from kvscope.app.monitor import Monitor
from kvscope.app.requests import TierTuningRequest
from kvscope.app.requests.tuning import offers
from kvscope.app.tiers_on_groups import OnGroups
from kvscope.app.traces import require_arrivals
from kvscope.app.values import TierSize
from kvscope.characterize.windows import round_windows
from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.deployment import ResolvedDeployment
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.models import Model
from kvscope.replay.policy_options import SGLANG, VLLM
from kvscope.replay.settings import setting_profile, timed_by, with_groups
from kvscope.tuning.file import EngineTable, why_kept, write_tier_recommendation
from kvscope.tuning.flags import retention_arguments
from kvscope.tuning.tier_trial import Options, TierCandidate, TierPlan
from kvscope.tuning.tiers import TierTuning, tune_tiers
from kvscope.vllm_sim.offload_engines import (
    HiCacheSpec,
    LmCacheSpec,
    Offloading,
    parse_offload,
)
from kvscope.vllm_sim.offload_launch import OffloadLaunch
from kvscope.vllm_sim.offload_spec import OffloadSpec

_TIMES_POOL = (0.5, 1, 2, 4, 8, 16)
_OPTIONS: Mapping[type, Options] = {
    OffloadSpec: (
        ("offload_prompt_only", (False,)),
        ("store_threshold", (2,)),
        ("eviction_policy", ("arc", "tlru", "gittins")),
    ),
    HiCacheSpec: (
        ("write_policy", ("write_through_selective", "write_back")),
        ("hicache_storage_prefetch_policy", ("best_effort", "wait_complete")),
    ),
    LmCacheSpec: (("save_decode_cache", (True,)),),
}
"""The options that are searched of a way to offload, first what is stored, then what leaves."""


class TierRecommendation(Struct, frozen=True):
    """A tier's tuning, with the trace and the deployment that it is for."""

    trace: Trace
    model: Model
    deployment: ResolvedDeployment
    plan: TierPlan
    tuning: TierTuning

    @property
    def launch(self) -> OffloadLaunch | None:
        """How the engine is started with what is recommended, None where it stays as it is."""
        best, ranks = self.tuning.best, self.deployment.tp
        interval = retention_arguments(best.trial.policy, self.plan.groups)
        if best.candidate is None:
            return OffloadLaunch("vLLM", interval) if interval else None
        candidate, spec = best.candidate, best.candidate.spec
        if isinstance(spec, LmCacheSpec):
            return spec.launch(candidate.size_bytes, ranks, disk=candidate.kind == "ssd")
        launch = spec.launch(candidate.size_bytes, ranks)
        return replace(launch, arguments=(*launch.arguments, *interval))

    @property
    def left_out(self) -> str | None:
        """What the simulation lacks of the recommended tier's engine, None for nothing."""
        recommended = self.tuning.recommended
        if recommended is None or recommended.candidate is None:
            return None
        return recommended.candidate.spec.left_out or None


def write_recommended_tier(path: Path, tuned: TierRecommendation, *, force: bool = False) -> str:
    """Write recommendation.toml to `path`, as `kvscope simulate` reads it; return what was done.

    Unless by `force`, a file that recommends a change is not replaced by a weaker verdict.
    """
    tuning, plan, launch = tuned.tuning, tuned.plan, tuned.launch
    if not force and (kept := why_kept(path, tuning.verdict)):
        return kept
    engine = SGLANG if launch is not None and launch.engine == "SGLang" else VLLM
    write_tier_recommendation(
        path,
        tuning,
        plan,
        trace=tuned.trace.name,
        profile=setting_profile(plan.setting),
        flags={} if launch is None else {engine: launch.flags},
        deployment=EngineTable.of(tuned.deployment, plan.setting.kv_groups),
    )
    return f"recommendation written to {path}"


def tier_recommendation_text(tuned: TierRecommendation) -> str:
    """Return what `write_recommended_tier` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recommendation.toml"
        write_recommended_tier(path, tuned)
        return path.read_text(encoding="utf-8")


def recommend_tiers(
    trace: Trace, prompts: Prompts, request: TierTuningRequest, monitor: Monitor | None = None
) -> TierRecommendation:
    """Return whether a tier pays, and which.

    Raises Stopped once the monitor's `stop` is set, InputError for a trace without arrival times or
    with too few requests, UsageError for a tier that does not fit the trace's blocks.
    """
    monitor = monitor or Monitor()
    plan, model, where = _planned(trace, prompts, request)
    with replays_on(request.tune.on, monitor) as executor:
        tuning = tune_tiers(plan, monitor.steps, monitor.stop, executor)
    return TierRecommendation(trace, model, where, plan, tuning)


def tier_plan(trace: Trace, prompts: Prompts, request: TierTuningRequest) -> TierPlan:
    """Return what `recommend_tiers` tunes; raise as it does."""
    return _planned(trace, prompts, request)[0]


def _planned(
    trace: Trace, prompts: Prompts, request: TierTuningRequest
) -> tuple[TierPlan, Model, ResolvedDeployment]:
    require_arrivals(trace)
    tune = request.tune
    latency = latency_for(trace, tune.profile, tune.deployment, lambda: prompts)
    where = latency.deployment
    if where is None or where.model is None:
        raise ValueError("a tier is tuned for a deployment with a model")
    setting = timed_by(tune.setting, latency.profile)
    setting, model = with_groups(setting, where.model, trace.block_size, where)
    groups = KvGroups.parse(setting.kv_groups) if setting.kv_groups else None
    pool = where.pool.in_blocks_of(trace.block_size)
    block_bytes = (model or where.model).kv_bytes_per_token(where.tp) * where.tp * trace.block_size
    whole_bytes = len(prompts.block_parent) * block_bytes * (len(groups.groups) if groups else 1)
    sizes = request.sizes or _sizes(pool.blocks * block_bytes, whole_bytes)
    ways = {
        text.strip(): _on_blocks(parse_offload(text), text, trace.block_size)
        for text in request.offload
    }
    allowed = OnGroups(groups)
    for spec in ways.values():
        allowed.require(spec, files=any(each.files_bytes for each in sizes))
    plan = TierPlan(
        prompts=prompts,
        lineage=trace.lineage,
        setting=setting,
        windows=round_windows(trace),
        shares=tune.shares,
        target=tune.target,
        limits=tune.limits,
        pool_blocks=pool.blocks,
        block_bytes=block_bytes,
        gpus=where.tp,
        candidates=_candidates(
            ways, sizes, trace.block_size, allowed.page_bytes(block_bytes, trace.block_size)
        ),
        options={
            spec.text: allowed.options(spec, _OPTIONS[type(spec)])
            for text, spec in ways.items()
            if ":" not in text
        },
        intervals=allowed.intervals(tuple(ways.values()), tune.variants),
        prices=request.prices,
        gpu_hour=where.stated.gpu_hour,
        ends=ends_of(latency, prompts, latency_named="--latency" in tune.given, pool=pool),
    )
    return plan, where.model, where


def _candidates(
    ways: Mapping[str, Offloading],
    sizes: Sequence[TierSize],
    block_size: int,
    page_bytes: int,
) -> tuple[TierCandidate, ...]:
    """Return each way to offload with each size, an SSD's CPU memory also without the SSD.

    `page_bytes` are those of a block of the engine.
    """
    alone = (each._replace(files_bytes=0) for each in sizes if each.files_bytes)
    sizes, candidates = tuple(dict.fromkeys([*sizes, *alone])), []
    for spec in ways.values():
        chunk_bytes = spec.chunk_blocks(block_size) * page_bytes
        for size in sizes:
            if not offers(spec, size):
                continue
            least = min(size.size_bytes, size.files_bytes or size.size_bytes)
            if least < chunk_bytes:
                raise UsageError(
                    f"{units.format_size(least)} holds not one chunk of {spec.text}",
                    where="--tier-sizes",
                    remedy=f"a chunk takes {units.format_size(chunk_bytes)}",
                )
            own = spec if size.files_bytes or not isinstance(spec, HiCacheSpec) else spec.in_memory
            candidates.append(TierCandidate(own.text, *size))
    return tuple(dict.fromkeys(candidates))


def _on_blocks(spec: Offloading, text: str, block_size: int) -> Offloading:
    """Return LMCache, where no option is stated, with chunks that end with blocks."""
    if isinstance(spec, LmCacheSpec) and text.strip() == spec.text:
        return spec.on_blocks(block_size)
    return spec


def _sizes(pool_bytes: int, whole_bytes: int) -> tuple[TierSize, ...]:
    """Return multiples of the pool, in whole GiB where it has some, up to what the trace fills."""
    sizes: list[int] = []
    for times in _TIMES_POOL:
        size = int(pool_bytes * times)
        if size >= units.GIB:
            size = -(-size // units.GIB) * units.GIB
        sizes.append(size)
        if size >= whole_bytes:
            break
    return tuple(TierSize("dram", size) for size in sizes)
