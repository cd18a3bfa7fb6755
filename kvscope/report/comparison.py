"""Two traces or two runs side by side: their facts with the change, and their charts as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kvscope.app.analyze import Analysis
from kvscope.characterize.traffic import TrafficWindow
from kvscope.core import units
from kvscope.core.runs import Outcome, Run
from kvscope.replay.policy_options import format_value
from kvscope.report import style, ttft
from kvscope.report.caching import present_blocks, sizes_of
from kvscope.report.policies import setting_in_words
from kvscope.report.runs import hit_rate
from kvscope.report.section import Section, Table
from kvscope.report.words import (
    NONE,
    count,
    ms_in_words,
    percent_change,
    points,
    share,
    significant,
)

Row = tuple[str, str, str, str]

_CHANGE = "change"
_NOTE = "change: right against left; pp: percentage points"
_PERCENTILES = ("p50", "p90", "p95", "p99")


def traces(names: tuple[str, str], both: tuple[Analysis, Analysis]) -> list[Section]:
    """Return two analyses side by side."""
    names = _distinct(names)
    sections = [
        Section.of("Facts", _table("", names, _trace_facts(both))),
        Section.of("Categories", _table("Share of requests", names, _shares(both))),
    ]
    if all(each.caching for each in both):
        sections.append(Section.of("Capacity", partial(_curves_chart, names, both)))
    if all(each.characterization.reuse_gaps for each in both):
        sections.append(Section.of("Reuse gaps", partial(_gaps_chart, names, both)))
    charts = (partial(_rates_chart, names, both), partial(_ideal_chart, names, both))
    return [*sections, Section.of("Over time", *charts)]


def runs(names: tuple[str, str], both: tuple[Run, Run]) -> list[Section]:
    """Return two runs, with their parts, side by side."""
    names = _distinct(names)
    left, right = (setting_in_words(run.setting) for run in both)
    notes = left if left == right else (*left, f"Right, with other settings: {' '.join(right)}")
    outcomes = both[0].outcome, both[1].outcome
    rates = [hit_rate(run.setting, run.outcome) for run in both]
    facts = [
        ("policy", both[0].policy, both[1].policy, NONE),
        _amount("capacity (blocks)", [float(run.capacity_blocks) for run in both], count),
        *_parameters(both),
        _share("hit rate", rates),
        *_outcome_facts(outcomes),
        _amount("evictions (blocks)", [float(run.evictions) for run in both], count),
    ]
    sections = [
        Section.of("Facts", *notes, _table("", names, facts), partial(_ttft_chart, names, both))
    ]
    by_category = [ttft.by_category(run) for run in both]
    if shared := [name for name in by_category[0] if name in by_category[1]]:
        pairs = {name: (by_category[0][name], by_category[1][name]) for name in shared}
        tables = (
            _table("Hit rate", names, [_hit_rates(name, both, pairs[name]) for name in shared]),
            _table("p95 TTFT", names, [_p95(name, pairs[name]) for name in shared]),
        )
        sections.append(Section.of("Categories", *tables))
    return [*sections, Section.of("Over time", partial(_hits_chart, names, both))]


def _table(title: str, names: tuple[str, str], rows: Sequence[Row | None]) -> Table:
    known = tuple(row for row in rows if row is not None)
    return Table(title, ("figure", *names, _CHANGE), known, _NOTE)


def _distinct(names: tuple[str, str]) -> tuple[str, str]:
    return names if names[0] != names[1] else (f"{names[0]} (left)", f"{names[1]} (right)")


def _amount(name: str, values: Sequence[float | None], write: Callable[[float], str]) -> Row | None:
    """Return the row of an amount, whose change is relative; None where neither side has it."""
    left, right = values
    if left is None and right is None:
        return None
    change = percent_change(right / left - 1) if left and right is not None else NONE
    before, after = (NONE if value is None else write(value) for value in values)
    return name, before, after, change


def _share(name: str, values: Sequence[float | None]) -> Row | None:
    """Return the row of a share, whose change is in percentage points."""
    left, right = values
    if left is None and right is None:
        return None
    change = NONE if left is None or right is None else points(right - left)
    return name, share(left), share(right), change


def _trace_facts(both: tuple[Analysis, Analysis]) -> list[Row | None]:
    """Return what the Overview of each begins with, and how its blocks are reused."""

    def of(read: Callable[[Analysis], float | None]) -> list[float | None]:
        return [read(each) for each in both]

    def seconds(name: str, read: Callable[[Analysis], float | None]) -> Row | None:
        return _amount(name, of(read), units.duration_in_words)

    facts = [each.characterization for each in both]
    rows = [
        _amount("requests", [float(each.trace.requests) for each in both], count),
        seconds("span", lambda each: each.trace.span_s),
        _amount("requests/s", [each.lengths.arrival_rate_per_s for each in facts], significant),
        _amount("mean input tokens", [each.lengths.input_tokens.mean for each in facts], count),
        _amount("mean output tokens", [each.lengths.output_tokens.mean for each in facts], count),
        _share(
            "follow-up turns",
            [each.contribution.multi_turn_request_share if each.turns else None for each in facts],
        ),
        _share(
            "hits of follow-up turns", [each.contribution.multi_turn_hit_share for each in facts]
        ),
        _share("ideal hit rate", of(lambda each: each.caching.ideal if each.caching else None)),
    ]
    present = [present_blocks(each) for each in both]
    if all(present):
        memory = sizes_of(both[0]).memory
        rows.append(
            _share(
                f"LRU's hit rate with the {memory}",
                [
                    float(each.caching.lru.rate(blocks)) if each.caching and blocks else None
                    for each, blocks in zip(both, present, strict=True)
                ],
            )
        )
    return [
        *rows,
        _amount("LRU for 90% of ideal", of(_needed), _size(both)),
        _amount("peak working set", of(_peak), _size(both)),
        *(seconds(f"reuse gap {rank}", partial(_gap, rank)) for rank in ("p50", "p90")),
        *(
            seconds(f"lifetime of a block {rank}", partial(_lifetime, rank))
            for rank in ("p50", "p90")
        ),
    ]


def _tokens_per_unit(both: tuple[Analysis, Analysis]) -> tuple[str, float]:
    """Return the unit in which capacities of both compare, and its size in tokens."""
    model = both[0].model
    if model is None or model != both[1].model:
        return "tokens", 1.0
    return "GiB", units.GIB / model.bytes_per_token


def _size(both: tuple[Analysis, Analysis]) -> Callable[[float], str]:
    unit, tokens = _tokens_per_unit(both)
    if unit == "GiB":
        return lambda value: units.format_size(round(value / tokens * units.GIB))
    return lambda value: f"{count(value)} tokens"


def _needed(analysis: Analysis) -> float | None:
    """Return the tokens with which LRU has 90 % of the ideal hits."""
    if analysis.caching is None or not analysis.caching.ideal:
        return None
    nine = next(mark for mark in analysis.caching.landmarks if mark.share_of_ideal == 0.9)
    return float(nine.point.capacity_tokens)


def _peak(analysis: Analysis) -> float | None:
    alive = analysis.characterization.working_set
    return None if alive is None else float(alive.peak_blocks * analysis.trace.block_size)


def _gap(rank: str, analysis: Analysis) -> float | None:
    gaps = analysis.characterization.reuse_gaps
    return getattr(gaps.overall.gap_s, rank) if gaps and gaps.overall else None


def _lifetime(rank: str, analysis: Analysis) -> float | None:
    lives = analysis.characterization.lifetimes
    return getattr(lives.overall.lifetime_s, rank) if lives and lives.overall else None


def _shares(both: tuple[Analysis, Analysis]) -> list[Row | None]:
    left, right = (
        {row.category: row.share for row in each.characterization.categories} for each in both
    )
    return [_share(name, (left.get(name, 0.0), right.get(name, 0.0))) for name in {**left, **right}]


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
    series = [
        style.Series(name, hours, [window.arrival_rate_per_s for window in windows])
        for name, hours, windows in _windows(names, both)
    ]
    return style.lines("Requests per second", style.HOURS, "requests/s", series, log="", shares="")


def _ideal_chart(names: tuple[str, str], both: tuple[Analysis, Analysis]) -> style.Figure:
    """Build the ideal hit rate over time, of both traces."""
    series = [
        style.Series(name, hours, [window.token_hit_rate for window in windows])
        for name, hours, windows in _windows(names, both)
    ]
    return style.lines("Ideal hit rate", style.HOURS, "hit rate", series, log="")


def _windows(
    names: tuple[str, str], both: tuple[Analysis, Analysis]
) -> Iterator[tuple[str, list[float], Sequence[TrafficWindow]]]:
    for name, each in zip(names, both, strict=True):
        windows = each.characterization.over_time.windows
        yield name, [window.start_s / 3600 for window in windows], windows


def _parameters(both: tuple[Run, Run]) -> list[Row]:
    """Return the parameters in which two runs differ."""
    left, right = (
        {**run.params, "slo_s": run.setting.slo_s} if run.setting.slo_s else dict(run.params)
        for run in both
    )
    rows = []
    for name in {**left, **right}:
        if left.get(name) != right.get(name):
            before, after = (
                format_value(name, of[name]) if name in of else NONE for of in (left, right)
            )
            rows.append((name, before, after, NONE))
    return rows


def _outcome_facts(both: tuple[Outcome, Outcome]) -> list[Row | None]:
    return [
        _amount("requests", [float(each.requests) for each in both], count),
        _amount("uncached tokens p95", [each.uncached_tokens.p95 for each in both], count),
        *(
            _amount(f"TTFT {rank}", [getattr(each.ttft_ms, rank) for each in both], ms_in_words)
            for rank in _PERCENTILES
        ),
        *(
            _amount(
                f"queued TTFT {rank}",
                [getattr(each.queued_ttft_ms, rank, None) for each in both],
                ms_in_words,
            )
            for rank in ("p50", "p95")
        ),
        _share("over SLO", [_over(each) for each in both]),
        _amount("TEL", [each.tel_ms for each in both], ms_in_words),
    ]


def _over(outcome: Outcome) -> float | None:
    return None if outcome.violations is None else outcome.violations / max(outcome.requests, 1)


def _hit_rates(name: str, both: tuple[Run, Run], pair: tuple[Outcome, Outcome]) -> Row | None:
    rates = [hit_rate(run.setting, each) for run, each in zip(both, pair, strict=True)]
    return _share(name, rates)


def _p95(name: str, pair: tuple[Outcome, Outcome]) -> Row | None:
    return _amount(name, [each.ttft_ms.p95 for each in pair], ms_in_words)


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
