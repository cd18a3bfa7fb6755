"""What each tier of a cache gave, and what waiting for it cost."""

from __future__ import annotations

from kvscope.app.simulate import Simulation
from kvscope.core import units
from kvscope.core.runs import Run, TierOutcome
from kvscope.report.run_names import names
from kvscope.report.section import Section, Table
from kvscope.report.sections.run_cells import NONE, in_ms, size_cells, size_columns


def tier_sections(found: Simulation) -> list[Section]:
    """A row for each tier of each run; nothing where the cache has one tier."""
    name = names(found.runs)
    rows = tuple(
        (name(run), tier.name, *_sizes(found, tier), *_cells(run, tier))
        for run in found.runs
        for tier in run.tiers
    )
    if not rows:
        return []
    columns = (
        "policy",
        "tier",
        *_without_tokens(size_columns(found.model)),
        "hit tokens",
        "hit rate",
        "transfer",
        "evictions",
        "demotions",
    )
    note = "transfer: what a request waits for this tier's blocks on average, part of its TTFT"
    return [Section("Tiers", tables=(Table("Hits by tier", columns, rows, note),))]


def _sizes(found: Simulation, tier: TierOutcome) -> tuple[str, ...]:
    sizes = size_cells(tier.capacity_blocks, found.trace.block_size, found.model)
    return _without_tokens(sizes)


def _without_tokens(cells: tuple[str, ...]) -> tuple[str, ...]:
    return cells[:1] + cells[2:]  # the table is wide enough


def _cells(run: Run, tier: TierOutcome) -> tuple[str, ...]:
    requests = run.outcome.requests
    return (
        units.format_count(tier.hit_tokens),
        units.format_share(tier.token_hit_rate, 2),
        in_ms(tier.transfer_ms / requests) if requests and tier.transfer_ms else NONE,
        units.format_count(tier.evictions),
        units.format_count(tier.demotions),
    )
