"""Progress on stderr: a bar on a terminal, a line every few seconds in a pipe or a log.

The rooms below the command line get a plain `Advance` and know nothing of either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Literal

from kvscope.cli.diagnostics import interactive, say
from kvscope.core import units

Advance = Callable[[int], None]

LINE_EVERY_S = 5.0


@contextmanager
def progress(
    label: str, total: int | None = None, *, unit: Literal["bytes", "steps"] = "bytes"
) -> Iterator[Advance]:
    """Show progress called `label` while the block runs; the callable adds so many units.

    Without `total` it only shows that work goes on. A bar vanishes at the end; lines stay.
    """
    if not interactive():
        with _lines(label, total, unit) as advance:
            yield advance
        return
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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    # stdout stays as it is: data printed meanwhile must not end up on stderr
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:
        task = bars.add_task(label, total=total)
        yield lambda amount: bars.advance(task, amount)


@contextmanager
def _lines(label: str, total: int | None, unit: str) -> Iterator[Advance]:
    """Write a line every few seconds, from a thread: some steps take longer than that."""
    done = 0
    ended = Event()
    began = time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done
        done += amount

    def write() -> None:
        while not ended.wait(LINE_EVERY_S):
            say(f"{label}: {_so_far(done, total, unit)}{time.monotonic() - began:.0f} s")

    Thread(target=write, daemon=True).start()
    try:
        yield advance
    finally:
        ended.set()


def _so_far(done: int, total: int | None, unit: str) -> str:
    """Return the part that is done, in words, with a comma behind it; empty without a total."""
    if not total:
        return ""
    show = units.format_size if unit == "bytes" else units.format_count
    return f"{show(done)} of {show(total)} ({done / total:.0%}), "
