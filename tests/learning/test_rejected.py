"""Requests that an engine rejects as too long teach a policy nothing: its plugin sees none."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvscope.characterize.windows import Windows
from kvscope.core.hits import standard
from kvscope.core.runs import RunSetting
from kvscope.core.trace import Prompts
from kvscope.ingest.formats.base import Request
from kvscope.latency.profile import LatencyProfile
from kvscope.learning.offline.learners import served_traffic, tables_of_served
from kvscope.learning.reuse.offline import ReuseOffline
from kvscope.policies.registry import by_name
from kvscope.replay.sweep import make_run
from kvscope.replay.traffic import traffic
from kvscope.replay.workload import ReplayRequest, Workload
from kvscope.validate.predict import predict
from kvscope.validate.replay import Pace
from kvscope.vllm_sim import EngineSettings, fits
from tests.golden.samples import sample
from tests.learning import test_reuse_online as online
from tests.small_traces import built, prompts

SIZE, BLOCKS = 4, 60
POLICIES = (
    ("wa", {"refit_s": 60.0}),
    ("gittins", {"refit_requests": 16.0, "xi_tokens": 16.0}),
)


def asks(ids: list[int], arrival_s: float) -> Request:
    """Return a request for these blocks, with one output token."""
    return Request(
        input_tokens=len(ids) * SIZE, output_tokens=1, arrival_s=arrival_s, hash_ids=list(ids)
    )


def chats(requests: int, seed: int) -> list[Request]:
    """Return chats that go on after a minute, and prompts beyond 60 blocks that return at once."""
    draw = random.Random(seed)
    trace: list[Request] = []
    going: list[list[int]] = []
    fresh, now_s = 1, 0.0
    for number in range(requests):
        now_s += draw.expovariate(1 / 4)
        if number % 5 == 2:
            giant = [-1 - number // 20, *range(10_000, 10_000 + BLOCKS)]
            trace.append(asks(giant, now_s))
            continue
        if going and draw.random() < 0.6:
            chat = draw.choice(going[-15:])
        else:
            chat = []
            going.append(chat)
        added = draw.randint(1, 4)
        chat += range(fresh, fresh + added)
        fresh += added
        trace.append(asks(chat, now_s))
        if len(chat) > 20:
            going.remove(chat)
    return trace


def both(seed: int) -> tuple[Prompts, Prompts, np.ndarray]:
    """Return the trace, what of it an engine of 60 blocks serves, and which requests those are."""
    trace = chats(600, seed)
    whole = prompts(built(trace, SIZE))
    served = fits(traffic(whole, standard()), EngineSettings(BLOCKS))
    some = [request for request, fitting in zip(trace, served, strict=True) if fitting]
    assert 0.7 < served.mean() < 0.9
    return whole, prompts(built(some, SIZE)), served


@pytest.mark.parametrize(("policy", "values"), POLICIES)
def test_predictions_do_not_depend_on_rejected_requests(
    policy: str, values: dict[str, float]
) -> None:
    """The others are predicted to hit what they hit in a trace without the rejected ones."""
    profile = LatencyProfile("test", "test", base_s=0.01, per_token_s=1e-4, per_token_pair_s=0.0)
    for seed in range(3):
        whole, some, served = both(seed)
        hits = [
            predict(
                of, by_name(policy)(values), EngineSettings(BLOCKS), profile, Pace("sequential")
            ).hit_tokens
            for of in (whole, some)
        ]
        assert hits[0][served].tolist() == hits[1].tolist()
        assert not hits[0][~served].any()


@pytest.mark.parametrize(("policy", "values"), POLICIES)
def test_simulations_do_not_depend_on_rejected_requests(
    policy: str, values: dict[str, float]
) -> None:
    """Nor do those of `--capacity-model engine`, whichever engine was simulated before."""
    setting = RunSetting(
        standard(),
        "test",
        0.01,
        1e-4,
        0.0,
        capacity_model="engine",
        max_num_seqs=4,
        max_num_batched_tokens=512,
    )
    whole, some, _ = both(7)
    runs = []
    for of in (whole, some):
        workload = Workload(of, setting, Windows(1e6, 1))
        for blocks in (5 * BLOCKS, BLOCKS):
            run = make_run(workload, ReplayRequest(by_name(policy)(values), blocks))
        runs.append(run)
    assert (runs[0].turned_away, runs[1].turned_away) == (len(whole.leaf) - len(some.leaf), 0)
    assert runs[0].outcome.hit_tokens == runs[1].outcome.hit_tokens
    assert runs[0].evictions == runs[1].evictions


def test_the_plugin_learns_the_same() -> None:
    """Its estimator sees the served requests alone, and finds the simulator's tables."""
    of = traffic(sample("to-c"), standard())
    served = of.input_tokens < np.quantile(of.input_tokens, 0.9)
    some = served_traffic(of, served)
    learner = ReuseOffline()
    tables = tables_of_served(of, served, lambda part: learner.tables(part, online.REFIT_S))
    since, expected = online.served(some, tables.categories)
    assert np.flatnonzero(served)[since].tolist() == [
        np.flatnonzero(served)[0],
        *tables.since[1:].tolist(),
    ]
    for found, table in zip(tables.values[tables.rows], expected, strict=True):
        np.testing.assert_allclose(found, table, rtol=1e-9, atol=1e-12)
    everyone = learner.tables(of, online.REFIT_S)
    assert not np.allclose(everyone.at(-1), tables.at(-1)[: everyone.categories])


def test_a_turn_continues_the_latest_served_one() -> None:
    """Of three turns the second is rejected: the third follows the first."""
    turns = [
        asks([1, 2], 0.0),
        asks([1, 2, *range(10, 108)], 1.0),
        asks([1, 2, *range(10, 109)], 2.0),
    ]
    of = traffic(prompts(built(turns, SIZE)), standard())
    of = of._replace(parent=np.array([-1, 0, 1], dtype=np.int32))
    some = served_traffic(of, np.array([True, False, True]))
    assert some.parent.tolist() == [-1, 0]
    assert some.next_prompt_tokens.tolist() == [404 - 9, -1]
    assert served_traffic(of, np.array([False, True, True])).parent.tolist() == [-1, 0]
