"""`--offload` of other engines than vLLM, as named approximations on its simulated engine.

    sglang-hicache:write_policy=write_back
    sglang-hicache:hicache_storage_prefetch_policy=wait_complete    lmcache:chunk_size=512

Each says what it leaves out. What they share with vLLM's tier is simulated by its code.

Source: SGLang 0.5.23, srt/mem_cache/unified_radix_cache.py (write_through_threshold,
load_back_threshold), unified_cache/unified_tree_core.py (hit counts, eviction by write_back),
pool_host/base.py (sizes), hybrid_cache/hybrid_cache_controller.py (options of storage) and
arg_groups/fields/memory.py (options); LMCache 0.5.6, v1/config.py
(options), v1/storage_backend/local_cpu_backend.py (sizes, order) and
integration/vllm/vllm_v1_adapter.py (what is saved and retrieved).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core import units
from kvscope.core.errors import UsageError, placed
from kvscope.vllm_sim.offload_launch import OffloadLaunch
from kvscope.vllm_sim.offload_spec import (
    WHERE,
    OffloadSpec,
    option_values,
    parse_switch,
    stated_options,
    written,
)
from kvscope.vllm_sim.settings import (
    AT_ONCE,
    NO_LIMIT,
    ChunkPolicy,
    OffloadSettings,
    PrefetchPolicy,
    PrefetchSettings,
    StorageSettings,
    Transfers,
)

HICACHE, LMCACHE = "sglang-hicache", "lmcache"
WritePolicy = Literal["write_through", "write_through_selective", "write_back"]


class Offloading(Protocol):
    """How a tier of memory below an engine works, without its size.

    `text` is the value of `--offload`, `in_words` a sentence for the reader, and `left_out` what
    the simulation lacks of it; empty where it was compared with the engine step by step.
    """

    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def in_words(self) -> str: ...  # noqa: D102
    @property
    def left_out(self) -> str: ...  # noqa: D102
    @property
    def eviction_policy(self) -> ChunkPolicy: ...  # noqa: D102

    def chunk_blocks(self, block_size: int) -> int:
        """Return the blocks of a chunk, for blocks of so many tokens; UsageError if none fit."""

    def settings(
        self,
        blocks: int,
        load: Transfers = AT_ONCE,
        store: Transfers = AT_ONCE,
        *,
        block_size: int = 16,
    ) -> OffloadSettings:
        """Return the tier with room for so many blocks, and these times of a copy."""

    def kv_transfer_config(self, cpu_bytes: int) -> Mapping[str, Any] | None:
        """Return the value of vLLM's `--kv-transfer-config`, None for another engine."""

    def launch(self, cpu_bytes: int, ranks: int = 1) -> OffloadLaunch:
        """Return how the engine is started with so many bytes over all of its ranks."""


def parse_offload(text: str) -> Offloading:
    """Return what a value of `--offload` stands for; UsageError for anything else."""
    engine, *rest = (piece.strip() for piece in text.split(":"))
    if engine == HICACHE:
        return HiCacheSpec(**option_values(HiCacheSpec, rest, _hicache_value, HICACHE))
    if engine == LMCACHE:
        return LmCacheSpec(**option_values(LmCacheSpec, rest, _lmcache_value, LMCACHE))
    return OffloadSpec.parse(text)


class _Approximation:
    """What HiCache and LMCache have in common."""

    __slots__ = ()
    NAME: ClassVar[str]

    @property
    def text(self) -> str:
        """The value of `--offload`."""
        return written(self.NAME, stated_options(self, type(self)()))

    @property
    def eviction_policy(self) -> ChunkPolicy:
        """The order of eviction."""
        return "lru"


class HiCacheSpec(Struct, _Approximation, frozen=True):
    """SGLang's HiCache in the host's memory; `write_policy` is --hicache-write-policy.

    The other options are of storage below (`HiCacheOnFilesSpec`), with SGLang's defaults.
    """

    NAME: ClassVar[str] = HICACHE
    write_policy: WritePolicy = "write_through"
    hicache_storage_prefetch_policy: PrefetchPolicy = "timeout"
    prefetch_threshold: int = 256

    @property
    def in_memory(self) -> HiCacheSpec:
        """The same without options of storage."""
        return HiCacheSpec(self.write_policy)

    @property
    def in_words(self) -> str:
        """A sentence on how the tier works."""
        how = {
            "write_through": "blocks are stored when computed",
            "write_through_selective": "a block is stored when a request hits it on the GPU",
            "write_back": "blocks are stored when the GPU evicts them, and the step waits for it",
        }
        return (
            f"Offloading approximates SGLang 0.5.23's HiCache ({self.write_policy}):"
            f" {how[self.write_policy]}, outputs too, LRU."
        )

    @property
    def left_out(self) -> str:
        """What the simulation lacks."""
        return f"{_LEFT_OUT}, storage below the host's memory (add a third tier)."

    def chunk_blocks(self, block_size: int) -> int:
        """Return the blocks of a chunk."""
        return 1

    def settings(
        self,
        blocks: int,
        load: Transfers = AT_ONCE,
        store: Transfers = AT_ONCE,
        *,
        block_size: int = 16,
        storage: StorageSettings | None = None,
    ) -> OffloadSettings:
        """Return the tier with room for so many blocks, and these times of a copy."""
        if storage is not None:
            prefetch = PrefetchSettings(
                self.hicache_storage_prefetch_policy,
                math.ceil(self.prefetch_threshold / block_size),
                _TIMEOUT_BASE_S,
                _TIMEOUT_KI_TOKEN_S * block_size / 1024,
            )
            storage = replace(storage, prefetch=prefetch)
        selective = self.write_policy == "write_through_selective"
        return OffloadSettings(
            max(1, blocks),
            prompt_only=False,
            store_threshold=2 if selective else 0,
            max_tracker_size=NO_LIMIT,
            load=load,
            store=store,
            least_load_blocks=math.ceil(_LOAD_BACK_TOKENS / block_size),
            forgets_offers=selective,
            write_back=self.write_policy == "write_back",
            storage=storage,
        )

    def kv_transfer_config(self, cpu_bytes: int) -> None:
        """Return None: SGLang has options of its own."""
        return

    def launch(self, cpu_bytes: int, ranks: int = 1) -> OffloadLaunch:
        """Return SGLang's options; sizes are whole GB a rank, rounded down."""
        size = str(max(1, cpu_bytes // ranks // 10**9))
        options = ("--enable-hierarchical-cache", "--hicache-size", size)
        return OffloadLaunch("SGLang", (*options, "--hicache-write-policy", self.write_policy))


class HiCacheOnFilesSpec(HiCacheSpec, frozen=True):
    """SGLang's HiCache with its storage backend `file` below the host's memory."""

    @property
    def in_words(self) -> str:
        """Sentences on how the tiers work."""
        until = {
            "best_effort": "when the scheduler comes to it, it goes on with what has been read",
            "wait_complete": "it waits until all is read",
            "timeout": "it waits for 1 s and 0.25 s per 1,024 tokens at most",
        }
        return (
            f"{super().in_words} Below the host's memory, files: all that is stored there is"
            f" written on to them. What a new request lacks in both is read into memory from"
            f" {self.prefetch_threshold:,} tokens on; {self.hicache_storage_prefetch_policy}:"
            f" {until[self.hicache_storage_prefetch_policy]}. No file is deleted; once they fill"
            " their size, nothing more is written."
        )

    @property
    def left_out(self) -> str:
        """What the simulation lacks."""
        return (
            f"{_LEFT_OUT}, the time of look-ups in storage, prefetches tried again in the waiting"
            " queue, pages other than the trace's blocks, pins of the prefix above a prefetch, a"
            " page read twice for two requests, deletion of files (max_size), other backends, and"
            " engines that share one."
        )

    def launch(self, cpu_bytes: int, ranks: int = 1) -> OffloadLaunch:
        """Return SGLang's options; files are in the folder of a variable, PATH."""
        memory = super().launch(cpu_bytes, ranks)
        options = ["--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy"]
        options.append(self.hicache_storage_prefetch_policy)
        if self.prefetch_threshold != HiCacheSpec().prefetch_threshold:
            extra = json.dumps({"prefetch_threshold": self.prefetch_threshold})
            options += ["--hicache-storage-backend-extra-config", extra]
        folder = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "PATH"}
        server = "python -m sglang.launch_server"
        arguments = (*memory.arguments, *options)
        return OffloadLaunch(memory.engine, arguments, folder, server=server)


class LmCacheSpec(Struct, _Approximation, frozen=True):
    """LMCache's CPU backend under vLLM; fields are its options, with its defaults."""

    NAME: ClassVar[str] = LMCACHE
    chunk_size: int = 256
    save_decode_cache: bool = False
    min_retrieve_tokens: int = 0

    @property
    def in_words(self) -> str:
        """A sentence on how the tier works."""
        content = "prompts and outputs" if self.save_decode_cache else "prompts only"
        return (
            f"Offloading approximates LMCache 0.5.6 under vLLM: chunks of {self.chunk_size:,}"
            f" tokens, stored when computed, {content}, LRU."
        )

    @property
    def left_out(self) -> str:
        """What the simulation lacks."""
        return (
            "Left out: loads and stores that hold up the whole step (here others run meanwhile), a"
            " first access that ranks a chunk's head before its tail, look-ups that need a prompt's"
            " first chunk in memory (both cost hits in small tiers), other orders than LRU, disks"
            " below memory, remote stores and the multi-process server."
        )

    def chunk_blocks(self, block_size: int) -> int:
        """Return the blocks of a chunk; UsageError where it does not end with a block."""
        if self.chunk_size < 1 or self.chunk_size % block_size:
            raise UsageError(
                f"a chunk of {self.chunk_size:,} tokens does not end with a block of"
                f" {block_size:,}",
                where=f"{WHERE} {LMCACHE}",
                remedy=f"take {LMCACHE}:chunk_size={block_size * max(1, 256 // block_size)}",
            )
        return self.chunk_size // block_size

    def settings(
        self,
        blocks: int,
        load: Transfers = AT_ONCE,
        store: Transfers = AT_ONCE,
        *,
        block_size: int = 16,
    ) -> OffloadSettings:
        """Return the tier with room for so many blocks, and these times of a copy."""
        size = self.chunk_blocks(block_size)
        return OffloadSettings(
            max(1, blocks // size),
            blocks_per_chunk=size,
            prompt_only=not self.save_decode_cache,
            load=load,
            store=store,
            least_load_blocks=max(1, math.ceil(self.min_retrieve_tokens / block_size)),
        )

    def kv_transfer_config(self, cpu_bytes: int) -> Mapping[str, Any]:
        """Return the value of vLLM's option; the size is a variable of LMCache's."""
        return {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}

    def on_blocks(self, block_size: int) -> LmCacheSpec:
        """Return the same with the least chunks of the default size that end with blocks."""
        size = max(self.chunk_size, block_size)
        fits = self.chunk_size % block_size == 0
        return self if fits else replace(self, chunk_size=size // block_size * block_size)

    def launch(self, cpu_bytes: int, ranks: int = 1, *, disk: bool = False) -> OffloadLaunch:
        """Return LMCache's variables, sizes in GiB a rank, and vLLM's option.

        `disk`: the bytes are of a local disk, without a copy in memory.
        """
        size = f"{cpu_bytes / ranks / 2**30:.6g}"
        options = {"max_local_cpu_size": size}
        if disk:
            options = {"local_cpu": "False", "local_disk": "PATH", "max_local_disk_size": size}
        options |= stated_options(self, LmCacheSpec())
        variables = {f"LMCACHE_{name.upper()}": value for name, value in options.items()}
        config = json.dumps(self.kv_transfer_config(cpu_bytes))
        return OffloadLaunch("vLLM with LMCache", ("--kv-transfer-config", config), variables)


_LEFT_OUT = (
    "Left out: SGLang's own scheduler and radix tree (blocks are hit, counted and evicted one by"
    " one by vLLM's), loads layer by layer during the prefill"
)
_LOAD_BACK_TOKENS = 10  # load_back_threshold, which is no option
_TIMEOUT_BASE_S, _TIMEOUT_KI_TOKEN_S = 1.0, 0.25  # prefetch_timeout_base and _per_ki_token


def _hicache_value(name: str, text: str) -> object:
    if name == "prefetch_threshold":
        with placed(f"{WHERE} {name}"):
            return units.parse_tokens(text)
    choices = get_args(WritePolicy if name == "write_policy" else PrefetchPolicy)
    if text not in choices:
        known = ", ".join(choices)
        raise UsageError(f"{text!r} is no {name}", where=WHERE, remedy=f"take one of {known}")
    return text


def _lmcache_value(name: str, text: str) -> object:
    if name == "save_decode_cache":
        return parse_switch(text)
    with placed(f"{WHERE} {name}"):
        return units.parse_tokens(text)
