"""Settings of the engine, and how long its steps take."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Self, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.deployment.engines import STATES_WRITTEN_ONCE, UNHASHED_FIRST, WHOLE_PROMPT, Engine
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.speculative import Drafter, not_beside
from kvscope.latency.profile import LatencyProfile

NO_LIMIT = 2**31 - 1


class StepCost(Struct, frozen=True):
    """How long one engine step takes, in seconds.

    base_s + max(floor_s, prefill_token_s · U) for U prompt tokens in all, + prefill_pair_s ·
    u·(c + u/2) for each prompt's u tokens after c earlier tokens, + decode_token_s +
    decode_context_token_s · c for each request that decodes a token after c earlier tokens. A step
    without prompts takes decode_base_s (None: base_s) in place of base_s and floor_s. Where steps
    overlap, the CPU launches the kernels of a step with prompts for launch_s and plans no step
    meanwhile, so requests that arrive within launch_s can still enter the next step.
    """

    base_s: float
    prefill_token_s: float = 0.0
    prefill_pair_s: float = 0.0
    decode_token_s: float = 0.0
    decode_context_token_s: float = 0.0
    floor_s: float = 0.0
    decode_base_s: float | None = None
    launch_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name == "decode_base_s":
                continue
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(
                    f"{name} is {value}", where="step cost", remedy="give a time of 0 or more"
                )
        prompts = self.base_s > 0 or (self.floor_s > 0 and self.decode_base_s is not None)
        if not prompts or self.decode_base_s == 0:
            name = "decode_base_s" if prompts else "base_s"
            raise UsageError(
                "a step takes no time", where="step cost", remedy=f"give {name} above 0"
            )

    @classmethod
    def of(cls, profile: LatencyProfile) -> Self:
        """Return the cost of steps on the engine that `profile` describes.

        A prompt alone in a step takes the profile's TTFT less `request_s`, the time outside of
        steps. `launch_s` is the time of a step with the shortest prompt, base_s + floor_s. Without
        decode costs in the profile, a decoded token costs as much as a prompt token at its place.
        """
        decodes = profile.decode_base_s is not None
        return cls(
            base_s=profile.base_s - profile.request_s,
            prefill_token_s=profile.per_token_s,
            prefill_pair_s=profile.per_token_pair_s,
            decode_token_s=profile.decode_request_s if decodes else profile.per_token_s,
            decode_context_token_s=(
                profile.decode_context_token_s if decodes else profile.per_token_pair_s
            ),
            floor_s=profile.floor_s,
            decode_base_s=profile.decode_base_s,
            launch_s=profile.base_s - profile.request_s + profile.floor_s,
        )


Release = Literal["0.32", "0.33"]
RELEASES: tuple[Release, ...] = get_args(Release)
ChunkPolicy = Literal["lru", "arc"]


class Transfers(Struct, frozen=True):
    """Time of a transfer: `latency_s`, plus `chunk_s` per chunk; each direction is one queue."""

    latency_s: float = 0.0
    chunk_s: float = 0.0


AT_ONCE = Transfers()


class StorageSettings(Struct, frozen=True):
    """Files below the CPU tier: none is deleted, and beyond `capacity_chunks` none is written.

    Waiting requests read them, as in vLLM's file system tier (`fs`). With `shared`, all replicas
    use one folder: each reads the others' files, and does not write a file that exists. `read` and
    `write` are the times of a replica's own link; all links together take at least `pool_read_s`
    and `pool_write_s` per chunk. With `evicts`, unlike in vLLM, the least recently read or written
    file makes room.

    Source: vLLM 0.33.0, vllm/v1/kv_offload/tiering/fs/manager.py and io.py.
    """

    capacity_chunks: int = NO_LIMIT
    read: Transfers = AT_ONCE
    write: Transfers = AT_ONCE
    shared: bool = False
    evicts: bool = False
    pool_read_s: float = 0.0
    pool_write_s: float = 0.0


class OffloadSettings(Struct, frozen=True):
    """vLLM's OffloadingConnector with memory of the CPU; options have vLLM's names.

    `capacity_chunks` is `cpu_bytes_to_use` over the bytes of a chunk of `blocks_per_chunk` blocks.
    `release` is vLLM's. `storage` is a tier below the CPU's, which vLLM refuses with a
    `store_threshold` of 2 or more. Defaults are vLLM's. Raises UsageError for refused values.

    Source: vLLM 0.32.0 and 0.33.0, vllm/v1/kv_offload/cpu/spec.py.
    """

    capacity_chunks: int
    release: Release = "0.33"
    eviction_policy: ChunkPolicy = "lru"
    blocks_per_chunk: int = 1
    prompt_only: bool = True
    store_threshold: int = 0
    max_tracker_size: int = 64_000
    load: Transfers = AT_ONCE
    store: Transfers = AT_ONCE
    storage: StorageSettings | None = None

    def __post_init__(self) -> None:
        if self.storage is not None and self.store_threshold >= 2:
            raise UsageError(
                "vLLM refuses store_threshold with a tier below the CPU's",
                where="offload",
                remedy="leave out store_threshold, or the lower tier",
            )
        for name in ("capacity_chunks", "blocks_per_chunk", "max_tracker_size"):
            value = getattr(self, name)
            if not 1 <= value <= NO_LIMIT:
                raise UsageError(f"{name} is {value}", where="offload", remedy="give 1 or more")
        if self.store_threshold < 0:
            raise UsageError(
                f"store_threshold is {self.store_threshold}",
                where="offload",
                remedy="give 0 or more",
            )


class AheadTokens(NamedTuple):
    """Draft tokens for which a request gets KV room beyond its step, in prefill and in decode."""

    prefilling: int = 0
    decoding: int = 0


class EngineSettings(Struct, frozen=True):
    """Options of vLLM, under its own names.

    `usable_blocks` is `--num-gpu-blocks-override` less 1: block 0 stands for "no block".
    `async_scheduling` plans a step while the previous one still runs, as vLLM does on GPUs.
    `reserve_full_prompt` (`scheduler_reserve_full_isl`) admits a request only if all its
    tokens fit. `groups` are those of a hybrid model; None for one of full attention alone.
    `rehashes_states` (vLLM 0.32, not 0.33): the state before a prompt's end counts as new in the
    step after its own, too, so requests that hit it wait longer.
    `unhashed_last` (before 0.24): blocks without a hash are freed like blocks with a hash.
    `offload` is a CPU tier below the pool, None for none. `drafter` is for speculative decoding: a
    drafter that reads hidden states gets KV room ahead. Steps still yield one token per request.
    `drops_blocks` (before vLLM 0.33): with such a drafter the last block of each hit is computed
    again; else a block is hashed once the token behind it is known.
    Raises UsageError for values that no engine takes.
    """

    usable_blocks: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    async_scheduling: bool = False
    reserve_full_prompt: bool = True
    groups: KvGroups | None = None
    rehashes_states: bool = False
    unhashed_last: bool = False
    offload: OffloadSettings | None = None
    drafter: Drafter | None = None
    drops_blocks: bool = False

    def __post_init__(self) -> None:
        for name in ("usable_blocks", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if not 1 <= value <= NO_LIMIT:
                raise UsageError(f"{name} is {value}", where="engine", remedy="give 1 or more")
        if self.drafter is not None and self.drafter.reads_states:
            self._check_drafter(self.drafter)
        if self.offload is not None and self.groups is not None:
            _check_chunks(self.offload, self.groups)
        if self.offload is not None and self.async_scheduling:
            raise UsageError(
                "offloading is modelled for steps that are planned one by one",
                where="offload",
                remedy="leave out async scheduling",
            )

    @classmethod
    def one_at_a_time(cls, usable_blocks: int, groups: KvGroups | None = None) -> Self:
        """Return settings that serve each request to its end before the next one starts."""
        return cls(usable_blocks, max_num_seqs=1, max_num_batched_tokens=NO_LIMIT, groups=groups)

    def in_version(self, engine: Engine) -> Self:
        """Return the settings with the behaviours of this engine version, and its drafter."""
        return replace(
            self,
            reserve_full_prompt=engine.has(WHOLE_PROMPT),
            unhashed_last=not engine.has(UNHASHED_FIRST),
            rehashes_states=not engine.has(STATES_WRITTEN_ONCE),
            drafter=engine.drafter,
            drops_blocks=engine.shortens_hits,
        )

    @property
    def ahead_tokens(self) -> AheadTokens:
        """Tokens of KV room for drafts: a step's, in decode also unverified ones before it."""
        if self.drafter is None or not self.drafter.reads_states:
            return AheadTokens()
        tokens = self.drafter.tokens
        return AheadTokens(tokens, tokens * (3 if self.async_scheduling else 2))

    def _check_drafter(self, drafter: Drafter) -> None:
        """Raise UsageError for a CPU tier, or for groups of layers that take no drafter."""
        if self.offload is not None:
            raise not_beside(drafter, "a CPU tier")
        if self.groups is not None and not self.groups.take_drafter:
            raise not_beside(drafter, "these layers")

    def on_pool(self, blocks: int, block_size: int) -> Self:
        """Return the settings with a pool for `blocks` blocks of `block_size` tokens of all layers.

        `usable_blocks` becomes `blocks`; for a hybrid model, whose blocks are of one group of
        layers and have a size of their own, as many as take the same memory.
        """
        if self.groups is not None:
            tokens = round(blocks * block_size / self.groups.layer_share)
            blocks = max(1, tokens // self.groups.block_tokens)
        return replace(self, usable_blocks=blocks)

    @property
    def in_flight_tokens(self) -> int:
        """Maximum number of tokens in steps that have not ended."""
        return self.max_num_batched_tokens * (2 if self.async_scheduling else 1)


def _check_chunks(offload: OffloadSettings, groups: KvGroups) -> None:
    """Raise UsageError for a tier that is not simulated, or refused by vLLM, with these groups.

    Source: vLLM 0.32.0 and 0.33.0, vllm/distributed/kv_transfer/kv_connector/v1/offloading/
    scheduler.py (SchedulerOffloadConfig.from_spec).
    """
    if offload.storage is not None:
        raise UsageError(
            "files below it are simulated for models of full attention only",
            where="a CPU tier",
            remedy="leave out the tier below it",
        )
    if groups.state_tokens > groups.hit_tokens:
        raise UsageError(
            "hits within blocks (prefix_match_unit) are not simulated above it",
            where="a CPU tier",
            remedy="leave out prefix_match_unit, or --offload",
        )
    tokens = [each.block_tokens * offload.blocks_per_chunk for each in groups.groups]
    windows = [
        size for size, each in zip(tokens, groups.groups, strict=True) if each.kind != "full"
    ]
    if any((groups.retention_tokens or 0) % size for size in windows):
        multiple = math.lcm(groups.alignment_tokens, *windows)
        raise UsageError(
            f"vLLM refuses {groups.retention_tokens:,} with a CPU tier whose chunks have"
            f" {', '.join(f'{size:,}' for size in sorted(set(windows)))} tokens",
            where="prefix_cache_retention_interval",
            remedy=f"take a multiple of {multiple:,}",
        )
