"""What the plugin makes of requests, and that no error of its own reaches the engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from kvscope.core.errors import UsageError
from kvscope.learning.conversations import (
    MOST_CATEGORIES,
    Categories,
    Lineage,
    Sessions,
    read_hints,
)
from kvscope.learning.lanes import LanePlan
from kvscope.policies.base import LanePolicy, Leaves
from kvscope.policies.lru import Ttl
from kvscope.policies.registry import POLICIES
from kvscope.policies.tlru import TLru
from kvscope.policies.wa import Wa
from kvscope.vllm_plugin.eviction_controller import EvictionController, lane_policy
from kvscope.vllm_plugin.free_blocks import planned
from kvscope.vllm_plugin.guarded_queue import GuardedQueue
from kvscope.vllm_plugin.recording import Recording
from tests.vllm_plugin.fakes import FakeBlock, FakeRequest, LruQueue

SIZE = 16


def steering(policy: LanePolicy, blocks: int = 8) -> EvictionController:
    """Return a controller of made-up blocks, whose clock stands still."""
    made = EvictionController(policy, SIZE, clock=lambda: 0.0)
    attached(made, blocks)
    return made


def attached(
    one: EvictionController, blocks: int, forget: Callable[[FakeBlock], object] = print
) -> GuardedQueue:
    """Return the queue in which a controller orders so many blocks."""
    pool = [FakeBlock(number) for number in range(blocks)]
    return one.attach(pool, pool, forget, lambda _: [], LruQueue)


def served(one: EvictionController, request: FakeRequest, hit_tokens: int = 0) -> LanePlan | None:
    """Take a request from arrival to its end; where its blocks would go."""
    one.tell("arrived", request)
    one.tell("stepping")
    one.tell("admitted", request.request_id, hit_tokens)
    one.tell("releasing", request)
    return one.free.plan


def test_time_begins_with_the_first_request() -> None:
    """As in the simulator: `wa` fits its table ten minutes after it, however long nothing came."""
    now_s = 0.0
    made = EvictionController(Wa({"refit_s": 600}), SIZE, clock=lambda: now_s)
    attached(made, 8)
    fits = []
    made.use = fits.append  # type: ignore[method-assign]
    for now_s in (590.0, 610.0, 1189.0, 1191.0):
        served(made, FakeRequest(str(now_s), 100))
        assert len(fits) == (now_s >= 1190.0)


def test_tel_safe_blocks_go_to_the_lane_that_leaves_first() -> None:
    """L = 600, Q = 100, xi = 300: what starts at token 400 or later is safe."""
    one = steering(TLru({"xi_tokens": 300, "next_prompt_tokens": 100}))
    plan = served(one, FakeRequest("a", 500, 100))
    assert plan == ((400, 0), (0, 1))
    assert planned(plan, FakeBlock(0).hold("x", 416)) == 0
    assert planned(plan, FakeBlock(0).hold("x", 400)) == 1


@pytest.mark.parametrize(("leaves", "order"), [("leaf", [2, 1, 0]), ("any", [0, 2, 1])])
def test_a_head_outlives_its_tails_where_leaves_leave(leaves: Leaves, order: list[int]) -> None:
    """A safe head under needed tails: of use to none if it left first, which "any" allows."""
    one = EvictionController(TLru(leaves=leaves), SIZE, clock=lambda: 0.0)

    def forget(block: FakeBlock) -> None:
        key, block.block_hash = block.block_hash, None
        one.tell("uncached", [key])

    attached(one, 3, forget)
    path = one.free.popleft_n(3)
    for depth, block in enumerate(path, start=1):
        block.hold("abc"[:depth], depth * SIZE)
    one.tell("cached", path, 0, 3)
    for blocks, plan in ((path[:0:-1], ((99 * SIZE, 0), (0, 1))), (path[:1], ((0, 0),))):
        one.free.plan = plan
        one.free.append_n(blocks)
    assert [one.free.popleft_n(1)[0].block_id for _ in path] == order
    assert not one.broken


def test_a_preempted_request_gives_nothing_up_early() -> None:
    """It will be back at once, and finds what nobody took."""
    one = steering(TLru({"xi_tokens": 300}))
    assert served(one, FakeRequest("a", 500, 100, finished=False)) == ((0, 1),)
    one.tell("released")
    assert one.free.plan is None
    assert one.free.usual == 1  # what is freed beside any request is needed too


def test_blocks_that_are_freed_later_keep_their_lanes() -> None:
    """Where the engine puts a free off, the plan is that of the request's end."""
    one = steering(TLru({"xi_tokens": 300, "next_prompt_tokens": 100}))
    shallow, deep, other = one.free.popleft_n(3)
    served(one, FakeRequest("a", 500, 100))
    one.tell("put_off", [shallow.hold("x", 16), deep.hold("y", 600)])
    one.tell("released")
    served(one, FakeRequest("b", 500, 100, finished=False))
    one.tell("released")
    one.free.append_n([deep, shallow, other.hold("z", 600)])
    assert [[block.block_hash for block in lane] for lane in one.free.lanes] == [["y"], ["x", "z"]]


@pytest.mark.parametrize("event", ["put_off", "released", "stepping", "updating"])
def test_every_observer_hears_every_event(event: str, tmp_path: Path) -> None:
    """One that does not care for an event is not ended by it."""
    for one in (steering(Wa()), Recording(tmp_path, SIZE)):
        one.tell(event, *([[]] if event == "put_off" else []))
        assert not one.broken


def test_xi_follows_what_recent_requests_computed() -> None:
    """Every 256 requests, the nearest-rank percentile of uncached tokens."""
    one = steering(TLru({"xi_percentile": 0.5}))
    for number in range(256):
        served(one, FakeRequest(str(number), 1000 + number), hit_tokens=1000)
    assert one.p[0] == 127


def test_a_replay_tells_the_time() -> None:
    """It is as late as requests say; one that does not say it is served, and not learned from."""
    one = EvictionController(Ttl({"ttl_s": 60}), SIZE, trace_clock=True)
    attached(one, 1)
    assert served(one, FakeRequest("a", 100)) is None
    plan = served(one, FakeRequest("b", 100, extra_args={"kvscope_arrival_s": 7.5}))
    assert plan is not None
    assert one.free.now_s == one.clock() == 7.5
    served(one, FakeRequest("c", 100, extra_args={"kvscope_arrival_s": 3}))
    assert one.clock() == 7.5
    assert not one.broken


def test_an_error_is_told_once_and_leaves_lru(caplog: pytest.LogCaptureFixture) -> None:
    """A policy that breaks: one line, and the engine's own order for good."""

    class Broken(TLru):
        @staticmethod
        def place(turn, end, block_size, p):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN205
            if turn.request > 0:
                raise FloatingPointError("of all things")
            return TLru.place(turn, end, block_size, p)

    one = steering(Broken())
    with caplog.at_level(logging.ERROR):
        for name in "abcd":
            served(one, FakeRequest(name, 100))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "vLLM evicts by LRU again" in caplog.text
    assert one.broken


def test_an_error_in_a_score_is_told_once_too(caplog: pytest.LogCaptureFixture) -> None:
    """It shows while the engine takes a block, which it gets."""

    class Broken(Wa):
        @staticmethod
        def score(lane, idle_s, p, table):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN205
            raise FloatingPointError("of all things")

    one = EvictionController(Broken(), SIZE, clock=lambda: 0.0)
    queue = attached(one, 2)
    blocks = queue.popleft_n(2)
    for lane, block in enumerate(blocks):
        one.free.plan = ((0, lane),)
        queue.append_n([block.hold(lane, 16)])
    with caplog.at_level(logging.ERROR):
        assert queue.popleft_n(2) == blocks
    assert len(caplog.records) == 1


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)
def test_policies_that_an_engine_can_follow(policy: type[LanePolicy]) -> None:
    """Those of recency lists that know no future; others are refused by name, in one line."""
    if policy.name in {"lru", "tlru", "threshold-lru", "wa", "gittins", "ttl"}:
        assert lane_policy(policy()).name == policy.name
    else:
        with pytest.raises(UsageError, match="kvscope's plugin cannot run it"):
            lane_policy(policy())


@pytest.mark.parametrize(
    ("extra", "kind", "turn"),
    [
        (None, "unknown", None),
        ({"kvscope_type": "chat", "kvscope_turn": 3}, "chat", 3),
        ({"kvscope_type": "my secret prompt", "kvscope_turn": 0}, "unknown", None),
        ({"kvscope_turn": math.nan}, "unknown", None),
        ({"kvscope_turn": "2", "kvscope_type": 7}, "7", None),
        ({"kvscope_turn": 2.0}, "unknown", 2),
    ],
)
def test_what_a_request_says(extra: dict[str, object] | None, kind: str, turn: int | None) -> None:
    """Labels and whole numbers are taken, anything else is unknown."""
    says = read_hints(FakeRequest("a", 10, extra_args=extra, session_id="s"))
    assert says == ("s", kind, turn, None, False)


def test_turns_of_a_session_are_counted_in_order_of_arrival() -> None:
    """Unless the request tells its turn."""
    sessions = Sessions()
    assert sessions.begin("a", 0, None) == (-1, 1)
    assert sessions.begin("b", 1, None) == (-1, 1)
    assert sessions.begin("a", 2, None) == (0, 2)
    assert sessions.begin("a", 3, 7) == (2, 7)
    assert sessions.begin("a", 4, None) == (3, 8)


def test_turns_follow_from_hashes() -> None:
    """A prompt that begins with another's full blocks, and is longer than its history."""
    lineage = Lineage(SIZE)
    assert lineage.turn(["a", "b"], 40) == 1
    lineage.end(["a", "b", "out"], 40, 56, 1)
    assert lineage.turn(["a", "b", "c", "d"], 70) == 2
    assert lineage.turn(["a", "b", "x"], 50) == 1  # shorter than that history
    lineage.end(["a", "b", "c", "d"], 70, 80, 2)
    assert lineage.turn(["a", "b", "c", "d", "e"], 90) == 3


def test_a_shared_head_is_no_turn() -> None:
    """What four requests continue is a system prompt."""
    lineage = Lineage(SIZE)
    lineage.end(["head"], 16, 20, 1)
    assert [lineage.turn(["head", str(n)], 40) for n in range(6)] == [2, 2, 2, 1, 1, 1]


def test_categories_are_types_and_turn_buckets() -> None:
    """Turns 1, 2, 3, 4-6, 7 and more; too many types share a number."""
    numbers = Categories()
    assert [numbers.number("a", turn) for turn in range(1, 9)] == [0, 1, 2, 3, 3, 3, 4, 4]
    assert numbers.number("b", 1) == 5
    assert {numbers.number(str(n), 1) for n in range(500)} == set(range(6, MOST_CATEGORIES))
    assert numbers.number("a", 1) == 0
