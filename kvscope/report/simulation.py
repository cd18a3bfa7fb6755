"""What `kvscope simulate` found, gathered for terminal and report, and how runs are named."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.core.runs import Outcome, Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.policies.registry import POLICIES
from kvscope.replay.curve import HitCurve

BASELINE = "lru"
FORESEEING = "*"

_ORDER = {policy.name: number for number, policy in enumerate(POLICIES)}
_DEFAULTS = {
    policy.name: {one.name: one.default for one in policy.parameters} for policy in POLICIES
}


@dataclass(frozen=True, slots=True)
class Simulation:
    """The runs of one setting over one trace, in the order of `ordered`.

    `curve` is LRU's exact hit rate at every capacity, None where it was not asked for.
    """

    trace: Trace
    model: ModelKv | None
    setting: RunSetting
    runs: tuple[Run, ...]
    curve: HitCurve | None = None

    @property
    def capacities(self) -> list[int]:
        """The capacities, in blocks, ascending."""
        return sorted({run.capacity_blocks for run in self.runs})

    def at(self, capacity_blocks: int) -> list[Run]:
        """The runs at one capacity."""
        return [run for run in self.runs if run.capacity_blocks == capacity_blocks]


@dataclass(frozen=True, slots=True)
class Contest:
    """Who is best at one capacity by some measure; None where nobody took part.

    `best` does not know the future, `baseline` is LRU, `optimum` the best of those who do know it.
    """

    best: Run | None
    baseline: Run | None
    optimum: Run | None


def ordered(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Smallest capacity first, then as the registry lists policies, then by parameters."""
    return tuple(
        sorted(
            runs,
            key=lambda run: (
                run.capacity_blocks,
                _ORDER.get(run.policy, len(_ORDER)),
                run.policy,
                run.leaves,
                sorted(run.params.items()),
            ),
        )
    )


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
            f"{one}={run.leaves if one == 'leaves' else value_in_words(one, run.params[one])}"
            for one in differing[run.policy]
        ]
        return " ".join([run.policy + star, *parts])

    return name


def is_plain_lru(run: Run) -> bool:
    """Whether the curve of LRU says what this run does."""
    return run.policy == BASELINE and math.isinf(run.params.get("ttl_s", math.inf))


def changed(run: Run) -> dict[str, float]:
    """The parameters of a run that are not the policy's defaults."""
    defaults = _DEFAULTS.get(run.policy, {})
    return {name: value for name, value in run.params.items() if value != defaults.get(name)}


def value_in_words(name: str, value: float) -> str:
    """A parameter's value in the unit that its name says."""
    if name.endswith("_per_s"):
        return units.format_rate(value)
    if name.endswith("_percentile"):
        return units.format_percentile(value) if value else "off"
    if name.endswith("_share"):
        return units.format_share(value)
    if name.endswith("_tokens"):
        return units.format_count(value)
    return units.format_duration(value) if name.endswith("_s") else f"{value:g}"
