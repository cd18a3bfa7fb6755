"""Several simulated vLLMs in one kernel: their machines, and the requests that each of them gets.

The arrays of all machines lie in those of one `Machine`, with an axis of machines in front; a
kernel that runs one of them takes views of its rows.
"""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, NamedTuple

import numpy as np

from kvscope.core.arrays import Float64s, Int32s, Int64s, Records
from kvscope.core.jit import callable_in_kernels
from kvscope.replay.kernels.loop import TablePeriods
from kvscope.replay.traffic import Traffic
from kvscope.vllm_sim import EngineSettings
from kvscope.vllm_sim.offload_state import CHUNK, Offload
from kvscope.vllm_sim.state import BLOCK, NODE, NONE, REQUEST, Machine

NEVER = 2**62
_WRITTEN_FIRST = frozenset(  # before they are read, so that no more of them is ever in memory
    {"requests", "cuts", "table", "path", "running", "preempted", "batch", "yields", "copies"}
)


class Machines(NamedTuple):
    """M machines, each with the requests that were sent to it by their place among them.

    `each` has their arrays, M rows of everything but what none of them writes. `requests` (R) and
    `cuts` (R x P) are those of the trace, by their number. `sent` (M) counts the requests of each,
    and `now_s` (M) is the time until which it has been simulated, infinity while it has nothing to
    do. The policy's table of `period` (1) holds, each from arrival `since` on.
    """

    each: Machine
    requests: Records
    cuts: Int32s
    sent: Int64s
    now_s: Float64s
    since: Int64s
    period: Int64s


def idle_machines(known: Machine, count: int) -> Machines:
    """Return machines to which nothing was sent; `known` has all requests of the trace."""
    own = {
        name: _room(column, count) if name in _WRITTEN_FIRST else _rows(column, count)
        for name, column in known._asdict().items()
        if name not in {"tables", "functions", "offload"}
    }
    offload = Offload(*(_rows(column, count) for column in known.offload))
    tables = _table_rows(known.tables, count)
    each = Machine(**own, tables=tables, functions=known.functions, offload=offload)
    each.requests.arrival_s[:, :1] = np.inf
    each.tables.since[:, 1:] = NEVER
    idle_s = np.full(count, np.inf)
    sent, period = np.zeros(count, dtype=np.int64), np.zeros(1, dtype=np.int64)
    return Machines(each, known.requests, known.cuts, sent, idle_s, known.tables.since, period)


def machines_bytes(traffic: Traffic, settings: EngineSettings, count: int) -> int:
    """Return what so many machines take: each has all blocks of its pool and of the trace.

    Counted from their arrays; those of slots are in memory as far as requests run at once.
    """
    tries = 1 if settings.groups is None else len(settings.groups.groups)
    node = NODE.itemsize + (0 if settings.offload is None else CHUNK.itemsize)
    own = node * tries * len(traffic.block_parent) + BLOCK.itemsize * settings.usable_blocks
    return count * own + 2 * REQUEST.itemsize * len(traffic.leaf)  # those of the trace, and sent


def _rows(column: Any, count: int) -> Any:
    return np.repeat(column[None], count, axis=0).view(type(column))


def _room(column: Any, count: int) -> Any:
    """Return rows in memory that is taken as they are written to, in small pages.

    NumPy asks for huge ones: a row of every slot would then be in memory.
    """
    pages = mmap(-1, max(1, count * column.nbytes), MAP_PRIVATE | MAP_ANONYMOUS)
    rows = np.ndarray((count, *column.shape), column.dtype, buffer=pages)
    return rows.view(type(column))


def _table_rows(tables: TablePeriods, count: int) -> TablePeriods:
    return tables._replace(since=_rows(tables.since, count), in_force=_rows(tables.in_force, count))


@callable_in_kernels
def _tables_at(tables: TablePeriods, number: int) -> TablePeriods:
    return TablePeriods(
        since=tables.since[number],
        rows=tables.rows,
        values=tables.values,
        in_force=tables.in_force[number],
    )


@callable_in_kernels
def _tier_at(offload: Offload, number: int) -> Offload:
    return Offload(
        chunks=offload.chunks[number],
        members=offload.members[number],
        layers=offload.layers[number],
        state=offload.state[number],
        marks=offload.marks[number],
        next_chunk=offload.next_chunk[number],
        loads=offload.loads[number],
        stores=offload.stores[number],
        load_nodes=offload.load_nodes[number],
        store_nodes=offload.store_nodes[number],
        reads=offload.reads[number],
        writes=offload.writes[number],
        read_nodes=offload.read_nodes[number],
        write_nodes=offload.write_nodes[number],
        asked=offload.asked[number],
        fences=offload.fences[number],
        fence=offload.fence[number],
        taken=offload.taken[number],
        since=offload.since[number],
        order=offload.order[number],
        loading=offload.loading[number],
        ended=offload.ended[number],
        ended_table=offload.ended_table[number],
        offered=offload.offered[number],
        fresh=offload.fresh[number],
        ends=offload.ends[number],
        victims=offload.victims[number],
        states=offload.states[number],
    )


@callable_in_kernels
def machine_at(each: Machine, number: int) -> Machine:
    """Return one of several machines, as views of its rows."""
    return Machine(
        blocks=each.blocks[number],
        nodes=each.nodes[number],
        requests=each.requests[number],
        cuts=each.cuts[number],
        state=each.state[number],
        table=each.table[number],
        path=each.path[number],
        running=each.running[number],
        busy=each.busy[number],
        preempted=each.preempted[number],
        slots=each.slots[number],
        batch=each.batch[number],
        yields=each.yields[number],
        recent=each.recent[number],
        p=each.p[number],
        tables=_tables_at(each.tables, number),
        groups=each.groups[number],
        specs=each.specs[number],
        copies=each.copies[number],
        functions=each.functions,
        offload=_tier_at(each.offload, number),
    )


@callable_in_kernels
def queue_request(machines: Machines, number: int, request: int, now_s: float) -> int:
    """Send a request to a machine, which gets it now; return its place there."""
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
    """Let machines read the table of the policy that holds from arrival `slot` on, if one does."""
    period, since = machines.period, machines.since
    while period[0] + 1 < len(since) and since[period[0] + 1] <= slot:
        period[0] += 1
        for number in range(len(machines.sent)):
            machines.each.tables.since[number, period[0]] = machines.sent[number]


@callable_in_kernels
def held_blocks(each: Machine, number: int, path: Int32s, look: int) -> int:
    """Return how many leading blocks of a path a machine holds, of the first `look`.

    Of a hybrid model, those of full attention count, or of its first group: the prefix that KV
    events report. Windows and states may let fewer hit.
    """
    nodes, held = each.nodes, 0
    layout = each.groups[number, each.specs[number, 0].begin]
    size, first = layout.nodes_per_block, layout.first_content
    while (held + 1) * size <= look and (
        nodes[number, path[(held + 1) * size - 1] + first].first != NONE
    ):
        held += 1
    return int(held * size)


@callable_in_kernels
def unused_blocks(each: Machine, number: int, path: Int32s, length: int) -> int:
    """Return how many blocks of a path no request uses that a machine serves."""
    nodes, unused = each.nodes, 0
    layout = each.groups[number, each.specs[number, 0].begin]
    size, first = layout.nodes_per_block, layout.first_content
    for depth in range(size - 1, length, size):
        block = nodes[number, path[depth] + first].first
        if block == NONE or each.blocks[number, block].users == 0:
            unused += size
    return int(unused + length % size)
