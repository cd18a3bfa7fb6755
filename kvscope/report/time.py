"""How soon blocks are reused, how long they live, and how stable that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kvscope.characterize.gaps import GapDistribution, HazardCurve, ReuseGaps, ReuseHazard
from kvscope.characterize.lifetimes import LifetimeDistribution, Lifetimes
from kvscope.characterize.stability import WINDOWS, Quantity, Stability, Variation
from kvscope.characterize.summary import Characterization
from kvscope.core import units
from kvscope.report import style
from kvscope.report.section import Section, Table, curve_plot, tabulate
from kvscope.report.words import FEWEST, NONE, count, large, left_out, percentiles, share, time_unit

_SUMMARY = "mean p50 p80 p90 p99"

_Row = TypeVar("_Row", GapDistribution, LifetimeDistribution, HazardCurve)


def sections(facts: Characterization) -> list[Section]:
    """Return the sections on time; none where the trace has no hashes."""
    shown = {row.category for row in large(facts.categories, lambda row: row.requests)}
    few = left_out(facts.categories, list(shown))

    def of_large(rows: tuple[_Row, ...]) -> tuple[_Row, ...]:
        return tuple(row for row in rows if row.category in shown)

    known = []
    gaps, hazard, lifetimes = facts.reuse_gaps, facts.reuse_hazard, facts.lifetimes
    if gaps is not None and gaps.overall is not None:
        if hazard is not None:
            hazard = replace(hazard, by_category=of_large(hazard.by_category))
        by_category = of_large(gaps.by_category)
        known.append(_gaps(replace(gaps, by_category=by_category), gaps.overall, hazard, few))
    if lifetimes is not None and lifetimes.overall is not None:
        over_time = tuple(row for row in lifetimes.over_time if row.category in shown)
        lives = of_large(lifetimes.by_category)
        of_these = replace(lifetimes, by_category=lives, over_time=over_time)
        known.append(_lifetimes(of_these, lifetimes.overall, few))
    if facts.stability.between_windows:
        requests = {row.category: row.requests for row in facts.categories}
        known.append(_stability(facts.stability, requests))
    return known


def _gaps(
    gaps: ReuseGaps, overall: GapDistribution, hazard: ReuseHazard | None, note: str
) -> Section:
    rows = [overall, *sorted(gaps.by_category, key=lambda row: -row.reused_blocks)]
    unit = time_unit(row.gap_s.p50 for row in rows)
    figures = [partial(gaps_chart, gaps)]
    if hazard is not None and hazard.overall is not None:
        figures.append(partial(hazard_chart, hazard))
    p50, p80 = (units.duration_in_words(value) for value in (overall.gap_s.p50, overall.gap_s.p80))
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
    words = f"Half of the reuse comes within {p50}, 80% within {p80}."
    plot = curve_plot(gaps.at_s, {"reused within": overall.cdf}, units.duration_in_words)
    return Section("Reuse gaps", (words,), (table,), plot, tuple(figures))


def _lifetimes(lifetimes: Lifetimes, overall: LifetimeDistribution, note: str) -> Section:
    rows = [overall, *sorted(lifetimes.by_category, key=lambda row: -row.blocks)]
    unit = time_unit(row.lifetime_s.p90 for row in rows)
    words = (
        f"{share(overall.never_reused_share)} of the blocks are never used again; 90% are last used"
        f" within {units.duration_in_words(overall.lifetime_s.p90)} of their first use."
    )
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
    plot = curve_plot(lifetimes.at_s, {"last use within": overall.cdf}, units.duration_in_words)
    figures = (partial(lifetimes_chart, lifetimes), partial(lifetimes_over_time_chart, lifetimes))
    return Section("Lifetimes", (words,), (table,), plot, figures)


def _stability(stability: Stability, requests: Mapping[str, int]) -> Section:
    """Return how windows differ, of what has enough requests in each for that to mean anything."""
    tables = (
        _varying("window", stability.between_windows, requests),
        _varying("day", stability.between_days, requests),
    )
    words = (
        f"Windows of {units.duration_in_words(stability.window_s)}. Varies: standard deviation"
        " between the windows that have a value, relative to their mean."
    )
    rates = [
        f"Ideal hit rate (token-weighted): mean {share(row.mean)}, varies by"
        f" {share(row.variation)} between {row.windows} windows."
        for row in stability.between_windows
        if row.quantity == "ideal_hit_rate"
    ]
    return Section("Stability", (words, *rates), tuple(table for table in tables if table.rows))


def _varying(unit: str, variations: Sequence[Variation], requests: Mapping[str, int]) -> Table:
    """Return a row a category: the mean of each quantity and how much it varies."""
    known = {(row.category, row.quantity): row for row in variations}
    named = {category for category, _ in known}
    large = {name: requests[name] for name in requests if requests[name] >= FEWEST * WINDOWS}
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
        sorted(named & large.keys(), key=lambda category: -requests[category]),
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


def _largest(overall: _Row | None, rows: Iterable[_Row], size: Callable[[_Row], int]) -> list[_Row]:
    """Return the rows worth a line: of all requests, and of the largest categories by `size`."""
    ranked: list[_Row] = sorted(rows, key=size, reverse=True)
    return ([] if overall is None else [overall]) + ranked[: style.SHOWN_CATEGORIES]


def gaps_chart(gaps: ReuseGaps) -> style.Figure:
    """Build how much of the reuse comes within a time, by category."""
    rows = _largest(gaps.overall, gaps.by_category, lambda row: row.reused_blocks)
    return style.lines(
        "Reuse within a time",
        "time since the last use (s)",
        "share of the reused blocks",
        [style.Series(row.category or "all", gaps.at_s, row.cdf) for row in rows],
    )


def hazard_chart(hazard: ReuseHazard) -> style.Figure:
    """Build the probability that a block untouched for a time is used in the next second."""
    rows = _largest(
        hazard.overall, hazard.by_category, lambda row: max(row.at_risk_blocks, default=0)
    )
    return style.lines(
        "Reuse in the next second",
        "time since the last use (s)",
        "probability in the next second",
        [
            style.Series(
                row.category or "all",
                hazard.at_s,
                [p or None for p in row.probability],  # a log axis has no place for zero: a gap
                options=style.MARKED,
            )
            for row in rows
        ],
        log="xy",
        shares="",
    )


def lifetimes_chart(lifetimes: Lifetimes) -> style.Figure:
    """Build how many blocks have had their last use after a time, by category."""
    rows = _largest(lifetimes.overall, lifetimes.by_category, lambda row: row.blocks)
    return style.lines(
        "Lifetime of blocks",
        "time since the first use (s)",
        "share of blocks after their last use",
        [style.Series(row.category or "all", lifetimes.at_s, row.cdf) for row in rows],
    )


def lifetimes_over_time_chart(lifetimes: Lifetimes) -> style.Figure:
    """Build the mean lifetime of blocks by the window of their first use, by category."""
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
