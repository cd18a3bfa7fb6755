"""Turn plain functions into kernels, which are compiled, or loaded from disk, when first called.

Numba (machine_code.py), which compiles them, takes a quarter of a second to load. So it is loaded
by the first call, or in the background by a command that will call a kernel.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from threading import RLock, Thread
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kvscope.core.memory import limit_heaps

if TYPE_CHECKING:
    import numpy as np

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T", bound=tuple[Any, ...])

APART = "compiled_apart"
"""Attribute of functions that are not compiled in where kernels call them, and are kept small."""

_OWN = "kvscope."
_lock = RLock()
_callable: set[FunctionType] = set()  # plain functions that kernels may call


class Compilation:
    """Names of kernels that this process compiles now; as text, a remark for a progress line."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __str__(self) -> str:
        return ", compiling, once" if self.names else ""


compilation = Compilation()


class Kernel:
    """A function that its first call compiles or loads from disk; `py_func` is the plain one."""

    def __init__(self, function: Any) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the machine code on `arguments`."""
        if self._compiled is None:
            self.compiled()
        return self._compiled(*arguments)

    def compiled(self) -> Any:
        """Return numba's dispatcher of the function, which has machine code by argument types."""
        with _lock:
            if self._compiled is None:
                machine_code: Any = import_module("kvscope.core.machine_code")
                self._compiled = machine_code.dispatcher(self.py_func)
        return self._compiled

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of numba's dispatcher: other kernels treat this object as one."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.compiled(), name)


def kernel(function: F) -> F:
    """Compile `function` to machine code that runs without the interpreter lock.

    A kernel allocates nothing: it writes into arrays that are passed in. So it need not count
    references to arrays, which took most of the time of replays, and arrays in tuples cost nothing.
    Besides, NumPy's arrays lie in huge pages where the system offers them; numba's own memory costs
    a page fault every 4 KiB, for which threads wait for each other.

    The plain Python function stays reachable as `.py_func`, for tests and for the oracles.
    """
    compiled: F = Kernel(function)  # type: ignore[assignment]  # keeps the function's signature
    return compiled


def callable_in_kernels(function: F) -> F:
    """Let kernels call `function`, which stays plain Python for all other callers.

    Kernels may then call kvscope's plain functions that `function` calls by name, too. `function`
    must allocate nothing and is always inlined: passing arrays costs more than most such functions.
    """
    if isinstance(function, FunctionType) and function not in _callable:
        _callable.add(function)
        for name in function.__code__.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__.startswith(_OWN):
                callable_in_kernels(called)
    return function


def by_reference(arrays: T) -> T:
    """Return a NamedTuple of arrays, which kernels pass on by its address from then on.

    By value, each array is ten numbers in each call, all of which the compiler tracks: with
    references, kernels of an engine compile four times as fast, and run as fast. A reference is
    valid while the function that made it runs; its fields are read by name, not by unpacking.
    """
    return arrays


class Function:
    """A plain function that kernels call by its address, so that one kernel serves many functions.

    The annotations of `contract`, the base class's function, state its types. `memory` is a
    NamedTuple of the type annotated `Any`, or `Referenced`; kernels pass it as `Opaque`, as a
    reference of their own, or as its address (a whole number). The machine code is cached like a
    kernel's.
    """

    def __init__(
        self, function: Callable[..., Any], contract: Callable[..., Any], memory: Any = None
    ) -> None:
        self.function, self.contract, self._memory = function, contract, memory
        callable_in_kernels(function)  # and with it what it calls

    @classmethod
    def each(cls, functions: Sequence[Callable[..., Any]], memory: Any) -> list[Self]:
        """Return functions that are their own contracts, with `memory`; without it, placeholders.

        A kernel must not call a placeholder, whose address is 0.
        """
        shared = None if memory is None else Referenced(memory)
        made = [cls(function, function, shared) for function in functions]
        if memory is None:
            for each in made:
                each.address = 0
        return made

    def __call__(self, *arguments: Any) -> Any:
        """Run the plain function, as uncompiled kernels do."""
        return self.function(*arguments)

    @cached_property
    def address(self) -> int:
        """The address of the function's machine code."""
        machine_code: Any = import_module("kvscope.core.machine_code")
        with _lock:
            address: int = machine_code.address(self.function, self.contract, self._memory)
        return address


class Referenced:
    """A NamedTuple of arrays, whole numbers and functions that a kernel takes by its address.

    Its types are looked up once, not in each call of a kernel. It must outlive the call.
    """

    def __init__(self, arrays: tuple[Any, ...]) -> None:
        self.arrays = arrays
        self._description: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return a field of the tuple by name, for uncompiled kernels."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.arrays, name)

    def described(self, describe: Callable[[Any], Any]) -> Any:
        """Return `describe(self.arrays)`, computed once."""
        if self._description is None:
            self._description = describe(self.arrays)
        return self._description

    @property
    def layout(self) -> bytes:
        """The tuple as numba lays it out in memory, in words of 8 bytes."""
        kernel_types: Any = import_module("kvscope.core.kernel_types")
        memory: bytes = kernel_types.layout(self.arrays)
        return memory

    @cached_property
    def address(self) -> int:
        """The address of the tuple in that layout."""
        self._memory = ctypes.create_string_buffer(self.layout)
        return ctypes.addressof(self._memory)


class Opaque(Referenced):
    """A NamedTuple whose fields the kernel does not know: the kernel only passes its address on."""


def called_by_kernels(function: F) -> F:
    """Let kernels call `function`, and compile it once instead of inlining it at each call.

    For large functions, and for small ones called at many places of large ones; their NamedTuples
    of arrays are references, and loops in them are not unrolled.
    """
    function.__dict__[APART] = True  # part of the kernel's digest
    return callable_in_kernels(function)


def once(factory: F) -> F:
    """Return `factory` with its results cached: compiling or loading a kernel takes a while."""
    remembered: F = cache(factory)  # type: ignore[assignment]  # keeps the factory's signature
    return remembered


def is_callable(function: FunctionType) -> bool:
    """Return True if kernels may call a plain function."""
    return function in _callable


def lowest_bit(word: np.uint64) -> int:
    """Return the place of the lowest bit set in `word` (not 0): one instruction in kernels."""
    return (int(word) & -int(word)).bit_length() - 1


def load_in_background() -> None:
    """Load NumPy, and start to load numba in a thread, so that a database query hides the time.

    NumPy's linear algebra gets one thread, unless the environment sets a number: more would spin in
    a wait loop for as long as NumPy takes to load.
    """
    variable = "OPENBLAS_NUM_THREADS"
    is_set = variable in os.environ
    os.environ.setdefault(variable, "1")
    limit_heaps()
    import_module("numpy")  # here: two threads that load parts of one package may see half of it
    if not is_set:
        del os.environ[variable]  # not for engines that this process starts
    Thread(target=import_module, args=("kvscope.core.machine_code",), daemon=True).start()
