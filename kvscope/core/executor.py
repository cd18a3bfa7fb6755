"""Executors of independent tasks: threads or processes of this machine, or a cluster."""

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
"""Memory that Python and the libraries take in a process of their own."""


class Executor(ABC):
    """Run steps in parallel, up to `workers` at once on each of `machines`.

    The result of a step may depend only on its arguments and on files.
    """

    workers: int
    machines: int = 1

    @property
    def free_bytes(self) -> int | None:
        """Free memory of a machine in bytes, the least of all machines; None if unknown."""
        free = memory.available_bytes()
        return free[0] if free else None

    def shared(self, value: T, version: int | None = None) -> T:
        """Return a reference to a large value, to pass to `results` in `before` for all tasks.

        `version` is a number that changes with the value's content: calls with the same value and
        the same `version` return the same reference. None: each call may copy the value.
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
        """Yield the index of each task and the result of `step(*before, task)`, as steps finish.

        Soon after `stop` is set, no further step begins. A step needs about `each_bytes` of memory,
        besides its process and `before`; a cluster runs no more steps on a machine than fit.
        """


class Threads(Executor):
    """Threads of this process, for steps that mostly run without the interpreter lock."""

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
        """Yield as `Executor.results`; after `stop`, running steps end and are yielded."""
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
    """Return threads for steps of `each_bytes`: one per core, or fewer if memory is short."""
    return Threads(memory.at_once(each_bytes, cores()))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end_with(parent: int) -> None:
    """End this process once its parent (a process id) has: loky's workers outlive a killed one."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


class LocalProcesses(Executor):
    """Processes of this machine, until the `with` block ends; one worker: this process alone."""

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
        """Yield as `Executor.results`. Raises KvscopeError if a process was killed.

        Once `stop` is set, at most one more step is yielded; the end of the `with` block kills
        those that still run.
        """
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
