"""Settings of runs from hit definitions and latency profiles, and back."""

from __future__ import annotations

from kvscope.core.hits import HitDefinition
from kvscope.core.runs import RunSetting
from kvscope.latency.profile import LatencyProfile


def setting_of(
    definition: HitDefinition, profile: LatencyProfile, *, slo_s: float | None = None
) -> RunSetting:
    """Return a setting with this definition and this profile's numbers."""
    return RunSetting(
        definition=definition,
        latency=profile.name,
        base_s=profile.base_s,
        per_token_s=profile.per_token_s,
        per_token_pair_s=profile.per_token_pair_s,
        slo_s=slo_s,
    )


def profile_of(setting: RunSetting) -> LatencyProfile:
    """Return the latency profile whose numbers a setting holds."""
    return LatencyProfile(
        setting.latency, "", setting.base_s, setting.per_token_s, setting.per_token_pair_s
    )
