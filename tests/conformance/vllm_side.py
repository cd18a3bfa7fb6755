"""Drive vLLM's own KVCacheManager and Scheduler without a model: outputs are given."""

from __future__ import annotations

import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.tiny_llama import tiny_llama
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.learning.learners import FittedTable
from kvscope.policies.base import LanePolicy
from kvscope.tuning.file import write_policy
from kvscope.vllm_plugin.eviction_controller import EvictionController
from tests.conformance.conversations import TokenRequest

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm", reason="no vLLM here: make test-engine brings its own")
    import torch
    import vllm
    from vllm import SamplingParams
    from vllm.config import (
        CacheConfig,
        KVTransferConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )
    from vllm.config.kv_events import KVEventsConfig
    from vllm.distributed import kv_events as vllm_events
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import (
        FreeKVCacheBlockQueue,
        KVCacheBlock,
        get_request_block_hasher,
        init_none_hash,
    )
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        KVCacheSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

__all__ = [
    "DROPS_BLOCKS",
    "HASHES_AHEAD",
    "REHASHES_STATES",
    "VLLM_VERSION",
    "FreeKVCacheBlockQueue",
    "KVCacheBlock",
    "KVCacheManager",
    "KVConnectorOutput",
    "KVEventsConfig",
    "KVTransferConfig",
    "Request",
    "VllmScheduler",
    "full_attention",
    "group_spec",
    "manager",
    "serve_alone",
    "vllm_events",
    "vllm_request",
]

VLLM_VERSION: str = vllm.__version__
LONGEST = 1 << 20
RETENTION = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"  # before 0.29
HAS_RETENTION = "prefix_cache_retention_interval" in KVCacheConfig.__dataclass_fields__
MARK = "is_eagle_group"  # of a drafter's groups; before it there was one, all were a drafter's
HAS_MARK = MARK in KVCacheGroupSpec.__dataclass_fields__
COUNTS_LOOKUPS = not HAS_RETENTION  # in its statistics, those of requests that must wait too
HASHES_AHEAD = "num_hash_lookahead_tokens" in signature(KVCacheManager).parameters
DROPS_BLOCKS = not HASHES_AHEAD  # of a hit, for a drafter
REHASHES_STATES = vllm.__version__.startswith("0.32.")
MODEL = tiny_llama(LONGEST)

init_none_hash(sha256)


def vllm_request(
    number: int, tokens: TokenRequest, size: int, kind: str | None = None, ahead: int = 0
) -> Request:
    """Return a request as vLLM's core gets it, with the hashes of its blocks.

    They cover `ahead` tokens behind each.
    """
    hints = {"kvscope_type": kind, "kvscope_turn": 1} if kind is not None else None
    return Request(
        str(number),
        list(tokens.prompt),
        SamplingParams(max_tokens=len(tokens.output), ignore_eos=True, extra_args=hints),
        None,
        cache_salt=tokens.salt,
        block_hasher=get_request_block_hasher(size, sha256, *([ahead] if ahead else [])),
    )


def full_attention(size: int) -> KvGroups:
    """Return one group of full attention."""
    return KvGroups((KvGroup("full", size),))


def group_spec(group: KvGroup, drafts: int = 0) -> KVCacheSpec:
    """Return what vLLM calls a group; its states have blocks for so many drafted tokens."""
    shape = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    size, window = group.block_tokens, group.window_tokens
    if group.kind == "sliding":
        return SlidingWindowSpec(block_size=size, sliding_window=window, **shape)
    if group.kind == "chunked":
        return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=window, **shape)
    if group.kind == "linear":
        state: Any = {"shapes": ((1,),), "dtypes": (torch.float32,), "mamba_cache_mode": "align"}
        state |= {"num_speculative_blocks": drafts}
        if group.export_tokens:
            state |= {
                "num_prefill_checkpoint_blocks": 1,
                "prefill_checkpoint_alignment": group.export_tokens,
            }
        return MambaSpec(block_size=size, **state)
    return FullAttentionSpec(block_size=size, **shape)


def cache_config(usable_blocks: int, groups: KvGroups, drafts: int = 0) -> KVCacheConfig:
    """Return groups without tensors, one block more than can be used.

    A drafter of `drafts` tokens is in those that share it.
    """
    specs = [group_spec(group, drafts) for group in groups.groups]
    drafted = [drafts > 0 and groups.shares_drafts(group) for group in groups.groups]
    retention = {"prefix_cache_retention_interval": groups.retention_tokens}
    return KVCacheConfig(
        num_blocks=usable_blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec([f"{at}"], spec, **{MARK: True} if drafted[at] and HAS_MARK else {})
            for at, spec in enumerate(specs)
        ],
        **retention if HAS_RETENTION else {},
    )


def manager(
    usable_blocks: int, size: int, groups: KvGroups | None = None, drafts: int = 0
) -> KVCacheManager:
    """Return vLLM's cache manager with so many usable blocks, in groups or of full attention.

    A drafter proposes `drafts` tokens a step.
    """
    groups = groups or full_attention(size)
    settings = {"scheduler_block_size": groups.alignment_tokens, "hash_block_size": size}
    if drafts:
        settings |= {"use_eagle": DROPS_BLOCKS, "num_prefill_lookahead": 1}
        settings |= {"num_hash_lookahead_tokens": 1}
    known = signature(KVCacheManager).parameters
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_RETENTION and groups.sparse and groups.retention_tokens is not None:
            patch.setenv(RETENTION, str(groups.retention_tokens))
        return KVCacheManager(
            cache_config(usable_blocks, groups, drafts),
            max_model_len=LONGEST,
            **{name: value for name, value in settings.items() if name in known},
        )


def serve_alone(
    cache: KVCacheManager,
    request: Request,
    tokens: TokenRequest,
    before_free: Callable[[Request], None] | None = None,
    drafts: int = 0,
) -> int | None:
    """Take a request from look-up to its last output; return its hit tokens, None if rejected.

    A drafter proposes `drafts` tokens behind each one; all are rejected.
    """
    cache.new_step_starts()
    blocks, hits, *junction = cache.get_computed_blocks(request)
    if junction:  # since 0.26
        (request.shared_prefix_boundary,) = junction
    wanted = step_tokens(cache, request, hits)
    if hasattr(cache, "can_fit_full_sequence"):  # before 0.22
        fits, whole = cache.can_fit_full_sequence(request, hits, blocks), {}
    else:
        fits, whole = True, {"full_sequence_must_fit": True}
    ahead = {"num_lookahead_tokens": drafts}
    if not fits or cache.allocate_slots(request, wanted, hits, blocks, **whole, **ahead) is None:
        return None
    end_step(cache)
    request.num_computed_tokens = hits + wanted
    outputs = iter(tokens.output[:-1])
    while True:
        if request.num_computed_tokens == request.num_tokens:
            token = next(outputs, None)
            if token is None:
                break
            request.append_output_token_ids(token)
        cache.new_step_starts()
        wanted, drafted = step_tokens(cache, request, 0), request.num_output_tokens and drafts
        if cache.allocate_slots(request, wanted + drafted, **ahead) is None:
            raise AssertionError("an output of a request that fits must fit")
        end_step(cache)
        request.num_computed_tokens += wanted
    request.append_output_token_ids(tokens.output[-1])
    if drafts:  # as the scheduler does at the end of each step
        cache.cache_blocks(request, request.num_computed_tokens)
    if before_free is not None:
        before_free(request)
    cache.free(request)
    return int(hits)


def end_step(cache: KVCacheManager) -> None:
    """Free what is held until the step's copies are made, as vLLM's scheduler does."""
    if hasattr(cache, "take_kv_cache_block_copies"):  # since 0.26
        _, held = cache.take_kv_cache_block_copies()
        cache.block_pool.free_blocks(held)


def step_tokens(cache: KVCacheManager, request: Request, hits: int) -> int:
    """Return the tokens of a request's next step: all, or as vLLM's scheduler cuts for states."""
    tokens = request.num_tokens - request.num_computed_tokens - hits
    if not cache.kv_cache_config.has_mamba_layers:
        return tokens
    size, unit = cache.coordinator.scheduler_block_size, cache.block_pool.hash_block_size
    specs = [group.kv_cache_spec for group in cache.kv_cache_config.kv_cache_groups]
    state = next(spec for spec in specs if isinstance(spec, MambaSpec))
    within = unit < size and cache.coordinator.enable_partial_hash_hits
    scheduler: Any = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=size),
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        max_num_scheduled_tokens=LONGEST,
        block_size=size,
        hash_block_size=unit,
        use_eagle_block_drop=cache.use_eagle,
        use_eagle=cache.use_eagle,  # its name in 0.28
        mamba_partial_cache_hit=within,
        mamba_fine_grained_prefix_cache=within,  # its name in 0.30
        mamba_has_prefill_checkpoint_blocks=getattr(state, "num_prefill_checkpoint_blocks", 0) > 0,
        mamba_prefill_checkpoint_alignment=getattr(state, "prefill_checkpoint_alignment", 0),
        mamba_shared_prefix_checkpoint=False,
        num_hash_lookahead_tokens=getattr(cache.block_pool, "num_hash_lookahead_tokens", 0),
    )
    return int(Scheduler._mamba_block_aligned_split(scheduler, request, tokens, hits))


@dataclass
class Batch:
    """One step that vLLM planned, and which of its requests get a token."""

    output: SchedulerOutput
    yields: dict[str, bool]


class VllmScheduler:
    """vLLM's whole scheduler, stepped as its engine core does, on a clock of whole steps.

    With a `policy`, or with the settings `plugin` as an operator gives them, it is kvscope's.
    """

    def __init__(
        self,
        folder: Path,
        trace: list[TokenRequest],
        size: int,
        usable_blocks: int,
        overlapped: bool = False,
        policy: LanePolicy | None = None,
        kinds: Sequence[str] | None = None,
        fitted: FittedTable | None = None,
        plugin: object = (),
        groups: KvGroups | None = None,
        connector: KVTransferConfig | None = None,
        speculative: Any = None,
        **settings: Any,
    ) -> None:
        (folder / "config.json").write_text(json.dumps(MODEL))
        config = VllmConfig(
            model_config=_model(str(folder)),
            scheduler_config=SchedulerConfig(
                max_model_len=LONGEST,
                is_encoder_decoder=False,
                async_scheduling=overlapped,
                **settings,
            ),
            cache_config=CacheConfig(block_size=size, enable_prefix_caching=True),
            kv_transfer_config=connector,
        )
        if groups is not None and groups.state_tokens:
            config.cache_config.mamba_cache_mode = "align"
            config.cache_config.block_size = groups.alignment_tokens
        if groups is not None:  # the tier reads it from there
            config.cache_config.prefix_cache_retention_interval = groups.retention_tokens
        config.cache_config.num_gpu_blocks = usable_blocks + 1
        config.scheduler_config.async_scheduling = overlapped  # CPUs switch it off
        config.speculative_config = speculative
        chosen: type[Scheduler] = AsyncScheduler if overlapped else Scheduler
        if policy is not None:
            params = dict(policy.values)
            spec = {"name": policy.name, "leaves": policy.evicts, "params": params}
            config.additional_config = {"kvscope": {"policy": spec}}
            if fitted is not None:
                path = folder / "policy.toml"
                write_policy(path, policy, fitted, trace="made", block_size=size)
                config.additional_config = {"kvscope": {"recommendation": str(path)}}
            chosen = of_kvscope(overlapped=overlapped)
        elif plugin != ():
            config.additional_config = {"kvscope": plugin}
            chosen = of_kvscope(overlapped=False)
        self.scheduler = chosen(
            vllm_config=config,
            kv_cache_config=cache_config(
                usable_blocks,
                groups or full_attention(size),
                speculative.num_speculative_tokens if speculative else 0,
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=groups.alignment_tokens if groups else size,
            hash_block_size=size,
            log_stats=True,
        )
        self.trace = trace
        self.size = size
        self.overlapped = overlapped
        self.requests: list[Request] = []
        self.hit_tokens: dict[int, int] = {}
        self.first_token_s: dict[int, float] = {}
        self.in_progress: deque[Batch] = deque()
        self.counted_hits = 0
        self.now_s = 0.0
        self.kinds = kinds
        if policy is not None:
            self.steering.clock = lambda: self.now_s

    @property
    def steering(self) -> EvictionController:
        """The plugin's part that orders free blocks."""
        (steering,) = self.scheduler.kvscope
        return steering

    def step(self) -> bool:
        """Take a step, or wait for the next arrival; return False when all requests are done."""
        self._arrive()
        batch = self._plan()
        if self.overlapped and (batch.yields or self.in_progress):
            self._overlap(batch)
        elif batch.yields:
            self.now_s += 1
            self._complete(batch)
        elif len(self.requests) < len(self.trace):
            self.now_s = self._next.arrival_s
        else:
            return False
        return True

    def _arrive(self) -> None:
        while len(self.requests) < len(self.trace) and self._next.arrival_s <= self.now_s:
            number = len(self.requests)
            kind = self.kinds[number] if self.kinds else None
            ahead = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)
            self.requests.append(vllm_request(number, self._next, self.size, kind, ahead))
            self.scheduler.add_request(self.requests[-1])

    @property
    def _next(self) -> TokenRequest:
        return self.trace[len(self.requests)]

    def _plan(self) -> Batch:
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.hit_tokens.setdefault(int(new.req_id), new.num_computed_tokens)
        stats = self.scheduler.kv_cache_manager.make_prefix_cache_stats()
        self.counted_hits += stats.hits
        requests = self.scheduler.requests
        yields = {name: not requests[name].is_prefill_chunk for name in output.num_scheduled_tokens}
        return Batch(output, yields)

    def _overlap(self, batch: Batch) -> None:
        """End the step in progress while the planned one waits behind it."""
        if self.in_progress:
            self.now_s += 1
            self._complete(self.in_progress.popleft())
        if batch.yields:
            self.in_progress.append(batch)

    def _complete(self, batch: Batch, transfers: KVConnectorOutput | None = None) -> None:
        sampled = []
        for name, yields in batch.yields.items():
            known = self.requests[int(name)].num_output_tokens
            sampled.append([self.trace[int(name)].output[known]] if yields else [])
            if yields:
                self.first_token_s.setdefault(int(name), self.now_s)
        places = {name: place for place, name in enumerate(batch.yields)}
        result = ModelRunnerOutput(
            list(batch.yields),
            places,
            sampled_token_ids=sampled,
            kv_connector_output=transfers,
        )
        self.scheduler.update_from_output(batch.output, result)


def of_kvscope(*, overlapped: bool) -> type[Scheduler]:
    """Return kvscope's scheduler, which not every vLLM has."""
    from kvscope.vllm_plugin import KvscopeAsyncScheduler, KvscopeScheduler

    return KvscopeAsyncScheduler if overlapped else KvscopeScheduler


_MODELS: dict[str, ModelConfig] = {}


def _model(folder: str) -> ModelConfig:
    """Return a small Llama, made once: it takes seconds."""
    if not _MODELS:
        _MODELS[""] = ModelConfig(
            model=folder, skip_tokenizer_init=True, max_model_len=LONGEST, dtype="bfloat16"
        )
    return _MODELS[""]
