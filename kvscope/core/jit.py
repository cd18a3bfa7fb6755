"""Compile plain functions to kernels, whose machine code stays on disk: the only import of numba.

The key of a kernel's machine code is a digest of its own transitive source (kernel_digest.py), of
the argument types, the CPU and the versions that compile it; kernel_files.py keeps the files.

Numba's own cache looks only at the file of the kernel: an edit in a function that the kernel calls
leaves stale machine code, and an edit in a docstring or another path recompiles. It has no hook for
another key, nor for damaged files. So all that is used of numba beyond its documented interface is
here, each with its reason. Tested with the versions that pyproject.toml allows; a newer one may
rename any of it.

Source: numba 0.61 to 0.68, numba/core/dispatcher.py, caching.py, compiler.py, environment.py.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import import_module
from threading import Thread
from types import FunctionType
from typing import Any, TypeVar

from kvscope.core.kernel_digest import SourceDigest, Tree, hexdigest
from kvscope.core.kernel_files import KernelFiles


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Make `package` impossible to import within the block, unless it is imported already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


# Numba loads scipy as it starts, only to look at its version: 20 MiB that a small analysis does
# without. A later import of scipy works as usual. The first import runs in a thread of its own
# because its speed depends on the depth of the stack: where CPython 3.11 starts a new chunk of it
# within one of numba's loops, every call there maps and unmaps memory, for 0.2 s.
with _hidden("scipy"):
    _import = Thread(target=import_module, args=("numba",))
    _import.start()
    _import.join()
    import numba
    import numpy as np
    from numba import types
    from numba.core.caching import NullCache
    from numba.core.compiler import CompileResult
    from numba.core.environment import Environment
    from numba.core.serialize import NumbaPickler

    # The count of trailing zeros, one instruction, has no documented name.
    from numba.cpython.unsafe.numbers import trailing_zeros
    from numba.extending import overload, register_jitable

F = TypeVar("F", bound=Callable[..., object])

_OWN = "kvscope."
# Kernels allocate nothing. Without `_nrt`, an option that only numba's tests use, they count no
# references to arrays, which in the replays took longer than all else.
_NO_ALLOCATION = {"_nrt": False}
_KERNEL_OPTIONS = {"nogil": True, **_NO_ALLOCATION}
_INLINE_OPTIONS = {"forceinline": True, **_NO_ALLOCATION}
# Types whose name says all about the machine code that handles them.
_NAMED_TYPES = (
    types.Array,
    types.Boolean,
    types.NoneType,
    types.Number,
    types.Omitted,
    types.Record,
)
_callable: set[Callable[..., object]] = set()
# Functions that kernels replace by another one.
_implementations: dict[Callable[..., object], Callable[..., object]] = {}
_files = KernelFiles()


def kernel(function: F) -> F:
    """Compile `function` to machine code that runs without the interpreter lock.

    It allocates nothing: it writes into arrays that it is given. So it counts no references to
    arrays, which in the replays took longer than all else, and arrays in tuples cost it nothing.
    And what NumPy allocates lies in huge pages where the system offers them; numba's own memory
    costs a page fault every 4 KiB, for which threads wait for each other.

    The plain Python function stays reachable as `.py_func`, for tests and for the oracles.
    """
    _name_after_closure(function)
    dispatcher: Any = numba.njit(**_KERNEL_OPTIONS)(function)
    dispatcher._cache = KernelCache(function)
    compiling = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        """Compile for these argument types, unless another process is just doing that."""
        with _files.compiling(dispatcher._cache.name(signature, dispatcher.targetctx)):
            return compiling(signature)

    dispatcher.compile = compile_once
    compiled: F = dispatcher
    return compiled


def callable_in_kernels(function: F) -> F:
    """Let kernels call `function`, which stays plain Python for all other callers.

    So may they then call kvscope's plain functions that it calls by name. It allocates nothing, as
    kernels do not, and is always inlined: to pass arrays costs more than most of them do.
    """
    if isinstance(function, FunctionType) and function not in _callable:
        _callable.add(function)
        _name_after_closure(function)
        register_jitable(**_INLINE_OPTIONS)(function)
        for name in function.__code__.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__.startswith(_OWN):
                callable_in_kernels(called)
    return function


def once(factory: F) -> F:
    """Make the kernel of the same arguments only once: compiling or loading it takes a while."""
    remembered: F = cache(factory)  # type: ignore[assignment]  # keeps the factory's signature
    return remembered


def is_compiled(dispatcher: Any) -> bool:
    """Return True if the cache has machine code of a kernel, for whatever argument types."""
    return _files.holds(dispatcher._cache.source)


def lowest_bit(word: np.uint64) -> int:
    """Return the place of the lowest bit set in `word`, not 0: one instruction in kernels."""
    return (int(word) & -int(word)).bit_length() - 1


_callable.add(lowest_bit)
_implementations[lowest_bit] = lambda word: lambda word: trailing_zeros(word)  # noqa: ARG005, PLW0108
overload(lowest_bit)(_implementations[lowest_bit])


def _name_after_closure(function: Any) -> None:
    """Give functions that one factory makes of different parts different names.

    Numba names machine code after the function and a count within the process. Of two kernels from
    the disk cache that were compiled in different processes, both may have the same name, and then
    one runs the other's code.
    """
    if function.__closure__:
        function.__qualname__ += f"_{SourceDigest(_implementations).function(function)}"


class KernelCache(NullCache):  # type: ignore[misc]
    """The machine code of one kernel on disk, as numba's dispatchers load and save it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._digest = SourceDigest(_implementations)

    @cached_property
    def source(self) -> str:
        """The digest of the kernel's transitive source and of all that compiles it."""
        return hexdigest(
            (
                self._digest.value(self._function),
                (sys.hexversion, sys.abiflags),
                (numba.__version__, np.__version__),
                (numba.config.OPT, numba.config.BOUNDSCHECK, numba.config.DEBUGINFO_DEFAULT),
                (_KERNEL_OPTIONS, _INLINE_OPTIONS),
            )
        )

    def name(self, signature: Sequence[Any], target: Any) -> str:
        """Return the name of the file for these argument types on this CPU."""
        source = self.source  # first: it collects the tuple classes of the source
        arguments = tuple(_described(argument, self._digest) for argument in signature)
        own = self._function.__name__.strip("<>")
        # Numba compares CPUs by this tuple in its own cache: triple, name, features.
        return f"{own}-{source}-{hexdigest((arguments, target.codegen().magic_tuple()))}"

    def load_overload(self, signature: Sequence[Any], target_context: Any) -> Any:
        """Return the machine code for these argument types, or None if there is none.

        Numba's own method first loads all that it can compile, scipy's linear algebra included: a
        quarter of a second. The compiler loads it all the same when it is needed.
        """
        name = self.name(signature, target_context)
        content = _files.read(name)
        if content is None:
            return None
        try:
            payload = _Unpickler(content, self._digest.tuple_classes).load()
            payload[1].modname = self._function.__module__  # the file may have moved since
            return CompileResult._rebuild(target_context, *payload)
        except Exception:  # noqa: BLE001  # no pickle that this code wrote; whatever it raises
            _files.remove(name)
            return None

    def save_overload(self, signature: Sequence[Any], result: Any) -> None:
        """Save the machine code for these argument types.

        It may return no NamedTuple (TypeError): the machine code would name the class's module,
        and crash once that has moved.
        """
        _described(result.signature.return_type, None)
        if result.library.has_dynamic_globals:  # addresses of this process
            return
        buffer = io.BytesIO()
        _Pickler(buffer, self._digest.tuple_classes).dump(result._reduce())
        _files.write(self.name(signature, result.target_context), buffer.getvalue())


def _described(argument: Any, digest: SourceDigest | None) -> Tree:
    """Return what machine code depends on in a type; without `digest`, a NamedTuple is an error.

    Numba's names of NamedTuples leave out the names of the fields, whose order may change.
    """
    if isinstance(argument, types.BaseNamedTuple) and digest:
        items = tuple(_described(item, digest) for item in argument)
        return ("namedtuple", digest.value(argument.instance_class), items)
    if isinstance(argument, types.BaseTuple) and not isinstance(argument, types.BaseNamedTuple):
        return ("tuple", tuple(_described(item, digest) for item in argument))
    if isinstance(argument, _NAMED_TYPES):
        return ("type", str(argument))
    raise TypeError(f"a kernel takes or returns {argument}: no number, array or tuple of them")


class _Pickler(NumbaPickler):  # type: ignore[misc]
    """Writes compiled code without the names of kvscope's modules, so that they may move."""

    def __init__(self, file: io.BytesIO, tuple_classes: list[type]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._places = {named: place for place, named in enumerate(tuple_classes)}

    def persistent_id(self, value: Any) -> int | None:
        """Return the place of a NamedTuple class in the kernel's sources, None for all else."""
        return self._places.get(value) if isinstance(value, type) else None

    def reducer_override(self, value: Any) -> Any:
        """Write the Python globals of compiled code as numba's: compiled code reads none."""
        if isinstance(value, Environment):
            rebuild, (_, constants, name) = value.__reduce__()
            return rebuild, (numba.__name__, constants, name)
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, tuple_classes: list[type]) -> None:
        super().__init__(io.BytesIO(content))
        self._tuple_classes = tuple_classes

    def persistent_load(self, place: int) -> type:
        """Return the class that `_Pickler` wrote as its place."""
        return self._tuple_classes[place]
