"""Which request each one goes on with, one block after the other."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvscope.replay.traffic import Traffic
from tests.oracles.replay import paths


class Walked(NamedTuple):
    """What is known of one request: `known` blocks of its prompt, the deepest `waited_s` ago.

    `before` is the turn before it; `head`, how many requests before began with the same block.
    """

    known: int
    waited_s: float
    before: int | None
    head: int


def walk(of: Traffic, memory_s: float, shared_head: float) -> tuple[list[Walked], list[float]]:
    """All requests, and how long after each the next one came that went on with it."""
    every, arrival_s = paths(of), of.arrival_s.tolist()
    full = [int(tokens) // of.block_size for tokens in of.input_tokens]
    owner: dict[int, int] = {}
    ways: dict[int, int] = {}
    found: list[Walked] = []
    next_s = [math.inf] * len(every)
    for at, path in enumerate(every):
        one = Walked(0, 0.0, None, 0)
        depth = 0
        while depth < len(path) and path[depth] in owner:
            giver, start = owner[path[depth]], depth
            while depth < len(path) and owner.get(path[depth]) == giver:
                depth += 1
            end = min(depth, full[at])
            parted = ways.get(path[end - 1], 0) if end else 0
            whole = start < full[at] and end >= min(full[giver], len(every[giver]))
            goes_on = whole and parted < shared_head
            wait_s = arrival_s[at] - arrival_s[giver]
            if goes_on:
                next_s[giver] = min(next_s[giver], wait_s)
            if wait_s <= memory_s and start < full[at]:
                head = found[giver].head + 1 if start == 0 else one.head
                one = Walked(end, wait_s, giver if goes_on else None, head)
        if 0 < one.known < len(path[: full[at]]):
            ways[path[one.known - 1]] = ways.get(path[one.known - 1], 0) + 1
        found.append(one)
        owner.update(dict.fromkeys(path, at))
    return found, next_s


def turns_before(walked: list[Walked], at: int) -> list[int]:
    """Return the turns before a request, the latest first."""
    found: list[int] = []
    while (earlier := walked[at].before) is not None:
        found.append(earlier)
        at = earlier
    return found
