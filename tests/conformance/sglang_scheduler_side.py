"""SGLang's own scheduler on a CPU, in simulated time: its methods run, a model does not.

A `Scheduler` is made without its constructor, which starts a model; it has SGLang's own requests,
batches, policy, budgets, tree, pools and result processor. Stand-ins: `Server.serve` is its loop
`event_loop_overlap`, with forward passes that take a time and yield the outputs of the chats;
`_Silent` reports nothing; `_Passing` is what adapts batches to several GPUs; and
`_write_cache_indices` copies what a Triton kernel copies. A package of kernels is replaced.
"""

from __future__ import annotations

import importlib.machinery
import sys
from array import array
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s
from kvscope.deployment.engines import HiCache
from kvscope.vllm_sim.settings import StepCost
from tests.conformance.sglang_side import Cache, Finder
from tests.sglang_sim.chats import Chat


class _Kernels(Finder):
    """Finds modules of SGLang that hold kernels alone, and need a GPU's compiler."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("sglang.kernels.ops.mamba"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)


sys.meta_path.insert(0, _Kernels())


def controllers_and_snapshots() -> tuple[Any, Any]:
    """Return the module of SGLang's controller of data-parallel ranks, and what these tell it."""
    from sglang.srt.managers import data_parallel_controller
    from sglang.srt.managers.load_snapshot import LoadSnapshot

    return data_parallel_controller, LoadSnapshot


class _Silent:
    """Takes every call, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class _Passing:
    """Hands batches on as they are, for parts that change those of several GPUs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda batch=None, **_: batch


class Options(NamedTuple):
    """How a server is started; tokens, but for `most_running` requests."""

    pages: int
    page_size: int
    policy: str
    config: dict[str, int]
    chunk_tokens: int
    order: str = "fcfs"
    most_running: int = 2048
    most_tokens: int = 400
    hicache: HiCache | None = None


class Served(NamedTuple):
    """What a request hit, and when its first batch began, its first and its last token came."""

    hit: int
    begin_s: float
    token_s: float
    end_s: float
    retractions: int


class Server:
    """SGLang's scheduler for requests of `chats`."""

    def __init__(self, options: Options) -> None:
        from sglang.srt import runtime_context
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.managers import schedule_batch
        from sglang.srt.managers.schedule_policy import SchedulePolicy
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.managers.scheduler_components.batch_result_processor import (
            SchedulerBatchResultProcessor,
        )
        from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import (
            NewTokenRatioTracker,
        )
        from sglang.srt.mem_cache import allocation
        from sglang.srt.sampling.sampling_params import SamplingParams
        from sglang.srt.server_args import ServerArgs
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        runtime_context.publish(
            ServerArgs(
                model_path="none",
                device="cpu",
                skip_tokenizer_init=True,
                chunked_prefill_size=options.chunk_tokens,
                page_size=options.page_size,
                schedule_policy=options.order,
                radix_eviction_policy=options.policy,
                **_host_options(options.hicache),
            ),
            role="scheduler",
        )
        allocation.write_cache_indices = _write_cache_indices
        cache = Cache(
            options.pages,
            options.page_size,
            options.policy,
            options.config,
            core="rust",
            rows=options.most_running,
            most_tokens=options.most_tokens,
            hicache=options.hicache,
        )
        pool, rows, tree = cache.pool, cache.rows, cache.tree
        self.evicted = self.stored = self.host_evicted = 0
        evict, evict_host, store = tree._evict, tree.evict_host, tree._execute_kv_backup

        def evict_counted(*arguments: Any, **named: Any) -> Any:
            result = evict(*arguments, **named)
            self.evicted += result.num_tokens_evicted
            return result

        def store_counted(*arguments: Any, **named: Any) -> Any:
            slots = store(*arguments, **named)
            self.stored += 0 if slots is None else len(slots)
            return slots

        def evict_host_counted(*arguments: Any, **named: Any) -> Any:
            tokens = evict_host(*arguments, **named)
            self.host_evicted += tokens
            return tokens

        tree._evict, tree.evict_host = evict_counted, evict_host_counted
        tree._execute_kv_backup = store_counted
        self.schedule_batch, self.params = schedule_batch, SamplingParams
        silent, null = _Silent(), DisaggregationMode.NULL
        silent.num_generated_tokens = silent.forward_ct_decode = 0
        model = SimpleNamespace(
            is_encoder_decoder=False, vocab_size=1 << 40, self_opened_think_start_ids=None
        )
        self.results = SchedulerBatchResultProcessor(
            is_generation=True,
            disaggregation_mode=null,
            enable_overlap=True,
            enable_overlap_mlx=False,
            model_config=model,
            token_to_kv_pool_allocator=pool,
            tree_cache=tree,
            hisparse_coordinator=None,
            req_to_token_pool=rows,
            decode_offload_manager=None,
            metrics_collector=silent,
            metrics_reporter=silent,
            draft_worker=None,
            model_worker=None,
            logprob_result_processor=silent,
            output_streamer=silent,
            beam_coordinator=silent,
            abort_request=None,
        )
        scheduler = self.scheduler = Scheduler.__new__(Scheduler)
        off = (
            "enable_unified_cache_external_linker enable_lmcache"
            " enable_hicache_storage enable_hisparse require_mlp_sync enable_priority_preemption"
            " is_hybrid_swa enable_lora is_mixed_chunk enable_priority_scheduling"
        )
        none = (
            "_pending_chunked_abort_req dllm_config prefill_delayer min_free_slots_delayer"
            " chunked_req dynamic_chunk_sizer truncation_align_size hisparse_coordinator"
            " decode_offload_manager max_queued_requests scheduler_stage_metrics"
        )
        vars(scheduler).update(
            dict.fromkeys(off.split(), False),
            **dict.fromkeys(none.split()),
            enable_hierarchical_cache=options.hicache is not None,
            disaggregation_mode=null,
            dp_attn_adapter=_Passing(),
            ngram_embedding_manager=_Passing(),
            beam_coordinator=SimpleNamespace(pending_member_rows=lambda _: 0),
            grammar_manager=SimpleNamespace(has_waiting_grammars=lambda: False),
            metrics_reporter=SimpleNamespace(enable_metrics=False),
            load_inquirer=SimpleNamespace(_get_num_pending_tokens=lambda **_: 0),
            tp_worker=SimpleNamespace(
                model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
            ),
            prefill_bs_tracker=silent,
            priority_scheduling_preemption_threshold=0,
            prefill_decode_interval=0,
            _prefill_decode_interval_remaining=0,
            policy=SchedulePolicy(options.order, tree, options.hicache is not None, False, False),
            tree_cache=tree,
            token_to_kv_pool_allocator=pool,
            req_to_token_pool=rows,
            page_size=options.page_size,
            chunked_prefill_size=options.chunk_tokens,
            max_prefill_tokens=16_384,
            max_prefill_bs=0,
            max_running_requests=options.most_running,
            new_token_ratio_tracker=NewTokenRatioTracker.from_config(),
            model_config=model,
            enable_overlap=True,
            enable_skip_finishing_decode=True,
            spec_algorithm=SpeculativeAlgorithm.NONE,
            waiting_queue=[],
            processed_tokens_counter=0,
            forward_ct=0,
            result_queue=deque(),
        )
        runtime_context.get_parallel().override_permanently(
            pp_max_micro_batch_size=options.most_running
        )

    def serve(
        self, requests: Sequence[Chat], arrival_s: Sequence[float], cost: StepCost
    ) -> list[Served]:
        """Serve requests that arrive at these times in batches that take their cost."""
        scheduler, in_flight = self.scheduler, self.scheduler.result_queue
        sent = [self._request(number, each) for number, each in enumerate(requests)]
        times = np.full((3, len(sent)), np.nan)
        running, last = self.schedule_batch.ScheduleBatch(reqs=[], batch_is_full=False), None
        now_s = free_s = 0.0
        arrived = self.batches = 0
        while True:
            while arrived < len(sent) and arrival_s[arrived] <= now_s:
                scheduler._add_request_to_queue(sent[arrived])
                arrived += 1
            plan = scheduler.get_next_batch_to_run(running_batch=running, last_batch=last)
            running, batch = plan.running_batch, plan.batch_to_run
            scheduler.running_batch, ready_s = running, now_s
            if batch is not None:
                self.batches += 1
                begin_s, step_s = max(now_s, free_s), _cost_s(batch, cost)
                free_s = begin_s + step_s
                launches = batch.forward_mode.is_extend()
                ready_s = begin_s + (min(cost.launch_s, step_s) if launches else 0.0)
                for each in batch.reqs:
                    times[0, int(each.rid)] = np.fmin(times[0, int(each.rid)], begin_s)
                in_flight.append((batch.copy(), free_s))
            if last is not None:
                done, end_s = in_flight.popleft()
                now_s = max(now_s, end_s)
                self._complete(done, end_s, times)
            elif batch is None:
                assert not scheduler.waiting_queue
                scheduler.new_token_ratio_tracker.reset()
                if arrived == len(sent):
                    break
                now_s = max(now_s, arrival_s[arrived])
            now_s, last = max(now_s, ready_s), batch
        return [
            Served(each.cached_tokens, *times[:, number], each.retraction_count)
            for number, each in enumerate(sent)
        ]

    def _complete(self, batch: Any, end_s: float, times: Float64s) -> None:
        """Process the result of a batch, and note when requests got their first and last token."""
        known = [len(each.output_ids) for each in batch.reqs]
        if batch.forward_mode.is_extend():
            self.results.process_batch_result_prefill(batch, self._result(batch))
        else:
            self.results.process_batch_result_decode(batch, self._result(batch))
        self.scheduler.tree_cache.flush_pending_backups()
        for each, before in zip(batch.reqs, known, strict=True):
            if len(each.output_ids) > before:
                if before == 0:
                    times[1, int(each.rid)] = end_s
                if each.finished():
                    times[2, int(each.rid)] = end_s

    def _request(self, number: int, chat: Chat) -> Any:
        """Return a request as the tokenizer's process hands it to the scheduler."""
        params = self.params(max_new_tokens=len(chat.outputs), temperature=0)
        params.normalize(None)
        request = self.schedule_batch.Req(
            str(number), "", array("q", chat.prompt), params, vocab_size=1 << 40
        )
        request.outputs = chat.outputs
        return request

    @staticmethod
    def _result(batch: Any) -> Any:
        """Return the result of a forward pass: each request's next token of its outputs."""
        import torch
        from sglang.srt.managers.utils import GenerationBatchResult

        tokens = [each.outputs[len(each.output_ids)] for each in batch.reqs]
        return GenerationBatchResult(next_token_ids=torch.tensor(tokens))


def _cost_s(batch: Any, cost: StepCost) -> float:
    """Return the seconds of a batch."""
    if not batch.forward_mode.is_extend():
        tokens = sum(each.kv.kv_committed_len - 1 for each in batch.reqs)
        base_s = cost.base_s if cost.decode_base_s is None else cost.decode_base_s
        each_s = cost.decode_token_s * len(batch.reqs)
        return float(base_s + each_s + cost.decode_context_token_s * tokens)
    new = np.array([each.extend_end - each.prefix_len for each in batch.reqs])
    before = np.array([each.prefix_len for each in batch.reqs])
    computed_s = max(cost.floor_s, cost.prefill_token_s * new.sum())
    return float(cost.base_s + computed_s + cost.prefill_pair_s * (new * (before + new / 2)).sum())


def _write_cache_indices(*arguments: Any) -> None:
    """Write a batch's slots into its requests' rows, as `allocation.write_cache_indices` does."""
    slots, _, rows, _, prefixes, _, ends, _, news, found, pool = arguments
    sizes = zip(rows.tolist(), prefixes.tolist(), ends.tolist(), news.tolist(), strict=True)
    at = 0
    for (row, prefix, end, new), hit in zip(sizes, found, strict=True):
        pool.write((row, slice(0, prefix)), hit)
        pool.write((row, slice(prefix, end)), slots[at : at + new])
        at += new


def _host_options(hicache: HiCache | None) -> dict[str, Any]:
    """Return the options of a server with this host tier."""
    if hicache is None:
        return {}
    return {
        "enable_hierarchical_cache": True,
        "hicache_ratio": hicache.ratio,
        "hicache_write_policy": hicache.write_policy,
        "hicache_io_backend": "direct",
        "hicache_mem_layout": "layer_first",
    }
