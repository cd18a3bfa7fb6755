"""Settings of runs, from hit definitions, latency profiles and options of capacity models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.core.hits import HitDefinition, standard
from kvscope.core.runs import CapacityModel, RunSetting
from kvscope.deployment.engines import parse_engine
from kvscope.latency.profile import TIMES, LatencyProfile
from kvscope.replay.policy_options import (
    ALL,
    HYBRID,
    LRU_RETENTION,
    REPLAYED,
    SGLANG,
    parse_policies,
)

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.deployment.models import Model
    from kvscope.policies.base import Policy


def run_setting(
    definition: HitDefinition, profile: LatencyProfile, *, slo_s: float | None = None
) -> RunSetting:
    """Return a setting with this definition and the latency of this profile."""
    return RunSetting(
        definition=definition,
        latency=profile.name,
        slo_s=slo_s,
        **{name: getattr(profile, name) for name in TIMES},
    )


def timed_by(setting: RunSetting, profile: LatencyProfile) -> RunSetting:
    """Return `setting` with the latency of another profile."""
    numbers = {name: getattr(profile, name) for name in TIMES}
    return replace(setting, latency=profile.name, **numbers)


def setting_profile(setting: RunSetting) -> LatencyProfile:
    """Return the latency profile with the times of a setting."""
    return LatencyProfile(setting.latency, "", **{name: getattr(setting, name) for name in TIMES})


def with_capacity_model(
    setting: RunSetting,
    model: CapacityModel,
    *,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    tiers: str | None = None,
    offload: str | None = None,
    capacities_named: bool = False,
) -> RunSetting:
    """Return `setting` with the capacity model of these options.

    `tiers` and `offload` are the texts of `--tiers` and `--offload`, each of which implies an
    engine, whose limits default to vLLM's. `capacities_named`: the user states capacities, which
    tiers have already. Raises UsageError for options that contradict each other.
    """
    limits = {"--max-num-seqs": max_num_seqs, "--max-num-batched-tokens": max_num_batched_tokens}
    if tiers is not None or offload is not None:
        if capacities_named:
            raise UsageError(
                "tiers have capacities of their own",
                where="--tiers",
                remedy="leave out --capacity, --capacity-blocks and --points",
            )
        engine = engine_setting(setting, max_num_seqs, max_num_batched_tokens, "--tiers")
        return with_tiers(engine, tiers, offload)
    if model == "engine":
        return engine_setting(setting, max_num_seqs, max_num_batched_tokens)
    for where in (name for name, limit in limits.items() if limit is not None):
        remedy = "add --capacity-model engine"
        raise UsageError("only an engine has it", where=where, remedy=remedy)
    return setting


def with_tiers(setting: RunSetting, tiers: str | None, offload: str | None = None) -> RunSetting:
    """Return an engine's setting with tiers below its pool.

    `tiers` is a text as for `--tiers`, such as `hbm=40GiB,dram=128GiB`, the pool first, and
    `offload` one as for `--offload`, such as `vllm@0.33:store_threshold=2` (None: the newest
    vLLM's). Raises UsageError for a wrong `offload`, and unless there are one or two lower tiers.
    """
    from kvscope.vllm_sim.offload_spec import OffloadSpec, own_offload

    below = 0 if tiers is None else tiers.count(",")
    spec = OffloadSpec.parse(offload or own_offload(None), files=below > 1)
    if tiers is None or not 1 <= below <= 2:
        raise UsageError(
            "takes the GPU's pool and one tier below it, or two",
            where="--tiers",
            remedy="write for example --tiers hbm=40GiB,dram=128GiB, or take --capacity-blocks",
        )
    written = ",".join(part.strip() for part in tiers.split(","))
    return replace(setting, tiers=written, tier_mode=spec.text)


def engine_setting(
    setting: RunSetting,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    where: str = "--capacity-model engine",
) -> RunSetting:
    """Return `setting` on a simulated engine with these limits (default: vLLM's).

    Raises UsageError, naming the option `where`, for a sample and for a hit definition other than
    `standard()`, whose warm-up may differ.
    """
    from kvscope.vllm_sim.settings import EngineSettings

    definition, vllm = setting.definition, EngineSettings(1)
    if replace(definition, name=standard().name, warmup=0.0) != standard():
        raise UsageError(
            f"an engine does not count as {definition.name} with outputs {definition.outputs}",
            where=where,
            remedy="leave out --compat and --outputs",
        )
    if not setting.exact:
        raise UsageError(
            "part of the requests make another load",
            where=where,
            remedy="leave out --sample",
        )
    return replace(
        setting,
        capacity_model="engine",
        max_num_seqs=max_num_seqs or vllm.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens or vllm.max_num_batched_tokens,
    )


def with_groups(
    setting: RunSetting,
    model: Model | None,
    trace_block: int,
    deployment: ResolvedDeployment | None,
) -> tuple[RunSetting, Model | None]:
    """Return the setting for the deployment's engine, and the model whose KV one block holds.

    A block of an engine with a hybrid model holds one group of layers: the setting gets the groups,
    and the model is `Model.by_block`. Else `model` is returned as it is, None included: a cache
    without an engine counts all layers as full attention. `trace_block` is the tokens of the
    trace's blocks. On SGLang, the setting's block bytes are those of one GPU.
    """
    if deployment is not None and not setting.engine:
        setting = _of_engine(setting, deployment)
    if setting.on_tree and deployment is not None and model is not None:
        each_gpu = model.kv_bytes_per_token(deployment.tp) * trace_block  # has a link of its own
        setting = replace(setting, block_bytes=each_gpu)
    if setting.capacity_model != "engine" or model is None or setting.kv_groups:
        return setting, model
    groups = deployment.kv_groups_for(trace_block) if deployment else model.kv_groups(trace_block)
    if groups is None:
        return setting, model
    return replace(setting, kv_groups=groups.text), model.by_block


def _of_engine(setting: RunSetting, deployment: ResolvedDeployment) -> RunSetting:
    """Return `setting` for the deployment's engine version; SGLang's cache gets its prefix tree."""
    if setting.capacity_model == "engine":
        return replace(setting, engine=deployment.engine.simulated_as)
    if deployment.engine.name != SGLANG:
        return setting
    limits = deployment.max_num_seqs, deployment.max_num_batched_tokens
    return tree_setting(setting, str(deployment.engine), *limits)


def tree_setting(
    setting: RunSetting, engine: str, max_num_seqs: int, max_num_batched_tokens: int
) -> RunSetting:
    """Return `setting` on a simulated SGLang that prefills in chunks of `max_num_batched_tokens`.

    A setting with a sample, or with a hit definition other than `standard()` (its warm-up may
    differ), stays the same, a cache of idle blocks; if `engine`, such as "sglang:hicache_ratio=2",
    has a host tier (HiCache), raises UsageError instead.
    """
    whole = replace(setting.definition, name=standard().name, warmup=0.0) == standard()
    if not (whole and setting.exact):
        if parse_engine(engine).hicache is not None:
            raise UsageError(
                "SGLang's host tier is simulated of a whole trace, with hits counted as it does",
                where="--engine",
                remedy="leave out --sample, --compat and --outputs, or hicache",
            )
        return setting
    return replace(
        setting,
        engine=engine,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def policies_for(
    setting: RunSetting, text: str | None, *, hybrid: bool = False
) -> list[type[Policy]]:
    """Return the policies named in `text` (`--policy`); for `all` and None, those that can run.

    On a simulated SGLang, None is all of its policies. `hybrid`: the engine's model has several
    groups of layers. Raises UsageError for a named policy that the capacity model cannot run.
    """
    default = ALL if setting.on_tree else HYBRID if hybrid else REPLAYED
    named = parse_policies(text or default)
    unfit = [policy.name for policy in named if not _fits(policy, setting, hybrid)]
    if text in {None, ALL} or not unfit:
        return [policy for policy in named if _fits(policy, setting, hybrid)]
    what = "an engine"
    if hybrid:
        what = "a hybrid model"
    elif setting.capacity_model == "cache":
        what = "a cache without groups of layers"
    lacks = f"{unfit[0]} cannot order the blocks of {what}"
    if setting.on_tree:
        lacks = f"SGLang has no policy {unfit[0]}"
    fitting = [policy.name for policy in parse_policies(ALL) if _fits(policy, setting, hybrid)]
    raise UsageError(
        lacks,
        where="--policy",
        remedy=f"take {', '.join(fitting)}",
    )


def _fits(policy: type[Policy], setting: RunSetting, hybrid: bool) -> bool:
    if hybrid:
        from kvscope.vllm_sim.state import orders_groups

        return orders_groups(policy)
    if policy.name == LRU_RETENTION:
        return False  # LRU's double without windows
    if setting.on_tree:
        from kvscope.sglang_sim.replay import sglang_has

        return sglang_has(policy())
    if setting.capacity_model == "engine":
        from kvscope.policies.base import LanePolicy

        return issubclass(policy, LanePolicy)
    return True
