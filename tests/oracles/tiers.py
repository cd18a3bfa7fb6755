"""Tiers as section 5 of the design says them: plain Python, block by block, a scan a victim.

Exclusive: dicts from block to what is known of it and to the tier that it is in. Write-through: a
cache a tier, which knows nothing of the others; a look-up goes block by block and asks each.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvscope.replay.tier_spec import Tier
from kvscope.replay.traffic import Traffic
from tests.oracles import replay
from tests.oracles.keys import KEYS, Asked, Owned
from tests.oracles.replay import Setting, left_behind, paths


class Outcome(NamedTuple):
    """Hits by request and tier, what left and moved down, named blocks at the end."""

    tier_hits: list[list[int]]
    evictions: list[int]
    demotions: list[int]
    left: list[set[int]]


@dataclass
class _Exclusive:
    """One hierarchy: `of` knows every block, `tier_of` where it is."""

    tiers: Sequence[Tier]
    asked: list[Asked]

    def __post_init__(self) -> None:
        self.of: dict[Hashable, Owned] = {}
        self.tier_of: dict[Hashable, int] = {}
        self.evictions = [0] * len(self.tiers)
        self.demotions = [0] * len(self.tiers)

    def in_tier(self, tier: int) -> list[Hashable]:
        return [block for block, at in self.tier_of.items() if at == tier]

    def past_its_time(self, block: Hashable, tier: int) -> bool:
        return self.asked[tier].silence_s(self.of[block]) > self.tiers[tier].ttl_s

    def move_down(self, block: Hashable) -> None:
        """To the next tier that it may stay in, or out."""
        tier = self.tier_of.pop(block)
        self.evictions[tier] += 1
        for lower in range(tier + 1, len(self.tiers)):
            if not self.past_its_time(block, lower):
                self.tier_of[block] = lower
                self.demotions[tier] += 1
                return
        del self.of[block]

    def expire(self) -> None:
        for tier in reversed(range(len(self.tiers))):
            for block in self.in_tier(tier):
                if self.past_its_time(block, tier):
                    self.move_down(block)

    def settle(self) -> None:
        for tier, one in enumerate(self.tiers):
            while len(self.in_tier(tier)) > one.capacity_blocks:
                self.move_down(self.victim(tier))

    def victim(self, tier: int) -> Hashable:
        policy = self.tiers[tier].policy
        key = KEYS[policy.name]
        asked, xi = self.asked[tier], policy.values.get("xi_tokens", 0.0)
        needed: set[Hashable | None] = set()
        if policy.evicts == "leaf":
            needed = {one.parent for block, one in self.of.items() if self.tier_of[block] <= tier}

        def rank(block: Hashable) -> tuple[float, ...]:
            one = self.of[block]._replace(xi_tokens=xi)
            return (*key(asked, block, one), one.owner, -one.depth)

        return min((block for block in self.in_tier(tier) if block not in needed), key=rank)


def exclusive(traffic: Traffic, tiers: Sequence[Tier]) -> Outcome:
    """Evicted blocks move down, hit ones up to the first tier."""
    blocks = left_behind(traffic)
    held = _Exclusive(tiers, [Asked(traffic, dict(tier.policy.values), blocks) for tier in tiers])
    tier_hits = []
    for at, path in enumerate(paths(traffic)):
        for asked in held.asked:
            asked.now_s = float(traffic.arrival_s[at])
        held.expire()
        held.settle()
        tier_hits.append([0] * len(tiers))
        for block in path[: int(traffic.look[at])]:
            if block not in held.of:
                break
            tier_hits[at][held.tier_of[block]] += 1
        for depth, block in enumerate(blocks[at]):
            parent = blocks[at][depth - 1] if depth else None
            held.of[block] = Owned(at, depth, parent, 1, 0.0, 0.0)
            held.tier_of[block] = 0
        held.settle()
    inside = [held.in_tier(tier) for tier in range(len(tiers))]
    return Outcome(
        tier_hits,
        held.evictions,
        held.demotions,
        [{block for block in some if isinstance(block, int)} for some in inside],
    )


def write_through(traffic: Traffic, tiers: Sequence[Tier]) -> list[list[int]]:
    """Every tier has all that it can hold; each block is hit in the first one that has it."""
    tier_hits = [[0] * len(tiers) for _ in traffic.leaf]
    contents = [_contents(traffic, tier) for tier in tiers]
    for at, path in enumerate(paths(traffic)):
        for block in path[: int(traffic.look[at])]:
            having = [tier for tier, held in enumerate(contents) if block in held[at]]
            if not having:
                break
            tier_hits[at][having[0]] += 1
    return tier_hits


def _contents(traffic: Traffic, tier: Tier) -> list[set[int]]:
    """Return what the tier alone holds when each request looks.

    That is what it held after the previous request without what has expired since.
    """
    policy = tier.policy
    setting = Setting(policy.name, policy.values, policy.evicts, tier.capacity_blocks)
    found = []
    for at in range(len(traffic.leaf)):
        before = _first(traffic, at + 1)
        before.length[at] = before.look[at] = before.anonymous[at] = before.leaf[at] = 0
        found.append(replay.replay(before, setting).left)
    return found


def _first(traffic: Traffic, requests: int) -> Traffic:
    """Return the traffic's first requests, in arrays of their own."""
    trie = ("block_size", "block_parent")
    return traffic._replace(
        **{
            name: column[:requests].copy()
            for name, column in traffic._asdict().items()
            if name not in trie
        }
    )
