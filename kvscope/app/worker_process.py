"""Run work in another process, so that it does not hold this process's interpreter lock."""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401  (its exit handler waits for processes; ours goes first)
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from kvscope.app.monitor import Advance, Monitor, Unit
from kvscope.core.errors import KvscopeError
from kvscope.core.jit import compilation
from kvscope.core.memory import out_of_memory

R = TypeVar("R")

_CHECK_S = 0.1
_GRACE_S = 1.0  # for work to end by itself, so that what is finished of it is kept
_REPORT_S = 0.2
_NICENESS = 10
_ANSWERS = {"return", "raise"}
_idle: list[_Worker] = []


def in_process(function: Callable[..., R], *arguments: Any, monitor: Monitor) -> R:
    """Return `function(*arguments, reporter)`, computed in another process.

    The reporter is a monitor that forwards steps, notes and parts of the result to `monitor`.
    Setting `monitor.stop` sets the reporter's; work that goes on for a second then is killed, and
    Stopped is raised. Raises the function's KvscopeError (RuntimeError for its other exceptions),
    and KvscopeError if the process was killed.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    answer = None
    try:
        answer, value = worker.run((function, arguments), monitor)
    finally:
        if answer is None or _idle:
            worker.end()
        else:
            _idle.append(worker)  # the next work begins at once
    if answer == "raise":
        raise value
    result: R = value
    return result


class _Worker:
    """A process that runs one task at a time, until `end` or the end of this process."""

    def __init__(self) -> None:
        from loky.backend import get_context

        # loky's: a fork would copy the threads that this process has, and what they hold; the
        # standard library's spawn would run a script that calls this once more.
        context = get_context("loky")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(self, work: tuple[Callable[..., Any], tuple[Any, ...]], monitor: Monitor) -> Any:
        """Run a task; return `("return", value)` or `("raise", exception)`."""
        until = None
        with ExitStack() as step:
            advance: Advance = lambda _: None  # noqa: E731
            try:
                self._connection.send(work)
                while True:
                    if until is None and monitor.stop.is_set():
                        until = time.monotonic() + _GRACE_S
                        self._connection.send(None)
                    if until is not None and time.monotonic() > until:
                        monitor.check()
                    if not self._connection.poll(_CHECK_S):
                        continue
                    name, *values = self._connection.recv()
                    if name in _ANSWERS:
                        return name, *values
                    if name == "steps":
                        step.close()
                        label, total, unit = values
                        advance = step.enter_context(monitor.steps(label, total, unit=unit))
                    elif name == "progress":
                        done, monitor.compiling = values
                        advance(done)
                    else:
                        getattr(monitor, name)(*values)
            except (EOFError, BrokenPipeError, ConnectionResetError) as error:
                raise KvscopeError("the process was killed, for want of memory perhaps") from error

    def end(self) -> None:
        """End the process and its child processes."""
        from loky.backend.utils import kill_process_tree

        kill_process_tree(self._process)
        self._connection.close()


class Reporter(Monitor):
    """The monitor inside the other process; it sends progress a few times a second."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection, self._lock = connection, threading.Lock()
        self._done = 0

    @contextmanager
    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> Iterator[Advance]:
        """Report the start of a step, and its progress."""
        self.send("steps", label, total, unit)

        def advance(amount: int) -> None:
            self._done += amount

        yield advance
        self.report_progress()

    def note(self, text: str) -> None:
        """Report a sentence."""
        self.send("note", text)

    def add_part(self, name: str, value: Any) -> None:
        """Hand a finished part of the result to the method `add_part` of the other monitor."""
        self.send("add_part", name, value)

    def report_progress(self) -> None:
        """Send the progress since the last report, and whether kernels are being compiled."""
        done, self._done = self._done, 0
        self.send("progress", done, str(compilation))

    def send(self, *message: Any) -> None:
        """Send a message; safe from any thread."""
        with self._lock:
            self._connection.send(message)


def _serve(connection: Any) -> None:
    """Run the tasks that the parent process sends; None stops a task. Exit with the parent."""
    os.nice(_NICENESS)  # the other process answers people meanwhile
    reporter, work = Reporter(connection), threading.Thread()
    while True:
        try:
            while not connection.poll(_REPORT_S):
                if work.is_alive():
                    reporter.report_progress()
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if message is None:
            reporter.stop.set()
        else:
            reporter = Reporter(connection)
            work = threading.Thread(target=_run, args=(*message, reporter), daemon=True)
            work.start()


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], reporter: Reporter) -> None:
    try:
        reporter.send("return", function(*arguments, reporter))
    except BaseException as error:
        known = error if isinstance(error, KvscopeError) else out_of_memory(error)
        reporter.send("raise", known or RuntimeError(repr(error)))
        if known is None:
            raise


@atexit.register
def _end_idle() -> None:
    """End the idle process at exit: `multiprocessing` would wait for it."""
    while _idle:
        _idle.pop().end()
