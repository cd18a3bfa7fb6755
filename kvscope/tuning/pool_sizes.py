"""The recommended fleet of `kvscope fleet` with shared pools of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.fleet.outcome import FleetOutcome
from kvscope.fleet.replay import PoolUse
from kvscope.fleet.sweep import FleetRun, FleetSweep
from kvscope.tuning.tiers import TierCandidate
from kvscope.vllm_sim import EngineSettings
from kvscope.vllm_sim.settings import NO_LIMIT

_PARTS = (8, 4, 2)  # of the pool's size, replayed too


class PoolSize(Struct, frozen=True):
    """The recommended fleet with a shared pool of another size; without a pool if `gib` is 0.

    `gib` is null for an unlimited pool. `used_gib` was in use at the end, `evicted_gib` was
    evicted, and `refused_gib` not stored for lack of room, over the whole replay.
    """

    DOCUMENT: ClassVar[str] = (
        "gib used_gib evicted_gib refused_gib meets=outcome.meets hit_rate=outcome.taken"
        " from_files=outcome.from_files ttft_at_percentile_ms=outcome.target_ttft_s"
    )
    gib: float | None
    used_gib: float
    evicted_gib: float
    refused_gib: float
    outcome: FleetOutcome

    @classmethod
    def of(cls, gib: float | None, outcome: FleetOutcome, chunk_gib: float) -> Self:
        """Return a pool size with the pool's use; `chunk_gib` is the size of an offload chunk."""
        use = outcome.pool or PoolUse(0, 0, 0)
        counts = use.held, use.evictions, use.refused
        used, evicted, refused = (count * chunk_gib for count in counts)
        return cls(gib, used, evicted, refused, outcome)


def pool_sizes(
    sweep: FleetSweep,
    engine: EngineSettings,
    answer: FleetRun,
    tier: TierCandidate,
    note: Callable[[str], None],
) -> tuple[PoolSize, ...]:
    """Return the fleet of `answer` with no shared pool, smaller ones, its own, an unlimited one.

    The unlimited pool is added only if the fleet's own was full. All replays use the seed of
    `answer`. Sizes with which requests never start are left out, with a note.
    """
    offload = engine.offload
    storage = None if offload is None else offload.storage
    assert offload is not None and storage is not None  # noqa: S101, PT018  (of a shared pool)
    whole = storage.capacity_chunks
    chunk_gib = tier.files_bytes // whole / 2**30

    def above(chunks: int, gib: float | None) -> Iterator[PoolSize]:
        files = replace(storage, capacity_chunks=chunks) if chunks else None
        other = replace(engine, offload=replace(offload, storage=files))
        try:
            outcome = sweep.outcome(sweep.replay(answer.fleet, answer.seed, other))
        except UsageError as error:
            note(f"a pool of {'no limit' if gib is None else f'{gib:.3g} GiB'}: {error}")
        else:
            yield PoolSize.of(gib, outcome, chunk_gib)

    parts = sorted({whole // part for part in _PARTS} - {0})
    sizes = [(0, 0.0), *((part, tier.files_gib * part / whole) for part in parts)]
    rows = [row for size in sizes for row in above(*size)]
    rows.append(stated := PoolSize.of(tier.files_gib, answer.outcome, chunk_gib))
    if stated.evicted_gib or stated.refused_gib:
        rows.extend(above(NO_LIMIT, None))
    return tuple(rows)
