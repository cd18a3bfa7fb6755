"""Progress bars on stderr, for people; in a pipe or a log there are none.

The rooms below the command line get a plain `Advance` and know nothing of bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from kvscope.cli.diagnostics import interactive

Advance = Callable[[int], None]


@contextmanager
def progress(
    label: str, total: int | None = None, *, unit: Literal["bytes", "steps"] = "bytes"
) -> Iterator[Advance]:
    """A bar called `label` while the block runs; the callable moves it on by so many units.

    Without `total` the bar only shows that something moves. It vanishes at the end.
    """
    if not interactive():
        yield _ignore
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


def _ignore(amount: int) -> None:
    """Nobody watches."""
