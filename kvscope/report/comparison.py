"""Two traces, runs or recommendations side by side: figures with the change, charts as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from kvscope.characterize.traffic import TrafficWindow
from kvscope.core import units
from kvscope.core.runs import Run, hit_rate
from kvscope.report import style
from kvscope.report.policies import setting_in_words
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


def screen(compared: Comparison) -> list[Section]:
    """Return what differs, what matters most first."""
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
    """Return all figures, and the charts of both as one."""
    names = _distinct(compared.names)
    both, of_runs = compared.analyses, compared.runs
    notes = _settings(of_runs) if of_runs else ()
    chart = partial(_ttft_chart, names, of_runs) if of_runs else None
    words = (*notes, *_sentences(names, compared.facts))
    known = [Section.of("Facts", *words, _table("", names, compared.facts, _NOTE), chart)]
    if compared.by_category:
        tables = (_table(each.name, names, each.categories, _NOTE) for each in compared.by_category)
        known.append(Section.of("Categories", *tables))
    if both and all(each.caching for each in both):
        known.append(Section.of("Capacity", partial(_curves_chart, names, both)))
    if both and all(each.characterization.reuse_gaps for each in both):
        known.append(Section.of("Reuse gaps", partial(_gaps_chart, names, both)))
    if both:
        over_time = (partial(_rates_chart, names, both), partial(_ideal_chart, names, both))
        known.append(Section.of("Over time", *over_time))
    if of_runs:
        known.append(Section.of("Over time", partial(_hits_chart, names, of_runs)))
    return known


def _settings(both: tuple[Run, Run]) -> tuple[str, ...]:
    """Return what the numbers of two runs count and assume."""
    left, right = (setting_in_words(run.setting) for run in both)
    return left if left == right else (*left, f"Right, with other settings: {' '.join(right)}")


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
    """Return whether a fact is too long for a table: flags, a deployment."""
    return max(len(str(value or "")) for value in (fact.left, fact.right)) > _LONG


def _sentences(names: tuple[str, str], facts: Sequence[Difference]) -> list[str]:
    """Return the facts that are too long for a table, a sentence a side."""
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


def _tokens_per_unit(both: tuple[Analysis, Analysis]) -> tuple[str, float]:
    """Return the unit in which capacities of both compare, and its size in tokens."""
    model = both[0].model
    if model is None or model != both[1].model:
        return "tokens", 1.0
    return "GiB", units.GIB / model.bytes_per_token


def _curves_chart(names: tuple[str, str], both: tuple[Analysis, Analysis]) -> style.Figure:
    """Build LRU's hit rate at every capacity, of both traces."""
    unit, tokens = _tokens_per_unit(both)
    series = [
        style.Series(
            name,
            [point.capacity_tokens / tokens for point in each.caching.curve],
            [each.caching.rate(point) for point in each.caching.curve],
        )
        for name, each in zip(names, both, strict=True)
        if each.caching is not None
    ]
    return style.lines("LRU's exact hit rate", f"capacity ({unit})", "hit rate", series)


def _gaps_chart(names: tuple[str, str], both: tuple[Analysis, Analysis]) -> style.Figure:
    """Build how much of the reuse comes within a time, of both traces."""
    series = [
        style.Series(name, gaps.at_s, gaps.overall.cdf)
        for name, each in zip(names, both, strict=True)
        if (gaps := each.characterization.reuse_gaps) and gaps.overall
    ]
    x, y = "time since the last use (s)", "share of the reused blocks"
    return style.lines("Reuse within a time", x, y, series)


def _rates_chart(names: tuple[str, str], both: tuple[Analysis, Analysis]) -> style.Figure:
    """Build the arrival rate over time, of both traces."""
    series = _over_time(names, both, lambda window: window.arrival_rate_per_s)
    return style.lines("Requests per second", style.HOURS, "requests/s", series, log="", shares="")


def _ideal_chart(names: tuple[str, str], both: tuple[Analysis, Analysis]) -> style.Figure:
    """Build the ideal hit rate over time, of both traces."""
    series = _over_time(names, both, lambda window: window.token_hit_rate)
    return style.lines("Ideal hit rate", style.HOURS, "hit rate", series, log="")


def _over_time(
    names: tuple[str, str],
    both: tuple[Analysis, Analysis],
    value: Callable[[TrafficWindow], float | None],
) -> Iterator[style.Series]:
    """Yield a line for each trace: the value of each of its windows."""
    for name, each in zip(names, both, strict=True):
        windows = each.characterization.over_time.windows
        yield style.Series(name, [at.start_s / 3600 for at in windows], list(map(value, windows)))


def _ttft_chart(names: tuple[str, str], both: tuple[Run, Run]) -> style.Figure:
    """Build the percentiles of TTFT, of both runs."""
    values = {
        name: [getattr(run.outcome.ttft_ms, rank) for rank in _PERCENTILES]
        for name, run in zip(names, both, strict=True)
    }
    return style.bars(
        "Time to first token", "TTFT (ms)", "", _PERCENTILES, values, hover="%{y}: %{x:.4~g} ms"
    )


def _hits_chart(names: tuple[str, str], both: tuple[Run, Run]) -> style.Figure:
    """Build the hit rate over time, of both runs."""
    series = []
    for name, run in zip(names, both, strict=True):
        parts = [part for part in run.parts if part.start_s is not None]
        hours = [(part.start_s or 0.0) / 3600 for part in parts]
        rates = [hit_rate(run.setting, part.outcome) for part in parts]
        series.append(style.Series(name, hours, rates))
    return style.lines("Hit rate over time", style.HOURS, "hit rate", series, log="")
