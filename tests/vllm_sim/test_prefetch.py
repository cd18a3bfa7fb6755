"""SGLang's prefetches from storage below a CPU tier, on traffic small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.ingest.formats.base import Request
from kvscope.vllm_sim.offload_state import NO_FETCH
from kvscope.vllm_sim.prefetch import BATCH_PAGES
from kvscope.vllm_sim.replay import replayed
from kvscope.vllm_sim.settings import (
    NO_LIMIT,
    PrefetchPolicy,
    PrefetchSettings,
    StorageSettings,
    Transfers,
)
from kvscope.vllm_sim.state import Machine
from tests.vllm_sim.examples import SIZE, asks
from tests.vllm_sim.test_offload import AFTER, BEFORE, BETWEEN, loaded, offloaded

POLICIES: tuple[PrefetchPolicy, ...] = ("best_effort", "wait_complete", "timeout")
READS = Transfers(2.0, 0.25)


def fetched(
    *requests: Request, policy: PrefetchPolicy = "wait_complete", **options: Any
) -> Machine:
    """Return a HiCache after all requests, with room for six blocks in memory and files below."""
    storage = options.pop("storage", StorageSettings(read=READS))
    names = ("least_blocks", "timeout_base_s", "timeout_block_s")
    waits = {name: options.pop(name) for name in names if name in options}
    storage = replace(storage, prefetch=PrefetchSettings(policy, **waits))
    usual = {"capacity_chunks": 6, "prompt_only": False, "least_load_blocks": 1}
    machine = offloaded(*requests, storage=storage, **{**usual, **options})
    state, chunks = machine.offload.state[0], machine.offload.chunks
    assert state.fetching == 0
    assert (machine.offload.fetches.stage == NO_FETCH).all()
    assert np.count_nonzero(chunks.place[: len(machine.nodes)] == 0) == state.held
    assert state.evictable == state.held <= state.capacity
    assert not chunks.answer.any()
    return machine


def read(machine: Machine) -> list[int]:
    """Return the blocks that each request loaded after it had read them from storage."""
    return machine.offload.members.read.tolist()  # type: ignore[no-any-return]


def test_a_new_request_is_prefetched() -> None:
    """The pool has a, memory b of "abcd"; c and d are read in 2.5 s, then three blocks loaded."""
    machine = fetched(BEFORE, BETWEEN, AFTER)
    assert machine.requests.hits.tolist() == [0, 0, 1]
    assert (loaded(machine), read(machine)) == ([0, 0, 3], [0, 0, 2])
    assert machine.requests.first_token_s.tolist() == [1.0, 101.0, 203.5]
    done = replayed(machine)
    assert done.stored_chunks == 9  # each block once; what was read is not counted again
    assert done.read_blocks is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_without_hits_in_storage_nothing_changes(policy: PrefetchPolicy) -> None:
    """Files that cannot be written, or a memory that holds everything: as without them."""
    alone = offloaded(
        BEFORE, BETWEEN, AFTER, capacity_chunks=6, prompt_only=False, least_load_blocks=1
    )
    none = fetched(BEFORE, BETWEEN, AFTER, policy=policy, storage=StorageSettings(0, READS))
    assert none.offload.state[0].full == 11  # c and d are stored twice
    for name in ("hits", "first_token_s", "finished_s"):
        assert none.requests[name].tolist() == alone.requests[name].tolist()
    assert loaded(none) == loaded(alone)
    ample = fetched(BEFORE, BETWEEN, AFTER, policy=policy, capacity_chunks=100)
    assert (loaded(ample), read(ample)) == ([0, 0, 3], [0, 0, 0])


@pytest.mark.parametrize(("least", "blocks"), [(2, 2), (3, 2), (4, 0)])
def test_the_threshold_is_of_what_storage_has(least: int, blocks: int) -> None:
    """Of "abcdx" memory lacks c, d and x; storage has two of the three."""
    asked = (BEFORE, BETWEEN, asks("abcdxy", 24, at=200.0))
    expected = blocks if least <= 2 else 0
    machine = fetched(*asked, blocks=6, least_blocks=least)
    assert read(machine)[2] == expected


def test_best_effort_does_not_wait() -> None:
    """The engine is idle, so the request starts at once, with b from memory."""
    machine = fetched(BEFORE, BETWEEN, AFTER, policy="best_effort")
    assert (loaded(machine), read(machine)) == ([0, 0, 1], [0, 0, 0])
    assert machine.requests.first_token_s[2] == 201.0


@pytest.mark.parametrize(("blocks", "start_s"), [(2, 201.0), (3, 201.25), (2000, 202.5)])
def test_a_timeout_ends_the_wait(blocks: int, start_s: float) -> None:
    """One second, then a quarter for each of the blocks wanted; a read of 2.5 s ends sooner."""
    wait_s = 1.0 if blocks == 2 else 0.5 if blocks == 3 else 500.0
    machine = fetched(
        BEFORE,
        BETWEEN,
        AFTER,
        policy="timeout",
        timeout_base_s=wait_s,
        timeout_block_s=0.0 if blocks == 2 else 0.375,
    )
    assert machine.requests.first_token_s[2] == start_s + 1.0
    assert read(machine)[2] == (2 if blocks == 2000 else 0)


def numbered(first: int, blocks: int, at: float) -> Request:
    """Return a request for blocks called by numbers."""
    ids = list(range(first, first + blocks))
    return Request(input_tokens=SIZE * blocks, output_tokens=1, arrival_s=at, hash_ids=ids)


@pytest.mark.parametrize(
    ("base_s", "batches"), [(0.5, 0), (129.0, 1), (256.0, 1), (257.5, 2), (900.0, 3)]
)
def test_a_prefetch_that_is_stopped_keeps_whole_batches(base_s: float, batches: int) -> None:
    """Three batches of 128 blocks, a block a second after a latency of one."""
    pages = 3 * BATCH_PAGES
    asked = (
        numbered(0, pages, 0.0),
        numbered(1000, pages, 1000.0),
        numbered(0, pages + 1, 2000.0),
    )
    slow = StorageSettings(read=Transfers(1.0, 1.0))
    machine = fetched(
        *asked,
        policy="timeout",
        timeout_base_s=base_s,
        storage=slow,
        blocks=pages + 2,
        capacity_chunks=pages,
    )
    hits = int(machine.requests.hits[2])
    assert read(machine)[2] == min(batches * BATCH_PAGES, pages - hits)


def traffic(seed: int) -> list[Request]:
    """Return conversations that come back, some at the same time."""
    draw = np.random.default_rng(seed)
    turns, at = [3] * 6, 0.0
    asked = []
    for _ in range(20):
        user = int(draw.integers(6))
        turns[user] += int(draw.integers(1, 3))
        at += float(draw.choice([0.0, 0.25, 2.0, 6.0]))
        ids = [100 * user + block for block in range(min(turns[user], 12))]
        asked.append(
            Request(input_tokens=SIZE * len(ids), output_tokens=2, arrival_s=at, hash_ids=ids)
        )
    return asked


WRITES = {
    "write_through": {},
    "write_through_selective": {"store_threshold": 2, "forgets_offers": True},
    "write_back": {"write_back": True},
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("seed", range(2))
def test_accounts_add_up(write: str, seed: int) -> None:
    """In busy traffic each hit has a place of its own, and a longer wait reads no less."""
    asked, total = traffic(seed), {}
    storage = StorageSettings(read=Transfers(0.5, 0.25), write=Transfers(0.1, 0.05))
    common = {
        "blocks": 16,
        "capacity_chunks": 24,
        "least_blocks": 2,
        "storage": storage,
        "max_tracker_size": NO_LIMIT,
        **WRITES[write],
    }
    for policy in POLICIES:
        machine = fetched(*asked, policy=policy, timeout_base_s=1.0, **common)
        done, state = replayed(machine), machine.offload.state[0]
        assert done.loaded_blocks is not None
        assert done.read_blocks is not None
        prompts = (machine.requests.prompt - 1) // SIZE
        assert (done.hit_blocks + done.loaded_blocks <= prompts).all()
        assert (done.read_blocks <= done.loaded_blocks).all()
        assert done.read_blocks.sum() <= state.read_chunks
        assert state.written_chunks == state.stored_chunks <= done.stored_chunks
        total[policy] = int((done.hit_blocks + done.loaded_blocks).sum())
    assert total["wait_complete"] >= total["best_effort"]
