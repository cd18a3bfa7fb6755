"""Traces, fits and runs go in and come out as they were."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvscope import __version__
from kvscope.characterize.history import load_history
from kvscope.core.files import data_folder
from kvscope.core.hits import HitDefinition
from kvscope.core.percentiles import Percentiles
from kvscope.core.runs import Misses, Outcome, PartOutcome, Run, RunSetting, TierOutcome
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.ingest.pipeline import ingest
from kvscope.reuse_models.fit import fit
from kvscope.reuse_models.results import Fit, keep
from kvscope.store import results, traces
from kvscope.store.db import MEMORY, Store, open_store
from kvscope.store.traces import load_prompts
from tests import small_traces


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_the_store_gives_back_what_was_built(store: Store, data: st.DataObject) -> None:
    """Every column, whoever the users are and however many types there are."""
    trace = data.draw(small_traces.requests(2, chats=True))
    for request in trace:
        request.user_id = data.draw(st.sampled_from([None, 7, "ann", "bob"]))
        request.type = data.draw(st.sampled_from(["text", "api", "10"]))
    fact = small_traces.stored(store, trace, 2)
    found = load_prompts(store, fact)
    history = load_history(store, fact)
    expected = small_traces.prompts(small_traces.built(trace, 2))
    for name in Prompts.__struct_fields__:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    for name in ("user", "category", "leaf", "parent"):
        assert getattr(found, name).dtype == np.int32
    assert found.categories == history.categories  # one numbering in the whole house
    assert np.array_equal(found.category, history.category)


IDS = st.sampled_from([0, 1, 2, 3, 7, 2**63 - 2, 2**63 - 1, -(2**63), -(2**63) + 1])


@settings(deadline=None, max_examples=30)
@given(paths=st.lists(st.lists(IDS, min_size=1, max_size=6), min_size=1, max_size=5))
def test_each_block_is_stored_once(store: Store, paths: list[list[int]]) -> None:
    """With its hash id, depth and reuses, whatever the neighbours in its run."""
    requests = [
        Request(input_tokens=len(path), output_tokens=0, arrival_s=float(k), hash_ids=[*path])
        for k, path in enumerate(paths)
    ]
    made = small_traces.built(requests, 1)
    trace = small_traces.stored(store, requests, 1)
    blocks = "FROM each_block WHERE trace_id = ? ORDER BY block"
    columns = store.connection.execute(blocks, [trace.trace_id]).fetchnumpy()
    loaded = traces.load_hash_ids(store, trace)
    hot = store.rows("characterize/hot_blocks", trace_id=trace.trace_id, most=3)
    assert columns["block"].tolist() == list(range(1, made.trie.count))
    for name, expected in (
        ("hash_id", made.trie.hash_id),
        ("depth", made.trie.depth),
        ("reuses", made.reuse.reuses),
    ):
        assert columns[name].tolist() == expected[1:].tolist()
    np.testing.assert_array_equal(loaded, made.trie.hash_id[1:])
    order = np.lexsort([columns["block"], columns["depth"], -columns["reuses"]])
    reused = [int(at) for at in order if columns["reuses"][at] > 0]
    assert [row["block"] for row in hot] == [at + 1 for at in reused[:3]]
    assert [row["parent"] for row in hot] == made.trie.parent[1:][reused[:3]].tolist()
    assert [row["hash_id"] for row in hot] == made.trie.hash_id[1:][reused[:3]].tolist()


def test_ids_that_go_up_by_one_take_a_row() -> None:
    """Of a prompt; another one that goes on with it takes one more."""
    prompts = [range(10, 30), [*range(10, 30), *range(30, 50)], range(10, 40)]
    requests = [
        Request(input_tokens=len(ids), output_tokens=0, arrival_s=float(k), hash_ids=[*ids])
        for k, ids in enumerate(prompts)
    ]
    with open_store(MEMORY) as store:
        small_traces.stored(store, requests, 1)
        runs = store.connection.execute("SELECT block, blocks, reuses FROM blocks").fetchall()
    assert runs == [(1, 20, 2), (21, 10, 1), (31, 10, 0)]


TABLES = ("fits", "fit_models", "fit_windows", "fit_next_prompts", "fit_next_turns")


def fitted(store: Store, **asked: float) -> Fit:
    """Return a fit of the to-c sample, which has categories of both kinds."""
    path = str(data_folder("sample_traces") / "to-c.jsonl.gz")
    return fit(store, ingest(store, path).trace, **asked)  # type: ignore[arg-type]


def rows(store: Store) -> list[int]:
    """How many rows each table holds."""
    return [len(store._connection.table(name).fetchall()) for name in TABLES]


def test_what_goes_in_comes_out() -> None:
    """Models with their intervals, those that the data do not tell included."""
    with open_store(MEMORY) as store:
        found = fitted(store)
        fit_id = keep(store, found)
        (one,) = results.all_fits(store, found.trace)
        assert one["kvscope"] == __version__
        assert found.conversation is not None
        assert one["conversations"]["turn_rate_per_s"] == found.conversation.turn_rate_per_s
        stored = results.fit_models(store, fit_id)
        assert len(stored) == len(found.models)
        for row, model in zip(stored, found.models, strict=True):
            assert row["params"] == dict(model.params)
            assert {
                name: interval and (interval["low"], interval["high"])
                for name, interval in row["intervals"].items()
            } == dict(model.interval)
            assert (row["ks"], row["chosen"]) == (model.ks, model.chosen)
        assert found.windows is not None
        assert rows(store) == [
            *(1, len(found.models), len(found.windows.fits)),
            *(len(found.next_prompt_tokens), len(found.next_turns)),
        ]


def test_the_same_fit_is_kept_once() -> None:
    """Asked again it is replaced; other windows are another question; all go with the trace."""
    with open_store(MEMORY) as store:
        keep(store, fitted(store))
        before = rows(store)
        keep(store, fitted(store))
        assert rows(store) == before
        other = fitted(store, window_s=1_800.0)
        keep(store, other)
        assert rows(store)[0] == 2
        traces.remove(store, other.trace)
        assert rows(store) == [0, 0, 0, 0, 0]


def test_nothing_to_fit_is_kept_too() -> None:
    """A trace without conversations and without reuse."""
    from kvscope.ingest.formats.base import Request
    from tests import small_traces

    with open_store(MEMORY) as store:
        alone = [Request(input_tokens=4, output_tokens=0, arrival_s=0.0, hash_ids=[1, 2])]
        found = fit(store, small_traces.stored(store, alone, 2))
        keep(store, found)
        assert (found.models, found.conversation, found.windows) == ((), None, None)
        assert rows(store)[:3] == [1, 0, 0]
        assert results.all_fits(store, found.trace)[0]["window_s"] is None


@pytest.mark.parametrize("window_s", [1e6, 6_100.0])
def test_a_window_longer_than_the_trace_is_refused(window_s: float) -> None:
    """The error says how long it may be."""
    from kvscope.core.errors import UsageError

    with open_store(MEMORY) as store, pytest.raises(UsageError, match="give at most 6086s"):
        fitted(store, window_s=window_s)


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
        TierOutcome("hbm", "ttl", 3, 0.0, None, 1, 16, 0.1, 0.0, None, 2, demotions=2),
        TierOutcome("dram", "ttl", 4, 0.01, 25e9, 1, 14, 0.15, 1.5, 4096, 1, ttl_s=60.0),
    ),
    preemptions=3,
    turned_away=1,
    deployment={"gpu": "h100", "tp": 2, "gpu_hour": 2.5, "engine": "vllm@0.33"},
)


@pytest.fixture
def two_traces() -> Store:
    """Return a store in memory with two traces."""
    made = open_store(MEMORY)
    for tokens in (16, 32):
        small_traces.stored(made, [Request(input_tokens=tokens, output_tokens=1)], 16)
    return made


def test_a_run_comes_out_as_it_went_in(two_traces: Store) -> None:
    """Every field, infinities and absent ones included; dated and signed with the version."""
    trace = traces.find(two_traces, "trace-0")
    kept = results.add_run(two_traces, trace, RUN, "code")
    assert replace(kept, kvscope="", created_at=None, run_id=None) == RUN
    assert kept.kvscope == __version__
    assert kept.created_at is not None
    (found,) = results.with_parts(two_traces, results.all_runs(two_traces, trace))
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
    again = results.add_run(two_traces, trace, bare, "code")
    assert again in [one.run for one in results.all_runs(two_traces, trace)]


def test_a_run_takes_the_deployment_that_asks_for_it_last(two_traces: Store) -> None:
    """Its numbers are the same; those of other requests keep theirs."""
    trace = traces.find(two_traces, "trace-0")
    study = replace(RUN, capacity_blocks=8, deployment=None)
    for run in (RUN, study):
        results.add_run(two_traces, trace, run, "code")
    results.set_deployment(two_traces, trace, [results.digest_of(study)], {"gpu": "l4"})
    stored = {known.run.capacity_blocks: known.run for known in results.all_runs(two_traces, trace)}
    assert stored[7].deployment == RUN.deployment
    assert stored[8].deployment == {"gpu": "l4"}


def test_the_same_question_has_one_answer(two_traces: Store) -> None:
    """Newer sources replace the answer of older ones; old sources' answers are not known."""
    trace = traces.find(two_traces, "trace-0")
    results.add_run(two_traces, trace, RUN, "old")
    asked = results.digest_of(RUN)
    assert results.known_runs(two_traces, trace, [asked], "new") == {}
    newer = results.add_run(two_traces, trace, replace(RUN, evictions=12), "new")
    assert results.known_runs(two_traces, trace, [asked, "other"], "new") == {asked: newer}
    assert len(results.all_runs(two_traces, trace)) == 1
    assert len(two_traces.rows("runs/parts", run_ids=list(range(10)))) == 2


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
        replace(RUN, setting=replace(RUN.setting, tiers="hbm=3blocks", tier_mode="vllm@0.33")),
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


def test_runs_go_with_their_parts_and_their_trace(two_traces: Store) -> None:
    """Nothing of a removed run or trace is left behind; other traces keep theirs."""
    first, second = traces.find(two_traces, "trace-0"), traces.find(two_traces, "trace-1")
    for trace in (first, second):
        results.add_run(two_traces, trace, RUN, "code")
        results.add_run(two_traces, trace, replace(RUN, policy="lru"), "code")
    assert results.remove_runs(two_traces, first, lambda run: run.policy == "lru") == 1
    assert [one.run.policy for one in results.all_runs(two_traces, first)] == ["ttl"]
    traces.remove(two_traces, first)
    assert len(results.all_runs(two_traces, second)) == 2
    left = two_traces.rows("runs/parts", run_ids=list(range(10)))
    assert len(left) == 4
    assert results.remove_runs(two_traces, second, lambda _: True) == 2
    assert two_traces.rows("runs/parts", run_ids=list(range(10))) == []
