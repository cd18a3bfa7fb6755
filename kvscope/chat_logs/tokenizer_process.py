"""The library of tokenizers in a process of its own, so that whatever it does costs one text.

It may panic and print the text, abort its process, take all memory or never end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from array import array
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from threading import Lock
from typing import Any

from kvscope.chat_logs.hashing import Tokens

LIMIT_S = 30.0  # for an answer, and a second more for so many characters:
_CHARACTERS_A_SECOND = 50_000
_START_S = 60.0


class TokenizerProcess:
    """Encodes texts by the tokenizer that the `settings` of tokenizer.json make."""

    def __init__(self, settings: str) -> None:
        self._settings = settings
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def ids(self, texts: Sequence[str], *, special: bool = False) -> list[Tokens]:
        """Return the token ids of each text; raise what is named as the library's error."""
        return self._asked("ids", texts, special=special)

    def ends(self, text: str) -> Tokens:
        """Return the character behind each token of a text."""
        return self._asked("ends", [text], special=False)[0]

    def _asked(self, what: str, texts: Sequence[str], *, special: bool) -> list[Tokens]:
        limit_s = LIMIT_S + sum(map(len, texts)) / _CHARACTERS_A_SECOND
        with self._lock:
            try:
                if self._pipe is None:
                    self._pipe = self._started()
                self._pipe.send((what, [*texts], special))
                answer = self._pipe.recv() if self._pipe.poll(limit_s) else "TimeoutError"
            except (EOFError, OSError):
                answer = "Aborted"
            if answer in ("Aborted", "TimeoutError"):
                self.close()
        if isinstance(answer, str):
            raise type(answer, (RuntimeError,), {})
        return [array("I", each) for each in answer]

    def _started(self) -> Connection:
        """Start the process, and return the end of its pipe once it has the tokenizer."""
        own, its = Pipe()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a panic prints the text
            )
        own.send(self._settings)
        if not own.poll(_START_S) or own.recv() != "ready":
            raise EOFError
        return own

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    __del__ = close


_CODE = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve(sys.argv[1])"


def serve(handle: str) -> None:
    """Answer requests at a pipe until it is closed."""
    import tokenizers

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end decides
    with Connection(int(handle)) as pipe:
        tokenizer: Any = tokenizers.Tokenizer.from_str(pipe.recv())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        pipe.send("ready")
        while True:
            try:
                what, texts, special = pipe.recv()
            except EOFError:
                return
            pipe.send(_answer(tokenizer, what, texts, special=special))


def _answer(tokenizer: Any, what: str, texts: list[str], *, special: bool) -> list[bytes] | str:
    """Return token ids or ends of texts, or the name of what the library raises."""
    try:
        if what == "ends":
            offsets = tokenizer.encode(texts[0], add_special_tokens=False).offsets
            return [array("I", (end for _, end in offsets)).tobytes()]
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        return [array("I", each.ids).tobytes() for each in encodings]
    except BaseException as error:  # noqa: BLE001  (panics, too)
        return type(error).__name__
