"""Who gains and who pays: TTFT by category under LRU and under another policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kvscope.core import units
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Outcome, Run
from kvscope.report.section import Section, Table
from kvscope.report.sections.run_cells import in_ms
from kvscope.report.words import counted

TITLE = "Who gains and who pays"
_APART = 0.01  # of the time before: less is no change
_NAMED = 6  # categories in a sentence
_NOTE = "the largest categories first; p95 of a category with few requests says little"

ByCategory = Mapping[str, Outcome]


def by_category(run: Run) -> dict[str, Outcome]:
    """What came of each category's requests."""
    return {part.category: part.outcome for part in run.parts if part.category is not None}


def section(
    title: str,
    before: ByCategory,
    after: ByCategory,
    times: Callable[[Outcome], Percentiles] = lambda outcome: outcome.ttft_ms,
) -> Section:
    """Both percentiles of every category, before and after, the largest category first.

    `times` picks the view of TTFT.
    """
    from kvscope.report.charts import who_pays as charts

    before = dict(sorted(before.items(), key=lambda item: -item[1].requests))
    then = {name: times(after[name]) for name in before}
    now = {name: times(outcome) for name, outcome in before.items()}
    rows = tuple(
        (
            name,
            units.format_count(outcome.requests),
            *(
                in_ms(getattr(side[name], which))
                for which in ("p50", "p95")
                for side in (now, then)
            ),
        )
        for name, outcome in before.items()
    )
    columns = ("category", "requests", "p50, LRU", "p50, then", "p95, LRU", "p95, then")
    return Section(
        TITLE,
        _in_words(now, then),
        tables=(Table(title, columns, rows, _NOTE),),
        figures=(partial(charts.changes, title, now, then),),
    )


def _in_words(now: Mapping[str, Percentiles], then: Mapping[str, Percentiles]) -> tuple[str, ...]:
    sentences = []
    for which in ("p50", "p95"):
        moved = {name: _change(now[name], then[name], which) for name in now}
        gain = [name for name, change in moved.items() if change < -_APART]
        pay = [name for name, change in moved.items() if change > _APART]
        sentences.append(f"{which} falls for {_listed(gain)}; it rises for {_listed(pay)}.")
    return tuple(sentences)


def _change(now: Percentiles, then: Percentiles, which: str) -> float:
    before: float = getattr(now, which)
    after: float = getattr(then, which)
    return (after - before) / before if before else after - before


def _listed(names: list[str]) -> str:
    if not names:
        return "no category"
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {counted(more, 'other')}" if more > 0 else "")
