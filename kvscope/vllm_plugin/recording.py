"""Requests as an engine serves them, written as a trace: hashes, lengths and times, never content.

One line of the Qwen-Bailian format a finished request, with three keys more: `block_size`,
`cached_tokens` and `ttft_ms`. Hashes are keyed by a salt that is made up for each recording and
kept nowhere, so nobody can tell from a recording whether a known prompt is in it.
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
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

from kvscope.learning.conversations import RequestHints, Sessions, read_hints
from kvscope.learning.observer import Observer, Request, log

MOST_WAITING = 10_000
ROTATE_BYTES = 64 << 20

Line = Mapping[str, Any]


class Lines:
    """JSON lines in `folder`/`name`-00001.jsonl and so on, written by a thread of their own.

    `put` takes a function that makes the line, which is called in that thread. Beyond
    `most_waiting` lines are dropped, and `dropped` counts them. A file that has reached
    `rotate_bytes` is closed. `failure` is what ended the writing, such as a full disk; nothing is
    written after that. Raises OSError where the folder cannot be made.
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
        self._folder, self._name, self._rotate_bytes = folder, name, rotate_bytes
        self._waiting: queue.Queue[Callable[[], Line] | None] = queue.Queue(most_waiting)
        self._thread = threading.Thread(target=self._write, name="kvscope-record", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, make: Callable[[], Line]) -> None:
        """Have one more line written. Never waits."""
        try:
            self._waiting.put_nowait(make)
        except queue.Full:
            self.dropped += 1

    def close(self, patience_s: float = 10.0) -> None:
        """Write what waits, as far as there is time."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=patience_s)
            except queue.Full:
                return
            self._thread.join(patience_s)

    def _write(self) -> None:
        file: TextIO | None = None
        try:
            while (make := self._waiting.get()) is not None:
                if self.failure is not None:
                    self.dropped += 1
                    continue
                try:
                    file = self._written(file, make())
                except Exception as error:  # noqa: BLE001  (told by who looks at `failure`)
                    self.failure = error
                    self.dropped += 1
        finally:
            if file is not None and not file.closed:
                file.close()

    def _written(self, file: TextIO | None, line: Line) -> TextIO:
        if file is None or file.tell() >= self._rotate_bytes:
            if file is not None:
                file.close()
            self.files += 1
            path = self._folder / f"{self._name}-{self.files:05}.jsonl"
            file = path.open("x", encoding="utf-8")
        file.write(json.dumps(line, separators=(",", ":")) + "\n")
        if self._waiting.empty():
            file.flush()
        self.written += 1
        return file


SALT_BYTES = 32


class Hashes:
    """Salted hashes: whole numbers below 2^63."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(SALT_BYTES)

    def of(self, keys: Iterable[bytes]) -> list[int]:
        """The hash of each of an engine's hashes."""
        salt = self._salt
        return [
            int.from_bytes(blake2b(bytes(key), key=salt, digest_size=8).digest(), "big") >> 1
            for key in keys
        ]


class _Seen:
    """What is known of a request so far."""

    __slots__ = ("cached_tokens", "number", "parent", "request", "says", "ttft_s", "turn")

    def __init__(self, number: int, request: Request, says: RequestHints) -> None:
        self.number = number
        self.request = request
        self.says = says
        self.turn = says.turn
        self.parent: int | None = None  # -1: it begins a session; None: nobody said
        self.cached_tokens = -1
        self.ttft_s: float | None = None


class Recording(Observer):
    """Writes a line for each finished request to files in `folder`."""

    what = "kvscope's recording has failed"

    def __init__(
        self,
        folder: Path,
        block_size: int,
        clock: Callable[[], float] = time.time,
        lines: Lines | None = None,
    ) -> None:
        self.block_size = block_size
        self.clock = clock
        self._start_s = clock()
        started = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._start_s))
        self.lines = lines or Lines(folder, f"recording-{started}-{os.getpid()}")
        self._hashes = Hashes()
        self._sessions = Sessions()
        self._seen: dict[str, _Seen] = {}
        self._awaited: dict[str, _Seen] = {}
        self._arrived = 0
        self._told_of_drops = False

    def arrived(self, request: Request) -> None:
        """Note what it says of itself."""
        if request.request_id in self._seen:  # more input of one that streams it
            return
        seen = _Seen(self._arrived, request, read_hints(request))
        self._arrived += 1
        if seen.says.session is not None:
            begun = self._sessions.begin(seen.says.session, seen.number, seen.says.turn)
            seen.parent, seen.turn = begun
        self._seen[request.request_id] = seen

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """Note what it found in the cache."""
        seen = self._seen.get(request_id)
        if seen is not None and seen.cached_tokens < 0:
            seen.cached_tokens = hit_tokens
            self._awaited[request_id] = seen

    def updated(self) -> None:
        """Note the time of first tokens."""
        if not self._awaited:
            return
        now_s = self.clock()
        for name in [name for name, seen in self._awaited.items() if _has_token(seen.request)]:
            seen = self._awaited.pop(name)
            seen.ttft_s = now_s - seen.request.arrival_time

    def releasing(self, request: Request) -> None:
        """Have the line written, if it has finished."""
        if not request.is_finished():
            return
        seen = self._seen.pop(request.request_id, None)
        self._awaited.pop(request.request_id, None)
        if seen is None or seen.cached_tokens < 0:
            return
        if seen.ttft_s is None and _has_token(request):
            seen.ttft_s = self.clock() - request.arrival_time
        inputs, outputs = request.num_prompt_tokens, request.num_output_tokens
        keys = request.block_hashes[: inputs // self.block_size]
        arrival_s = max(request.arrival_time - self._start_s, 0.0)
        self.lines.put(lambda: self._line(seen, keys, inputs, outputs, arrival_s))
        if self.lines.dropped and not self._told_of_drops:
            self._told_of_drops = True
            failed = self.lines.failure
            log.warning("kvscope's recording drops requests: %s", failed or "the disk is too slow")

    def closing(self) -> None:
        """Write the rest and say how many there are."""
        self.lines.close()
        log.info("kvscope recorded %s requests, %s dropped", self.lines.written, self.lines.dropped)

    def give_up(self) -> None:
        """Remember nothing of the requests that are being served."""
        self._seen.clear()
        self._awaited.clear()

    def _line(
        self, seen: _Seen, keys: list[bytes], inputs: int, outputs: int, arrival_s: float
    ) -> Line:
        ttft_s = seen.ttft_s
        return {
            "chat_id": seen.number,
            "parent_chat_id": seen.parent,
            "timestamp": round(arrival_s, 6),
            "input_length": inputs,
            "output_length": outputs,
            "type": seen.says.type,
            "turn": seen.turn,
            "hash_ids": self._hashes.of(keys),
            "block_size": self.block_size,
            "cached_tokens": seen.cached_tokens,
            "ttft_ms": round(ttft_s * 1e3, 3) if ttft_s is not None else None,
        }


def _has_token(request: Request) -> bool:
    return bool(request.num_output_tokens > 0)
