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
from kvscope.vllm_sim.engine import engine_function
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
    engine_function(machine)(machine, FOREVER, FOREVER, math.inf)
    assert machine.state[0].finished == len(requests)
    return machine


FILES = StorageSettings(100, Transfers(2.0, 0.25), Transfers(1.0, 0.5))
USUAL, ONE = (BEFORE, BETWEEN, AFTER), (asks("abcd", 16),)
# What the tier does: the requests, its options, and what there was of it in the end.
RULES: dict[str, tuple[tuple[Request, ...], dict[str, Any], dict[str, Any]]] = {
    "the pool of five keeps the head of the first request, the tier all four of its blocks": (
        USUAL,
        {},
        {"hits": [0, 0, 1], "loaded": [0, 0, 3], "first_token_s": [1.0, 101.0, 201.0]},
    ),
    "a load takes two seconds, and a quarter for each of three chunks, before the step": (
        USUAL,
        {"load": Transfers(2.0, 0.25)},
        {"first_token_s": [1.0, 101.0, 203.75]},
    ),
    "outputs are not stored": ((asks("ab", 8, outputs=9),), {}, {"stored": 2}),
    "but on request": ((asks("ab", 8, outputs=9),), {"prompt_only": False}, {"stored": 4}),
    "five blocks are two whole chunks of two": (
        (asks("abcde", 20),),
        {"blocks": 6, "blocks_per_chunk": 2},
        {"stored": 2},
    ),
    "all blocks are offered once": (USUAL, {"store_threshold": 1}, {"stored": 9}),
    "only four, which two requests compute, are offered twice": (
        USUAL,
        {"store_threshold": 2},
        {"stored": 4},
    ),
    "none is offered three times": (USUAL, {"store_threshold": 3}, {"stored": 0}),
    # Of "abcd" and "efgh" in six places, c and d go. The pool has a, so b is loaded.
    "a full tier evicts the tail of the oldest prefix": (
        USUAL,
        {"capacity_chunks": 6},
        {"loaded": [0, 0, 1]},
    ),
    # c and d take the places of b and a. The pool has a; b takes that of d, and d that of g. Each
    # round of reads takes 2 s, and 0.25 s a chunk; the load and the step take another second.
    "files keep what the tier evicts, and are read in two rounds": (
        USUAL,
        {"capacity_chunks": 6, "storage": FILES},
        {
            "loaded": [0, 0, 3],
            "read": [0, 0, 3],
            "written": 9,
            "first_token_s": [1.0, 101.0, 201 + 2 * 2.0 + 0.25 * 3],
        },
    ),
    # d is not read back but stored anew. No file of d the first time, of "efgh", and of x.
    "with room for three files, nothing is deleted and no more is written": (
        USUAL,
        {"capacity_chunks": 4, "storage": StorageSettings(3)},
        {"full": 7, "loaded": [0, 0, 2]},
    ),
    # a and b make room for g and h, so b is computed again.
    "with room for six files, those used least recently leave": (
        USUAL,
        {"capacity_chunks": 4, "storage": StorageSettings(6, evicts=True)},
        {"full": 0, "loaded": [0, 0, 0], "evicted": 2},
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: str) -> None:
    """Hits, blocks loaded and read from files, first tokens, and counts of chunks."""
    requests, options, expected = RULES[rule]
    machine = offloaded(*requests, **options)
    state, members = machine.offload.state[0], machine.offload.members
    seen = {
        "hits": machine.requests.hits.tolist(),
        "loaded": (members.external // SIZE).tolist(),
        "read": members.read.tolist(),
        "first_token_s": machine.requests.first_token_s.tolist(),
        "stored": state.stored,
        "written": state.written_chunks,
        "full": machine.offload.pool[0].full,
        "evicted": machine.offload.pool[0].evictions,
    }
    assert {name: seen[name] for name in expected} == expected


def test_a_request_waits_for_a_store_of_its_prefix() -> None:
    """The third request comes while the first one's chunks are being copied, for 300 s."""
    machine = offloaded(*USUAL, store=Transfers(300.0))
    assert (machine.offload.members.external // SIZE).tolist() == [0, 0, 3]
    assert machine.requests.first_token_s[2] > 300


def test_a_store_larger_than_the_tier_is_refused() -> None:
    """Nothing is stored where not all of it fits, and each step tries again."""
    state = offloaded(*ONE, capacity_chunks=3).offload.state[0]
    assert (state.stored, state.refused > 0) == (0, True)


def test_a_tier_smaller_than_a_prompt_never_serves_it() -> None:
    """Of four files, two fit in memory: reading one drops another, in vLLM without end."""
    halves, between = asks("abcd", 16, outputs=6), asks("efghi", 20, at=100.0)
    tier = OffloadSettings(2, storage=StorageSettings())
    settings = EngineSettings(6, max_num_batched_tokens=8, offload=tier)
    machine = idle_machine(told(halves, between, AFTER), Lru(), settings, SECONDS)
    engine_function(machine)(machine, FOREVER, FOREVER, math.inf)
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
