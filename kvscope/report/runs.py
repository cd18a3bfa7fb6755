"""Runs side by side: their names, styles and columns, and the best at a capacity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from kvscope.app.requests import BASELINE
from kvscope.core.runs import Run, hit_rate
from kvscope.policies.registry import POLICIES
from kvscope.replay.policy_options import FORESEEING, format_value
from kvscope.report import style
from kvscope.report.section import Columns
from kvscope.report.words import MILLISECONDS, count, share, significant, time_unit

ORACLE_NOTE = "* oracle: knows the future, cannot be run; belady is the optimum for hits alone"
OPTIMUM, BEST_KNOWN = "optimum", "best known"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "triangle-down")

# So their colours are their own.
_USUAL = (BASELINE, "gittins", "tlru", "threshold-lru", "wa", "belady", "tail-belady")


class Contest(Struct, frozen=True):
    """The best runs at one capacity by some measure; None where no run qualifies.

    `best` is the best policy that an engine can run, `baseline` is LRU, and `best_known` the best
    of all runs if an oracle is among them.
    """

    best: Run | None
    baseline: Run | None
    best_known: Run | None


def contest(runs: Sequence[Run], measure: Callable[[Run], float]) -> Contest:
    """Return the runs with the lowest `measure`; the first one if several are equal."""

    def lowest(candidates: list[Run]) -> Run | None:
        return min(candidates, key=measure, default=None)

    known = sorted(runs, key=lambda run: not run.hindsight)  # of equal ones an oracle
    return Contest(
        best=lowest([run for run in runs if not run.hindsight]),
        baseline=lowest([run for run in runs if run.policy == BASELINE]),
        best_known=lowest(known) if any(run.hindsight for run in runs) else None,
    )


def rate(run: Run) -> float:
    """Return a run's hit rate (0-1), in the weight of its setting's hit definition."""
    return hit_rate(run.setting, run.outcome)


def names(runs: Sequence[Run]) -> Callable[[Run], str]:
    """Return a function that names a run: its policy, and the parameters that tell its runs apart.

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


def run_name(run: Run) -> str:
    """Return a run's policy with the parameters that are not its defaults."""
    kinds = {policy.name: policy.parameters for policy in POLICIES}
    usual = {each.name: each.default for each in kinds.get(run.policy, ())}
    params = {name: value for name, value in run.params.items() if value != usual.get(name)}
    return " ".join(
        [run.policy, *(f"{name}={format_value(name, params[name])}" for name in params)]
    )


def is_plain_lru(run: Run) -> bool:
    """Return whether the run is LRU without a TTL, so that LRU's exact curve covers it."""
    return run.policy == BASELINE and math.isinf(run.params.get("ttl_s", math.inf))


def policy_line(policy: str) -> dict[str, object]:
    """Return colour and dash of a policy, the same in every chart; only oracles are dashed."""
    hindsight = any(known.name == policy and known.hindsight for known in POLICIES)
    order = list(dict.fromkeys([*_USUAL, *(known.name for known in POLICIES)]))
    number = order.index(policy) if policy in order else len(order)
    rounds = number // len(style.SERIES)
    dashes = ("dash", "longdash") if hindsight else ("solid", "dot", "dashdot")
    colour = style.SERIES[number % len(style.SERIES)]
    width = 4 if policy == BASELINE else 2  # others lie above it, and it is still seen
    return {"color": colour, "dash": dashes[rounds % len(dashes)], "width": width}


def run_columns(runs: Sequence[Run]) -> Columns:
    """Return the columns of figures for a table of runs, which must all have the same setting.

    Figures: hit rate (with its error, if estimated), TTFT on an idle engine (ms), p95 TTFT queued
    (in a unit that suits it), TEL and requests over the SLO (with an SLO), evictions, and on
    engines preempted and rejected requests.
    """
    setting = runs[0].setting

    def queued_s(run: Run) -> float | None:
        times = run.outcome.queued_ttft_ms
        return None if times is None else times.p95 / 1e3

    queued = time_unit(map(queued_s, runs))
    unit = "" if queued is MILLISECONDS else f" ({queued.name})"

    columns: dict[str, Callable[[Run], str]] = {"hit rate": lambda run: share(rate(run))}
    if not setting.exact:
        columns["±"] = lambda run: share(run.hit_rate_error or 0.0)
    columns |= {
        "TTFT p50 (ms)": lambda run: significant(run.outcome.ttft_ms.p50),
        "p95": lambda run: significant(run.outcome.ttft_ms.p95),
        "p99": lambda run: significant(run.outcome.ttft_ms.p99),
        f"queued p95{unit}": lambda run: queued.cell(queued_s(run)),
    }
    if setting.slo_s is not None:
        columns |= {
            "TEL (s)": lambda run: significant((run.outcome.tel_ms or 0.0) / 1e3),
            "over SLO": lambda run: count(run.outcome.violations or 0),
        }
    columns["evictions"] = lambda run: count(run.evictions)
    if setting.holds_running:
        columns |= {
            "preempted": lambda run: count(run.preemptions or 0),
            "rejected": lambda run: count(run.turned_away or 0),
        }
    return columns
