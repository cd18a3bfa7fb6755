"""Runs side by side: how each is called, drawn and written, and which is best at a capacity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvscope.app.requests import BASELINE
from kvscope.core import units
from kvscope.core.runs import Outcome, Run, RunSetting
from kvscope.policies.registry import POLICIES
from kvscope.replay.policy_options import CONTENDERS, FORESEEING, format_value
from kvscope.report import style
from kvscope.report.words import NONE, significant

ORACLE_NOTE = "* oracle (offline optimum): knows the future, cannot be run"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "triangle-down")

_USUAL = (BASELINE, *CONTENDERS.split(","))  # so they get solid lines


@dataclass(frozen=True, slots=True)
class Contest:
    """The best runs at one capacity by some measure; None where there is no such run.

    `best` is the best policy that an engine can run, `baseline` is LRU, `optimum` the best oracle.
    """

    best: Run | None
    baseline: Run | None
    optimum: Run | None


def contest(runs: Sequence[Run], measure: Callable[[Run], float]) -> Contest:
    """Return the runs with the lowest `measure`; of equal ones the first."""

    def lowest(candidates: list[Run]) -> Run | None:
        return min(candidates, key=measure, default=None)

    return Contest(
        best=lowest([run for run in runs if not run.hindsight]),
        baseline=lowest([run for run in runs if run.policy == BASELINE]),
        optimum=lowest([run for run in runs if run.hindsight]),
    )


def hit_rate(setting: RunSetting, outcome: Outcome) -> float:
    """Return the hit rate in the weight of the setting's definition."""
    return {
        "token": outcome.token_hit_rate,
        "block": outcome.block_hit_rate,
        "request": outcome.request_hit_rate,
    }[setting.definition.weight]


def names(runs: Sequence[Run]) -> Callable[[Run], str]:
    """Return how to call each run: its policy, and the parameters in which its runs differ.

    A star marks oracles.
    """
    differing: dict[str, list[str]] = {}
    for run in runs:
        if run.policy not in differing:
            alike = [other for other in runs if other.policy == run.policy]
            differing[run.policy] = [
                name for name in run.params if len({other.params.get(name) for other in alike}) > 1
            ] + (["leaves"] if len({other.leaves for other in alike}) > 1 else [])

    def name(run: Run) -> str:
        star = FORESEEING if run.hindsight else ""
        parts = [
            f"{param}={run.leaves if param == 'leaves' else format_value(param, run.params[param])}"
            for param in differing[run.policy]
        ]
        return " ".join([run.policy + star, *parts])

    return name


def is_plain_lru(run: Run) -> bool:
    """Return whether LRU's exact curve says what this run does."""
    return run.policy == BASELINE and math.isinf(run.params.get("ttl_s", math.inf))


def policy_line(policy: str) -> dict[str, object]:
    """Return colour and dash of a policy, the same in every chart; only oracles are dashed."""
    hindsight = any(known.name == policy and known.hindsight for known in POLICIES)
    alike = [known.name for known in POLICIES if known.hindsight == hindsight]
    order = [name for name in _USUAL if name in alike]
    order += [name for name in alike if name not in order]
    number = order.index(policy) if policy in order else len(order)
    rounds = number // len(style.SERIES)
    dashes = ("dash", "longdash") if hindsight else ("solid", "dot", "dashdot")
    colour = style.SERIES[number % len(style.SERIES)]
    return {"color": colour, "dash": dashes[rounds % len(dashes)], "width": 2}


def run_columns(setting: RunSetting) -> tuple[str, ...]:
    """Return the titles of the columns that a run's name and `run_cells` fill."""
    columns = ["policy", "hit rate"]
    if not setting.exact:
        columns.append("±")
    columns += ["TTFT p50 (ms)", "p95", "p99", "queued p95"]
    if setting.slo_s is not None:
        columns += ["TEL (s)", "over SLO"]
    columns.append("evictions")
    if setting.capacity_model == "engine":
        columns += ["preempted", "rejected"]
    return tuple(columns)


def run_cells(run: Run) -> tuple[str, ...]:
    """Return a run's figures as text."""
    outcome, setting = run.outcome, run.setting
    cells = [units.format_share(hit_rate(setting, outcome))]
    if not setting.exact:
        cells.append(units.format_share(run.hit_rate_error or 0.0))
    times, queued = outcome.ttft_ms, outcome.queued_ttft_ms
    cells += [significant(value) for value in (times.p50, times.p95, times.p99)]
    cells.append(NONE if queued is None else significant(queued.p95))
    if setting.slo_s is not None:
        cells += [
            significant((outcome.tel_ms or 0.0) / 1e3),
            units.format_count(outcome.violations or 0),
        ]
    cells.append(units.format_count(run.evictions))
    if setting.capacity_model == "engine":
        cells += [
            units.format_count(run.preemptions or 0),
            units.format_count(run.turned_away or 0),
        ]
    return tuple(cells)


def ms_in_words(milliseconds: float) -> str:
    """Return milliseconds in the unit that suits them: 392 ms, 1.29 s."""
    return units.duration_in_words(milliseconds / 1e3)


def difference(value: float, write: Callable[[float], str] = significant) -> str:
    """Return a difference with its sign, a plain 0 where it rounds to nothing."""
    size = write(abs(value))
    if size == write(0.0):
        return size
    return f"{'-' if value < 0 else '+'}{size}"
