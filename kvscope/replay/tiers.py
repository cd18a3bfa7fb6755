"""Tiers below an engine's pool: hits by tier, the wait for their reads, and their outcomes."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Float64s, Int32s
from kvscope.core.errors import UsageError
from kvscope.core.runs import TierOutcome
from kvscope.replay.metrics import ServedRequests
from kvscope.replay.tier_spec import Tier


class TieredReplay(Struct, frozen=True):
    """Hits, evictions and reads of R requests in T tiers, the pool first.

    `policies` has the eviction policy of each tier. `tier_hits` (R x T) are the leading blocks that
    each request took from each tier; their sum obeys the last-token rule. `evictions` are the
    blocks evicted from each tier, chunks from vLLM's CPU tier. `tier_reads` are the blocks copied
    for the hits (None: as many): others for a hybrid model, as its blocks hold one group of layers.
    """

    tiers: tuple[Tier, ...]
    policies: tuple[str, ...]
    tier_hits: Int32s
    evictions: tuple[int, ...]
    tier_reads: Int32s | None = None

    @property
    def read_blocks(self) -> Int32s:
        """The blocks copied from each tier for each request (R x T)."""
        return self.tier_hits if self.tier_reads is None else self.tier_reads

    @property
    def hit_blocks(self) -> Int32s:
        """The leading blocks that each request hits, in all tiers together (R)."""
        blocks: Int32s = self.tier_hits.sum(axis=1, dtype=np.int32)
        return blocks


def transfer_s(done: TieredReplay, block_bytes: int | None) -> Float64s:
    """Return the seconds that each request waits for blocks from slower tiers (R entries).

    Each tier with hits adds its latency once per request, and the bytes over its bandwidth; prefill
    follows all reads of a request. Requests do not slow each other down.
    Raises UsageError if a tier's bandwidth matters and `block_bytes` is None.
    """
    waits = np.zeros(len(done.tier_hits), dtype=np.float64)
    for tier, hits in zip(done.tiers, done.read_blocks.T, strict=True):
        waits += _waits_s(tier, hits, block_bytes)
    return waits


def _waits_s(tier: Tier, hits: Int32s, block_bytes: int | None) -> Float64s:
    waits: Float64s = np.where(hits > 0, tier.read.latency_s, 0.0)
    if not math.isinf(tier.read.bytes_per_s):
        waits += hits * read_s(tier, 1, block_bytes)
    return waits


def read_s(tier: Tier, blocks: int, block_bytes: int | None) -> float:
    """Return the seconds to read the bytes of `blocks` blocks, without the tier's latency.

    Raises UsageError if the tier's bandwidth matters and `block_bytes` is None.
    """
    return _copy_s(tier, tier.read.bytes_per_s, blocks, block_bytes)


def write_s(tier: Tier, blocks: int, block_bytes: int | None) -> float:
    """Return the seconds to write the bytes of `blocks` blocks; raises as `read_s` does."""
    return _copy_s(tier, tier.write_bytes_per_s, blocks, block_bytes)


def _copy_s(tier: Tier, bytes_per_s: float, blocks: int, block_bytes: int | None) -> float:
    if math.isinf(bytes_per_s):
        return 0.0
    if block_bytes is None:
        raise UsageError(
            "what a copy takes depends on the size of a block",
            where=f"tier {tier.name}",
            remedy="name a model with --model",
        )
    return blocks * block_bytes / bytes_per_s


def tier_outcomes(
    done: TieredReplay, served: ServedRequests, block_bytes: int | None
) -> tuple[TierOutcome, ...]:
    """Return each tier's hits and waits (over the counted requests), and evictions (over all)."""
    prompts, counted = served.prompts, slice(served.first, None)
    inputs = prompts.input_tokens.astype(np.int64)
    total_tokens = int(inputs[counted].sum())
    above = np.zeros_like(inputs)
    blocks = np.zeros_like(inputs)
    outcomes = []
    for at, tier in enumerate(done.tiers):
        hits, reads = done.tier_hits[:, at], done.read_blocks[:, at]
        blocks += hits
        down_to = np.minimum(blocks * prompts.block_size, inputs)
        hit_blocks = int(hits[counted].sum(dtype=np.int64))
        hit_tokens = int((down_to - above)[counted].sum())
        above = down_to
        outcomes.append(
            TierOutcome(
                name=tier.name,
                policy=done.policies[at],
                capacity_blocks=tier.capacity_blocks,
                read_latency_ms=tier.read.latency_s * 1e3,
                read_bytes_per_s=_finite(tier.read.bytes_per_s),
                hit_blocks=hit_blocks,
                hit_tokens=hit_tokens,
                token_hit_rate=hit_tokens / total_tokens if total_tokens else 0.0,
                transfer_ms=float(_waits_s(tier, reads[counted], block_bytes).sum()) * 1e3,
                read_bytes=(
                    None
                    if block_bytes is None
                    else int(reads[counted].sum(dtype=np.int64)) * block_bytes
                ),
                evictions=done.evictions[at],
            )
        )
    return tuple(outcomes)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
