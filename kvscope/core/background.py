"""Calls in a second thread, for work outside the interpreter: kernels, NumPy, DuckDB, decoders.

The thread is a daemon, not one of a ThreadPoolExecutor: the interpreter joins an executor's threads
at exit, so Ctrl-C would have to wait for the end of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Start a call in a thread of its own and return the future of its result."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  (raised by `result`)
            future.set_exception(error)

    Thread(target=call, daemon=True).start()
    return future


def consume_in_background(use: Callable[[T], object], items: Iterable[T]) -> None:
    """Call `use` on each item in a second thread, while this thread makes the next item.

    At most two items exist at once. Errors are raised in the order of a plain loop: that of using
    an item before that of making the next one.
    """
    given = SimpleQueue[tuple[T, Future[object]] | None]()

    def use_all() -> None:
        while (work := given.get()) is not None:
            try:
                work[1].set_result(use(work[0]))
            except BaseException as error:  # noqa: BLE001  (raised by `result`)
                work[1].set_exception(error)
            del work  # an item that is used up takes no memory meanwhile

    Thread(target=use_all, daemon=True).start()
    pending: Future[object] | None = None
    try:
        for item in items:
            if pending is not None:
                pending.result()
            pending = Future()
            given.put((item, pending))
    finally:
        given.put(None)
        if pending is not None:
            pending.result()
