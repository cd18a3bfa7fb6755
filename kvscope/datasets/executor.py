"""Where the steps of a dataset run: in this process, or in several of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, Self, TypeVar

from loky import ProcessPoolExecutor

from kvscope.core.errors import KvscopeError

T = TypeVar("T")


class Executor(Protocol):
    """Runs steps, which read and write files alone: any process with the same files can."""

    @property
    def workers(self) -> int:
        """How many steps run at once."""

    def run(
        self, step: Callable[[T], None], tasks: Sequence[T], advance: Callable[[int], None]
    ) -> None:
        """Run `step` on each of the tasks, in any order; `advance` counts those that are done."""


class LocalProcesses:
    """Processes of this machine, until the context ends; one worker is this process itself."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(kill_workers=True)

    def run(
        self, step: Callable[[T], None], tasks: Sequence[T], advance: Callable[[int], None]
    ) -> None:
        """Run `step` on each of the tasks. Raises KvscopeError where a process was killed."""
        if self.workers == 1:
            for task in tasks:
                step(task)
                advance(1)
            return
        if self._pool is None:
            # loky's: a fork would copy the threads that this process has, and what they hold; the
            # standard library's spawn would run a script that calls this once more.
            self._pool = ProcessPoolExecutor(self.workers)
        pending = [self._pool.submit(step, task) for task in tasks]
        try:
            for done in as_completed(pending):
                done.result()
                advance(1)
        except BrokenProcessPool as error:
            raise KvscopeError(
                "a worker process was killed, for want of memory perhaps",
                remedy="run it again, with fewer --workers if so: finished steps are kept",
            ) from error
        finally:
            for each in pending:
                each.cancel()
