"""Which values of a policy's parameters are worth a replay: the space that a search walks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from kvscope.policies.base import Parameter, Policy
from kvscope.simulate.variants import Found, Variant, bind

_AROUND = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
XI = "xi_tokens"

Values = Mapping[str, Sequence[float]]


def values_to_try(
    variant: Variant, found: Mapping[str, Found], hints: Values
) -> dict[str, list[float]]:
    """The values of each parameter that nobody fixed, ascending; those without any are left out.

    The policy's own, fractions and multiples of xi as the SLO has it, and `hints` by name.
    """
    chosen: dict[str, list[float]] = {}
    for parameter in variant.policy.parameters:
        if parameter.name in variant.given:
            continue
        values = [*parameter.search, *hints.get(parameter.name, ())]
        if parameter.name == XI and XI in found:
            values += [share * found[XI].value for share in _AROUND]
        if values:
            chosen[parameter.name] = sorted({_rounded(parameter, one) for one in values})
    return chosen


def coarse(variant: Variant, found: Mapping[str, Found], values: Values) -> list[Policy]:
    """The policy as it comes, and with each parameter changed alone."""
    start = bind(variant, found)
    return [start, *(changed(start, name, one) for name in values for one in values[name])]


def finer(best: Policy, tried: Mapping[str, Sequence[float]]) -> Iterator[Policy]:
    """`best` with one parameter half-way to the next values on either side that were tried."""
    for parameter in best.parameters:
        if parameter.name not in tried:
            continue
        at = best.values[parameter.name]
        below = max((one for one in tried[parameter.name] if one < at), default=None)
        above = min((one for one in tried[parameter.name] if one > at), default=None)
        for other in (below, above):
            if other is not None:
                between = _rounded(parameter, _between(at, other))
                if between not in {at, other}:
                    yield changed(best, parameter.name, between)


def changed(policy: Policy, name: str, value: float) -> Policy:
    """The same policy with another value of one parameter."""
    return type(policy)(dict(policy.values) | {name: value}, policy.evicts)


def _between(one: float, other: float) -> float:
    """Half-way by factors, as the values are spaced; by differences next to 0."""
    return math.sqrt(one * other) if one > 0 and other > 0 else (one + other) / 2


def _rounded(parameter: Parameter, value: float) -> float:
    """A value that the parameter may have: whole tokens, else three significant digits."""
    kept = float(round(value)) if parameter.name.endswith("_tokens") else float(f"{value:.3g}")
    return min(max(kept, parameter.low), parameter.high)
