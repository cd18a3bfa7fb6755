"""Canonical requests, gathered as columns in file order; block paths go straight into the trie.

Only the trie grows with the number of accesses: columns keep just the last block of each path.
"""

from __future__ import annotations

import re
import reprlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from kvscope.core import memory
from kvscope.core.arrays import Int32s, Int64s
from kvscope.core.errors import InputError
from kvscope.core.units import MIB
from kvscope.ingest.formats.base import (
    BadLine,
    ReadOptions,
    Records,
    Rejects,
    Request,
)
from kvscope.ingest.hash_ids import NO_ID, decoded, gathered, key, keys
from kvscope.ingest.limits import MAX_HASH_IDS, MAX_REQUESTS, MAX_TOKENS
from kvscope.ingest.trie import Trie

INT32_MAX = 2**31 - 1
LONGEST_S = 1e12
"""Beyond any clock: some 30,000 years, in whole microseconds less than 2^63 of them."""
UNKNOWN_TYPE = "unknown"
NONE = -1
"""Stands in columns for a missing name, request or measured value, whether integer or float."""
_BLOCK_BYTES = 40  # what linking and storing take on top, measured
_SMALL_BYTES = 64 * MIB  # fits anywhere
_IDS_AT_ONCE = 1 << 20
_LONGEST_ANSWER_S = 86_400.0
_PART = re.compile(
    r"template|system|user|assistant|tool result|tool [1-9]\d{0,5}( [\w.:/+-]{1,128})?", re.ASCII
)
_PART_BITS = 32  # of a part's id: the token at which it ends; above them its kind
_TOKEN_S = 0.02  # of an answer's token, where delays count from the end of an untimed answer
TOO_MANY_IDS = "more hash ids than the prompt has blocks"

_TYPECODES = {
    "arrival_s": "d",
    "input_tokens": "i",
    "output_tokens": "i",
    "blocks": "i",
    "turn": "i",  # 0: the trace has none
    "type": "i",  # an index into `names`, as the next
    "model": "i",
    "adapter": "i",
    "salt": "i",
    "worker": "i",
    "retention": "i",
    "ttft_s": "d",
    "queue_s": "d",
    "duration_s": "d",
    "cached_tokens": "i",
    "delay_s": "d",
    "repeated_tokens": "i",
    "parts": "i",  # the last one, in a tree of the parts of all prompts
    "chat_id": "q",
    "parent_chat_id": "q",
    "user_id": "q",
    "waits_for": "q",  # a chat id
    "session": "i",  # row of the session's first request, or -1
    "clock": "i",  # row of the first request that the same clock times, or -1: the trace's own
    "leaf": "i",  # last block of the prompt
    "tenant": "i",
}


_ABSENT = dict.fromkeys(("chat_id", "parent_chat_id", "user_id", "waits_for"), NO_ID)
"""The value of a missing entry, by column; in all other columns it is NONE."""

MOST_TYPES = 6_553
"""Types told apart: each has five turn buckets, and categories are numbered by 15 bits."""
FURTHER_TYPES = "further types"
NAMED = ("type", "model", "adapter", "salt", "worker", "retention", "part")
TENANT = ("model", "adapter", "salt")
MEASURED = ("ttft_s", "queue_s", "duration_s", "cached_tokens", "delay_s")
ATTRIBUTES = (
    *(*TENANT, "worker", *MEASURED),
    *("waits_for", "clock", "retention", "repeated_tokens", "parts"),
)
"""Columns that only some traces fill; the store keeps them in a table of their own."""
Tenant = tuple[int, int, int]
"""The numbers of a model, an adapter and a cache salt: tenants share no blocks.

Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (generate_block_hash_extra_keys).
"""


class RequestBatch:
    """A batch of requests as arrays: token counts, turns, times and paths, for `is_sound`.

    Request k has the hash ids ids[starts[k]:starts[k + 1]], blocks[k] of them. Requests without a
    turn have turn 0; requests without an arrival or a delay are left out of `arrivals_s` and
    `delays_s`. The constructor raises BadLine for hash ids that are no list of ids or too many, and
    OverflowError for integers beyond 64 bits; all else that `check` rejects shows in `is_sound`.
    """

    def __init__(self, records: Records) -> None:
        self.requests = records.requests
        self.input_tokens = np.array(self.field("input_tokens") or (), dtype=np.int64)
        self.output_tokens = np.array(self.field("output_tokens") or (), dtype=np.int64)
        turns = [turn if turn and turn > 0 else 0 for turn in self.field("turn") or ()]
        self.turn = np.array(turns or [0] * len(self.requests), dtype=np.int64)
        self.arrivals_s = np.array(self._present("arrival_s"), dtype=np.float64)
        self.delays_s = np.array(self._present("delay_s"), dtype=np.float64)
        self.starts, self.ids = gathered([each.hash_ids for each in self.requests])
        self.blocks = np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.blocks)

    def field(self, name: str) -> list[Any] | None:
        """Return the values of a field for all requests; None if all values are None."""
        values = [*map(attrgetter(name), self.requests)]
        return values if values.count(None) < len(values) else None

    def _present(self, name: str) -> list[Any]:
        """Return the values of a field, without missing ones."""
        values = self.field(name) or []
        return [each for each in values if each is not None] if None in values else values

    def is_sound(self, block_size: int) -> bool:
        """Return True if every request passes `check`; False if some may not."""
        inputs, outputs = self.input_tokens, self.output_tokens
        return bool(
            {*(self.field("block_size") or ())} <= {None, block_size}
            and ((inputs >= 1) & (inputs <= MAX_TOKENS)).all()
            and ((outputs >= 0) & (outputs <= MAX_TOKENS - inputs)).all()
            and (self.blocks <= MAX_HASH_IDS).all()
            and (self.turn <= INT32_MAX).all()
            and (np.abs(self.arrivals_s) <= LONGEST_S).all()
            and (self.delays_s >= 0).all()
            and (self.delays_s <= LONGEST_S).all()
            and ((self.blocks - 1) * block_size < inputs).all()
            and not any(map(_wrong_part, self.requests if self.field("parts") else ()))
        )


def _numbered(values: list[Any]) -> tuple[list[Any], Int64s]:
    """Return the distinct values in order of first appearance, and each value's index in them."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return distinct, np.zeros(len(values), dtype=np.int64)
    number = {value: k for k, value in enumerate(distinct)}
    return distinct, np.array([*map(number.__getitem__, values)], dtype=np.int64)


def _nonempty(values: list[Any] | None) -> list[Any] | None:
    """Return the values, with None for 0 and for empty text; None if no value remains."""
    return [value or None for value in values] if values and any(values) else None


def _spelled(values: list[Any] | None) -> list[str | None] | None:
    return values and [None if value is None else str(value) for value in values]


def check(request: Request, block_size: int) -> None:
    """Raise BadLine if `request` cannot be used in a trace with blocks of `block_size`.

    Decodes its hash ids, if they are still JSON text.
    """
    request.hash_ids = decoded(request.hash_ids)
    inputs, outputs = request.input_tokens, request.output_tokens
    if inputs < 1:
        raise BadLine(f"input tokens must be 1 or more: {inputs}")
    if outputs < 0:
        raise BadLine(f"output tokens must be 0 or more: {outputs}")
    if inputs + outputs > MAX_TOKENS:
        raise BadLine(
            f"request longer than {MAX_TOKENS:,} tokens with its output: {inputs + outputs}"
        )
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
        blocks = -(-inputs // size)
        raise BadLine(
            f"{TOO_MANY_IDS}: {count} ids, but {inputs} tokens are {blocks} blocks of {size}"
        )
    if wrong := _wrong_part(request):
        raise BadLine(wrong)


def _wrong_part(request: Request) -> str | None:
    """Return what is wrong with the parts of a prompt; None if nothing is."""
    at = 0
    for kind, end in request.parts or ():
        if _PART.fullmatch(kind) is None:
            return f"no part of a prompt: {reprlib.repr(kind)}"
        if not at < end <= request.input_tokens:
            most = request.input_tokens
            return (
                f"parts must end one after another, within the {most} tokens of the prompt: {end}"
            )
        at = end
    return None


class Gaps(Struct):
    """Counts of requests that lack optional values, and of follow-up rows by their first block.

    `untimed`: no arrival time. `unhashed`: no hash ids. `short`: hash ids for only a part of the
    prompt's full blocks. `impossible` counts measured values out of range, not requests. `delayed`:
    no time, but a delay after the session's previous answer; `assumed`: of these, the requests
    whose previous answer has no duration, or one of more than a day.

    `following`: hashed follow-up requests of a session. Of these, `repeating` begin with the same
    block as the session's previous hashed request, or as the first hashed request of any session;
    of the others, `growing` have at least as many input tokens as each earlier hashed request of
    their session.
    """

    requests: int = 0
    untimed: int = 0
    delayed: int = 0
    assumed: int = 0
    unhashed: int = 0
    short: int = 0
    impossible: int = 0
    following: int = 0
    repeating: int = 0
    growing: int = 0


class Interner(Protocol):
    """Destination of a trace's paths: a `Trie`, or files from which tries are made later.

    `count`: blocks in memory, root included. `request_bytes`: memory per request in later steps.
    """

    count: int
    request_bytes: int

    def intern(self, starts: Int64s, ids: Int64s) -> Int32s:
        """Add the paths ids[starts[k]:starts[k + 1]]; return their last blocks, 0 for files."""


class PartTree(NamedTuple):
    """A tree of the parts of prompts: entry 0 is the root, each other one a part.

    `above` is the part before it, `kind` an index into the kinds' names, `end` its end (tokens).
    """

    above: Int32s
    kind: Int32s
    end: Int32s


class Columns:
    """The requests of one trace as columns in file order, after the checks common to all formats.

    Requests are appended field by field: one by one takes several times as long.
    `isolated`: hash ids already differ between tenants, as the block numbers of a stored trace do.
    Paths go to the `interner`, a new trie by default.
    """

    def __init__(
        self,
        default_block_size: int,
        options: ReadOptions,
        rejects: Rejects,
        *,
        isolated: bool = False,
        interner: Interner | None = None,
    ) -> None:
        self.options = options
        self._isolated = isolated
        self._interner = interner or Trie()
        self.names: dict[str, dict[str, int]] = {name: {} for name in NAMED}
        self.tenants: dict[Tenant, int] = {}
        self.own_ids: dict[int, int] = {}  # of first blocks, by the ids that tell tenants apart
        self._parts = Trie()
        self.gaps = Gaps()
        # Up to the last request that has a value: most traces lack most fields.
        self._columns: dict[str, array[Any]] = {
            name: array(code) for name, code in _TYPECODES.items()
        }
        # The last row of each session, how long its answer took, and whether the trace says so.
        self._last_in_session: dict[int, tuple[int, float, bool]] = {}
        self._begun: dict[int, tuple[int, int]] = {}  # by session: last first block, longest input
        self._heads: set[int] = set()  # first blocks of sessions
        self._first_on_clock: dict[int, int] = {}
        self._settled_block_size = 0  # not yet
        self._fallback_block_size = options.block_size or default_block_size
        self._waited_s = 0.0  # all delays together
        self._checked_bytes = _SMALL_BYTES
        self._rejects = rejects

    def __len__(self) -> int:
        return self.gaps.requests

    @property
    def trie(self) -> Trie:
        """The trie of all paths: the `interner`, which must be a `Trie` (not checked)."""
        return cast(Trie, self._interner)

    @property
    def block_size(self) -> int:
        """Block size of the first request with hashes or a size; else the option or default."""
        return self._settled_block_size or self._fallback_block_size

    def add(self, records: Records) -> None:
        """Append the requests of usable records, and reject the other records."""
        batch = self._sound_batch(records)
        if batch is None:
            records = self._checked(records)
            batch = RequestBatch(records)
        if len(self) + len(batch) > MAX_REQUESTS:
            raise InputError(
                f"more than {MAX_REQUESTS:,} requests",
                where=self._rejects.path,
                remedy="split the trace, or take part of it",
            )
        self._require_memory(len(self) + len(batch))
        for line, reason in sorted(records.refused):
            self._rejects.reject(line, reason)
        self._rejects.accepted += len(records.lines)
        if len(batch):
            self._append(batch)

    def _require_memory(self, requests: int) -> None:
        """Raise OutOfMemoryError where linking and storing the requests takes too much memory."""
        nodes = self._interner.count + self._parts.count
        needed = self._interner.request_bytes * requests + _BLOCK_BYTES * nodes
        if needed > self._checked_bytes:
            remedy = "take a part of the trace, or more memory"
            memory.require(needed, f"storing {requests:,} requests and more", remedy)
            self._checked_bytes = needed * 9 // 8  # not at every batch

    @property
    def parts(self) -> PartTree:
        """The tree of the parts of prompts, whose kinds are indices into `names`."""
        ids = self._parts.hash_id
        kind, end = (ids >> _PART_BITS, ids & (1 << _PART_BITS) - 1)
        return PartTree(self._parts.parent, kind.astype(np.int32), end.astype(np.int32))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the columns, in file order; a column without values is a read-only view."""
        return {
            name: np.frombuffer(self._filled(name), dtype=column.typecode)
            if column
            else np.broadcast_to(np.array(_none(name), dtype=column.typecode), len(self))
            for name, column in self._columns.items()
        }

    def taken(self) -> dict[str, NDArray[Any]]:
        """Move the columns out, as `arrays` returns them: no request can be added any more."""
        arrays = self.arrays()
        self._columns.clear()
        self.trie.close()
        return arrays

    def _sound_batch(self, records: Records) -> RequestBatch | None:
        """Return the requests if all of them can be used; None if some may not."""
        try:
            batch = RequestBatch(records)
        except (BadLine, OverflowError):
            return None
        if not self._settled_block_size and batch.field("block_size"):
            return None
        if not batch.is_sound(self.block_size):
            return None
        waited_s = self._waited_s + float(batch.delays_s.sum())
        if waited_s > LONGEST_S:
            return None
        self._waited_s = waited_s
        if len(batch.ids):
            self._settled_block_size = self.block_size
        return batch

    def _checked(self, records: Records) -> Records:
        """Return the usable ones of `records`; the result's `refused` lists the others."""
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
        """Raise BadLine if a record cannot be used.

        The first request with hashes or a stated size settles the block size.
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

    def _append(self, batch: RequestBatch) -> None:
        self.gaps.requests += len(batch)
        self._append_times(batch)
        self._append_service(batch)
        self._extend("input_tokens", batch.input_tokens)
        self._extend("output_tokens", batch.output_tokens)
        self._extend("turn", batch.turn)
        for name in ("chat_id", "parent_chat_id", "user_id", "waits_for"):
            if (identifiers := batch.field(name)) is not None:
                self._extend(name, keys(identifiers))
        self._append_paths(batch)

    def _append_service(self, batch: RequestBatch) -> None:
        """Append the type, tenant, worker and measured times of each request, as far as stated."""
        types, number = _numbered(batch.field("type") or [None] * len(batch))
        self._extend_named("type", [each or UNKNOWN_TYPE for each in types], number)
        self._extend_values("model", _nonempty(batch.field("model")))
        self._extend_values("adapter", _spelled(_nonempty(batch.field("adapter"))))
        self._extend_values("salt", _nonempty(batch.field("cache_salt")))
        self._extend_values("worker", _nonempty(_spelled(batch.field("worker"))))
        stated = batch.field("retention")
        texts = stated and [None if each is None else each.text for each in stated]
        self._extend_values("retention", texts)
        self._extend_measured("ttft_s", _nonempty(batch.field("ttft_s")))  # 0: not measured
        self._extend_measured("queue_s", batch.field("queue_s"))
        self._extend_measured("duration_s", _nonempty(batch.field("duration_s")))
        self._extend_measured("delay_s", batch.field("delay_s"))
        cached = batch.field("cached_tokens")
        self._extend_measured("cached_tokens", cached, batch.input_tokens)
        self._extend_measured("repeated_tokens", batch.field("repeated_tokens"), repeat(MAX_TOKENS))
        self._append_parts(batch)

    def _append_parts(self, batch: RequestBatch) -> None:
        """Intern the parts of prompts in their tree, and append each prompt's last part."""
        if (stated := batch.field("parts")) is None:
            return
        known = self.names["part"]
        starts = np.cumsum([0, *(len(parts or ()) for parts in stated)])
        ids = [
            known.setdefault(kind, len(known)) << _PART_BITS | end
            for parts in stated
            for kind, end in parts or ()
        ]
        self._require_room(self._parts, len(ids), "parts of prompts")
        last = self._parts.intern(starts, np.array(ids, dtype=np.int64))
        self._extend("parts", np.where(last > 0, last, NONE))

    def _extend_values(self, name: str, values: list[str | None] | None) -> None:
        """Append the requests' values (None: no request has one) to the column `name`, as numbers.

        `_extend_named` says which numbers. None appends nothing: `_filled` adds missing entries.
        """
        if values is not None:
            self._extend_named(name, *_numbered(values))

    def _extend_named(self, name: str, values: list[str | None], index: Int64s) -> None:
        """Append values[k] to the column `name` for each request's k in `index`, as a number.

        A text's number is its place among the column's `names`; None becomes NONE.
        """
        numbers = [NONE if x is None else self._number_of(name, x) for x in values]
        self._extend(name, np.array(numbers)[index])

    def _number_of(self, name: str, value: str) -> int:
        """Return the number of text `value` in column `name`; types after MOST_TYPES share one."""
        known = self.names[name]
        if name == "type" and len(known) >= MOST_TYPES and value not in known:
            value = FURTHER_TYPES
        return known.setdefault(value, len(known))

    def _extend_measured(
        self,
        name: str,
        values: Sequence[float | None] | None,
        most: Iterable[float] = repeat(LONGEST_S),
    ) -> None:
        """Append values to the column `name`; None as a missing entry, NONE.

        A value outside of 0 to its limit in `most` becomes NONE, too, and counts as impossible.
        """
        if values is None:
            return
        # Not a reason to refuse a request: nothing of its replay depends on them.
        possible = [
            NONE if value is None or not 0 <= value <= limit else value
            for value, limit in zip(values, most, strict=False)
        ]
        self.gaps.impossible += possible.count(NONE) - values.count(None)
        self._extend(name, np.array(possible))

    def _append_paths(self, batch: RequestBatch) -> None:
        """Intern the paths in the trie, and append last block and length of each path."""
        starts, ids, blocks = batch.starts, batch.ids, batch.blocks
        self._require_room(self._interner, len(ids), "blocks")
        for row, scope in enumerate(batch.field("scope") or ()):
            if scope is not None and blocks[row]:
                first = starts[row]
                ids[first] = key(f"{scope}/{ids[first]}")
        self._separate_tenants(batch)
        self._compare_turns(batch)
        self._extend("leaf", self._interner.intern(starts, ids))
        self._extend("blocks", blocks)
        self._count_hashed(blocks, batch.input_tokens)

    def _require_room(self, interner: Interner, more: int, what: str) -> None:
        """Raise InputError where `more` entries could exceed INT32_MAX; `what`: their name."""
        if interner.count + more > INT32_MAX:
            raise InputError(
                f"more than {INT32_MAX:,} distinct {what}",
                where=self._rejects.path,
                remedy="split the trace, or take part of it",
            )

    def _count_hashed(self, blocks: Int64s, input_tokens: Int64s) -> None:
        self.gaps.unhashed += int(np.count_nonzero(blocks == 0))
        full = input_tokens // self.block_size
        self.gaps.short += int(np.count_nonzero((blocks > 0) & (blocks < full)))

    def _compare_turns(self, batch: RequestBatch) -> None:
        """Count `following`, `repeating` and `growing` requests, see `Gaps`."""
        inputs, gaps = batch.input_tokens.tolist(), self.gaps
        for row, session in enumerate(batch.field("session_id") or ()):
            if session is None or not batch.blocks[row]:
                continue
            first = int(batch.ids[batch.starts[row]])
            known, longest = self._begun.get(key(session), (None, 0))
            if known is None:
                self._heads.add(first)
            else:
                gaps.following += 1
                if first == known or first in self._heads:
                    gaps.repeating += 1
                elif inputs[row] >= longest:
                    gaps.growing += 1
            self._begun[key(session)] = first, max(longest, inputs[row])

    def replace_paths(self, paths: Sequence[Sequence[int]], input_tokens: Sequence[int]) -> None:
        """Replace each request's path (hash ids) and input tokens; the paths make a new trie."""
        blocks = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
        self._interner = Trie()
        leaf, at = np.zeros(len(paths), dtype=np.int32), 0
        while at < len(paths):
            ends = np.cumsum(blocks[at:])
            count = max(int(np.searchsorted(ends, _IDS_AT_ONCE, side="right")), 1)
            ids = np.fromiter(chain.from_iterable(paths[at : at + count]), dtype=np.int64)
            starts = np.concatenate([[0], ends[:count]])
            leaf[at : at + count] = self._interner.intern(starts, ids)
            at += count
        inputs = np.array(input_tokens, dtype=np.int64)
        for name, values in (("leaf", leaf), ("blocks", blocks), ("input_tokens", inputs)):
            self._columns[name] = array(_TYPECODES[name])
            self._extend(name, values)
        self.gaps.unhashed = self.gaps.short = 0
        self._count_hashed(blocks, inputs)

    def _separate_tenants(self, batch: RequestBatch) -> None:
        """Append tenants; give first blocks of all but the first new hash ids, unless isolated."""
        count = len(batch)
        before = len(self) - count
        columns = [
            self._filled(name)[before:] if len(self._columns[name]) > before else [NONE] * count
            for name in TENANT
        ]
        if all(column.count(column[0]) == count for column in columns):  # the usual case
            tenant = cast(Tenant, tuple(column[0] for column in columns))
            numbers = np.full(count, self.tenants.setdefault(tenant, len(self.tenants)))
        else:
            tenants: list[Tenant] = list(zip(*columns, strict=True))
            for tenant in dict.fromkeys(tenants):
                self.tenants.setdefault(tenant, len(self.tenants))
            numbers = np.array([self.tenants[tenant] for tenant in tenants])
        if numbers.any() and not self._isolated:
            known = list(self.tenants)
            for row in np.flatnonzero((numbers > 0) & (batch.blocks > 0)).tolist():
                at = batch.starts[row]
                own = int(batch.ids[at])
                batch.ids[at] = key(f"{known[numbers[row]]}/{own}")
                self.own_ids[int(batch.ids[at])] = own
        self._extend("tenant", numbers)

    def _append_times(self, batch: RequestBatch) -> None:
        """Append each request's arrival (s), and the first row of its session and clock (-1: none).

        A request without a time arrives with its session's previous request, or a stated delay
        after that request's answer; without a previous request, with the row before it.
        """
        timed = len(batch.arrivals_s) == len(batch)
        if timed and not (batch.field("session_id") or batch.field("clock")):
            self._extend("arrival_s", batch.arrivals_s)
            return
        before, arrival_s = len(self) - len(batch), self._columns["arrival_s"]
        sessions, clocks = self._filled("session", before), self._filled("clock", before)
        for row in batch.requests:
            previous, answer_s, measured, at = -1, 0.0, True, len(arrival_s)
            if row.session_id is not None:
                session = key(row.session_id)
                previous, answer_s, measured = self._last_in_session.get(session, (-1, 0.0, True))
                stated_s = row.duration_s or 0.0
                is_stated = 0 < stated_s <= _LONGEST_ANSWER_S
                took_s = stated_s if is_stated else row.output_tokens * _TOKEN_S
                self._last_in_session[session] = at, took_s, is_stated
            if previous >= 0:
                sessions.append(sessions[previous])
            else:
                sessions.append(-1 if row.session_id is None else at)
            if row.clock is not None:
                clocks.append(self._first_on_clock.setdefault(key(row.clock), at))
            elif previous >= 0:
                clocks.append(clocks[previous])
            else:  # of a session without a first arrival nothing says when it begins
                clocks.append(-1 if row.arrival_s is not None else sessions[at])
            if row.arrival_s is not None:
                arrival_s.append(row.arrival_s)
                continue
            self.gaps.untimed += 1
            if previous >= 0:
                waited_s = 0.0
                if row.delay_s is not None:
                    waited_s = answer_s + row.delay_s
                    self.gaps.delayed += 1
                    self.gaps.assumed += not measured
                arrival_s.append(float(arrival_s[previous]) + waited_s)
            else:
                arrival_s.append(float(arrival_s[-1]) if arrival_s else 0.0)

    def _extend(self, name: str, values: NDArray[Any]) -> None:
        """Append values of the latest requests, all of which fit the column's type."""
        column = self._filled(name, len(self) - len(values))
        column.frombytes(values.astype(column.typecode).tobytes())

    def _filled(self, name: str, requests: int | None = None) -> array[Any]:
        """Return a column, padded with missing entries up to `requests` (None: all of them)."""
        column = self._columns[name]
        missing = (len(self) if requests is None else requests) - len(column)
        if missing > 0:
            column.extend(array(column.typecode, [_none(name)]) * missing)
        return column


def _none(name: str) -> int:
    """Return the value that marks a missing entry in a column."""
    return _ABSENT.get(name, NONE)
