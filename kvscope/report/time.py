"""Time to reuse of blocks, their lifetimes, and the stability of both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from kvscope.characterize.lifetimes import Lifetimes, ReuseGaps, ReuseHazard
from kvscope.characterize.summary import WINDOWS, Characterization, Quantity, Stability, Variation
from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Table, curve_plot, tabulate
from kvscope.report.words import FEWEST, NONE, count, large, left_out, percentiles, share, time_unit

_SUMMARY = "mean p50 p80 p90 p99"

_Facts = TypeVar("_Facts", ReuseGaps, ReuseHazard, Lifetimes)


def sections(facts: Characterization) -> list[Section]:
    """Return the sections on time; none where the trace has no hashes."""
    shown = {row.category for row in large(facts.categories, lambda row: row.requests)}
    few = left_out(facts.categories, list(shown))
    known = []
    gaps, hazard, lifetimes = facts.reuse_gaps, facts.reuse_hazard, facts.lifetimes
    if gaps is not None and gaps.overall is not None:
        known.append(_gaps(_only(shown, gaps), hazard and _only(shown, hazard), few))
    if lifetimes is not None and lifetimes.overall is not None:
        over_time = tuple(row for row in lifetimes.over_time if row.category in shown)
        known.append(_lifetimes(_only(shown, replace(lifetimes, over_time=over_time)), few))
    if facts.stability.between_windows:
        requests = {row.category: row.requests for row in facts.categories}
        known.append(_stability(facts.stability, requests))
    return known


def _only(shown: Collection[str], facts: _Facts) -> _Facts:
    rows: Any = tuple(row for row in facts.by_category if row.category in shown)
    return replace(facts, by_category=rows)


def _ranked(facts: _Facts, size: Callable[[Any], int]) -> list[Any]:
    """Return the row of all requests, if any, then those of categories, largest first by `size`."""
    rows: list[Any] = sorted(facts.by_category, key=size, reverse=True)
    return rows if facts.overall is None else [facts.overall, *rows]


def _gaps(gaps: ReuseGaps, hazard: ReuseHazard | None, note: str) -> Section:
    rows = _ranked(gaps, lambda row: row.reused_blocks)
    unit = time_unit(row.gap_s.p50 for row in rows)
    p50, p80 = (units.duration_in_words(getattr(rows[0].gap_s, rank)) for rank in ("p50", "p80"))
    table = tabulate(
        f"Time to the next touch, by the category of the last touch ({unit.name})",
        rows,
        {
            "type, turn": lambda row: row.category or "all",
            "reused blocks": lambda row: count(row.reused_blocks),
            **percentiles(_SUMMARY, lambda row: row.gap_s, unit.cell),
        },
        note,
    )
    return Section.of(
        "Reuse gaps",
        f"Half of the reuse comes within {p50}, 80% within {p80}.",
        table,
        lambda: style.lines(
            "Reuse within a time",
            "time since the last use (s)",
            "share of the reused blocks",
            _curves(gaps, lambda row: row.reused_blocks),
        ),
        partial(hazard_chart, hazard) if hazard is not None and hazard.overall else None,
        plot=curve_plot(gaps.at_s, {"reused within": rows[0].cdf}, units.duration_in_words),
    )


def _lifetimes(lifetimes: Lifetimes, note: str) -> Section:
    rows = _ranked(lifetimes, lambda row: row.blocks)
    unit = time_unit(row.lifetime_s.p90 for row in rows)
    table = tabulate(
        f"First to last use of a block, by the category of the first ({unit.name})",
        rows,
        {
            "type, turn": lambda row: row.category or "all",
            "blocks": lambda row: count(row.blocks),
            "never reused": lambda row: share(row.never_reused_share),
            **percentiles(_SUMMARY, lambda row: row.lifetime_s, unit.cell),
        },
        note,
    )
    return Section.of(
        "Lifetimes",
        f"{share(rows[0].never_reused_share)} of the blocks are never used again; 90% are last used"
        f" within {units.duration_in_words(rows[0].lifetime_s.p90)} of their first use.",
        table,
        lambda: style.lines(
            "Lifetime of blocks",
            "time since the first use (s)",
            "share of blocks after their last use",
            _curves(lifetimes, lambda row: row.blocks),
        ),
        partial(lifetimes_over_time_chart, lifetimes),
        plot=curve_plot(lifetimes.at_s, {"last use within": rows[0].cdf}, units.duration_in_words),
    )


def _stability(stability: Stability, requests: Mapping[str, int]) -> Section:
    """Return how much windows and days differ, overall and by category of enough `requests`."""
    units_of_time = {"window": stability.between_windows, "day": stability.between_days}
    tables = (_varying(unit, rows, requests) for unit, rows in units_of_time.items())
    return Section.of(
        "Stability",
        f"Windows of {units.duration_in_words(stability.window_s)}. Varies: standard deviation"
        " between the windows that have a value, relative to their mean.",
        *(
            f"Ideal hit rate (token-weighted): mean {share(row.mean)}, varies by"
            f" {share(row.variation)} between {row.windows} windows."
            for row in stability.between_windows
            if row.quantity == "ideal_hit_rate"
        ),
        *(table for table in tables if table.rows),
    )


def _varying(unit: str, variations: Sequence[Variation], requests: Mapping[str, int]) -> Table:
    """Return means over windows or days (`unit`), and variation, by category of many `requests`."""
    known = {(row.category, row.quantity): row for row in variations}
    large = {name for name in requests if requests[name] >= FEWEST * WINDOWS}
    gaps = time_unit(row.mean for row in variations if row.quantity == "reuse_gap_p50_s")

    def mean(quantity: Quantity, category: str) -> str:
        row = known.get((category, quantity))
        if row is None:
            return NONE
        return gaps.cell(row.mean) if quantity.endswith("_s") else share(row.mean)

    def varies(quantity: Quantity, category: str) -> str:
        row = known.get((category, quantity))
        return share(row.variation if row else None)

    return tabulate(
        f"From {unit} to {unit}",
        sorted(large & {name for name, _ in known}, key=lambda name: -requests[name]),
        {
            "type, turn": str,
            f"gap p50 ({gaps.name})": partial(mean, "reuse_gap_p50_s"),
            "p50 varies": partial(varies, "reuse_gap_p50_s"),
            f"gap p80 ({gaps.name})": partial(mean, "reuse_gap_p80_s"),
            "p80 varies": partial(varies, "reuse_gap_p80_s"),
            "next turn": partial(mean, "next_turn_probability"),
            "turn varies": partial(varies, "next_turn_probability"),
        },
        note=f"only categories of at least {FEWEST * WINDOWS} requests: fewer vary by chance",
    )


def _curves(
    facts: _Facts,
    size: Callable[[Any], int],
    values: Callable[[Any], Sequence[float | None]] = lambda row: row.cdf,
    **options: object,
) -> list[style.Series]:
    """Return curves of all requests and of categories, the largest by `size`; y from `values`."""
    rows = _ranked(facts, size)[: 1 + style.SHOWN_CATEGORIES]
    return style.curves(facts.at_s, {row.category or "all": values(row) for row in rows}, **options)


def hazard_chart(hazard: ReuseHazard) -> style.Figure:
    """Draw the probability of reuse in the next second over the time since a block's last use."""
    curves = _curves(
        hazard,
        lambda row: max(row.at_risk_blocks, default=0),
        lambda row: [p or None for p in row.probability],  # a log axis has no place for zero: a gap
        **style.MARKED,
    )
    x, y = "time since the last use (s)", "probability in the next second"
    return style.lines("Reuse in the next second", x, y, curves, log="xy", shares="")


def lifetimes_over_time_chart(lifetimes: Lifetimes) -> style.Figure:
    """Draw a heat map of mean block lifetimes by category and window of first use."""
    starts = sorted({row.start_s for row in lifetimes.over_time})
    categories = sorted({row.category for row in lifetimes.over_time})
    mean = {(row.category, row.start_s): row.mean_s for row in lifetimes.over_time}
    return style.heat_map(
        "Mean lifetime over time",
        ("first use, since the trace's start (h)", [start / 3600 for start in starts]),
        ("category", categories),
        [[mean.get((category, start)) for start in starts] for category in categories],
        "%{y}, %{x:.2f} h: %{z:.0f} s",
        colorbar={"title": "s"},
    )
