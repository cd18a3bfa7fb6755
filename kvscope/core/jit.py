"""Compile plain functions to kernels, whose machine code stays on disk.

The key of a kernel's machine code is a digest of its own transitive source (kernel_digest.py), of
the argument types, the CPU and the versions that compile it; kernel_files.py keeps the files, and
numba_internals.py is the only import of numba.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from kvscope.core.kernel_digest import SourceDigest
from kvscope.core.numba_internals import (
    INLINE_OPTIONS,
    compile_cached,
    is_compiled,
    overload,
    register_jitable,
    trailing_zeros,
)

__all__ = ["callable_in_kernels", "is_compiled", "kernel", "lowest_bit", "once"]

F = TypeVar("F", bound=Callable[..., object])

_OWN = "kvscope."
_callable: set[Callable[..., object]] = set()
# Functions that kernels replace by another one.
_implementations: dict[Callable[..., object], Callable[..., object]] = {}


def kernel(function: F) -> F:
    """Compile `function` to machine code that runs without the interpreter lock.

    It allocates nothing: it writes into arrays that it is given. So it counts no references to
    arrays, which in the replays took longer than all else, and arrays in tuples cost it nothing.
    And what NumPy allocates lies in huge pages where the system offers them; numba's own memory
    costs a page fault every 4 KiB, for which threads wait for each other.

    The plain Python function stays reachable as `.py_func`, for tests and for the oracles.
    """
    _name_after_closure(function)
    compiled: F = compile_cached(function, _implementations)
    return compiled


def _name_after_closure(function: Any) -> None:
    """Give functions that one factory makes of different parts different names.

    Numba names machine code after the function and a count within the process. Of two kernels from
    the disk cache that were compiled in different processes, both may have the same name, and then
    one runs the other's code.
    """
    if function.__closure__:
        function.__qualname__ += f"_{SourceDigest(_implementations).function(function)}"


def callable_in_kernels(function: F) -> F:
    """Let kernels call `function`, which stays plain Python for all other callers.

    So may they then call kvscope's plain functions that it calls by name. It allocates nothing, as
    kernels do not, and is always inlined: to pass arrays costs more than most of them do.
    """
    if isinstance(function, FunctionType) and function not in _callable:
        _callable.add(function)
        _name_after_closure(function)
        register_jitable(**INLINE_OPTIONS)(function)
        for name in function.__code__.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__.startswith(_OWN):
                callable_in_kernels(called)
    return function


def lowest_bit(word: np.uint64) -> int:
    """Return the place of the lowest bit set in `word`, not 0: one instruction in kernels."""
    return (int(word) & -int(word)).bit_length() - 1


_callable.add(lowest_bit)
_implementations[lowest_bit] = lambda word: lambda word: trailing_zeros(word)  # noqa: ARG005, PLW0108
overload(lowest_bit)(_implementations[lowest_bit])


def once(factory: F) -> F:
    """Make the kernel of the same arguments only once: compiling or loading it takes a while."""
    remembered: F = cache(factory)  # type: ignore[assignment]  # keeps the factory's signature
    return remembered
