"""Replay under any policy as sections 5 and 6 of the design say it: plain Python, a scan a victim.

Slow on purpose and written without a look at the kernels. A cache is a dict from block to what is
known of it; the victim is the least of all blocks that may leave. What a policy's key is stands in
tests/oracles/keys.py, the policies that are queues of their own in tests/oracles/queues.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvscope.replay.replay import NO_TABLES, Tables
from kvscope.replay.traffic import Traffic
from tests.oracles.keys import ADAPTIVE, KEYS, Asked, Owned, admitted, moved_xi
from tests.oracles.queues import QUEUES


class Outcome(NamedTuple):
    """What a replay did; `sizes` after each request, `left` the blocks with a name at the end."""

    hit_blocks: list[int]
    evictions: int
    insertions: int
    sizes: list[int]
    left: set[int]


@dataclass
class Setting:
    """What is replayed: a policy's registry id, its parameters, and what it was told."""

    policy: str
    values: Mapping[str, float]
    leaves: str
    capacity: int
    tables: Tables = field(default_factory=lambda: NO_TABLES)
    mandatory: bool = False


def paths(traffic: Traffic) -> list[list[int]]:
    """Return the named blocks of each request, the head first."""
    found = []
    for leaf, length in zip(traffic.leaf.tolist(), traffic.length.tolist(), strict=True):
        path: list[int] = []
        block = leaf
        for _ in range(length):
            path.insert(0, block)
            block = int(traffic.block_parent[block])
        found.append(path)
    return found


def left_behind(traffic: Traffic) -> list[list[Hashable]]:
    """All blocks of each request, the head first: those with a name, then the anonymous ones."""
    return [
        [*path, *(("anonymous", at, place) for place in range(int(traffic.anonymous[at])))]
        for at, path in enumerate(paths(traffic))
    ]


def replay(traffic: Traffic, setting: Setting) -> Outcome:
    """Return what the policy does, request by request."""
    run = _by_queue if setting.policy in QUEUES else _by_key
    return run(traffic, setting)


def _leading(path: Sequence[Hashable], cached: Mapping[Hashable, object]) -> int:
    for depth, block in enumerate(path):
        if block not in cached:
            return depth
    return len(path)


def _by_queue(traffic: Traffic, setting: Setting) -> Outcome:
    queue = QUEUES[setting.policy](setting.capacity, setting.values)
    cached: dict[Hashable, None] = {}
    hits: list[int] = []
    sizes: list[int] = []
    evictions = insertions = 0
    for at, (path, blocks) in enumerate(zip(paths(traffic), left_behind(traffic), strict=True)):
        hits.append(min(_leading(path, cached), int(traffic.look[at])))
        for block in blocks:
            if block in cached:
                queue.touch(block)
                continue
            while setting.mandatory and cached and len(cached) >= setting.capacity:
                del cached[queue.victim()]
                evictions += 1
            queue.insert(block)
            cached[block] = None
            insertions += 1
        while len(cached) > setting.capacity:
            del cached[queue.victim()]
            evictions += 1
        sizes.append(len(cached))
    return Outcome(hits, evictions, insertions, sizes, _named(cached))


def _by_key(traffic: Traffic, setting: Setting) -> Outcome:
    asked = Asked(traffic, dict(setting.values), left_behind(traffic))
    cached: dict[Hashable, Owned] = {}
    hits: list[int] = []
    sizes: list[int] = []
    evictions = insertions = 0
    ttl_s = setting.values.get("ttl_s", float("inf"))
    for at, path in enumerate(paths(traffic)):
        asked.now_s = float(traffic.arrival_s[at])
        asked.table = setting.tables.at(_period(setting.tables, at))
        for block in [b for b, one in cached.items() if asked.silence_s(one) > ttl_s]:
            del cached[block]
            evictions += 1
        found = _leading(path, cached)
        hits.append(min(found, int(traffic.look[at])))
        blocks = asked.blocks[at]
        if not admitted(setting.policy, asked, at):
            blocks = blocks[:found]
        for depth, block in enumerate(blocks):
            parent = blocks[depth - 1] if depth else None
            insertions += block not in cached
            uses = cached[block].uses if block in cached else 0
            xi = asked.values.get("xi_tokens", 0.0)
            cached[block] = Owned(at, depth, parent, uses + 1, asked.clock, xi)
        for own_too in (False, True):
            while (own_too or setting.mandatory) and len(cached) > setting.capacity:
                victim = _lowest(cached, setting, asked, None if own_too else at)
                if victim is None:
                    break
                asked.clock = KEYS[setting.policy](asked, victim, cached[victim])[0]
                del cached[victim]
                evictions += 1
        sizes.append(len(cached))
        asked.hit_blocks = hits
        if setting.policy in ADAPTIVE:
            moved_xi(asked, at)
    return Outcome(hits, evictions, insertions, sizes, _named(cached))


def _lowest(
    cached: Mapping[Hashable, Owned], setting: Setting, asked: Asked, spared: int | None
) -> Hashable | None:
    """Return the evictable block with the least key, none of request `spared`."""
    key = KEYS[setting.policy]
    parents = {one.parent for one in cached.values()}
    free = [
        block
        for block, one in cached.items()
        if one.owner != spared and not (setting.leaves == "leaf" and block in parents)
    ]
    if not free:
        return None
    return min(free, key=lambda b: (*key(asked, b, cached[b]), cached[b].owner, -cached[b].depth))


def _period(tables: Tables, at: int) -> int:
    return int(np.searchsorted(tables.since, at, side="right")) - 1


def _named(cached: Mapping[Hashable, object]) -> set[int]:
    return {block for block in cached if isinstance(block, int)}
