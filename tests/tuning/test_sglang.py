"""A deployment of SGLang: its replays, replicas and fleets are those of its prefix tree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvscope.core.hits import LIBCACHESIM, standard
from kvscope.deployment.deployment import Deployment, resolve
from kvscope.deployment.engines import WRITE_POLICIES, WritePolicy
from kvscope.fleet.outcome import Slo
from kvscope.fleet.sweep import Fleet, FleetSweep
from kvscope.ingest.pipeline import ingest
from kvscope.policies.belady import Belady
from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.attribution import attribute, lru_cache_lookups
from kvscope.replay.derived_traces import select
from kvscope.replay.findings import findings
from kvscope.replay.prompt_parts import breaks
from kvscope.replay.replay import replay
from kvscope.replay.settings import with_groups
from kvscope.replay.sweep import serve_replay
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.report import overview
from kvscope.report.words import share
from kvscope.routers.balancers import LeastRequests
from kvscope.sglang_sim.replay import HostTier, serve_tree
from kvscope.store.db import MEMORY, open_store
from kvscope.tuning.replicas import SESSION, serve_replicas, split_over, together
from kvscope.tuning.target import Target
from kvscope.tuning.trial import Evaluator
from kvscope.tuning.tuner import lossless
from kvscope.usecases.analyze import AnalyzeOptions, analyze, analyze_request
from kvscope.usecases.explain import ExplainOptions, explain_request
from kvscope.usecases.simulate import SimulateOptions, simulate_request
from tests.cli.tune.asked import write_trace
from tests.tuning.examples import chats, workload

TLRU = TLru({"xi_tokens": 64, "next_prompt_tokens": 16})
CAPACITY = 300


def _sglang(**changes: object) -> Workload:
    """Return chats on a deployment of SGLang, whose prompts have chunks of 512 tokens."""
    where = resolve(
        Deployment(gpu="h100", model="llama3-8b", engine="sglang", max_num_batched_tokens=512)
    )
    known = workload(chats(seed=4))
    setting = replace(known.setting, **changes)  # type: ignore[arg-type]
    setting, _ = with_groups(setting, None, known.prompts.block_size, where)
    return Workload(known.prompts, setting, known.windows)


def test_replays_are_those_of_the_tree() -> None:
    """With the deployment's chunks; policies that it lacks are replayed on blocks."""
    on_sglang = _sglang()
    assert (on_sglang.setting.engine, on_sglang.setting.max_num_batched_tokens) == (
        "sglang@0.5",
        512,
    )
    for policy in (Lru(), TLRU):
        done = serve_replay(on_sglang, ReplayRequest(policy, CAPACITY))
        tree = serve_tree(on_sglang.traffic, policy, CAPACITY, on_sglang.profile, chunk_tokens=512)
        assert np.array_equal(done.served.hit_blocks, tree.hit_blocks)
        assert done.served.queued_ttft_s is not None
        waited_s = tree.token_s - on_sglang.prompts.arrival_s
        assert np.array_equal(done.served.queued_ttft_s, waited_s)
        assert done.evictions == tree.evictions > 0
        on_blocks = replay(on_sglang.traffic, policy, CAPACITY)
        assert not np.array_equal(on_blocks.hit_blocks, tree.hit_blocks)
    best = serve_replay(on_sglang, ReplayRequest(Belady(), CAPACITY)).served
    assert np.array_equal(best.hit_blocks, replay(on_sglang.traffic, Belady(), CAPACITY).hit_blocks)


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_a_host_tier_is_part_of_the_engine(write_policy: WritePolicy) -> None:
    """Of the stated size, written when it is stated, with hits and evictions of its own."""
    text = f"sglang@0.5:hicache_ratio=1.5:hicache_write_policy={write_policy}"
    on_sglang = _sglang(engine=text, max_num_seqs=2048, max_num_batched_tokens=512)
    done = serve_replay(on_sglang, ReplayRequest(Lru(), CAPACITY))
    host = HostTier(CAPACITY * 3 // 2, write_policy)
    tree = serve_tree(
        on_sglang.traffic, Lru(), CAPACITY, on_sglang.profile, chunk_tokens=512, host=host
    )
    assert np.array_equal(done.served.hit_blocks, tree.hit_blocks)
    gpu, dram = done.tiers
    assert dram.hit_blocks == tree.loaded_blocks.sum() > 0
    assert gpu.hit_blocks == (tree.hit_blocks - tree.loaded_blocks).sum()
    assert (gpu.evictions, dram.evictions) == (tree.evictions, tree.host_evictions)
    assert done.served.stored_blocks == tree.stored_blocks


def test_other_ways_to_count_are_replayed_on_blocks() -> None:
    """A peer's definition of hits is no engine's."""
    assert not _sglang(definition=LIBCACHESIM).on_tree(Lru())
    assert not workload(chats(seed=4)).on_tree(Lru())


def test_requests_that_do_not_fit_are_rejected() -> None:
    """They have no time to a first token, as on an engine."""
    on_sglang = _sglang()
    needed = -(-(on_sglang.traffic.history_tokens - 1) // 16)
    capacity = int(needed.max()) - 1
    done = serve_replay(on_sglang, ReplayRequest(Lru(), capacity))
    assert done.served.queued_ttft_s is not None
    assert np.array_equal(np.isnan(done.served.queued_ttft_s), needed > capacity)
    assert done.turned_away == np.sum(needed > capacity) > 0


def test_an_ample_pool_evicts_nothing() -> None:
    """The capacity at which the tuner stops to search."""
    on_sglang = _sglang()
    evaluator = Evaluator(on_sglang, Target(0.2))
    done = serve_replay(on_sglang, ReplayRequest(Lru(), lossless(evaluator)))
    assert done.evictions == 0


def test_replicas_behind_session_are_trees_of_their_own() -> None:
    """The fleet and the plan have the same hits and times."""
    on_sglang = _sglang()
    fleet = FleetSweep(on_sglang, CAPACITY, Slo(0.2, 0.95))
    done = fleet.replay(Fleet(SESSION, TLRU, 3))
    replicas = split_over(on_sglang, 3)
    parts = serve_replicas(replicas, ReplayRequest(TLRU, CAPACITY))
    served = together(on_sglang, replicas, parts)
    assert np.array_equal(done.hit_blocks, served.hit_blocks)
    assert served.queued_ttft_s is not None
    assert np.allclose(done.ttft_s, served.queued_ttft_s)
    assert done.hit_blocks.any()


def test_a_router_that_sees_loads_chooses_by_replicas_that_evict_blocks() -> None:
    """What its replicas then hit, and when, is their trees'."""
    on_sglang = _sglang()
    router = LeastRequests()
    done = FleetSweep(on_sglang, CAPACITY, Slo(0.2, 0.95)).replay(Fleet(router, Lru(), 3))
    on_blocks = FleetSweep(workload(chats(seed=4)), CAPACITY, Slo(0.2, 0.95)).replay(
        Fleet(router, Lru(), 3)
    )
    assert np.array_equal(done.replica, on_blocks.replica)
    for number in range(3):
        own = np.flatnonzero(done.replica == number)
        part = Workload(select(on_sglang.prompts, own), on_sglang.setting, on_sglang.windows)
        tree = on_sglang.serve_tree(part.traffic, Lru(), CAPACITY)
        assert np.array_equal(done.hit_blocks[own], tree.hit_blocks)
        assert np.array_equal(done.end_s[own], tree.end_s)
        assert done.evictions[number] == tree.evictions > 0


def test_requests_of_one_time_wait_for_each_other_in_a_part_too() -> None:
    """The trace has times, whichever requests a replica gets."""
    on_sglang = _sglang()
    first = np.arange(5)
    part = Workload(select(on_sglang.prompts, first), on_sglang.setting, on_sglang.windows).traffic
    at_once = part._replace(arrival_s=np.full(5, 10.0))
    done = on_sglang.serve_tree(at_once, Lru(), CAPACITY)
    assert (np.diff(done.begin_s) >= 0).all()
    assert done.begin_s[0] == 10.0 < done.begin_s[-1]
    assert done.token_s[-1] < 20.0


def test_simulate_and_explain_replay_the_tree() -> None:
    """With the chunks that are stated, and by default all policies that SGLang has, unguarded."""
    where = {"gpu": "h100", "model": "llama3-8b", "engine": "sglang"}
    request = simulate_request(SimulateOptions(**where, max_num_batched_tokens=512))
    assert [each.policy.name for each in request.variants] == ["lru", "fifo", "lfu", "slru", "tlru"]
    assert not any(each.given for each in request.variants)
    explained = explain_request(ExplainOptions(**where, max_num_batched_tokens=512)).replayed
    for setting in (request.setting, explained.setting):
        assert setting.on_tree
        assert (setting.engine, setting.max_num_batched_tokens) == ("sglang@0.5", 512)
    other = simulate_request(SimulateOptions(**where, compat="libcachesim"))
    assert not other.setting.on_tree
    assert "belady" in {each.policy.name for each in other.variants}


def test_analyze_says_what_the_pool_counts(tmp_path: Path) -> None:
    """Its row is of the tree, with running requests; what idle blocks need does not contradict."""
    asked = analyze_request(
        AnalyzeOptions(gpu="h100", model="llama3-8b", engine="sglang", num_gpu_blocks=4_400)
    )
    with open_store(MEMORY) as store:
        trace = ingest(store, str(write_trace(tmp_path / "chats.jsonl", chats(seed=4)))).trace
        analysis = analyze(store, trace, asked)
    assert analysis.pool is not None
    assert analysis.caching is not None
    screen = overview.headline(analysis)
    assert (
        screen.tables[0].note
        == "pool: as replayed, with running requests; others: idle blocks only"
    )
    words = " ".join(screen.sentences)
    assert " with the KV pool: " in words
    assert "LRU needs " in words
    rate = 0.95 * analysis.caching.ideal
    more = replace(analysis, pool=replace(analysis.pool, token_hit_rate=rate))
    screen = overview.headline(more)
    assert f"LRU hits {share(rate)} of the input tokens" in " ".join(screen.sentences)
    assert "LRU needs" not in " ".join([*screen.sentences, *(each.label for each in screen.tiles)])


def test_explain_advises_from_one_point_on_and_not_on_the_traces_blocks() -> None:
    """SGLang's own are single tokens already; a page that is the trace's could be smaller."""
    known = workload(chats(seed=4))

    def remedies(beyond: int, page: int | None) -> dict[str, str]:
        """Return what to change where so many tokens of each prompt are in no full block."""
        inputs = known.prompts.full_blocks * known.prompts.block_size + beyond
        prompts = replace(known.prompts, input_tokens=inputs.astype(np.int32))
        causes = attribute(prompts, standard(), lru_cache_lookups(prompts, standard(), None))
        where = resolve(Deployment(gpu="h100", model="llama3-8b", engine="sglang", block_size=page))
        found = findings(prompts, causes, breaks(prompts, causes, None), where.block_tokens)
        assert all(each.share >= 0.01 for each in found)
        return {each.cause: each.remedy for each in found}

    nothing = "nothing, as the trace's blocks have 16 tokens, the engine's {}"
    assert remedies(7, None)["below-block"] == nothing.format(1)
    assert remedies(7, 64)["below-block"] == nothing.format(64)
    assert remedies(7, 16)["below-block"].startswith("take smaller blocks")
    assert "below-block" not in remedies(1, 16)
