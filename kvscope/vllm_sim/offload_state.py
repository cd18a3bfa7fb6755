"""The tables of a CPU tier: its chunks, the transfers under way, and what requests did with it.

Like the tables of the engine (`state`), one tuple of records that kernels read and write. A chunk
is `blocks_per_chunk` blocks of a path in one group of layers. Its number is the trie node at its
end, plus `nodes_each` for each group before its own.

A request's chunks have places from 0: for each multiple of `unit_nodes` on its path one per group,
the last group's first. Groups with longer chunks leave places empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s, Records, record_type
from kvscope.deployment.kv_groups import KvGroup, KvGroups
from kvscope.vllm_sim.settings import OffloadSettings

NONE = -1
ANY = -1  # as the request of a fence: whichever takes the block waits
ABSENT = -1  # in no list
T1, T2, B1, B2 = range(4)  # LRU has only T1
LISTS = 4
PENDING = -1  # as `users`: its store is under way
SKIP = -1  # of a look-up or admission: others may go on, this request waits
WAITING, LOADING, LOADED, READY, ENDED = range(5)  # LOADED: its blocks are not hashed yet
SEEN, INSERTED, REUSED, MISSED, ASKED, READ = 1, 2, 4, 8, 16, 32
UNKNOWN, ASKING, PRESENT, MISSING = range(4)  # what storage has answered about a chunk
READS, WRITES = range(2)  # links

_INT32S = ("after", "before", "older", "newer", "users", "offers")
_STORAGE = ("answer", "askers")
CHUNK = np.dtype(
    [(name, np.int32) for name in _INT32S + _STORAGE]
    + [("rank", np.int64), ("offer", np.int64), ("place", np.int64), ("loading", np.int64)]
)
"""The chunk that ends at a node of the trie, or behind the last node the sentinel of a list.

It is in list `place` (T1, T2, B1, B2 or ABSENT), a ring through `after` and `before`, oldest first,
in order of `rank` where that is LRU's. `users` counts the loads and the writes to storage that read
it; PENDING while it is being stored. `loading`: 1 while a request loads it. With a
`store_threshold`, `offers` counts how often it was offered, and chunks with offers are a ring
through `older` and `newer`; `offer` is the number of the last offer that it was part of. `answer`
is what storage has answered about it (UNKNOWN, ASKING, PRESENT or MISSING), until the last of the
`askers` (requests that asked) has ended.
"""


TRANSFER = record_type("request first nodes fences submitted done flush", "done_s")
"""A load or store of `nodes` chunks, from `first` on in the ring of chunks of its direction.

It is for a `request`. Its copy begins once it is `submitted` and ends at `done_s`; then it is
`done`. The step that is about to begin waits for that end if `flush` is set. A store's fences have
numbers below `fences`, those of later stores do not. Of copies from and to storage, only `first`,
`nodes` and `done_s` count.
"""

FENCE = record_type("job request older")
"""A GPU block that store number `job` reads: a step that reuses the block waits for the store.

It counts once `request` has ended, at once where `request` is ANY; if the request is preempted, the
step waits for its stores anyway. `older` is the number of the block's previous fence (0: none).
"""

MEMBER = record_type("transfers stage access rank ranked external chunks read allocated")
"""What the tier knows of a request, which has `transfers` loads and stores under way.

`stage` is WAITING, LOADING, LOADED, READY or ENDED; `access` is where its marks begin in `marks`,
`rank` its provisional rank (0: none), which its chunk `ranked` got last. `external` tokens, in
`chunks` chunks, were loaded when it was first admitted (-1 before); `read` of their blocks had been
read from storage for it. `allocated` is the request's field of that name when it ended.
"""

LAYERS = record_type("chunk_tokens window_chunks")
"""Chunks of a group of layers: `chunk_tokens` each, `window_chunks` in its window (0: all)."""

FILE = np.dtype([("after", np.int32), ("before", np.int32), ("written_s", np.float64)])
"""A chunk in storage from `written_s` on (s); infinity where it is not there and not being written.

If storage evicts, its chunks are a ring through `after` and `before`, least recently read or
written first; the record behind the last chunk is the ring's sentinel.
"""

POOL = record_type("capacity chunks evicts shared evictions full")
"""Storage: room for `capacity` chunks, of which it has or is being written `chunks`.

`evicts`: the least recently used make room, `evictions` so far; `full` counts chunks that found no
room. `shared`: it is below several machines.
"""

LINK = record_type("", "latency_s chunk_s free_s")
"""One direction of copies, from or to storage; the last one ends at `free_s`.

A copy takes `latency_s`, and `chunk_s` for each chunk.
"""

OFFLOAD = record_type(
    "capacity blocks_per_chunk groups unit_nodes nodes_each full_groups alignment_tokens "
    "whole_chunks reconsiders arc provisional restarts prompt_only threshold tracker_size "
    "held evictable offers ranks tracked plan planned_stores loads loads_done stores stores_done "
    "fences fences_done ended loading evictions refused stored t1 t2 b1 b2 "
    "learned storage polled polls_late asked retry "
    "reads reads_begun reads_done writes writes_done read_chunks written_chunks "
    "reread stuck marked marks_taken waits",
    "now_s begin_s target "
    "load_latency_s load_chunk_s store_latency_s store_chunk_s load_free_s store_free_s",
)
"""One record: the settings of the tier, and counts.

The tier has room for `capacity` chunks, which end at multiples of `unit_nodes` nodes of a path.
`arc`: eviction is by ARC, else by LRU; `provisional`: LRU ranks chunks at first access. `restarts`:
a request that starts over offers all its chunks again. `prompt_only`, `threshold` and
`tracker_size` are the settings `prompt_only`, `store_threshold` and `max_tracker_size`; the
tracker counts the offers of `tracked` chunks.

`held` chunks are in it or being stored, `evictable` ones are read or written by nothing. So far it
had `evictions`, `refused` offers, and `stored` chunks (those read from storage, too). `plan`,
`ranks`, `offers`, `loads`, `stores` and `fences` number what they name; loads, stores and fences
with numbers below `_done` are over. Stores before `planned_stores` were created in earlier plans.
`ended` requests ended since the last plan, `loading` ones have blocks and do not run; the policy
learned from `learned` ones, at their first run. `t1` to `b2` are the lengths of ARC's lists,
`target` is its target length of T1. The first `marked` requests have `marks_taken` marks. The
planned step can begin at `begin_s`. `waits`: no step can be computed before an arrival or the end
of a transfer; 2 after a preemption.

There are `groups` of layers, of which `full_groups` cache all tokens. Windows are stored
where they end at multiples of `alignment_tokens`, 0: all of them. `whole_chunks`: a chunk is stored
only with all its blocks that a window needs. `reconsiders`: a request that has ended offers
windows that it passed over before.

The rest is of `storage`, if there is one. `polled`: copies that have ended were looked for since
the last flush; `polls_late`: each store looks again, and the flush follows all stores. `asked`
chunks get an answer at the next flush; `retry`: the last flush gave answers, so waiting requests
look up again at once. `reads` and `writes` number its copies, as `loads`, and `reads_begun` those
that have begun; `read_chunks` and `written_chunks` were copied. `reread` chunks were read since a
step was last computed or a load begun; `stuck`: that never happens again.
"""


class Offload(NamedTuple):
    """A CPU tier below an engine with R requests and G groups of layers; empty tables without one.

    `chunks`, `members` (R), `layers` (G) and `state` (1) are records of CHUNK, MEMBER, LAYERS and
    OFFLOAD. `chunks` has an entry for each node of the trie (root included) in each group, and five
    sentinels: of the lists T1, T2, B1 and B2, and of the tracker of offers. `marks` has for each
    chunk of each request a sum of the flags SEEN, INSERTED, REUSED, MISSED, ASKED and READ,
    `next_chunk` (R x G) the next chunk of each group that a request offers. `loads` and `stores`
    are rings of TRANSFER records, whose chunks are in `load_nodes` and `store_nodes`. Per GPU
    block, `fence` is its last FENCE in `fences` and `taken` the last plan in which a request got
    it. `since` is the plan in which each entry of a block table was set, kept if running requests
    may free blocks. `order` lists groups in the order of look-ups, `loading` the requests that
    load, `ended` requests that ended in this plan, with their blocks in `ended_table`, as in
    `table`.

    `reads` and `writes` are the copies from and to storage (TRANSFER), over `links` (LINK), with
    their chunks in `read_nodes` and `write_nodes`; `asked` are the chunks that storage has yet to
    answer for. Storage holds `files` (FILE; an entry per chunk, and a sentinel) in a `pool` (POOL);
    machines that share storage share `pool_links`, the limits of its bandwidth. Scratch rows:
    `offered`, `fresh`, `ends`, `victims`, and `states` (request and place of each state to offer).
    """

    chunks: Records
    members: Records
    layers: Records
    state: Records
    marks: NDArray[np.uint8]
    next_chunk: Int32s
    loads: Records
    stores: Records
    load_nodes: Int32s
    store_nodes: Int32s
    reads: Records
    writes: Records
    read_nodes: Int32s
    write_nodes: Int32s
    asked: Int32s
    links: Records
    files: Records
    pool: Records
    pool_links: Records
    fences: Records
    fence: Int64s
    taken: Int64s
    since: Int64s
    order: Int64s
    loading: Int64s
    ended: Int64s
    ended_table: Int64s
    offered: Int32s
    fresh: Int32s
    ends: Int64s
    victims: Int32s
    states: Int64s


def no_offload() -> Offload:
    """Return the tables of an engine without a CPU tier."""
    nothing, groups = np.zeros(0, dtype=np.int64), KvGroups((KvGroup("full", 1),))
    return empty_offload(OffloadSettings(1), 0, nothing, 0, 0, 0, groups, 1)


def empty_offload(
    settings: OffloadSettings,
    nodes: int,
    path_blocks: Int64s,
    usable: int,
    slots: int,
    width: int,
    groups: KvGroups,
    block_size: int,
) -> Offload:
    """Return an empty CPU tier; `path_blocks` (R) counts the trie nodes of each request's path.

    `nodes` is the number of trie nodes, of `block_size` tokens each, times that of groups. The
    engine has `usable` blocks, and block tables of `width` blocks for `slots` requests.
    """
    size, number = settings.blocks_per_chunk, len(groups.groups)
    capacity = min(settings.capacity_chunks, nodes)
    state, layers = _state(settings), _layers(groups, size)
    state.capacity, state.groups, state.nodes_each = capacity, number, nodes // number
    unit_nodes = state.unit_nodes = size * groups.block_tokens // block_size
    full = layers.chunk_tokens[layers.window_chunks == 0]
    state.full_groups = len(full)
    sizes = set(full.tolist()) or {int(layers.chunk_tokens.max())}
    state.alignment_tokens = sizes.pop() if len(sizes) == 1 else 0
    state.reconsiders = groups.retention_tokens is None and not settings.prompt_only
    windows = np.where(layers.window_chunks == 0, np.iinfo(np.int64).max, layers.window_chunks)
    path_chunks = path_blocks // unit_nodes * number
    longest = int(path_chunks.max(initial=0))
    chunks = _records(nodes + LISTS + 1, CHUNK)
    for name in ("after", "before", "older", "newer"):
        chunks[name] = np.arange(len(chunks))
    chunks.place = ABSENT
    members = _records(len(path_chunks), MEMBER)
    members.external = -1
    transfers, rows = 2 * capacity, slots * number
    storage, copies = settings.storage, 0
    files, pool, links, pool_links = (
        _records(count, dtype) for count, dtype in ((0, FILE), (1, POOL), (2, LINK), (2, LINK))
    )
    if storage is not None:
        copies, files = transfers, _records(nodes + 1, FILE)
        files.after = files.before = np.arange(len(files))
        files.written_s = np.inf
        pool.capacity, pool.evicts = storage.capacity_chunks, storage.evicts
        pool.shared = storage.shared
        for direction, copy, every in (
            (READS, storage.read, storage.pool_read_s),
            (WRITES, storage.write, storage.pool_write_s),
        ):
            links[direction].latency_s, links[direction].chunk_s = copy.latency_s, copy.chunk_s
            pool_links[direction].chunk_s = every
    return Offload(
        chunks=chunks,
        members=members,
        layers=layers,
        state=state,
        marks=np.zeros(int(path_chunks.sum()), dtype=np.uint8),
        next_chunk=np.zeros((len(members), number), dtype=np.int32),
        loads=_records(transfers, TRANSFER),
        stores=_records(transfers, TRANSFER),
        load_nodes=np.zeros(transfers, dtype=np.int32),
        store_nodes=np.zeros(transfers, dtype=np.int32),
        reads=_records(copies, TRANSFER),
        writes=_records(copies, TRANSFER),
        read_nodes=np.zeros(copies, dtype=np.int32),
        write_nodes=np.zeros(copies, dtype=np.int32),
        asked=np.zeros(nodes if copies else 0, dtype=np.int32),
        links=links,
        files=files,
        pool=pool,
        pool_links=pool_links,
        fences=_records(transfers * size, FENCE),
        fence=np.zeros(usable, dtype=np.int64),
        taken=np.full(usable, NONE, dtype=np.int64),
        since=np.full((rows if layers.window_chunks.any() else 0, width), NONE, dtype=np.int64),
        order=np.argsort(-windows, kind="stable"),
        loading=np.zeros(slots, dtype=np.int64),
        ended=np.zeros(slots, dtype=np.int64),
        ended_table=np.zeros((rows, width), dtype=np.int64),
        offered=np.zeros(longest, dtype=np.int32),
        fresh=np.zeros(longest, dtype=np.int32),
        ends=np.zeros(number, dtype=np.int64),
        victims=np.zeros(capacity, dtype=np.int32),
        states=np.zeros((usable if groups.state_tokens else 0, 2), dtype=np.int64),
    )


def _records(count: int, dtype: np.dtype[np.void]) -> Records:
    return np.zeros(count, dtype=dtype).view(np.recarray)


def _layers(groups: KvGroups, blocks_per_chunk: int) -> Records:
    """Return each group's tokens per chunk, and chunks per window (0: full attention)."""
    layers = _records(len(groups.groups), LAYERS)
    for record, group in zip(layers, groups.groups, strict=True):
        record.chunk_tokens = group.block_tokens * blocks_per_chunk
        if group.kind == "linear":
            record.window_chunks = 1
        elif group.kind != "full":
            record.window_chunks = -(-group.window_tokens // record.chunk_tokens)
    return layers


def _state(settings: OffloadSettings) -> Records:
    """Return the tier's settings as a record, with all counts at 0."""
    state, latest = _records(1, OFFLOAD), settings.release == "0.33"
    arc = settings.eviction_policy == "arc"
    state.blocks_per_chunk, state.arc = settings.blocks_per_chunk, arc
    state.provisional, state.restarts, state.whole_chunks = latest and not arc, latest, latest
    state.prompt_only = settings.prompt_only
    state.threshold, state.tracker_size = settings.store_threshold, settings.max_tracker_size
    state.load_latency_s, state.load_chunk_s = settings.load.latency_s, settings.load.chunk_s
    state.store_latency_s, state.store_chunk_s = settings.store.latency_s, settings.store.chunk_s
    state.fences = state.fences_done = 1  # 0 stands for none
    if settings.storage is not None:
        state.storage, state.polls_late = True, latest
    return state
