"""The chunks of a CPU tier: holding, admission and eviction, by LRU or ARC.

A chunk is written once, when a request has computed it; a load only reads it. A request's accesses
update the eviction order when it ends, its tail first, so that a prefix stays longer than the
chunks after it. In vLLM 0.33, LRU also ranks chunks provisionally at a request's first access.

Source: vLLM 0.32.0 and 0.33.0, vllm/v1/kv_offload/cpu/manager.py (CPUOffloadingManager) and
vllm/v1/kv_offload/cpu/policies/ (LRUCachePolicy, ARCCachePolicy).
"""

from __future__ import annotations

from kvscope.core.arrays import Int32s
from kvscope.core.jit import callable_in_kernels, called_by_kernels
from kvscope.vllm_sim.offload_state import (
    ABSENT,
    B1,
    B2,
    INSERTED,
    LISTS,
    MISSED,
    PENDING,
    REUSED,
    SEEN,
    T1,
    T2,
    Offload,
)

RANKS_EACH = 1 << 24  # more than a request has chunks


@callable_in_kernels
def sentinel(off: Offload, place: int) -> int:
    """Return the sentinel of list `place`: T1, T2, B1 or B2, or LISTS for the tracker of offers."""
    return len(off.chunks) - LISTS - 1 + place


@callable_in_kernels
def chunk_at(off: Offload, path: Int32s, at: int) -> int:
    """Return the number (index in `chunks`) of the chunk at place `at` of a request's path."""
    state = off.state[0]
    if state.groups == 1:
        return path[(at + 1) * state.unit_nodes - 1]  # type: ignore[no-any-return]
    return chunk_of_groups(off, path, at)


@called_by_kernels
def chunk_of_groups(off: Offload, path: Int32s, at: int) -> int:
    """Return the same as `chunk_at`, where the model has several groups of layers."""
    state = off.state[0]
    group = state.groups - 1 - at % state.groups
    node = path[(at // state.groups + 1) * state.unit_nodes - 1]
    return node + group * state.nodes_each  # type: ignore[no-any-return]


@callable_in_kernels
def is_held(off: Offload, node: int) -> bool:
    """Return whether the tier holds a chunk or is storing it."""
    return ABSENT < off.chunks[node].place < B1  # type: ignore[no-any-return]


@callable_in_kernels
def resize(off: Offload, place: int, change: int) -> None:
    """Add `change` to the number of chunks in one of ARC's lists."""
    state = off.state[0]
    if not state.arc:
        return
    if place == T1:
        state.t1 += change
    elif place == T2:
        state.t2 += change
    elif place == B1:
        state.b1 += change
    else:
        state.b2 += change


@callable_in_kernels
def unlink_chunk(off: Offload, node: int) -> None:
    """Remove a chunk from its list, if it is in one."""
    chunks, chunk = off.chunks, off.chunks[node]
    if chunk.place != ABSENT:
        chunks[chunk.before].after = chunk.after
        chunks[chunk.after].before = chunk.before
        resize(off, chunk.place, -1)
        chunk.place = ABSENT


@callable_in_kernels
def link_chunk(off: Offload, node: int, place: int, behind: int) -> None:
    """Insert a chunk into list `place`, just more recent than `behind` (sentinel: as oldest)."""
    chunks = off.chunks
    following = chunks[behind].after
    chunks[behind].after = node
    chunks[node].before = behind
    chunks[node].after = following
    chunks[following].before = node
    chunks[node].place = place
    resize(off, place, 1)


@called_by_kernels
def move_to_end(off: Offload, node: int, place: int) -> None:
    """Make a chunk the most recent one of a list, with a rank above all others."""
    unlink_chunk(off, node)
    off.state[0].ranks += 1
    off.chunks[node].rank = off.state[0].ranks * RANKS_EACH
    link_chunk(off, node, place, off.chunks[sentinel(off, place)].before)


@called_by_kernels
def rank_provisionally(off: Offload, request: int, node: int, at: int) -> None:
    """Move a request's chunk `at` to the place in LRU's list that its provisional rank gives it.

    Provisional ranks of a request lie just below a multiple of RANKS_EACH, its tail's lowest, so
    the tail is evicted first; `move_to_end` later gives each chunk a multiple of its own.
    """
    chunks, member = off.chunks, off.members[request]
    rank, highest = member.rank * RANKS_EACH - (at + 1), member.rank * RANKS_EACH
    end = sentinel(off, T1)
    unlink_chunk(off, node)
    behind, near = chunks[end].before, chunks[member.ranked]
    if near.place == T1 and highest - RANKS_EACH < near.rank < highest:
        behind = member.ranked
    while behind != end and chunks[behind].rank > rank:
        behind = chunks[behind].before
    while chunks[behind].after != end and chunks[chunks[behind].after].rank < rank:
        behind = chunks[behind].after
    chunks[node].rank = rank
    link_chunk(off, node, T1, behind)
    member.ranked = node


@callable_in_kernels
def take_rank(off: Offload, request: int) -> None:
    """Assign the next provisional rank to a request that has none."""
    if off.members[request].rank == 0:
        off.state[0].ranks += 1
        off.members[request].rank = off.state[0].ranks


@called_by_kernels
def see(off: Offload, request: int, path: Int32s, at: int) -> None:
    """Record a request's access to its chunk `at`; vLLM 0.33's LRU ranks it at first access."""
    mark = off.members[request].access + at
    if off.marks[mark] & SEEN:
        return
    off.marks[mark] |= SEEN
    if not off.state[0].provisional:
        return
    take_rank(off, request)
    node = chunk_at(off, path, at)
    if is_held(off, node) and off.chunks[node].rank < (
        off.members[request].rank * RANKS_EACH - (at + 1)
    ):
        rank_provisionally(off, request, node, at)


@callable_in_kernels
def reuse(off: Offload, request: int, at: int) -> None:
    """Mark a request's chunk `at` for ARC's list T2, unless the request stored it itself.

    `commit_accesses` moves the chunk when the request ends.
    """
    mark = off.members[request].access + at
    if not off.marks[mark] & INSERTED:
        off.marks[mark] |= REUSED


@callable_in_kernels
def track(off: Offload, node: int) -> None:
    """Move a chunk to the recent end of the tracker, which counts offers (`store_threshold`)."""
    chunks = off.chunks
    end = sentinel(off, LISTS)
    chunks[chunks[node].older].newer = chunks[node].newer
    chunks[chunks[node].newer].older = chunks[node].older
    last = chunks[end].older
    chunks[last].newer = node
    chunks[node].older = last
    chunks[node].newer = end
    chunks[end].older = node


@callable_in_kernels
def untrack(off: Offload, node: int) -> None:
    """Remove a chunk from the tracker of offers."""
    chunks = off.chunks
    chunks[chunks[node].older].newer = chunks[node].newer
    chunks[chunks[node].newer].older = chunks[node].older
    chunks[node].older = chunks[node].newer = node
    chunks[node].offers = 0
    off.state[0].tracked -= 1


@callable_in_kernels
def count_offers(off: Offload, path: Int32s, count: int) -> None:
    """Count an offer of the first `count` chunks in `offered`, for `store_threshold`.

    A full tracker drops its oldest chunks that are not offered now.
    """
    chunks, state, protected = off.chunks, off.state[0], 0
    for at in off.offered[:count]:
        node = chunk_at(off, path, at)
        if chunks[node].offers > 0:
            track(off, node)
            chunks[node].offers += 1
            protected += 1
    unprotected = state.tracked - protected
    for at in off.offered[:count]:
        node = chunk_at(off, path, at)
        if chunks[node].offers > 0:
            continue
        if state.tracked >= state.tracker_size:
            if unprotected == 0:
                continue
            untrack(off, chunks[sentinel(off, LISTS)].newer)
            unprotected -= 1
        track(off, node)
        chunks[node].offers = 1
        state.tracked += 1


@callable_in_kernels
def adapt_target(off: Offload, node: int) -> None:
    """If a chunk is in a ghost list (B1, B2), adjust ARC's target size of T1 to that miss.

    The chunk moves to the recent end of its ghost list.
    """
    state, place = off.state[0], off.chunks[node].place
    if place == B1:
        state.target = min(state.target + max(1.0, state.b2 / state.b1), float(state.capacity))
        move_to_end(off, node, B1)
    elif place == B2:
        state.target = max(state.target - max(1.0, state.b1 / state.b2), 0.0)
        move_to_end(off, node, B2)


@callable_in_kernels
def next_victim(off: Offload, node: int, place: int) -> int:
    """Return the first evictable chunk behind `node` in list `place`, else the list's sentinel."""
    end, offer = sentinel(off, place), off.state[0].offers
    at = off.chunks[node].after
    while at != end and (off.chunks[at].users != 0 or off.chunks[at].offer == offer):
        at = off.chunks[at].after
    return at  # type: ignore[no-any-return]


@callable_in_kernels
def choose_victims(off: Offload, wanted: int) -> bool:
    """Write the next `wanted` chunks to evict into `victims`; return False if there are too few.

    Chunks of the current offer are not evicted.
    """
    state, size = off.state[0], off.state[0].t1
    ends = sentinel(off, T1), sentinel(off, T2)
    first, second = ends
    first = next_victim(off, first, T1)
    second = next_victim(off, second, T2)
    for count in range(wanted):
        from_first = not state.arc or size >= int(state.target) or second == ends[1]
        if first == ends[0]:
            from_first = False
        if from_first:
            off.victims[count] = first
            first = next_victim(off, first, T1)
            size -= 1
        elif second != ends[1]:
            off.victims[count] = second
            second = next_victim(off, second, T2)
        else:
            return False
    return True


@callable_in_kernels
def remove_chunk(off: Offload, node: int) -> None:
    """Remove a chunk that nothing reads or writes from the tier."""
    unlink_chunk(off, node)
    off.state[0].held -= 1
    off.state[0].evictable -= 1


@callable_in_kernels
def evict_chunks(off: Offload, count: int) -> None:
    """Evict the first `count` chunks of `victims`; ARC keeps them in its ghost lists."""
    state = off.state[0]
    for at in range(count):
        node, place = off.victims[at], off.chunks[off.victims[at]].place
        remove_chunk(off, node)
        if state.arc:
            move_to_end(off, node, B1 if place == T1 else B2)
    state.evictions += count
    while state.b1 > state.capacity:
        unlink_chunk(off, off.chunks[sentinel(off, B1)].after)
    while state.b2 > state.capacity:
        unlink_chunk(off, off.chunks[sentinel(off, B2)].after)


@callable_in_kernels
def insert_chunk(off: Offload, request: int, path: Int32s, at: int) -> None:
    """Add a request's chunk to the tier; it is pending until its store ends."""
    node = chunk_at(off, path, at)
    if off.state[0].provisional:
        take_rank(off, request)
        rank_provisionally(off, request, node, at)
    else:
        move_to_end(off, node, T1)
    off.chunks[node].users = PENDING
    off.state[0].held += 1
    off.marks[off.members[request].access + at] |= INSERTED


@callable_in_kernels
def choose_fresh(off: Offload, path: Int32s, count: int) -> int:
    """Write the places of offered chunks to store into `fresh`; return their number.

    These are the first `count` places in `offered`, but for chunks that the tier holds, and those
    offered less often than `store_threshold`. All `count` get the offer's number in their `offer`,
    so that this offer evicts none of them.
    """
    chunks, state, fresh = off.chunks, off.state[0], 0
    for at in off.offered[:count]:
        node = chunk_at(off, path, at)
        chunks[node].offer = state.offers
        rare = state.threshold >= 2 and chunks[node].offers < state.threshold
        if not rare and not is_held(off, node):
            off.fresh[fresh] = at
            fresh += 1
    return fresh


@callable_in_kernels
def note_offer(off: Offload, request: int, path: Int32s, count: int, fresh: int) -> None:
    """Record a request's accesses to the chunks that it offers, and misses in ARC's ghost lists.

    `count` chunks are listed in `offered`, the `fresh` ones to store also in the list `fresh`.
    Chunks to store get the mark SEEN (accessed), held ones SEEN and, unless the request stored
    them, REUSED (for ARC's list T2); chunks that are still being stored, or that the tier does not
    admit, get neither. With ARC, the request's first miss of a chunk to store adapts the target.
    """
    state, access = off.state[0], off.members[request].access
    for reverse in range(fresh - 1, -1, -1):
        mark = access + off.fresh[reverse]
        if not off.marks[mark] & MISSED:
            off.marks[mark] |= MISSED
            if state.arc:
                adapt_target(off, chunk_at(off, path, off.fresh[reverse]))
    passed = 0
    for at in off.offered[:count]:
        node = chunk_at(off, path, at)
        if passed < fresh and off.fresh[passed] == at:
            passed += 1
            see(off, request, path, at)
        elif is_held(off, node) and off.chunks[node].users != PENDING:
            see(off, request, path, at)
            reuse(off, request, at)


@called_by_kernels
def offer_chunks(off: Offload, request: int, path: Int32s, count: int) -> int:
    """Offer a request's chunks at the first `count` places in `offered`; return how many it stores.

    `fresh` has the places of stored chunks. -1: too few chunks can be evicted, and none is stored.
    """
    state = off.state[0]
    state.offers += 1
    if state.threshold >= 2:
        count_offers(off, path, count)
    fresh = choose_fresh(off, path, count)
    note_offer(off, request, path, count, fresh)
    missing = fresh - (state.capacity - state.held)
    if missing > 0:
        if missing > state.evictable or not choose_victims(off, missing):
            state.refused += 1
            return -1
        evict_chunks(off, missing)
    for at in range(fresh):
        insert_chunk(off, request, path, off.fresh[at])
    state.stored += fresh
    return fresh


@callable_in_kernels
def list_range(off: Offload, begin: int, end: int) -> int:
    """Write the places [begin, end) into `offered`; return their number."""
    for at in range(begin, end):
        off.offered[at - begin] = at
    return end - begin


@callable_in_kernels
def pin_chunk(off: Offload, node: int) -> None:
    """Count one more load or write to storage that reads a chunk: meanwhile it is not evicted."""
    chunk = off.chunks[node]
    if chunk.users == 0:
        off.state[0].evictable -= 1
    chunk.users += 1


@callable_in_kernels
def unpin_chunk(off: Offload, node: int) -> None:
    """End a chunk's store if it is being stored, else one load or write that read it is over."""
    chunk = off.chunks[node]
    chunk.users = 0 if chunk.users == PENDING else chunk.users - 1
    if chunk.users == 0:
        off.state[0].evictable += 1


@callable_in_kernels
def commit_accesses(off: Offload, request: int, path: Int32s, chunks: int) -> None:
    """Apply a finished request's accesses at its first `chunks` places to LRU's or ARC's lists.

    The tail comes first; of chunks that end at the same token, the last group's chunk.
    """
    access, groups = off.members[request].access, off.state[0].groups
    for first in range(chunks - groups, -1, -groups):
        for at in range(first, first + groups):
            mark, node = off.marks[access + at], chunk_at(off, path, at)
            if not mark & SEEN or not is_held(off, node):
                continue
            if not off.state[0].arc:
                move_to_end(off, node, T1)
            elif mark & REUSED:
                move_to_end(off, node, T2)
            elif mark & INSERTED:
                move_to_end(off, node, off.chunks[node].place)
