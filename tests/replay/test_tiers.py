"""Replays over tiers against the slow oracle, against replays of one tier, and what must add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvscope.replay.tiers as replaying
from kvscope.core.errors import UsageError
from kvscope.core.runs import TierMode
from kvscope.policies.base import Policy
from kvscope.policies.lfu import Lfu
from kvscope.policies.lru import Lru, ThresholdLru, Ttl
from kvscope.policies.queues import Fifo
from kvscope.policies.tlru import TLru, TLruEnd, TLruLength
from kvscope.policies.wa import Wa
from kvscope.replay.replay import replay
from kvscope.replay.tier_spec import Tier
from kvscope.replay.tiers import TieredReplay, replay_tiers
from kvscope.replay.traffic import Traffic, uncut
from tests.oracles import tiers as oracle
from tests.policies import drawn
from tests.policies.traffics import chain, held, traffics

LEAF: tuple[type[Policy], ...] = (Lru, Ttl, TLru, TLruEnd, TLruLength)
ANY: tuple[type[Policy], ...] = (Lru, Ttl, TLru, TLruEnd)
ALONE: tuple[type[Policy], ...] = (*LEAF, ThresholdLru)


@st.composite
def hierarchies(
    draw: st.DrawFn, traffic: Traffic, kinds: tuple[type[Policy], ...], *, leaf: bool = True
) -> tuple[Tier, ...]:
    """One to three tiers, small ones most of the time."""
    tiers = []
    for name in ("hbm", "dram", "ssd")[: draw(st.integers(1, 3))]:
        kind = draw(st.sampled_from(kinds))
        leaves = "any" if not leaf and issubclass(kind, TLru) else kind.leaves
        policy = draw(drawn.policies(kind, leaves))
        some = draw(st.one_of(st.integers(0, 6), drawn.capacities(traffic)))
        tiers.append(Tier(name, some, policy))
    return tuple(tiers)


def contents(done: TieredReplay) -> list[set[int]]:
    """Return the named blocks that each tier held at the end."""
    return [set(np.flatnonzero(row).tolist()) for row in done.cached]


@settings(deadline=None, max_examples=150)
@given(st.data(), st.booleans())
def test_exclusive_equals_the_oracle(data: st.DataObject, leaf: bool) -> None:
    """Hits by request and tier, what left and moved down, and what is where at the end."""
    _compare(data, leaf=leaf)


@settings(deadline=None, max_examples=25)
@given(st.data(), st.booleans())
def test_uncompiled_equals_the_oracle(data: st.DataObject, leaf: bool) -> None:
    """The kernels' Python source, run as it is, does the same."""
    with pytest.MonkeyPatch.context() as patched:
        python: Any = replaying.exclusive_kernel
        patched.setattr(replaying, "exclusive_kernel", python.py_func)
        patched.setattr(replaying, "places_kernel", _uncompiled(replaying.places_kernel))
        _compare(data, leaf=leaf)


def _uncompiled(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *of: make(*of).py_func


def _compare(data: st.DataObject, *, leaf: bool) -> None:
    traffic = data.draw(traffics(most=16))
    _equal(traffic, data.draw(hierarchies(traffic, LEAF if leaf else ANY, leaf=leaf)))


def _equal(traffic: Traffic, tiers: Sequence[Tier]) -> None:
    done, expected = replay_tiers(traffic, tiers, "exclusive"), oracle.exclusive(traffic, tiers)
    assert done.tier_hits.tolist() == expected.tier_hits
    assert contents(done) == expected.left
    assert list(done.evictions) == expected.evictions
    assert list(done.demotions) == expected.demotions


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_blocks_are_conserved(data: st.DataObject) -> None:
    """Where all of a path is looked up, what did not hit was inserted, then dropped or left."""
    some = data.draw(traffics(most=30))
    traffic = some._replace(look=some.length, anonymous=np.zeros_like(some.anonymous))
    tiers = data.draw(hierarchies(traffic, LEAF))
    done = replay_tiers(traffic, tiers, "exclusive")
    inserted = int(traffic.length.sum() - done.hit_blocks.sum())
    dropped = sum(done.evictions) - sum(done.demotions)
    assert inserted == dropped + int(done.cached.sum())
    assert done.cached.sum(axis=0).max(initial=0) <= 1
    for content, tier in zip(done.cached, tiers, strict=True):
        assert content.sum() <= tier.capacity_blocks


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_lru_tiers_are_one_lru(data: st.DataObject) -> None:
    """The first t tiers of an LRU hierarchy hold what LRU does with all their blocks together."""
    traffic = data.draw(traffics(most=40))
    sizes = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    tiers = [Tier(f"tier {at}", size, Lru()) for at, size in enumerate(sizes)]
    done = replay_tiers(traffic, tiers, "exclusive")
    for upper in range(1, len(sizes) + 1):
        alone = replay(traffic, Lru(), sum(sizes[:upper]))
        assert done.tier_hits[:, :upper].sum(axis=1).tolist() == alone.hit_blocks.tolist()
        assert (done.cached[:upper].any(axis=0) == alone.cached).all()


@pytest.mark.parametrize("mode", ["exclusive", "write-through"])
@settings(deadline=None, max_examples=50)
@given(data=st.data(), leaf=st.booleans())
def test_one_tier_is_a_cache(mode: TierMode, data: st.DataObject, leaf: bool) -> None:
    """One tier does exactly what `replay` does."""
    traffic = data.draw(traffics(most=40))
    open_ended = not leaf and mode == "exclusive"
    kinds = ANY if open_ended else LEAF
    (tier, *_) = data.draw(hierarchies(traffic, kinds, leaf=not open_ended))
    done = replay_tiers(traffic, [tier], mode)
    alone = replay(traffic, tier.policy, tier.capacity_blocks)
    assert done.hit_blocks.tolist() == alone.hit_blocks.tolist()
    assert done.evictions == (alone.evictions,)
    assert done.demotions == (0,)
    assert (done.cached[0] == alone.cached).all()


@pytest.mark.parametrize("mode", ["exclusive", "write-through"])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_an_infinite_first_tier_is_ideal(mode: TierMode, data: st.DataObject) -> None:
    """Nothing ever leaves it, so the others give nothing."""
    traffic = data.draw(traffics(most=30))
    tiers = [Tier("hbm", drawn.INFINITE, TLru()), Tier("dram", 3, Lru())]
    done = replay_tiers(traffic, tiers, mode)
    ideal = replay(traffic, Lru(), held(traffic))
    assert done.tier_hits[:, 0].tolist() == ideal.hit_blocks.tolist()
    assert not done.tier_hits[:, 1].any()
    assert done.evictions[0] == 0


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_write_through_equals_the_oracle(data: st.DataObject) -> None:
    """Each block of a prefix is hit in the first tier that has it, block by block."""
    traffic = data.draw(traffics(most=10))
    tiers = data.draw(hierarchies(traffic, ALONE))
    done = replay_tiers(traffic, tiers, "write-through")
    assert done.tier_hits.tolist() == oracle.write_through(traffic, tiers)
    for row, tier in zip(done.cached, tiers, strict=True):
        assert (row == replay(traffic, tier.policy, tier.capacity_blocks).cached).all()


def test_time_to_live_counts_from_the_last_touch() -> None:
    """After 10 s a block moves down, after 60 s it is gone, however late it came there."""
    tiers = [Tier("hbm", 9, Ttl({"ttl_s": 10.0})), Tier("dram", 9, Ttl({"ttl_s": 60.0}))]
    hits = {}
    for silence_s in (10, 11, 60, 61):
        traffic = _two_visits(silence_s)
        hits[silence_s] = replay_tiers(traffic, tiers, "exclusive").tier_hits[1].tolist()
    assert hits == {10: [2, 0], 11: [0, 2], 60: [0, 2], 61: [0, 0]}


def test_a_shorter_life_below_takes_nothing_in() -> None:
    """What is past the time of a lower tier passes it by: to the next one, or out."""
    short = Tier("dram", 9, Ttl({"ttl_s": 5.0}))
    tiers = [Tier("hbm", 9, Ttl({"ttl_s": 10.0})), short, Tier("ssd", 9, Lru())]
    done = replay_tiers(_two_visits(20), tiers, "exclusive")
    assert done.tier_hits[1].tolist() == [0, 0, 2]
    assert (done.evictions, done.demotions) == ((2, 0, 0), (2, 0, 0))
    done = replay_tiers(_two_visits(20), tiers[:2], "exclusive")
    assert done.tier_hits[1].tolist() == [0, 0]
    assert (done.evictions, done.demotions) == ((2, 0), (0, 0))


def _two_visits(silence_s: float) -> Traffic:
    return chain([2, 2], [0.0, silence_s])


@pytest.mark.parametrize(
    ("mode", "policies", "message"),
    [
        (
            "exclusive",
            [Fifo()],
            "tier 0: blocks of fifo cannot be moved down tier by tier; take lru",
        ),
        ("exclusive", [Lru(), Wa()], "tier 1: blocks of wa cannot be moved down"),
        ("exclusive", [ThresholdLru()], "tier 0: blocks of threshold-lru cannot"),
        ("exclusive", [TLru({"xi_percentile": 0.95})], "tlru with an adaptive xi cannot"),
        ("exclusive", [TLru(), TLru(leaves="any")], "tier 1: tlru evicts any block where another"),
        ("write-through", [Lru(), Lfu()], "tier 1: blocks of lfu cannot be kept in step"),
        ("write-through", [TLru(leaves="any")], "tier 0: blocks of tlru that evicts any cannot"),
    ],
)
def test_refuses_what_it_cannot_do(mode: TierMode, policies: list[Policy], message: str) -> None:
    """Policies for which a mode would not be exact are named, with the tier and a way out."""
    tiers = [Tier(str(at), 9, policy) for at, policy in enumerate(policies)]
    with pytest.raises(UsageError, match="; ") as refusal:
        replay_tiers(_two_visits(1.0), tiers, mode)
    assert message in str(refusal.value)


REQUESTS = 30


def crowded(random: np.random.Generator) -> Traffic:
    """Return requests that branch off anywhere, with histories that make any block safe."""
    parents, depth, leaves = [0], [0], []
    for _ in range(REQUESTS):
        block = int(random.integers(len(parents)))
        for _ in range(int(random.integers(0, 4))):
            depth.append(depth[block] + 1)
            parents.append(block)
            block = len(parents) - 1
        leaves.append(block)
    length = np.array(depth, dtype=np.int32)[leaves]
    return Traffic(
        block_size=1,
        block_parent=np.array(parents, dtype=np.int32),
        leaf=np.array(leaves, dtype=np.int32),
        length=length,
        look=np.maximum(length - random.integers(0, 2, REQUESTS), 0).astype(np.int32),
        anonymous=random.integers(0, 2, REQUESTS).astype(np.int32),
        arrival_s=np.cumsum(random.integers(0, 3, REQUESTS)).astype(np.float64),
        input_tokens=np.maximum(length, 1),
        history_tokens=random.integers(1, 12, REQUESTS).astype(np.int64),
        category=np.zeros(REQUESTS, dtype=np.int32),
        parent=np.full(REQUESTS, -1, dtype=np.int32),
        next_prompt_tokens=np.full(REQUESTS, -1, dtype=np.int64),
        cuts=uncut(REQUESTS),
    )


def small_tiers(random: np.random.Generator) -> list[Tier]:
    """One to three tiers of a few blocks each, most of them T-LRU, some with a time to live."""
    tiers = []
    for at in range(int(random.integers(1, 4))):
        ttl_s = float(random.choice([np.inf, np.inf, 3.0, 9.0, 20.0]))
        safe = {"xi_tokens": float(random.integers(0, 10)), "next_prompt_tokens": 0.0}
        policy = TLru({**safe, "ttl_s": ttl_s}) if random.random() < 0.7 else Lru({"ttl_s": ttl_s})
        tiers.append(Tier(str(at), int(random.integers(1, 14)), policy))
    return tiers


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1))
def test_crowded_tries_equal_the_oracle(seed: int) -> None:
    """There the leaf rule often decides; the oracle's looks at every block that is cached."""
    random = np.random.default_rng(seed)
    _equal(crowded(random), small_tiers(random))


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1))
def test_no_tier_holds_an_orphan(seed: int) -> None:
    """Of every cached block the parent is cached too, in the same tier or a higher one."""
    random = np.random.default_rng(seed)
    traffic, tiers = crowded(random), small_tiers(random)
    cached = replay_tiers(traffic, tiers, "exclusive").cached
    for upper in range(1, len(tiers) + 1):
        held = cached[:upper].any(axis=0)
        parents = traffic.block_parent[held]
        assert (held[parents] | (parents == 0)).all()
