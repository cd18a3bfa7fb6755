"""Monitors: progress and notes of a use case, and its stop. Executors: where it runs (`--on`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from threading import Event
from typing import TYPE_CHECKING, Literal

from kvscope.core.errors import Stopped, without_secrets

if TYPE_CHECKING:
    from kvscope.core.executor import Executor

Advance = Callable[[int], None]
Unit = Literal["bytes", "steps"]


class Monitor:
    """Receives a use case's progress and notes. This base class shows nothing.

    Once `stop` is set, no further work begins. `compiling` says whether kernels are being compiled
    in another process that works for this one.
    """

    compiling = ""

    def __init__(self) -> None:
        self.stop = Event()

    def steps(
        self, label: str, total: int | None = None, *, unit: Unit = "steps"
    ) -> AbstractContextManager[Advance]:
        """Return a context for work `label`, `total` units or None; it yields a counter of them."""
        return nullcontext(lambda _: None)

    def check(self, undone: str = "it was finished") -> None:
        """Raise Stopped, with the text "stopped before `undone`", if `stop` is set."""
        if self.stop.is_set():
            raise Stopped(f"stopped before {undone}")

    def checked(self, advance: Advance, undone: str) -> Advance:
        """Return `advance`, extended to call `check(undone)` first."""

        def check_and_advance(amount: int) -> None:
            self.check(undone)
            advance(amount)

        return check_and_advance

    def note(self, text: str) -> None:
        """Receive a sentence for the user."""

    def row(self, text: str) -> None:
        """Receive one row of the result, before the others are computed."""

    def show_log(self, lines: Sequence[str]) -> None:
        """Receive the last lines of the log of a server that died."""


class LogMonitor(Monitor):
    """A monitor whose notes go to the logger `kvscope`."""

    def note(self, text: str) -> None:
        """Log the sentence."""
        logging.getLogger("kvscope").info(without_secrets(text))


def replays_on(on: str | None, monitor: Monitor) -> AbstractContextManager[Executor | None]:
    """Return a context of the executor: the Ray cluster `on` (`RayCluster`), None for threads."""
    return nullcontext() if on is None else ray_cluster(on, monitor)


@contextmanager
def ray_cluster(
    on: str, monitor: Monitor, *, workers: int | None = None, seen_by_all: str | None = None
) -> Iterator[Executor]:
    """Yield an executor on the Ray cluster at `on`, connected until the block ends.

    `workers` is the number of cores of a cluster that is started for it (None: all). `seen_by_all`
    is the path of a file that every node must see, else InputError is raised (None: no such file).
    """
    from kvscope.core.ray_cluster import RayCluster

    cluster = RayCluster(on, workers=workers, seen_by_all=seen_by_all)
    with ExitStack() as stack:
        with monitor.steps("connecting to Ray"):
            stack.enter_context(cluster)
        yield cluster
