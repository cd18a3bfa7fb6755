"""The effect of xi at one capacity: replays of a policy with several xi, and LRU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kvscope.app.requests import BASELINE
from kvscope.app.simulate import Simulation
from kvscope.core.runs import Run
from kvscope.latency.profile import LatencyProfile
from kvscope.replay.settings import setting_profile
from kvscope.report import style
from kvscope.report.runs import policy_line, run_columns
from kvscope.report.section import Columns, Section, Tile, tabulate
from kvscope.report.words import (
    count,
    difference,
    ms_in_words,
    percent_change,
    points,
    share,
    significant,
)
from kvscope.tuning.search import XI
from kvscope.tuning.target import Limits, Target

Points = Sequence[tuple[float, float]]

_ABOUT = "xi: the tokens that the next turn may compute and still meet the SLO."


def by_xi(runs: Sequence[Run]) -> dict[float, Run]:
    """Return the runs with the parameter xi, by its value, ascending."""
    with_xi = [run for run in runs if XI in run.params]
    return {run.params[XI]: run for run in sorted(with_xi, key=lambda run: run.params[XI])}


def section(simulation: Simulation, percentile: str, at_xi: float) -> Section:
    """Return a percentile of TTFT against xi with `at_xi` marked, and a row per replay.

    `percentile` is a field of `Percentiles`. The simulation has one capacity and one xi policy.
    """
    runs = list(by_xi(simulation.runs).values())
    lru, slo_s = _lru(simulation), simulation.setting.slo_s
    why = {id(run): objections(run, lru, slo_s) for run in runs}
    sound = [count(run.params[XI]) for run in runs if not why[id(run)]]
    verdict = f"The plan's limits allow xi {', '.join(sound) or 'none of these'}."
    if chosen := why[id(by_xi(simulation.runs)[at_xi])]:
        verdict += f" Not {count(at_xi)}: {', '.join(chosen)}."
    table = tabulate(
        f"{runs[0].policy} at {count(simulation.capacities[0])} blocks, by xi",
        runs,
        {
            **columns(setting_profile(simulation.setting), lambda run: run.params[XI]),
            **run_columns(runs),
            "limits": lambda run: "broken" if why[id(run)] else "kept",
        },
        words=("limits",),
        note="xi (ms): the TTFT of a prompt of that many tokens, none of them cached",
    )
    chart = partial(percentile_chart, simulation, percentile, at_xi)
    tiles = _tiles(by_xi(simulation.runs)[at_xi], lru)
    return Section.of("Effect of xi", *tiles, verdict, _ABOUT, table, chart)


def _tiles(run: Run, lru: Run) -> list[Tile]:
    """Return tiles of one xi's figures and their changes vs LRU; `good` is None if unchanged."""
    then, now = run.outcome, lru.outcome

    def tile(label: str, value: str, change: float, words: str) -> Tile:
        about = f"{words} against lru" if change else "as with lru"
        return Tile(label, value, about, change < 0 if change else None)

    times = []
    for rank in ("p50", "p90", "p95", "p99"):
        after = getattr(then.ttft_ms, rank)
        change = after - getattr(now.ttft_ms, rank)
        words = difference(change, ms_in_words)
        times.append(tile(f"TTFT {rank}", ms_in_words(after), change, words))
    hits = then.token_hit_rate - now.token_hit_rate
    over, more = then.violations or 0, (then.violations or 0) - (now.violations or 0)
    return [
        *times,
        tile("Hit rate", share(then.token_hit_rate), -hits, points(hits)),
        tile("Over SLO", count(over), more, difference(more, count)),
    ]


def best(simulation: Simulation) -> float:
    """Return the xi with the lowest p95 TTFT among those without `objections`, else among all."""
    runs, lru, slo_s = by_xi(simulation.runs), _lru(simulation), simulation.setting.slo_s
    allowed = {xi: run for xi, run in runs.items() if not objections(run, lru, slo_s)}
    return min(allowed or runs, key=lambda xi: runs[xi].outcome.ttft_ms.p95)


def objections(run: Run, lru: Run, slo_s: float | None) -> list[str]:
    """Return how a run is worse than LRU by more than default `Limits`, by estimates, not CIs.

    Compared are p95 and p50 TTFT, and with an SLO the TEL and the share of requests that meet it.
    """
    then, now = run.outcome, lru.outcome
    target = Target(slo_s or math.inf)
    bounds = Limits().bounds(target, now.ttft_ms.p50 / 1e3)
    figures = {
        target.rank_name: (then.ttft_ms.p95, now.ttft_ms.p95),
        "p50": (then.ttft_ms.p50, now.ttft_ms.p50),
        "tel": (then.tel_ms or 0.0, now.tel_ms or 0.0),
    }
    broken = [
        f"{'TEL' if name == 'tel' else name} {percent_change(new / old - 1)}"
        for name, (new, old) in figures.items()
        if old and new / old - 1 > bounds[name]
    ]
    over, before = then.violations or 0, now.violations or 0
    if (over - before) / then.requests > -bounds["attainment"]:
        broken.insert(0, f"{count(over)} requests exceed the SLO, {count(before)} with LRU")
    return broken


def _lru(simulation: Simulation) -> Run:
    return next(run for run in simulation.runs if run.policy == BASELINE)


def columns(profile: LatencyProfile, xi: Callable[[Any], float]) -> Columns:
    """Return columns of a row's xi in tokens, and in ms: TTFT of that many uncached tokens."""
    return {
        "xi (tokens)": lambda row: count(xi(row)),
        "xi (ms)": lambda row: significant(float(profile.ttft_s(int(xi(row)), 0)) * 1e3),
    }


def percentile_chart(simulation: Simulation, percentile: str, at_xi: float) -> style.Figure:
    """Draw a percentile of TTFT over xi, with LRU and the SLO as horizontal lines."""

    def ttft_ms(run: Run) -> float:
        return float(getattr(run.outcome.ttft_ms, percentile))

    runs = by_xi(simulation.runs)
    policy = next(iter(runs.values())).policy
    title = f"{percentile} TTFT against xi at {count(simulation.capacities[0])} blocks"
    points = {policy: [(xi, ttft_ms(run)) for xi, run in runs.items()]}
    chart = sensitivity_chart(title, f"{percentile} TTFT", points)
    lru = _lru(simulation)
    broken = [bool(objections(run, lru, simulation.setting.slo_s)) for run in runs.values()]
    symbols = ["x" if each else "circle" for each in broken]
    chart.update_traces(
        marker={"symbol": symbols, "size": 10}, name=f"{policy} (x: breaks a limit)"
    )
    style.level(chart, ttft_ms(lru), BASELINE)
    style.slo_level(chart, simulation.setting.slo_s)
    if at_xi in runs:
        style.point(chart, at_xi, ttft_ms(runs[at_xi]), "chosen")
    return chart


def sensitivity_chart(title: str, measure: str, by_policy: Mapping[str, Points]) -> style.Figure:
    """Draw `measure` (ms) over xi (tokens), as points (xi, ms) of each policy."""
    series = []
    for name, known in by_policy.items():
        xi, ms = zip(*known, strict=True)
        hover = f"{name}, xi %{{x:,.0f}} tokens: {measure} %{{y:.4~g}} ms<extra></extra>"
        options = {**style.POINTS, "hovertemplate": hover}
        series.append(style.Series(name, xi, ms, policy_line(name), options))
    return style.lines(title, "xi (tokens)", f"{measure} (ms)", series, shares="")
