"""The engine of a deployment, and what changed between versions of vLLM.

A behaviour of vLLM is one row of `CHANGES`, with its source. The pool, the simulator, the flags,
the plugin and docs/deployment.md read this table: a version that changes a behaviour adds a row,
and code that depends on the change calls `Engine.has`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from kvscope.core.errors import UsageError
from kvscope.deployment.gpus import Gpu
from kvscope.deployment.kv_groups import KvGroups
from kvscope.deployment.speculative import Drafter, parse_drafter

Text = TypeVar("Text", bound=str)
Version: TypeAlias = tuple[int, int]

NEWEST: Version = (0, 33)
COMPARED: tuple[Version, ...] = tuple((0, minor) for minor in (20, 22, 25, 26, 28, 30, 32, 33))
"""Versions whose own cache manager was run against the simulator (docs/deployment.md)."""
STATES_COMPARED: Version = (0, 32)
"""The first version whose states of linear attention were compared with the simulator's."""
PLUGIN: tuple[Version, ...] = ((0, 26), (0, 32), (0, 33))
"""Versions that kvscope's plugin loads into."""


class EngineChange(Struct, frozen=True):
    """A behaviour of vLLM from version `since` on (`now`), and the one `before`."""

    since: Version
    now: str
    before: str
    source: str


LEAN_SAMPLER = EngineChange(
    (0, 17),
    "the sampler's copies take 14.3 bytes of each logit in the profiling pass",
    "38.5 bytes",
    "published logs",
)
MORE_NCCL = EngineChange(
    (0, 18),
    "CUDA and NCCL take 0.25 GiB, 2.1 with tensor parallelism",
    "0.13 and 0.55 GiB",
    "published logs",
)
WHOLE_PROMPT = EngineChange(
    (0, 19),
    "a prompt is admitted if all of it fits",
    "if its first chunk fits",
    "config/scheduler.py (scheduler_reserve_full_isl)",
)
UTILIZATION = EngineChange(
    (0, 20),
    "`--gpu-memory-utilization` is 0.92 by default",
    "0.9",
    "config/cache.py",
)
GRAPHS = EngineChange(
    (0, 20),
    "CUDA graphs are deducted from the pool",
    "they come on top",
    "envs.py (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS), v1/worker/gpu_worker.py",
)
RETENTION_VARIABLE = EngineChange(
    (0, 23),
    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL thins out the windows that are kept",
    "no setting does",
    "envs.py",
)
UNHASHED_FIRST = EngineChange(
    (0, 24),
    "freed blocks without a hash are the first to be used again (0.23: those of windows only)",
    "they join the end of the queue, as the others",
    "v1/core/block_pool.py (free_blocks)",
)
SECOND_RUNNER = EngineChange(
    (0, 25),
    "dense models without hybrid layers run on the second model runner",
    "all run on the first",
    "config/vllm.py (use_v2_model_runner)",
)
JUNCTIONS = EngineChange(
    (0, 26),
    "a retention interval keeps junctions of prompts too; there is `--prefix-match-unit`",
    "neither",
    "v1/core/kv_cache_manager.py",
)
ALIGNED_STATES = EngineChange(
    (0, 28),
    "states of linear attention are kept at aligned blocks",
    "at every block, for models that can (not simulated)",
    "model_executor/models/config.py (mamba_cache_mode)",
)
LARGE_BATCHES = EngineChange(
    (0, 28),
    "16,384 tokens a step by default on GPUs of 160 GiB and more",
    "8,192",
    "engine/arg_utils.py (get_batch_defaults)",
)
SECOND_RUNNER_GRAPHS = EngineChange(
    (0, 29),
    "the second model runner leaves room for CUDA graphs",
    "it estimates none",
    "v1/worker/gpu/model_runner.py (profile_cudagraph_memory)",
)
THIN_RETENTION = EngineChange(
    (0, 29),
    "windows and states are kept before the end of a prompt and at junctions;"
    " `--prefix-cache-retention-interval` says otherwise",
    "all are kept",
    "config/cache.py (prefix_cache_retention_interval)",
)
STATES_WRITTEN_ONCE = EngineChange(
    (0, 33),
    "the state before a prompt's end counts as new in its own step",
    "in the step after it too: requests that hit it wait for longer",
    "v1/core/single_type_kv_cache_manager.py",
)
LOOKAHEAD_HASHES = EngineChange(
    (0, 33),
    "MTP and EAGLE shorten no hits",
    "they do, by a block",
    "config/vllm.py (num_hash_lookahead_tokens)",
)
CHANGES = (
    LEAN_SAMPLER,
    MORE_NCCL,
    WHOLE_PROMPT,
    UTILIZATION,
    GRAPHS,
    RETENTION_VARIABLE,
    UNHASHED_FIRST,
    SECOND_RUNNER,
    JUNCTIONS,
    ALIGNED_STATES,
    LARGE_BATCHES,
    SECOND_RUNNER_GRAPHS,
    THIN_RETENTION,
    STATES_WRITTEN_ONCE,
    LOOKAHEAD_HASHES,
)


def version_text(version: Version) -> str:
    """Return a version as text, such as 0.33."""
    return f"{version[0]}.{version[1]}"


def not_compared(version: Version) -> str | None:
    """Return a warning about a vLLM version not compared with kvscope, None for a compared one."""
    if version in COMPARED:
        return None
    name, oldest = version_text(version), version_text(COMPARED[0])
    if version < COMPARED[0]:
        return (
            f"vLLM {name} was not compared with kvscope, and is simulated as {oldest}, the oldest"
            " that was: its hits may differ"
        )
    if version > NEWEST:
        newest = version_text(NEWEST)
        return f"vLLM {name} is newer than this kvscope, and is simulated as {newest}"
    below = version_text(max(each for each in COMPARED if each < version))
    above = version_text(min(each for each in COMPARED if each > version))
    return (
        f"vLLM {name} was not compared with kvscope, {below} and {above} were; it is simulated by"
        " what its sources say (docs/deployment.md)"
    )


EngineName = Literal["vllm", "sglang"]
WaitingOrder = Literal["fcfs", "lpm"]
WAITING_ORDERS: tuple[WaitingOrder, ...] = get_args(WaitingOrder)
"""SGLang's orders of waiting requests that are simulated: its default, and longest prefix match."""
WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
WRITE_POLICIES: tuple[WritePolicy, ...] = get_args(WritePolicy)
AUTO_LENGTH = "--max-model-len auto"
"""The option with which vLLM takes requests as long as its pool holds; it exists since 0.20."""
SGLANG_NUM_SEQS = 2048
"""Requests that run at once in SGLang, the fewest that it chooses; up to 4,096 in a large pool.

Source: SGLang 0.5.23, srt/model_executor/pool_configurator.py.
"""
DEFAULT_ENGINE = f"vllm@{version_text(NEWEST)}"
_WRITTEN = re.compile(
    r"(?P<name>[a-z]+)(?:@v?(?P<major>\d+)\.(?P<minor>\d+)(?:\.\S*?)?)?"
    r"(?:\+(?P<drafter>[a-z]+\d?:\d+(?:/\d+)?))?"  # other endings are builds, as in 0.33.0+cu128
    r"(?P<options>(?::[a-z_]+=[^:\s]*)*)"
)
_NEWEST: dict[str, tuple[int, int]] = {"vllm": NEWEST, "sglang": (0, 5)}


class HiCache(Struct, frozen=True):
    """SGLang's host tier: `ratio` times the GPU's pool, written to by `write_policy`.

    Source: SGLang 0.5.23, srt/arg_groups/fields/memory.py (--hicache-ratio,
    --hicache-write-policy), srt/mem_cache/pool_host/base.py (HostKVCache).
    """

    ratio: float = 2.0
    write_policy: WritePolicy = "write_through"

    @property
    def copies_pool(self) -> bool:
        """Whether the tier has room only for copies of blocks in the GPU's pool."""
        return self.ratio <= 1 and self.write_policy != "write_back"

    def blocks(self, pool_blocks: int, block_size: int) -> int:
        """Return the blocks in `ratio` x the pool's tokens; all blocks have `block_size` tokens."""
        return (int(pool_blocks * block_size * self.ratio) + 1) // block_size


class Engine(Struct, frozen=True):
    """An engine, its (major, minor) version, and its drafter, if any.

    For SGLang, `order` is that of its waiting queue, and `hicache` its host tier, if any.
    """

    name: EngineName
    version: tuple[int, int]
    drafter: Drafter | None = None
    order: WaitingOrder = "fcfs"
    hicache: HiCache | None = None

    def __str__(self) -> str:
        drafter = f"+{self.drafter}" if self.drafter else ""
        options = "".join(f":{name}={value}" for name, value in self._options())
        return f"{self.name}@{version_text(self.version)}{drafter}{options}"

    def _options(self) -> Iterator[tuple[str, str]]:
        if self.order != "fcfs":
            yield "schedule_policy", self.order
        if self.hicache is not None:
            yield "hicache_ratio", f"{self.hicache.ratio:g}"
            if self.hicache.write_policy != "write_through":
                yield "hicache_write_policy", self.hicache.write_policy

    @property
    def text(self) -> str:
        """The engine in the form that `parse_engine` reads, including the drafter's block size."""
        blocks = f"/{self.drafter.block_tokens}" if self.drafter else ""
        return f"{self}{blocks}"

    def has(self, change: EngineChange) -> bool:
        """Return whether the engine is a vLLM with this behaviour."""
        return self.name == "vllm" and self.version >= change.since

    @property
    def default_utilization(self) -> float:
        """Share of the GPU's memory that the engine takes."""
        return 0.92 if self.has(UTILIZATION) else 0.9

    def default_num_seqs(self, gpu: Gpu | None) -> int:
        """Return the default limit of running requests; `gpu` None: one of less than 70 GiB."""
        if self.name == "sglang":
            return SGLANG_NUM_SEQS
        return gpu.default_max_num_seqs if gpu else 256

    def default_batched_tokens(self, gpu: Gpu) -> int:
        """Return the default limit of tokens per step; for SGLang, of tokens per prefill chunk."""
        if self.name == "sglang":
            return gpu.sglang_chunk_tokens
        usual = gpu.default_max_num_batched_tokens
        return usual if self.has(LARGE_BATCHES) else min(usual, 8192)

    @property
    def simulated_as(self) -> str:
        """The `text` of a vLLM that is simulated differently from the newest one, else empty."""
        own = (WHOLE_PROMPT, UNHASHED_FIRST, STATES_WRITTEN_ONCE)
        plain = all(map(self.has, own)) and not self.drafts_in_pool
        return "" if self.name != "vllm" or plain else self.text

    @property
    def drafts_in_pool(self) -> bool:
        """Whether the engine has a drafter with KV in the pool (MTP or EAGLE)."""
        return self.drafter is not None and self.drafter.reads_states

    @property
    def shortens_hits(self) -> bool:
        """Whether the engine recomputes the last block of each hit, for a drafter."""
        return self.drafts_in_pool and not self.has(LOOKAHEAD_HASHES)

    def in_blocks_of(self, tokens: int) -> Engine:
        """Return the engine with a drafter, if any, whose blocks have `tokens` tokens."""
        if self.drafter is None:
            return self
        return replace(self, drafter=replace(self.drafter, block_tokens=tokens))

    @property
    def without_drafter(self) -> Engine:
        """The engine without speculative decoding."""
        return replace(self, drafter=None)

    @property
    def runs_plugin(self) -> bool:
        """Whether kvscope's plugin loads into this engine."""
        return self.name == "vllm" and self.version in PLUGIN

    def retaining(self, groups: KvGroups) -> KvGroups:
        """Return the groups with this vLLM's default retention: before 0.29, all blocks."""
        if self.has(THIN_RETENTION) or not groups.sparse:
            return groups
        return replace(groups, retention_tokens=None)

    @property
    def left_out(self) -> tuple[str, ...]:
        """A note if kvscope's plugin does not load into this vLLM, else empty."""
        if self.name != "vllm" or self.runs_plugin:
            return ()
        known = ", ".join(map(version_text, PLUGIN))
        own = version_text(self.version)
        why = f"kvscope's plugin does not load into vLLM {own}, but into {known}"
        return (f"{why}: other policies than LRU get no flags",)

    def doubts(self, groups: KvGroups | None) -> tuple[str, ...]:
        """Return notes on uncertainties of the simulated cache; `groups`: None if not hybrid."""
        if self.name != "vllm":
            newest, own = (version_text(each) for each in (_NEWEST[self.name], self.version))
            other = f"SGLang {own} was not compared with kvscope, and is simulated as {newest}"
            known = [] if own == newest else [f"{other}: its hits may differ"]
            if self.hicache is not None and self.hicache.copies_pool:
                known.append(
                    "the host tier has no room beyond copies of the GPU's pool: take a"
                    " hicache_ratio above 1, or hicache_write_policy=write_back"
                )
            return tuple(known)
        doubts = [not_compared(self.version)]
        if groups is not None and groups.state_tokens and self.version < STATES_COMPARED:
            since = version_text(STATES_COMPARED)
            doubts.append(
                f"states of linear attention were not compared before vLLM {since}: hits may differ"
            )
        if groups is not None and groups.sparse and not self.has(THIN_RETENTION):
            thinner = (
                "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=0 in its environment keeps less"
                if self.has(RETENTION_VARIABLE)
                else "no setting keeps less"
            )
            since = version_text(THIN_RETENTION.since)
            doubts.append(f"before {since} vLLM keeps all windows and states; {thinner}")
        return tuple(note for note in doubts if note is not None)

    @property
    def default_block_size(self) -> int:
        """Tokens per block on a GPU; SGLang caches single tokens."""
        return 16 if self.name == "vllm" else 1

    @property
    def null_blocks(self) -> int:
        """Blocks that the engine never hands to a request: block 0 of vLLM."""
        return 1 if self.name == "vllm" else 0


def parse_engine(text: str) -> Engine:
    """Return the engine that `text` names, its newest known version if none is stated.

    A drafter may follow, as in vllm@0.33+mtp:3/16: 3 tokens a step and, if stated, 16 tokens in the
    engine's blocks; or options of SGLang, as in sglang:schedule_policy=lpm:hicache_ratio=2. Raises
    UsageError for another engine, an unreadable version, or an option that is not simulated.
    """
    match = _WRITTEN.fullmatch(text.strip().lower())
    if match is None or match["name"] not in _NEWEST:
        raise UsageError(f"no engine {text!r}", remedy="write vllm, vllm@0.33 or sglang")
    name: EngineName = "vllm" if match["name"] == "vllm" else "sglang"
    options = dict(option.split("=") for option in match["options"].split(":")[1:])
    order, hicache = _sglang_options(name, options)
    drafter = None
    if match["drafter"]:
        stated, _, block_tokens = match["drafter"].partition("/")
        drafter = parse_drafter(stated)
        if drafter is not None and block_tokens:
            drafter = replace(drafter, block_tokens=int(block_tokens))
    version = _NEWEST[name]
    if match["major"] is not None:
        version = int(match["major"]), int(match["minor"])
    return Engine(name, version, drafter, order, hicache)


def _sglang_options(
    name: EngineName, stated: dict[str, str]
) -> tuple[WaitingOrder, HiCache | None]:
    """Return the waiting order and the host tier that SGLang's options select; None: no tier.

    `stated` are the values of the options by name. Raises UsageError for an option or a value that
    is not simulated, and for any option of another engine.
    """
    known = ("schedule_policy", "hicache_ratio", "hicache_write_policy")
    for option, value in stated.items():
        if option not in known or name != "sglang":
            what = f"{name} with {option}={value} is not simulated"
            others = f"; of SGLang {', '.join(known)} are" if name == "sglang" else ""
            raise UsageError(what, remedy=f"write {name}{others}")
    order = _choice("schedule_policy", stated, WAITING_ORDERS)
    write_policy = _choice("hicache_write_policy", stated, WRITE_POLICIES)
    if not {"hicache_ratio", "hicache_write_policy"} & stated.keys():
        return order, None
    ratio = stated.get("hicache_ratio", "2")
    try:
        times = float(ratio)
    except ValueError:
        times = 0.0
    if not 0 < times < math.inf:
        raise UsageError(
            f"hicache_ratio={ratio} is no size of a host tier",
            remedy="write how many times the GPU's pool it holds, as in sglang:hicache_ratio=2",
        )
    return order, HiCache(times, write_policy)


def _choice(option: str, stated: dict[str, str], values: Sequence[Text]) -> Text:
    """Return an option's stated value, by default the first of `values`."""
    text = stated.get(option, values[0])
    value = next((value for value in values if value == text), None)
    if value is None:
        known = " or ".join(f"sglang:{option}={value}" for value in values)
        raise UsageError(f"sglang with {option}={text} is not simulated", remedy=f"write {known}")
    return value
