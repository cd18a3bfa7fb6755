"""Work for a second core: calls in a thread of their own, while the caller goes on with its own.

They gain where one of the two does without the interpreter: kernels, numpy, DuckDB, decoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def beside(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> Callable[[], T]:
    """Begin a call; what is returned waits for its end, and returns or raises what it did.

    Nobody has to wait: the end of the process, such as by an interrupt, ends the call too.
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            returned.append(function(*given, **named))
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            raised.append(error)

    thread = Thread(target=call, daemon=True)
    thread.start()

    def wait() -> T:
        thread.join()
        if raised:
            raise raised[0]
        return returned[0]

    return wait


def each_beside(use: Callable[[T], object], items: Iterable[T]) -> None:
    """Use each item in turn, beside the making of the next one.

    At most two items are there at once. Errors are those of using and making one after the other:
    that of an item comes before that of the next one's making.
    """
    wait: Callable[[], object] = _nothing
    try:
        for item in items:
            wait()
            wait = beside(use, item)
    finally:
        wait()


def _nothing() -> None:
    """Nothing to wait for yet."""
