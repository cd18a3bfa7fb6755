"""A trace from the KV-cache events of vLLM or SGLang: requests as far as events show them.

Events name the blocks stored, the block before them and their session, and the blocks removed, but
not where requests begin and end. So a chain of blocks that keeps growing counts as one request:

- Its first blocks are its prompt. Several more in one event are the prompt's next chunk if the step
  just before stored about as many blocks as the largest step, and so may have cut the prompt; else
  they are the prompt of a next turn.
- Single blocks after that are output, as long as their distances in time are usual for the chain,
  or at first for all chains. A much later block is a next turn's prompt.

Partial blocks do not show, nor do prompts found whole in the cache. For requests with
`kv_cache_report_mode`, blocks found in the cache are published as if they were stored again: this
begins a request.

SGLang stores a prompt's blocks once they are computed and an output's once the request has ended,
so blocks that continue a prompt, and are not its next chunk, are the output and end the request.

Models with several KV groups publish each block once per group: only the first group that keeps
whole prefixes is followed.

Source: vLLM 0.32.0, vllm/distributed/kv_events.py (ZmqEventPublisher, BlockStored, BlockRemoved);
SGLang 0.5.23, sglang/srt/disaggregation/kv_events.py and mem_cache/events.py, encoded the same way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct, field

from kvscope.core.errors import EngineError
from kvscope.learning.conversations import UNKNOWN, Sessions
from kvscope.vllm_plugin.recording import Hashes, TraceLine

Hash = bytes | int
QUIET_S = 5.0
MOST_KNOWN = (
    1 << 20
)  # blocks remembered, several times an engine's; more only if events were missed
_PARTIAL = ("sliding", "chunked", "mamba")  # kinds of groups that drop a prefix's beginning
FULL_STEP = 0.75  # of the most blocks stored in one step: it may have cut a prompt
LEAST_CHUNK = 2048  # tokens: the smallest chunk of a prompt that SGLang chooses by itself
NEXT_STEPS = 2  # batches until a prompt's next chunk: one may store less than a block
PAUSE = 4.0  # so many times the usual distance of output blocks
_FEW, _RECENT = 8, 256  # distances that make a pace, and that it looks back on


class BlockStored(msgspec.Struct, tag=True):
    """vLLM's event of this name, except for its token ids, which are not decoded."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    block_size: int
    medium: str | None = None
    session_id: str | None = None
    lora_name: str | None = None
    lora_id: int | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """vLLM's event of this name."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """vLLM's event of this name."""


class EventBatch(msgspec.Struct, array_like=True):
    """The events of one step of the engine, which ended at `ts` (seconds since 1970)."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class _Chain(Struct):
    """A chain of blocks that may still grow: a request, as far as events show it.

    `path` has the hashes from the prompt's head on: `prompt_blocks` of the prompt, and then
    `output_blocks`, the first of these stored at `output_start_s`. It began at `start_s` and last
    grew at `last_s`, in event batch number `batch`; `cut` says whether that step may have cut its
    prompt. `was_cached`: it began with cached blocks alone, and has not grown since.
    """

    path: list[Hash]
    start_s: float
    last_s: float
    block_size: int
    session: str | None
    adapter: str | int | None
    prompt_blocks: int
    was_cached: bool
    batch: int
    cut: bool = False
    output_blocks: int = 0
    output_start_s: float = 0.0

    def pace_s(self) -> float | None:
        """Return the mean time between the chain's output blocks, None for fewer than two."""
        if self.output_blocks < 2:
            return None
        return (self.last_s - self.output_start_s) / (self.output_blocks - 1)


class BlockChains(Struct):
    """Assembles requests from events; its counts show how many requests it may have missed.

    A chain ends at the latest when it has not grown for `quiet_s` seconds. At most `most_known`
    blocks are remembered, the latest. `outputs_at_end`: outputs are stored when their request has
    ended, as by SGLang.

    Counts: of `stored` blocks, `unknown` ones follow a block that is not, or no longer, known.
    `reported` requests began with their cached blocks. `unsure` counts first output blocks of
    chains, each of which may be a short turn.

    State: `_above` has the block before each known one, `_growing` the chains by their last block.
    `_group` is (index, whether it keeps whole prefixes) of the KV group that is followed, None
    until an event names one. `_start_s` is the time of the first batch, `_batch` the number of
    batches, `_ended` of requests that ended, `_computed` of blocks computed in this batch (at most
    `_most_computed` in any). `_distances_s` are the latest times between two output blocks of a
    chain, over all chains, and `_pace_s` is their median, infinite at first.
    """

    quiet_s: float = QUIET_S
    outputs_at_end: bool = False
    most_known: int = MOST_KNOWN
    stored: int = 0
    unknown: int = 0
    reported: int = 0
    unsure: int = 0
    _hashes: Hashes = field(default_factory=Hashes)
    _sessions: Sessions = field(default_factory=Sessions)
    _above: dict[Hash, Hash | None] = field(default_factory=dict)
    _growing: dict[Hash, _Chain] = field(default_factory=dict)
    _group: tuple[int, bool] | None = None  # the one followed, and if it keeps whole prefixes
    _start_s: float | None = None
    _ended: int = 0
    _batch: int = 0
    _computed: int = 0  # blocks in this batch
    _most_computed: int = 0  # in any
    _distances_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _pace_s: float = math.inf

    def take(self, batch: EventBatch) -> list[TraceLine]:
        """Process a batch of events; return the trace lines of requests ended by its time."""
        if self._start_s is None:
            self._start_s = batch.ts
        self._batch += 1
        lines = self.ended(batch.ts)
        self._computed = 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self._above.clear()
            elif not self._follows(event):
                continue
            elif isinstance(event, BlockRemoved):
                for key in event.block_hashes:
                    self._above.pop(key, None)
            elif event.block_hashes:
                lines += self._stored(event, batch.ts)
        self._most_computed = max(self._most_computed, self._computed)
        full = self._computed >= max(FULL_STEP * self._most_computed, 1)
        for chain in self._growing.values() if full else ():
            tokens = self._computed * chain.block_size
            chunks = not self.outputs_at_end or tokens >= LEAST_CHUNK
            chain.cut = chain.batch == self._batch and chunks
        return lines

    def _follows(self, event: BlockStored | BlockRemoved) -> bool:
        """Return whether an event concerns this GPU and the tracked KV group."""
        if event.medium not in {None, "GPU"} or event.locality == "REMOTE":
            return False
        if event.group_idx is None:
            return True
        if isinstance(event, BlockStored):
            kind = event.kv_cache_spec_kind or ""
            keeps = not any(word in kind for word in _PARTIAL)
            if self._group is None or (keeps and not self._group[1]):
                self._group = event.group_idx, keeps
                self._above.clear()
                self._growing.clear()
        return self._group is not None and event.group_idx == self._group[0]

    def ended(self, now_s: float) -> list[TraceLine]:
        """Return the trace lines of the chains that have not grown for `quiet_s`."""
        over = [tip for tip, chain in self._growing.items() if now_s - chain.last_s > self.quiet_s]
        return self._lines(*(self._growing.pop(tip) for tip in over))

    def _stored(self, event: BlockStored, now_s: float) -> list[TraceLine]:
        hashes, above = event.block_hashes, event.parent_block_hash
        self.stored += len(hashes)
        chain = self._growing.pop(above, None) if above is not None else None
        head = self._path(above) if chain is None else chain.path
        if head is None:
            self.unknown += len(hashes)
            return []
        was_cached = above is None and all(key in self._above for key in hashes)
        self._computed += 0 if was_cached else len(hashes)
        self._remember(hashes, above)
        same = self._growing.pop(hashes[-1], None)  # another one that ends in the same block
        if chain is not None and self._continues(chain, event, now_s):
            if self.outputs_at_end and not (chain.was_cached or self._is_chunk(chain)):
                chain.output_blocks += len(hashes)
                return self._lines(chain, same)
            # at least one token of a prompt is never cached, so what follows is prompt first
            if len(hashes) > 1 or chain.was_cached:
                chain.prompt_blocks += len(hashes)
            else:
                self._count_output(chain, now_s)
            chain.path += hashes
            chain.last_s, chain.batch = now_s, self._batch
            chain.was_cached = chain.cut = False
            self._growing[hashes[-1]] = chain
            return self._lines(same)
        if was_cached and same is not None and same.was_cached and same.session == event.session_id:
            same.last_s = now_s  # it waits for room, and looks again with every step
            self._growing[hashes[-1]] = same
            return []
        self.reported += was_cached
        path = [*head, *hashes]
        self._growing[hashes[-1]] = _Chain(
            path,
            now_s,
            now_s,
            event.block_size,
            event.session_id,
            event.lora_name or event.lora_id or None,
            len(path),
            was_cached,
            self._batch,
        )
        return self._lines(chain, same)

    def _continues(self, chain: _Chain, event: BlockStored, now_s: float) -> bool:
        """Return whether an event belongs to a chain's request, and not to a next turn's prompt."""
        if chain.session != event.session_id:
            return False
        if chain.was_cached or self.outputs_at_end:
            return True
        if len(event.block_hashes) > 1:
            return self._is_chunk(chain)
        return now_s - chain.last_s <= PAUSE * (chain.pace_s() or self._pace_s)

    def _is_chunk(self, chain: _Chain) -> bool:
        """Return whether several blocks added to a chain now are the next chunk of its prompt."""
        directly = self._batch - chain.batch <= NEXT_STEPS
        return chain.cut and directly and not chain.output_blocks

    def _count_output(self, chain: _Chain, now_s: float) -> None:
        """Count one more output block, and update the median pace of all chains."""
        if not chain.output_blocks:
            self.unsure += 1
            chain.output_start_s = now_s
        else:
            self._distances_s.append(now_s - chain.last_s)
            if len(self._distances_s) >= _FEW:
                self._pace_s = median(self._distances_s)
        chain.output_blocks += 1

    def _remember(self, hashes: list[Hash], above: Hash | None) -> None:
        """Note each block's predecessor; beyond `most_known` blocks, the oldest are forgotten."""
        known = self._above
        for key, before in zip(hashes, [above, *hashes], strict=False):
            known.pop(key, None)
            known[key] = before
        while len(known) > self.most_known:
            del known[next(iter(known))]

    def _lines(self, *over: _Chain | None) -> list[TraceLine]:
        chains = [chain for chain in over if chain is not None]
        return [self._line(chain) for chain in sorted(chains, key=lambda chain: chain.start_s)]

    def _path(self, tip: Hash | None) -> list[Hash] | None:
        """Return the hashes of the blocks from a prompt's first one to `tip`.

        None if one of them is unknown; an empty list where `tip` is None.
        """
        path = []
        while tip is not None:
            if tip not in self._above:
                return None
            path.append(tip)
            tip = self._above[tip]
        return path[::-1]

    def _line(self, chain: _Chain) -> TraceLine:
        number, self._ended = self._ended, self._ended + 1
        parent: int | None = None
        turn: int | None = None
        if chain.session is not None:
            parent, turn = self._sessions.begin(chain.session, number, None)
        size = chain.block_size
        keys = [_bytes(key) for key in chain.path[: chain.prompt_blocks]]
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
            "lora_name": chain.adapter,
        }


def batches(endpoint: str, patience_s: float = 1.0) -> Generator[tuple[int, EventBatch] | None]:
    """Yield (number, batch) as the engine publishes event batches at a ZMQ endpoint.

    Yields None after `patience_s` without a batch; gaps in the numbers are lost batches. Raises
    EngineError if the endpoint is invalid, its messages are not vLLM's events, or pyzmq is missing.
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
        decode = msgspec.msgpack.Decoder(EventBatch).decode
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


def _bytes(key: Hash) -> bytes:
    return key if isinstance(key, bytes) else key.to_bytes(16, "big", signed=True)
