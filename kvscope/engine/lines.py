"""Lines that are written beside an engine: never waited for, rather dropped and counted."""

from __future__ import annotations

import atexit
import json
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

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
