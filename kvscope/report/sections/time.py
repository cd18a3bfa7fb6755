"""When blocks are reused, how long they live, how stable that is."""

from __future__ import annotations

from functools import partial

from kvscope.characterize.distributions import Summary
from kvscope.characterize.gaps import GapDistribution, ReuseGaps, ReuseHazard
from kvscope.characterize.lifetimes import LifetimeDistribution, Lifetimes
from kvscope.characterize.stability import Quantity, Stability, Variation
from kvscope.characterize.summary import Characterization
from kvscope.core import units
from kvscope.report.section import Section, Table
from kvscope.report.sections.traffic import PLOT_WIDTH
from kvscope.report.text_plots import sparkline, thinned

_BY_CATEGORY: dict[Quantity, str] = {
    "reuse_gap_p50_s": "reuse gap p50",
    "reuse_gap_p80_s": "reuse gap p80",
    "next_turn_probability": "next turn probability",
}


def sections(found: Characterization) -> list[Section]:
    """The sections on time; none where the trace has no hashes."""
    made = []
    if found.reuse_gaps is not None and found.reuse_gaps.overall is not None:
        made.append(_gaps(found.reuse_gaps, found.reuse_gaps.overall, found.reuse_hazard))
    if found.lifetimes is not None and found.lifetimes.overall is not None:
        made.append(_lifetimes(found.lifetimes, found.lifetimes.overall))
    if found.stability.between_windows:
        categories = [row.category for row in found.categories]
        made.append(_stability(found.stability, categories))
    return made


def _gaps(found: ReuseGaps, overall: GapDistribution, hazard: ReuseHazard | None) -> Section:
    from kvscope.report.charts import time as charts

    rows = [("all", overall), *((row.category or "all", row) for row in found.by_category)]
    figures = [partial(charts.gaps, found)]
    if hazard is not None and hazard.overall is not None:
        figures.append(partial(charts.hazard, hazard))
    words = (
        f"Half of the reuse comes within {units.format_duration(overall.gap_s.p50)},"
        f" 80% within {units.format_duration(overall.gap_s.p80)}."
    )
    return Section(
        title="Reuse gaps",
        sentences=(words,),
        tables=(
            Table(
                "Time until a block is used again, by the category that touched it last",
                ("type, turn", "reused blocks", "mean", "p50", "p80", "p90", "p99"),
                tuple(
                    (name, units.format_count(row.reused_blocks), *_durations(row.gap_s))
                    for name, row in rows
                ),
            ),
        ),
        plot=_cdf_plot("reused within", found.at_s, overall.cdf),
        figures=tuple(figures),
    )


def _lifetimes(found: Lifetimes, overall: LifetimeDistribution) -> Section:
    from kvscope.report.charts import time as charts

    rows = [("all", overall), *((row.category or "all", row) for row in found.by_category)]
    words = (
        f"{units.format_share(overall.never_reused_share)} of the blocks are never used again;"
        f" 90% are dead {units.format_duration(overall.lifetime_s.p90)} after their first use."
    )
    return Section(
        title="Lifetimes",
        sentences=(words,),
        tables=(
            Table(
                "First to last use of a block, by the category that touched it first",
                ("type, turn", "blocks", "never reused", "mean", "p50", "p80", "p90", "p99"),
                tuple(
                    (
                        name,
                        units.format_count(row.blocks),
                        units.format_share(row.never_reused_share),
                        *_durations(row.lifetime_s),
                    )
                    for name, row in rows
                ),
            ),
        ),
        plot=_cdf_plot("dead within", found.at_s, overall.cdf),
        figures=(partial(charts.lifetimes, found), partial(charts.lifetimes_over_time, found)),
    )


def _durations(summary: Summary) -> tuple[str, ...]:
    values = (summary.mean, summary.p50, summary.p80, summary.p90, summary.p99)
    return tuple(units.format_duration(value) for value in values)


def _cdf_plot(label: str, at_s: tuple[float, ...], cdf: tuple[float, ...]) -> tuple[str, ...]:
    if not at_s:
        return ()
    line = sparkline(thinned(cdf, PLOT_WIDTH), 1.0)
    first, last = units.format_duration(at_s[0]), units.format_duration(at_s[-1])
    return (f"{label:<14} {line}", f"{'':<14} {first:<{len(line) - len(last)}}{last}")


def _stability(found: Stability, categories: list[str]) -> Section:
    tables = [_varying("window", found.between_windows, categories)]
    if found.between_days:
        tables.append(_varying("day", found.between_days, categories))
    words = (
        f"How much it varies between windows of {units.format_duration(found.window_s)}:"
        " mean ± standard deviation over those windows that have a value."
    )
    overall = [row for row in found.between_windows if row.quantity == "ideal_hit_rate"]
    rates = [f"Ideal hit rate (token-weighted): {_spread(row)}." for row in overall]
    return Section(title="Stability", sentences=(words, *rates), tables=tuple(tables))


def _varying(unit: str, variations: tuple[Variation, ...], categories: list[str]) -> Table:
    """A row a category, a column a quantity."""
    cells = {(row.category, row.quantity): _spread(row) for row in variations}
    varying = {category for category, _ in cells}
    return Table(
        f"From {unit} to {unit}",
        ("type, turn", *_BY_CATEGORY.values()),
        tuple(
            (category, *(cells.get((category, name), "–") for name in _BY_CATEGORY))
            for category in categories
            if category in varying
        ),
    )


def _spread(row: Variation) -> str:
    write = units.format_duration if row.quantity.endswith("_s") else units.format_share
    return f"{write(row.mean)} ± {write(row.deviation)}"
