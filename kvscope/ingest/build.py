"""From columns in file order to a trace in order of arrival: lineage, carried outputs, reuse."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.disk_columns import stretches
from kvscope.core.trace import Lineage, PromptPaths
from kvscope.ingest import lineage
from kvscope.ingest.clocks import begin_together, correct_epoch, open_sessions, placed
from kvscope.ingest.columns import (
    FURTHER_TYPES,
    MOST_TYPES,
    UNKNOWN_TYPE,
    Columns,
    Gaps,
    PartTree,
)
from kvscope.ingest.formats.base import ROOT, ReadOptions
from kvscope.ingest.hash_ids import NO_ID
from kvscope.ingest.reuse import TraceReuse, trace_reuse
from kvscope.ingest.trie import Trie

_DIGESTS = 2**53
"""Larger parent ids are most likely digests of strings, which notes do not quote."""
_MISSING = 0.1
"""Share of the parent ids that may be absent without a note, as in a window of a longer trace."""
NO_COMMON_CLOCK = "sessions have no common clock"


class BuiltRequests(Struct, frozen=True):
    """A trace's requests ready for the store: a column per field, in order of arrival.

    `names[column]` are the texts that a column's numbers stand for, `names["part"]` the kinds of
    `parts`. Missing ids are NO_ID (-2^63); missing names, parents and measured values, floats too,
    are NONE (-1). `tenants`: number of (model, adapter, salt) in the trace.
    """

    block_size: int
    requests: MutableMapping[str, NDArray[Any]]
    names: dict[str, tuple[str, ...]]
    tenants: int
    parts: PartTree
    lineage: Lineage
    out_of_order: int
    notes: tuple[str, ...]


class Built(BuiltRequests, frozen=True):
    """A trace ready for the store: requests, prefix trie and reuse.

    Tenants share no blocks: first blocks of all tenants but the first have new hash ids, and
    `own_hash_ids` maps each of these blocks to its hash id in the trace.
    """

    own_hash_ids: dict[int, int]
    trie: Trie
    reuse: TraceReuse

    def paths(self) -> PromptPaths:
        """Return the trace's paths, as the store will load them."""
        names = {*PromptPaths.__struct_fields__} & self.requests.keys()
        return PromptPaths(
            block_size=self.block_size,
            block_parent=self.trie.parent,
            **{name: self.requests[name] for name in names},
        )


class PathEnds(NamedTuple):
    """Ends of the full-block paths of R requests, as nodes of a tree whose root is 0.

    `above`: each node's parent. `blocks`: length of the path to each node, in blocks; None where
    every node is one block. `full_leaf` (R): the node where each path ends; the end of a path that
    is a prefix of another one is an ancestor of the other's end.
    """

    above: Int32s
    blocks: Int32s | None
    full_leaf: Int32s


class Arranged:
    """The requests of a trace in order of arrival, with all columns that need no block paths.

    `rows` are columns in file order, as `Columns.arrays` returns them. The constructor empties it:
    it keeps parent ids, sessions and tenants for `link`, and moves all other columns to `requests`,
    which must be empty. `order` has the file's rows by arrival. `in_ms`: the format's times are in
    ms; arrivals that are in seconds since 1970 by mistake are corrected.
    """

    def __init__(
        self,
        rows: MutableMapping[str, NDArray[Any]],
        block_size: int,
        options: ReadOptions,
        requests: MutableMapping[str, NDArray[Any]],
        *,
        in_ms: bool = False,
    ) -> None:
        self.block_size = block_size
        self.notes = [*(correct_epoch(rows) if in_ms else ()), *_place_sessions(rows, options)]
        steps_s = np.diff(rows["arrival_s"])
        if (steps_s < 0).any() and not (steps_s > 0).any():
            self.notes.append("newest requests come first: put in order of time")
            order = np.argsort(rows["arrival_s"][::-1], kind="stable")
            order = len(order) - 1 - order
        else:
            order = np.argsort(rows["arrival_s"], kind="stable")
        self.order = order
        self.out_of_order = int(np.count_nonzero(steps_s < 0))
        by_arrival = order if self.out_of_order else slice(None)  # else no copy is made
        self._tenant = rows.pop("tenant")[order]
        self._links = {name: rows.pop(name) for name in ("parent_chat_id", "session")}
        self._links["session_parent"] = _previous_in_session(self._links["session"], order)
        self._blocks = rows["blocks"]
        self.requests = requests
        for name in list(rows):
            requests[name] = rows.pop(name)[by_arrival]
        inputs, blocks = self.requests["input_tokens"], self.requests["blocks"]
        self.full_blocks = np.minimum(blocks, inputs // block_size)

    def link(self, ends: PathEnds) -> tuple[Lineage, Int32s]:
        """Add the columns of conversations and of cached blocks to `requests`.

        Return how conversations are known ("given", "inferred", "none"), and for each request the
        one whose prompt contains its cached path: a next turn or itself (see `lineage.carriers`).
        """
        requests, size, full_blocks = self.requests, self.block_size, self.full_blocks
        inputs, outputs = requests["input_tokens"], requests["output_tokens"]
        parent, kind, notes = _lineage(self._links, self._blocks, self.order, requests, ends)
        self.notes += notes
        self._links.clear()  # used up
        conversation, turn = lineage.conversations(parent)
        requests["conversation"] = conversation
        requests["turn"] = np.where(requests["turn"] > 0, requests["turn"], turn)
        del conversation, turn
        # A turn under another model or salt does not show which blocks this one's output has left.
        same_tenant = (parent >= 0) & (self._tenant[parent] == self._tenant)
        successor_of = np.where(same_tenant, parent, np.int32(-1))
        carrier, carried_blocks = lineage.carriers(
            *ends[:2], size, successor_of, ends.full_leaf, full_blocks, inputs, outputs
        )
        requests["parent"], requests["carried_blocks"] = parent, carried_blocks
        del parent, carried_blocks, same_tenant, successor_of
        requests["waits_for"] = lineage.parents_by_id(
            requests["chat_id"], requests["waits_for"], NO_ID
        )
        requests["request"] = np.arange(len(carrier), dtype=np.int32)
        requests["arrival_s"] = requests["arrival_s"] - requests["arrival_s"][0]
        requests["full_blocks"] = full_blocks
        self.full_blocks = requests["full_blocks"]  # on disk, where `requests` are
        requests["cached_blocks"] = _cached_blocks(inputs, outputs, size)
        return kind, carrier


def _cached_blocks(inputs: Int32s, outputs: Int32s, block_size: int) -> Int32s:
    """Return how many blocks each request leaves in an infinite cache.

    The last sampled token has no KV; every full block of the prompt counts.
    """
    cached = np.empty_like(inputs)
    for part in stretches(len(inputs)):
        history = inputs[part].astype(np.int64) + outputs[part]
        cached[part] = np.maximum((history - 1) // block_size, inputs[part] // block_size)
    return cached


def build(columns: Columns, reader_notes: list[str], in_ms: bool = False) -> Built:
    """Return the trace, sorted by arrival (stably), with conversations, carried outputs and reuse.

    Empties `columns`, as sorting copies each column.
    """
    arranged = Arranged(columns.taken(), columns.block_size, columns.options, {}, in_ms=in_ms)
    requests, trie, full_blocks = arranged.requests, columns.trie, arranged.full_blocks
    leaf = requests["leaf"]
    full_leaf = np.where(requests["blocks"] > full_blocks, trie.parent[leaf], leaf)
    kind, carrier = arranged.link(PathEnds(trie.parent, None, full_leaf))
    carried_blocks = requests["carried_blocks"]
    requests["carried_leaf"] = lineage.ends_at(
        trie.parent, full_leaf[carrier], full_blocks[carrier] - carried_blocks
    )
    reuse = trace_reuse(
        trie.parent, columns.block_size, requests["input_tokens"], full_blocks,
        requests["carried_leaf"], carried_blocks,
    )  # fmt: skip
    requests["ideal_blocks"] = reuse.ideal_blocks
    return Built(
        block_size=columns.block_size,
        requests=requests,
        names={name: tuple(names) for name, names in columns.names.items()},
        tenants=len(columns.tenants),
        parts=columns.parts,
        own_hash_ids=_own_hash_ids(columns),
        trie=trie,
        reuse=reuse,
        lineage=kind,
        out_of_order=arranged.out_of_order,
        notes=(*arranged.notes, *reader_notes, *missing_notes(columns.gaps, columns.names, kind)),
    )


def _own_hash_ids(columns: Columns) -> dict[int, int]:
    """Return the trace's own hash ids of first blocks that got new ids for a tenant, by block."""
    if not columns.own_ids:
        return {}
    first = np.flatnonzero(columns.trie.parent[1:] == 0) + 1
    ids = columns.trie.hash_id[first].tolist()
    pairs = zip(first.tolist(), ids, strict=True)
    return {block: columns.own_ids[each] for block, each in pairs if each in columns.own_ids}


def _previous_in_session(session: Int32s, order: Int64s) -> Int32s:
    """Return the row of each request's predecessor in its session by time, -1 for none.

    `session` is in file order, -1 without a session; `order` has the rows by time.
    """
    timed = order[session[order] >= 0]
    grouped = timed[np.argsort(session[timed], kind="stable")]
    same = session[grouped[1:]] == session[grouped[:-1]]
    previous = np.full(len(session), -1, dtype=np.int32)
    previous[grouped[1:][same]] = grouped[:-1][same]
    return previous


def _previous_of_chat(chat_id: Int64s) -> Int32s:
    """Return, for each request by arrival, the previous request with its chat id (-1: none).

    In a trace with turn numbers, a repeated chat id names a conversation.
    """
    first = np.unique(chat_id, return_inverse=True)[1].astype(np.int32)
    order = np.arange(len(chat_id), dtype=np.int64)
    return _previous_in_session(np.where(chat_id == NO_ID, np.int32(-1), first), order)


def _place_sessions(rows: MutableMapping[str, NDArray[Any]], options: ReadOptions) -> list[str]:
    """Move sessions with own clocks (see `clocks`) to random starts, given a rate; return notes.

    `clock` in `rows` becomes the number of each row's clock, -1 for the trace's own. With a rate
    (`session_arrivals`) and two clocks or more, `arrival_s` becomes new times, and `clock` -1.
    """
    clock = _numbered(rows["clock"])
    session = _numbered(rows["session"])
    if clock.max() < 0 and begin_together(rows["arrival_s"], session):
        clock = session
    rows["clock"] = clock
    if clock.max() < 1:  # one session has no others to be placed among
        return []
    rate, seed = options.session_arrivals, options.seed
    if rate is not None:
        rows["arrival_s"] = placed(rows["arrival_s"], clock, rate, seed)
        rows["clock"] = np.full_like(clock, -1)
        return [f"sessions were placed as a Poisson process of {rate:g} sessions/s (seed {seed})"]
    count = open_sessions(rows["arrival_s"], clock)
    return [f"{NO_COMMON_CLOCK}: as placed, {count:.3g} are open at a time"]


def _numbered(first_row: Int32s) -> Int32s:
    """Return the number of each row's group, from 0 in the order of the groups' first rows.

    A group is a session, or the rows that one clock times; `first_row` has the first row of each
    row's group. -1, in it and in the result: no group.
    """
    groups = np.unique(first_row[first_row >= 0])
    if not len(groups):
        return np.full_like(first_row, -1)
    return np.where(first_row >= 0, np.searchsorted(groups, first_row), -1).astype(np.int32)


def _lineage(
    links: Mapping[str, NDArray[Any]],
    blocks: Int32s,
    order: Int64s,
    requests: Mapping[str, NDArray[Any]],
    ends: PathEnds,
) -> tuple[Int32s, Lineage, list[str]]:
    """Return each request's parent (-1: none), how it is known, and notes on unusable parent ids.

    Requests and parents have their numbers by arrival. In file order are `blocks`, the lengths of
    paths, and the columns of `links`: `parent_chat_id`, `session` and `session_parent` (the row of
    the session's previous request). If any request has hash ids, only those with hash ids decide
    whether conversations are given: the others have no reuse, and must not prevent inference.
    """
    deciding = blocks > 0 if blocks.any() else np.ones(len(blocks), dtype=np.bool_)
    before, parent_chat = links["session_parent"], links["parent_chat_id"]
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    parent = np.where(before[order] >= 0, rank[before[order]], -1)
    # Out of order within a session: a parent that comes later is none.
    in_session = np.where(parent < np.arange(len(order)), parent, -1).astype(np.int32)
    if (parent_chat[deciding] != NO_ID).any():
        parents = np.where(parent_chat == ROOT, NO_ID, parent_chat)[order]
        by_id = lineage.parents_by_id(requests["chat_id"], parents, NO_ID)
        notes = _parent_notes(requests["chat_id"], parents, by_id, order)
        return np.where(parent_chat[order] == NO_ID, in_session, by_id), "given", notes
    # Sessions are given if one has two requests, or if each request has one.
    if (before[deciding] >= 0).any() or (links["session"][deciding] >= 0).all():
        return in_session, "given", []
    chat = requests["chat_id"]
    if (requests["turn"] > 0).any() and (of_chat := _previous_of_chat(chat)).max(initial=-1) >= 0:
        return of_chat, "given", []
    if blocks.any():
        inputs, outputs = requests["input_tokens"], requests["output_tokens"]
        by_prefix = lineage.parents_by_prefix(ends.above, ends.full_leaf, inputs, outputs)
        return by_prefix, "inferred", []
    return np.full(len(order), -1, dtype=np.int32), "none", []


def _parent_notes(
    chat_id: Int64s, parent_chat_id: Int64s, parent: Int32s, order: Int64s
) -> list[str]:
    """Return notes that count the parent ids that cannot be followed, by reason.

    Ids of the request itself or of a later one come with the first such request; ids that no
    request has only if they are more than the share _MISSING of all stated ids, and without it.
    Columns are by arrival, `order` has the file's rows.
    """
    lost = lineage.impossible_parents(chat_id, parent_chat_id, parent, NO_ID)
    reasons = {"the request itself": lost.itself, "later than the request": lost.later}
    counts = []
    for reason, requests in reasons.items():
        if len(requests):
            first = requests[0]
            place = f"request {order[first] + 1:,} of the file"
            if abs(parent_chat_id[first]) < _DIGESTS:
                place += f" has parent {parent_chat_id[first]}"
            counts.append(f"{len(requests):,} {reason} ({place})")
    notes = (
        [f"parents that cannot be: {', '.join(counts)}: correct or remove them"] if counts else []
    )
    missing, stated = len(lost.missing), int(np.count_nonzero(parent_chat_id != NO_ID))
    if missing > _MISSING * stated:
        what = "parents are not in the trace: these requests begin conversations"
        notes.append(f"{missing:,} of {stated:,} {what}")
    return notes


def missing_notes(gaps: Gaps, names: Mapping[str, Collection[str]], kind: Lineage) -> list[str]:
    """Return notes on what the trace lacks and on what was inferred.

    `names` has the texts of each column of names, as `Columns.names` does; only "type" is read.
    """
    total = gaps.requests
    notes = []
    if gaps.untimed:
        delays = f", {gaps.delayed:,} of them a delay" if gaps.delayed else ""
        notes.append(f"{gaps.untimed:,} of {total:,} requests have no arrival time{delays}")
    if gaps.assumed:
        notes.append(
            "delays count from the end of the answer before: answers without a duration are taken"
            " to last 20 ms per output token"
        )
    if gaps.unhashed == total:
        notes.append("no block hashes: lengths and arrivals only, nothing about reuse")
    elif gaps.unhashed:
        notes.append(f"{gaps.unhashed:,} of {total:,} requests have no block hashes")
    if gaps.short:
        notes.append(f"{gaps.short:,} of {total:,} requests have hashes for a part of the prompt")
    if kind == "inferred":
        notes.append("conversations are inferred from shared prefixes")
    if gaps.impossible:
        notes.append(f"{gaps.impossible:,} measured values are impossible and left out")
    if list(names["type"]) == [UNKNOWN_TYPE]:
        notes.append("no request types: categories are by turn alone")
    if FURTHER_TYPES in names["type"]:
        notes.append(f"types after the first {MOST_TYPES:,} are pooled as `{FURTHER_TYPES}`")
    return notes
