"""Words and figures that several sections share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, log10

from kvscope.core import units
from kvscope.core.hits import HitDefinition
from kvscope.core.trace import Trace

NONE = "–"
"""A cell without a value."""

FEWEST = 30
"""Fewer requests than this have no row of their own: their figures would be noise."""


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """The one unit of all the times of a column."""

    name: str
    seconds: float

    def cell(self, seconds: float | None) -> str:
        """Return a time as text, without its unit; a dash where there is none."""
        return NONE if seconds is None else significant(seconds / self.seconds)


_TIME_UNITS = (
    (1.0, TimeUnit("ms", 1e-3)),
    (180.0, TimeUnit("s", 1.0)),
    (3 * 3600.0, TimeUnit("min", 60.0)),
    (3 * 86400.0, TimeUnit("h", 3600.0)),
    (float("inf"), TimeUnit("days", 86400.0)),
)


def time_unit(seconds: Iterable[float | None]) -> TimeUnit:
    """Return the unit that suits the median of these times; zeros do not count."""
    known = sorted(value for value in seconds if value and isfinite(value))
    middle = known[len(known) // 2] if known else 1.0
    return next(unit for below, unit in _TIME_UNITS if middle < below)


def significant(value: float) -> str:
    """Return three significant digits: 0.0469, 46.9, 1,290."""
    if not isfinite(value):
        return units.format_count(value)
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.{_decimals(rounded)}f}"


def _decimals(value: float) -> int:
    """Return how many decimals make three significant digits."""
    return 2 - int(log10(abs(value)) // 1)


def share(value: float | None) -> str:
    """Return a share as a percentage, a dash where there is none."""
    return NONE if value is None else units.format_share(value)


def counted(count: int, thing: str, things: str = "") -> str:
    """Return so many of a thing: 1 request, 12,031 requests."""
    return f"{units.format_count(count)} {thing if count == 1 else things or thing + 's'}"


def listed(names: Sequence[str], limit: int, rest: str = "more") -> str:
    """Return the first `limit` names as a list in words: a, b and 3 more."""
    shown, more = ", ".join(names[:limit]), len(names) - limit
    return f"{shown} and {more} {rest}" if more > 0 else shown


def interval_in_words(interval: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    """Return an interval from low to high, `?` where the data cannot tell."""
    if interval is None:
        return "?"
    low, high = write(interval[0]), write(interval[1])
    unit = "%" if high.endswith("%") else ""
    return f"{low.removesuffix(unit)}–{high}" if unit else f"{low} to {high}"


def definition_in_words(definition: HitDefinition) -> str:
    """Return what a hit rate counts."""
    parts = [
        f"{definition.weight}-weighted",
        window_in_words(definition),
        "partial last block kept" if definition.partial else "full blocks only",
        "last-token rule on" if definition.last_token_rule else "last-token rule off",
        f"outputs {definition.outputs}",
    ]
    return ", ".join([*parts, "flat"] if definition.flat else parts)


def window_in_words(definition: HitDefinition) -> str:
    """Return which requests are counted."""
    if not definition.warmup:
        return "whole trace"
    return f"last {100 * (1 - definition.warmup):.4g}% of the requests"


def trace_in_words(trace: Trace) -> str:
    """Return one line on what was read."""
    parts = [f"{counted(trace.requests, 'request')} over {units.duration_in_words(trace.span_s)}"]
    if trace.has_hashes:
        parts += [
            f"{counted(trace.distinct_blocks, 'block')} of {counted(trace.block_size, 'token')}",
            f"conversations {trace.lineage}",
        ]
    if trace.bad_lines:
        parts.append(f"{counted(trace.bad_lines, 'bad line')} left out")
    return f"{', '.join(parts)} ({trace.format})"


WHATEVER_OPTIONS = ", whatever --compat, --outputs and --warmup say"
DEFAULT_HITS = (
    "Hits: infinite cache, default definition (full blocks only, last-token rule on,"
    f" outputs carried){WHATEVER_OPTIONS}."
)
"""Stands where hits do not follow the definition that the options ask for."""
