"""The only import of numba: how kernels are compiled, and where the machine code is kept.

Numba's disk cache looks at the file of the compiled function alone, so an edit in a function that
it calls would leave stale machine code behind. The cache therefore lies in a folder named by a
hash of every source file that takes part in compilation: those that import this module, and the
policies, whose plain functions kernels compile in.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from kvscope.core.paths import cache_folder


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Within the block `package` cannot be imported, unless somebody has done so before."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


# Numba loads scipy as it starts, to look at its version: 20 MiB that a small analysis does without.
# Whoever asks for it later gets it all the same.
with _hidden("scipy"):
    import numba
    from numba.cpython.unsafe.numbers import trailing_zeros
    from numba.extending import overload, register_jitable

F = TypeVar("F", bound=Callable[..., object])

_OWN = "kvscope."
_callable: set[Callable[..., Any]] = set()
_MARK = b"kvscope.core.jit"
_POLICIES = f"policies{os.sep}"


def sources_hash(package: Path) -> str:
    """Digest of every source below `package` that takes part in compilation (16 hex digits)."""
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    # Every process does this as it starts: with Path objects it takes three times as long.
    above = len(str(package)) + 1
    for path in sorted(
        os.path.join(folder, name)  # noqa: PTH118
        for folder, _, names in os.walk(package)
        for name in names
        if name.endswith(".py")
    ):
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            text = file.read()
        if _MARK in text or path.startswith(_POLICIES, above):
            digest.update(path[above:].encode())
            digest.update(text)
    return digest.hexdigest()


def _kernel_cache() -> Path:
    name = f"kernels-{sources_hash(Path(__file__).resolve().parents[1])}"
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home: compile once a process family instead of failing
        folder = Path(tempfile.gettempdir()) / f"kvscope-{name}"
        folder.mkdir(parents=True, exist_ok=True)
    return folder


numba.config.CACHE_DIR = str(_kernel_cache())


def is_compiled(compiled: Any) -> bool:
    """Whether the cache folder has machine code of a kernel, for whatever arguments.

    Numba writes its index before the code: a process that is ended in between leaves the one
    without the other.
    """
    file = compiled._cache._cache_file  # noqa: SLF001  # numba offers no other way
    return any(Path(file._data_path(name)).exists() for name in file._load_index().values())  # noqa: SLF001


def kernel(function: F) -> F:
    """Compile `function` to machine code that runs without the interpreter lock.

    It allocates nothing: it writes into arrays that it is given. So it counts no references to
    arrays, which in the replays took longer than all else, and arrays in tuples cost it nothing.
    And what NumPy allocates lies in huge pages where the system offers them; numba's own memory
    costs a page fault every 4 KiB, for which threads wait for each other.

    The plain Python function stays reachable as `.py_func`, for tests and for the oracles.
    """
    _name_after_closure(function)
    compiled = numba.njit(cache=True, nogil=True, _nrt=False)(function)
    stored = compiled._cache  # noqa: SLF001  # numba offers no other way in
    _load_without_compiler(stored)
    _save_one_at_a_time(stored)
    plain: F = compiled
    return plain


def _name_after_closure(function: Any) -> None:
    """Give functions that one factory makes of different parts different names.

    Numba names machine code after the function and a count within the process. Of two kernels from
    the disk cache that were compiled in different processes, both may have the same name, and then
    one runs the other's code.
    """
    parts = [_part(cell.cell_contents) for cell in function.__closure__ or ()]
    if parts:
        digest = hashlib.blake2b("/".join(parts).encode(), digest_size=6).hexdigest()
        function.__qualname__ += f"_{digest}"


def _part(content: Any) -> str:
    plain = getattr(content, "py_func", content)
    if isinstance(plain, FunctionType):
        return f"{plain.__module__}.{plain.__qualname__}"
    return repr(plain)


def _load_without_compiler(stored: Any) -> None:
    """Spare a process that finds its machine code ready the making ready of the compiler.

    Numba loads all that it can compile, scipy's linear algebra included, before it looks whether
    there is anything to compile: a quarter of a second. The compiler loads it all the same.

    Source: Cache.load_overload and CompilerBase.__init__ of numba 0.61 to 0.68, numba/core/.
    """

    def load(signature: Any, target: Any) -> Any:
        return stored._load_overload(signature, target)  # noqa: SLF001

    stored.load_overload = load


def _save_one_at_a_time(stored: Any) -> None:
    """Let one process at a time save machine code.

    Numba reads its index, picks a free file name and writes both, with nothing between processes:
    two that finish together would pick the same name, and one would run the other's code.
    """
    save = stored.save_overload

    def locked(*given: Any) -> None:
        with Path(numba.config.CACHE_DIR, "lock").open("w") as lock:
            flock(lock, LOCK_EX)
            save(*given)

    stored.save_overload = locked


def callable_in_kernels(function: F) -> F:
    """Let kernels call `function`, which stays what it is: plain Python to everybody else.

    So may they then call kvscope's plain functions that it calls by name. It allocates nothing, as
    kernels do not, and is always inlined: to pass arrays costs more than most of them do.
    """
    if isinstance(function, FunctionType) and function not in _callable:
        _callable.add(function)
        _name_after_closure(function)
        register_jitable(forceinline=True, _nrt=False)(function)
        for name in function.__code__.co_names:
            called = function.__globals__.get(name)
            if isinstance(called, FunctionType) and called.__module__.startswith(_OWN):
                callable_in_kernels(called)
    return function


def lowest_bit(word: np.uint64) -> int:
    """Place of the lowest bit that is set in `word`, which is not 0: one instruction in kernels."""
    return (int(word) & -int(word)).bit_length() - 1


_callable.add(lowest_bit)
overload(lowest_bit)(lambda word: lambda word: trailing_zeros(word))  # noqa: ARG005, PLW0108


def once(factory: F) -> F:
    """Make the kernel of the same arguments only once: compiling or loading it takes a while."""
    remembered: F = cache(factory)  # type: ignore[assignment]  # keeps the factory's signature
    return remembered
