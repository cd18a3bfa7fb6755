"""Runs in a store: what goes in comes out, the same question is answered once."""

from __future__ import annotations

import dataclasses
import math

import pytest
from msgspec.structs import replace

from kvscope import __version__
from kvscope.core.hits import HitDefinition
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Misses, Outcome, PartOutcome, Run, RunSetting, TierOutcome
from kvscope.ingest.formats.base import Request
from kvscope.store import results, traces
from kvscope.store.db import MEMORY, Store, open_store
from tests import small_traces

SPREAD = Percentiles(1.5, 2.0, 3.0, 4.0)
OUTCOME = Outcome(
    requests=4,
    hit_tokens=30,
    total_tokens=120,
    token_hit_rate=0.25,
    block_hit_rate=0.2,
    request_hit_rate=0.5,
    uncached_tokens=SPREAD,
    ttft_ms=SPREAD,
    queued_ttft_ms=None,
    tel_ms=1.25,
    violations=2,
    queued_tel_ms=None,
    queued_violations=None,
)
RUN = Run(
    policy="ttl",
    leaves="any",
    params={"ttl_s": math.inf},
    hindsight=False,
    capacity_blocks=7,
    setting=RunSetting(HitDefinition("kvscope", warmup=0.1), "mine", 0.01, 0.001, 0.0, slo_s=0.2),
    outcome=OUTCOME,
    evictions=11,
    misses=Misses(40, 0, 30, 20),
    parts=(
        PartOutcome("text 1", None, None, OUTCOME),
        PartOutcome(
            None, 0.0, 60.0, dataclasses.replace(OUTCOME, queued_ttft_ms=SPREAD, tel_ms=None)
        ),
    ),
    hit_rate_error=0.01,
    tiers=(
        TierOutcome("hbm", "ttl", 3, None, 0.0, None, 1, 16, 0.1, 0.0, None, 2, 2),
        TierOutcome("dram", "ttl", 4, 60.0, 0.01, 25e9, 1, 14, 0.15, 1.5, 4096, 1, 0),
    ),
    preemptions=3,
    turned_away=1,
    deployment={"gpu": "h100", "tp": 2, "gpu_hour": 2.5, "engine": "vllm@0.33"},
)


@pytest.fixture
def store() -> Store:
    """Return a store in memory with two traces."""
    made = open_store(MEMORY)
    for tokens in (16, 32):
        small_traces.stored(made, [Request(input_tokens=tokens, output_tokens=1)], 16)
    return made


def test_a_run_comes_out_as_it_went_in(store: Store) -> None:
    """Every field, infinities and absent ones included; dated and signed with the version."""
    trace = traces.find(store, "trace-0")
    kept = results.add_run(store, trace, RUN, "code")
    assert replace(kept, kvscope="", created_at=None, run_id=None) == RUN
    assert kept.kvscope == __version__
    assert kept.created_at is not None
    (found,) = results.with_parts(store, results.all_runs(store, trace))
    assert found.run == kept
    assert found.code == "code"
    bare = replace(RUN, parts=(), misses=None, hit_rate_error=None, params={}, tiers=())
    engine = replace(
        RUN.setting,
        capacity_model="engine",
        max_num_seqs=8,
        floor_s=0.006,
        request_s=0.002,
        decode_base_s=0.008,
        decode_request_s=1e-5,
        decode_context_token_s=1e-8,
    )
    bare = replace(bare, preemptions=None, turned_away=None, setting=engine, deployment=None)
    again = results.add_run(store, trace, bare, "code")
    assert again in [one.run for one in results.all_runs(store, trace)]


def test_a_run_takes_the_deployment_that_asks_for_it_last(store: Store) -> None:
    """Its numbers are the same; those of other requests keep theirs."""
    trace = traces.find(store, "trace-0")
    study = replace(RUN, capacity_blocks=8, deployment=None)
    for run in (RUN, study):
        results.add_run(store, trace, run, "code")
    results.set_deployment(store, trace, [results.digest_of(study)], {"gpu": "l4"})
    stored = {known.run.capacity_blocks: known.run for known in results.all_runs(store, trace)}
    assert stored[7].deployment == RUN.deployment
    assert stored[8].deployment == {"gpu": "l4"}


def test_the_same_question_has_one_answer(store: Store) -> None:
    """Newer sources replace the answer of older ones; old sources' answers are not known."""
    trace = traces.find(store, "trace-0")
    results.add_run(store, trace, RUN, "old")
    asked = results.digest_of(RUN)
    assert results.known_runs(store, trace, [asked], "new") == {}
    newer = results.add_run(store, trace, replace(RUN, evictions=12), "new")
    assert results.known_runs(store, trace, [asked, "other"], "new") == {asked: newer}
    assert len(results.all_runs(store, trace)) == 1
    assert len(store.rows("runs/parts", run_ids=list(range(10)))) == 2


@pytest.mark.parametrize(
    "other",
    [
        replace(RUN, policy="lru"),
        replace(RUN, leaves="leaf"),
        replace(RUN, params={"ttl_s": 60.0}),
        replace(RUN, capacity_blocks=8),
        replace(RUN, setting=replace(RUN.setting, slo_s=None)),
        replace(RUN, setting=replace(RUN.setting, capacity_model="engine")),
        replace(RUN, setting=replace(RUN.setting, max_num_seqs=1)),
        replace(RUN, setting=replace(RUN.setting, floor_s=0.1)),
        replace(RUN, setting=replace(RUN.setting, decode_base_s=0.0)),
        replace(RUN, setting=replace(RUN.setting, tiers="hbm=3blocks", tier_mode="exclusive")),
        replace(RUN, setting=replace(RUN.setting, rate_scale=2.0)),
        replace(RUN, setting=replace(RUN.setting, definition=HitDefinition("kvscope"))),
    ],
)
def test_another_question_has_another_digest(other: Run) -> None:
    """Whatever shapes a run's numbers is part of the question."""
    assert results.digest_of(other) != results.digest_of(RUN)


def test_whole_numbers_are_the_same_question() -> None:
    """2 and 2.0 are one value of a parameter, in whatever order parameters come."""
    whole = replace(RUN, params={"a": 2, "b": 3})
    assert results.digest_of(whole) == results.digest_of(replace(RUN, params={"b": 3.0, "a": 2.0}))


def test_runs_go_with_their_parts_and_their_trace(store: Store) -> None:
    """Nothing of a removed run or trace is left behind; other traces keep theirs."""
    first, second = traces.find(store, "trace-0"), traces.find(store, "trace-1")
    for trace in (first, second):
        results.add_run(store, trace, RUN, "code")
        results.add_run(store, trace, replace(RUN, policy="lru"), "code")
    assert results.remove_runs(store, first, lambda run: run.policy == "lru") == 1
    assert [one.run.policy for one in results.all_runs(store, first)] == ["ttl"]
    traces.remove(store, first)
    assert len(results.all_runs(store, second)) == 2
    left = store.rows("runs/parts", run_ids=list(range(10)))
    assert len(left) == 4
    assert results.remove_runs(store, second, lambda _: True) == 2
    assert store.rows("runs/parts", run_ids=list(range(10))) == []
