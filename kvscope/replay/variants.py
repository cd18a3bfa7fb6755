"""Policies with their parameters: what was asked for, what the trace says, the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.latency.profile import LatencyProfile
from kvscope.learning.next_prompts.offline import FIT_SHARE, conversation_parameters
from kvscope.policies.base import Policy
from kvscope.replay.policy_options import Variant
from kvscope.replay.traffic import Traffic

_XI = "xi_tokens"


@dataclass(frozen=True, slots=True)
class Found:
    """A value for a parameter that nobody chose, and where it comes from."""

    value: float
    origin: str


def found_values(
    traffic: Traffic, profile: LatencyProfile, slo_s: float | None, share: float = FIT_SHARE
) -> Mapping[str, Found]:
    """Values for the parameters that follow from the trace, the latency profile and the SLO.

    `xi_tokens` is what the profile computes within the SLO; what a conversation does is estimated
    from the first `share` of the requests; costs of tokens and pairs of tokens are the profile's
    where pairs cost something (else all blocks cost the same, whatever a token costs).
    """
    first = "from these requests" if share == 1 else f"from the first {share:.0%} of the requests"
    found = {
        name: Found(value, first) for name, value in conversation_parameters(traffic, share).items()
    }
    if slo_s is not None:
        found[_XI] = Found(
            profile.xi_tokens(slo_s), f"what {profile.name} computes in {slo_s * 1e3:g} ms"
        )
    if profile.per_token_pair_s:
        for name in ("per_token_s", "per_token_pair_s"):
            found[name] = Found(getattr(profile, name), f"of {profile.name}")
    return found


def bind(variant: Variant, found: Mapping[str, Found]) -> Policy:
    """The policy with every parameter settled: as chosen, else as found, else its default.

    Raises UsageError for a chosen value that the policy does not take.
    """
    values = {
        one.name: found[one.name].value for one in variant.policy.parameters if one.name in found
    }
    return variant.policy(values | dict(variant.given), variant.leaves)


def used(variants: Sequence[Variant], found: Mapping[str, Found]) -> Mapping[str, Found]:
    """Those of `found` that some variant takes."""
    taken = {
        parameter.name
        for variant in variants
        for parameter in variant.policy.parameters
        if parameter.name not in variant.given
    }
    return {name: one for name, one in found.items() if name in taken}
