"""vLLM's scheduler with its OffloadingConnector: the model does the same, chunk for chunk.

`make test-engine` runs these with vLLM 0.32, `make test-engine-0.33` with the Python of 0.33.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvscope.core.hits import standard
from kvscope.learning.guard import Guard
from kvscope.learning.offline.learners import plugin_tables
from kvscope.learning.returns.online import ReturnsLearner
from kvscope.learning.reverting.online import RevertingLearner
from kvscope.policies.gittins import Gittins
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.traffic import traffic as traffic_of
from kvscope.vllm_plugin.chunk_lanes import ChunkLanes
from kvscope.vllm_plugin.settings import PluginSettings
from kvscope.vllm_sim.settings import EngineSettings, OffloadSettings, StorageSettings, Transfers
from tests.conformance.conversations import TokenRequest, conversations, prompts_of
from tests.conformance.kvscope_side import Model
from tests.conformance.offloading import (
    MIXES,
    RELEASE,
    SLOW,
    Chunks,
    OffloadingScheduler,
    by_rank,
    model_chunks,
    stepped,
)
from tests.conformance.stepping import SLOTS
from tests.conformance.test_plugin import random_fit
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
    "tlru": {"capacity_chunks": 60},
}
TLRU = TLru({"xi_tokens": 200, "next_prompt_tokens": 60})
STORED["tlru"]["policy"] = TLRU
POLICIES: dict[str, dict[str, Any]] = {
    "tlru": {"capacity_chunks": 150, "policy": TLRU},
    "tlru, chunks of 4": {
        "capacity_chunks": 40,
        "blocks_per_chunk": 4,
        "prompt_only": False,
        "policy": TLRU,
    },
    "tlru, tiny": {"capacity_chunks": 12, "prompt_only": False, "policy": TLRU},
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
    trace = traffic(300, len(tier) + len(speed), "chats", 80)
    offload = OffloadSettings(**TIERS[tier], **SPEEDS[speed])
    counts = stepped(tmp_path, trace, 80, offload)
    assert counts["loaded"] > 0 or tier == "tiny"
    assert (counts["evictions"] > 0) == (tier != "ample")


@pytest.mark.parametrize("speed", ["slow", long("at once")])
@pytest.mark.parametrize("tier", ["tlru", "tlru, tiny", long("tlru, chunks of 4")])
def test_a_policy_of_the_plugin_agrees(tmp_path: Path, tier: str, speed: str) -> None:
    """kvscope's policy in vLLM's hook holds the chunks that the simulator's holds, each step.

    And it is another order than vLLM's LRU.
    """
    trace = traffic(300, len(tier) + len(speed), "chats", 80)
    offload = OffloadSettings(**POLICIES[tier], **SPEEDS[speed])
    counts = stepped(tmp_path, trace, 80, offload)
    assert counts["evictions"] > 0
    settings = EngineSettings(80, max_num_seqs=SLOTS, max_num_batched_tokens=256)
    lru = replace(offload, policy=None, release=RELEASE)
    model = Model(trace, 16, Lru(), replace(settings, offload=lru))
    model.finish(len(trace))
    assert counts["loaded"] != model.machine.offload.members.external.sum()


@pytest.mark.long
def test_a_policy_of_the_pool_adapts(tmp_path: Path) -> None:
    """Above a tier too, to the tokens that are neither cached nor loaded."""
    policy = TLru({"xi_percentile": 0.8, "next_prompt_tokens": 60})
    trace, offload = traffic(600, 3, "chats", 80), OffloadSettings(150, **SLOW)
    first = stepped(tmp_path, trace, 80, offload, compiled=False, policy=policy)
    assert first["xi"] != policy.values["xi_tokens"]


@pytest.mark.long  # a kernel of its own
def test_a_guarded_tlru_takes_its_order_up(tmp_path: Path) -> None:
    """The tier begins with LRU; T-LRU's lanes count once its shadow computes surely less."""
    policy, trace = TLru({**TLRU.values, "guard": 1.0}), traffic(600, 5, "chats", 80)
    known = traffic_of(prompts_of(trace, 16), standard())
    offload, evictions = OffloadSettings(150, policy=policy, **SLOW), list[int]()
    switched = RevertingLearner.switched

    def noted(learner: RevertingLearner) -> bool:
        changed = switched(learner)
        if changed:
            evictions.append(learner.candidate)
        return changed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RevertingLearner, "switched", noted)
        tables = plugin_tables(known, policy, None)
        counts = stepped(tmp_path, trace, 80, offload, chunk_tables=tables)
    assert evictions[0] == 1
    assert counts["evictions"] > 1000


@pytest.mark.parametrize("xi", [long(0), long(200)])
@pytest.mark.parametrize("tier", [long(tier) for tier in POLICIES])
def test_gittins_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str, xi: int
) -> None:
    """By a random table, without its guard: many lanes, whose worths rise and fall with age."""
    policy = Gittins({"xi_tokens": xi, "next_prompt_tokens": 60})
    offload = OffloadSettings(**{**POLICIES[tier], "policy": policy}, **SLOW)
    trace, fitted = traffic(300, xi + len(tier), "chats", 80), random_fit(xi > 0, len(tier))
    monkeypatch.setattr(ReturnsLearner, "guard", lambda *_: None)
    monkeypatch.setattr(PluginSettings, "for_chunks", lambda *_: (policy, fitted))
    known = traffic_of(prompts_of(trace, 16), standard())
    tables = replace(plugin_tables(known, policy, fitted), choose=None)
    assert stepped(tmp_path, trace, 80, offload, chunk_tables=tables)["evictions"] > 300


@pytest.mark.parametrize("why", ["a guard in doubt", "a fault", long("no parameters")])
def test_what_is_not_in_force_is_vllms_lru(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """The chunks held are those of the simulated LRU, before and after a fault, each step."""
    policy = TLru({**TLRU.values, "guard": 1.0})
    if why == "a fault":
        choose, calls = ChunkLanes.choose, itertools.count()

        def failing(*of: Any) -> Any:
            if next(calls) == 40:
                raise ZeroDivisionError
            return choose(*of)

        monkeypatch.setattr(ChunkLanes, "choose", failing)
    monkeypatch.setattr(Guard, "judge", lambda *_: False)
    offload, trace = OffloadSettings(150, policy=policy, **SLOW), traffic(300, 9, "chats", 80)
    limits = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 256}
    if why == "no parameters":
        monkeypatch.setattr(PluginSettings, "for_chunks", lambda *_: None)
    vllm = OffloadingScheduler(tmp_path, trace, 16, 80, offload, **limits)
    lru = replace(offload, policy=None, release=RELEASE)
    model, chunks = Model(trace, 16, Lru(), EngineSettings(80, offload=lru, **limits)), Chunks()
    while vllm.step():
        model.step()
        assert chunks.agree(by_rank(vllm), model_chunks(model.machine.offload)[0])
    assert model.machine.offload.state[0].evictions > 400
    logged = [record.message for record in caplog.records if "CPU tier" in record.message]
    expected = {"a fault": ["has failed"], "no parameters": ["name no policy"]}.get(why, [])
    assert len(logged) == len(expected)
    assert all(words in line for words, line in zip(expected, logged, strict=True))


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
    while model.run.py_func(model.machine, 1, 10, math.inf):
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
    trace = traffic(300, 11, mix, 60)
    offload = OffloadSettings(capacity_chunks=120, prompt_only=False, **SLOW)
    assert stepped(tmp_path, trace, 60, offload)["preemptions"] > 0


@pytest.mark.parametrize("tier", ["lru", "arc", "chunks of 4"])
def test_one_request_at_a_time_agrees(tmp_path: Path, tier: str) -> None:
    """The same where each request ends before the next one starts."""
    trace = traffic(300, 5, "repeats", 80)
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
