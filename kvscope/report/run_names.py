"""Runs side by side: how each is called, and which is best at a capacity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvscope.app.requests import BASELINE
from kvscope.core.runs import Outcome, Run, RunSetting
from kvscope.replay.policy_options import FORESEEING, format_value


@dataclass(frozen=True, slots=True)
class Contest:
    """Who is best at one capacity by some measure; None where nobody took part.

    `best` does not know the future, `baseline` is LRU, `optimum` the best of those who do know it.
    """

    best: Run | None
    baseline: Run | None
    optimum: Run | None


def contest(runs: Sequence[Run], measure: Callable[[Run], float]) -> Contest:
    """The runs with the lowest `measure`; of equal ones the first."""

    def lowest(candidates: list[Run]) -> Run | None:
        return min(candidates, key=measure, default=None)

    return Contest(
        best=lowest([run for run in runs if not run.hindsight]),
        baseline=lowest([run for run in runs if run.policy == BASELINE]),
        optimum=lowest([run for run in runs if run.hindsight]),
    )


def hit_rate(setting: RunSetting, outcome: Outcome) -> float:
    """The hit rate in the weight of the setting's definition."""
    return {
        "token": outcome.token_hit_rate,
        "block": outcome.block_hit_rate,
        "request": outcome.request_hit_rate,
    }[setting.definition.weight]


def names(runs: Sequence[Run]) -> Callable[[Run], str]:
    """How to call each of these runs: its policy, and those parameters in which its likes differ.

    A star marks those that know the future.
    """
    differing: dict[str, list[str]] = {}
    for run in runs:
        if run.policy not in differing:
            likes = [other for other in runs if other.policy == run.policy]
            differing[run.policy] = [
                name for name in run.params if len({other.params.get(name) for other in likes}) > 1
            ] + (["leaves"] if len({other.leaves for other in likes}) > 1 else [])

    def name(run: Run) -> str:
        star = FORESEEING if run.hindsight else ""
        parts = [
            f"{one}={run.leaves if one == 'leaves' else format_value(one, run.params[one])}"
            for one in differing[run.policy]
        ]
        return " ".join([run.policy + star, *parts])

    return name


def is_plain_lru(run: Run) -> bool:
    """Whether the curve of LRU says what this run does."""
    return run.policy == BASELINE and math.isinf(run.params.get("ttl_s", math.inf))
