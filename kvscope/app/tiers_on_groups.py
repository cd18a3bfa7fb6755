"""Ways to offload and retention intervals that can be tuned for a hybrid model.

`EngineSettings` refuses what is not simulated, and what vLLM refuses: each is checked with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.lru_retention import RETENTION, LruRetention
from kvscope.replay.policy_options import Variant
from kvscope.vllm_sim.offload_spec import OffloadSpec
from kvscope.vllm_sim.settings import EngineSettings

_DEFAULT_INTERVAL = 0.0  # vLLM's, as `kvscope.policies.lru_retention` counts them


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
