"""Replays in JSON documents: their settings, and their results in every known unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct

from kvscope.core.runs import Outcome, PartOutcome, Run, RunSetting, TierOutcome
from kvscope.deployment.models import Model
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.settings import setting_profile
from kvscope.replay.tier_spec import kv_transfer_config, offload_launch


class SettingFacts(Struct, frozen=True):
    """The definitions and assumptions behind the numbers of a run."""

    DOCUMENT: ClassVar[str] = (
        "definition=setting.definition latency slo_ms=setting.slo_s rate_scale=setting.rate_scale"
        " isolate=setting.isolate sample_rate=setting.sample_rate"
        " capacity_model=setting.capacity_model max_num_seqs=setting.max_num_seqs"
        " max_num_batched_tokens=setting.max_num_batched_tokens tiers_asked"
        " tier_mode=setting.tier_mode kv_transfer_config offload_launch"
    )
    setting: RunSetting

    @property
    def latency(self) -> LatencyProfile:
        """The latency profile of the replay."""
        return setting_profile(self.setting)

    @property
    def tiers_asked(self) -> str | None:
        """The value of `--tiers`, None without that option."""
        return self.setting.tiers or None

    @property
    def kv_transfer_config(self) -> Mapping[str, Any] | None:
        """vLLM's --kv-transfer-config for the tier; None without a tier or a block's bytes."""
        return kv_transfer_config(self.setting)

    @property
    def offload_launch(self) -> str | None:
        """The flags that start vLLM with the tier; None without a tier or a block's bytes."""
        return offload_launch(self.setting)


class TierFigures(Struct, frozen=True):
    """The results of one tier, with its capacity in bytes where a model is named."""

    DOCUMENT: ClassVar[str] = "*tier capacity_bytes"
    tier: TierOutcome
    capacity_bytes: int | None


class CategoryFigures(Struct, frozen=True):
    """A run's numbers for the requests of one category."""

    DOCUMENT: ClassVar[str] = "*outcome category"
    outcome: Outcome
    category: str


class StretchFigures(Struct, frozen=True):
    """A run's numbers for the requests that arrive from `start_s` on, for `length_s`."""

    DOCUMENT: ClassVar[str] = "*part.outcome start_s=part.start_s length_s=part.length_s"
    part: PartOutcome


class RunFigures(Struct, frozen=True):
    """One replay: policy, capacity in every known unit, and results."""

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
        """The results of each tier; empty for a pool alone."""
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
        """The numbers of each time window."""
        return tuple(StretchFigures(part) for part in self.run.parts if part.category is None)

    def _bytes(self, blocks: int) -> int | None:
        return self.model.bytes_for(blocks * self.block_size) if self.model else None


class StoredRun(RunFigures, frozen=True):
    """A run in the store, with its definitions and assumptions.

    --baseline takes it as `run:N`, N its `run_id`. `deployment` has the options that state its
    deployment, by their keys in kvscope.toml; null for a cache study.
    """

    DOCUMENT: ClassVar[str] = (
        f"{RunFigures.DOCUMENT} *setting run_id=run.run_id deployment=run.deployment"
    )

    @property
    def setting(self) -> SettingFacts:
        """The definitions and assumptions of the run."""
        return SettingFacts(self.run.setting)
