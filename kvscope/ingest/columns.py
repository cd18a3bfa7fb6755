"""Canonical requests, gathered as columns in file order; block paths go straight into the trie.

Nothing here grows with the number of accesses but the trie: a path is kept as its last block.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.core.errors import InputError
from kvscope.ingest.formats.base import BadLine, ReadOptions, Records, Rejects, Request
from kvscope.ingest.hash_ids import decoded, gathered
from kvscope.ingest.identifiers import key, keys
from kvscope.ingest.trie import Trie

INT32_MAX = 2**31 - 1
LONGEST_S = 1e12
"""Beyond any clock: some 30,000 years, in whole microseconds less than 2^63 of them."""


class Batch:
    """Requests with the numbers of theirs that are counted with, a field at a time.

    Path k is ids[starts[k]:starts[k + 1]]; requests that tell no turn have 0, those that tell no
    arrival or delay are left out of `arrivals_s` and `delays_s`. Raises BadLine or
    OverflowError where a request is none that `check` lets pass.
    """

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.input_tokens = np.array([one.input_tokens for one in requests], dtype=np.int64)
        self.output_tokens = np.array([one.output_tokens for one in requests], dtype=np.int64)
        turns = [one.turn if one.turn and one.turn > 0 else 0 for one in requests]
        self.turn = np.array(turns, dtype=np.int64)
        self.arrivals_s = [one.arrival_s for one in requests if one.arrival_s is not None]
        delays = [one.delay_s for one in requests if one.delay_s is not None]
        self.delays_s = np.array(delays, dtype=np.float64)
        self.starts, self.ids = gathered([one.hash_ids for one in requests])
        self.blocks = np.diff(self.starts)

    def is_sound(self, block_size: int) -> bool:
        """Whether `check` lets every request pass; False may also mean that it is to be asked."""
        requests, inputs, outputs = self.requests, self.input_tokens, self.output_tokens
        return bool(
            {one.block_size for one in requests} <= {None, block_size}
            and ((inputs >= 1) & (inputs <= INT32_MAX)).all()
            and ((outputs >= 0) & (outputs <= INT32_MAX - inputs)).all()
            and (self.turn <= INT32_MAX).all()
            and (np.abs(self.arrivals_s) <= LONGEST_S).all()
            and (self.delays_s >= 0).all()
            and (self.delays_s <= LONGEST_S).all()
            and ((self.blocks - 1) * block_size < inputs).all()
        )


def check(request: Request, block_size: int) -> None:
    """Raise BadLine where `request` cannot be used, in a trace with blocks of `block_size`.

    Its hash ids are decoded on the way, if they are not yet.
    """
    request.hash_ids = decoded(request.hash_ids)
    inputs, outputs = request.input_tokens, request.output_tokens
    if not 1 <= inputs <= INT32_MAX:
        raise BadLine(f"input tokens must be 1 or more: {inputs}")
    if not 0 <= outputs <= INT32_MAX - inputs:
        raise BadLine(f"output tokens must be 0 or more: {outputs}")
    if request.arrival_s is not None and not abs(request.arrival_s) <= LONGEST_S:
        raise BadLine(f"arrival time must be within {LONGEST_S:g} s of 0: {request.arrival_s:g} s")
    if request.delay_s is not None and not 0 <= request.delay_s <= LONGEST_S:
        raise BadLine(f"delay must be 0 to {LONGEST_S:g} s: {request.delay_s:g} s")
    if request.turn is not None and request.turn > INT32_MAX:
        raise BadLine(f"turn must be below 2^31: {request.turn}")
    size = block_size if request.block_size is None else request.block_size
    if not 1 <= size <= INT32_MAX:
        raise BadLine(f"block size must be 1 or more: {size}")
    if size != block_size:
        raise BadLine(f"block size differs within the trace: {size} after {block_size}")
    count = len(request.hash_ids or ())
    if count and (count - 1) * size >= inputs:
        raise BadLine(
            f"more hash ids than the prompt has blocks: {count} ids, but {inputs} tokens"
            f" are {-(-inputs // size)} blocks of {size} (is --block-size right?)"
        )


UNKNOWN_TYPE = "unknown"


class Columns:
    """The requests of one trace in file order, checked for what concerns every format.

    Requests become columns a field at a time: request by request takes several times as long.
    """

    def __init__(self, default_block_size: int, options: ReadOptions, rejects: Rejects) -> None:
        self.trie = Trie()
        self.arrival_s = array("d")
        self.input_tokens = array("i")
        self.output_tokens = array("i")
        self.blocks = array("i")
        self.turn = array("i")  # 0: not told
        self.type_code = array("i")
        self.chat_id = array("q")
        self.parent_chat_id = array("q")
        self.user_id = array("q")
        self.session_parent = array("i")  # row of the session's previous request, or -1
        self.in_session = array("b")
        self.leaf = array("i")  # last block of the prompt
        self.types: dict[str, int] = {}
        self.untimed = 0
        self.unhashed = 0
        self.short = 0  # hash ids for a part of the prompt only
        self.sessions: dict[int, int] = {}  # each session's last row so far
        self._settled_block_size = 0  # not yet
        self._fallback_block_size = options.block_size or default_block_size
        self._waited_s = 0.0  # all delays together
        self._rejects = rejects

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def block_size(self) -> int:
        """What the first request said that has hashes or a size of its own; else as it was read."""
        return self._settled_block_size or self._fallback_block_size

    def add(self, records: Records) -> None:
        """Append the requests of each record, all of them or, told to the rejects, none."""
        batch = self._beyond_doubt(records.requests)
        if batch is None:
            records = self._checked(records)
            batch = Batch(records.requests)
        for line, reason in sorted(records.refused):
            self._rejects.reject(line, reason)
        self._rejects.accepted += len(records.lines)
        if batch.requests:
            self._append(batch)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The columns that a trace stores as they are, with the last block of each prompt."""
        return {
            "arrival_s": np.frombuffer(self.arrival_s, dtype=np.float64),
            "input_tokens": np.frombuffer(self.input_tokens, dtype=np.int32),
            "output_tokens": np.frombuffer(self.output_tokens, dtype=np.int32),
            "blocks": np.frombuffer(self.blocks, dtype=np.int32),
            "turn": np.frombuffer(self.turn, dtype=np.int32),
            "type": np.frombuffer(self.type_code, dtype=np.int32),
            "chat_id": np.frombuffer(self.chat_id, dtype=np.int64),
            "user_id": np.frombuffer(self.user_id, dtype=np.int64),
            "leaf": np.frombuffer(self.leaf, dtype=np.int32),
        }

    def _beyond_doubt(self, requests: list[Request]) -> Batch | None:
        """The requests, if all of them can be used; None where each has to be looked at."""
        try:
            batch = Batch(requests)
        except (BadLine, OverflowError):
            return None
        if not self._settled_block_size and (
            len(batch.ids) or any(one.block_size is not None for one in requests)
        ):
            return None
        if not batch.is_sound(self.block_size):
            return None
        waited_s = self._waited_s + float(batch.delays_s.sum())
        if waited_s > LONGEST_S:
            return None
        self._waited_s = waited_s
        return batch

    def _checked(self, records: Records) -> Records:
        """The same, those refused that cannot be used."""
        checked = Records(refused=records.refused)
        for line, requests in records:
            try:
                self._check(requests)
            except BadLine as error:
                checked.refuse(line, str(error))
            else:
                checked.add(line, requests)
        return checked

    def _check(self, requests: list[Request]) -> None:
        """Raise BadLine where a record cannot be used.

        The first request with hashes or a size of its own settles the block size.
        """
        size, waited_s = self._settled_block_size, self._waited_s
        for request in requests:
            request.hash_ids = decoded(request.hash_ids)
            if not size and (request.hash_ids or request.block_size is not None):
                size = request.block_size or self._fallback_block_size
            check(request, size or self._fallback_block_size)
            waited_s += request.delay_s or 0.0
            if waited_s > LONGEST_S:
                raise BadLine(f"delays add up to more than {LONGEST_S:g} s")
        self._settled_block_size, self._waited_s = size, waited_s

    def _append(self, batch: Batch) -> None:
        rows = batch.requests
        self._append_times(batch)
        _extend(self.input_tokens, batch.input_tokens)
        _extend(self.output_tokens, batch.output_tokens)
        _extend(self.turn, batch.turn)
        _extend(self.chat_id, keys([row.chat_id for row in rows]))
        _extend(self.parent_chat_id, keys([row.parent_chat_id for row in rows]))
        _extend(self.user_id, keys([row.user_id for row in rows]))
        types = [row.type or UNKNOWN_TYPE for row in rows]
        for name in dict.fromkeys(types):
            self.types.setdefault(name, len(self.types))
        self.type_code.fromlist([*map(self.types.__getitem__, types)])
        self._append_paths(batch)

    def _append_paths(self, batch: Batch) -> None:
        """Hand the paths to the trie, and keep the last block of each."""
        starts, ids, blocks = batch.starts, batch.ids, batch.blocks
        if self.trie.count + len(ids) > INT32_MAX:
            raise InputError(
                f"more than {INT32_MAX:,} distinct blocks",
                remedy="split the trace and take a part",
            )
        for row in [row for row, one in enumerate(batch.requests) if one.scope is not None]:
            if blocks[row]:
                first = starts[row]
                ids[first] = key(f"{batch.requests[row].scope}/{ids[first]}")
        _extend(self.leaf, self.trie.intern(starts, ids))
        _extend(self.blocks, blocks)
        full = batch.input_tokens // self.block_size
        self.unhashed += int(np.count_nonzero(blocks == 0))
        self.short += int(np.count_nonzero((blocks > 0) & (blocks < full)))

    def _append_times(self, batch: Batch) -> None:
        """When each request arrives, and which one comes before it in its session."""
        rows, arrivals_s = batch.requests, batch.arrivals_s
        if len(arrivals_s) == len(rows) and {row.session_id for row in rows} == {None}:
            _extend(self.session_parent, np.full(len(rows), -1))
            _extend(self.in_session, np.zeros(len(rows)))
            self.arrival_s.fromlist(arrivals_s)
            return
        for row in rows:
            previous = self._previous_in_session(row)
            self.session_parent.append(previous)
            self.in_session.append(row.session_id is not None)
            self.arrival_s.append(self._arrival(row, previous))

    def _previous_in_session(self, request: Request) -> int:
        if request.session_id is None:
            return -1
        session = key(request.session_id)
        previous = self.sessions.get(session, -1)
        self.sessions[session] = len(self.arrival_s)
        return previous

    def _arrival(self, request: Request, previous: int) -> float:
        if request.arrival_s is not None:
            return request.arrival_s
        self.untimed += 1
        if previous >= 0:
            return self.arrival_s[previous] + (request.delay_s or 0.0)
        return self.arrival_s[-1] if self.arrival_s else 0.0


def _extend(column: array[Any], values: NDArray[Any]) -> None:
    """Append numbers that fit the column's type."""
    column.frombytes(values.astype(column.typecode).tobytes())
