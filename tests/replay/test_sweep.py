"""Sweeps: the same numbers as one replay after the other, on any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import kvscope
from benchmarks.sampling import whole_sample
from kvscope.characterize.distributions import Windows
from kvscope.core.errors import UsageError
from kvscope.core.executor import Threads
from kvscope.core.hits import COMPATIBLE, HitDefinition, standard
from kvscope.core.runs import Run, RunSetting
from kvscope.ingest.formats.base import Request
from kvscope.latency.file import load_profile
from kvscope.policies.base import Policy
from kvscope.policies.registry import by_name
from kvscope.replay import run_cache
from kvscope.replay.curve import lru_curve
from kvscope.replay.parameter_estimates import bind, estimate_parameters, used
from kvscope.replay.policy_options import Variant
from kvscope.replay.sampling import DrawnTrace, sampled
from kvscope.replay.settings import run_setting
from kvscope.replay.sweep import make_run, sweep
from kvscope.replay.workload import ReplayRequest, Workload
from tests import small_traces

PROFILE = load_profile("llama2-7b-a100")
SIZE = 2


def workload(
    trace: Sequence[Request], definition: HitDefinition | None = None, **changes: object
) -> Workload:
    """Return the trace, ready to be replayed."""
    setting = run_setting(definition or standard(), PROFILE, slo_s=0.02)
    prompts = small_traces.prompts(small_traces.built(trace, SIZE))
    return Workload(prompts, replace(setting, **changes), Windows(2.0, 3))  # type: ignore[arg-type]


def ordered(runs: Sequence[Run]) -> list[Run]:
    """Return runs in an order that does not depend on which finished first."""
    return sorted(runs, key=lambda run: (run.policy, run.capacity_blocks))


@settings(max_examples=15, deadline=None)
@given(small_traces.requests(SIZE, chats=True, whole=True), st.integers(1, 4))
def test_threads_change_nothing(trace: list[Request], workers: int) -> None:
    """A sweep over policies of every shape gives what its replays give one by one."""
    found = workload(trace)
    policies = [by_name(name)() for name in ("lru", "tlru", "wa", "lfu", "belady", "s3fifo")]
    asked = [ReplayRequest(policy, capacity) for capacity in (0, 1, 3, 100) for policy in policies]
    together = ordered(list(sweep(found, asked, executor=Threads(workers))))
    assert together == ordered([make_run(found, one) for one in asked])


@settings(max_examples=30, deadline=None)
@given(
    small_traces.requests(SIZE, chats=True, whole=True),
    st.sampled_from([standard(), standard(warmup=0.5), *COMPATIBLE.values()]),
)
def test_numbers_add_up(trace: list[Request], definition: HitDefinition) -> None:
    """Hits and misses are all tokens, categories and windows all requests; LRU is its curve."""
    found = workload(trace, definition)
    for capacity in (1, 2, 5):
        run = make_run(found, ReplayRequest(by_name("lru")(), capacity))
        outcome = run.outcome
        rate = outcome.block_hit_rate if definition.weight == "block" else outcome.token_hit_rate
        assert rate == pytest.approx(float(found.curve.rate(capacity)))
        if run.misses is not None:
            missed = (
                run.misses.evicted_tokens
                + run.misses.diverged_tokens
                + run.misses.cold_tokens
                + run.misses.tail_tokens
            )
            assert outcome.hit_tokens + missed == outcome.total_tokens
        for parts in (
            [part.outcome for part in run.parts if part.category is not None],
            [part.outcome for part in run.parts if part.start_s is not None],
        ):
            assert sum(part.requests for part in parts) == outcome.requests
            assert sum(part.hit_tokens for part in parts) == outcome.hit_tokens
            assert sum(part.violations or 0 for part in parts) == outcome.violations


def test_an_engine_is_measured_by_its_own_line() -> None:
    """Hits of a lonely request are the cache's; who needs more than all blocks gets no token."""
    turns = [
        Request(input_tokens=4, output_tokens=1, arrival_s=100.0 * at, hash_ids=[1, 2])
        for at in range(3)
    ]
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 8}
    found = workload(turns, capacity_model="engine", **limits)
    lru = by_name("lru")()
    run = make_run(found, ReplayRequest(lru, 8))
    assert (run.turned_away, run.preemptions) == (0, 0)
    assert (
        run.outcome.hit_tokens
        == make_run(workload(turns), ReplayRequest(lru, 8)).outcome.hit_tokens
        == 4
    )
    queued, idle = run.outcome.queued_ttft_ms, run.outcome.ttft_ms
    assert queued is not None
    assert (queued.p50, queued.p99) == pytest.approx((idle.p50, idle.p99))
    none = make_run(found, ReplayRequest(lru, 1))
    assert (none.turned_away, none.outcome.hit_tokens) == (3, 0)
    assert none.outcome.queued_ttft_ms is None
    with pytest.raises(UsageError, match="lfu cannot order"):
        make_run(found, ReplayRequest(by_name("lfu")(), 8))
    with pytest.raises(UsageError, match="leave out --compat"):
        make_run(
            workload(turns, COMPATIBLE["kvcache-simulator"], capacity_model="engine"),
            ReplayRequest(lru, 8),
        )


def test_a_stopped_sweep_starts_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that had not begun when `stop` was set are left out, those before are not."""
    found = workload([Request(input_tokens=4, output_tokens=0, hash_ids=[1, 2])] * 3)
    stop = Event()
    asked = [ReplayRequest(by_name("lru")(), capacity) for capacity in range(1, 30)]
    begun: list[int] = []

    def stopping(workload: Workload, one: ReplayRequest) -> Run:
        begun.append(one.capacity_blocks)
        if len(begun) == 3:
            stop.set()
        return make_run(workload, one)

    monkeypatch.setattr("kvscope.replay.sweep.make_run", stopping)
    finished = list(sweep(found, asked, executor=Threads(1), stop=stop))
    assert sorted(run.capacity_blocks for run in finished) == begun == [1, 2, 3]


def test_whoever_leaves_early_takes_what_is_finished() -> None:
    """A sweep may be left after any result."""
    found = workload([Request(input_tokens=4, output_tokens=0, hash_ids=[1, 2])] * 3)
    asked = [ReplayRequest(by_name("lru")(), capacity) for capacity in range(1, 30)]
    running = sweep(found, asked, executor=Threads(1))
    assert next(running).capacity_blocks == 1
    running.close()


def test_sources_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest is of the sources: another file, another digest."""
    package = Path(kvscope.__file__).parent
    assert all(list(package.glob(pattern)) for pattern in run_cache._SOURCES)
    digest = run_cache.sources_digest()
    assert len(digest) == 16
    monkeypatch.setattr(run_cache, "_SOURCES", ("policies/**/*.py",))
    run_cache.sources_digest.cache_clear()
    assert run_cache.sources_digest() != digest
    run_cache.sources_digest.cache_clear()


def test_capacities_spread_up_to_what_lru_needs() -> None:
    """The last one gives LRU its ideal hit rate and one block less does not."""
    trace = [
        Request(input_tokens=2 * SIZE, output_tokens=0, hash_ids=[at % 5, 9]) for at in range(20)
    ]
    curve = workload(trace, standard(outputs="ignored")).curve
    grid = curve.capacities(4)
    assert grid == sorted(set(grid))
    assert float(curve.rate(grid[-1])) == curve.ideal > float(curve.rate(grid[-1] - 1))
    assert curve.capacities(1) == [grid[-1]]


def test_a_trace_without_reuse_has_a_capacity() -> None:
    """Where nothing is reused one block is as good as many."""
    trace = [Request(input_tokens=SIZE, output_tokens=0, hash_ids=[at]) for at in range(3)]
    assert workload(trace).curve.capacities(5) == [1]


def conversation(turns: int) -> list[Request]:
    """One conversation; a turn adds 6 tokens to its history, every 2 seconds."""
    return [
        Request(
            input_tokens=8 * turn + 8,
            output_tokens=2,
            arrival_s=2.0 * turn,
            chat_id=turn,
            parent_chat_id=turn - 1 if turn else None,
            hash_ids=list(range(4 * turn + 4)),
        )
        for turn in range(turns)
    ]


def test_parameters_come_from_choice_then_trace_then_default() -> None:
    """What was chosen wins over what the trace and the SLO say, and that over the default."""
    found = workload(conversation(20))
    values = estimate_parameters(found.request_traffic, PROFILE, 0.2)
    assert values["next_prompt_tokens"].value == 6
    assert values["xi_tokens"].value == PROFILE.xi_tokens(0.2)
    tlru = by_name("tlru")
    assert bind(Variant(tlru), values).values == {
        "xi_tokens": PROFILE.xi_tokens(0.2),
        "next_prompt_tokens": 6,
        "xi_percentile": 0.0,
        "ttl_s": np.inf,
        "guard": 0.0,
        "slo_tokens": 0.0,
        "tokens_per_s": 0.0,
    }
    chosen = Variant(tlru, {"xi_tokens": 5.0}, "any")
    policy: Policy = bind(chosen, values)
    assert policy.values["xi_tokens"] == 5
    assert policy.evicts == "any"
    assert set(used([chosen], values)) == {"next_prompt_tokens"}
    with pytest.raises(UsageError, match="no parameter"):
        bind(Variant(tlru, {"xi": 5.0}), values)


def test_attention_makes_gdfs_cost_what_the_profile_says() -> None:
    """A profile with a quadratic term gives gdfs its costs, a linear one leaves them alone."""
    found = workload(conversation(3))
    quadratic = load_profile("small-llama-cpu")
    costs = bind(
        Variant(by_name("gdfs")), estimate_parameters(found.request_traffic, quadratic, None)
    ).values
    assert costs["per_token_pair_s"] == quadratic.per_token_pair_s > 0
    assert costs["per_token_s"] == quadratic.per_token_s
    plain = bind(
        Variant(by_name("gdfs")), estimate_parameters(found.request_traffic, PROFILE, None)
    ).values
    assert plain["per_token_s"] == 1.0


def test_a_sampled_workload_estimates_the_whole() -> None:
    """The rate in the definition's weight is the estimate for the whole trace, with its error."""
    trace = [
        Request(input_tokens=2 * SIZE, output_tokens=0, arrival_s=float(at), hash_ids=[at % 40, 99])
        for at in range(400)
    ]
    whole = workload(trace)
    drawn = DrawnTrace(sampled(whole_sample(whole.prompts), 0.5), whole.curve)
    part = Workload(drawn, replace(whole.setting, sample_rate=0.5), whole.windows)
    lru = by_name("lru")()
    exact, estimate = (
        make_run(whole, ReplayRequest(lru, 60)),
        make_run(part, ReplayRequest(lru, 60)),
    )
    assert exact.hit_rate_error is None
    assert estimate.hit_rate_error is not None
    gap = abs(exact.outcome.token_hit_rate - estimate.outcome.token_hit_rate)
    assert gap <= estimate.hit_rate_error
    assert estimate.outcome.requests < exact.outcome.requests
    assert estimate.outcome.queued_ttft_ms is None
    definition = RunSetting(standard(), "x", 0.0, 1.0, 0.0).definition
    assert part.curve.rate(60) == lru_curve(whole.prompts, definition).rate(60)
