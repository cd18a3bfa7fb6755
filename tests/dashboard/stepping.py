"""Work for a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvscope.core.errors import InputError


def squares(count: int, *, step: Callable[[str], None]) -> list[int]:
    """Report a step per square."""
    found = []
    for number in range(count):
        step(f"square {number}")
        found.append(number * number)
    print("what is printed is no part of the answer")  # noqa: T201
    return found


def refuses(what: str, *, step: Callable[[str], None]) -> None:
    """End in an error."""
    raise InputError("cannot be squared", where=what)


def endless(*, step: Callable[[str], None]) -> None:
    """Goes on until it is ended."""
    while True:
        step("another")
        time.sleep(0.01)
