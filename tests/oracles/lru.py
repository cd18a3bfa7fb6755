"""LRU as sections 4 to 6 of the design say it, one capacity at a time, in plain Python.

Slow on purpose and written without a look at the kernels: identities are tuples of hash ids, the
cache is a dict, and the least key leaves by a scan.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from kvscope.core.hits import HitDefinition
from kvscope.ingest.formats.base import Request

Parents = Sequence[int | None]


def path(request: Request) -> list[int | str]:
    """Return the hash ids of the prompt, a partial last one included."""
    return list(request.hash_ids or ())


def full_path(request: Request, block_size: int) -> list[int | str]:
    """Return the hash ids of the blocks whose tokens are all in the prompt."""
    return path(request)[: request.input_tokens // block_size]


def known_after(
    requests: Sequence[Request], parents: Parents, at: int, size: int
) -> list[int | str]:
    """Return the identified blocks that are cached after request `at`, its output's included.

    The last sampled token has no KV, so the history fills floor((I + O - 1) / B) blocks; the
    first child whose prompt repeats the whole history tells which ones they are.
    """
    request = requests[at]
    own = full_path(request, size)
    history = request.input_tokens + request.output_tokens
    for child, parent in enumerate(parents):
        if parent != at or requests[child].input_tokens < history:
            continue
        theirs = full_path(requests[child], size)[: (history - 1) // size]
        if len(theirs) > len(own) and theirs[: len(own)] == own:
            return theirs
    return own


def kept(
    requests: Sequence[Request], parents: Parents, at: int, size: int, definition: HitDefinition
) -> list[Hashable]:
    """Return the blocks that request `at` leaves in the cache, from the head on."""
    request = requests[at]
    if definition.partial:
        return _identities(path(request))
    filled = request.input_tokens // size
    known = full_path(request, size)
    if definition.outputs == "carried":
        filled = max(filled, (request.input_tokens + request.output_tokens - 1) // size)
        known = known_after(requests, parents, at, size)
    anonymous: list[Hashable] = [("anonymous", at, depth) for depth in range(len(known), filled)]
    return _identities(known) + anonymous


def ever_kept(
    requests: Sequence[Request], parents: Parents, size: int, definition: HitDefinition
) -> int:
    """How many distinct blocks were ever cached: a cache that large never evicts."""
    each = (kept(requests, parents, at, size, definition) for at in range(len(requests)))
    return len({block for blocks in each for block in blocks})


def looked_up(request: Request, size: int, definition: HitDefinition) -> int:
    """How many leading blocks of the prompt may hit."""
    blocks = len(path(request) if definition.partial else full_path(request, size))
    return min(blocks, (request.input_tokens - 1) // size) if definition.last_token_rule else blocks


def hits(
    requests: Sequence[Request],
    parents: Parents,
    size: int,
    capacity: int,
    definition: HitDefinition,
) -> int:
    """Return what LRU hits with `capacity` blocks, weighted by `definition`."""
    replay = _flat if definition.flat else _prefix
    first = int(len(requests) * definition.warmup)
    found = replay(requests, parents, size, capacity, definition)
    return sum(
        _weight(request, depths, size, definition)
        for request, depths in list(zip(requests, found, strict=True))[first:]
    )


def total(requests: Sequence[Request], size: int, definition: HitDefinition) -> int:
    """Return the total that the hits are a share of."""
    counted = requests[int(len(requests) * definition.warmup) :]
    if definition.weight == "request":
        return len(counted)
    if definition.weight == "token":
        return sum(request.input_tokens for request in counted)
    return sum(len(path(r) if definition.partial else full_path(r, size)) for r in counted)


def _prefix(
    requests: Sequence[Request],
    parents: Parents,
    size: int,
    capacity: int,
    definition: HitDefinition,
) -> list[list[int]]:
    """Return the depths at which each request hit: a prefix of its path."""
    cache: dict[Hashable, tuple[int, int]] = {}
    found = []
    for at, request in enumerate(requests):
        blocks = kept(requests, parents, at, size, definition)
        depths = []
        for depth in range(looked_up(request, size, definition)):
            if blocks[depth] not in cache:
                break
            depths.append(depth)
        found.append(depths)
        for depth, block in enumerate(blocks):
            cache[block] = (at, -depth)
        while len(cache) > capacity:
            del cache[min(cache, key=lambda block: cache[block])]
    return found


def _flat(
    requests: Sequence[Request],
    parents: Parents,
    size: int,
    capacity: int,
    definition: HitDefinition,
) -> list[list[int]]:
    """Return the depths at which each request hit, each block an object of its own."""
    cache: OrderedDict[Hashable, None] = OrderedDict()
    found = []
    for at, request in enumerate(requests):
        look = looked_up(request, size, definition)
        depths = []
        for depth, block in enumerate(kept(requests, parents, at, size, definition)):
            if block in cache and depth < look:
                depths.append(depth)
            cache[block] = None
            cache.move_to_end(block)
            while len(cache) > capacity:
                cache.popitem(last=False)
        found.append(depths)
    return found


def _identities(ids: list[int | str]) -> list[Hashable]:
    return [tuple(ids[: depth + 1]) for depth in range(len(ids))]


def _weight(request: Request, depths: list[int], size: int, definition: HitDefinition) -> int:
    if definition.weight == "request":
        return int(0 in depths)
    if definition.weight == "block":
        return len(depths)
    return sum(min(size, request.input_tokens - depth * size) for depth in depths)
