"""Where independent tasks run: in threads or processes of this machine, or elsewhere."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from threading import Event, Thread
from typing import Any, Self, TypeVar

from kvscope.core import memory
from kvscope.core.errors import KvscopeError
from kvscope.core.units import MIB

R = TypeVar("R")
T = TypeVar("T")

PROCESS_BYTES = 300 * MIB
"""What Python and the libraries take in a process of their own."""


class Executor(ABC):
    """Runs steps, whose results depend on their arguments and on files alone, wherever they run.

    So many `workers` run at once on each of so many `machines`.
    """

    workers: int
    machines: int = 1

    @property
    def free_bytes(self) -> int | None:
        """Memory that is free on each machine, None where that is unknown."""
        free = memory.available_bytes()
        return free[0] if free else None

    def shared(self, value: T, version: int | None = None) -> T:
        """Return a stand-in for a large value in the argument `before` of many tasks.

        With the same version of a value it stays the same.
        """
        return value

    @abstractmethod
    def results(
        self,
        step: Callable[..., R],
        tasks: Sequence[Any],
        *before: Any,
        stop: Event | None = None,
        each_bytes: float = 0,
    ) -> Iterator[tuple[int, R]]:
        """Yield the number of each task and `step(*before, task)`, as they finish.

        Once `stop` is set, no further step begins. A step takes about `each_bytes` of memory beside
        its process and `before`: a cluster runs no more of them on a machine at once than fit.
        """


class Threads(Executor):
    """Threads of this process, for steps that leave the interpreter lock most of the time."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def results(
        self,
        step: Callable[..., R],
        tasks: Sequence[Any],
        *before: Any,
        stop: Event | None = None,
        each_bytes: float = 0,
    ) -> Iterator[tuple[int, R]]:
        """Yield the results; after `stop`, only those of steps under way, which are finished."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="kvscope")

        def run(task: Any) -> tuple[R] | None:
            return None if stop is not None and stop.is_set() else (step(*before, task),)

        waiting = dict(enumerate(pool.submit(run, task) for task in tasks))
        try:
            while waiting:
                wait(waiting.values(), return_when=FIRST_COMPLETED)
                for number in [k for k, future in waiting.items() if future.done()]:
                    if (result := waiting.pop(number).result()) is not None:
                        yield number, *result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an early exit need not wait


def threads_for(each_bytes: float) -> Threads:
    """Return the number of threads: one a core, or as many such steps as fit into memory."""
    return Threads(memory.at_once(each_bytes, cores()))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with(parent: int) -> None:
    """End this process soon after its parent, which may be killed: loky's would wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


class LocalProcesses(Executor):
    """Processes of this machine, until the context ends; one worker is this process itself."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(kill_workers=True)

    def results(
        self,
        step: Callable[..., R],
        tasks: Sequence[Any],
        *before: Any,
        stop: Event | None = None,
        each_bytes: float = 0,
    ) -> Iterator[tuple[int, R]]:
        """Yield the results. Raises KvscopeError where a process was killed."""
        if self.workers == 1:
            for number, task in enumerate(tasks):
                if stop is None or not stop.is_set():
                    yield number, step(*before, task)
            return
        if self._pool is None:
            from loky import ProcessPoolExecutor

            # loky's: a fork would copy the threads that this process has, and what they hold; the
            # standard library's spawn would run a script that calls this once more.
            self._pool = ProcessPoolExecutor(
                self.workers, initializer=_end_with, initargs=(os.getpid(),)
            )
        number_of: dict[Future[R], int] = {
            self._pool.submit(step, *before, task): number for number, task in enumerate(tasks)
        }
        try:
            for done in as_completed(number_of):
                yield number_of[done], done.result()
                if stop is not None and stop.is_set():
                    return
        except BrokenProcessPool as error:
            raise KvscopeError(
                "a worker process was killed, for want of memory perhaps",
                remedy="run it again, with fewer --workers if so: finished steps are kept",
            ) from error
        finally:
            for each in number_of:
                each.cancel()
