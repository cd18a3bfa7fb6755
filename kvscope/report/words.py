"""Numbers, units and phrases as all sections write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite, log10
from typing import Any, TypeVar

from msgspec import Struct

from kvscope.core import units
from kvscope.core.hits import HitDefinition, standard
from kvscope.core.trace import Trace
from kvscope.deployment.models import Model
from kvscope.report.section import Columns

Row = TypeVar("Row")

NONE = "–"
"""A cell without a value."""

FEWEST = 30
"""Fewer requests than this have no row of their own: their figures would be noise."""

WHATEVER_OPTIONS = ", whatever --compat, --outputs and --warmup say"
DEFAULT_HITS = (
    "Hits: infinite cache, default definition (full blocks only, last-token rule on,"
    f" outputs carried){WHATEVER_OPTIONS}."
)
"""The note of sections whose hits do not follow the definition in the options."""


class TimeUnit(Struct, frozen=True):
    """A unit of a column's times (or rates): it has `seconds` seconds (or events per second)."""

    name: str
    seconds: float

    def cell(self, seconds: float | None) -> str:
        """Return a time as text, without its unit; a dash for None."""
        return NONE if seconds is None else significant(seconds / self.seconds)


_TIME_UNITS = (
    (1.0, TimeUnit("ms", 1e-3)),
    (180.0, TimeUnit("s", 1.0)),
    (3 * 3600.0, TimeUnit("min", 60.0)),
    (3 * 86400.0, TimeUnit("h", 3600.0)),
    (float("inf"), TimeUnit("days", 86400.0)),
)
MILLISECONDS, SECONDS = (unit for _, unit in _TIME_UNITS[:2])


def time_unit(seconds: Iterable[float | None]) -> TimeUnit:
    """Return the unit that suits the median of these times; 0, None and infinity are ignored."""
    known = sorted(value for value in seconds if value and isfinite(value))
    middle = known[len(known) // 2] if known else 1.0
    return next(unit for below, unit in _TIME_UNITS if middle < below)


def rate_unit(per_second: Iterable[float]) -> TimeUnit:
    """Return the first of s, min and h in which the median rate is 1 event or more, else h."""
    known = sorted(value for value in per_second if value)
    middle = known[len(known) // 2] if known else 1.0
    units_of_time = (SECONDS, TimeUnit("min", 1 / 60), TimeUnit("h", 1 / 3600))
    return next((unit for unit in units_of_time if middle >= unit.seconds), units_of_time[-1])


def significant(value: float) -> str:
    """Return three significant digits: 0.0469, 46.9, 1,290."""
    if not isfinite(value):
        return units.format_count(value)
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = max(0, 2 - int(log10(abs(rounded)) // 1))
    return f"{rounded:,.{decimals}f}"


def ms_in_words(milliseconds: float) -> str:
    """Return a time in a suitable unit: 392 ms, 1.29 s."""
    return units.duration_in_words(milliseconds / 1e3)


def difference(value: float, write: Callable[[float], str] = significant) -> str:
    """Return a difference with its sign; without a sign if it rounds to 0."""
    size = write(abs(value))
    if size == write(0.0):
        return size
    return f"{'-' if value < 0 else '+'}{size}"


def points(value: float) -> str:
    """Return a difference of shares in percentage points: 1 decimal, or 2 if tiny."""
    return difference(value, lambda size: units.format_pp(size, _decimals(size))[1:])


def percent_change(value: float) -> str:
    """Return a relative change with its sign: -24.1%, or +0.04% where one decimal would hide it."""
    return difference(value, lambda size: units.format_share(size, _decimals(size)))


def _decimals(share: float) -> int:
    return 2 if 0.00005 <= share < 0.0005 else 1


def count(value: float | None) -> str:
    """Return a whole number with thousands separators, a dash for None."""
    return NONE if value is None else units.format_count(value)


def money(amount: float) -> str:
    """Return a price with two decimals, below 0.1 with two digits: 2.97, 0.0042."""
    return f"{amount:,.2f}" if not amount or abs(amount) >= 0.1 else f"{amount:.2g}"


def share(value: float | None) -> str:
    """Return a share (0-1) as a percentage, a dash for None."""
    return NONE if value is None else units.format_share(value)


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number with its noun: 1 request, 12,031 requests."""
    return f"{units.format_count(number)} {thing if number == 1 else things or thing + 's'}"


def listed(names: Sequence[str], limit: int, rest: str = "more") -> str:
    """Return the first `limit` names, then the number of others: `a, b and 3 more`."""
    shown, more = ", ".join(names[:limit]), len(names) - limit
    return f"{shown} and {more} {rest}" if more > 0 else shown


def large(rows: Iterable[Row], size: Callable[[Row], int]) -> list[Row]:
    """Return the rows with 30 requests (`size`) or more, the largest first; all if none has."""
    ranked = sorted(rows, key=size, reverse=True)
    return [row for row in ranked if size(row) >= FEWEST] or ranked


def left_out(rows: Sequence[object], shown: Sequence[object], things: str = "requests") -> str:
    """Return a note on the number of rows not shown, as too small; "" if all are."""
    few = len(rows) - len(shown)
    return f"left out: {few} below {FEWEST} {things}" if few else ""


def interval_in_words(interval: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    """Return an interval from low to high, `?` if the data do not determine it.

    One of zero width, of an estimate at its bound, becomes `at its bound, 2.5`.
    """
    if interval is None:
        return "?"
    low, high = write(interval[0]), write(interval[1])
    if interval[0] == interval[1]:
        return f"at its bound, {high}"
    if low == high:
        return f"≈ {high}"
    unit = "%" if high.endswith("%") else ""
    return f"{low.removesuffix(unit)}–{high}" if unit else f"{low} to {high}"


def percentiles(
    names: str, summary: Callable[[Any], object], write: Callable[[float], str]
) -> Columns:
    """Return a column for each name in `names`, such as "mean p50 p99".

    Names are fields of what `summary` returns for a row; `write` formats a value.
    """

    def column(name: str) -> Callable[[Any], str]:
        return lambda row: write(getattr(summary(row), name))

    return {name: column(name) for name in names.split()}


def definition_in_words(definition: HitDefinition) -> str:
    """Return a hit definition as a list of its choices: weight, window, ..."""
    last = f"last {100 * (1 - definition.warmup):.4g}% of the requests"
    parts = [
        f"{definition.weight}-weighted",
        last if definition.warmup else "whole trace",
        "partial last block kept" if definition.partial else "full blocks only",
        "last-token rule on" if definition.last_token_rule else "last-token rule off",
        f"outputs {definition.outputs}",
    ]
    return ", ".join([*parts, "flat"] if definition.flat else parts)


def hit_rate_in_words(definition: HitDefinition) -> str:
    """Return a sentence that defines the hit rate."""
    if definition != standard():
        return f"Counted: {definition_in_words(definition)}."
    return (
        "Hit rate: input tokens found in the cache / all input tokens, counted as vLLM counts (why"
        " tools differ: kvscope analyze --section definitions)."
    )


def trace_in_words(trace: Trace) -> str:
    """Return a trace's requests, span, blocks, lineage and format in one line."""
    parts = [f"{counted(trace.requests, 'request')} over {units.duration_in_words(trace.span_s)}"]
    if trace.has_hashes:
        parts += [
            f"{counted(trace.distinct_blocks, 'block')} of {counted(trace.block_size, 'token')}",
            f"conversations {trace.lineage}",
        ]
    if trace.bad_lines:
        parts.append(f"{counted(trace.bad_lines, 'bad line')} left out")
    return f"{', '.join(parts)} ({trace.format})"


class Unit(Struct, frozen=True):
    """A unit of capacity; one block is `per_block` units."""

    name: str
    per_block: float

    @property
    def axis(self) -> str:
        """The title of an axis in this unit."""
        return f"capacity ({self.name})"


class Sizes(Struct, frozen=True):
    """Formatter for capacities in blocks of `block_size` tokens, and in bytes of a `model`.

    `hbm_bytes` is the memory to which capacities are compared, and `memory` is what it is called:
    the deployment's "pool", else the "HBM". None if neither is known.
    """

    block_size: int
    model: Model | None = None
    hbm_bytes: int | None = None
    memory: str = "HBM"

    def columns(self, blocks: Callable[[Any], int]) -> Columns:
        """Return a column for each known unit; `blocks` returns a row's capacity."""
        columns: dict[str, Callable[[Any], str]] = {"blocks": lambda row: count(blocks(row))}
        model, hbm, size = self.model, self.hbm_bytes, self.block_size
        if model is None:
            return columns | {"tokens": lambda row: count(blocks(row) * size)}
        sizes = {f"{model.name} {model.dtype}": lambda row: self.label(blocks(row))}
        if hbm:
            sizes[f"× {units.format_size(hbm)} {self.memory}"] = lambda row: multiple(
                model.bytes_for(blocks(row) * size) / hbm
            )
        return sizes | columns

    def label(self, blocks: int) -> str:
        """Return `20.1 GiB`, or `23,469 blocks` where no model is known."""
        if self.model is None:
            return counted(blocks, "block")
        return units.format_size(self.model.bytes_for(blocks * self.block_size))

    def in_words(self, blocks: int) -> str:
        """Return `20.1 GiB (23,469 blocks)`, or `23,469 blocks` where no model is known."""
        label = self.label(blocks)
        if self.model is None:
            return label
        compressed = self.model.compressed
        if compressed and compressed.of_block:  # of a pool: its blocks are no trace's
            blocks = blocks * self.block_size // compressed.kv_groups().block_tokens
        return f"{label} ({counted(blocks, 'block')})"

    @property
    def hbm_blocks(self) -> int | None:
        """The blocks that fit into `hbm_bytes`; None where these or the model are unknown."""
        if self.model is None or not self.hbm_bytes:
            return None
        return self.model.blocks_in(self.hbm_bytes, self.block_size)

    @property
    def axis(self) -> Unit:
        """The unit of a chart's axis: GiB where a model is known, else blocks."""
        if self.model is None:
            return Unit("blocks", 1.0)
        return Unit("GiB", self.model.bytes_for(self.block_size) / units.GIB)


def multiple(times: float) -> str:
    """Return a factor as text: 0.0612×, 6.4×, 24×, 1,200×."""
    return f"{significant(times)}×"
