"""What xi does at one capacity: every replay of a policy that has one, LRU beside them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Run
from kvscope.replay.setting import profile_of
from kvscope.report.section import Section, Table
from kvscope.report.sections.run_cells import in_ms, run_cells, run_columns
from kvscope.tune.search import XI

_ABOUT = (
    "xi: how many tokens the next turn may compute and still be in time.",
    "A larger one gives up more of each history, so that more conversations fit.",
)


def by_xi(runs: Sequence[Run]) -> dict[float, Run]:
    """The runs of a policy that has a xi, by its value, ascending."""
    return {run.params[XI]: run for run in sorted(_with_xi(runs), key=lambda run: run.params[XI])}


def section(found: Simulation, percentile: str, at_xi: float) -> Section:
    """A percentile of TTFT against xi, `at_xi` marked, and every replay as a row.

    `percentile` is a field of `Percentiles`; one policy of those found has a xi, at one capacity.
    """
    runs = by_xi(found.runs)
    setting, profile = found.setting, profile_of(found.setting)
    rows = tuple(
        (
            units.format_count(xi),
            units.format_duration(float(profile.ttft_s(int(xi), 0))),
            *run_cells(run),
        )
        for xi, run in runs.items()
    )
    policy = next(iter(runs.values())).policy
    at = units.format_count(found.capacities[0])
    table = Table(
        f"{policy} at {at} blocks, by xi",
        ("xi (tokens)", "xi (time)", *run_columns(setting)[1:]),
        rows,
        note="xi (time): the TTFT of a prompt of that many tokens, none of them cached",
    )
    figure = partial(_figure, found, percentile, at_xi)
    return Section("What xi does", _ABOUT, tables=(table,), figures=(figure,))


def change_in_words(percentile: str, now: Percentiles, then: Percentiles) -> str:
    """What LRU gives, and how far from it: -12ms."""
    apart = getattr(then, percentile) - getattr(now, percentile)
    return f"{'-' if apart < 0 else '+'}{in_ms(abs(apart))}"


def _figure(found: Simulation, percentile: str, at_xi: float) -> object:
    from kvscope.report.charts import style
    from kvscope.report.charts import xi as charts

    runs = by_xi(found.runs)
    first = next(iter(runs.values()))
    points = [(xi, getattr(run.outcome.ttft_ms, percentile)) for xi, run in runs.items()]
    at = units.format_count(first.capacity_blocks)
    title = f"{percentile} TTFT against xi at {at} blocks"
    chart = charts.sensitivity(title, f"{percentile} TTFT", {first.policy: points})
    for run in found.runs:
        if run.policy == BASELINE:
            style.level(chart, getattr(run.outcome.ttft_ms, percentile), BASELINE)
    if found.setting.slo_s is not None:
        style.level(chart, found.setting.slo_s * 1e3, "SLO")
    if at_xi in runs:
        charts.chosen(chart, at_xi, getattr(runs[at_xi].outcome.ttft_ms, percentile))
    return chart


def _with_xi(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if XI in run.params]
