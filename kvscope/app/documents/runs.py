"""Replays in documents: what one counts and assumes, and what it gave in every unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct

from kvscope.app.documents.base import Facts
from kvscope.core.hits import HitDefinition
from kvscope.core.runs import Outcome, PartOutcome, Run, RunSetting, TierOutcome
from kvscope.deployment.models import Model
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.settings import setting_profile
from kvscope.replay.tier_spec import kv_transfer_config, offload_launch


class SettingFacts(Facts):
    """What the numbers of a run count and assume.

    `offload_left_out` is null: it was for approximations that are gone.
    """

    definition: HitDefinition
    latency: LatencyProfile
    slo_ms: float | None
    rate_scale: float
    isolate: str | None
    sample_rate: float
    capacity_model: str
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    tiers_asked: str | None
    tier_mode: str | None
    kv_transfer_config: Mapping[str, Any] | None
    offload_launch: str | None
    offload_left_out: str | None


def setting_facts(setting: RunSetting) -> SettingFacts:
    """Return what the numbers under a setting count and assume."""
    return SettingFacts.build(
        setting,
        latency=setting_profile(setting),
        tiers_asked=setting.tiers or None,
        kv_transfer_config=kv_transfer_config(setting),
        offload_launch=offload_launch(setting),
        offload_left_out=None,
    )


class TierFigures(Struct, frozen=True):
    """What one tier gave, with its capacity in bytes where a model is named."""

    DOCUMENT: ClassVar[str] = "*tier capacity_bytes"
    tier: TierOutcome
    capacity_bytes: int | None


class CategoryFigures(Struct, frozen=True):
    """A run's numbers for the requests of one category."""

    DOCUMENT: ClassVar[str] = "*outcome category"
    outcome: Outcome
    category: str


class StretchFigures(Struct, frozen=True):
    """A run's numbers for the requests that arrived from `start_s` on, within `length_s`."""

    DOCUMENT: ClassVar[str] = "*part.outcome start_s=part.start_s length_s=part.length_s"
    part: PartOutcome


class RunFigures(Struct, frozen=True):
    """One replay: a policy at a capacity, in every unit that is known, and what came of it."""

    DOCUMENT: ClassVar[str] = (
        "*run.outcome policy=run.policy leaves=run.leaves params=run.params"
        " hindsight=run.hindsight capacity_model=run.setting.capacity_model"
        " capacity_blocks=run.capacity_blocks capacity_tokens capacity_bytes"
        " hit_rate_error=run.hit_rate_error evictions=run.evictions misses=run.misses"
        " preemptions=run.preemptions turned_away=run.turned_away tiers categories over_time"
        " kvscope=run.kvscope created_at=run.created_at"
    )
    run: Run
    block_size: int
    model: Model | None

    @property
    def capacity_tokens(self) -> int:
        """The capacity in tokens."""
        return self.run.capacity_blocks * self.block_size

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity in bytes, None without a model."""
        return self._bytes(self.run.capacity_blocks)

    @property
    def tiers(self) -> tuple[TierFigures, ...]:
        """What each tier gave, if there are several."""
        return tuple(
            TierFigures(tier, self._bytes(tier.capacity_blocks)) for tier in self.run.tiers
        )

    @property
    def categories(self) -> tuple[CategoryFigures, ...]:
        """The numbers of each category."""
        return tuple(
            CategoryFigures(part.outcome, part.category)
            for part in self.run.parts
            if part.category is not None
        )

    @property
    def over_time(self) -> tuple[StretchFigures, ...]:
        """The numbers of each stretch of time."""
        return tuple(StretchFigures(part) for part in self.run.parts if part.category is None)

    def _bytes(self, blocks: int) -> int | None:
        return self.model.bytes_for(blocks * self.block_size) if self.model else None


class StoredRun(RunFigures, frozen=True):
    """A run that the store keeps, with what it counts and assumes.

    `run:N`, N its `run_id`, names it for --baseline. `deployment` has what was
    stated of it, by the keys of kvscope.toml; null for a cache study.
    """

    DOCUMENT: ClassVar[str] = (
        f"{RunFigures.DOCUMENT} *setting run_id=run.run_id deployment=run.deployment"
    )

    @property
    def setting(self) -> SettingFacts:
        """What the run counts and assumes."""
        return setting_facts(self.run.setting)
