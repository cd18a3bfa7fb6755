"""SGLang's own prefix tree and KV-slot pool on a CPU, driven request by request without a model.

`PYTHONPATH` has SGLang's Python code. What it imports and the tree never calls is replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvscope.deployment.engines import HiCache

MISSING = ("IPython", "gguf", "torchvision", "triton")
"""Modules that SGLang imports where its tree is, and that the tree does not call."""


class _Kind(type):
    """Its classes have every attribute: themselves."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Anything(metaclass=_Kind):
    """A class, decorator or function of a missing module, which nothing may rely on."""

    def __new__(cls, *arguments: Any, **_: Any) -> Any:
        decorates = len(arguments) == 1 and callable(arguments[0])
        return arguments[0] if decorates else super().__new__(cls)

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return _Anything(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class _Module(types.ModuleType):
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        return getattr(_Anything, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the missing modules, after all that are installed."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a missing module."""
        if name.partition(".")[0] not in MISSING:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return a module that has every name."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


sys.meta_path.append(Finder())


class Cache:
    """The prefix tree of a server, and its pools of `pages` pages and of `rows` requests.

    With `hicache`, its options are published before. Two of its calls need a GPU: those that pin
    the host's memory, and those that copy.
    """

    def __init__(
        self,
        pages: int,
        page_size: int,
        policy: str,
        config: dict[str, int],
        *,
        core: str,
        rows: int,
        most_tokens: int,
        hicache: HiCache | None = None,
    ) -> None:
        import torch
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        self.page_size, tokens = page_size, pages * page_size
        kv = _kv_pool(tokens, page_size) if hicache else None
        self.pool: Any = (
            TokenToKVPoolAllocator(tokens, torch.float32, "cpu", kv, False)
            if page_size == 1
            else PagedTokenToKVPoolAllocator(tokens, page_size, torch.float32, "cpu", kv, False)
        )
        self.rows = ReqToTokenPool(rows, most_tokens, "cpu", False)
        options = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.pool,
            page_size=page_size,
            eviction_policy=policy,
            eviction_policy_config=config or None,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
        )
        self.tree = UnifiedRadixCache(options)
        if hicache is not None:
            self.tree.init_hicache(None, options)


def _kv_pool(tokens: int, page_size: int) -> Any:
    """Return a pool with KV of a layer; what moves it to the host and back needs no GPU."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host import common, mha

    def unpinned(size: Sequence[int], dtype: Any, **_: Any) -> Any:
        return torch.zeros(size, dtype=dtype)

    def copy(
        src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int
    ) -> None:
        for source, target in zip(src_layers, dst_layers, strict=True):
            target[dst_indices] = source[src_indices]

    common.ALLOC_MEMORY_FUNCS["cpu"], mha.transfer_kv_direct = unpinned, copy
    return MHATokenToKVPool(tokens, page_size, torch.float32, 1, 2, 1, "cpu", False)


class Server:
    """A server with this cache, which runs requests without computing them."""

    def __init__(self, cache: Cache, *, chunk_tokens: int) -> None:
        from sglang.srt.managers.schedule_batch import ReqKvInfo
        from sglang.srt.mem_cache import common

        # Options of a server: those of a plain one.
        common.get_spec = lambda: SimpleNamespace(speculative_algorithm=None)
        common.get_serving = lambda: SimpleNamespace(strip_thinking_cache=False)
        self.pool, self.rows, self.tree = cache.pool, cache.rows, cache.tree
        self.page = cache.page_size
        self.chunk = max(chunk_tokens // self.page, 1) * self.page
        self.common, self.record = common, ReqKvInfo
        self.free_rows = list(range(self.rows.size))

    def start(self, prompt: Sequence[int], outputs: Sequence[int]) -> Any:
        """Look a request up and compute its prompt; its `prefix_len` is what it hits."""
        common = self.common
        request = _Request(prompt, outputs, self.record())
        common.match_kv_cache(
            request, self.tree, request.origin_input_ids, max_prefix_len=len(prompt) - 1
        )
        request.kv.cache_protected_len = request.hit = request.prefix_len
        request.lock = self.tree.lock(request.last_node)
        request.kv.req_pool_idx = self.free_rows.pop()
        row = self.rows.req_to_token[request.kv.req_pool_idx]
        row[: request.hit] = self.tree.path_device_indices(request.last_node)[: request.hit]
        computed = request.hit
        while computed < len(prompt):
            end = len(prompt)
            if end - computed > self.chunk:
                end = (computed + self.chunk) // self.page * self.page
            room = end - computed + (self.page if self.page > 1 else 0)
            common.evict_from_tree_cache(self.tree, room)
            self._give(request, computed, end)
            computed = request.extend_end = request.kv.kv_committed_len = end
            if end < len(prompt) or len(outputs) > 1:
                common.checkpoint_kv_cache(request, self.tree)
        return request

    def finish(self, request: Any) -> None:
        """Compute the outputs, and give back what the request has."""
        while request.kv.kv_committed_len < request.end:
            at = request.kv.kv_committed_len
            self.common.evict_from_tree_cache(self.tree, self.page)
            self._give(request, at, at + 1)
            request.kv.kv_committed_len = at + 1
        request.output_ids, request.done = request.outputs, True
        row = request.kv.req_pool_idx
        self.common.release_kv_cache(request, self.tree, checkpoint=True)
        self.free_rows.append(row)

    def _give(self, request: Any, begin: int, end: int) -> None:
        """Allocate slots for tokens begin..end; a page that was begun is filled first."""
        row, page = self.rows.req_to_token[request.kv.req_pool_idx], self.page
        first = -(-begin // page) * page
        for at in range(begin, min(first, end)):
            row[at] = row[at - 1] + 1
        if end > first:
            slots = self.pool.alloc(-(-(end - first) // page) * page)
            row[first:end] = slots[: end - first]
        request.kv.kv_allocated_len = end


class _Request(SimpleNamespace):
    """What SGLang's cache reads of a request."""

    def __init__(self, prompt: Sequence[int], outputs: Sequence[int], kv: Any) -> None:
        super().__init__(
            origin_input_ids=array("q", prompt),
            output_ids=array("q"),
            outputs=array("q", outputs),
            full_untruncated_fill_ids=array("q", prompt),
            end=len(prompt) + max(len(outputs), 1) - 1,
            kv=kv,
            lock=None,
            last_node=None,
            prefix_len=0,
            extend_end=0,
            priority=None,
            extra_key=None,
            cache_salt=None,
            session_id=None,
            session=None,
            kv_rotation_base=None,
            skip_radix_cache_insert=False,
            done=False,
            rid="",
            mamba_branching_seqlen=None,
        )

    def finished(self) -> bool:
        return bool(self.done)

    def refresh_fill_ids(self) -> None:
        self.full_untruncated_fill_ids = self.origin_input_ids + self.outputs

    def owned_kv_len(self) -> int:
        return int(self.kv.kv_committed_len)

    def _compute_max_prefix_len(self, tokens: int) -> int:
        return max(tokens - 1, 0)
