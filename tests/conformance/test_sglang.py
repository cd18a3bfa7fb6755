"""SGLang's own prefix cache and scheduler against the simulated ones: every request fares the same.

Run by `make test-sglang`, with SGLang's Python code on the path of an environment with torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from kvscope.core.arrays import Int64s
from kvscope.deployment.engines import (
    WAITING_ORDERS,
    WRITE_POLICIES,
    HiCache,
    WaitingOrder,
    WritePolicy,
)
from kvscope.latency.profile import LatencyProfile
from kvscope.routers.balancers import SglangDp, SglangDpTokens
from kvscope.routers.base import Router
from kvscope.sglang_sim.replay import HostTier, TreeService, serve_tree
from kvscope.vllm_sim.settings import StepCost
from tests.long import long
from tests.routers import views
from tests.sglang_sim.chats import Chat, chats, in_flight, policy_of, traffic_of
from tests.sglang_sim.in_order import FINISH, START, replay_tree

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang's code is not on the path"),
    pytest.mark.filterwarnings("ignore"),  # of what SGLang imports
]


class Case(NamedTuple):
    """A policy of kvscope with its values, and SGLang's configuration of it."""

    policy: str
    values: dict[str, float]
    config: dict[str, int]


CASES = (
    Case("lru", {}, {}),
    Case("fifo", {}, {}),
    Case("lfu", {}, {}),
    Case("priority", {}, {}),
    Case("slru", {"protected_uses": 2}, {}),
    Case("slru", {"protected_uses": 3}, {"protected_threshold": 3}),
    Case(
        "tlru",
        {"xi_tokens": 40, "next_prompt_tokens": 8},
        {"threshold": 40, "next_prompt_estimate": 8},
    ),
)


def served(
    requests: Sequence[Chat],
    order: Int64s,
    case: Case,
    pages: int,
    page: int,
    chunk: int,
    core: str,
) -> list[int]:
    """Return the tokens that each request hits in SGLang."""
    from tests.conformance.sglang_side import Cache, Server

    most = max(len(each.prompt) + len(each.outputs) for each in requests) + page
    cache = Cache(pages, page, case.policy, case.config, core=core, rows=16, most_tokens=most)
    server = Server(cache, chunk_tokens=chunk)
    hits, running = [0] * len(requests), {}
    for event in order.tolist():
        number, each = event >> 1, requests[event >> 1]
        if event & 1 == START:
            running[number] = server.start(each.prompt, each.outputs)
            hits[number] = running[number].hit
        else:
            server.finish(running.pop(number))
    assert FINISH == 1
    return hits


@pytest.mark.parametrize(
    ("core", "requests"), [("rust", 300), long("rust", 10_000), long("python", 10_000)]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.policy}-{len(case.config)}")
@pytest.mark.parametrize(("page", "at_once"), [(1, 1), long(4, 1), (16, 1), (1, 5), (4, 5)])
def test_hits_are_sglangs(case: Case, page: int, at_once: int, core: str, requests: int) -> None:
    """One after the other and several at once, with pages of several sizes."""
    sent = chats(requests, seed=page + at_once)
    order = in_flight(len(sent), at_once)
    longest = max(len(each.prompt) + len(each.outputs) for each in sent)
    pages = (longest + 200 * at_once) // page + 2 * at_once
    chunk = 48
    theirs = np.array(served(sent, order, case, pages, page, chunk, core))
    policy, traffic = policy_of(case.policy, case.values), traffic_of(sent, page)
    ours = replay_tree(traffic, policy, pages, paged=page > 1, chunk_tokens=chunk, order=order)
    assert ours.evictions > len(sent)
    assert np.flatnonzero(ours.hit_blocks * page != theirs).tolist() == []
    if at_once == 1:  # nodes of other sizes hit something else
        other = replay_tree(traffic, policy, pages, paged=page > 1, chunk_tokens=64)
        assert not np.array_equal(other.hit_blocks * page, theirs)


class Load(NamedTuple):
    """So many requests a second, with `answer` output tokens at most, in a pool of `tokens`."""

    rate: float
    answer: int
    tokens: int
    chunk: int = 48
    most_running: int = 2048
    requests: int = 130


LOADS = (
    Load(2.0, 12, 600),
    Load(100.0, 12, 1500, most_running=20, requests=250),  # more than 128 wait
    Load(2.0, 150, 600, chunk=32, requests=70),  # some are retracted, at many steps each
    Load(10.0, 60, 1500, chunk=256, most_running=5, requests=250),
)
PROFILE = LatencyProfile(
    *("p", "", 0.16, 0.01, 1e-4),
    request_s=0.06,
    decode_base_s=0.05,
    decode_request_s=0.01,
    decode_context_token_s=1e-5,
)


def compare(
    page: int,
    order: WaitingOrder,
    load: Load,
    case: Case,
    requests: int,
    *,
    seed: int,
    hicache: HiCache | None = None,
) -> TreeService:
    """Return what the simulation does; all requests fare in it as in SGLang.

    That is hits, retractions, and the times of the first batch, of the first and the last token. A
    batch's time follows from its requests and their chunks, so these are the same too.
    """
    from tests.conformance.sglang_scheduler_side import Options, Server

    sent = chats(requests, seed=seed, longest=400, answer=load.answer)
    arrival_s = np.cumsum(np.random.default_rng(seed).exponential(1 / load.rate, requests))
    pages = load.tokens // page
    server = Server(
        Options(
            *(pages, page, case.policy, case.config, load.chunk, order, load.most_running),
            hicache=hicache,
        )
    )
    theirs = server.serve(sent, arrival_s.tolist(), StepCost.of(PROFILE))
    ours = serve_tree(
        traffic_of(sent, page)._replace(arrival_s=arrival_s),
        policy_of(case.policy, case.values),
        pages,
        PROFILE,
        chunk_tokens=load.chunk,
        most_running=load.most_running,
        order=order,
        paged=page > 1,
        host=None
        if hicache is None
        else HostTier(int(pages * page * hicache.ratio) // page + 1, hicache.write_policy),
    )
    hits, *times, retractions = (np.array(column) for column in zip(*theirs, strict=True))
    outside_s = PROFILE.request_s
    own = (ours.begin_s, ours.token_s - outside_s, ours.end_s - outside_s)
    off = ours.hit_blocks * page != hits
    off |= ~np.isclose(own, times).all(axis=0) | (ours.retractions != retractions)
    assert np.flatnonzero(off).tolist() == []
    own_counts = (ours.evictions, ours.host_evictions, ours.stored_blocks)
    their_counts = (server.evicted, server.host_evicted, server.stored)
    assert ours.batches == server.batches
    assert tuple(page * count for count in own_counts) == their_counts
    return ours


def settings() -> list[object]:
    """Return each page, order and load once; every two of page, order, load and policy meet."""
    policies = (CASES[0], CASES[2], CASES[-1])
    kinds = product(enumerate((1, 4)), enumerate(WAITING_ORDERS), enumerate(LOADS))
    return [
        pytest.param(page, order, load, policies[(i + j + k) % 3], id=f"{page}-{order}-{k}")
        for (i, page), (j, order), (k, load) in kinds
    ]


@pytest.mark.parametrize(("page", "order", "load", "case"), settings())
def test_batches_are_sglangs(page: int, order: WaitingOrder, load: Load, case: Case) -> None:
    """Under loads with long queues, several prompts a batch, chunks, and retractions."""
    retractions = compare(page, order, load, case, load.requests, seed=page).retractions
    assert retractions.any() == (load.answer > 100)


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("ratio", [0.5, 2.0])
@pytest.mark.parametrize("number", range(len(LOADS)))
def test_host_tiers_are_sglangs(number: int, ratio: float, write_policy: WritePolicy) -> None:
    """Stored, loaded and evicted at once, with every policy, page and order somewhere."""
    kind = number + 4 * WRITE_POLICIES.index(write_policy)
    page, order = (1, 4, 16)[kind % 3], WAITING_ORDERS[kind // 3 % 2]
    case, hicache = CASES[kind % len(CASES)], HiCache(ratio, write_policy)
    load = LOADS[number]
    ours = compare(page, order, load, case, load.requests, seed=kind, hicache=hicache)
    assert ours.host_evictions > 0
    assert ours.loaded_blocks.any() or ratio < 1


@pytest.mark.parametrize("seed", [long(seed) for seed in range(100)])
def test_batches_are_sglangs_in_any_setting(seed: int) -> None:
    """1,000 requests in settings that are drawn at random."""
    rng = np.random.default_rng(seed)
    answer, tokens = int(rng.choice([12, 60, 150])), int(rng.choice([600, 900, 1500]))
    load = Load(
        float(rng.choice([0.5, 2.0, 10.0, 100.0])),
        answer,
        tokens,
        chunk=int(rng.choice([32, 48, 256])),
        most_running=int(rng.choice([4, 20, 2048])),
    )
    order, case = WAITING_ORDERS[rng.integers(2)], CASES[rng.integers(len(CASES))]
    page = int(rng.choice([1, 4, 16]))
    compare(page, order, load, case, 1_000, seed=seed)
    hicache = HiCache(float(rng.choice([0.5, 2.0, 4.0])), WRITE_POLICIES[rng.integers(3)])
    compare(page, order, load, case, 1_000, seed=seed, hicache=hicache)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("kind", [SglangDp, SglangDpTokens], ids=lambda kind: kind.name)
def test_ranks_are_chosen_as_by_sglangs_controller(
    kind: type[Router], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests in bursts, and ranks that tell anew whenever the controller reads their loads."""
    from tests.conformance.sglang_scheduler_side import controllers_and_snapshots

    controllers, snapshot = controllers_and_snapshots()
    random, now_s, chosen, told = Random(ranks), 0.0, [], []
    monkeypatch.setattr(controllers, "sock_send", lambda rank, _: chosen.append(rank))
    monkeypatch.setattr(controllers.time, "perf_counter", lambda: now_s)
    controller = object.__new__(controllers.DataParallelController)
    controller.workers, controller._last_refresh_time = list(range(ranks)), -1.0
    controller.dp_budget = controllers.DPBudget(ranks)
    controller.load_snapshot_reader = SimpleNamespace(read_all=lambda: told)
    method = kind().flags()[1].removeprefix("--load-balance-method ")
    processed, sent_tokens = np.zeros((2, ranks), dtype=np.int64)
    scraped = views.load(ranks)
    for number in range(2_000):
        now_s += random.choice((0.0, 0.001, 0.03))
        known: Any = scraped._replace(
            running=np.array([random.randrange(4) for _ in range(ranks)]),
            waiting=np.array([random.choice((0, 0, 3)) for _ in range(ranks)]),
            used_blocks=np.array([random.randrange(6) for _ in range(ranks)]),
            waiting_tokens=np.array([random.choice((0, 40)) for _ in range(ranks)]),
            processed=processed.copy(),
            sent_tokens=sent_tokens.copy(),
        )
        tokens = known.used_blocks * views.BLOCK_TOKENS + known.waiting_tokens
        told[:] = [
            snapshot(
                dp_rank=rank,
                timestamp=float(number + 1),
                num_running_reqs=int(known.running[rank]),
                num_waiting_reqs=int(known.waiting[rank]),
                num_total_tokens=int(tokens[rank]),
            )
            for rank in range(ranks)
        ]
        before = controller._last_refresh_time
        controller.refresh_load_budget()
        if controller._last_refresh_time != before:
            scraped = known
        length = random.choice((1, 16, 40))
        asked = SimpleNamespace(routed_dp_rank=None, input_ids=[0] * length)
        getattr(controller, f"{method}_scheduler")(asked)
        own = views.load(ranks)._replace(processed=processed, sent_tokens=sent_tokens)
        prompt = views.prompt_of(views.path(), number)._replace(input_tokens=length)
        seen = views.view(ranks, own=own, scraped=scraped)
        rank = kind.choose(prompt, views.path(), seen, None, kind().settings())
        assert rank == chosen[-1], number
        processed[rank] += 1
        sent_tokens[rank] += length
    assert min(np.bincount(chosen, minlength=ranks)) > 100
