"""Several simulated vLLMs in one kernel: their machines (states), and the requests of each.

One `Machine` has the arrays of all, with an axis of machines in front; functions that run one
machine take views of its rows.
"""

from __future__ import annotations

import mmap as memory_maps
from contextlib import suppress
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s, Records
from kvscope.core.jit import Opaque, callable_in_kernels
from kvscope.replay.kernels.loop import TablePeriods
from kvscope.replay.traffic import Traffic
from kvscope.vllm_sim import EngineSettings
from kvscope.vllm_sim.offload_state import CHUNK, FILE, Offload
from kvscope.vllm_sim.state import BLOCK, REQUEST, Machine

NEVER = 2**62
_HUGE = getattr(memory_maps, "MADV_HUGEPAGE", None)  # of Linux alone
_WRITTEN_FIRST = frozenset(  # before they are read, so that no more of them is ever in memory
    {"requests", "cuts", "table", "path", "running", "preempted", "batch", "yields", "copies"}
)
_ZEROS = frozenset({"blocks", "holders", "children", "written"})  # but for what `blocks` ends with
_SHARED = frozenset({"parents", "tables", "functions", "grouped", "storage", "offload"})  # in part
_OF_POOL = frozenset({"files", "pool", "pool_links"})  # which replicas may share


class Machines(NamedTuple):
    """M machines; a request's place is its number, from 0, among those sent to the same machine.

    `each` has the arrays of all: M rows, a row per pool if pools are shared, and no such axis for
    arrays that no machine writes. `requests` (R) and `cuts` (R x P, the depths that divide each
    path into P + 1 parts, as in `Traffic`) are those of the trace, by request number. Per machine
    (M): `sent` counts its requests, `now_s` is the time up to which it has been simulated, infinity
    while it is idle. `period` (1) is the policy's table in force, `since` the number of the arrival
    from which each table holds.
    """

    each: Machine
    requests: Records
    cuts: Int32s
    sent: Int64s
    now_s: Float64s
    since: Int64s
    period: Int64s


def idle_machines(known: Machine, replicas: int, sets: int = 1) -> Machines:
    """Return `sets` sets of `replicas` machines without requests.

    `known` has all requests of the trace. The machines of a set share one storage pool, if that of
    `known` is shared.
    """
    count = sets * replicas
    pools = sets if known.offload.pool.shared[0] else count
    own = {
        name: _room(column, count)
        if name in _WRITTEN_FIRST
        else _room(column, count, huge=True)
        if name in _ZEROS
        else _rows(column, count)
        for name, column in known._asdict().items()
        if name not in _SHARED
    }
    begin, lanes = int(known.state[0].blocks), int(known.state[0].lanes)
    sentinels = slice(begin, begin + lanes + 1)
    own["blocks"][:, sentinels] = known.blocks[sentinels]
    offload = Offload(
        **{
            name: _rows(column, pools if name in _OF_POOL else count)
            for name, column in known.offload._asdict().items()
        }
    )
    tables = _table_rows(known.tables, count)
    each = known._replace(**own, tables=tables, offload=offload)
    each.requests.arrival_s[:, :1] = np.inf
    each.tables.since[:, 1:] = NEVER
    idle_s = np.full(count, np.inf)
    sent, period = np.zeros(count, dtype=np.int64), np.zeros(1, dtype=np.int64)
    return Machines(each, known.requests, known.cuts, sent, idle_s, known.tables.since, period)


def machines_bytes(traffic: Traffic, settings: EngineSettings, count: int) -> int:
    """Return the bytes of `count` machines, each with all blocks of its pool and of the trace.

    Arrays by running request are left out: only the rows that requests use take memory.
    """
    tries = 1 if settings.groups is None else settings.groups.contents(traffic.block_size)
    node = 8  # `holders`, and `children` or `written`
    if settings.offload is not None:
        node += CHUNK.itemsize + FILE.itemsize
    own = node * tries * len(traffic.block_parent) + BLOCK.itemsize * settings.usable_blocks
    return count * own + 2 * REQUEST.itemsize * len(traffic.leaf)  # those of the trace, and sent


def _rows(column: Any, count: int) -> Any:
    return np.repeat(column[None], count, axis=0).view(type(column))


def _room(column: Any, count: int, *, huge: bool = False) -> Any:
    """Return `count` arrays like `column` of zeros, in memory that is committed on first write.

    `huge` pages (a page fault per 2 MiB) suit arrays that will mostly be written, small pages the
    others: NumPy would use huge pages for all, and so commit memory that is never written.
    """
    pages = mmap(-1, max(1, count * column.nbytes), MAP_PRIVATE | MAP_ANONYMOUS)
    if huge and _HUGE is not None:
        with suppress(OSError):  # of a kernel without them
            pages.madvise(_HUGE)
    rows = np.ndarray((count, *column.shape), column.dtype, buffer=pages)
    return rows.view(type(column))


def _table_rows(tables: TablePeriods, count: int) -> TablePeriods:
    return tables._replace(since=_rows(tables.since, count), in_force=_rows(tables.in_force, count))


def layouts(each: Machine, count: int) -> Int64s:
    """Return the addresses of the machines' arrays, a row each, as compiled functions expect them.

    Among machines with the same pool, each array's address grows by a constant per machine.
    """
    pools = len(each.offload.pool)
    alike = count // pools if pools < count else count
    return np.concatenate([_layouts(each, count, begin, alike) for begin in range(0, count, alike)])


def _layouts(each: Machine, count: int, begin: int, alike: int) -> Int64s:
    first, second = (
        np.frombuffer(Opaque(_machine_at(each, number, count)).layout, dtype=np.int64)
        for number in (begin, begin + min(1, alike - 1))
    )
    rows: Int64s = first + np.arange(alike)[:, None] * (second - first)
    return rows


def _machine_at(each: Machine, number: int, count: int) -> Machine:
    """Return machine `number` of `count`, as views of its rows."""
    rows = {name: column[number] for name, column in each._asdict().items() if name not in _SHARED}
    since, in_force = each.tables.since[number], each.tables.in_force[number]
    return each._replace(
        **rows,
        tables=each.tables._replace(since=since, in_force=in_force),
        offload=Offload(*(column[number * len(column) // count] for column in each.offload)),
    )


_COUNTS = (  # of a machine's state, that go on when its cache is emptied
    *("evictions", "freed", "next", "arrived", "steps", "finished", "admitted", "period"),
    *("now_s", "ready_s", "end_s"),
)


def renew(machines: Machines, number: int, known: Machine) -> None:
    """Empty the cache of an idle machine, but keep its counts; `known` is an empty one."""
    each, new = machines.each, known.state.copy()
    for count in _COUNTS:
        new[count] = each.state[number][count]
    each.state[number] = new
    for rows, empty in (
        (each.blocks, known.blocks),
        (each.holders, known.holders),
        (each.children, known.children),
        (each.written, known.written),
        (each.busy, known.busy),
        (each.recent, known.recent),
    ):
        rows[number] = empty


@callable_in_kernels
def queue_request(machines: Machines, number: int, request: int, now_s: float) -> int:
    """Send a request to a machine at `now_s`; return its place among those sent there."""
    each, place = machines.each, int(machines.sent[number])
    each.requests[number, place] = machines.requests[request]
    each.requests[number, place].arrival_s = now_s
    for cut in range(machines.cuts.shape[1]):
        each.cuts[number, place, cut] = machines.cuts[request, cut]
    machines.sent[number] = place + 1
    if place + 1 < len(machines.requests):
        each.requests[number, place + 1].arrival_s = np.inf  # not known yet
    machines.now_s[number] = min(machines.now_s[number], each.state[number, 0].now_s)
    return place


@callable_in_kernels
def take_tables(machines: Machines, slot: int) -> None:
    """Switch all machines to the policy's table that holds at arrival number `slot` (from 0)."""
    period, since = machines.period, machines.since
    while period[0] + 1 < len(since) and since[period[0] + 1] <= slot:
        period[0] += 1
        for number in range(len(machines.sent)):
            machines.each.tables.since[number, period[0]] = machines.sent[number]


@callable_in_kernels
def last_content(layout: Any) -> int:
    """Return the index in `Machine.holders` of a trie node's last block, less the node's number.

    `layout` is a record GROUP: a group of layers, in which a node may be several smaller blocks.
    The difference is the same for all nodes.
    """
    return layout.first_content + (layout.blocks_per_node - 1) * layout.nodes  # type: ignore[no-any-return]


@callable_in_kernels
def held_blocks(each: Machine, number: int, path: Int32s, look: int) -> int:
    """Return how many leading blocks of a path, of its first `look`, a machine holds.

    Of a hybrid model's layers, the full-attention group counts, else the first group, as in KV
    events. Sliding windows and states may allow fewer hits.
    """
    held = 0
    layout = each.groups[number, each.specs[number, 0].begin]
    size, first = layout.nodes_per_block, last_content(layout)
    while (held + 1) * size <= look and (
        each.holders[number, path[(held + 1) * size - 1] + first] > 0
    ):
        held += 1
    return int(held * size)


@callable_in_kernels
def unused_blocks(each: Machine, number: int, path: Int32s, length: int) -> int:
    """Return the number of a path's first `length` blocks that no request on a machine uses."""
    unused = 0
    layout = each.groups[number, each.specs[number, 0].begin]
    size, first = layout.nodes_per_block, last_content(layout)
    for depth in range(size - 1, length, size):
        holder = each.holders[number, path[depth] + first]
        if holder <= 0 or each.blocks[number, holder - 1].users == 0:
            unused += size
    return int(unused + length % size)
