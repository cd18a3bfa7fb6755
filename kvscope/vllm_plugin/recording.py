"""Requests as an engine serves them, written as a trace: hashes, lengths and times, never content.

One line of the Qwen-Bailian format per finished request, with more keys: `block_size`, `model`,
`lora_name`, `cache_salt`, `cached_tokens`, `ttft_ms`, `queue_ms` and `duration_ms`. Hashes, also
those of cache salts, are keyed by a random salt, one per recording and stored nowhere, so that a
known prompt cannot be found in the trace.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvscope.core.files import LineFile
from kvscope.learning.conversations import RequestHints, Sessions, read_hints
from kvscope.learning.observer import Observer, Request, log

MOST_WAITING = 10_000
ROTATE_BYTES = 64 << 20
SALT_BYTES = 32

TraceLine = Mapping[str, Any]


class LineWriter:
    """JSON lines in `folder`/`name`-00001.jsonl and so on, written by a thread of its own.

    `put` takes a function that makes the line, called in that thread; the queue is bounded, so this
    is no executor. Lines beyond `most_waiting` are dropped, and `dropped` counts them. A file that
    has reached `rotate_bytes` is closed. `failure` is the error that ended the writing, such as a
    full disk; `written` counts lines, and files contain only whole ones. Raises OSError where the
    folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.written = self.dropped = self.files = 0
        self.failure: Exception | None = None
        self._file: LineFile | None = None
        self._folder, self._name, self._rotate_bytes = folder, name, rotate_bytes
        self._waiting: queue.Queue[Callable[[], TraceLine] | None] = queue.Queue(most_waiting)
        self._thread = threading.Thread(target=self._run, name="kvscope-record", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, make: Callable[[], TraceLine]) -> None:
        """Queue a line, or drop it if the queue is full. Never waits."""
        try:
            self._waiting.put_nowait(make)
        except queue.Full:
            self.dropped += 1

    def close(self, patience_s: float = 10.0) -> None:
        """Write the waiting lines, as far as twice `patience_s` seconds allow."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=patience_s)
            except queue.Full:
                return
            self._thread.join(patience_s)

    def _run(self) -> None:
        while (make := self._waiting.get()) is not None:
            if self.failure is not None:
                self.dropped += 1
                continue
            try:
                self._write(make())
            except Exception as error:  # noqa: BLE001  (readers of `failure` report it)
                self.failure = error
                self.dropped += 1
        if self._file is not None:
            with suppress(OSError):  # a quota or a server that fails late; all lines were written
                self._file.close()

    def _write(self, line: TraceLine) -> None:
        if self._file is None or self._file.size >= self._rotate_bytes:
            if self._file is not None:
                self._file.close()
            self.files += 1
            path = self._folder / f"{self._name}-{self.files:05}.jsonl"
            self._file = LineFile(path, exclusive=True)
        self._file.write(json.dumps(line, separators=(",", ":")))
        self.written += 1


class Hashes:
    """Hashes keyed by a random salt, one per object and stored nowhere: integers below 2^63."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(SALT_BYTES)

    def of(self, keys: Iterable[bytes]) -> list[int]:
        """Return the hash of each key: an engine's block hashes, or a cache salt."""
        salt = self._salt
        return [
            int.from_bytes(blake2b(bytes(key), key=salt, digest_size=8).digest(), "big") >> 1
            for key in keys
        ]


class _RecordedRequest(Struct):
    """A request being served, and its record so far; `parent` is the session's previous request.

    `cached_tokens` is -1 until it is admitted, `ttft_s` None until its first token.
    """

    number: int
    request: Request
    hints: RequestHints
    turn: int | None
    parent: int | None = None  # -1: it begins a session; None: unknown
    cached_tokens: int = -1
    queue_s: float = 0.0
    ttft_s: float | None = None


class Recording(Observer):
    """Records each finished request as a line in files in `folder`.

    `model` is the name of the served model, if known. `clock` returns seconds since 1970. `lines`
    replaces the writer of the files.
    """

    what = "kvscope's recording has failed"

    def __init__(
        self,
        folder: Path,
        block_size: int,
        clock: Callable[[], float] = time.time,
        lines: LineWriter | None = None,
        model: str | None = None,
    ) -> None:
        self.block_size = block_size
        self.model = model
        self.clock = clock
        self._start_s = clock()
        started = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._start_s))
        self.lines = lines or LineWriter(folder, f"recording-{started}-{os.getpid()}")
        self._hashes = Hashes()
        self._sessions = Sessions()
        self._requests: dict[str, _RecordedRequest] = {}
        self._awaiting_token: dict[str, _RecordedRequest] = {}
        self._arrived = 0
        self._warned = False

    def arrived(self, request: Request) -> None:
        """Note the request's hints and its session's previous request.

        Probes are ignored: requests that `kvscope calibrate` sends, marked with `kvscope_probe`.
        """
        if request.request_id in self._requests:  # more input of one that streams it
            return
        hints = read_hints(request)
        if hints.probe:
            return
        recorded = _RecordedRequest(self._arrived, request, hints, hints.turn)
        self._arrived += 1
        if hints.session is not None:
            recorded.parent, recorded.turn = self._sessions.begin(
                hints.session, recorded.number, hints.turn
            )
        self._requests[request.request_id] = recorded

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """Note the tokens found in the cache, and the time in the waiting queue."""
        recorded = self._requests.get(request_id)
        if recorded is not None and recorded.cached_tokens < 0:
            recorded.cached_tokens = hit_tokens
            recorded.queue_s = self.clock() - recorded.request.arrival_time
            self._awaiting_token[request_id] = recorded

    def updated(self) -> None:
        """Note the time for requests that have just got their first token."""
        if not self._awaiting_token:
            return
        now_s = self.clock()
        waiting = self._awaiting_token.items()
        for name in [name for name, recorded in waiting if _has_token(recorded.request)]:
            recorded = self._awaiting_token.pop(name)
            recorded.ttft_s = now_s - recorded.request.arrival_time

    def releasing(self, request: Request) -> None:
        """Queue the request's line, if it has finished."""
        if not request.is_finished():
            return
        recorded = self._requests.pop(request.request_id, None)
        self._awaiting_token.pop(request.request_id, None)
        if recorded is None or recorded.cached_tokens < 0:
            return
        duration_s = self.clock() - request.arrival_time
        if recorded.ttft_s is None and _has_token(request):
            recorded.ttft_s = duration_s
        inputs, outputs = request.num_prompt_tokens, request.num_output_tokens
        adapter, salt = request.lora_request, request.cache_salt
        arrival_s = max(request.arrival_time - self._start_s, 0.0)

        def line() -> TraceLine:
            ttft_s = recorded.ttft_s
            return {
                "chat_id": recorded.number,
                "parent_chat_id": recorded.parent,
                "timestamp": round(arrival_s, 6),
                "input_length": inputs,
                "output_length": outputs,
                "type": recorded.hints.type,
                "turn": recorded.turn,
                "hash_ids": self._hashes.of(_content_hashes(request)[: inputs // self.block_size]),
                "block_size": self.block_size,
                "model": self.model,
                "lora_name": adapter.lora_name if adapter is not None else None,
                "cache_salt": str(*self._hashes.of([salt.encode()])) if salt else None,
                "cached_tokens": recorded.cached_tokens,
                "ttft_ms": round(ttft_s * 1e3, 3) if ttft_s is not None else None,
                "queue_ms": round(recorded.queue_s * 1e3, 3),
                "duration_ms": round(duration_s * 1e3, 3),
            }

        self.lines.put(line)
        self._warn()

    def _warn(self) -> None:
        """Log once that the recording lacks requests, and why."""
        if self.lines.dropped and not self._warned:
            self._warned = True
            why = self.lines.failure or "the disk is too slow"
            log.warning("kvscope's recording drops requests: %s", why)

    def closing(self) -> None:
        """Write the waiting lines and log the counts."""
        self.lines.close()
        self._warn()
        log.info("kvscope recorded %s requests, %s dropped", self.lines.written, self.lines.dropped)

    def give_up(self) -> None:
        """Forget the requests that are being served."""
        self._requests.clear()
        self._awaiting_token.clear()


def _content_hashes(request: Request) -> list[Any]:
    """Return the hashes that the blocks would have without the request's salt and adapter.

    A line has separate fields for these. If vLLM's hasher is missing or fails, return the hashes
    that the blocks have, with salt and adapter in them.

    Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (generate_block_hash_extra_keys).
    """
    hasher = getattr(request, "_block_hasher", None)
    if hasher is not None and (request.cache_salt or request.lora_request is not None):
        with suppress(Exception):  # not worth the recording
            plain = copy(request)
            plain.cache_salt = plain.lora_request = None
            plain.block_hashes = []
            return list(hasher(plain))
    return list(request.block_hashes)


def _has_token(request: Request) -> bool:
    return bool(request.num_output_tokens > 0)
