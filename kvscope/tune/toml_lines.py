"""Lines of a TOML file, so that reading them gives the very same values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvscope.policies.base import Policy
from kvscope.simulate.latency.file import quoted


def lines(values: Mapping[str, str | float | Sequence[float]]) -> list[str]:
    """One line a value."""
    return [f"{name} = {_value(one)}" for name, one in values.items()]


def inline(values: Mapping[str, float]) -> str:
    """An inline table."""
    return "{ " + ", ".join(f"{name} = {_value(one)}" for name, one in values.items()) + " }"


def policy_lines(policy: Policy) -> list[str]:
    """The table `[policy]`."""
    return [
        "[policy]",
        *lines({"name": policy.name, "leaves": policy.evicts}),
        f"params = {inline(policy.values)}",
    ]


def _value(value: str | float | Sequence[float]) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int | float):
        # inf and nan are TOML too; what numpy calls a float has a name that is not
        return repr(value) if isinstance(value, int) else repr(float(value))
    return "[" + ", ".join(_value(float(one)) for one in value) + "]"
