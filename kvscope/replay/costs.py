"""Service times of one server: prefills one after the other, and output tokens."""

from __future__ import annotations

from typing import NamedTuple

from kvscope.core.jit import callable_in_kernels
from kvscope.latency.profile import LatencyProfile


class Costs(NamedTuple):
    """Coefficients of service times, in seconds: see `prefill_s` and `decode_s`.

    An uncached token takes `prefill_token_s`, all of a request together at least `floor_s`.
    """

    base_s: float
    floor_s: float
    prefill_token_s: float
    prefill_pair_s: float
    decode_base_s: float
    decode_token_s: float
    decode_context_token_s: float


def costs(profile: LatencyProfile) -> Costs:
    """Return a replica's costs; without decode costs, those of a prefill stand in for them."""
    decode = (profile.base_s, profile.per_token_s, profile.per_token_pair_s)
    if profile.decode_base_s is not None:
        decode = (
            profile.decode_base_s,
            profile.decode_request_s,
            profile.decode_context_token_s,
        )
    return Costs(
        profile.base_s, profile.floor_s, profile.per_token_s, profile.per_token_pair_s, *decode
    )


@callable_in_kernels
def prefill_s(costs: Costs, uncached: int, cached: int) -> float:
    """Return the seconds of a prefill of `uncached` tokens after `cached` ones.

    With u uncached and c cached tokens: base_s + max(floor_s, prefill_token_s · u) + prefill_pair_s
    · u · (c + u / 2), as in `LatencyProfile.ttft_s`.
    """
    read = max(costs.floor_s, costs.prefill_token_s * uncached)
    return costs.base_s + read + costs.prefill_pair_s * uncached * (cached + uncached / 2)


@callable_in_kernels
def decode_s(costs: Costs, running: int, tokens: int) -> float:
    """Return the seconds of one output token of a request with a context of `tokens`.

    decode_base_s + decode_token_s · running + decode_context_token_s · tokens, where `running`
    requests decode together, this one included.
    """
    base_s = costs.decode_base_s + costs.decode_token_s * running
    return base_s + costs.decode_context_token_s * tokens
