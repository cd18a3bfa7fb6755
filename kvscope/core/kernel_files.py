"""Files of machine code, named by a digest of all sources that a kernel compiles.

A file's name determines its content, so processes, checkouts and CI workers that write the same
file write the same content, and no index is needed. Files of other users and damaged files are
never returned, since their content is unpickled and executed. Files in a wheel are trusted like its
code, and only read. Files are compressed, to a tenth of their size.

The digest covers the bytecode, and every function and constant that it uses through closures and
globals. Docstrings, comments, line numbers, paths and module names do not count, so it stays equal
after edits there, in other clones and in moved files.
"""

from __future__ import annotations

import builtins
import dis
import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, EllipsisType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import zstandard

from kvscope.core.files import PACKED, is_private, private_cache
from kvscope.core.jit import APART

# Nested tuples of plain values, whose `repr` tells any two of them apart.
Tree: TypeAlias = "tuple[Any, ...]"

_PLAIN = (bool, int, float, complex, str, bytes, type(None), EllipsisType)
# Their version identifies them: part of the cache key, so that their sources need no digest.
_VERSIONED = sys.stdlib_module_names | {"numpy", "numba"}
_CONSTANTS = frozenset(dis.hasconst)
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
# Arguments by * and **, generators; not CO_HAS_DOCSTRING of Python 3.13.
_CALLING_FLAGS = 0xFF


class SourceDigest:
    """Digests of functions and values, covering all that their compilation depends on.

    `implementations` maps functions to their replacements in kernels. `tuple_classes` lists the
    NamedTuple classes in use, in the same order whenever digests are equal: saved machine code
    refers to a class by its index there.
    """

    def __init__(self, implementations: Mapping[Any, Callable[..., Any]]) -> None:
        self.tuple_classes: list[type] = []
        self._implementations = implementations
        self._digests: dict[FunctionType, str] = {}
        self._open: set[FunctionType] = set()

    def function(self, function: FunctionType) -> str:
        """Return the digest of a function and of everything that it uses (24 hex digits).

        Raises TypeError for a function that calls itself, or uses a value that has no digest.
        """
        if function in self._digests:
            return self._digests[function]
        if function in self._open:
            raise TypeError(f"{function.__qualname__} calls itself: kernels cannot")
        self._open.add(function)
        code, constants, names = _code(function.__code__)
        tree = (
            code,
            tuple(self.value(constant) for constant in constants),
            tuple((name, self._global(function, name)) for name in names),
            tuple(self.value(cell.cell_contents) for cell in function.__closure__ or ()),
            self.value(function.__defaults__),
            self.value(tuple(sorted((function.__kwdefaults__ or {}).items()))),
            self.value(self._implementations.get(function)),
            APART in function.__dict__,
        )
        self._open.discard(function)
        self._digests[function] = hexdigest(tree)
        return self._digests[function]

    def _global(self, function: FunctionType, name: str) -> Tree:
        if name in function.__globals__:
            return self.value(function.__globals__[name])
        return self.value(getattr(builtins, name))

    def value(self, value: Any) -> Tree:
        """Return the parts of a constant, function, class or module that affect compilation."""
        value = getattr(value, "py_func", value)
        if _is_versioned(value):
            return ("versioned", getattr(value, "__module__", ""), value.__name__)
        if isinstance(value, FunctionType):
            return ("function", self.function(value))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, tuple):
            items = tuple(self.value(item) for item in value)
            return ("tuple", self._class(type(value)), items)
        if isinstance(value, Enum):
            return ("member", self._class(type(value)), value.name)
        return _data(value)

    def _class(self, named: type) -> Tree:
        if issubclass(named, tuple) and hasattr(named, "_fields"):
            if named not in self.tuple_classes:
                self.tuple_classes.append(named)
            defaults = tuple(named._field_defaults.items())  # type: ignore[attr-defined]
            return ("namedtuple", named.__qualname__, named._fields, self.value(defaults))
        if issubclass(named, Enum):
            members = named.__members__.items()
            return ("enum", tuple((name, self.value(item.value)) for name, item in members))
        return ("class", named.__module__, named.__qualname__)


def _data(value: Any) -> Tree:
    if type(value) in _PLAIN:
        return (type(value).__name__, repr(value))
    if isinstance(value, np.generic | np.ndarray):
        layout = (repr(value.dtype), value.shape, value.strides)
        return (type(value).__name__, layout, value.tobytes())
    if isinstance(value, np.dtype):
        return ("dtype", repr(value))
    if isinstance(value, np.ufunc):
        return ("ufunc", value.__name__)
    raise TypeError(f"a kernel uses {value!r}: kvscope.core.kernel_files has no digest of that")


def hexdigest(tree: object) -> str:
    """Return the digest of nested tuples of plain values (24 hex digits)."""
    return hashlib.blake2b(repr(tree).encode(), digest_size=12).hexdigest()


def _is_versioned(value: Any) -> bool:
    """Return whether `value` is a module of Python, NumPy or numba, or a global of such a module.

    A digest covers its name alone, since the library's version fixes its source.
    """
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in _VERSIONED
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not module or not name or module.partition(".")[0] not in _VERSIONED:
        return False
    return getattr(sys.modules.get(module), name, None) is value


@cache
def _code(code: CodeType) -> tuple[str, tuple[Any, ...], tuple[str, ...]]:
    """Return a digest of the bytecode, the constants that it loads, and the names of its globals.

    Constants count by value, not by position, which a docstring would shift; no bytecode loads a
    docstring itself. Nested functions count as part of the code.
    """
    steps, inner = bytearray(code.co_code), []
    constants: list[Any] = []
    names: set[str] = set()
    for place, (opcode, argument) in enumerate(_instructions(code)):
        if opcode in _CONSTANTS:
            steps[2 * place + 1] = 0
            constant = code.co_consts[argument]
            if isinstance(constant, CodeType):
                digest, their_constants, their_names = _code(constant)
                inner.append(digest)
                constants.extend(their_constants)
                names.update(their_names)
            elif isinstance(constant, frozenset):  # of plain values: `in {1, 2}`
                constants.append(tuple(sorted(constant, key=repr)))
            else:
                constants.append(constant)
        elif opcode == _LOAD_GLOBAL:
            names.add(code.co_names[argument >> 1])
    tree = (
        bytes(steps),
        code.co_exceptiontable,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_flags & _CALLING_FLAGS,
        inner,
    )
    return hexdigest(tree), tuple(constants), tuple(sorted(names))


def _instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """Yield the opcode and the argument of each instruction, 50 times as fast as `dis`."""
    extended = 0
    steps = code.co_code
    for opcode, low in zip(steps[::2], steps[1::2], strict=True):
        argument = extended | low
        yield opcode, argument
        extended = argument << 8 if opcode == dis.EXTENDED_ARG else 0


UNUSED_DAYS = 30
MAX_BYTES = 256 << 20

_DAY_S = 86_400
_SUFFIX = ".kernel"
_SHIPPED = PACKED / "kernels"
_CHECKSUM_BYTES = 16


class KernelFiles:
    """A folder of machine code: one file per digest of a kernel's sources and argument types."""

    @cached_property
    def folder(self) -> Path:
        """The folder, created at its first use: most commands start without kernels."""
        return private_cache("kernels")

    @cached_property
    def _lock(self) -> int:
        return os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)

    def has(self, *names: str) -> bool:
        """Return whether a file of one of the names exists, damaged or not."""
        return any(self._path(name).exists() or _shipped(name).exists() for name in names)

    def read(self, *names: str) -> bytes | None:
        """Return the content of the first of `names` with an undamaged file, else None.

        A file in the folder wins over the wheel's. A damaged file in the folder is removed.
        """
        for name in names:
            content = self._saved(name)
            if content is None:
                with suppress(OSError):
                    content = _content(name, _shipped(name).read_bytes())
            if content is not None:
                return content
        return None

    def _saved(self, name: str) -> bytes | None:
        try:
            with self._path(name).open("rb") as file:
                status = os.fstat(file.fileno())
                if not is_private(status):
                    return None
                data = file.read()
        except OSError:
            return None
        content = _content(name, data)
        if content is None:
            self.remove(name)
        elif status.st_mtime < time.time() - _DAY_S:  # when it was last used, to the day
            with suppress(OSError):
                os.utime(self._path(name))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Save `content` as `name`, atomically; if that fails, as on a full disk, save nothing."""
        with suppress(OSError):
            number, temporary = tempfile.mkstemp(dir=self.folder)
            try:
                compressed = zstandard.compress(content)
                with os.fdopen(number, "wb") as file:
                    file.write(_checksum(name, compressed) + compressed)
                os.replace(temporary, self._path(name))  # noqa: PTH105
            except BaseException:
                os.unlink(temporary)  # noqa: PTH108
                raise
            self._remove_unused()

    def remove(self, name: str) -> None:
        """Remove the file `name` if it exists."""
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """Let one process at a time make the file `name`; others wait, and can then read it.

        Every name locks its own byte of one file. Without locks, several processes may compile one.
        """
        byte = int.from_bytes(_checksum(name, b"")[:7])
        with suppress(OSError):
            fcntl.lockf(self._lock, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, byte)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _remove_unused(self) -> None:
        """Remove files unused for `UNUSED_DAYS`; above `MAX_BYTES` in total, the longest unused.

        Processes that run a kernel have read its file already; the next one compiles it again.
        """
        now, total = time.time(), 0
        with os.scandir(self.folder) as entries:
            files = [(entry.stat(), entry.path) for entry in entries if entry.name != "lock"]
        for status, path in sorted(files, key=lambda file: -file[0].st_mtime):
            total += status.st_size
            if status.st_mtime < now - UNUSED_DAYS * _DAY_S or total > MAX_BYTES:
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108


def _shipped(name: str) -> Path:
    return _SHIPPED / f"{name}{_SUFFIX}"


def _content(name: str, data: bytes) -> bytes | None:
    """Return the decompressed content of a file `name` from its `data`, None if damaged."""
    checksum, compressed = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    if checksum != _checksum(name, compressed):
        return None
    try:
        return zstandard.decompress(compressed)
    except zstandard.ZstdError:  # from a version that did not compress
        return None


def _checksum(name: str, content: bytes) -> bytes:
    """Return the checksum of name and content; a renamed file therefore counts as damaged."""
    return hashlib.blake2b(name.encode() + b"\0" + content, digest_size=_CHECKSUM_BYTES).digest()
