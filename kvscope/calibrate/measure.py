"""Measurements over a grid, in rounds, each in an order of its own: drift meets all cells alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

import numpy as np

from kvscope.calibrate.grid import Cell
from kvscope.errors import EngineError


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured TTFT; `cached_tokens` as the server tells it, None where it does not."""

    ttft_s: float
    cached_tokens: int | None


class Target(Protocol):
    """Something that can be asked how long the first token takes."""

    def read(self, cell: Cell) -> Reading:
        """Measure one cell once, with tokens that nobody has seen. Raises EngineError."""


@dataclass(slots=True)
class Readings:
    """All that was measured.

    `ttft_s` has the times of each cell in the order of measuring; `uncached_prefixes` the cells
    whose prefix the server says was not cached as asked, with what it said; `told` whether it says
    anything of it. `ended` is why it ended before its time, empty where it did not.
    """

    rounds: int
    ttft_s: dict[Cell, list[float]]
    uncached_prefixes: dict[Cell, int] = field(default_factory=dict)
    told: bool = False
    ended: str = ""

    @property
    def count(self) -> int:
        """How many times were measured."""
        return sum(map(len, self.ttft_s.values()))

    @property
    def wanted(self) -> int:
        """How many were to be."""
        return self.rounds * len(self.ttft_s)


def measure(
    target: Target,
    cells: Sequence[Cell],
    *,
    rounds: int,
    seed: int = 0,
    advance: Callable[[int], None],
    stop: Event,
) -> Readings:
    """Measure every cell `rounds` times, after one round over the smallest and the largest.

    What was measured is kept when `stop` is set or the target fails in the middle; EngineError
    where it fails before anything is measured.
    """
    found = Readings(rounds, {cell: [] for cell in cells})
    rng = np.random.default_rng(seed)
    try:
        for cell in (min(cells), max(cells, key=sum), max(cells)):
            if not stop.is_set():
                target.read(cell)  # warms up: kernels compile, memory is touched first
        for _ in range(rounds):
            for at in rng.permutation(len(cells)):
                if stop.is_set():
                    found.ended = "interrupted"
                    return found
                _note(found, cells[at], target.read(cells[at]))
                advance(1)
    except EngineError as error:
        if not found.count:
            raise
        found.ended = str(error)
    return found


def _note(found: Readings, cell: Cell, read: Reading) -> None:
    if read.cached_tokens is not None:
        found.told = True
        if read.cached_tokens != cell.cached:
            found.uncached_prefixes[cell] = read.cached_tokens
            return
    found.ttft_s[cell].append(read.ttft_s)
