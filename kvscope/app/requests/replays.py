"""What the options of `analyze`, `simulate`, `explain` and `retention` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.deployment import resolved_deployment
from kvscope.app.options import (
    SimulateOptions,
)
from kvscope.app.requests.common import (
    BASELINE,
    Capacities,
    above_zero,
    hit_definition,
    kv_model,
    latency_profile,
)
from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition
from kvscope.core.runs import RunSetting
from kvscope.deployment.engines import parse_engine
from kvscope.deployment.models import Model
from kvscope.replay.policy_options import (
    ALL,
    VLLM,
    Variant,
    parse_variants,
    refitted,
)
from kvscope.replay.settings import (
    policies_for,
    run_setting,
    with_capacity_model,
)

if TYPE_CHECKING:
    from kvscope.core.runs import TierMode
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.policies.base import Policy
    from kvscope.tuning.file import EngineTable, RecommendationFile, TierTable


class SimulateRequest(Struct, frozen=True):
    """Which replays to run: `points` capacities, or else the named ones, or else DEFAULT_POINTS.

    Tiers have capacities of their own; a recommended `tier` is below the one that is named.
    """

    setting: RunSetting
    variants: tuple[Variant, ...]
    capacities: Capacities = Capacities()
    points: int | None = None
    model: Model | None = None
    deployment: ResolvedDeployment | None = None
    on: str | None = None
    tier: TierTable | None = None


def simulate_request(options: SimulateOptions) -> SimulateRequest:
    """Return what the options of `simulate` ask for."""
    recommended = _recommendation(options)
    where = None if recommended else resolved_deployment(options)
    if where is not None:
        _check_simulated(options, where)
    kv = (
        where.model
        if where
        else kv_model(options.model, options.kv_dtype, sizes_named=bool(options.capacity))
    )
    definition = hit_definition(options.compat, options.outputs, options.warmup)
    slo_s = recommended.target.slo_s if recommended else options.slo
    if recommended:
        profile = recommended.profile
    else:
        profile = where.latency if where else latency_profile(options.latency)
    setting = replace(
        run_setting(definition, profile, slo_s=slo_s),
        rate_scale=above_zero(options.rate_scale),
        isolate=options.isolate,
        sample_rate=options.sample,
        coarsen=options.coarsen,
    )
    named = (options.capacity, options.capacity_blocks, options.points)
    engine = _engine(recommended, where)
    limits = engine or options
    setting = with_capacity_model(
        setting,
        "engine" if engine else options.capacity_model,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        tiers=options.tiers,
        tier_mode=options.tier_mode,
        offload=options.offload,
        capacities_named=any(capacity is not None for capacity in named),
    )
    if recommended and recommended.deployment is not None:
        setting = replace(setting, kv_groups=recommended.deployment.kv_groups)
    if recommended:
        variants = _with_lru(recommended)
    else:
        hybrid = setting.capacity_model == "engine" and kv is not None and _grouped(kv)
        named_policies = policies_for(setting, options.policies, hybrid=hybrid)
        variants = parse_variants(named_policies, options.param or ())
        if options.policies not in {None, ALL}:
            from kvscope.policies.registry import check_required  # late: loads NumPy

            for variant in variants:
                check_required(variant.policy, variant.given, "--policies")
    if options.refit is not None:
        variants = [refitted(variant, options.refit) for variant in variants]
    if setting.tiers:
        _check_tiers(setting, variants, kv)
    if not setting.exact:
        variants = _estimated(options, variants, definition)
    capacities = Capacities(
        options.capacity_blocks or (),
        options.capacity or (),
        _stated_tokens(recommended, where),
    )
    return SimulateRequest(
        setting,
        tuple(variants),
        capacities,
        options.points,
        kv,
        where,
        options.on,
        recommended.tier if recommended else None,
    )


def _check_tiers(setting: RunSetting, variants: Sequence[Variant], model: Model | None) -> None:
    """Raise UsageError for tiers that cannot be replayed, whatever the blocks of the trace are."""
    from kvscope.replay.tier_spec import offload_of, parse_tiers, require_offload  # late: NumPy
    from kvscope.replay.tiers import read_s, require_exact

    block_bytes = None if model is None else 0  # the trace says how many
    for variant in variants:
        policy = variant.policy(variant.given, variant.leaves)
        tiers = parse_tiers(
            setting.tiers,
            block_bytes=block_bytes,
            bind=partial(_own_or_default, policy),
            default=type(policy),
        )
        for tier in tiers[1:]:
            read_s(tier, 1, block_bytes)
        if (spec := offload_of(setting)) is not None:
            require_offload(spec, files=len(tiers) > 2)
        else:
            require_exact(tiers, cast("TierMode", setting.tier_mode))


def _own_or_default(own: Policy, kind: type[Policy]) -> Policy:
    """Return the policy of a tier: the one with parameters, where that is its kind."""
    return own if kind is type(own) else kind()


def _estimated(
    options: SimulateOptions, variants: list[Variant], definition: HitDefinition
) -> list[Variant]:
    """Return the variants of which a sample, or coarse blocks, can say how near they are.

    Raises UsageError for a sample that is too small, for a definition that it cannot estimate, and
    where a policy was named that is not one.
    """
    from kvscope.replay.sampling import LEAST_RATE, require_estimable  # late: loads NumPy

    require_estimable(definition, options.coarsen)
    if options.sample < LEAST_RATE:
        raise UsageError(
            f"no error can be stated below {LEAST_RATE:.0%}",
            where=f"--sample {options.sample:.3g}",
            remedy="replay more, or larger blocks with --coarsen",
        )
    scaling = [variant for variant in variants if variant.policy.scales]
    others = {variant.policy.name for variant in variants if not variant.policy.scales}
    if others and options.policies not in {None, ALL}:
        raise UsageError(
            f"a sample does not show what {', '.join(sorted(others))} does in the whole trace",
            where=f"--policies, {'--sample' if options.sample < 1 else '--coarsen'}",
            remedy="leave out one of them",
        )
    return scaling


def _engine(
    recommended: RecommendationFile | None, where: ResolvedDeployment | None
) -> ResolvedDeployment | EngineTable | None:
    """Return the deployment whose vLLM is replayed, None for a cache alone.

    Raises UsageError for a recommendation that is for several replicas.
    """
    if recommended is None:
        return where if where and where.engine.name == VLLM else None
    table = recommended.deployment
    if table is None or (parse_engine(table.engine).name != VLLM and recommended.tier is None):
        return None
    if table.replicas > 1:
        raise UsageError(
            "one engine is replayed",
            where="--recommendation",
            remedy=f"it is for {table.replicas} replicas: use kvscope tune",
        )
    return table


def _grouped(model: Model) -> bool:
    """Return whether vLLM caches the layers of a model in groups that kvscope simulates."""
    return model.kv_groups(1) is not None


def _stated_tokens(
    recommended: RecommendationFile | None, where: ResolvedDeployment | None
) -> tuple[int, ...]:
    """Return the capacity that a recommendation or a deployment states, in tokens."""
    if recommended:
        return (recommended.capacity_tokens,)
    return (where.pool.tokens,) if where else ()


def _check_simulated(options: SimulateOptions, where: ResolvedDeployment) -> None:
    """Raise UsageError for options that contradict a deployment."""
    names = ("capacity", "capacity_blocks", "points", "tiers")
    named = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
    if named:
        tiers = "name --model without --gpu, or take kvscope tune --tiers"
        raise UsageError(
            "the deployment (--gpu) has a pool of its own",
            where=named[0],
            remedy=tiers if named[0] == "--tiers" else f"leave {named[0]} out",
        )
    if where.replicas > 1 and where.traffic == "fleet":
        raise UsageError(
            "one engine is replayed",
            where=f"--replicas {where.replicas}",
            remedy="add --traffic replica for one replica's trace, or use kvscope tune",
        )


def _recommendation(options: SimulateOptions) -> RecommendationFile | None:
    """Return the recommendation in the file that the options name, if they name one.

    Raises UsageError for options that say what the file settles.
    """
    path = options.recommendation
    if path is None:
        return None
    settled = ("policies", "param", "capacity", "capacity_blocks", "points", "tiers", "tier_mode")
    named = [
        f"--{name.replace('_', '-')}"
        for name in (*settled, "offload", "latency", "slo")
        if getattr(options, name) is not None
    ]
    if named:
        raise UsageError(
            "the recommendation settles this",
            where=", ".join(named),
            remedy=f"leave it out, or edit {path}",
        )
    from kvscope.tuning.file import read_recommendation  # loads kernels

    return read_recommendation(Path(path))


def _with_lru(recommended: RecommendationFile) -> list[Variant]:
    """Return LRU, and what is recommended where that is another policy; above a tier that alone."""
    from kvscope.policies.lru import Lru

    policy = recommended.policy
    best = Variant(type(policy), policy.values, policy.evicts)
    alone = policy.name == BASELINE or recommended.tier is not None
    return [best] if alone else [Variant(Lru), best]
