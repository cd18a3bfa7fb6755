"""The terminal as the monitor of a use case: progress and notes on stderr, Ctrl-C to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event

from kvscope.app.monitor import Advance, Unit
from kvscope.cli.diagnostics import note
from kvscope.cli.interrupts import stop_on_interrupt
from kvscope.cli.progress import progress


class Terminal:
    """A monitor whose user sits at a terminal."""

    def __init__(self, stop: Event | None = None) -> None:
        self.stop = stop or Event()

    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> AbstractContextManager[Advance]:
        """Return a context with a progress bar called `label`."""
        return progress(label, total, unit=unit)

    def note(self, text: str) -> None:
        """Write the sentence to stderr."""
        note(text)


@contextmanager
def stoppable() -> Iterator[Terminal]:
    """Let Ctrl-C set `stop` while the block runs, so that what is finished is not lost."""
    with stop_on_interrupt() as stop:
        yield Terminal(stop)
