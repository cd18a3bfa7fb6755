"""Policies for vLLM's CPU tier, by its own hook: vLLM's LRU, with kvscope choosing what leaves.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"cpu_bytes_to_use": N, "eviction_policy": "TLruCachePolicy",
      "cache_policy_module_path": "kvscope.vllm_plugin"}}'

vLLM calls a hook of 0.32 or of 0.33; calls that 0.32 lacks are never made there. All is kept in
vLLM's own LRU as well, so whatever fails, that takes over as if it had ruled from the start.

Source: vLLM 0.32.0 and 0.33.0, vllm/v1/kv_offload/cpu/policies/ (CachePolicy, LRUCachePolicy),
vllm/v1/kv_offload/cpu/manager.py (CPUOffloadingManager).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

from kvscope.learning.observer import log
from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import Gittins
from kvscope.policies.tlru import TLru
from kvscope.vllm_plugin.chunk_controller import ChunkController
from kvscope.vllm_plugin.chunk_lanes import Key


class _ChunkPolicy(LRUCachePolicy):  # type: ignore[misc]  # vLLM has no types
    """vLLM's LRU until a controller is attached, and again once that is broken."""

    kind: ClassVar[type[LanePolicy]]

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.controller: ChunkController | None = None
        self._settled = False  # whether the log says by what it evicts

    def attach(self, controller: ChunkController | None) -> None:
        """Have `controller` choose what leaves; None for vLLM's LRU. The tier must be empty."""
        self._settled = True
        if controller is not None and not self.chunks:
            controller.attach(self._ranks, self._evictable, self.cache_capacity)
            self.controller = controller

    def insert(self, key: Key, chunk: Any, *context: Any) -> None:
        """Add a chunk, as vLLM's; from 0.33 on with the request's context."""
        super().insert(key, chunk, *context)
        self._tell("inserted", key)

    def remove(self, key: Key) -> None:
        """Remove a chunk, as vLLM's."""
        super().remove(key)
        self._tell("removed", key)

    def touch(self, keys: Iterable[Key], req_context: Any) -> None:
        """Rank chunks anew, as vLLM's."""
        keys = list(keys)
        super().touch(keys, req_context)
        self._tell("touched", keys)

    def on_store_miss(self, keys: Iterable[Key], req_context: Any) -> None:
        """Note which chunks a request is about to write."""
        keys, position = list(keys), req_context.get_offload_key_position
        super().on_store_miss(keys, req_context)
        self._tell("offered", keys, req_context.req_id, position)

    def on_request_access(self, keys: Iterable[Key], req_context: Any) -> None:
        """Rank chunks at a request's first access, as vLLM's from 0.33 on."""
        keys = list(keys)
        before = {key: self._ranks.get(key) for key in keys}
        super().on_request_access(keys, req_context)
        self._tell("accessed", [key for key in keys if self._ranks.get(key) != before[key]])

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[Key]],
        insertion_only_keys: set[Key],
        reused_keys: set[Key],
        req_context: Any,
    ) -> None:
        """Rank what a request accessed, as vLLM's."""
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
        keys, position = [key for group in key_groups for key in group], req_context
        self._tell("finished", keys, req_context.req_id, position.get_offload_key_position)

    def mark_evictable(self, key: Key) -> None:
        """Let a chunk leave, as vLLM's."""
        super().mark_evictable(key)
        self._tell("evictable", key)

    def mark_non_evictable(self, key: Key) -> None:
        """Keep a chunk while it is read, as vLLM's."""
        super().mark_non_evictable(key)
        self._tell("pinned", key)

    def clear(self) -> None:
        """Forget all chunks, as vLLM's."""
        super().clear()
        self._tell("emptied")

    def evict(self, n: int, protected: set[Key]) -> list[tuple[Key, Any]] | None:
        """Remove and return the next `n` chunks; None, and no change, without as many."""
        if not self._settled:
            self._settled = True
            log.warning(
                "the CPU tier evicts by vLLM's LRU: kvscope's scheduler does not run here, see"
                " --scheduler-cls and KVSCOPE_RECOMMENDATION"
            )
        controller = self.controller
        if controller is not None and not controller.broken:
            try:
                chosen = controller.choose(n, protected)
                if chosen is None:
                    return None
                self._check(chosen, n, protected)
            except Exception as error:  # noqa: BLE001  (vLLM goes on whatever this is)
                controller.fail(error)
            else:
                evicted = [(key, self.chunks[key]) for key in chosen]
                for key in chosen:
                    super().remove(key)
                return evicted
        evicted_by_lru: list[tuple[Key, Any]] | None = super().evict(n, protected)
        return evicted_by_lru

    def _check(self, chosen: list[Key], n: int, protected: set[Key]) -> None:
        """Raise RuntimeError for chunks that vLLM could not do without."""
        free = all(key in self._evictable and key not in protected for key in chosen)
        if len(set(chosen)) != n or not free:
            raise RuntimeError(f"{n} chunks wanted, {len(set(chosen))} chosen, all free: {free}")

    def _tell(self, event: str, *of: Any) -> None:
        if self.controller is not None:
            self.controller.tell(event, *of)


class TLruCachePolicy(_ChunkPolicy):
    """T-LRU for the chunks of vLLM's CPU tier."""

    kind = TLru


class GittinsCachePolicy(_ChunkPolicy):
    """The Gittins index for the chunks of vLLM's CPU tier, learned there, with its guard."""

    kind = Gittins


def tiers_of(connector: Any) -> Iterator[tuple[_ChunkPolicy, int]]:
    """Return each CPU tier of a connector that has a policy of kvscope, and the blocks of a chunk.

    Of several connectors at once (MultiConnector) all are looked at.
    """
    for inner in (connector, *getattr(connector, "_connectors", ())):
        scheduler: Any = getattr(inner, "connector_scheduler", None)
        manager = getattr(scheduler, "manager", None)
        manager = getattr(manager, "primary_tier", manager)
        policy = getattr(manager, "_policy", None)
        if isinstance(policy, _ChunkPolicy):
            yield policy, int(scheduler.config.blocks_per_chunk)
