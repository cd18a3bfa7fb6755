"""Compile kernels (jit.py) to machine code, with a cache on disk.

The key of a kernel's machine code is a digest of its own transitive source (kernel_files.py), of
the argument types, the CPU and the compiler's version; kernel_files.py keeps the files.

Numba's own cache looks only at the file of the kernel: an edit in a function that the kernel calls
leaves stale machine code, and an edit in a docstring or another path recompiles. It has no hook for
another key, nor for damaged files. So this module uses numba beyond its documented interface, each
use with its reason. Tested with the versions that pyproject.toml allows; newer ones may differ.

Source: numba 0.61 to 0.68, numba/core/: dispatcher.py, caching.py, codegen.py, compiler.py,
environment.py, event.py.
"""

from __future__ import annotations

import io
import pickle
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from threading import Thread, get_ident, local
from types import FunctionType
from typing import Any, Self

from kvscope.core import jit
from kvscope.core.kernel_files import KernelFiles, SourceDigest, Tree, hexdigest


class _Hidden:
    """An import finder: in its `with` block, the thread that made it cannot import `packages`."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages
        self._thread = get_ident()

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for a hidden package; return None for all others."""
        if name in self._packages and get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is hidden from numba", name=name)


def _import_numba() -> None:
    """Import the parts of numba used here, without three packages that numba would load.

    Numba only reads scipy's version, at 20 MiB of memory. It needs yaml for a settings file, and
    colorama for messages that kvscope prints as one line. Later imports of the three work as usual.
    """
    unread = () if Path(".numba_config.yaml").exists() else ("yaml",)
    with _Hidden("scipy", "colorama", *unread):
        for name in (
            "numba",
            "numba.core.caching",
            "numba.core.codegen",
            "numba.core.compiler",
            "numba.core.entrypoints",
            "numba.core.environment",
            "numba.core.event",
            "numba.core.serialize",
            "numba.cpython.unsafe.numbers",
            "numba.extending",
        ):
            import_module(name)


# In a thread of its own because its speed depends on the depth of the stack: where CPython 3.11
# starts a new chunk of it within one of numba's loops, every call there maps and unmaps memory, for
# 0.2 s.
_import = Thread(target=_import_numba)
_import.start()
_import.join()
import numba  # noqa: E402

# Skip the search of every installed distribution for extensions of numba: no kernel uses any.
numba.core.entrypoints._already_initialized = True
from numba import types  # noqa: E402
from numba.core.caching import NullCache  # noqa: E402
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen, ll  # noqa: E402
from numba.core.compiler import CompileResult  # noqa: E402
from numba.core.compiler_lock import global_compiler_lock  # noqa: E402
from numba.core.environment import Environment  # noqa: E402
from numba.core.event import Listener, register  # noqa: E402
from numba.core.serialize import NumbaPickler  # noqa: E402
from numba.core.sigutils import normalize_signature  # noqa: E402
from numba.core.typing import signature as signature_of  # noqa: E402

# The count of trailing zeros, one instruction, has no documented name.
from numba.cpython.unsafe.numbers import trailing_zeros  # noqa: E402
from numba.extending import overload, typeof_impl  # noqa: E402

from kvscope.core import kernel_types, pipeline  # noqa: E402

# Kernels allocate nothing. Without `_nrt`, an option that only numba's tests use, they count no
# references to arrays, which in the replays took longer than all else.
_NO_ALLOCATION = {"_nrt": False}
_KERNEL_OPTIONS = {"nogil": True, "no_cfunc_wrapper": True, **_NO_ALLOCATION}
_FORMAT = 8  # of a file, and of how functions are called
# Of functions that are never called from Python.
_CALLED_OPTIONS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **_NO_ALLOCATION}
# What kernels of a wheel are compiled for, and what a CPU needs to run them: x86-64-v3. Replays are
# slower by up to a tenth with LLVM's model of that name.
_WHEELS_CPU = "haswell", ""
_FEATURES = ("avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt")
# Types whose name says all about the machine code that handles them.
_NAMED_TYPES = (
    types.Array,
    types.Boolean,
    types.NoneType,
    types.Number,
    types.Omitted,
    types.Record,
    kernel_types.OpaqueAddress,
    kernel_types.Bare,
    kernel_types.Reference,
    kernel_types.FunctionAddress,
)
# Functions that kernels replace by another one.
_implementations: dict[Callable[..., object], Callable[..., object]] = {}
# Functions of which numba has types already.
_TYPED: set[Any] = {jit.by_reference, kernel_types.unwrapped, jit.lowest_bit}
_called: dict[FunctionType, tuple[Any, Any]] = {}  # numba's dispatchers and their types
_files = KernelFiles()


class _Depth(Listener, local):  # type: ignore[misc]
    """Depth of compilation in this thread: 1 in a kernel, more in functions that it calls."""

    now = 0

    def on_start(self, event: object) -> None:
        self.now += 1

    def on_end(self, event: object) -> None:
        self.now -= 1


_depth = _Depth()
_environments: list[tuple[str, Any]] = []  # of functions, until the kernel that calls them is made
register("numba:compile", _depth)


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function; only a kernel's code is fully optimized and made machine code.

    Numba does both for every function that a kernel calls, directly or not. As these are inlined,
    half of the compile time of a large kernel was wasted.
    """

    _bitcode = b""  # of code from a file
    _shared_module: Any  # numba's: what others compile in

    def finalize(self) -> None:
        """Make machine code of a kernel with all functions that it calls; skip called functions."""
        if _depth.now > 1:
            self._finalized = True
            return
        self._linking_libraries = list(_called_by(self))
        super().finalize()
        self._linking_libraries = []

    def _optimize_functions(self, module: Any) -> None:
        if _depth.now <= 1:
            super()._optimize_functions(module)
        else:
            module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Fully optimize a kernel once; numba does it twice, for the sake of reference counts."""
        self._keep_names_apart()
        passes = self._codegen._module_pass_manager()
        if isinstance(passes, tuple):  # since numba 0.62
            passes[0].run(self._final_module, passes[1])
        else:
            passes.run(self._final_module)

    def _keep_names_apart(self) -> None:
        """Make functions that are not inlined internal: two processes may use the same name.

        The compiler may also drop unused arguments of internal functions, and inline single calls.
        """
        for function in self._final_module.functions:
            if function.linkage == ll.Linkage.linkonce_odr and not function.is_declaration:
                function.linkage = ll.Linkage.internal

    def _finalize_final_module(self) -> None:
        super()._finalize_final_module()
        for name, environment in _environments:
            if self._codegen._engine.is_symbol_defined(name):
                JITCPUCodegen.set_env(self._codegen, name, environment)
        _environments.clear()

    def serialize_using_object_code(self) -> tuple[str, str, tuple[bytes, bytes, list[str]]]:
        """Return the library's name, numba's constant "object", and the parts to save.

        The parts are machine code, bitcode, and the names that the bitcode defines: they are in the
        machine code, too, and `_unserialize` reports them as defined without parsing the bitcode.
        """
        name, kind, (machine_code, bitcode) = super().serialize_using_object_code()
        module = self._get_module_for_linking()
        values = (*module.functions, *module.global_variables)
        defined = [value.name for value in values if not value.is_declaration]
        return name, kind, (machine_code, bitcode, defined)

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Self:
        """Return a library from the result of `serialize_using_object_code`.

        Its bitcode stays unparsed, since only kernels that call the function need it.
        """
        name, _, (machine_code, bitcode, defined) = state
        library: Self = codegen.create_library(name)
        library.enable_object_caching()
        library._set_compiled_object(machine_code)
        library._bitcode = bitcode
        library._finalize_final_module()
        codegen._engine._defined_symbols.update(defined)
        return library

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None and self._bitcode:
            self._shared_module = ll.parse_bitcode(self._bitcode)
        return super()._get_module_for_linking()

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a kernel, 0 for a function that a kernel calls."""
        self._ensure_finalized()
        return super().get_pointer_to_function(name) if _depth.now <= 1 else 0


def _called_by(library: Any, known: dict[Any, None] | None = None) -> dict[Any, None]:
    """Return the libraries that a function calls, directly or not, as keys in a fixed order.

    `known` has those found so far, to which the function adds.
    """
    known = {} if known is None else known
    for called in library._linking_libraries:
        if called not in known:
            known[called] = None
            _called_by(called, known)
    return known


def _set_environment(codegen: Any, name: str, environment: Any) -> None:
    """Set a function's Python environment, at the symbol `name` of its machine code.

    For a kernel, set it at once. A function that a kernel calls has no machine code of its own:
    note its environment, which `_finalize_final_module` sets once the kernel has machine code.
    """
    if _depth.now <= 1:
        JITCPUCodegen.set_env(codegen, name, environment)
    else:
        _environments.append((name, environment))


def dispatcher(function: FunctionType) -> Any:
    """Return numba's dispatcher of a kernel, with the cache on disk."""
    _name_after_closure(function)
    made: Any = numba.njit(pipeline_class=pipeline.Compiler, **_KERNEL_OPTIONS)(function)
    made._cache = KernelCache(function)
    compiling = made.compile

    def compile_once(signature: Any) -> Any:
        """Compile for these argument types, or wait for another process that compiles them.

        An existing file is read without waiting. Otherwise, take numba's lock before the file's:
        other processes may need this kernel while a thread here compiles another.
        """
        outer, _depth.now = _depth.now, 0  # a kernel that another one calls is still a kernel
        names = made._cache.names(signature, made.targetctx)
        try:
            if _files.has(*names):
                return compiling(signature)
            with global_compiler_lock, _files.compiling(names[0]):
                jit.compilation.names.append(names[0])
                try:
                    # Scipy's linear algebra numba would load for kernels that multiply matrices.
                    with _Hidden("scipy"):
                        return pipeline.undisturbed(compiling, signature)
                finally:
                    jit.compilation.names.remove(names[0])
        finally:
            _depth.now = outer

    made.compile = compile_once
    codegen = made.targetctx.codegen()
    codegen._library_class, codegen.set_env = _Library, partial(_set_environment, codegen)
    return made


_kept: dict[Any, Any] = {}  # machine code that is called by its address alone
_CODE_OF = attrgetter("library")


def address(function: FunctionType, contract: FunctionType, memory: Any) -> int:
    """Return the address of the machine code of a `jit.Function` with these three arguments."""
    known = None
    if memory is not None:
        shared = memory if isinstance(memory, jit.Referenced) else jit.Referenced(memory)
        known = shared.described(kernel_types.described)
    wanted = kernel_types.function_type(contract, known)
    key = function, wanted
    if key not in _kept:
        made = dispatcher(_entry(function))
        made.compile(signature_of(wanted.returns, *wanted.passed))
        _kept[key] = made
    compiled = _kept[key].overloads[wanted.passed]
    return int(_CODE_OF(compiled).get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _entry(function: FunctionType) -> FunctionType:
    """Return a function to call by address, which rebuilds arrays and calls `function`."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    passed = ", ".join(f"whole({name})" for name in names)
    source = f"def make(call, whole):\n  def {function.__name__}({', '.join(names)}):\n"
    scope: dict[str, Any] = {}
    exec(f"{source}    return call({passed})\n  return {function.__name__}", scope)  # noqa: S102
    entry: FunctionType = scope["make"](function, kernel_types.unwrapped)
    entry.__module__ = function.__module__
    entry.__dict__.update(function.__dict__)
    return entry


@typeof_impl.register(FunctionType)  # type: ignore[untyped-decorator]  # numba has no types
def _type_of_callable(function: FunctionType, context: Any) -> Any:
    """Return numba's type of a plain function that kernels may call, None for other functions."""
    if not jit.is_callable(function) or function in _TYPED:
        return None
    if function not in _called:
        _name_after_closure(function)
        inline = jit.APART not in function.__dict__
        made = numba.njit(forceinline=inline, pipeline_class=pipeline.Compiler, **_CALLED_OPTIONS)(
            function
        )
        _called[function] = made, pipeline.CalledFunction(made)
    return _called[function][1]


def _use_trailing_zeros() -> None:
    lowest_bit: Any = jit.lowest_bit
    _implementations[lowest_bit] = lambda word: lambda word: trailing_zeros(word)  # noqa: ARG005, PLW0108
    overload(lowest_bit)(_implementations[lowest_bit])


_use_trailing_zeros()


def _name_after_closure(function: Any) -> None:
    """Rename a function with a closure after the digest of its sources, which differs by closure.

    Numba names machine code after the function and a count within the process. Of two kernels with
    one name, compiled in different processes, one would run the code of the other.
    """
    if function.__closure__:
        function.__qualname__ += f"_{SourceDigest(_implementations).function(function)}"


class KernelCache(NullCache):  # type: ignore[misc]
    """The disk cache of one kernel's machine code, with the interface that dispatchers call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._digest = SourceDigest(_implementations)

    @cached_property
    def source(self) -> str:
        """The digest of the kernel's transitive source, and the compiler's versions and options."""
        return hexdigest(
            (
                self._digest.value(self._function),
                (sys.implementation.cache_tag, sys.abiflags),  # as in numba's own cache
                numba.__version__,  # its machine code calls nothing of NumPy's
                (numba.config.OPT, numba.config.BOUNDSCHECK, numba.config.DEBUGINFO_DEFAULT),
                (_KERNEL_OPTIONS, _CALLED_OPTIONS),
                _FORMAT,
            )
        )

    def names(self, signature: Sequence[Any], target: Any) -> list[str]:
        """Return the file names for these argument types: this CPU's, then the wheel's.

        Without the wheel's if this CPU cannot run its code, or the environment names a CPU.
        """
        source = self.source  # first: it collects the tuple classes of the source
        types_of, returned = normalize_signature(signature)  # the latter only where it is stated
        arguments = tuple(_described(argument, self._digest) for argument in types_of)
        own = self._function.__name__.strip("<>")
        # Numba compares CPUs by this tuple in its own cache: triple, name, features.
        cpus = [target.codegen().magic_tuple()]
        if numba.config.CPU_NAME is None and _fits_wheels():
            cpus.append((cpus[0][0], *_WHEELS_CPU))
        known = (arguments, str(returned))
        return [f"{own}-{source}-{hexdigest((*known, cpu))}" for cpu in cpus]

    def load_overload(self, signature: Sequence[Any], target_context: Any) -> Any:
        """Return the machine code for these argument types, None if no sound file has it.

        Numba's own method also loads its registry of functions, in a tenth of a second.
        """
        names = self.names(signature, target_context)
        content = _files.read(*names)
        try:
            if content is not None:
                payload = _Unpickler(content, self._digest.tuple_classes).load()
                payload[1].modname = self._function.__module__  # the file may have moved since
                return CompileResult._rebuild(target_context, *payload)
        except Exception:  # noqa: BLE001  # no pickle that this code wrote; whatever it raises
            _files.remove(names[0])
        return None

    def save_overload(self, signature: Sequence[Any], result: Any) -> None:
        """Save the machine code for these argument types, unless it holds memory addresses.

        Raises TypeError for a kernel that returns a NamedTuple: the machine code would name the
        class's module, and crash once the module has moved.
        """
        _described(result.signature.return_type, None)
        if _HOLDS_ADDRESSES(result):
            return
        buffer = io.BytesIO()
        _Pickler(buffer, self._digest.tuple_classes).dump(result._reduce())
        _files.write(self.names(signature, result.target_context)[0], buffer.getvalue())


def wheels_environment() -> dict[str, str]:
    """Return environment variables to compile a wheel's kernels; empty if they cannot run here."""
    name, features = _WHEELS_CPU
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features} if _fits_wheels() else {}


@cache
def _fits_wheels() -> bool:
    known = ll.get_host_cpu_features() if platform.machine() == "x86_64" else {}
    return all(known.get(feature) for feature in _FEATURES)


_HOLDS_ADDRESSES = attrgetter("library.has_dynamic_globals")  # of memory: valid here alone


def _described(argument: Any, digest: SourceDigest | None) -> Tree:
    """Return the part of a digest for a numba type: one of _NAMED_TYPES, or a tuple of them.

    Raises TypeError for other types; without `digest` (of a result), for NamedTuples, too. Their
    fields count by name and order, which numba's own type names leave out.
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
    """Pickles compiled code without the names of kvscope's modules, so that these may move."""

    def __init__(self, file: io.BytesIO, tuple_classes: list[type]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._places = {named: place for place, named in enumerate(tuple_classes)}

    def persistent_id(self, value: Any) -> int | None:
        """Return a NamedTuple class's index in `SourceDigest.tuple_classes`, None for others."""
        return self._places.get(value) if isinstance(value, type) else None

    def reducer_override(self, value: Any) -> Any:
        """Pickle compiled code with numba as its module, whose globals it does not read."""
        if isinstance(value, Environment):
            rebuild, (_, constants, name) = value.__reduce__()
            return rebuild, (numba.__name__, constants, name)
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, tuple_classes: list[type]) -> None:
        super().__init__(io.BytesIO(content))
        self._tuple_classes = tuple_classes

    def persistent_load(self, place: int) -> type:
        """Return the NamedTuple class whose index `_Pickler` wrote."""
        return self._tuple_classes[place]
