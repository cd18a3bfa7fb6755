"""Times as logs write them: numbers of some unit since 1970, milliseconds, or ISO 8601."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from kvscope.ingest.formats.base import BadLine

_NANOSECONDS, _MICROSECONDS, _MILLISECONDS = 1e17, 1e14, 1e11  # since 1970, from 1973 on
_LATEST_S = 1e11


def moment(value: object, name: str) -> float | None:
    """Return a time in s, None where there is none; raise BadLine where the field is no time.

    Numbers that would lie after the year 5138 in seconds are taken for milli-, micro- or
    nanoseconds since 1970. Texts are numbers or ISO 8601, UTC unless they name a zone.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str) and (at_s := _iso(value)) is not None:
            return at_s
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise BadLine(f"{name} is neither a number nor an ISO 8601 time", value)
    for least, divisor in ((_NANOSECONDS, 1e9), (_MICROSECONDS, 1e6), (_MILLISECONDS, 1e3)):
        if abs(number) >= least:
            number /= divisor
            break
    if abs(number) > _LATEST_S:
        raise BadLine(f"{name} is no time", value)
    return number


def _iso(text: str) -> float | None:
    """Return seconds since 1970, None for another notation. Raises OverflowError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.replace(tzinfo=at.tzinfo or UTC).timestamp()


def between(start_s: float | None, end_s: float | None) -> float | None:
    """Return the time between two moments, None where one is missing or they are reversed."""
    return None if start_s is None or end_s is None or end_s < start_s else end_s - start_s


def in_seconds(ms: float | None) -> float | None:
    """Return milliseconds in s."""
    return None if ms is None else ms / 1000
