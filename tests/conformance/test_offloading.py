"""vLLM's scheduler with its OffloadingConnector: the model does the same, chunk for chunk.

`make test-engine` runs these with vLLM 0.32, `make test-engine-0.33` with the Python of 0.33.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.vllm_sim.settings import EngineSettings, OffloadSettings, StorageSettings, Transfers
from tests.conformance.conversations import TokenRequest, conversations
from tests.conformance.kvscope_side import Model
from tests.conformance.offloading import (
    MIXES,
    RELEASE,
    SLOW,
    OffloadingScheduler,
    stepped,
    stepped_together,
)
from tests.conformance.stepping import SLOTS
from tests.long import long

pytestmark = pytest.mark.engine

TIERS: dict[str, dict[str, Any]] = {
    "lru": {"capacity_chunks": 150},
    "arc": {"capacity_chunks": 150, "eviction_policy": "arc"},
    "outputs": {"capacity_chunks": 150, "prompt_only": False},
    "chunks of 4": {"capacity_chunks": 40, "blocks_per_chunk": 4, "prompt_only": False},
    "arc, chunks of 3": {
        "capacity_chunks": 40,
        "blocks_per_chunk": 3,
        "eviction_policy": "arc",
        "prompt_only": False,
    },
    "threshold": {"capacity_chunks": 100, "store_threshold": 2},
    "arc, threshold": {"capacity_chunks": 100, "store_threshold": 3, "eviction_policy": "arc"},
    "few offers": {"capacity_chunks": 100, "store_threshold": 2, "max_tracker_size": 90},
    "tiny": {"capacity_chunks": 12, "prompt_only": False},
    "ample": {"capacity_chunks": 4000},
}
FILES = StorageSettings(read=Transfers(3.5, 0.5), write=Transfers(2.75, 0.25))
STORED: dict[str, dict[str, Any]] = {
    "lru": {"capacity_chunks": 60},
    "arc, outputs": {"capacity_chunks": 60, "eviction_policy": "arc", "prompt_only": False},
    "chunks of 4": {"capacity_chunks": 20, "blocks_per_chunk": 4, "prompt_only": False},
    "at once": {"capacity_chunks": 90, "storage": StorageSettings(), "prompt_only": False},
    "full": {"capacity_chunks": 60, "storage": replace(FILES, capacity_chunks=200)},
}
SPEEDS: dict[str, dict[str, Any]] = {"at once": {}, "slow": SLOW}


def traffic(requests: int, seed: int, mix: str, usable_blocks: int) -> list[TokenRequest]:
    """Generate traffic without requests that exceed so many blocks."""
    trace = conversations(requests, seed, MIXES[mix])
    return [replace(x, parent=-1) for x in trace if x.blocks(16) < usable_blocks]


@pytest.mark.parametrize("speed", ["slow", long("at once")])
@pytest.mark.parametrize("tier", TIERS)
def test_every_step_agrees(tmp_path: Path, tier: str, speed: str) -> None:
    """16 in flight: the same requests run, the same chunks are held in the same order, each step.

    And each request has the same hits on the GPU, tokens loaded, and time of its first token.
    """
    trace = traffic(150, len(tier) + len(speed), "chats", 80)
    offload = OffloadSettings(**TIERS[tier], **SPEEDS[speed])
    counts = stepped(tmp_path, trace, 80, offload)
    assert counts["loaded"] > 0 or tier == "tiny"
    assert (counts["evictions"] > 0) == (tier != "ample")


@pytest.mark.long
def test_a_policy_of_the_pool_adapts(tmp_path: Path) -> None:
    """Above a tier too, to the tokens that are neither cached nor loaded."""
    policy = TLru({"xi_percentile": 0.8, "next_prompt_tokens": 60})
    trace, offload = traffic(600, 3, "chats", 80), OffloadSettings(150, **SLOW)
    first = stepped(tmp_path, trace, 80, offload, compiled=False, policy=policy)
    assert first["xi"] != policy.values["xi_tokens"]


def stored(tier: str) -> OffloadSettings:
    """Return a CPU tier with files below it."""
    return OffloadSettings(**{"storage": FILES, **STORED[tier], **SLOW})


@pytest.mark.parametrize("tier", ["lru", long("arc, outputs"), long("full")])
def test_files_below_the_tier_agree(tmp_path: Path, tier: str) -> None:
    """The same with vLLM's TieringOffloadingManager, and what each request had read from files."""
    trace = traffic(100, len(tier), "chats", 80)
    counts = stepped(tmp_path, trace, 80, stored(tier), compiled=False)
    assert counts["read"] > 100
    assert counts["loaded"] > 500


@pytest.mark.parametrize("tier", ["lru", long("arc, outputs"), long("chunks of 4"), long("full")])
def test_files_of_several_engines_agree(tmp_path: Path, tier: str) -> None:
    """Three vLLMs on one folder: each finds what the others wrote, and writes what is not there."""
    trace = traffic(200, len(tier), "chats", 80)
    counts = stepped_together(tmp_path, trace, 3, 80, stored(tier))
    assert counts["read"] > 100
    assert counts["twice"] > 0 or tier != "lru"


@pytest.mark.long
def test_reads_that_drop_each_other_never_end(tmp_path: Path) -> None:
    """A prompt of 50 chunks in files never starts with a tier of 40; the model stops, vLLM not."""
    first, other = tuple(range(801)), tuple(range(5000, 5900))
    trace = [
        TokenRequest(prompt, (7,), None, arrival_s)
        for prompt, arrival_s in ((first, 0.0), (other, 100.0), (first, 300.0))
    ]
    offload = OffloadSettings(40, release=RELEASE, storage=StorageSettings())
    limits = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 256}
    vllm = OffloadingScheduler(tmp_path, trace, 16, 60, offload, **limits)
    model = Model(trace, 16, Lru(), EngineSettings(60, offload=offload, **limits))
    model.in_python()
    while model.run(1, 10, math.inf):
        vllm.step()
    assert model.machine.offload.state[0].stuck
    assert all(vllm.step() for _ in range(100))
    assert [request.is_finished() for request in vllm.requests] == [True, True, False]


@pytest.mark.parametrize("seed", [long(seed) for seed in range(8)])
@pytest.mark.parametrize("tier", [long(tier) for tier in STORED])
def test_thousands_of_requests_with_files_agree(tmp_path: Path, tier: str, seed: int) -> None:
    """300 requests of each mix in turn, in pools of 60 to 150 blocks."""
    mix, usable_blocks = list(MIXES)[seed % len(MIXES)], (60, 90, 150)[seed % 3]
    trace = traffic(300, 100 + seed, mix, usable_blocks)
    assert stepped(tmp_path, trace, usable_blocks, stored(tier))["read"] > 0


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_agrees(tmp_path: Path, mix: str) -> None:
    """The same for other traffic, with preemption."""
    trace = traffic(150, 11, mix, 60)
    offload = OffloadSettings(capacity_chunks=120, prompt_only=False, **SLOW)
    assert stepped(tmp_path, trace, 60, offload)["preemptions"] > 0


@pytest.mark.parametrize("tier", ["lru", "arc", "chunks of 4"])
def test_one_request_at_a_time_agrees(tmp_path: Path, tier: str) -> None:
    """The same where each request ends before the next one starts."""
    trace = traffic(150, 5, "repeats", 80)
    stepped(tmp_path, trace, 80, OffloadSettings(**TIERS[tier]), seqs=1, tokens=4096)


@pytest.mark.parametrize("seed", [long(seed) for seed in range(12)])
@pytest.mark.parametrize("tier", TIERS)
def test_thousands_of_requests_agree(tmp_path: Path, tier: str, seed: int) -> None:
    """600 requests of each mix in turn, slow or at once, in pools of 60 to 150 blocks."""
    mix = list(MIXES)[seed % len(MIXES)]
    usable_blocks = (60, 90, 150)[seed % 3]
    trace = traffic(600, 100 + seed, mix, usable_blocks)
    offload = OffloadSettings(**TIERS[tier], **SPEEDS["slow" if seed % 2 else "at once"])
    stepped(tmp_path, trace, usable_blocks, offload)
