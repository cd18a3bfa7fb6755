"""Splits a run of the product into phases, from outside: the product has no clocks of its own.

Time counts for the innermost phase, so phases add up to the whole. What the product does beside
its main thread is told by itself, as `beside`.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import current_thread, main_thread
from typing import Any

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class Phases:
    """Seconds a phase, in order of first use."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.beside: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count the block's time for `name`, what phases inside it take left out."""
        if current_thread() is not main_thread():
            started = time.perf_counter()
            yield
            took = time.perf_counter() - started
            self.beside[name] = self.beside.get(name, 0.0) + took
            return
        self._count()
        self.seconds.setdefault(name, 0.0)
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def function(self, name: str) -> Wrapper:
        """A wrapper that counts a function's calls for `name`."""

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def timed(*given: Any, **named: Any) -> Any:
                with self.of(name):
                    return function(*given, **named)

            return timed

        return wrap

    def context(self, name: str) -> Wrapper:
        """The same for a function that returns a context manager: its whole block counts."""

        def wrap(
            function: Callable[..., AbstractContextManager[Any]],
        ) -> Callable[..., AbstractContextManager[Any]]:
            @contextmanager
            def timed(*given: Any, **named: Any) -> Iterator[Any]:
                with self.of(name), function(*given, **named) as entered:
                    yield entered

            return timed

        return wrap


def hook(module: str, path: str, wrapper: Wrapper) -> None:
    """Wrap the function or method `path` of a loaded module, wherever kvscope has imported it.

    Raises AttributeError where there is none: the benchmark has to follow the product.
    """
    owner: Any = sys.modules[module]
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    original = getattr(owner, name)
    wrapped = wrapper(original)
    setattr(owner, name, wrapped)
    for loaded in [m for known, m in sys.modules.items() if known.startswith("kvscope")]:
        for attribute, value in list(vars(loaded).items()):
            if value is original:
                setattr(loaded, attribute, wrapped)
