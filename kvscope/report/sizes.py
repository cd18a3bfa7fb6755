"""Capacities in the units a reader knows: bytes and multiples of the HBM, or blocks and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.core import units
from kvscope.core.kv_size import ModelKv
from kvscope.report.words import counted


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of capacity, with the number of it that one block is."""

    name: str
    per_block: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """How to write capacities of blocks of `block_size` tokens; in bytes where a model is known."""

    block_size: int
    model: ModelKv | None = None
    hbm_bytes: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The titles of the columns that `cells` fills."""
        if self.model is None:
            return ("blocks", "tokens")
        hbm = (f"× {units.format_size(self.hbm_bytes)} HBM",) if self.hbm_bytes else ()
        return (f"{self.model.name} {self.model.dtype}", *hbm, "blocks")

    def cells(self, blocks: int) -> tuple[str, ...]:
        """Return `blocks` in each of the units, as text."""
        count = units.format_count(blocks)
        if self.model is None:
            return (count, units.format_count(blocks * self.block_size))
        size = self.model.bytes_for(blocks * self.block_size)
        hbm = (multiple(size / self.hbm_bytes),) if self.hbm_bytes else ()
        return (units.format_size(size), *hbm, count)

    def label(self, blocks: int) -> str:
        """Return `20.1 GiB`, or `23,469 blocks` where no model is known."""
        if self.model is None:
            return counted(blocks, "block")
        return units.format_size(self.model.bytes_for(blocks * self.block_size))

    def in_words(self, blocks: int) -> str:
        """Return `20.1 GiB (23,469 blocks)`, or `23,469 blocks` where no model is known."""
        label = self.label(blocks)
        return label if self.model is None else f"{label} ({counted(blocks, 'block')})"

    @property
    def hbm_blocks(self) -> int | None:
        """The blocks that fit into the HBM; None where no model or no HBM is known."""
        if self.model is None or not self.hbm_bytes:
            return None
        return self.model.blocks_in(self.hbm_bytes, self.block_size)

    @property
    def axis(self) -> Unit:
        """The unit of a chart's axis: GiB where a model is known, else blocks."""
        if self.model is None:
            return Unit("blocks", 1.0)
        return Unit("GiB", self.model.bytes_for(self.block_size) / units.GIB)


def multiple(times: float) -> str:
    """Return how many times over: 0.06×, 6.40×, 24×, 1,200×."""
    return f"{times:,.0f}×" if times >= 10 else f"{times:.2f}×"
