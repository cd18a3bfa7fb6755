"""What use cases are asked, with every mistake in it refused before any trace is read.

The functions take plain values: names, numbers, seconds, bytes. UsageError names the option of the
command line that is wrong. This module and what it imports load no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.core import units
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition, Outputs, compatible, standard
from kvscope.core.kv_size import KvDtype, ModelKv, resolve_model
from kvscope.core.runs import CapacityModel, RunSetting, Tenant, TierMode
from kvscope.latency.file import load_profile
from kvscope.latency.profile import DEFAULT_PROFILE, MODELS, LatencyProfile
from kvscope.replay.policy_options import (
    ALL,
    CONTENDERS,
    Variant,
    parse_policies,
    parse_variants,
    refitted,
)
from kvscope.replay.settings import policies_for, run_setting, with_capacity_model
from kvscope.tuning.target import Target, View

if TYPE_CHECKING:
    from kvscope.tuning.file import Recommendation

BASELINE = "lru"
DEFAULT_PERCENTILE = 0.95


@dataclass(frozen=True, slots=True)
class Capacities:
    """Capacities in blocks, in bytes and in tokens, each as it was named."""

    blocks: tuple[int, ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def in_blocks(self, model: ModelKv | None, block_size: int) -> list[int]:
        """Return them all in blocks of `block_size` tokens, ascending, each once.

        Raises UsageError for a size in bytes that holds no block of the model.
        """
        fitting = [model.blocks_in(size, block_size) for size in self.sizes_bytes if model]
        if model is not None and 0 in fitting:
            raise UsageError(
                "holds not one block",
                where="--capacity",
                remedy=(
                    f"a block of {model.name} takes"
                    f" {units.format_size(model.bytes_for(block_size))}"
                ),
            )
        return sorted({*self.blocks, *fitting, *(one // block_size for one in self.tokens)})


@dataclass(frozen=True, slots=True)
class AnalyzeRequest:
    """What an analysis shows beyond the trace itself."""

    definition: HitDefinition = standard()
    model: ModelKv | None = None
    hbm_bytes: int | None = None
    capacities: Capacities = Capacities()


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """Which replays are wanted.

    Without `points` it is the named capacities, without those a usual number of points. Tiers have
    capacities of their own.
    """

    setting: RunSetting
    variants: tuple[Variant, ...]
    capacities: Capacities = Capacities()
    points: int | None = None
    model: ModelKv | None = None


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What is to be tuned, for which target.

    `warmup` and `judge` are shares of the requests, None for the usual ones; `range_bytes` bounds
    the search for the least capacity. `given` names the options that the user chose: the others
    are listed as assumptions.
    """

    target: Target
    setting: RunSetting
    profile: LatencyProfile
    variants: tuple[Variant, ...]
    capacities: Capacities = Capacities()
    range_bytes: tuple[int, int] | None = None
    model: ModelKv | None = None
    hbm_bytes: int | None = None
    warmup: float | None = None
    judge: float | None = None
    given: frozenset[str] = field(default_factory=frozenset)


def analyze_request(
    *,
    compat: str | None = None,
    outputs: Outputs = "carried",
    warmup: float = 0.0,
    model: str | None = None,
    kv_dtype: KvDtype | None = None,
    hbm_bytes: int | None = None,
    capacity_blocks: Sequence[int] | None = None,
    capacity_bytes: Sequence[int] | None = None,
) -> AnalyzeRequest:
    """Return what `kvscope analyze` is asked by these options."""
    definition = hit_definition(compat, outputs, warmup)
    kv = kv_model(model, kv_dtype)
    if kv is None and (hbm_bytes or capacity_bytes):
        option = "--hbm" if hbm_bytes else "--capacity"
        raise UsageError("needs a model", where=option, remedy="name one with --model")
    named = Capacities(tuple(capacity_blocks or ()), tuple(capacity_bytes or ()))
    return AnalyzeRequest(definition, kv, hbm_bytes, named)


def simulate_request(
    *,
    policies: str | None = None,
    params: Sequence[str] | None = None,
    capacity_bytes: Sequence[int] | None = None,
    capacity_blocks: Sequence[int] | None = None,
    points: int | None = None,
    capacity_model: CapacityModel = "cache",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    tiers: str | None = None,
    tier_mode: TierMode | None = None,
    model: str | None = None,
    kv_dtype: KvDtype | None = None,
    latency: str | None = None,
    slo_s: float | None = None,
    recommendation: str | None = None,
    refit_s: float | None = None,
    rate_scale: float = 1.0,
    warmup: float = 0.0,
    outputs: Outputs = "carried",
    compat: str | None = None,
    isolate: Tenant | None = None,
    sample: float = 1.0,
    coarsen: int = 1,
) -> SimulateRequest:
    """Return what `kvscope simulate` is asked by these options."""
    recommended = read_settled(
        recommendation,
        {
            "--policies": policies,
            "--param": params,
            "--capacity": capacity_bytes,
            "--capacity-blocks": capacity_blocks,
            "--points": points,
            "--tiers": tiers,
            "--latency": latency,
            "--slo": slo_s,
        },
    )
    kv = kv_model(model, kv_dtype, sizes_named=bool(capacity_bytes))
    profile = recommended.profile if recommended else latency_profile(latency)
    definition = hit_definition(compat, outputs, warmup)
    setting = run_setting(
        definition, profile, slo_s=recommended.target.slo_s if recommended else slo_s
    )
    setting = replace(
        setting,
        rate_scale=above_zero(rate_scale),
        isolate=isolate,
        sample_rate=sample,
        coarsen=coarsen,
    )
    setting = with_capacity_model(
        setting,
        capacity_model,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        tiers=tiers,
        tier_mode=tier_mode,
        capacities_named=any(
            option is not None for option in (capacity_bytes, capacity_blocks, points)
        ),
    )
    if recommended:
        variants = _with_lru(recommended)
    else:
        variants = parse_variants(policies_for(setting, policies), params or ())
    if refit_s is not None:
        variants = [refitted(variant, refit_s) for variant in variants]
    capacities = Capacities(
        tuple(capacity_blocks or ()),
        tuple(capacity_bytes or ()),
        (recommended.capacity_tokens,) if recommended else (),
    )
    return SimulateRequest(setting, tuple(variants), capacities, points, kv)


def tune_request(
    *,
    slo_s: float,
    percentile: float | None = None,
    max_violations: float | None = None,
    view: View = "unloaded",
    capacity_bytes: int | None = None,
    capacity_blocks: int | None = None,
    range_bytes: tuple[int, int] | None = None,
    model: str | None = None,
    kv_dtype: KvDtype | None = None,
    hbm_bytes: int | None = None,
    latency: str | None = None,
    policies: str | None = None,
    params: Sequence[str] | None = None,
    rate_scale: float = 1.0,
    outputs: Outputs = "carried",
    isolate: Tenant | None = None,
    warmup: float | None = None,
    judge: float | None = None,
) -> TuneRequest:
    """Return what `kvscope tune` is asked by these options."""
    if percentile is not None and max_violations is not None:
        raise UsageError(
            "says the same in another way",
            where="--max-violations",
            remedy="leave out --percentile or --max-violations",
        )
    if capacity_bytes is not None and capacity_blocks is not None:
        raise UsageError(
            "says the same in another unit", where="--capacity-blocks", remedy="leave out one"
        )
    profile = latency_profile(latency)
    setting = run_setting(hit_definition(None, outputs, 0.0), profile, slo_s=slo_s)
    setting = replace(setting, rate_scale=above_zero(rate_scale), isolate=isolate)
    kv = kv_model(
        model or MODELS.get(profile.name), kv_dtype, sizes_named=capacity_bytes is not None
    )
    if range_bytes is not None and kv is None:
        raise UsageError("bytes need a model", where="--capacity-range", remedy="name --model")
    variants = _contenders(policies, params)
    given: Mapping[str, object] = {
        "--latency": latency,
        "--model": model,
        "--capacity": capacity_bytes or capacity_blocks,
        "--percentile": percentile or max_violations,
        "--warmup, --judge": None if warmup is None and judge is None else True,
        "--policies": policies,
    }
    if max_violations is not None:
        target = Target(slo_s, round(1 - max_violations, 9), "violations", view)
    else:
        target = Target(slo_s, percentile or DEFAULT_PERCENTILE, view=view)
    return TuneRequest(
        target=target,
        setting=setting,
        profile=profile,
        variants=tuple(variants),
        capacities=Capacities(
            (capacity_blocks,) if capacity_blocks else (),
            (capacity_bytes,) if capacity_bytes else (),
        ),
        range_bytes=range_bytes,
        model=kv,
        hbm_bytes=hbm_bytes,
        warmup=warmup,
        judge=judge,
        given=frozenset(name for name, value in given.items() if value is not None),
    )


def hit_definition(compat: str | None, outputs: Outputs, warmup: float) -> HitDefinition:
    """Return the definition of a hit that `compat`, or else `outputs` and `warmup`, stand for."""
    if not 0 <= warmup < 1:
        raise UsageError(f"not below 100%: {warmup:.0%}", where="--warmup", remedy="try 20%")
    if compat is None:
        return standard(warmup=warmup, outputs=outputs)
    if outputs != "carried" or warmup:
        raise UsageError(
            "settles outputs and warm-up itself",
            where=f"--compat {compat}",
            remedy="leave out --outputs and --warmup",
        )
    return compatible(compat)


def kv_model(
    name: str | None, kv_dtype: KvDtype | None, *, sizes_named: bool = False
) -> ModelKv | None:
    """Return the model called `name`, which a precision and sizes in bytes cannot do without."""
    if name is None:
        if kv_dtype:
            raise UsageError("needs a model", where="--kv-dtype", remedy="name one with --model")
        if sizes_named:
            raise UsageError(
                "bytes need a model", where="--capacity", remedy="name one with --model"
            )
        return None
    try:
        return resolve_model(name, kv_dtype)
    except UsageError as error:
        raise UsageError(error.what, where=error.where or "--model", remedy=error.remedy) from error


def latency_profile(latency: str | None) -> LatencyProfile:
    """Return the latency profile called `latency`, or the default one."""
    try:
        return load_profile(latency or DEFAULT_PROFILE)
    except UsageError as error:
        raise UsageError(error.what, where="--latency", remedy=error.remedy) from error


def above_zero(rate_scale: float) -> float:
    """Return the factor of the arrival rate. Raises UsageError for one that is none."""
    if not 0 < rate_scale < float("inf"):
        raise UsageError(
            f"not above 0: {rate_scale:g}", where="--rate-scale", remedy="write for example 2"
        )
    return rate_scale


def read_settled(path: str | None, options: Mapping[str, object]) -> Recommendation | None:
    """Return the recommendation in the file at `path`, if one is named.

    Raises UsageError for any of the `options` that says what the file settles.
    """
    if path is None:
        return None
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(
            "says what the recommendation says",
            where=", ".join(given),
            remedy=f"leave it out, or edit {path}",
        )
    from kvscope.tuning.file import read_recommendation  # loads kernels

    return read_recommendation(Path(path))


def _with_lru(recommended: Recommendation) -> list[Variant]:
    """Return LRU and what is recommended, if that is another policy."""
    from kvscope.policies.lru import Lru

    policy = recommended.policy
    best = Variant(type(policy), policy.values, policy.evicts)
    return [best] if policy.name == BASELINE else [Variant(Lru), best]


def _contenders(policies: str | None, params: Sequence[str] | None) -> list[Variant]:
    """Return what may replace LRU. Raises UsageError for a policy that knows the future."""
    named = parse_policies(policies or CONTENDERS)
    for policy in named:
        if policy.hindsight and policies != ALL:
            raise UsageError(
                f"{policy.name} knows the future, and cannot be run",
                where="--policies",
                remedy="leave it out: the oracles are always shown",
            )
    kinds = [policy for policy in named if not policy.hindsight and policy.name != BASELINE]
    return parse_variants(kinds, params or ())
