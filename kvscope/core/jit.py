"""Turn plain functions into kernels, which are compiled, or loaded from disk, when first called.

The compiler (machine_code.py with numba) takes a quarter of a second to load. So the first call
loads it, or a command that will call a kernel loads it in the background.
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
"""Attribute that `called_by_kernels` sets: the function is never inlined, and kept small."""

_OWN = "kvscope."
_lock = RLock()
_callable: set[FunctionType] = set()  # plain functions that kernels may call


class Compilation:
    """Names of the kernels being compiled; `str` returns a remark for a progress line, or ""."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __str__(self) -> str:
        return ", compiling, once" if self.names else ""


compilation = Compilation()


class Kernel:
    """A function compiled, or loaded from disk, at its first call; `py_func` is the plain one."""

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
        """Return numba's dispatcher, which selects the machine code by argument types."""
        with _lock:
            if self._compiled is None:
                machine_code: Any = import_module("kvscope.core.machine_code")
                self._compiled = machine_code.dispatcher(self.py_func)
        return self._compiled

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of numba's dispatcher: kernels that call this object read some."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.compiled(), name)


def kernel(function: F) -> F:
    """Compile `function` to machine code that runs without the interpreter lock.

    A kernel allocates nothing: it writes into the caller's arrays. So it spends no time on counts
    of references to arrays or on page faults, for which threads would wait for each other.

    The plain Python function is `.py_func`, for tests and reference implementations.
    """
    compiled: F = Kernel(function)  # type: ignore[assignment]  # keeps the function's signature
    return compiled


def callable_in_kernels(function: F) -> F:
    """Let kernels call `function`, which stays plain Python for all other callers.

    This includes kvscope's plain functions that `function` calls by name. `function` must allocate
    nothing. It is always inlined: passing arrays costs more than most of these functions take.
    """
    if isinstance(function, FunctionType) and function not in _callable:
        _callable.add(function)
        for name in function.__code__.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__.startswith(_OWN):
                callable_in_kernels(called)
    return function


def by_reference(arrays: T) -> T:
    """Return a NamedTuple of arrays, in kernels as a reference, which calls pass by address.

    By value, an array is seven or more numbers in each call: kernels compile four times as slowly.
    It is valid while the function that calls this runs; read its fields by name, without unpacking.
    """
    return arrays


class Function:
    """A plain function that kernels call by its address, so that one kernel serves many functions.

    `contract` is a function whose annotations state the types of `function`; for a method, that of
    its base class. `memory` states the type of arguments annotated `Any`: a NamedTuple with the
    same array types as the one that kernels will pass, or a `Referenced` of it; None if `function`
    reads no such argument. For such an argument, kernels pass an `Opaque`, a `Referenced`, a result
    of `by_reference`, or the address as a whole number. The code is cached like a kernel's.
    """

    def __init__(
        self, function: Callable[..., Any], contract: Callable[..., Any], memory: Any = None
    ) -> None:
        self.function, self.contract, self._memory = function, contract, memory
        callable_in_kernels(function)  # and with it what it calls

    @classmethod
    def each(cls, functions: Sequence[Callable[..., Any]], memory: Any) -> list[Self]:
        """Return a `Function` for each of `functions`, each its own contract; all share `memory`.

        Without `memory`, they are placeholders with address 0, which kernels must not call.
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
    """A NamedTuple of arrays, numbers and functions that kernels take by its address.

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
        """Return the NamedTuple's type for numba: `describe` of it at the first call, then kept."""
        if self._description is None:
            self._description = describe(self.arrays)
        return self._description

    @property
    def layout(self) -> bytes:
        """The bytes of the tuple as numba lays it out in memory, a multiple of 8."""
        kernel_types: Any = import_module("kvscope.core.kernel_types")
        memory: bytes = kernel_types.layout(self.arrays)
        return memory

    @cached_property
    def address(self) -> int:
        """The address of a copy of the tuple in numba's layout; it lives as long as this object."""
        self._memory = ctypes.create_string_buffer(self.layout)
        return ctypes.addressof(self._memory)


class Opaque(Referenced):
    """A NamedTuple whose fields a kernel does not read: it only passes the address to functions."""


def called_by_kernels(function: F) -> F:
    """Let kernels call `function`, and compile it once instead of inlining it at each call.

    For large functions, and for small functions with many calls in large ones. They must take
    NamedTuples of arrays by reference; their loops are not unrolled.
    """
    function.__dict__[APART] = True  # part of the kernel's digest
    return callable_in_kernels(function)


def once(factory: F) -> F:
    """Return `factory` with its results cached, so that each kernel is compiled or loaded once."""
    remembered: F = cache(factory)  # type: ignore[assignment]  # keeps the factory's signature
    return remembered


def is_callable(function: FunctionType) -> bool:
    """Return whether kernels may call a plain function, as `callable_in_kernels` allows."""
    return function in _callable


def lowest_bit(word: np.uint64) -> int:
    """Return the index of the lowest set bit of `word` (not 0): one instruction in kernels."""
    return (int(word) & -int(word)).bit_length() - 1


def load_in_background() -> None:
    """Load NumPy, and start to load numba in a thread, in parallel with a database query.

    NumPy's linear algebra gets one thread unless the environment sets some: more would spin.
    """
    variable = "OPENBLAS_NUM_THREADS"
    is_set = variable in os.environ
    os.environ.setdefault(variable, "1")
    limit_heaps()
    import_module("numpy")  # here: two threads that load parts of one package may see half of it
    if not is_set:
        del os.environ[variable]  # not for engines that this process starts
    Thread(target=import_module, args=("kvscope.core.machine_code",), daemon=True).start()
