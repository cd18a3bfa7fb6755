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
_FLUSH_IDS = 1 << 20
_INT32_MAX = 2**31 - 1


def key(identifier: Identifier) -> int:
    """An identifier as a signed 64-bit number: integers themselves, strings by digest.

    Decimal strings count as the integers they spell.
    """
    if isinstance(identifier, str):
        if identifier.isdecimal() and str(int(identifier)) == identifier:
            identifier = int(identifier)
        else:
            digest = hashlib.blake2b(identifier.encode(), digest_size=8).digest()
            return int.from_bytes(digest, "little", signed=True)
    if -(2**63) <= identifier < 2**63:
        return identifier
    return int.from_bytes((identifier & (2**64 - 1)).to_bytes(8, "little"), "little", signed=True)


class Columns:
    """The requests of one trace in file order; `add` checks what concerns every format."""

    def __init__(self, default_block_size: int, options: ReadOptions) -> None:
        self.block_size = 0  # settled by the first request
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
        self._fallback_block_size = options.block_size or default_block_size
        self.sessions: dict[int, int] = {}  # each session's last row so far
        self._ids = array("q")
        self._ends = array("q", [0])
        self._leaves: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        return len(self.arrival_s)

    def add(self, requests: Sequence[Request]) -> None:
        """Append the requests of one record, all of them or, with BadLine, none."""
        for request in requests:
            self._check(request)
        for request in requests:
            self._append(request)
        if len(self._ids) >= _FLUSH_IDS:
            self._flush()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The columns that a trace stores as they are, with the last block of each prompt."""
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
        size = request.block_size
        if size is not None and size < 1:
            raise BadLine(f"block size must be 1 or more: {size}")
        if self.block_size and size is not None and size != self.block_size:
            raise BadLine(f"block size differs within the trace: {size} after {self.block_size}")
        ids = request.hash_ids
        if ids:
            size = size or self.block_size or self._fallback_block_size
            if len(ids) > -(-inputs // size):
                raise BadLine(
                    f"more hash ids than the prompt has blocks: {len(ids)} ids, but {inputs} tokens"
                    f" are {-(-inputs // size)} blocks of {size} (is --block-size right?)"
                )

    def _append(self, request: Request) -> None:
        if not self.block_size:
            self.block_size = request.block_size or self._fallback_block_size
        row = len(self.arrival_s)
        previous = self._previous_in_session(request, row)
        self.session_parent.append(previous)
        self.arrival_s.append(self._arrival(request, previous))
        self.input_tokens.append(request.input_tokens)
        self.output_tokens.append(request.output_tokens)
        self.turn.append(max(request.turn or 0, 0))
        kind = request.type or UNKNOWN_TYPE
        self.type_code.append(self.types.setdefault(kind, len(self.types)))
        chat, parent, user = request.chat_id, request.parent_chat_id, request.user_id
        self.chat_id.append(NO_ID if chat is None else key(chat))
        self.parent_chat_id.append(NO_ID if parent is None else key(parent))
        self.user_id.append(NO_ID if user is None else key(user))
        self._append_path(request)

    def _previous_in_session(self, request: Request, row: int) -> int:
        if request.session_id is None:
            return -1
        session = key(request.session_id)
        previous = self.sessions.get(session, -1)
        self.sessions[session] = row
        return previous

    def _arrival(self, request: Request, previous: int) -> float:
        if request.arrival_s is not None:
            return request.arrival_s
        self.untimed += 1
        if previous >= 0:
            return self.arrival_s[previous] + (request.delay_s or 0.0)
        return self.arrival_s[-1] if self.arrival_s else 0.0

    def _append_path(self, request: Request) -> None:
        ids = request.hash_ids
        if not ids:
            self.unhashed += 1
            self.blocks.append(0)
        else:
            self.blocks.append(len(ids))
            self.short += len(ids) < request.input_tokens // self.block_size
            first = len(self._ids)
            try:
                self._ids.extend(ids)  # type: ignore[arg-type]  # strings raise, see below
            except (TypeError, OverflowError):
                del self._ids[first:]
                self._ids.extend(key(one) for one in ids)
            if request.scope is not None:
                self._ids[first] = key(f"{request.scope}/{self._ids[first]}")
        self._ends.append(len(self._ids))

    def _flush(self) -> None:
        """Hand the gathered paths to the trie."""
        if self.trie.count + len(self._ids) > _INT32_MAX:
            raise InputError(
                f"more than {_INT32_MAX:,} distinct blocks", remedy="split the trace and take a part"
            )
        ids = np.frombuffer(self._ids, dtype=np.int64)
        starts = np.frombuffer(self._ends, dtype=np.int64)
        self._leaves.append(self.trie.intern(starts, ids))
        self._ids = array("q")
        self._ends = array("q", [0])
