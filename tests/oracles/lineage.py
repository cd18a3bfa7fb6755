"""Section 3 of the design in plain Python: whose turn is whose, and who reuses whose blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from kvscope.core.hits import HitDefinition
from kvscope.ingest.formats.base import Request
from tests.oracles.lru import Parents, full_path, kept

EVERYTHING = HitDefinition("default")


def inferred(requests: Sequence[Request], size: int) -> list[int | None]:
    """Each request's parent from shared prefixes alone, a scan of all earlier requests each."""
    paths = [full_path(request, size) for request in requests]
    parents = [_longest_prefix(requests, paths, at) for at in range(len(requests))]
    continued = Counter(tuple(paths[parent]) for parent in parents if parent is not None)
    return [
        None if parent is None or continued[tuple(paths[parent])] >= 4 else parent
        for parent in parents
    ]


def _longest_prefix(
    requests: Sequence[Request], paths: list[list[int | str]], at: int
) -> int | None:
    own, best = paths[at], None
    for earlier in range(at):
        theirs = paths[earlier]
        history = requests[earlier].input_tokens + requests[earlier].output_tokens
        extends = theirs and len(theirs) < len(own) and own[: len(theirs)] == theirs
        longest = best is None or len(theirs) >= len(paths[best])
        if extends and longest and history <= requests[at].input_tokens:
            best = earlier
    return best


def given(requests: Sequence[Request]) -> list[int | None]:
    """Each request's parent by chat ids: the last earlier one so called, if there is one."""
    found: list[int | None] = []
    for at, request in enumerate(requests):
        named = [
            earlier
            for earlier in range(at)
            if request.parent_chat_id is not None
            and requests[earlier].chat_id == request.parent_chat_id
        ]
        found.append(named[-1] if named else None)
    return found


def impossible(requests: Sequence[Request], parents: Parents) -> dict[str, list[int]]:
    """Return the requests whose parent by chat id is not followed, by reason."""
    ids = [request.chat_id for request in requests]
    found: dict[str, list[int]] = {}
    for at, request in enumerate(requests):
        name = request.parent_chat_id
        if name in {None, -1} or parents[at] is not None:
            continue
        reason = "later than the request" if name in ids else "not in the trace"
        found.setdefault("the request itself" if name == ids[at] else reason, []).append(at)
    return found


def turns(parents: Parents) -> list[tuple[int, int]]:
    """(conversation, turn) of each request."""
    found: list[tuple[int, int]] = []
    for at, parent in enumerate(parents):
        found.append((at, 1) if parent is None else (found[parent][0], found[parent][1] + 1))
    return found


Block = tuple[int | str, ...]


class Reuse:
    """Who touched each block before whom, block by block, in an infinite cache.

    `previous` maps (request, depth) to the request that touched that block of its prompt last.
    """

    def __init__(self, requests: Sequence[Request], parents: Parents, size: int) -> None:
        self.first: dict[Block, int] = {}
        self.last: dict[Block, int] = {}
        self.reuses: Counter[Block] = Counter()
        self.previous: dict[tuple[int, int], int] = {}
        self.ideal: list[int] = []
        for at, request in enumerate(requests):
            full = len(full_path(request, size))
            blocks = kept(requests, parents, at, size, EVERYTHING)
            known = [block for block in cast(list[Block], blocks) if block[0] != "anonymous"]
            self.ideal.append(self._leading(known[: min(full, (request.input_tokens - 1) // size)]))
            for depth, block in enumerate(known):
                self._touch(at, depth, block, in_prompt=depth < full)

    def _leading(self, blocks: list[Block]) -> int:
        hits = 0
        while hits < len(blocks) and blocks[hits] in self.last:
            hits += 1
        return hits

    def _touch(self, at: int, depth: int, block: Block, *, in_prompt: bool) -> None:
        if block in self.last and in_prompt:
            self.previous[at, depth] = self.last[block]
            self.reuses[block] += 1
        self.first.setdefault(block, at)
        self.last[block] = at
