"""What a replay over tiers means: the wait for reads, and each tier's share of the hits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import UsageError
from kvscope.facts import Outcome, TierMode, TierOutcome
from kvscope.simulate.summary import Served, serve, summarize
from kvscope.simulate.tier_spec import Tier
from kvscope.simulate.tiers import TieredReplay, replay_tiers

if TYPE_CHECKING:
    from kvscope.simulate.workload import Workload


@dataclass(frozen=True, slots=True)
class TieredRun:
    """Tiers over one trace, and what came of them; `served` has it by request."""

    mode: TierMode
    tiers: tuple[TierOutcome, ...]
    outcome: Outcome
    served: Served


def run_tiers(
    workload: Workload, tiers: Sequence[Tier], mode: TierMode, *, block_bytes: int | None = None
) -> TieredRun:
    """Replay and measure tiers over the workload's trace, under its setting.

    `block_bytes` is the KV cache of one block. Raises UsageError where it is missing though a tier
    takes time to read, for samples and flat caches, and where `replay_tiers` does.
    """
    setting = workload.setting
    for wrong, what, remedy in (
        (workload.anchor is not None, "tiers are not replayed on a sample", "leave out --sample"),
        (setting.definition.flat, "a flat cache has no tiers", "take another definition"),
    ):
        if wrong:
            raise UsageError(what, where="--tiers", remedy=remedy)
    done = replay_tiers(workload.traffic, tiers, mode, past=workload.history)
    served = serve(
        workload.prompts,
        setting.definition,
        done.hit_blocks,
        workload.profile,
        rate_scale=setting.rate_scale,
        transfer_s=transfer_s(done, block_bytes),
    )
    outcome = summarize(served, setting.slo_s)
    return TieredRun(mode, tier_outcomes(done, served, block_bytes), outcome, served)


def transfer_s(done: TieredReplay, block_bytes: int | None) -> NDArray[np.float64]:
    """What each request waits for blocks from slower tiers, in seconds (R entries).

    A tier that gives something takes its latency once a request, then its bandwidth; reads of one
    request follow each other and its prefill follows them. Requests do not slow each other down.
    Raises UsageError if a tier's bandwidth matters and `block_bytes` is None.
    """
    waits = np.zeros(len(done.tier_hits), dtype=np.float64)
    for tier, hits in zip(done.tiers, done.tier_hits.T, strict=True):
        waits += _waits_s(tier, hits, block_bytes)
    return waits


def _waits_s(tier: Tier, hits: NDArray[np.int32], block_bytes: int | None) -> NDArray[np.float64]:
    """What each request waits for the blocks that it hits in one tier."""
    waits: NDArray[np.float64] = np.where(hits > 0, tier.read.latency_s, 0.0)
    if math.isinf(tier.read.bytes_per_s):
        return waits
    if block_bytes is None:
        raise UsageError(
            "what a read takes depends on the size of a block",
            where=f"tier {tier.name}",
            remedy="name a model with --model",
        )
    waits += hits * (block_bytes / tier.read.bytes_per_s)
    return waits


def tier_outcomes(
    done: TieredReplay, served: Served, block_bytes: int | None
) -> tuple[TierOutcome, ...]:
    """What each tier gave to the counted requests of `served`, which `done` was replayed for."""
    prompts, counted = served.prompts, slice(served.first, None)
    inputs = prompts.input_tokens.astype(np.int64)
    total_tokens = int(inputs[counted].sum())
    above = np.zeros_like(inputs)
    blocks = np.zeros_like(inputs)
    found = []
    for at, tier in enumerate(done.tiers):
        hits = done.tier_hits[:, at]
        blocks += hits
        down_to = np.minimum(blocks * prompts.block_size, inputs)
        hit_blocks = int(hits[counted].sum(dtype=np.int64))
        hit_tokens = int((down_to - above)[counted].sum())
        above = down_to
        found.append(
            TierOutcome(
                name=tier.name,
                policy=tier.policy.name,
                capacity_blocks=tier.capacity_blocks,
                ttl_s=_finite(tier.ttl_s),
                read_latency_ms=tier.read.latency_s * 1e3,
                read_bytes_per_s=_finite(tier.read.bytes_per_s),
                hit_blocks=hit_blocks,
                hit_tokens=hit_tokens,
                token_hit_rate=hit_tokens / total_tokens if total_tokens else 0.0,
                transfer_ms=float(_waits_s(tier, hits[counted], block_bytes).sum()) * 1e3,
                read_bytes=None if block_bytes is None else hit_blocks * block_bytes,
                evictions=done.evictions[at],
                demotions=done.demotions[at],
            )
        )
    return tuple(found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
