"""`--capacity-model` and `--tiers`: what they rule out, which policies they can run, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.core.errors import UsageError
from kvscope.replay.policy_options import ALL, REPLAYED, parse_policies

if TYPE_CHECKING:
    from kvscope.core.runs import CapacityModel, RunSetting, TierMode
    from kvscope.policies.base import Policy
    from kvscope.replay.variants import Found
    from kvscope.replay.workload import Asked, Workload

Contradiction = tuple[bool, str, str, str]


def modelled(
    setting: RunSetting,
    model: CapacityModel,
    *,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    tiers: str | None,
    tier_mode: TierMode | None,
    capacities_named: bool,
) -> RunSetting:
    """`setting` with the capacity model that the options ask for.

    Raises UsageError for options that contradict each other.
    """
    engine = model == "engine"
    _refuse(
        (
            (
                not engine and max_num_seqs is not None,
                "only an engine has it",
                "--max-num-seqs",
                "add --capacity-model engine",
            ),
            (
                not engine and max_num_batched_tokens is not None,
                "only an engine has it",
                "--max-num-batched-tokens",
                "add --capacity-model engine",
            ),
            (tiers is None and tier_mode is not None, "needs tiers", "--tier-mode", "add --tiers"),
            (
                tiers is not None and capacities_named,
                "tiers have capacities of their own",
                "--tiers",
                "leave out --capacity, --capacity-blocks and --points",
            ),
            (
                tiers is not None and engine,
                "an engine is replayed without tiers",
                "--tiers",
                "leave out --capacity-model",
            ),
            (
                tiers is not None and not setting.exact,
                "tiers are not replayed on a sample",
                "--tiers",
                "leave out --sample and --coarsen",
            ),
        )
    )
    if engine:
        return _on_engine(setting, max_num_seqs, max_num_batched_tokens)
    if tiers is None:
        return setting
    written = ",".join(part.strip() for part in tiers.split(","))
    return replace(setting, tiers=written, tier_mode=tier_mode or "exclusive")


def policies_for(setting: RunSetting, text: str | None) -> list[type[Policy]]:
    """The policies of `--policies`: those named, of all or the usual ones those that can be run.

    Raises UsageError for one that is named and that the capacity model cannot run.
    """
    named = parse_policies(text or REPLAYED)
    fits = _fits(setting)
    unfit = [policy.name for policy in named if not fits(policy)]
    if text in {None, ALL} or not unfit:
        return [policy for policy in named if fits(policy)]
    what = f"{setting.tier_mode} tiers" if setting.tiers else "an engine"
    fitting = [policy.name for policy in parse_policies(ALL) if fits(policy)]
    raise UsageError(
        f"{unfit[0]} cannot order the blocks of {what}",
        where="--policies",
        remedy=f"take {', '.join(fitting)}",
    )


def over_tiers(workload: Workload, policy: Policy, values: Mapping[str, Found]) -> Asked:
    """What to replay over the tiers of the setting: `policy` in those that name none."""
    from kvscope.replay.policy_options import Variant
    from kvscope.replay.tier_spec import parse_tiers
    from kvscope.replay.variants import bind
    from kvscope.replay.workload import Asked

    setting = workload.setting
    tiers = parse_tiers(
        setting.tiers,
        block_bytes=setting.block_bytes,
        bind=lambda kind: policy if kind is type(policy) else bind(Variant(kind), values),
        default=type(policy),
    )
    return Asked(policy, sum(tier.capacity_blocks for tier in tiers), tiers)


def _on_engine(
    setting: RunSetting, max_num_seqs: int | None, max_num_batched_tokens: int | None
) -> RunSetting:
    from kvscope.replay.capacity_models import (
        MAX_NUM_BATCHED_TOKENS,
        MAX_NUM_SEQS,
        refuse_unlike_engine,
    )

    refuse_unlike_engine(setting)
    return replace(
        setting,
        capacity_model="engine",
        max_num_seqs=max_num_seqs or MAX_NUM_SEQS,
        max_num_batched_tokens=max_num_batched_tokens or MAX_NUM_BATCHED_TOKENS,
    )


def _fits(setting: RunSetting) -> Callable[[type[Policy]], bool]:
    """Whether the capacity model of a setting can run a policy."""
    from kvscope.policies.base import LanePolicy

    mode = setting.tier_mode
    if setting.capacity_model == "engine":
        return lambda policy: issubclass(policy, LanePolicy)
    if mode is None:
        return lambda _: True
    from kvscope.replay.tiers import fits

    return lambda policy: fits(policy(), mode)


def _refuse(contradictions: Sequence[Contradiction]) -> None:
    for wrong, what, where, remedy in contradictions:
        if wrong:
            raise UsageError(what, where=where, remedy=remedy)
