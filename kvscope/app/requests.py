"""What `simulate` and `fleet` are to compute, and checks of options that several commands share.

Checks raise UsageError that names the wrong option, before any trace is read. This module and its
imports load no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core import units
from kvscope.core.errors import UsageError, placed
from kvscope.core.hits import HitDefinition, Outputs, compatible, standard
from kvscope.deployment.models import KvDtype, Model, resolve_model
from kvscope.latency.file import load_profile
from kvscope.latency.profile import DEFAULT_PROFILE, FROM_TRACE, TO_FIT, LatencyProfile
from kvscope.replay.policy_options import (
    ALL,
    HYBRID,
    SGLANG,
    VLLM,
    Variant,
    contenders,
    guarded,
    parse_policies,
    parse_variants,
)

if TYPE_CHECKING:
    from kvscope.app.options import TimeModel
    from kvscope.app.values import TierSize
    from kvscope.core.runs import RunSetting
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.fleet.options import Scaling
    from kvscope.fleet.outcome import Slo
    from kvscope.routers.base import Router
    from kvscope.tuning.file import TierTable
    from kvscope.vllm_sim import EngineSettings

BASELINE = "lru"
DEFAULT_PERCENTILE = 0.95


class Capacities(Struct, frozen=True):
    """Capacities as users state them: in blocks, bytes or tokens."""

    blocks: tuple[int, ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def in_blocks(self, model: Model | None, block_size: int) -> list[int]:
        """Return all capacities in blocks of `block_size` tokens, ascending and distinct.

        Bytes (left out without a model) and tokens are rounded down, tokens even to 0. Raises
        UsageError for a size in bytes that holds no block of the model.
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
        return sorted({*self.blocks, *fitting, *(tokens // block_size for tokens in self.tokens)})


def stated_slo(slo_s: float | None) -> float:
    """Return the SLO (s). Raises UsageError if none is stated."""
    if slo_s is None:
        raise UsageError("the SLO is not stated", where="--slo", remedy="add for example 200ms")
    return slo_s


def stated_capacities(*named: int | tuple[int, ...] | None) -> Capacities:
    """Return the capacities of --capacity (bytes) or --capacity-blocks; UsageError for both.

    `named` are these two options' values, in this order: one number, several, or None.
    """
    if None not in named:
        raise UsageError(
            "both state the capacity", where="--capacity, --capacity-blocks", remedy="leave out one"
        )
    sizes, blocks = ((each,) if isinstance(each, int) else each or () for each in named)
    return Capacities(blocks, sizes)


def hit_definition(compat: str | None, outputs: Outputs, warmup: float) -> HitDefinition:
    """Return the hit definition of the tool `compat`, if None by `outputs` and `warmup` (0-1)."""
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
    name: str | None,
    kv_dtype: KvDtype | None,
    where: ResolvedDeployment | None = None,
    *,
    sizes_named: bool = False,
) -> Model | None:
    """Return the model of the deployment `where`, else that called `name`; None without either.

    Raises UsageError for a precision or sizes in bytes without a model.
    """
    if where is not None:
        return where.model
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
    """Return the latency profile called `latency`, the default one for None.

    For `trace` it is TO_FIT, a placeholder until the trace is read and a profile fitted to its
    TTFTs (`kvscope.app.latency.latency_for`).
    """
    if latency == FROM_TRACE:
        return TO_FIT
    with placed("--latency"):
        return load_profile(latency or DEFAULT_PROFILE)


def above_zero(rate_scale: float) -> float:
    """Return `rate_scale`. Raises UsageError unless it is above 0 and finite."""
    if not 0 < rate_scale < float("inf"):
        raise UsageError(
            f"not above 0: {rate_scale:g}", where="--rate-scale", remedy="write for example 2"
        )
    return rate_scale


def check_engine_runs(variants: Sequence[Variant], where: str) -> None:
    """Raise UsageError, with option `where`, for a policy that simulated vLLMs cannot follow."""
    from kvscope.vllm_sim.state import lane_class  # late: loads NumPy

    with placed(where):
        for variant in variants:
            lane_class(variant.policy(variant.given, variant.leaves))


def check_sglang_runs(variants: Sequence[Variant], where: str) -> None:
    """Raise UsageError, with option `where`, for a policy or a parameter that SGLang lacks."""
    from kvscope.sglang_sim.replay import sglang_has  # late: loads NumPy

    for policy, given, leaves in ((each.policy, each.given, each.leaves) for each in variants):
        if not sglang_has(policy()):
            named = where == "--policy"
            remedy = f"take {contenders(SGLANG)}" if named else "run kvscope tune again"
            raise UsageError(f"SGLang has no policy {policy.name}", where=where, remedy=remedy)
        names = [name for name in given if not sglang_has(policy({name: given[name]}))]
        if leaves not in {None, policy.leaves}:
            names.append("leaves")
        if names:
            raise UsageError(
                f"SGLang's {policy.name} has no parameter {names[0]}",
                where=where if where != "--policy" else f"--param {policy.name}.{names[0]}",
                remedy="leave it out",
            )


def policies_to_try(
    policies: str | None, params: Sequence[str] | None, engine: str, *, hybrid: bool = False
) -> list[Variant]:
    """Return the policies to compare with LRU, as variants; guarded on vLLM.

    By default they are the `contenders` of `engine`. Each of `params`, `POLICY.NAME=VALUE,...`, is
    for its policy. Raises UsageError for a named oracle, and for a named policy that cannot order
    the model's blocks: some are only for `hybrid` models, others only for models that are not.
    """
    named = parse_policies(policies or contenders(engine, hybrid=hybrid))
    own = parse_policies(HYBRID)
    for policy in named:
        if policies != ALL and policy.name != BASELINE and (policy in own) != hybrid:
            what = "has no order for" if hybrid else "is for"
            raise UsageError(
                f"{policy.name} {what} the blocks of hybrid models",
                where="--policy",
                remedy=f"take {contenders(engine, hybrid=hybrid)}",
            )
    named = [policy for policy in named if policy.name == BASELINE or (policy in own) == hybrid]
    for policy in named:
        if policy.hindsight and policies != ALL:
            raise UsageError(
                f"{policy.name} is an oracle, which no engine can run",
                where="--policy",
                remedy="leave it out: oracles are always shown",
            )
    kinds = [policy for policy in named if not policy.hindsight and policy.name != BASELINE]
    variants = parse_variants(kinds, params or ())
    return [guarded(variant) for variant in variants] if engine == VLLM else variants


class SimulateRequest(Struct, frozen=True):
    """The replays to run: at named `capacities`, and `points` more (neither: DEFAULT_POINTS).

    The tiers of `--tiers` are in `setting`, with their capacities. `tier` is a recommended tier
    below a pool of the named capacity. `copied_bytes_per_token` is the KV that SGLang's host tier
    copies to each GPU, if a recommendation states it. `on` is the Ray cluster that replays (None:
    threads). `recommended`: the request is made from a recommendation; figures without a policy's
    name are of its policy, which is the last variant.
    """

    setting: RunSetting
    variants: tuple[Variant, ...]
    capacities: Capacities = Capacities()
    points: int | None = None
    model: Model | None = None
    deployment: ResolvedDeployment | None = None
    on: str | None = None
    tier: TierTable | None = None
    copied_bytes_per_token: int | None = None
    recommended: bool = False


def varied(autoscale: Scaling | None, disaggregate: float | None) -> list[str]:
    """Return those of --autoscale and --disaggregate that have a value."""
    given = {"--autoscale": autoscale, "--disaggregate": disaggregate}
    return [flag for flag, value in given.items() if value is not None]


def check_varied(
    flags: Sequence[str], where: ResolvedDeployment | None, model: Model | None, needs: str
) -> None:
    """Raise UsageError if a flag that `varied` returned is not simulated for this deployment.

    Neither is for the ranks of one engine; --disaggregate needs a `model`, not a hybrid one.
    `needs` says how to get simulated vLLMs; empty if replicas are simulated vLLMs already.
    """
    for flag in flags:
        hybrid = where is not None and where.kv_groups is not None
        apart = flag == "--disaggregate"
        for wrong, what, remedy in (
            (bool(needs), "needs simulated vLLMs", needs),
            (where and where.dp > 1, "the replicas are the ranks of one engine", "leave it out"),
            (apart and model is None, "needs the size of the KV", "name --model"),
            (apart and hybrid, "not simulated for hybrid models", "leave it out"),
        ):
            if wrong:
                raise UsageError(what, where=flag, remedy=remedy)


class FleetRequest(Struct, frozen=True):
    """The fleets to replay, and the SLO that the fewest replicas have to meet.

    `capacities` is per replica. Without `routers_named`, routers that need sessions are left out if
    the trace has none. `engine` has the limits of simulated vLLMs, without the number of blocks:
    for the time model `engine`, or to check the answer of a vLLM deployment's queues; else None.
    `tier` is below each pool. `disaggregate`, if not None, also compares prefill and decode on
    separate replicas, each with a link of `disaggregate` bytes per second. `on` is the Ray cluster
    that replays (None: threads), `perfetto` the file for a timeline.
    """

    setting: RunSetting
    slo: Slo
    routers: tuple[Router, ...]
    variants: tuple[Variant, ...]
    replicas: tuple[int, ...]
    capacities: Capacities
    model: Model | None = None
    deployment: ResolvedDeployment | None = None
    time_model: TimeModel = "queue"
    engine: EngineSettings | None = None
    tier: TierSize | None = None
    closed_loop: bool = False
    seeds: int = 1
    routers_named: bool = True
    on: str | None = None
    perfetto: str | None = None
    autoscale: Scaling | None = None
    disaggregate: float | None = None

    def engine_in_groups(self, block_size: int) -> EngineSettings | None:
        """Return the settings of a simulated vLLM, with the layer groups of a hybrid model.

        The groups are left out if blocks of `block_size` tokens do not divide the groups' blocks.
        """
        groups = self.deployment.kv_groups_for(block_size) if self.deployment else None
        if self.engine is None or groups is None or groups.undivided(block_size):
            return self.engine
        return replace(self.engine, groups=groups)

    def block_bytes(self, engine: EngineSettings | None, block_size: int) -> tuple[int, int]:
        """Return the bytes of a block over all GPUs of a replica, and the number of these GPUs."""
        model, gpus = self.model, self.deployment.tp if self.deployment else 1
        assert model is not None  # noqa: S101  (checked with the options)
        model = model if engine is None or engine.groups is None else model.by_block
        return model.kv_bytes_per_token(gpus) * gpus * block_size, gpus
