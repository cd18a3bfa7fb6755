"""Which request each one goes on with, one block after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kvscope.replay.traffic import Traffic
from tests.oracles.replay import left_behind, paths


class Walked(NamedTuple):
    """What is known of one request: `known` blocks of its prompt, the deepest `waited_s` ago.

    `before` is the turn before it.
    """

    known: int
    waited_s: float
    before: int | None


def walk(of: Traffic, memory: int) -> list[Walked]:
    """Return what is known of each request."""
    every, arrival_s = paths(of), of.arrival_s.tolist()
    full = [int(tokens) // of.block_size for tokens in of.input_tokens]
    owner: dict[int, int] = {}
    found: list[Walked] = []
    for at, path in enumerate(every):
        one = Walked(0, 0.0, None)
        depth = 0
        while depth < len(path) and path[depth] in owner:
            giver, start = owner[path[depth]], depth
            while depth < len(path) and owner.get(path[depth]) == giver:
                depth += 1
            end = min(depth, full[at])
            whole = start < full[at] and end >= min(full[giver], len(every[giver]))
            wait_s = arrival_s[at] - arrival_s[giver]
            if at - giver <= memory and start < full[at]:
                one = Walked(end, wait_s, giver if whole else None)
        found.append(one)
        owner.update(dict.fromkeys(path, at))
    return found


def turns_before(walked: list[Walked], at: int) -> list[int]:
    """Return the turns before a request, the latest first."""
    found: list[int] = []
    while (earlier := walked[at].before) is not None:
        found.append(earlier)
        at = earlier
    return found


class Held(NamedTuple):
    """What blocks hit and hold; see `kvscope.retention.ttls.TtlReplay`."""

    hit_blocks: list[int]
    block_seconds: float
    peak_blocks: int


def replay_ttls(traffic: Traffic, ttl_s: Sequence[float]) -> Held:
    """Return what the blocks of all requests hit and hold; a negative TTL holds none."""
    end_s = float(traffic.arrival_s[-1])
    until: dict[Hashable, float] = {}
    hits = []
    seconds, peak = 0.0, 0
    for at, blocks in enumerate(left_behind(traffic)):
        now = float(traffic.arrival_s[at])
        until = {block: end for block, end in until.items() if end >= now}
        leading = 0
        while leading < len(blocks) and blocks[leading] in until:
            leading += 1
        served = ttl_s[at] >= 0
        hits.append(min(leading, int(traffic.look[at])) if served else 0)
        if served:
            for block in blocks:
                before = until.get(block, now)
                until[block] = max(before, now + ttl_s[at])
                seconds += min(until[block], end_s) - min(before, end_s)
        peak = max(peak, len(until))
    return Held(hits, seconds, peak)
