"""The terminal as the monitor of a use case: progress and notes on stderr, Ctrl-C to stop.

Progress is a bar on a terminal, and a line every few seconds in a pipe or a log.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from kvscope.app.monitor import Advance, Monitor, Unit
from kvscope.cli.diagnostics import interactive, note, one_line, say, show_log
from kvscope.core import units
from kvscope.core.jit import compilation

LINE_EVERY_S = 5.0


class Terminal(Monitor):
    """A monitor that writes to a terminal."""

    @contextmanager
    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> Iterator[Advance]:
        """Show progress called `label` during the `with` block; yield a function that adds units.

        Without `total`, show only that work continues. A bar vanishes at the end; lines stay.
        """
        with (_bar if interactive() else _lines)(one_line(label), total, unit) as advance:
            yield advance

    def note(self, text: str) -> None:
        """Write `text` to stderr as a note."""
        note(text)

    def row(self, text: str) -> None:
        """Write a table's row to an interactive terminal only; others get the whole table later."""
        if interactive():
            say(one_line(text))

    def show_log(self, lines: Sequence[str]) -> None:
        """Write lines of a server's log to stderr."""
        show_log(lines)


@contextmanager
def stoppable() -> Iterator[Terminal]:
    """Yield a Terminal whose `stop` the first Ctrl-C sets, so that finished work is kept.

    A second Ctrl-C interrupts as usual.
    """
    terminal = Terminal()
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield terminal
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        terminal.stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield terminal
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar(label: str, total: int | None, unit: Unit) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}{task.fields[compilation]}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    # stdout stays as it is: data printed meanwhile must not end up on stderr
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        task = bars.add_task(label, total=total, compilation=compilation)
        yield lambda amount: bars.advance(task, amount)


@contextmanager
def _lines(label: str, total: int | None, unit: Unit) -> Iterator[Advance]:
    """Yield a function that adds units; write a progress line every LINE_EVERY_S, in a thread."""
    done = 0
    ended = Event()
    start_s = time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done
        done += amount

    def write() -> None:
        show = units.format_size if unit == "bytes" else units.format_count
        while not ended.wait(LINE_EVERY_S):
            share = f"{show(done)} of {show(total)} ({done / total:.0%}), " if total else ""
            say(f"{label}{compilation}: {share}{time.monotonic() - start_s:.0f} s")

    Thread(target=write, daemon=True).start()
    try:
        yield advance
    finally:
        ended.set()
