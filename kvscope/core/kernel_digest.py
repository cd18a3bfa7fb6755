"""Digest all that a kernel compiles in: its bytecode, and every function and constant it uses.

The digest follows names through closures and globals, recursively. It covers what the compiler
reads and nothing else: docstrings, comments, line numbers, paths and module names do not count, so
an edit there keeps the digest, and so do other clones and moved files.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from types import CodeType, EllipsisType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np

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
    """The digest of functions and values, as far as compilation depends on them.

    `implementations` gives, for a function that kernels replace by another, that other one.
    `tuple_classes` collects the NamedTuple classes met, in an order that the digest determines.
    """

    def __init__(self, implementations: Mapping[Any, Callable[..., Any]]) -> None:
        self.tuple_classes: list[type] = []
        self._implementations = implementations
        self._digests: dict[FunctionType, str] = {}
        self._open: set[FunctionType] = set()

    def function(self, function: FunctionType) -> str:
        """Return the digest of a function and of all that it uses (24 hex digits).

        A function that calls itself, or uses a value that has no digest, is a TypeError.
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
        """Return what compilation depends on in a constant, function, class or module."""
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
    raise TypeError(f"a kernel uses {value!r}: kvscope.core.kernel_digest has no digest of that")


def hexdigest(tree: object) -> str:
    """Return the digest of nested tuples of plain values (24 hex digits)."""
    return hashlib.blake2b(repr(tree).encode(), digest_size=12).hexdigest()


def _is_versioned(value: Any) -> bool:
    """Return True if `value` is a module of a versioned package, or what that package names so."""
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in _VERSIONED
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not module or not name or module.partition(".")[0] not in _VERSIONED:
        return False
    return getattr(sys.modules.get(module), name, None) is value


@cache
def _code(code: CodeType) -> tuple[str, tuple[Any, ...], tuple[str, ...]]:
    """Return a digest of the bytecode, the constants that it loads and its global names.

    Constants count by value, not by place, which a docstring would shift; nothing loads a docstring
    itself. Functions defined inside count as part of the code.
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
    """Yield each instruction's opcode and argument, `dis` being fifty times slower."""
    extended = 0
    steps = code.co_code
    for opcode, low in zip(steps[::2], steps[1::2], strict=True):
        argument = extended | low
        yield opcode, argument
        extended = argument << 8 if opcode == dis.EXTENDED_ARG else 0
