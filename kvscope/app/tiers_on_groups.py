"""Ways to offload, options and retention intervals that can be tuned for a hybrid model.

`EngineSettings` refuses what is not simulated, and what vLLM refuses: each is checked with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.lru_retention import RETENTION, LruRetention
from kvscope.replay.policy_options import Variant
from kvscope.tuning.tiers import Options
from kvscope.vllm_sim.offload_engines import Offloading
from kvscope.vllm_sim.offload_spec import OffloadSpec
from kvscope.vllm_sim.settings import EngineSettings, StorageSettings

_DEFAULT_INTERVAL = 0.0  # vLLM's, as `kvscope.policies.lru_retention` counts them


class OnGroups(Struct, frozen=True):
    """The groups of a hybrid model's layers, None for other models, for which all is allowed."""

    groups: KvGroups | None

    def page_bytes(self, block_bytes: int, trace_block: int) -> int:
        """Return the bytes of a block of the pool, by those of a block of `trace_block` tokens."""
        if self.groups is None:
            return block_bytes
        return block_bytes * max(1, self.groups.block_tokens // trace_block)

    def require(self, spec: Offloading, *, files: bool) -> None:
        """Raise UsageError for a way to offload that is refused, with `files` below or without."""
        error = self._refusal(spec, files=files)
        if error is None:
            return
        where, remedy = f"--offload {spec.text}", error.remedy
        if files and self._refusal(spec) is None:
            where = "--tier-sizes"
        elif isinstance(spec, OffloadSpec) and self._refusal(OffloadSpec(spec.release)):
            where, remedy = "--tiers", (error.remedy or "").replace("--offload", "--tiers")
        raise UsageError(error.what, where=where, remedy=remedy) from error

    def options(self, spec: Offloading, options: Options) -> Options:
        """Return the options of a way to offload with the values that are not refused."""
        able = (
            (
                name,
                tuple(
                    value
                    for value in values
                    if not self._refusal(replace(spec, **{name: value}))  # type: ignore[type-var]
                ),
            )
            for name, values in options
        )
        return tuple((name, values) for name, values in able if values)

    def intervals(
        self, ways: Iterable[Offloading], variants: Iterable[Variant]
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

    def _refusal(
        self, spec: Offloading, interval: float = _DEFAULT_INTERVAL, *, files: bool = False
    ) -> UsageError | None:
        """Return why an engine with these groups and a way to offload is refused, None if not."""
        if self.groups is None:
            return None
        below: dict[str, Any] = {"storage": StorageSettings()} if files else {}
        try:
            offload = spec.settings(1, **below)
            EngineSettings(1, groups=self.groups.retaining(interval), offload=offload)
        except UsageError as error:
            return error
        return None
