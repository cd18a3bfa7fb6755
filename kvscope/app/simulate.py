"""Replays of a trace with several policies at several capacities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.core.kv_size import ModelKv
from kvscope.core.runs import Run, RunSetting
from kvscope.core.trace import Trace
from kvscope.policies.registry import POLICIES
from kvscope.replay.curve import HitCurve

BASELINE = "lru"

_ORDER = {policy.name: number for number, policy in enumerate(POLICIES)}


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
