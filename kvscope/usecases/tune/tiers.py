"""Memory to compare below the pool: ways to offload, sizes, and a hybrid model's intervals.

`EngineSettings` refuses what is not simulated, and what vLLM refuses: each is checked with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from kvscope.app.values import TierSize
from kvscope.core.errors import UsageError
from kvscope.core.trace import Prompts, Trace
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.lru import RETENTION, LruRetention, retaining
from kvscope.replay.policy_options import VLLM, Variant
from kvscope.tuning.tiers import Options, TierCandidate, TierOffer, sizes_to_compare, tier_prices
from kvscope.vllm_sim.offload_spec import OffloadSpec, own_offload
from kvscope.vllm_sim.settings import EngineSettings

if TYPE_CHECKING:
    from kvscope.deployment.deployment import ResolvedDeployment
    from kvscope.usecases.tune import TuneRequest

_DEFAULT_INTERVAL = 0.0  # vLLM's, as `kvscope.policies.lru` counts them
_POOLS, _ALL_POOLS = (0.5, 1.0, 2.0, 4.0), (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TIER_ROWS = 6
_TIER_OPTIONS: Options = (
    ("offload_prompt_only", (False,)),
    ("store_threshold", (2,)),
    ("eviction_policy", ("arc",)),
)
"""The options of a CPU tier that are searched, first what is stored, then what leaves."""


def tier_offer(
    trace: Trace,
    prompts: Prompts,
    request: TuneRequest,
    where: ResolvedDeployment,
    kv_groups: str,
) -> TierOffer | None:
    """Return the memory to compare below the deployment's pools; None where none is simulated.

    Raises UsageError for ways to offload that are refused, and for sizes that hold no chunk.
    """
    model, asked = request.model or where.model, request.tiers
    if model is None:
        return None
    if asked is None and (where.engine.name != VLLM or model.hybrid):
        return None
    groups = KvGroups.parse(kv_groups) if kv_groups else None
    block_bytes = model.kv_bytes_per_token(where.tp) * where.tp * trace.block_size
    pool_bytes = where.pool.in_blocks_of(trace.block_size).blocks * block_bytes
    most_bytes = len(prompts.block_parent) * block_bytes * (len(groups.groups) if groups else 1)
    known, hour = tier_prices(), where.price_of(where.tp)
    if asked is None:
        sizes = sizes_to_compare(pool_bytes, most_bytes, _POOLS)
        return TierOffer(
            candidates=tuple(TierCandidate(own_offload(where.engine), size) for size in sizes),
            block_bytes=block_bytes,
            gpus=where.tp,
            prices={"dram": known.dram, "ssd": known.ssd},
            replica_hour=hour,
        )
    stated = asked.sizes or tuple(
        TierSize(size) for size in sizes_to_compare(pool_bytes, most_bytes, _ALL_POOLS)
    )
    files, allowed = any(each.files_bytes for each in stated), OnGroups(groups)
    ways = [OffloadSpec.parse(text, files=files) for text in asked.offload]
    for spec in ways:
        allowed.require(spec)
    return TierOffer(
        candidates=_candidates(ways, stated, allowed.page_bytes(block_bytes, trace.block_size)),
        block_bytes=block_bytes,
        gpus=where.tp,
        prices=asked.prices,
        replica_hour=hour,
        options={text.strip(): _TIER_OPTIONS for text in asked.offload if ":" not in text},
        policies=tuple(
            retaining(interval) for interval in allowed.intervals(ways, request.variants)
        ),
        groups=groups,
        rows=_TIER_ROWS,
        chooses=True,
    )


def _candidates(
    ways: Sequence[OffloadSpec], sizes: tuple[TierSize, ...], page_bytes: int
) -> tuple[TierCandidate, ...]:
    """Return each way to offload with each size, an SSD's CPU memory also without the SSD.

    `page_bytes` are those of a block of the engine.
    """
    alone = [each._replace(files_bytes=0) for each in sizes if each.files_bytes]
    every = dict.fromkeys([*sizes, *alone])
    candidates = dict.fromkeys(TierCandidate(spec.text, *size) for spec in ways for size in every)
    for each in candidates:
        each.require_chunk(page_bytes, "--tier-sizes")
    return tuple(candidates)


class OnGroups(Struct, frozen=True):
    """The groups of a hybrid model's layers, None for other models, for which all is allowed."""

    groups: KvGroups | None

    def page_bytes(self, block_bytes: int, trace_block: int) -> int:
        """Return the bytes of a block of the pool, by those of a block of `trace_block` tokens."""
        if self.groups is None:
            return block_bytes
        return block_bytes * max(1, self.groups.block_tokens // trace_block)

    def require(self, spec: OffloadSpec) -> None:
        """Raise UsageError for a way to offload that is refused."""
        error = self._refusal(spec)
        if error is None:
            return
        where, remedy = f"--offload {spec.text}", error.remedy
        if spec.files and self._refusal(replace(spec, files=False)) is None:
            where = "--tier-sizes"
        elif self._refusal(OffloadSpec(spec.release)):
            where, remedy = "--tiers", (error.remedy or "").replace("--offload", "--tiers")
        raise UsageError(error.what, where=where, remedy=remedy) from error

    def intervals(
        self, ways: Iterable[OffloadSpec], variants: Iterable[Variant]
    ) -> tuple[float, ...]:
        """Return the retention intervals that `variants` name, or else all to try, but the default.

        Raises UsageError for one that is named and refused.
        """
        if self.groups is None or not self.groups.sparse:
            return ()
        intervals: set[float] = set()
        for variant in variants:
            named = RETENTION in variant.given
            usual = next(each for each in LruRetention.parameters if each.name == RETENTION)
            for value in (variant.given[RETENTION],) if named else usual.search:
                tokens = self.groups.retaining(value).retention_tokens
                interval = math.inf if tokens is None else float(tokens)
                errors = filter(None, (self._refusal(way, interval) for way in ways))
                if (error := next(errors, None)) is None:
                    intervals.add(interval)
                elif named:
                    raise error
        return tuple(sorted(intervals - {_DEFAULT_INTERVAL}))

    def _refusal(self, spec: OffloadSpec, interval: float = _DEFAULT_INTERVAL) -> UsageError | None:
        """Return why an engine with these groups and a way to offload is refused, None if not."""
        if self.groups is None:
            return None
        try:
            EngineSettings(1, groups=self.groups.retaining(interval), offload=spec.settings(1))
        except UsageError as error:
            return error
        return None
