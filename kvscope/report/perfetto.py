"""A simulated fleet's requests over time as JSON trace events, for ui.perfetto.dev.

Source: Trace Event Format (catapult): phases M, X, i and C; times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import msgspec
import numpy as np

from kvscope.core.arrays import Int64s
from kvscope.core.files import sink
from kvscope.core.trace import Prompts
from kvscope.fleet.replay import FleetReplay

Event = dict[str, Any]


def write_perfetto(path: str, prompts: Prompts, done: FleetReplay, first: int) -> None:
    """Write how replicas served the requests from number `first` (from 0) on, replayed as `done`.

    Events are written one by one, so that long traces need no memory. The file is compressed if the
    path ends in `.gz`; `-` is standard output.
    """
    with sink(path) as stream:
        separator = b'{"displayTimeUnit":"ms","traceEvents":[\n'
        for event in _events(prompts, done, first):
            stream.write(separator + msgspec.json.encode(event))
            separator = b",\n"
        stream.write(b"\n]}\n")


def _events(prompts: Prompts, done: FleetReplay, first: int) -> Iterator[Event]:
    """Yield the events of each replica (a process of the format; its rows are threads)."""
    times_s = np.stack([done.arrival_s, done.begin_s, done.token_s, done.end_s], axis=1)
    times_us = np.nan_to_num(np.round(times_s * 1e6)).astype(np.int64)
    answered, since = np.isfinite(done.token_s), times_us[first:, 0].min()
    tid = done.replicas + 1  # no process's number, whose thread would be its main one
    for replica in range(done.replicas):
        pid, args = replica + 1, {"name": f"replica {replica}"}
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": args}
        members = done.order[done.replica[done.order] == replica]
        yield from _counts(pid, since, times_us[members[answered[members]]])
        if done.before is not None:
            yield from _since_the_last(pid, since, times_us[members, 0], done.before[members])
        members = members[members >= first]
        for request in members[~answered[members]].tolist():
            at = {"ph": "i", "s": "p", "pid": pid, "tid": pid, "ts": int(times_us[request, 0])}
            yield {**at, **_described(prompts, done, request, ", rejected")}
        members = members[answered[members]]
        rows = _rows(times_us[members])
        for row in set(rows):
            args = {"name": "requests"}
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid + row, "args": args}
        for request, row in zip(members.tolist(), rows, strict=True):
            at = {"ph": "X", "pid": pid, "tid": tid + row}
            arrival, begin, token, end = times_us[request].tolist()
            yield {**at, "ts": arrival, "dur": end - arrival, **_described(prompts, done, request)}
            for phase, start, stop in (
                ("queue", arrival, begin),
                ("prefill", begin, token),
                ("decode", token, end),
            ):
                if stop > start:
                    yield {**at, "ts": start, "dur": stop - start, "name": phase}
        tid += len(set(rows))


def _described(prompts: Prompts, done: FleetReplay, request: int, outcome: str = "") -> Event:
    """Return the keys `name` and `args` of a request's event; callers add the phase, ids and times.

    `request` is its number as in `kvscope explain`; `outcome`, such as ", rejected", ends the name.
    """
    inputs = int(prompts.input_tokens[request])
    args = {
        "request": request,
        "type": prompts.categories[prompts.category[request]],
        "input_tokens": inputs,
        "output_tokens": int(prompts.output_tokens[request]),
        "hit_tokens": min(int(done.hit_blocks[request]) * prompts.block_size, inputs),
    }
    return {"name": f"request {request}{outcome}", "args": args}


def _rows(times_us: Int64s) -> list[int]:
    """Return the display row of each of R requests, so that no two in one row overlap.

    `times_us` (R x 4) are the times of arrival, admission, first token and end, in this order of
    columns; rows in order of arrival.
    """
    rows, free, busy = list[int](), list[int](), list[tuple[int, int]]()
    for arrival, end in times_us[:, [0, 3]].tolist():
        while busy and busy[0][0] <= arrival:
            heappush(free, heappop(busy)[1])
        rows.append(heappop(free) if free else len(busy))
        heappush(busy, (end, rows[-1]))
    return rows


def _since_the_last(pid: int, since: int, at: Int64s, before: Int64s) -> Iterator[Event]:
    """Yield at each arrival the steps and evicted blocks of its replica since the arrival before.

    `at` (R) are the times of arrival (us) at one replica, `before` (R x 2) its total steps and
    evicted blocks by then. Arrivals before the time `since` (us) yield nothing.
    """
    changes = np.diff(before, axis=0, prepend=0).tolist()
    for ts, (steps, evicted) in zip(at.tolist(), changes, strict=True):
        if ts >= since:
            for name, count in (("steps", steps), ("evicted blocks", evicted)):
                yield {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {"since": count}}


def _counts(pid: int, since: int, times_us: Int64s) -> Iterator[Event]:
    """Yield the numbers of waiting and running requests at each change from time `since` (us) on.

    `times_us` (R x 4) are the times of arrival, admission, first token and end.
    """
    arrival, begin, _, end = times_us.T
    at = np.concatenate([arrival, begin, end])
    change = np.repeat([[1, 0], [-1, 1], [0, -1]], len(times_us), axis=0)
    order = np.argsort(at, kind="stable")
    at, count = at[order], change[order].cumsum(axis=0)
    shown = (at >= since) & np.append(at[1:] > at[:-1], True)[: len(at)]  # the last of a time
    for ts, (waiting, running) in zip(at[shown].tolist(), count[shown].tolist(), strict=True):
        args = {"waiting": waiting, "running": running}
        yield {"ph": "C", "name": "requests", "pid": pid, "ts": ts, "args": args}
