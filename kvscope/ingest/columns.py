"""Canonical requests, gathered as columns in file order; block paths go straight into the trie.

Nothing here grows with the number of accesses but the trie: a path is kept as its last block.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.errors import InputError
from kvscope.ingest.base import BadLine, Identifier, ReadOptions, Request
from kvscope.ingest.trie import Trie

UNKNOWN_TYPE = "unknown"
NO_ID = -(2**63)  # stands for "none" among 64-bit identifiers
_FLUSH_REQUESTS = 256  # fewer pending lists than what sets off Python's garbage collection
_INT32_MAX = 2**31 - 1


def key(identifier: Identifier) -> int:
    """An identifier as a signed 64-bit number: 64-bit integers themselves, the rest by digest.

    Decimal strings count as the integers they spell; integers from 2^63 on wrap around.
    """
    if isinstance(identifier, str) and _spells_integer(identifier):
        identifier = int(identifier)
    if isinstance(identifier, int) and -(2**63) <= identifier < 2**64:
        return identifier if identifier < 2**63 else identifier - 2**64
    digest = hashlib.blake2b(str(identifier).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _spells_integer(text: str) -> bool:
    # 20 digits hold every 64-bit number; longer ones are strings like any other.
    return len(text) <= 20 and text.isdecimal() and str(int(text)) == text


class Columns:
    """The requests of one trace in file order; `add` checks what concerns every format.

    Requests are turned into columns some hundreds at a time, a field at a time: field by field
    for each request takes several times as long.
    """

    def __init__(self, default_block_size: int, options: ReadOptions) -> None:
        self.block_size = 0  # settled by the first record
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
        self.types: dict[str, int] = {}
        self.untimed = 0
        self.unhashed = 0
        self.short = 0  # hash ids for a part of the prompt only
        self.sessions: dict[int, int] = {}  # each session's last row so far
        self._fallback_block_size = options.block_size or default_block_size
        self._pending: list[Request] = []
        self._ids = array("q")
        self._ends = array("q", [0])
        self._leaves: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        return len(self.arrival_s) + len(self._pending)

    def add(self, requests: Sequence[Request]) -> None:
        """Append the requests of one record, all of them or, with BadLine, none."""
        for request in requests:
            self._check(request)
        if not self.block_size and requests:
            self.block_size = requests[0].block_size or self._fallback_block_size
        for request in requests:
            self._append_path(request)
        self._pending += requests
        if len(self._pending) >= _FLUSH_REQUESTS:
            self._flush()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The columns that a trace stores as they are, with the last block of each prompt.

        Only after this do the attributes hold every request that was added.
        """
        self._flush()
        return {
            "arrival_s": np.frombuffer(self.arrival_s, dtype=np.float64),
            "input_tokens": np.frombuffer(self.input_tokens, dtype=np.int32),
            "output_tokens": np.frombuffer(self.output_tokens, dtype=np.int32),
            "blocks": np.frombuffer(self.blocks, dtype=np.int32),
            "turn": np.frombuffer(self.turn, dtype=np.int32),
            "type": np.frombuffer(self.type_code, dtype=np.int32),
            "chat_id": np.frombuffer(self.chat_id, dtype=np.int64),
            "user_id": np.frombuffer(self.user_id, dtype=np.int64),
            "leaf": np.concatenate(self._leaves),
        }

    def _check(self, request: Request) -> None:
        inputs, outputs = request.input_tokens, request.output_tokens
        if not 1 <= inputs <= _INT32_MAX:
            raise BadLine(f"input tokens must be 1 or more: {inputs}")
        if not 0 <= outputs <= _INT32_MAX - inputs:
            raise BadLine(f"output tokens must be 0 or more: {outputs}")
        if request.arrival_s is not None and not math.isfinite(request.arrival_s):
            raise BadLine(f"arrival time must be finite: {request.arrival_s}")
        if request.turn is not None and request.turn > _INT32_MAX:
            raise BadLine(f"turn must be below 2^31: {request.turn}")
        size = request.block_size
        if size is not None:
            if size < 1:
                raise BadLine(f"block size must be 1 or more: {size}")
            if self.block_size and size != self.block_size:
                raise BadLine(
                    f"block size differs within the trace: {size} after {self.block_size}"
                )
        ids = request.hash_ids
        if ids:
            size = size or self.block_size or self._fallback_block_size
            if (len(ids) - 1) * size >= inputs:
                raise BadLine(
                    f"more hash ids than the prompt has blocks: {len(ids)} ids, but {inputs} tokens"
                    f" are {-(-inputs // size)} blocks of {size} (is --block-size right?)"
                )

    def _append_path(self, request: Request) -> None:
        ids = request.hash_ids
        if ids:
            first = len(self._ids)
            try:
                self._ids.fromlist(ids)  # type: ignore[arg-type]  # strings raise
            except (TypeError, OverflowError):  # OverflowError: an integer of 2^63 or more
                self._ids.fromlist([key(one) for one in ids])
            if request.scope is not None:
                self._ids[first] = key(f"{request.scope}/{self._ids[first]}")
        self._ends.append(len(self._ids))

    def _flush(self) -> None:
        """Turn the pending requests into columns, and hand their paths to the trie."""
        if self.trie.count + len(self._ids) > _INT32_MAX:
            raise InputError(
                f"more than {_INT32_MAX:,} distinct blocks",
                remedy="split the trace and take a part",
            )
        rows, self._pending = self._pending, []
        self._append_times(rows)
        self.input_tokens.fromlist([row.input_tokens for row in rows])
        self.output_tokens.fromlist([row.output_tokens for row in rows])
        self.turn.fromlist([max(row.turn or 0, 0) for row in rows])
        self.chat_id.extend(_keys([row.chat_id for row in rows]))
        self.parent_chat_id.extend(_keys([row.parent_chat_id for row in rows]))
        self.user_id.extend(_keys([row.user_id for row in rows]))
        types = self.types
        kinds = [row.type or UNKNOWN_TYPE for row in rows]
        self.type_code.fromlist([types.setdefault(kind, len(types)) for kind in kinds])
        self._append_paths(rows)

    def _append_paths(self, rows: list[Request]) -> None:
        ids = np.frombuffer(self._ids, dtype=np.int64)
        starts = np.frombuffer(self._ends, dtype=np.int64)
        blocks = np.diff(starts).astype(np.int32)
        self._leaves.append(self.trie.intern(starts, ids))
        self.blocks.frombytes(blocks.tobytes())
        inputs = np.array([row.input_tokens for row in rows], dtype=np.int32)
        full = inputs // (self.block_size or 1)
        self.unhashed += int(np.count_nonzero(blocks == 0))
        self.short += int(np.count_nonzero((blocks > 0) & (blocks < full)))
        self._ids = array("q")
        self._ends = array("q", [0])

    def _append_times(self, rows: list[Request]) -> None:
        """When each request arrives, and which one comes before it in its session."""
        times = [row.arrival_s for row in rows if row.arrival_s is not None]
        if len(times) == len(rows) and all(row.session_id is None for row in rows):
            self.session_parent.fromlist([-1] * len(rows))
            self.arrival_s.fromlist(times)
            return
        for row in rows:
            previous = self._previous_in_session(row)
            self.session_parent.append(previous)
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


def _keys(identifiers: list[Identifier | None]) -> array[int]:
    """The identifiers as 64-bit numbers, NO_ID where there is none."""
    known = [NO_ID if one is None else one for one in identifiers]
    try:
        return array("q", known)  # type: ignore[arg-type]  # strings raise
    except (TypeError, OverflowError):
        return array("q", [key(one) for one in known])
