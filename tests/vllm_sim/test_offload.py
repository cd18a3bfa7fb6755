"""A CPU tier below the simulated engine, on traffic small enough to follow by hand.

`tests/conformance/test_offloading.py` compares it with vLLM's own code.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvscope.core.errors import UsageError
from kvscope.ingest.formats.base import Request
from kvscope.policies.lru import Lru
from kvscope.vllm_sim.engine import engine_kernel
from kvscope.vllm_sim.replay import replayed
from kvscope.vllm_sim.settings import EngineSettings, OffloadSettings, StorageSettings, Transfers
from kvscope.vllm_sim.state import Machine, idle_machine
from tests.vllm_sim.examples import FOREVER, SECONDS, SIZE, asks, told

BEFORE, BETWEEN, AFTER = (
    asks("abcd", 16),
    asks("efgh", 16, at=100.0),
    asks("abcdx", 20, at=200.0),
)


def offloaded(*requests: Request, blocks: int = 5, **options: Any) -> Machine:
    """Return the engine after all requests, its tier of 100 chunks if `options` name no other."""
    tier = OffloadSettings(**{"capacity_chunks": 100, **options})
    machine = idle_machine(told(*requests), Lru(), EngineSettings(blocks, offload=tier), SECONDS)
    engine_kernel(machine).py_func(machine, FOREVER, FOREVER, math.inf)
    assert machine.state[0].finished == len(requests)
    return machine


def loaded(machine: Machine) -> list[int]:
    """Return the blocks that each request loaded."""
    return (machine.offload.members.external // SIZE).tolist()  # type: ignore[no-any-return]


def test_loads_what_the_gpu_evicted() -> None:
    """The pool of five keeps the head of the first request, the tier all four blocks of it."""
    machine = offloaded(BEFORE, BETWEEN, AFTER)
    assert machine.requests.hits.tolist() == [0, 0, 1]
    assert loaded(machine) == [0, 0, 3]
    assert machine.requests.first_token_s.tolist() == [1.0, 101.0, 201.0]


def test_a_load_takes_its_time() -> None:
    """Two seconds, and a quarter for each of three chunks, before the step for the rest."""
    machine = offloaded(BEFORE, BETWEEN, AFTER, load=Transfers(2.0, 0.25))
    assert machine.requests.first_token_s.tolist() == [1.0, 101.0, 203.75]


def test_a_request_waits_for_a_store_of_its_prefix() -> None:
    """The third request comes while the first one's chunks are being copied, for 300 s."""
    machine = offloaded(BEFORE, BETWEEN, AFTER, store=Transfers(300.0))
    assert loaded(machine) == [0, 0, 3]
    assert machine.requests.first_token_s[2] > 300


@pytest.mark.parametrize(("prompt_only", "stored"), [(True, 2), (False, 4)])
def test_outputs_are_stored_only_on_request(prompt_only: bool, stored: int) -> None:
    """A prompt of two blocks and an output that fills two more."""
    machine = offloaded(asks("ab", 8, outputs=9), prompt_only=prompt_only)
    assert machine.offload.state[0].stored == stored


def test_whole_chunks_only() -> None:
    """Five blocks are two chunks of two, and a load of three of them one chunk."""
    machine = offloaded(asks("abcde", 20), blocks=6, blocks_per_chunk=2)
    assert machine.offload.state[0].stored == 2


@pytest.mark.parametrize(("threshold", "stored"), [(0, 9), (1, 9), (2, 4), (3, 0)])
def test_a_threshold_counts_offers(threshold: int, stored: int) -> None:
    """Only the four blocks that two requests compute are offered twice."""
    machine = offloaded(BEFORE, BETWEEN, AFTER, store_threshold=threshold)
    assert machine.offload.state[0].stored == stored


def test_a_full_tier_evicts_the_oldest_tail_first() -> None:
    """Of "abcd" and "efgh" in six places, the tail of the older prefix goes: c and d.

    The pool has a, so b is loaded.
    """
    machine = offloaded(BEFORE, BETWEEN, AFTER, capacity_chunks=6)
    assert loaded(machine) == [0, 0, 1]


def test_a_store_larger_than_the_tier_is_refused() -> None:
    """Nothing is stored where not all of it fits, and each step tries again."""
    machine = offloaded(asks("abcd", 16), capacity_chunks=3)
    assert machine.offload.state[0].stored == 0
    assert machine.offload.state[0].refused > 0


FILES = StorageSettings(100, Transfers(2.0, 0.25), Transfers(1.0, 0.5))


def test_storage_keeps_what_the_tier_evicts() -> None:
    """A tier of six makes room for "efgh", so "cd" is read from files: twice, b in between.

    c and d take the places of b and a. The pool has a; b takes that of d, and d that of g. Each
    round of reads takes 2 s, and 0.25 s a chunk; the load and the step take another second.
    """
    machine = offloaded(BEFORE, BETWEEN, AFTER, capacity_chunks=6, storage=FILES)
    assert loaded(machine) == [0, 0, 3]
    assert machine.offload.members.read.tolist() == [0, 0, 3]
    assert machine.offload.state[0].written_chunks == 9
    assert machine.requests.first_token_s[2] == 201 + 2 * 2.0 + 0.25 * 3


def test_storage_deletes_nothing() -> None:
    """With room for three files, d is not read back but stored anew, and no file is written.

    Nor was one of d the first time, of "efgh", and of x.
    """
    few = StorageSettings(3)
    machine = offloaded(BEFORE, BETWEEN, AFTER, capacity_chunks=4, storage=few)
    assert machine.offload.state[0].full == 7
    assert loaded(machine) == [0, 0, 2]


def test_a_tier_smaller_than_a_prompt_never_serves_it() -> None:
    """Of four files, two fit in memory: reading one drops another, in vLLM without end."""
    halves, between = asks("abcd", 16, outputs=6), asks("efghi", 20, at=100.0)
    tier = OffloadSettings(2, storage=StorageSettings())
    settings = EngineSettings(6, max_num_batched_tokens=8, offload=tier)
    machine = idle_machine(told(halves, between, AFTER), Lru(), settings, SECONDS)
    engine_kernel(machine).py_func(machine, FOREVER, FOREVER, math.inf)
    assert machine.offload.state[0].stuck
    with pytest.raises(UsageError, match="1 requests never start"):
        replayed(machine)


def test_refuses_what_is_not_modelled() -> None:
    """Steps planned ahead, and a threshold with files."""
    tier = OffloadSettings(8)
    with pytest.raises(UsageError, match="planned one by one"):
        EngineSettings(8, async_scheduling=True, offload=tier)
    with pytest.raises(UsageError, match="refuses store_threshold"):
        OffloadSettings(8, store_threshold=2, storage=FILES)
