"""Numba's compilation pipeline, reduced to the passes, lowering and calls that kernels need.

Kernels have no closures, array expressions, `try` or reference counts. Numba's own pipeline looks
for all of these in every function, repeats its analyses after each look, and writes code for them
at each assignment and call: a sixth of its time, and a quarter of its output. It also searches all
overloads of `+` for the types of each `a + b`: another sixth.

Source: numba 0.61 to 0.68, numba/core/: compiler.py (DefaultPassBuilder), compiler_machinery.py,
typed_passes.py, lowering.py, callconv.py.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import (
    FunctionPass,
    PassManager,
    _pass_registry,
    register_pass,
)
from numba.core.ir import UNDEFINED
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.ssa import reconstruct_ssa
from numba.core.typed_passes import (
    BaseNativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.typing import Context
from numba.core.untyped_passes import FixupArgs, GenericRewrites, TranslateByteCode
from numba.extending import models, register_model

from kvscope.core.jit import APART

# A frame of Python's of so many words takes a piece of stack of 2 MiB, of which it leaves a half.
_STACK_WORDS = (1 << 17) + 1024
# Numba makes millions of objects that live until a kernel is compiled: to look through them each
# 700 new ones took a tenth of the time.
_NEW_OBJECTS = (50_000, 20, 100)


class CalledFunction(types.Dispatcher):  # type: ignore[misc]
    """The type of a function that kernels call; its signed integer arguments have 64 bits.

    Numba converts narrower arguments. With numba's `overload` a function is compiled again for each
    integer size, and for each caller's set of options.
    """

    def get_call_type(self, context: Any, arguments: Any, keywords: Any) -> Any:
        """Return the signature of a call, with signed integers widened to 64 bits."""
        named = {name: _widened(given) for name, given in keywords.items()}
        return super().get_call_type(context, tuple(map(_widened, arguments)), named)


register_model(CalledFunction)(models.OpaqueModel)  # as numba's own


def _widened(given: Any) -> Any:
    given = types.unliteral(given)
    narrow = isinstance(given, types.Integer) and given.signed and given.bitwidth < 64
    return types.int64 if narrow else given


class _Context(Context):  # type: ignore[misc]
    """Numba's typing context with a cache of the signatures of Python's own functions."""

    def __init__(self, whole: Any) -> None:
        self.__dict__ = whole.__dict__

    def resolve_function_type(self, function: Any, arguments: Any, keywords: Any) -> Any:
        if keywords or not isinstance(getattr(function, "typing_key", function), _BUILTIN):
            return super().resolve_function_type(function, arguments, keywords)
        key = function, tuple(arguments)
        if key not in _signatures:
            _signatures[key] = super().resolve_function_type(function, arguments, keywords)
        return _signatures[key]


_signatures: dict[Any, Any] = {}
_BUILTIN = BuiltinFunctionType | type
_context = cache(_Context)  # one for numba's own


class _Lower(Lower):  # type: ignore[misc]
    """Lowers a function to LLVM code without reference counts; errors return to the caller."""

    def lower_normal_function(self, described: Any) -> None:
        """Lower the function; if `called_by_kernels` marked it, keep it small and out of line."""
        super().lower_normal_function(described)
        if APART in self.func_ir.func_id.func.__dict__:
            self.function.attributes.add("optsize")
            self.function.attributes.add("noinline")

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Store a variable without releasing its previous value."""
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Return the stack slot of a variable, without debug information."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)

    def lower_binop(self, wanted: Any, expression: Any, operation: Any) -> Any:
        """Lower a binary operation with its inferred types; leave a constant `x**2` to numba."""
        if expression.static_rhs is not UNDEFINED:
            return super().lower_binop(wanted, expression, operation)
        known = _context(self.context.typing_context)
        function, called = known.resolve_value_type(operation), self.fndesc.calltypes[expression]
        sides = expression.lhs.name, expression.rhs.name
        values = [
            self.context.cast(self.builder, self.loadvar(side), self.typeof(side), kind)
            for side, kind in zip(sides, called.args, strict=True)
        ]
        signature = known.resolve_function_type(function, called.args, {})
        value = self.context.get_function(function, signature)(self.builder, values)
        return self.context.cast(self.builder, value, called.return_type, wanted)

    def _lower_call_normal(self, function: Any, call: Any, signature: Any) -> Any:
        """Lower a call; an error of the called function becomes that of the caller, uncopied."""
        known = isinstance(function, CalledFunction)
        if not known or isinstance(signature.return_type, types.Optional):
            return super()._lower_call_normal(function, call, signature)
        values = self.fold_call_args(function, signature, call.args, call.vararg, call.kws)
        compiled = function.dispatcher.overloads[signature.args]
        builder, convention, described = self.builder, self.call_conv, compiled.fndesc
        self.context.add_linking_libs(self.context.get_function(function, signature).libs)
        callee = self.context.declare_function(builder.module, described)
        place = cgutils.alloca_once(
            builder, convention.get_return_type(described.restype).pointee, zfill=True
        )
        raised = convention._get_excinfo_argument(builder.function)
        passed = convention._get_arg_packer(described.argtypes).as_arguments(builder, values)
        code = builder.call(callee, [place, raised, *passed])
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", code, code.type(0))):
            builder.ret(code)
        value = builder.load(place)
        return self.context.get_returned_value(builder, described.restype, value)


@register_pass(mutates_CFG=False, analysis_only=False)
class _Lowering(BaseNativeLowering):  # type: ignore[misc]
    _name = "kernel_lowering"
    lowering_class = _Lower


@register_pass(mutates_CFG=True, analysis_only=False)
class _SingleAssignment(FunctionPass):  # type: ignore[misc]
    """Numba's pass into single-assignment form, without the analyses after it."""

    _name = "kernel_single_assignment"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.func_ir = reconstruct_ssa(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _WithoutPhis(PreLowerStripPhis):  # type: ignore[misc]
    _name = "kernel_without_phis"

    def run_pass(self, state: Any) -> bool:
        """Replace phi nodes by assignments in the preceding basic blocks."""
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        return True


_PASSES = (
    TranslateByteCode,
    FixupArgs,
    GenericRewrites,
    _SingleAssignment,
    NopythonTypeInference,
    _WithoutPhis,
    _Lowering,
    NoPythonBackend,
)


class _Passes(PassManager):  # type: ignore[misc]
    def run(self, state: Any) -> None:
        """Run the passes in order, without numba's timing and events."""
        for kind, _ in self.passes:
            step = _pass_registry.get(kind).pass_inst
            step.analysis = self._analysis
            step.run_pass(state)


class Compiler(CompilerBase):  # type: ignore[misc]
    """Numba's compiler with only the passes that kernels need."""

    def define_pipelines(self) -> list[Any]:
        """Return a list with the one pipeline."""
        self.state.typingctx = _context(self.state.typingctx)
        passes = _Passes("kernel")
        for step in _PASSES:
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]


def undisturbed(call: Callable[[Any], Any], argument: Any) -> Any:
    """Return `call(argument)`, with rarer garbage collection and Python's stack in one piece.

    By default the stack grows by chunks of 16 KiB. Where a chunk ends within a loop of numba, each
    call there maps and releases memory, for up to a quarter of the compile time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_NEW_OBJECTS)
    try:
        return call(argument)
    finally:
        gc.set_threshold(*before)


undisturbed.__code__ = undisturbed.__code__.replace(co_stacksize=_STACK_WORDS)
