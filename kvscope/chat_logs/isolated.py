"""A library in a separate process, so that its failures cost one request each.

It may panic and print a prompt, abort its process, take all memory or never end.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from threading import RLock
from typing import Any

from kvscope.core.memory import available_bytes
from kvscope.core.units import GIB
from kvscope.ingest.formats.base import BadLine

LIMIT_S = 30.0  # for an answer, and a second more for so many characters:
_CHARACTERS_A_SECOND = 50_000
_START_S = 60.0
_LEAST_BYTES = 2 * GIB
_SHARE = 0.8  # of the memory that is free at the start


class LibraryProcess:
    """A process that answers requests with the library of a module, by its `service(settings)`.

    `service` returns facts about the library, and the function that answers a request. Each timeout
    shortens the time limit of later requests.
    """

    def __init__(self, module: str, settings: Any) -> None:
        self._setup = module, settings
        self._lock = RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._timeouts = 0

    def start(self) -> Any:
        """Start the process and return the library's facts. Raises the same errors as `ask`."""
        with self._lock:
            return self._received(self._started(), _START_S)

    def ask(self, request: Any, characters: int) -> Any:
        """Return the answer to a request; its time limit grows with its `characters`.

        Raises BadLine, or a RuntimeError whose class has the name of the library's error; the text
        of that error is dropped, as it could be a prompt.
        """
        limit_s = LIMIT_S / (1 + self._timeouts) + characters / _CHARACTERS_A_SECOND
        with self._lock:
            if self._pipe is None:
                self.start()
            assert self._pipe is not None  # noqa: S101  (just started)
            with suppress(OSError):  # it has ended: nothing will be received
                self._pipe.send(request)
            return self._received(self._pipe, limit_s)

    def _received(self, pipe: Connection, limit_s: float) -> Any:
        try:
            kind, answer = pipe.recv() if pipe.poll(limit_s) else ("failed", "TimeoutError")
        except (EOFError, OSError):
            kind, answer = "failed", "Aborted"
        if kind == "failed":
            self._timeouts += answer == "TimeoutError"
            self.close()
        if kind == "refused":
            raise BadLine(answer)
        if kind != "answer":
            raise _named(answer)
        return answer

    def _started(self) -> Connection:
        """Start the process and return the pipe on which it will send the library's facts."""
        self._pipe, its = Pipe()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a panic prints the text
            )
        free, _ = available_bytes() or (_LEAST_BYTES, "")
        memory = max(int(_SHARE * free), _LEAST_BYTES)
        self._pipe.send((*self._setup, memory))
        return self._pipe

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


def _named(name: str) -> Exception:
    """Return an error whose class has this name: a library's error, TimeoutError or Aborted."""
    error: Exception = type(name, (RuntimeError,), {})()
    return error


def serve(handle: str) -> None:
    """Answer requests on a pipe (file descriptor `handle`) with the module named there first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other end decides
    with Connection(int(handle)) as pipe:
        module, settings, memory = pipe.recv()
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or memory < most:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, most))
        answers: list[Callable[[Any], Any]] = []

        def begin(settings: Any) -> Any:
            facts, answer = import_module(module).service(settings)
            answers.append(answer)
            return facts

        pipe.send(_answer(begin, settings))
        with suppress(EOFError):
            while answers:
                pipe.send(_answer(answers[0], pipe.recv()))


def _answer(answer: Callable[[Any], Any], request: Any) -> tuple[str, Any]:
    """Return ("answer", answer), ("refused", reason of BadLine) or ("error", name of the error)."""
    try:
        return "answer", answer(request)
    except BadLine as error:
        return "refused", error.private
    except BaseException as error:  # noqa: BLE001  (panics, too)
        return "error", type(error).__name__
