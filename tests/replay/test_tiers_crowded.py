"""Tiers under crowded tries, where the leaf rule often decides, against the oracle."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.policies.lru import Lru
from kvscope.policies.tlru import TLru
from kvscope.replay.tier_spec import Tier
from kvscope.replay.tiers import replay_tiers
from kvscope.replay.traffic import Traffic, uncut
from tests.oracles import tiers as oracle

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
def test_equals_the_oracle(seed: int) -> None:
    """Everything is the oracle's, whose leaf rule looks at every block that is cached."""
    random = np.random.default_rng(seed)
    traffic, tiers = crowded(random), small_tiers(random)
    done, expected = replay_tiers(traffic, tiers, "exclusive"), oracle.exclusive(traffic, tiers)
    assert done.tier_hits.tolist() == expected.tier_hits
    assert list(done.evictions) == expected.evictions
    assert list(done.demotions) == expected.demotions
    assert [set(np.flatnonzero(row).tolist()) for row in done.cached] == expected.left


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
