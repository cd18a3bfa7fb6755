"""Units in texts: strict parsing, and formatting of values.

A number has no sign, no thousands separators and no exponent (`1.5`), and a unit is never guessed:
`200` is not a duration, while `0` is. Errors repeat the text and show correct examples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction

from kvscope.core.errors import UsageError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_HOUR_S, _DAY_S = 3_600, 86_400
_MANY_DAYS = 10  # beyond which hours do not matter
# Exact, so that 0.1ms is the float nearest to 0.0001.
_SECONDS: Mapping[str, Fraction] = {
    "us": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1_000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3_600),
    "d": Fraction(_DAY_S),
}
_BYTES: Mapping[str, int] = {"b": 1} | {
    f"{prefix}{infix}b": base**power
    for infix, base in (("", 1_000), ("i", 1_024))
    for power, prefix in enumerate("kmgtp", start=1)
}
_TOKENS: Mapping[str, int] = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000}
_SHARES: Mapping[str, Fraction] = {"": Fraction(1), "%": Fraction(1, 100)}
_RATES: Mapping[str, Fraction] = {f"/{unit}": 1 / period for unit, period in _SECONDS.items()}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z%/]*)")
_PERCENTILE = re.compile(r"p([0-9]{1,20}(?:\.[0-9]{1,20})?)")
_LONGEST = 40  # characters of a plausible number


def parse_duration(text: str) -> float:
    """Return the seconds in `200ms`, `1.5s`, `10m` (or `10min`), `2h` or `1d`; 0 needs no unit."""
    if text == "0":
        return 0.0
    return float(_value(text, "a duration", "200ms, 1.5s, 10m, 2h or 1d", _SECONDS.get))


def parse_size(text: str) -> int:
    """Return the bytes in `16GiB`, `1.5TiB` (powers of 1,024) or `16GB` (10^9), any case.

    Raises UsageError for `16Gib` and `16Gb`: a small b after a capital letter means bits.
    """
    size = _value(text, "a size", "16GiB, 512MiB or 16GB", lambda unit: _BYTES.get(unit.lower()))
    _refuse_bits(text)
    return round(size)


def parse_tokens(text: str) -> int:
    """Return the whole number of tokens in `2000`, `8k` (8,000) or `1M`."""
    return int(
        _value(
            text,
            "a number of tokens",
            "2000, 8k or 1M",
            _TOKENS.get,
            lambda tokens: tokens.denominator == 1,
        )
    )


def parse_percentile(text: str) -> float:
    """Return the rank, above 0 and at most 1, in `p95` or `p99.9`."""
    match = _PERCENTILE.fullmatch(text)
    if match is None or not 0 < (rank := Fraction(match[1]) / 100) <= 1:
        raise _refused(text, "a percentile", "p50, p95 or p99.9")
    return float(rank)


def parse_share(text: str) -> float:
    """Return the fraction, 0 to 1, in `5%` or `0.05`."""
    kind = "a share (0 to 1, or 0% to 100%)"
    return float(_value(text, kind, "5% or 0.05", _SHARES.get, lambda share: share <= 1))


def parse_rate(text: str) -> float:
    """Return the events per second, above 0, in `0.5/s`, `30/min`, `100/h` or `5/d`."""
    return float(_value(text, "a rate above 0", "0.5/s, 30/min or 100/h", _RATES.get, bool))


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second, above 0, in `25GB/s` or `3.2GiB/s`; sizes as in `parse_size`."""

    def bytes_in(unit: str) -> int | None:
        return _BYTES.get(unit[:-2].lower()) if unit.endswith("/s") else None

    bandwidth = _value(text, "a bandwidth above 0", "25GB/s or 3.2GiB/s", bytes_in, bool)
    _refuse_bits(text)
    return float(bandwidth)


def format_duration(seconds: float) -> str:
    """Return `seconds` in one unit with three significant digits: 203ms, 1.5s, 10.2m, 2h, 1d."""
    if not math.isfinite(seconds):
        return _not_finite(seconds)
    rounded = float(f"{seconds:.3g}")  # before the choice of a unit: 999.6ms is 1s, not 1000ms
    fits = [unit for unit in ("ms", "s", "m", "h", "d") if abs(rounded) >= _SECONDS[unit]]
    unit = fits[-1] if fits else "us" if rounded else "s"
    return f"{_short(rounded / float(_SECONDS[unit]))}{unit}"


def duration_in_words(seconds: float) -> str:
    """Return `seconds` in words, not to be parsed: 46.9 ms, 2 min 56 s, 1 h 41 min, 223 days."""
    if not math.isfinite(seconds):
        return _not_finite(seconds)
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    rounded = float(f"{seconds:.3g}")  # before the choice of a unit, as in `format_duration`
    if rounded < _SECONDS["min"]:
        fits = [unit for unit in ("ms", "s") if rounded >= _SECONDS[unit]]
        unit = fits[-1] if fits else "us" if rounded else "s"
        return f"{sign}{_short(rounded / float(_SECONDS[unit]))} {unit.replace('us', 'µs')}"
    whole = round(seconds)
    if whole < _HOUR_S:
        return sign + _two_units(whole, 60, "min", "s")
    minutes = round(seconds / 60)
    if minutes < _DAY_S // 60:
        return sign + _two_units(minutes, 60, "h", "min")
    hours = round(seconds / _HOUR_S)
    if hours < _MANY_DAYS * 24:
        return sign + _two_units(hours, 24, "days" if hours >= 48 else "day", "h")
    return f"{sign}{seconds / _DAY_S:,.0f} days"


def format_size(size_bytes: float) -> str:
    """Return a size such as 1.5 TiB: below 1 TiB in GiB, below 0.01 GiB in MiB, KiB or B."""
    if not math.isfinite(size_bytes):
        return _not_finite(size_bytes)
    least_of = {"TiB": TIB, "GiB": GIB / 100, "MiB": MIB, "KiB": KIB, "B": 0}
    unit = next(unit for unit, least in least_of.items() if abs(size_bytes) >= least)
    return f"{_short(size_bytes / _BYTES[unit.lower()])} {unit}"


def format_count(count: float) -> str:
    """Return `count` as a whole number with thousands separators: 12,031."""
    return f"{count:,.0f}" if math.isfinite(count) else _not_finite(count)


def format_percentile(rank: float) -> str:
    """Return the rank 0.95 as p95, 0.999 as p99.9."""
    return f"p{_plain(Decimal(str(rank)) * 100)}"


def format_share(share: float, decimals: int = 1) -> str:
    """Return the fraction 0.1315 as 13.2%, or with two decimals as 13.15%."""
    return f"{share * 100:.{decimals}f}%" if math.isfinite(share) else _not_finite(share)


def format_pp(difference: float, decimals: int = 1) -> str:
    """Return a difference of two shares in percentage points, with its sign: +1.3 pp."""
    if not math.isfinite(difference):
        return _not_finite(difference)
    points = round(difference * 100, decimals) + 0.0  # no "-0.0"
    return f"{points:+.{decimals}f} pp"


def format_rate(per_second: float) -> str:
    """Return a rate per second, minute, hour or day, whichever fits: 0.5/s, 2/min, 5/h."""
    if not math.isfinite(per_second):
        return _not_finite(per_second)
    for unit in ("s", "min", "h"):
        value = per_second * float(_SECONDS[unit])
        if value >= (0.1 if unit == "s" else 1):
            return f"{_short(value)}/{unit}"
    return f"{_short(per_second * _DAY_S)}/d"


def blocks_tokens_bytes(
    blocks: int, *, block_size: int, bytes_per_token: float | None = None
) -> str:
    """Return a capacity in blocks, tokens and bytes: `5,637 blocks, 2,886,144 tokens, 352 GiB`.

    `block_size` is in tokens. Without `bytes_per_token` (no model) the bytes are left out.
    """
    tokens = blocks * block_size
    parts = [f"{format_count(blocks)} blocks", f"{format_count(tokens)} tokens"]
    if bytes_per_token is not None:
        parts.append(format_size(tokens * bytes_per_token))
    return ", ".join(parts)


def _value(
    text: str,
    kind: str,
    examples: str,
    scale_of: Callable[[str], Fraction | int | None],
    is_allowed: Callable[[Fraction], bool] = lambda _: True,
) -> Fraction:
    """Return the exact number in `text` times the scale of its unit.

    Raises UsageError (`text` is not `kind`, write `examples`) for another form or value.
    """
    match = _QUANTITY.fullmatch(text)
    scale = scale_of(match[2]) if match and len(match[1]) <= _LONGEST else None
    if match is None or scale is None or not is_allowed(value := Fraction(match[1]) * scale):
        raise _refused(text, kind, examples)
    return value


def _refuse_bits(text: str) -> None:
    """Raise UsageError if a size is in bits: its unit is `b`, or a small b after a capital."""
    size = text.removesuffix("/s")
    unit = size.lstrip("0123456789. ")
    if unit == "b" or (unit.endswith("b") and not unit.islower()):
        remedy = f"write {size[:-1]}B{text[len(size) :]} if you mean bytes"
        raise UsageError(f"{text!r} is in bits", remedy=remedy)


def _refused(text: str, kind: str, examples: str) -> UsageError:
    return UsageError(f"{text!r} is not {kind}", remedy=f"write for example {examples}")


def _two_units(count: int, per_large: int, large: str, small: str) -> str:
    """Return `count` small units as large and small ones: 2 min 56 s; 3 min, not 3 min 0 s."""
    whole, rest = divmod(count, per_large)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def _short(value: float) -> str:
    """Return `value` with three significant digits, from 100 on as a whole number."""
    text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return _plain(Decimal(text))


def _plain(value: Decimal) -> str:
    """Return `value` without an exponent and without trailing zeros behind the point."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "n/a"
    return "∞" if value > 0 else "-∞"
