"""Why input tokens missed: one cause for each missed token of each request.

From its head on, a prompt consists of hits, tokens that earlier requests had written to
this cache, tokens computed elsewhere, new tokens, and tokens that no prefix cache can hit. All
boundaries are token positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from kvscope.core.arrays import Bools, Int32s, Int64s
from kvscope.core.hits import HitDefinition
from kvscope.core.jit import kernel
from kvscope.core.prefix import write_path
from kvscope.core.trace import PromptPaths, Prompts, Tenants
from kvscope.replay.causes import CAUSES, Cause
from kvscope.replay.changing_heads import ChangingHeads, changing_heads
from kvscope.replay.derived_traces import salted, select
from kvscope.replay.misses import common_blocks, lru_hit_blocks
from kvscope.replay.stack_distances import LruDistances, lru_distances
from kvscope.replay.traffic import Walk, walk

NO_REQUEST = -1


class Lookups(Struct, frozen=True):
    """Numbers of leading blocks of R prompts that a cache held, and the requests that used them.

    `hit` blocks hit; `undrafted` would have hit without a speculative drafter, `kept` without
    eviction; `seen` had been written by earlier requests. `shared_with` is the last request to
    touch the deepest of the `seen` blocks, `last_use` the last to touch the first evicted block
    (-1: none); since then `written_blocks` were written. LRU keeps all `seen` blocks with a
    capacity of `needed_blocks` (0: all hit, or not known).
    """

    hit: Int32s
    undrafted: Int32s
    kept: Int32s
    seen: Int32s
    shared_with: Int32s
    last_use: Int32s
    needed_blocks: Int64s
    written_blocks: Int64s


def look_up(
    steps: Walk,
    hit_blocks: Int32s,
    distances: LruDistances | None = None,
    undrafted_blocks: Int32s | None = None,
    kept_blocks: Int32s | None = None,
) -> Lookups:
    """Return the blocks of each prompt that a cache held; `hit_blocks` (R) leading ones hit.

    `needed_blocks` of the result are 0 without LRU's stack `distances`. `undrafted_blocks` would
    have hit without a drafter (default: `hit_blocks`), `kept_blocks` without eviction (default: all
    written before).
    """
    requests = len(steps.leaf)
    seen = np.zeros(requests, dtype=np.int32)
    shared_with, last_use = np.full((2, requests), NO_REQUEST, dtype=np.int32)
    owner = np.full(len(steps.block_parent), NO_REQUEST, dtype=np.int32)
    path = np.empty(int(steps.length.max(initial=0)) + 1, dtype=np.int32)
    undrafted = hit_blocks if undrafted_blocks is None else undrafted_blocks
    _look_up(steps, undrafted.astype(np.int32), owner, path, seen, shared_with, last_use)
    kept = seen if kept_blocks is None else np.clip(kept_blocks, undrafted, seen)
    last_use[kept <= undrafted] = NO_REQUEST
    fresh = steps.length - np.minimum(hit_blocks, steps.length) + steps.anonymous
    written = np.concatenate([[0], np.cumsum(fresh, dtype=np.int64)])
    since = np.where(
        last_use >= 0, written[np.arange(requests)] - written[np.maximum(last_use, 0) + 1], 0
    )
    needed = np.zeros(requests, dtype=np.int64)
    if distances is not None:
        missed = (seen > hit_blocks)[distances.request]
        deepest = seen[distances.request] - 1 - distances.depth
        ends = missed & (deepest >= 0) & (deepest < distances.blocks)
        needed[distances.request[ends]] = distances.distance[ends] + deepest[ends]
    return Lookups(hit_blocks, undrafted, kept, seen, shared_with, last_use, needed, since)


def computed(steps: Walk, rejected: Bools) -> Walk:
    """Return `steps` in which `rejected` requests look up no blocks and leave none cached."""
    columns = ("leaf", "length", "look", "anonymous")
    return steps._replace(**{name: np.where(rejected, 0, getattr(steps, name)) for name in columns})


class Elsewhere(Struct, frozen=True):
    """Leading blocks of R prompts that earlier requests have too, as if `cause` did not exist.

    `cause` is what keeps a prompt from hitting blocks of an earlier request with equal tokens:
    another worker, salt, adapter or model, or a computation not yet finished ("in-flight").
    `blocks` is the number of leading blocks, those that hit included; `request` is the last earlier
    request to touch the deepest of them (-1: none).
    """

    cause: Cause
    blocks: Int32s
    request: Int32s


def elsewhere(steps: Walk, hit_blocks: Int32s, cause: Cause) -> Elsewhere:
    """Return the leading blocks that earlier requests have too, as if `cause` did not exist.

    In the trie of `steps`, requests that `cause` keeps apart share blocks. Blocks that hit are
    included, so `hit_blocks` (R), which `look_up` takes, does not change the result.
    """
    known = look_up(steps, hit_blocks)
    return Elsewhere(cause, known.seen, known.shared_with)


def across_tenants(steps: Walk, tenants: Tenants, hit_blocks: Int32s) -> tuple[Elsewhere, ...]:
    """Return leading blocks computed before, as if tenants were one: an entry for each difference.

    Up to three entries: without differences of salts ("salt"), then of adapters either ("lora"),
    then of models either ("model"). A difference that no two requests have gets no entry.
    `hit_blocks` is as in `elsewhere`.
    """
    shared = np.zeros(len(steps.leaf), dtype=np.int32)
    levels: tuple[tuple[Cause, Int32s, Int32s], ...] = (
        ("salt", tenants.salt, _pairs(tenants.model, tenants.adapter)),
        ("lora", tenants.adapter, tenants.model),
        ("model", tenants.model, shared),
    )
    return tuple(
        elsewhere(regrouped(steps, tenants.hash_id, group), hit_blocks, cause)
        for cause, kept_apart, group in levels
        if kept_apart.min() < kept_apart.max()
    )


def _pairs(first: Int32s, second: Int32s) -> Int32s:
    """Return a number for each pair (first[r], second[r]), the same for equal pairs (R)."""
    _, number = np.unique(np.stack((first, second)), axis=1, return_inverse=True)
    return number.reshape(-1).astype(np.int32)


_ODD = np.int64(0x1E3779B97F4A7C15)


def regrouped(steps: Walk, ids: Int64s, group: Int32s) -> Walk:
    """Return the same paths in a new trie, in which requests of different groups share no blocks.

    `group` has R entries, `ids` one per block of the trie, root first: hash ids, which merge equal
    blocks of tenants, or the blocks' own numbers, which merge none.
    """
    ends = [(steps.leaf, steps.length)]
    block_parent, (leaf,) = salted(steps.block_parent, ends, group * _ODD, ids)
    return steps._replace(block_parent=block_parent, leaf=leaf)


class CacheLookups(Struct, frozen=True):
    """The blocks of R prompts that a cache held, and a mask of the requests `rejected`.

    `submitted` has the leading blocks that a prompt shares with earlier requests (rejected ones
    left out), computed at its look-up or not: those not yet computed miss as "in-flight".
    """

    lookups: Lookups
    rejected: Bools
    submitted: Elsewhere


def cache_lookups(
    prompts: PromptPaths,
    definition: HitDefinition,
    hit_blocks: Int32s,
    *,
    distances: LruDistances | None = None,
    rejected: Bools | None = None,
    written_blocks: Int32s | None = None,
    undrafted_blocks: Int32s | None = None,
    kept_blocks: Int32s | None = None,
) -> CacheLookups:
    """Return the blocks of each prompt that a cache held, given the leading blocks that hit.

    `needed_blocks` stay 0 without LRU's `distances`. In an engine, `rejected` requests write no
    blocks, and only the first `written_blocks` of a prompt had been computed at its look-up;
    `undrafted_blocks` would have hit without a drafter, and `kept_blocks` without eviction.
    """
    steps = walk(prompts, definition)
    if rejected is None or written_blocks is None:
        lookups = look_up(steps, hit_blocks, distances)
        submitted = Elsewhere("in-flight", lookups.seen, lookups.shared_with)
        return CacheLookups(lookups, np.zeros(len(hit_blocks), dtype=np.bool_), submitted)
    steps = computed(steps, rejected)
    done = np.minimum(steps.look, np.maximum(written_blocks, hit_blocks))
    return CacheLookups(
        look_up(
            steps._replace(look=done),
            hit_blocks,
            undrafted_blocks=undrafted_blocks,
            kept_blocks=kept_blocks,
        ),
        rejected,
        elsewhere(steps, hit_blocks, "in-flight"),
    )


def lru_cache_lookups(
    prompts: PromptPaths, definition: HitDefinition, capacity_blocks: int | None
) -> CacheLookups:
    """Return the blocks of each prompt that an LRU cache held; None is an infinite capacity."""
    distances = lru_distances(prompts, definition)
    capacity = distances.live if capacity_blocks is None else capacity_blocks
    hit_blocks = lru_hit_blocks(distances, len(prompts.leaf), capacity)
    return cache_lookups(prompts, definition, hit_blocks, distances=distances)


def by_worker(
    prompts: Prompts, worker: Int32s, served: Callable[[Prompts], CacheLookups]
) -> CacheLookups:
    """Return the blocks of each prompt that its worker's cache held.

    `worker` (R) numbers the workers; `served` replays the prompts of one worker in its cache.
    """
    requests = len(prompts.leaf)
    whole = CacheLookups(
        Lookups(
            *np.zeros((4, requests), dtype=np.int32),
            *np.full((2, requests), NO_REQUEST, dtype=np.int32),
            *np.zeros((2, requests), dtype=np.int64),
        ),
        np.zeros(requests, dtype=np.bool_),
        Elsewhere(
            "in-flight",
            np.zeros(requests, dtype=np.int32),
            np.full(requests, NO_REQUEST, dtype=np.int32),
        ),
    )
    for each in np.unique(worker):
        own = np.flatnonzero(worker == each)
        part = served(select(prompts, own))
        renumbered = np.append(own, NO_REQUEST)  # the last entry: none
        whole.rejected[own] = part.rejected
        whole.submitted.blocks[own] = part.submitted.blocks
        whole.submitted.request[own] = renumbered[part.submitted.request]
        for name in Lookups.__struct_fields__:
            values = getattr(part.lookups, name)
            if name in {"shared_with", "last_use"}:
                values = renumbered[values]
            getattr(whole.lookups, name)[own] = values
    return whole


@kernel
def _look_up(
    steps: Walk,
    hit: Int32s,
    owner: Int32s,
    path: Int32s,
    seen: Int32s,
    shared_with: Int32s,
    last_use: Int32s,
) -> None:
    """Fill `seen`, `shared_with` and `last_use` (R each), as in `Lookups`.

    `hit` (R) leading blocks hit. `owner` (N + 1 entries, NO_REQUEST at first) becomes the last
    request with each block; `path`, with room for the longest path, is scratch space.
    """
    block_parent, leaf, length, look, _ = steps
    for request in range(len(leaf)):
        end = length[request]
        write_path(block_parent, leaf[request], path, 0, end)
        at = 0
        while at < end and owner[path[at]] >= 0:
            at += 1
        written = min(at, look[request])
        seen[request] = written
        if written > 0:
            shared_with[request] = owner[path[written - 1]]
        if hit[request] < written:
            last_use[request] = owner[path[hit[request]]]
        for depth in range(end):
            owner[path[depth]] = request


class Attribution(Struct, frozen=True):
    """The causes of all missed tokens of R requests; each array has R entries, in tokens.

    `tokens` has an array per cause; they add up to `input_tokens` - `hit_tokens`. The first
    `shared_tokens` of a prompt were written to its cache before; `elsewhere` has blocks that this
    cache could not use. The first `common_tokens` equal the previous turn's (-1: no previous turn).
    `heads` are places in shared heads that change with time.
    """

    input_tokens: Int64s
    hit_tokens: Int64s
    shared_tokens: Int64s
    common_tokens: Int64s
    tokens: Mapping[Cause, Int64s]
    lookups: Lookups
    elsewhere: tuple[Elsewhere, ...]
    heads: ChangingHeads

    @property
    def missed_tokens(self) -> Int64s:
        """The missed tokens of each request."""
        return self.input_tokens - self.hit_tokens


def attribute(
    prompts: Prompts,
    definition: HitDefinition,
    cached: CacheLookups,
    *,
    several: bool = False,
    tenants: Tenants | None = None,
    repeated_tokens: Int32s | None = None,
) -> Attribution:
    """Return the cause of every missed token.

    `several`: workers have a cache each, so tokens can miss as "routed". `tenants` is None where
    all requests have the same tenant. `repeated_tokens` (R) is the number of leading tokens of the
    previous turn's prompt that the messages of a request repeat (0: unknown); None: all unknown.
    """
    steps, size = walk(prompts, definition), prompts.block_size
    lookups, rejected = cached.lookups, cached.rejected
    served = computed(steps, rejected) if rejected.any() else steps
    away = [cached.submitted]
    if several:
        away.append(elsewhere(served, lookups.hit, "routed"))
    if tenants is not None:
        away += across_tenants(served, tenants, lookups.hit)
    inputs = prompts.input_tokens.astype(np.int64)

    def tokens(blocks: Int32s) -> Int64s:
        """Return the tokens in `blocks` leading blocks; a partial last block holds fewer."""
        return np.minimum(blocks.astype(np.int64) * size, inputs)

    hit, undrafted = tokens(lookups.hit), tokens(lookups.undrafted)
    kept, shared = (np.maximum(undrafted, tokens(of)) for of in (lookups.kept, lookups.seen))
    causes: dict[Cause, Int64s] = {
        "drafter": undrafted - hit,
        "evicted": kept - undrafted,
        "not-kept": shared - kept,
    }
    at = shared
    for each in away:
        end = np.maximum(at, tokens(each.blocks))
        causes[each.cause] = end - at
        at = end
    computed_before = at > 0
    looked = np.maximum(at, tokens(steps.look))
    cacheable = prompts.blocks if definition.partial else prompts.full_blocks
    hashed = np.maximum(looked, tokens(cacheable))
    causes["last-token"] = hashed - looked

    before = prompts.parent
    whole = steps if tenants is None else regrouped(steps, tenants.hash_id, np.zeros_like(before))
    common = common_blocks(whole, before)
    known = np.minimum(common, served.length)
    heads = changing_heads(served, prompts.arrival_s, before, known)
    end = np.clip(tokens(heads.end), at, looked)
    causes["periodic"] = end - at
    at = end
    previous = np.where(before >= 0, (steps.length + steps.anonymous)[before], 0)
    changed = np.minimum(tokens(previous), looked) - np.maximum(at, tokens(common))
    changed = np.where(before >= 0, np.maximum(changed, 0), 0)
    # The answer behind a prompt that the template broke was sent back, too.
    broken = np.maximum(at, tokens(common)) < (0 if repeated_tokens is None else repeated_tokens)
    causes["template"] = np.where(broken, changed, 0)
    in_prompt = ~broken & (common < prompts.full_blocks[before])
    causes["diverged"] = np.where(in_prompt, changed, 0)
    causes["output-changed"] = changed - causes["template"] - causes["diverged"]
    new = looked - at - changed
    causes["growth"] = np.where(computed_before, new, 0)
    causes["cold"] = new - causes["growth"]
    hashes_end = prompts.blocks < inputs // size
    causes["no-hash"] = np.where(hashes_end, inputs - hashed, 0)
    causes["below-block"] = inputs - hashed - causes["no-hash"]
    if rejected.any():
        causes = {cause: np.where(rejected, 0, values) for cause, values in causes.items()}
        causes["rejected"] = np.where(rejected, inputs - hit, 0)
    none = np.zeros_like(inputs)
    return Attribution(
        input_tokens=inputs,
        hit_tokens=hit,
        shared_tokens=shared,
        common_tokens=np.where(before >= 0, tokens(common), NO_REQUEST),
        tokens={cause: causes.get(cause, none) for cause in CAUSES},
        lookups=lookups,
        elsewhere=tuple(away),
        heads=heads,
    )
