"""A trace from vLLM's stream of KV-cache events: what can be known of requests from outside.

The stream tells which blocks were stored, behind which, in which session, and which were removed.
It does not tell where requests begin and end, so a chain of blocks that grows without a pause is
taken for one request: its first blocks, and others that come several at once, for its prompt,
single ones after that for its output; several at once after output are a next turn's prompt. What
fills no block, or is found in the cache whole, is not seen. Where requests ask for it
(`kv_cache_report_mode`) what they find is published as if it were stored again, which begins one.

Source: vLLM 0.32.0, vllm/distributed/kv_events.py (ZmqEventPublisher, BlockStored, BlockRemoved).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvscope.core.errors import EngineError
from kvscope.learning.conversations import UNKNOWN, Sessions
from kvscope.vllm_plugin.recording import Hashes, Line

Hash = bytes | int
QUIET_S = 5.0


class BlockStored(msgspec.Struct, tag=True):
    """As vLLM's, without the token ids, which are not even read."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    block_size: int
    medium: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """As vLLM's."""

    block_hashes: list[Hash]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """As vLLM's."""


class Batch(msgspec.Struct, array_like=True):
    """The events of one step of the engine, which ended at `ts` (seconds since 1970)."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


@dataclass(slots=True)
class _Growing:
    """A chain that may still grow; `found`: nothing of it has been stored since it began."""

    path: list[Hash]
    start_s: float
    last_s: float
    block_size: int
    session: str | None
    prompt_blocks: int
    found: bool
    output_blocks: int = 0


@dataclass(slots=True)
class Chains:
    """Requests, as far as events show them.

    `unknown` counts stored blocks that lie behind ones which nobody has told of.
    """

    quiet_s: float = QUIET_S
    unknown: int = 0
    _hashes: Hashes = field(default_factory=Hashes)
    _sessions: Sessions = field(default_factory=Sessions)
    _above: dict[Hash, Hash | None] = field(default_factory=dict)
    _growing: dict[Hash, _Growing] = field(default_factory=dict)
    _start_s: float | None = None
    _told: int = 0

    def take(self, batch: Batch) -> list[Line]:
        """The lines of the requests that have ended by a batch's time."""
        if self._start_s is None:
            self._start_s = batch.ts
        lines = self.ended(batch.ts)
        for event in batch.events:
            if isinstance(event, BlockStored):
                if event.block_hashes and event.medium in {None, "GPU"}:
                    lines += self._stored(event, batch.ts)
            elif isinstance(event, BlockRemoved):
                for one in event.block_hashes if event.medium in {None, "GPU"} else ():
                    self._above.pop(one, None)
            else:
                self._above.clear()
        return lines

    def ended(self, now_s: float) -> list[Line]:
        """The lines of the chains that have not grown for a while."""
        over = [tip for tip, one in self._growing.items() if now_s - one.last_s > self.quiet_s]
        return self._lines(*(self._growing.pop(tip) for tip in over))

    def _stored(self, event: BlockStored, now_s: float) -> list[Line]:
        hashes, above = event.block_hashes, event.parent_block_hash
        if above is not None and above not in self._above and above not in self._growing:
            self.unknown += len(hashes)
            return []
        found = above is None and all(one in self._above for one in hashes)
        before = above
        for one in hashes:
            self._above[one] = before
            before = one
        chain = self._growing.pop(above, None) if above is not None else None
        same = self._growing.pop(hashes[-1], None)  # another one that ends in the same block
        if chain is not None and _goes_on(chain, event):
            # at least one token of a prompt is never found, so what follows is prompt first
            if len(hashes) > 1 or chain.found:
                chain.prompt_blocks += len(hashes)
            else:
                chain.output_blocks += 1
            chain.path += hashes
            chain.last_s, chain.found = now_s, False
            self._growing[hashes[-1]] = chain
            return self._lines(same)
        if found and same is not None and same.found and same.session == event.session_id:
            same.last_s = now_s  # it waits for room, and looks again with every step
            self._growing[hashes[-1]] = same
            return []
        path = [*self._path(above), *hashes]
        self._growing[hashes[-1]] = _Growing(
            path, now_s, now_s, event.block_size, event.session_id, len(path), found
        )
        return self._lines(chain, same)

    def _lines(self, *over: _Growing | None) -> list[Line]:
        chains = [one for one in over if one is not None]
        return [self._line(one) for one in sorted(chains, key=lambda one: one.start_s)]

    def _path(self, tip: Hash | None) -> list[Hash]:
        path = []
        while tip is not None:
            path.append(tip)
            tip = self._above.get(tip)
        return path[::-1]

    def _line(self, chain: _Growing) -> Line:
        number, self._told = self._told, self._told + 1
        parent: int | None = None
        turn: int | None = None
        if chain.session is not None:
            parent, turn = self._sessions.begin(chain.session, number, None)
        size = chain.block_size
        keys = [_bytes(one) for one in chain.path[: chain.prompt_blocks]]
        return {
            "chat_id": number,
            "parent_chat_id": parent,
            "timestamp": round(chain.start_s - (self._start_s or 0.0), 6),
            "input_length": chain.prompt_blocks * size,
            "output_length": max(chain.output_blocks * size, 1),
            "type": UNKNOWN,
            "turn": turn,
            "hash_ids": self._hashes.of(keys),
            "block_size": size,
        }


def batches(endpoint: str, patience_s: float = 1.0) -> Iterator[tuple[int, Batch] | None]:
    """(number, batch) as the engine publishes them at a ZMQ endpoint; None after `patience_s`.

    Numbers that are left out were missed. Raises EngineError where there is no such endpoint, or
    what comes is nothing that vLLM sends.
    """
    try:
        import zmq
    except ImportError as error:
        raise EngineError(
            "needs pyzmq", where="--kv-events", remedy="pip install pyzmq (vLLM brings it too)"
        ) from error
    context: Any = zmq.Context()
    socket = context.socket(zmq.SUB)
    try:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)
        decode = msgspec.msgpack.Decoder(Batch).decode
        while True:
            if not socket.poll(int(patience_s * 1000)):
                yield None
                continue
            _, number, payload = socket.recv_multipart()
            yield int.from_bytes(number, "big"), decode(payload)
    except zmq.ZMQError as error:
        raise EngineError(
            str(error), where=endpoint, remedy="name it as in --kv-events-config"
        ) from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise EngineError(f"not vLLM's events: {error}", where=endpoint) from error
    finally:
        context.destroy(linger=0)


def _goes_on(chain: _Growing, event: BlockStored) -> bool:
    """Whether an event is of the same request; several blocks after output are a next turn's."""
    prompt_again = len(event.block_hashes) > 1 and chain.output_blocks > 0
    return chain.session == event.session_id and not prompt_again


def _bytes(one: Hash) -> bytes:
    return one if isinstance(one, bytes) else one.to_bytes(16, "big", signed=True)
