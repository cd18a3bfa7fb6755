"""What a calibration found: facts for the terminal, JSON and the profile's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvscope.calibrate.fit import CellFit, ProfileFit
from kvscope.calibrate.grid import Cell
from kvscope.simulate.latency import LatencyProfile, write_profile


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: `engine` is vLLM, torch, or `server` for one that was running already."""

    engine: str
    version: str | None
    device: str | None
    model: str
    flags: tuple[str, ...] = ()

    @property
    def in_words(self) -> str:
        """All of it that is known."""
        version = f"{self.engine} {self.version}" if self.version else self.engine
        return ", ".join(part for part in (self.model, version, self.device) if part)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile, the fit behind it, and how the measuring went.

    `readings` of `wanted` measurements were made; `ended` is why not all, or empty. `checked`:
    whether the server told that prefixes were cached as asked; `not_cached` are cells in which they
    were not, and which are left out, with the tokens that were.
    """

    measured: Measured
    profile: LatencyProfile
    fit: ProfileFit
    readings: int
    wanted: int
    checked: bool
    not_cached: tuple[tuple[Cell, int], ...] = ()
    ended: str = ""


def write(path: Path, found: Calibration) -> None:
    """Write the profile to `path`, what it was fitted to as comments below it."""
    write_profile(path, found.profile)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n# uncached cached: measured (median ms), fitted\n")
        for cell in found.fit.cells:
            file.write(_line(cell))


def _line(cell: CellFit) -> str:
    return (
        f"# {cell.uncached} {cell.cached}: {cell.median_s * 1e3:.3f}, {cell.fitted_s * 1e3:.3f}"
        f" ({cell.off:+.1%}), n = {cell.n}\n"
    )
