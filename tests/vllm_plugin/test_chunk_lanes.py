"""The order of a CPU tier's chunks without vLLM: worked by hand, with ranks as vLLM gives them.

`tests/conformance/test_offloading.py` runs it in vLLM's own tier.
"""

from __future__ import annotations

import pytest

from kvscope.policies.base import LanePolicy
from kvscope.policies.gittins import Gittins
from kvscope.policies.tlru import TLru
from kvscope.vllm_plugin import chunk_controller
from kvscope.vllm_plugin.chunk_controller import ChunkController
from kvscope.vllm_plugin.chunk_lanes import ChunkLanes
from kvscope.vllm_plugin.settings import read_settings
from tests.vllm_plugin.fakes import FakeRequest

SIZE, GROUP = 16, b"\0\0\0\0"
SAFE, NEEDED = 1, 2  # T-LRU's lanes, as lists


class Tier:
    """Ranks and evictable chunks as vLLM's LRU keeps them, with a policy's lanes beside them."""

    def __init__(self, *, leaf: bool = True) -> None:
        self.ranks: dict[bytes, int] = {}
        self.evictable: set[bytes] = set()
        self.lanes = ChunkLanes(
            self.ranks, self.evictable, lambda lane, _: float(lane), None, leaf=leaf
        )
        self.lanes.score_anew(0.0, 1.0)

    def hold(self, path: str, place: int) -> None:
        """Store a request's chunks, and end it: all go to one list, the tail ranks lowest."""
        keys = [path[: at + 1].encode() for at in range(len(path))]
        for at, key in enumerate(keys):
            if key not in self.lanes:
                self.lanes.gain(key, keys[at - 1] if at else None)
        for key in reversed(keys):
            self.ranks[key] = max(self.ranks.values(), default=0) + 1
            self.evictable.add(key)
            self.lanes.move(key, place)

    def evict(self, count: int, protected: set[bytes] | None = None) -> list[str] | None:
        """Return the chunks that leave, as the ends of their paths."""
        keys = self.lanes.choose(count, protected or set())
        return None if keys is None else [key.decode() for key in keys]


def test_safe_chunks_leave_first_and_tails_before_heads() -> None:
    """The younger request's chunks are safe; the head that both share leaves last."""
    tier = Tier()
    tier.hold("ab", NEEDED)
    tier.hold("axy", SAFE)
    assert tier.evict(4) == ["axy", "ax", "ab", "a"]


def test_without_the_leaf_rule_a_safe_head_leaves_before_what_needs_it() -> None:
    """As published: "a" is safe, though "ab" continues it."""
    tier = Tier(leaf=False)
    tier.hold("ab", NEEDED)
    tier.hold("axy", SAFE)
    assert tier.evict(4) == ["axy", "ax", "a", "ab"]


def test_equal_lanes_are_lru() -> None:
    """Where all are worth the same, ranks alone count, and heads leave whatever continues them."""
    tier = Tier()
    tier.lanes.score_anew(0.0, 0.0)
    tier.lanes._score = lambda *_: 0.0
    tier.hold("ab", NEEDED)
    tier.ranks[b"a"] = 0
    tier.lanes.move(b"a")
    assert tier.evict(2) == ["a", "ab"]


def test_what_is_read_or_protected_stays_and_too_few_change_nothing() -> None:
    """Four chunks, one pinned and one protected: two may leave, three may not."""
    tier = Tier()
    tier.hold("abcd", SAFE)
    tier.evictable.discard(b"abcd")
    tier.lanes.keep(b"abcd")
    assert tier.evict(3, {b"abc"}) is None
    assert tier.lanes.evictions == 0
    assert tier.evict(2, {b"abc"}) == ["ab", "a"]  # no leaf may leave, so what ranks lowest does
    tier.evictable.add(b"abcd")
    tier.lanes.offer(b"abcd")
    assert tier.evict(2) == ["abcd", "abc"]
    assert tier.evict(1) is None


def test_a_protected_chunk_does_not_hide_the_next_one_of_its_lane() -> None:
    """Old ones are worth 9 here, and young ones 1: "b" leaves before "c", once "a" may not."""
    tier = Tier()
    tier.lanes._score = lambda lane, idle_s: 5.0 if lane else 9.0 if idle_s >= 10 else 1.0
    tier.hold("a", SAFE)
    tier.lanes.at(5.0)
    tier.hold("b", SAFE)
    tier.hold("c", NEEDED)
    tier.lanes.at(10.0)
    assert tier.evict(1, {b"a"}) == ["b"]
    assert tier.evict(2) == ["c", "a"]


def test_chunks_of_running_requests_are_as_valuable_as_any() -> None:
    """They are in a list of their own until the request ends, and rank by their age."""
    tier = Tier()
    tier.hold("b", 0)
    tier.hold("a", SAFE)
    tier.hold("c", NEEDED)
    assert tier.evict(3) == ["a", "b", "c"]


@pytest.mark.parametrize("why", ["pinned", "continued"])
def test_a_head_that_stays_is_not_the_worth_of_its_lane(why: str) -> None:
    """Old ones are worth 9 here, and young ones 1: "b" is next, once "a" before it stays."""
    tier = Tier()
    tier.lanes._score = lambda lane, idle_s: 5.0 if lane else 9.0 if idle_s >= 10 else 1.0
    tier.hold("a", SAFE)
    tier.lanes.at(5.0)
    tier.hold("b", SAFE)
    tier.hold("c", NEEDED)
    tier.hold("d", NEEDED)
    tier.lanes.at(10.0)
    assert tier.evict(1) == ["c"]  # all lanes have been looked at
    if why == "pinned":
        tier.evictable.discard(b"a")
        tier.lanes.keep(b"a")
    else:
        tier.lanes.gain(b"ax", b"a")
    assert tier.evict(1) == ["b"]


def test_a_head_leaves_in_its_turn_once_nothing_continues_it() -> None:
    """Though it ranks lowest; too few to evict change nothing about that."""
    tier = Tier()
    tier.hold("ab", SAFE)
    tier.hold("c", NEEDED)
    tier.ranks[b"a"] = 0
    tier.lanes.move(b"a")
    assert tier.evict(4) is None
    assert tier.evict(3) == ["ab", "a", "c"]


def test_a_protected_head_stays_where_all_are_continued() -> None:
    """Of two heads with pinned tails the older one leaves, unless it is protected."""
    tier = Tier()
    tier.hold("ab", SAFE)
    tier.hold("cd", SAFE)
    tier.hold("e", NEEDED)
    for tail in (b"ab", b"cd"):
        tier.evictable.discard(tail)
        tier.lanes.keep(tail)
    assert tier.evict(1) == ["e"]  # the heads have been passed over
    assert tier.evict(1, {b"a"}) == ["c"]


def test_a_guard_counts_blocks_and_cuts_count_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 chunks of 2 blocks are 20 blocks; the third chunk is the first beyond block 5."""
    policy = TLru({"xi_tokens": 4 * SIZE, "next_prompt_tokens": 0, "guard": 1})
    tier = ChunkController(policy, SIZE, lambda: 0.0, blocks_per_chunk=2)
    blocks, cuts = [], []
    assert tier.learner is not None
    monkeypatch.setattr(tier.learner, "guard", blocks.append)
    monkeypatch.setattr(tier, "turn", lambda *_: (None, [5]))
    monkeypatch.setattr(tier, "end", lambda *_: None)
    monkeypatch.setattr(chunk_controller, "lane_plan", lambda *given: cuts.append(given[2:4]))
    tier.attach({}, set(), 10)
    request = FakeRequest("0", 8 * SIZE - 1, 1)
    for event, of in (("arrived", (request,)), ("stepping", ()), ("releasing", (request,))):
        tier.tell(event, *of)
    assert not tier.broken
    assert (blocks, cuts) == ([20], [([2], 2 * SIZE)])


@pytest.mark.parametrize(("blocks_per_chunk", "safe"), [(1, 4), (2, 2)])
def test_the_controller_finds_prefixes_and_lanes(blocks_per_chunk: int, safe: int) -> None:
    """A history of 8 blocks with xi of 4: of chunks of 1 or 2 blocks, those behind 64 tokens."""
    policy = TLru({"xi_tokens": 4 * SIZE, "next_prompt_tokens": 0})
    tier = ChunkController(policy, SIZE, lambda: 0.0, blocks_per_chunk=blocks_per_chunk)
    ranks: dict[bytes, int] = {}
    evictable: set[bytes] = set()
    tier.attach(ranks, evictable, 100)
    hashes = [f"block {at}".encode() for at in range(8)]
    request = FakeRequest("0", 8 * SIZE - 1, 1, block_hashes=hashes)
    keys = [key + GROUP for key in hashes[blocks_per_chunk - 1 :: blocks_per_chunk]]
    ends = {key: (at + 1) * blocks_per_chunk * SIZE for at, key in enumerate(keys)}
    for event, of in (("arrived", (request,)), ("stepping", ()), ("admitted", ("0", 0))):
        tier.tell(event, *of)
    tier.tell("offered", keys, "0", ends.get)
    for key in keys:
        ranks[key] = 0
        tier.tell("inserted", key)
    tier.tell("releasing", request)
    ranks |= {key: rank for rank, key in enumerate(reversed(keys))}
    tier.tell("finished", keys, "0", ends.get)
    for key in keys:
        evictable.add(key)
        tier.tell("evictable", key)
    assert not tier.broken
    lanes = tier.chunks
    assert lanes is not None
    places = [lanes._held[key].place for key in keys]
    assert places == [NEEDED] * (len(keys) - safe) + [SAFE] * safe
    assert [lanes._held[key].above for key in keys] == [None, *keys[:-1]]
    assert tier.choose(len(keys), set()) == keys[::-1]
    left = (tier._offered, tier._above, tier._offers, tier._ended, tier._in_flight)
    assert not any(left)


def test_the_tier_takes_what_the_settings_name() -> None:
    """The policy's xi and next prompt for either class; a table of its own goes first."""
    named = {"name": "gittins", "params": {"xi_tokens": 512, "next_prompt_tokens": 99}}
    own = {"name": "tlru", "params": {"xi_tokens": 64, "guard": 0}}
    chosen = [
        read_settings({"kvscope": table}, {}).for_chunks(kind)
        for table in ({"policy": named}, {"policy": named, "cpu_tier": own}, {"policy": own})
        for kind in (TLru, Gittins)
    ]
    policies: list[LanePolicy] = [entry[0] for entry in chosen if entry is not None]
    assert [policy.name for policy in policies] == ["tlru", "gittins"] * 3
    assert [policy.values["xi_tokens"] for policy in policies] == [512, 512, 64, 64, 64, 64]
    assert [policy.values["next_prompt_tokens"] for policy in policies[:2]] == [99, 99]
    assert [policy.guarded for policy in policies] == [True, True, False, True, True, True]


@pytest.mark.parametrize("given", [{}, {"policy": {"name": "lru"}}])
def test_without_xi_the_tier_stays_with_lru(given: dict[str, object]) -> None:
    """Nothing is assumed."""
    assert read_settings({"kvscope": given}, {}).for_chunks(TLru) is None
