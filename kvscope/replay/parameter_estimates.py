"""Parameters of policies: as chosen, else estimated from the trace, else their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kvscope.latency.profile import LatencyProfile
from kvscope.learning.next_prompts.offline import FIT_SHARE, conversation_parameters
from kvscope.policies.base import JUDGED, SLO_TOKENS, TOKENS_PER_S, Policy
from kvscope.replay.policy_options import Variant
from kvscope.replay.traffic import Traffic

_XI = "xi_tokens"
_OF_GUARDS = {parameter.name for parameter in JUDGED}


class ParameterEstimate(Struct, frozen=True):
    """A value for a parameter that was not chosen, and a phrase that says where it comes from."""

    value: float
    origin: str


Estimates = Mapping[str, ParameterEstimate]


def estimate_parameters(
    traffic: Traffic, profile: LatencyProfile, slo_s: float | None, share: float = FIT_SHARE
) -> Estimates:
    """Return values for the parameters that follow from the trace, the profile and the SLO.

    `xi_tokens` and `slo_tokens` are the tokens that the profile prefills within the SLO. Parameters
    of conversations are estimated from the first `share` of the requests. Prefill costs per token
    and per pair of tokens are the profile's if pairs cost time; else all blocks cost the same.
    """
    first = "from these requests" if share == 1 else f"from the first {share:.0%} of the requests"
    estimates = {
        name: ParameterEstimate(value, first)
        for name, value in conversation_parameters(traffic, share).items()
    }
    if slo_s is not None:
        origin = f"what {profile.name} computes in {slo_s * 1e3:g} ms"
        tokens = profile.xi_tokens(slo_s)
        estimates |= {name: ParameterEstimate(tokens, origin) for name in (_XI, SLO_TOKENS.name)}
        rate = round(tokens / slo_s) if slo_s > 0 else 0
        estimates[TOKENS_PER_S.name] = ParameterEstimate(rate, f"{origin}, by that time")
    if profile.per_token_pair_s:
        for name in ("per_token_s", "per_token_pair_s"):
            estimates[name] = ParameterEstimate(getattr(profile, name), f"of {profile.name}")
    return estimates


def bind(variant: Variant, estimates: Estimates) -> Policy:
    """Return the policy with every parameter: as chosen, else as estimated, else its default.

    Parameters of a guard are estimated only for a guarded policy. Raises UsageError for a chosen
    value that the policy does not take.
    """
    values = {
        parameter.name: estimates[parameter.name].value
        for parameter in variant.policy.parameters
        if parameter.name in estimates
    }
    policy = variant.policy(values | dict(variant.given), variant.leaves)
    if policy.guarded or values.keys().isdisjoint(_OF_GUARDS):
        return policy
    values = {name: value for name, value in values.items() if name not in _OF_GUARDS}
    return variant.policy(values | dict(variant.given), variant.leaves)


def used(variants: Sequence[Variant], estimates: Estimates) -> Estimates:
    """Return the estimates that a variant uses, except a guard's, which follow from the SLO."""
    taken = {
        parameter.name
        for variant in variants
        for parameter in variant.policy.parameters
        if parameter.name not in variant.given
    }
    taken -= _OF_GUARDS
    return {name: estimate for name, estimate in estimates.items() if name in taken}
