"""Hits and memory by time to live (TTL), overall and by category, and providers' prices."""

from __future__ import annotations

import math
from functools import partial

from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Columns, Section, Table, tabulate
from kvscope.report.words import Sizes, count, definition_in_words, share, significant
from kvscope.retention.ttls import MOST_OF
from kvscope.usecases.retention import Retention

_ROWS = 4  # categories on the one screen
_FOREVER = "forever"


def screen(result: Retention) -> list[Section]:
    """Return hits by TTL, the categories with most hits, and prices."""
    return [_summary(result), _categories(result, _ROWS), _prices(result)]


def sections(result: Retention) -> list[Section]:
    """Return all sections."""
    return [_summary(result), _categories(result), _prices(result)]


def _sizes(result: Retention) -> Sizes:
    return Sizes(result.trace.block_size, result.model)


def _time(ttl_s: float | None) -> str:
    if ttl_s is None or math.isinf(ttl_s):
        return _FOREVER
    return units.duration_in_words(ttl_s) if ttl_s else "0"


def _summary(result: Retention) -> Section:
    sizes, most = _sizes(result), result.most
    reach = (
        f"A TTL of {_time(most.ttl_s)} after each touch keeps {share(most.share_of_ideal)} of the"
        f" possible hits and holds {sizes.label(round(most.mean_blocks))} on average,"
        f" {sizes.label(most.peak_blocks)} at peak."
    )
    cheapest = {charge.offer.provider: charge for charge in reversed(result.charges)}
    paid = "Cheapest prompt caching by provider, relative to none: " + ", ".join(
        f"{charge.offered} {share(charge.cost_ratio)}"
        for charge in sorted(cheapest.values(), key=lambda charge: charge.cost_ratio)
    )
    counting = f"Counted: {definition_in_words(result.definition)}."
    charts = partial(curve_chart, result), partial(memory_chart, result)
    return Section.of("Summary", reach, f"{paid}.", counting, _ttls(result), *charts)


def _ttls(result: Retention) -> Table:
    sizes = _sizes(result)
    columns: Columns = {
        "TTL": lambda point: _time(point.ttl_s),
        "hit rate": lambda point: share(point.token_hit_rate),
        "of possible": lambda point: share(point.share_of_ideal),
        "held, mean": lambda point: sizes.label(round(point.mean_blocks)),
        "held, peak": lambda point: sizes.label(point.peak_blocks),
    }
    return tabulate("One TTL after each touch, nothing else evicted", result.ttls, columns)


def _categories(result: Retention, rows: int | None = None) -> Section:
    every = [row for row in result.categories if row.share_of_hits]
    columns: Columns = {
        "type, turn": lambda row: row.category,
        "requests": lambda row: count(row.requests),
        "of all hits": lambda row: share(row.share_of_hits),
        f"TTL for {MOST_OF:.0%}": lambda row: _time(row.most_ttl_s),
    }
    shown = every[:rows]
    note = f"{len(every) - len(shown)} more with --full" if len(shown) < len(every) else ""
    title = "By category of the request that touched a block last"
    return Section.of("Categories", tabulate(title, shown, columns, note))


def _prices(result: Retention) -> Section:
    tokens = result.trace.input_tokens
    columns: Columns = {
        "offer": lambda charge: charge.offered,
        "TTL": lambda charge: _time(charge.ttl_s),
        "write": lambda charge: f"{significant(charge.offer.write)}×",
        "read": lambda charge: f"{significant(charge.offer.read)}×",
        "tokens read": lambda charge: share(charge.read_tokens / max(tokens, 1)),
        "input's cost": lambda charge: share(charge.cost_ratio),
    }
    table: Table = tabulate(
        "What providers would charge for the same prompts",
        result.charges,
        columns,
        f"100%: no caching; prices of {result.prices_date} relative to input tokens, with storage",
    )
    return Section.of("Prices", table)


def curve_chart(result: Retention) -> style.Figure:
    """Draw the hit rate over the TTL."""
    x = [point.ttl_s or 0.0 for point in result.curve]
    series = style.curves(x, {"hit rate": [point.token_hit_rate for point in result.curve]})
    chart = style.lines("Hit rate of one TTL", "TTL (s)", "share of the input tokens", series)
    return style.ideal_level(chart, result.ttls[-1].token_hit_rate)


def memory_chart(result: Retention) -> style.Figure:
    """Draw the memory that cached blocks hold over the TTL."""
    unit = _sizes(result).axis
    x = [point.ttl_s or 0.0 for point in result.curve]
    held = {
        "mean": [point.mean_blocks * unit.per_block for point in result.curve],
        "peak": [point.peak_blocks * unit.per_block for point in result.curve],
    }
    title, y = "Memory held with one TTL", f"held ({unit.name})"
    return style.lines(title, "TTL (s)", y, style.curves(x, held), shares="")
