"""A cache's size in every unit that is known: blocks, tokens, GiB for a model, multiples of HBM."""

from __future__ import annotations

from kvscope.app.analyze import Analysis
from kvscope.core import units


def size_columns(analysis: Analysis) -> tuple[str, ...]:
    """The titles of the columns that `size_cells` fills."""
    columns: tuple[str, ...] = ("blocks", "tokens")
    if analysis.model is not None:
        columns = (*columns, f"{analysis.model.name} {analysis.model.dtype}")
        if analysis.hbm_bytes:
            columns = (*columns, f"× {units.format_size(analysis.hbm_bytes)} HBM")
    return columns


def size_cells(analysis: Analysis, blocks: int) -> tuple[str, ...]:
    """`blocks` in each of the units, as text."""
    tokens = blocks * analysis.trace.block_size
    cells: tuple[str, ...] = (units.format_count(blocks), units.format_count(tokens))
    if analysis.model is not None:
        size = analysis.model.bytes_for(tokens)
        cells = (*cells, units.format_size(size))
        if analysis.hbm_bytes:
            cells = (*cells, multiple(size / analysis.hbm_bytes))
    return cells


def multiple(times: float) -> str:
    """How many times over: 0.06×, 6.40×, 24×, 1,200×."""
    return f"{times:,.0f}×" if times >= 10 else f"{times:.2f}×"
