"""Numbers that tune a policy or a router: their bounds, defaults and values to search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct

from kvscope.core.errors import UsageError


class Parameter(Struct, frozen=True):
    """A number that tunes a policy or a router; its name carries its unit.

    Values lie within [low, high]. `search` are the start values of a parameter search. A user who
    names a policy must also state its `required` parameters, such as a TTL, without which it would
    equal another policy; elsewhere their `default` applies. In the JSON of results, inf is null.
    """

    DOCUMENT: ClassVar[str] = "name default low high summary=help"
    name: str
    default: float
    help: str
    low: float = 0.0
    high: float = float("inf")
    search: tuple[float, ...] = ()
    required: bool = False


def bound_values(
    owner: str, parameters: tuple[Parameter, ...], values: Mapping[str, float]
) -> dict[str, float]:
    """Return the value of each parameter of `owner`: from `values`, else its default.

    Raises UsageError for an unknown name, and for a value outside the parameter's bounds.
    """
    known = {parameter.name: parameter for parameter in parameters}
    for name, value in values.items():
        where = f"{owner}.{name}"
        if name not in known:
            raise UsageError(
                f"{owner} has no parameter {name!r}",
                where=where,
                remedy="it has " + ", ".join(known) if known else "it has none",
            )
        low, high = known[name].low, known[name].high
        if not low <= value <= high:
            raise UsageError(
                f"{value:g} is outside [{low:g}, {high:g}]", where=where, remedy=known[name].help
            )
    return {name: parameter.default for name, parameter in known.items()} | dict(values)
