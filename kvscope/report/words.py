"""Words that several sections share."""

from __future__ import annotations

from collections.abc import Callable

from kvscope.core import units
from kvscope.core.hits import HitDefinition


def counted(count: int, thing: str, things: str = "") -> str:
    """So many of a thing, of which there may be one: 1 request, 12,031 requests."""
    return f"{units.format_count(count)} {thing if count == 1 else things or thing + 's'}"


def interval_in_words(interval: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    """From low to high, `?` where the data do not tell."""
    if interval is None:
        return "?"
    low, high = write(interval[0]), write(interval[1])
    unit = "%" if high.endswith("%") else ""
    return f"{low.removesuffix(unit)}–{high}" if unit else f"{low} to {high}"


def definition_in_words(definition: HitDefinition) -> str:
    """What a hit rate counts."""
    parts = [
        f"{definition.weight}-weighted",
        window_in_words(definition),
        "partial last block kept" if definition.partial else "full blocks only",
        "last-token rule on" if definition.last_token_rule else "last-token rule off",
        f"outputs {definition.outputs}",
    ]
    return ", ".join([*parts, "flat"] if definition.flat else parts)


def window_in_words(definition: HitDefinition) -> str:
    """Which requests are counted."""
    if not definition.warmup:
        return "whole trace"
    return f"last {100 * (1 - definition.warmup):.4g}% of the requests"


WHATEVER_OPTIONS = ", whatever --compat, --outputs and --warmup say"
DEFAULT_HITS = (
    "Hits are an infinite cache's by default definition (full blocks only, last-token rule on,"
    f" outputs carried){WHATEVER_OPTIONS}."
)
"""Stands where hits do not follow the definition that was asked for."""
