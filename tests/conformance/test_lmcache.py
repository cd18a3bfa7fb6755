"""LMCache's own CPU backend and LRU under vLLM's cache manager, beside `--offload lmcache`.

Runs where LMCache 0.5.6 can be imported: unpack its wheel into a folder named in PYTHONPATH. What
its backend imports and does not use here gets a stand-in; its allocator is one that counts chunks.
One request at a time, as its connector for vLLM looks up and stores.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.policies.lru import Lru
from kvscope.vllm_sim.offload_engines import LmCacheSpec
from kvscope.vllm_sim.settings import NO_LIMIT, EngineSettings
from tests.conformance.conversations import TokenRequest
from tests.conformance.kvscope_side import Model
from tests.conformance.test_offloading import traffic
from tests.conformance.vllm_side import manager, vllm_request
from tests.long import long

pytestmark = pytest.mark.engine

BLOCK, CHUNK, POOL = 16, 64, 90


class _Chunk:
    """A chunk's memory, free again when nothing refers to it."""

    def __init__(self, memory: _Memory) -> None:
        self.memory, self.references, self.pins = memory, 1, 0
        memory.used += 1

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1
        self.memory.used -= self.references == 0

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1

    @property
    def can_evict(self) -> bool:
        return self.pins == 0 and self.references == 1


class _Memory:
    """Room for so many chunks."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.used = chunks, 0

    def allocate(self, *_: Any) -> _Chunk | None:
        return _Chunk(self) if self.used < self.chunks else None


def backend(monkeypatch: pytest.MonkeyPatch, chunks: int) -> Any:
    """Return LMCache's CPU backend with its LRU."""
    if importlib.util.find_spec("lmcache") is None:
        pytest.skip("no LMCache here: unpack its wheel into a folder of PYTHONPATH")
    if importlib.util.find_spec("aiofile") is None:
        monkeypatch.setitem(sys.modules, "aiofile", ModuleType("aiofile"))
    logging.getLogger("lmcache").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = importlib.import_module("lmcache.v1.storage_backend.local_cpu_backend")
    config = SimpleNamespace(
        cache_policy="LRU",
        local_cpu=True,
        lmcache_instance_id="",
        use_layerwise=False,
        enable_blending=False,
    )
    return own.LocalCPUBackend(config, memory_allocator=_Memory(chunks), dst_device="cpu")


def served(cpu: Any, trace: list[TokenRequest]) -> tuple[list[int], list[int]]:
    """Return each request's tokens hit in vLLM's pool and loaded from LMCache's backend."""
    cache, hits, loads = manager(POOL, BLOCK), [], []
    for number, tokens in enumerate(trace):
        request, prompt = vllm_request(number, tokens, BLOCK), tokens.prompt
        cache.new_step_starts()
        blocks, hit, *_ = cache.get_computed_blocks(request)
        ends = range(CHUNK, len(prompt) + 1, CHUNK)
        keys = [hash((tokens.salt, prompt[:end])) for end in ends]
        held = 0
        while held < len(keys) and cpu.contains(keys[held], pin=True):
            held += 1
        cpu.touch_cache()
        load = max(0, held * CHUNK - hit - (held * CHUNK == len(prompt)))
        for key in keys[:held]:
            cpu.unpin(key)
        new = len(prompt) - hit - load
        assert cache.allocate_slots(request, new, hit, blocks, num_external_computed_tokens=load)
        chunks = []
        for _ in keys[held:]:
            if (chunk := cpu.allocate(None, None, None, busy_loop=False)) is None:
                break
            chunks.append(chunk)
        cpu.batched_submit_put_task(keys[held:][: len(chunks)], chunks)
        for chunk in chunks:
            chunk.ref_count_down()
        request.num_computed_tokens = len(prompt)
        for token in tokens.output[:-1]:
            request.append_output_token_ids(token)
            cache.new_step_starts()
            assert cache.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        request.append_output_token_ids(tokens.output[-1])
        cache.free(request)
        hits.append(hit)
        loads.append(load)
    return hits, loads


@pytest.mark.parametrize("seed", [long(seed) for seed in range(3)])
@pytest.mark.parametrize("chunks", [long(25), long(60), long(120)])
@pytest.mark.parametrize("mix", [long(mix) for mix in ("chats", "repeats", "long prompts")])
def test_lmcache_loads_about_what_is_predicted(
    monkeypatch: pytest.MonkeyPatch, mix: str, chunks: int, seed: int
) -> None:
    """The pool's hits are equal, and the loads to 3 % of the prompts' tokens."""
    trace = [
        replace(request, output=request.output[:4], arrival_s=1000.0 * at)
        for at, request in enumerate(traffic(250, seed, mix, POOL))
    ]
    hits, loads = served(backend(monkeypatch, chunks), trace)
    tier = LmCacheSpec(chunk_size=CHUNK).settings(chunks * CHUNK // BLOCK, block_size=BLOCK)
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": NO_LIMIT}
    model = Model(trace, BLOCK, Lru(), EngineSettings(POOL, offload=tier, **limits))
    while model.run.py_func(model.machine, NO_LIMIT, NO_LIMIT, math.inf):
        pass
    external = model.machine.offload.members.external
    assert (model.machine.requests.hits * BLOCK).tolist() == hits
    prompts = sum(len(request.prompt) for request in trace)
    # The model loads a prompt's last token too, and computes it anew.
    predicted = np.minimum(external, [len(x.prompt) - 1 for x in trace] - np.array(hits))
    assert abs(predicted.sum() - sum(loads)) <= 0.03 * prompts
