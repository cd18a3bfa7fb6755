"""Two traces, runs or recommendations side by side: figures with their change, shared charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kvscope.core import units
from kvscope.core.runs import Run
from kvscope.report import style
from kvscope.report.policies import hits_by_window, setting_in_words
from kvscope.report.section import Section, Table
from kvscope.report.words import NONE, count, percent_change, points, share, significant
from kvscope.usecases.analyze import Analysis
from kvscope.usecases.diff import Comparison, Difference, Quantity

_CHANGE = "change"
_NOTE = "change: right against left; pp: percentage points"
_PERCENTILES = ("p50", "p90", "p95", "p99")
_LONG = 30  # characters of a text that is a sentence, not a cell
_WRITE: Mapping[Quantity, Callable[[float], str]] = {
    "share": share,
    "seconds": units.duration_in_words,
    "requests": count,
    "per_second": significant,
    "tokens": lambda value: f"{count(value)} tokens",
    "blocks": count,
    "bytes": units.format_size,
}

_Points = tuple[Sequence[float], Sequence[float | None]]


def screen(compared: Comparison) -> list[Section]:
    """Return figures that differ by more than chance, the most important first; [] if none do."""
    ranked = compared.differences
    if not ranked:
        return []
    notes = [_NOTE] if any(fact.change is not None for fact in ranked) else []
    return [
        Section.of(
            "Differences",
            *_sentences(compared.names, ranked),
            None if all(map(_is_long, ranked)) else _table("", compared.names, ranked, *notes),
        )
    ]


def sections(compared: Comparison) -> list[Section]:
    """Return all figures, and charts with a line for each side."""
    names = _distinct(compared.names)
    both, of_runs = compared.analyses, compared.runs
    notes: tuple[str, ...] = ()
    if of_runs:
        notes, right = (setting_in_words(run.setting) for run in of_runs)
        if notes != right:
            notes = (*notes, f"Right, with other settings: {' '.join(right)}")
    chart = partial(_ttft_chart, names, of_runs) if of_runs else None
    words = (*notes, *_sentences(names, compared.facts))
    known = [Section.of("Facts", *words, _table("", names, compared.facts, _NOTE), chart)]
    if compared.by_category:
        tables = (_table(each.name, names, each.categories, _NOTE) for each in compared.by_category)
        known.append(Section.of("Categories", *tables))
    if both:
        known += _of_traces(names, both)
    if of_runs:
        titles = "Hit rate over time", style.HOURS, "hit rate"
        known.append(
            Section.of("Over time", _chart(names, of_runs, hits_by_window, *titles, log=""))
        )
    return known


def _table(
    title: str, names: tuple[str, str], facts: Sequence[Difference], note: str = ""
) -> Table:
    rows = tuple(_row(fact) for fact in facts if not _is_long(fact))
    return Table(title, ("figure", *_distinct(names), _CHANGE), rows, note)


def _row(fact: Difference) -> tuple[str, str, str, str]:
    change = NONE
    if fact.change is not None:
        change = (points if fact.quantity == "share" else percent_change)(fact.change)
    return fact.name, _cell(fact, fact.left), _cell(fact, fact.right), change


def _cell(fact: Difference, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or NONE
    return _WRITE[fact.quantity](value)


def _is_long(fact: Difference) -> bool:
    """Return whether a value of a fact (flags, a deployment) is too long for a table cell."""
    return max(len(str(value or "")) for value in (fact.left, fact.right)) > _LONG


def _sentences(names: tuple[str, str], facts: Sequence[Difference]) -> list[str]:
    """Return the facts that are too long for a table: a sentence a side, one if both are equal."""
    written = []
    for fact in filter(_is_long, facts):
        left, right = _cell(fact, fact.left), _cell(fact, fact.right)
        if fact.is_none:
            written.append(f"{fact.name}: {left}")
        else:
            written += [f"{fact.name}, {names[0]}: {left}", f"{fact.name}, {names[1]}: {right}"]
    return written


def _distinct(names: tuple[str, str]) -> tuple[str, str]:
    return names if names[0] != names[1] else (f"{names[0]} (left)", f"{names[1]} (right)")


def _of_traces(names: tuple[str, str], both: tuple[Analysis, Analysis]) -> list[Section]:
    """Return the charts of two traces; capacities are in GiB if both have the same model."""
    model = both[0].model if both[0].model == both[1].model else None
    unit, tokens = ("GiB", units.GIB / model.bytes_per_token) if model else ("tokens", 1.0)

    def rates(each: Analysis) -> _Points | None:
        if each.caching is None:
            return None
        curve = each.caching.curve
        return [point.capacity_tokens / tokens for point in curve], list(
            map(each.caching.rate, curve)
        )

    def gaps(each: Analysis) -> _Points | None:
        known = each.characterization.reuse_gaps
        return (known.at_s, known.overall.cdf) if known and known.overall else None

    def over_time(figure: str, each: Analysis) -> _Points:
        windows = each.characterization.over_time.windows
        return [at.start_s / 3600 for at in windows], [getattr(at, figure) for at in windows]

    chart, known = partial(_chart, names, both), []
    if all(each.caching for each in both):
        titles = "LRU's exact hit rate", f"capacity ({unit})", "hit rate"
        known.append(Section.of("Capacity", chart(rates, *titles)))
    if all(each.characterization.reuse_gaps for each in both):
        axes = "time since the last use (s)", "share of the reused blocks"
        known.append(Section.of("Reuse gaps", chart(gaps, "Reuse within a time", *axes)))
    arrivals = partial(over_time, "arrival_rate_per_s"), "Requests per second"
    ideal = partial(over_time, "token_hit_rate"), "Ideal hit rate"
    over_time_charts = (
        chart(*arrivals, style.HOURS, "requests/s", log="", shares=""),
        chart(*ideal, style.HOURS, "hit rate", log=""),
    )
    return [*known, Section.of("Over time", *over_time_charts)]


def _chart(
    names: tuple[str, str],
    both: tuple[Any, Any],
    line: Callable[[Any], _Points | None],
    *titles: str,
    **look: Any,
) -> Callable[[], style.Figure]:
    """Return a function that draws a chart with a line for each of `both` sides, by their `names`.

    `line` returns the x and y values of a side, None for no line. `titles` are those of the chart,
    its x axis and its y axis; `look` are keyword arguments of `style.lines`, such as `log`.
    """

    def build() -> style.Figure:
        sides = zip(names, map(line, both), strict=True)
        series = [style.Series(name, *points) for name, points in sides if points is not None]
        title, x, y = titles
        return style.lines(title, x, y, series, **look)

    return build


def _ttft_chart(names: tuple[str, str], both: tuple[Run, Run]) -> style.Figure:
    """Draw TTFT percentiles of both runs as bars."""
    values = {
        name: [getattr(run.outcome.ttft_ms, rank) for rank in _PERCENTILES]
        for name, run in zip(names, both, strict=True)
    }
    return style.bars(
        "Time to first token", "TTFT (ms)", "", _PERCENTILES, values, hover="%{y}: %{x:.4~g} ms"
    )
