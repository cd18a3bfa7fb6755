"""Drive vLLM's Scheduler with its OffloadingConnector; a worker without memory ends the copies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kvscope.deployment.kv_groups import KvGroups
from kvscope.policies.base import LanePolicy
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import XI
from kvscope.vllm_sim.engine import runner
from kvscope.vllm_sim.offload_state import LISTS
from kvscope.vllm_sim.settings import (
    EngineSettings,
    OffloadSettings,
    Release,
    StorageSettings,
    Transfers,
)
from tests.conformance.conversations import Mix, TokenRequest
from tests.conformance.kvscope_side import Model
from tests.conformance.stepping import SLOTS, free_blocks
from tests.conformance.vllm_side import (
    REHASHES_STATES,
    VLLM_VERSION,
    KVConnectorOutput,
    KVTransferConfig,
    VllmScheduler,
    full_attention,
    group_spec,
)
from tests.oracles.engines import Engine

# isort: split
# Only here: releases before 0.32 lack some of these. After the above, which skip without a vLLM.
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler as offloading
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.metrics.cache_hit_source import CacheHitSource

MIXES = {
    "chats": Mix(gap=2.0, salts=1),
    "rush": Mix(gap=0.3, salts=1),
    "long prompts": Mix(head=300, turn=200, output=20, gap=3.0),
    "repeats": Mix(head=200, again=0.5, edited=0.2, silent=0.2, gap=2.0, salts=1),
}
SLOW = {"load": Transfers(1.5, 0.25), "store": Transfers(2.25, 0.125)}
RELEASE: Release = "0.33" if VLLM_VERSION.startswith("0.33") else "0.32"


class InOrder(dict[str, None]):
    """A set that keeps its order: vLLM's has none for requests that end in the same step."""

    def add(self, name: str) -> None:
        """Add a name."""
        self[name] = None


def in_path_order(members: Iterable[Any] = ()) -> Any:
    """Return a set in vLLM's place; one of a copy's chunks keeps the order of the path.

    vLLM's has one by hash, which differs between processes and decides which chunks a tier that is
    nearly full still takes. The model takes them along the path.
    """
    members = list(members)
    if not any(isinstance(member, bytes) for member in members):
        return set(members)
    return dict.fromkeys(members).keys()


@dataclass
class Queue:
    """The copies of one direction, one after the other."""

    times: Transfers
    free_s: float = 0.0
    done_s: dict[int, float] = field(default_factory=dict)

    def submit(self, job: int, chunks: int, now_s: float) -> None:
        """Begin a copy."""
        begin_s = max(now_s, self.free_s)
        self.free_s = begin_s + (self.times.latency_s + self.times.chunk_s * chunks)
        self.done_s[job] = self.free_s

    def ended(self, now_s: float) -> list[int]:
        """Return the copies that are done by now, and forget them."""
        jobs = [job for job, done_s in self.done_s.items() if done_s <= now_s]
        for job in jobs:
            del self.done_s[job]
        return jobs


class Worker:
    """What vLLM's OffloadingConnectorWorker does, in its order, with copies that only take time."""

    def __init__(self, settings: OffloadSettings) -> None:
        self.loads, self.stores = Queue(settings.load), Queue(settings.store)
        self.deferred: dict[int, int] = {}
        self.loading: dict[int, str] = {}

    def start(self, meta: Any, now_s: float) -> float:
        """Begin a step's copies; return when the step itself can begin."""
        new = {job: len(spec.dst_spec.block_ids) for job, spec in meta.store_jobs.items()}
        for job in sorted(meta.jobs_to_flush):
            if job in new:
                self.deferred[job] = new.pop(job)
        for job, chunks in self.deferred.items():
            self.stores.submit(job, chunks, now_s)
        self.deferred = new
        waits = [self.stores.done_s[job] for job in meta.jobs_to_flush if job in self.stores.done_s]
        begin_s = max([now_s, *waits])
        for job, spec in meta.load_jobs.items():
            self.loading[job] = spec.req_id
            self.loads.submit(job, len(spec.src_spec.block_ids), begin_s)
        return begin_s

    def ended(self, now_s: float) -> KVConnectorOutput | None:
        """Return what the worker reports at the end of a step."""
        loads = self.loads.ended(now_s)
        jobs = dict.fromkeys([*self.stores.ended(now_s), *loads], 1)
        if not jobs:
            return None
        return KVConnectorOutput(
            finished_recving={self.loading.pop(job) for job in loads} or None,
            kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=jobs),
        )

    def next_s(self, now_s: float) -> float:
        """Return when the next copy ends, now if one has yet to begin."""
        if self.deferred:
            return now_s
        return min([*self.stores.done_s.values(), *self.loads.done_s.values()], default=math.inf)


class Answers(AsyncLookupManager):
    """vLLM's manager of answers; a flush waits for its thread."""

    def __init__(self, written: Any) -> None:
        self.written, self.asked = written, False
        super().__init__(tier_type="timed")

    def batch_lookup(self, keys: list[bytes], req_context: Any) -> list[bool]:
        """Return which chunks are there."""
        return [key in self.written for key in keys]

    def flush(self) -> None:
        """Answer what was asked since the last flush."""
        self.asked = bool(self._lookup_batch)
        super().flush()
        while self.asked and self._pending_results.empty():
            time.sleep(0)


class TimedTier(SecondaryTierManager):
    """A tier as vLLM's `fs` whose copies only take time; it deletes nothing, and can be full."""

    medium = Medium.STORAGE

    def __init__(
        self, offloading_spec: Any, primary_kv_view: Any, tier_type: str, **rest: Any
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, **rest)
        self.settings = StorageSettings()
        self.chunks: dict[bytes, float] = {}  # when each is written
        self.jobs: dict[int, float] = {}
        self.read_free_s = self.write_free_s = 0.0
        self.clock: Callable[[], float]
        self.answers = Answers(self)

    def __contains__(self, key: bytes) -> bool:
        return self.chunks.get(key, math.inf) <= self.clock()

    def on_new_request(self, req_context: Any) -> Any:
        """Store by chunks."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forget what it asked."""
        self.answers.cleanup(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        """Answer."""
        self.answers.flush()

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Return whether a chunk is there, as far as that is known."""
        answer = self.answers.lookup(key, req_context)
        if answer is None:
            return LookupResult.RETRY
        return LookupResult.HIT if answer else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        """Write what is not there yet and fits, also what another engine is writing."""
        keys = [key for key in job_metadata.keys if key not in self]
        room = self.settings.capacity_chunks - len(self.chunks)
        new = [key for key in keys if key not in self.chunks][:room]
        fresh = [key for key in keys if key in self.chunks or key in new]
        done_s, times = max(self.clock(), self.write_free_s), self.settings.write
        if fresh:
            done_s += times.latency_s + times.chunk_s * len(fresh)
        self.jobs[job_metadata.job_id] = self.write_free_s = done_s
        for key in fresh:
            self.chunks[key] = min(self.chunks.get(key, math.inf), done_s)

    def submit_load(self, job_metadata: Any) -> None:
        """Read chunks that are there."""
        assert all(key in self for key in job_metadata.keys)
        times = self.settings.read
        done_s = max(self.clock(), self.read_free_s)
        done_s += times.latency_s + times.chunk_s * len(job_metadata.keys)
        self.jobs[job_metadata.job_id] = self.read_free_s = done_s

    def get_finished_jobs(self) -> list[Any]:
        """Return what has ended by now."""
        done = [job for job, done_s in self.jobs.items() if done_s <= self.clock()]
        for job in done:
            del self.jobs[job]
        return [JobResult(job_id=job, success=True) for job in done]

    def drain_jobs(self) -> None:
        """Wait for nothing: no test resets the cache."""

    def next_s(self, now_s: float) -> float:
        """Return when a plan can find more than the last one."""
        return now_s if self.answers.asked else min(self.jobs.values(), default=math.inf)


class OffloadingScheduler(VllmScheduler):
    """vLLM's whole scheduler with a CPU tier, stepped as its engine core does."""

    def __init__(
        self,
        folder: Path,
        trace: list[TokenRequest],
        size: int,
        usable_blocks: int,
        offload: OffloadSettings,
        **settings: Any,
    ) -> None:
        # K and V of one head of size 1, in float32; without tensors, vLLM adds up all groups.
        groups = settings.get("groups") or full_attention(size)
        block_bytes = sum(group_spec(group).page_size_bytes for group in groups.groups)
        chunk_bytes = -(-block_bytes * offload.blocks_per_chunk // 4096) * 4096
        options = {
            "cpu_bytes_to_use": chunk_bytes * offload.capacity_chunks,
            "eviction_policy": offload.eviction_policy,
            "blocks_per_chunk": offload.blocks_per_chunk,
            "store_threshold": offload.store_threshold,
            "max_tracker_size": offload.max_tracker_size,
            "offload_prompt_only": offload.prompt_only,
        }
        if offload.storage is not None:
            del options["store_threshold"]
            tier = {"type": "TimedTier", "module_path": __name__}
            options |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [tier]}
        connector = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config=options,
        )
        super().__init__(folder, trace, size, usable_blocks, connector=connector, **settings)
        self.worker = Worker(offload)
        self.loaded_tokens: dict[int, int] = {}
        self.read_tokens: dict[int, int] = {}
        self.manager = self.scheduler.connector.connector_scheduler.manager
        self.storage: TimedTier | None = None
        if offload.storage is not None:
            (self.storage,) = self.manager.secondary_tiers
            self.storage.settings, self.storage.clock = offload.storage, lambda: self.now_s
            self.manager = self.manager.primary_tier
        assert self.manager._num_chunks == offload.capacity_chunks
        self.scheduler.finished_req_ids = InOrder()
        vars(offloading)["set"] = in_path_order
        lookup = self.scheduler.connector.update_state_after_alloc

        def noted(request: Any, blocks: Any, external: int) -> None:
            number = int(request.request_id)
            if number not in self.hit_tokens:
                self.hit_tokens[number] = request.prefill_stats.num_local_cached_tokens
                self.loaded_tokens[number] = external
                self.read_tokens[number] = 0
                lookup(request, blocks, external)
                if external > 0:
                    sources = self.scheduler.connector.connector_scheduler
                    found = sources.get_external_cache_hit_sources(request, external)
                    self.read_tokens[number] = found.get(CacheHitSource.DISK, 0)
                return
            lookup(request, blocks, external)

        self.scheduler.connector.update_state_after_alloc = noted

    def step(self) -> bool:
        """Take a step, or wait for an arrival or a copy; return False when all is done."""
        self._arrive()
        batch = self._plan()
        self.scheduler.finished_req_ids = InOrder()
        meta = batch.output.kv_connector_metadata
        begin_s = self.worker.start(meta, self.now_s)
        if batch.yields:
            self.now_s = begin_s + 1
        else:
            next_s = self.worker.next_s(self.now_s)
            if self.storage is not None:
                next_s = min(next_s, self.storage.next_s(self.now_s))
            if batch.output.preempted_req_ids:
                next_s = begin_s
            if len(self.requests) < len(self.trace):
                next_s = min(next_s, self._next.arrival_s)
            if next_s == math.inf:
                return False
            self.now_s = max(begin_s, next_s)
        self._complete(batch, self.worker.ended(self.now_s))
        return True


def held_chunks(vllm: OffloadingScheduler) -> list[list[bytes]]:
    """Return the chunks that vLLM's tier holds, by list, the first to leave in front."""
    policy = vllm.manager._policy
    if hasattr(policy, "t1"):
        return [list(keys) for keys in (policy.t1, policy.t2, policy.b1, policy.b2)]
    # Of several groups' chunks with one rank, vLLM evicts that of the lesser key first.
    return [sorted(policy.chunks, key=lambda key: (policy._ranks[key], key)), [], [], []]


@dataclass
class Chunks:
    """Names of chunks by their node, learned from what both sides hold in the same place."""

    node_of: dict[bytes, int] = field(default_factory=dict)

    def agree(self, theirs: Sequence[bytes], mine: Sequence[int]) -> bool:
        """Return whether both lists are the same chunks in the same order."""
        if len(theirs) != len(mine):
            return False
        return all(
            self.node_of.setdefault(key, node) == node
            for key, node in zip(theirs, mine, strict=True)
        )


def model_chunks(offload: Any) -> list[list[int]]:
    """Return the chunks that the model's tier holds, as `held_chunks`."""
    lists, first = [], len(offload.chunks) - LISTS - 1
    after = offload.chunks.after
    for place in range(LISTS):
        at, nodes = int(after[first + place]), []
        while at != first + place:
            nodes.append(at)
            at = int(after[at])
        lists.append(nodes)
    return lists


class Compared:
    """vLLM and the model of it, each step of which is compared."""

    def __init__(self, vllm: OffloadingScheduler, model: Model) -> None:
        self.vllm, self.model, self.chunks, self.steps = vllm, model, Chunks(), 0

    def step(self) -> bool:
        """Let both take a step; return False when all is done."""
        more, step = self.vllm.step(), self.steps
        assert self.model.step() == more, step
        running = [int(request.request_id) for request in self.vllm.scheduler.running]
        assert running == self.model.running(), step
        lists = held_chunks(self.vllm), model_chunks(self.model.machine.offload)
        for theirs, mine in zip_longest(*lists, fillvalue=()):
            assert self.chunks.agree(theirs, mine), step
        if step % 5 == 0 or not more:
            assert free_blocks(self.vllm) == [
                (block, content > 0) for block, content in self.model.free_blocks()
            ], step
        self.steps += 1
        return more

    def counts(self, size: int) -> dict[str, int]:
        """Compare what each request got; return what there was of interest."""
        vllm, off, numbers = self.vllm, self.model.machine.offload, range(len(self.vllm.trace))
        requests, members = self.model.machine.requests[numbers], off.members[numbers]
        assert (requests.hits * size).tolist() == [vllm.hit_tokens[number] for number in numbers]
        assert members.external.tolist() == [vllm.loaded_tokens[number] for number in numbers]
        assert (members.read * size).tolist() == [vllm.read_tokens[number] for number in numbers]
        assert requests.first_token_s.tolist() == [vllm.first_token_s[number] for number in numbers]
        assert requests.preemptions.tolist() == [x.num_preemptions for x in vllm.requests]
        state = off.state[0]
        return {
            "loaded": int(members.external.sum()),
            "evictions": int(state.evictions),
            "refused": int(state.refused),
            "read": int(state.read_chunks),
            "written": int(state.written_chunks),
            "preemptions": int(requests.preemptions.sum()),
        }


def stepped(
    folder: Path,
    trace: list[TokenRequest],
    usable_blocks: int,
    offload: OffloadSettings,
    *,
    seqs: int = SLOTS,
    tokens: int = 256,
    compiled: bool = True,
    policy: LanePolicy | None = None,
    size: int = 16,
    groups: KvGroups | None = None,
) -> dict[str, int]:
    """Step both sides to the end, comparing them; return what there was of interest."""
    vllm = OffloadingScheduler(
        folder,
        trace,
        size,
        usable_blocks,
        offload,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        policy=policy,
        groups=groups,
    )
    settings = EngineSettings(
        usable_blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        groups=groups,
        rehashes_states=REHASHES_STATES,
        offload=replace(offload, release=RELEASE),
    )
    model = Model(trace, size, policy or Lru(), settings)
    if not compiled:
        model.in_python()
    both = Compared(vllm, model)
    while both.step():
        pass
    return {**both.counts(size), "xi": float(model.machine.p[XI]) if policy else 0.0}


def stepped_together(
    folder: Path,
    trace: list[TokenRequest],
    engines: int,
    usable_blocks: int,
    offload: OffloadSettings,
    size: int = 16,
) -> dict[str, int]:
    """Step several engines that get requests in turn, above the same files, as `stepped`."""
    assert offload.storage is not None
    limits = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 256}
    shared = replace(offload, release=RELEASE, storage=replace(offload.storage, shared=True))
    settings = EngineSettings(usable_blocks, offload=shared, **limits)
    known = Model(trace, size, Lru(), settings)
    beside, both = None, []
    for number in range(engines):
        (folder / str(number)).mkdir()
        own = trace[number::engines]
        vllm = OffloadingScheduler(
            folder / str(number), own, size, usable_blocks, offload, **limits
        )
        assert vllm.storage is not None
        engine = Engine(known.machine, beside)
        for place, request in enumerate(own):
            engine.send(number + place * engines, request.arrival_s, 0)
        if beside is None:
            beside, files = engine, vllm.storage.chunks
        vllm.storage.chunks = files
        model = copy(known)
        model.machine, model.run = engine.machine, runner(engine.machine)
        both.append(Compared(vllm, model))
    left = list(both)
    while left:
        behind = min(left, key=lambda each: each.vllm.now_s)
        if not behind.step():
            left.remove(behind)
    counts = [each.counts(size) for each in both]
    total = {name: sum(each[name] for each in counts) for name in counts[0]}
    assert len(files) == beside.machine.offload.pool[0].chunks
    return {**total, "twice": total["written"] - len(files)}
