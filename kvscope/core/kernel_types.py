"""Types of arguments that numba lacks: NamedTuples and functions by their addresses.

By value, each array of a NamedTuple is seven or more numbers in each call, all of which the
compiler tracks; by address, the whole tuple is one number. A kernel that calls functions by address
is compiled once for all functions of a contract. Numba's own first-class functions try three
addresses at each call, one of them of a Python object.

Access to an item of a contiguous array takes few instructions, not numba's 30 for LLVM to remove.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numba import typeof, types
from numba._dispatcher import compute_fingerprint
from numba.core import cgutils
from numba.core.imputils import lower_getattr_generic
from numba.core.typing import signature
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_builtin,
    models,
    register_model,
    type_callable,
    typeof_impl,
    unbox,
)
from numba.np.arrayobj import (
    getitem_array_tuple,
    getitem_arraynd_intp,
    populate_array,
    setitem_array,
)
from numba.np.numpy_support import from_dtype

from kvscope.core import jit
from kvscope.core.kernel_files import hexdigest

_NUMBERS = {int: types.int64, float: types.float64, bool: types.boolean, type(None): types.none}


class Reference(types.Type):  # type: ignore[misc]
    """The type of a NamedTuple that is passed by its address.

    `constant`: the tuple does not change while the kernel runs, so one read of a field is enough.
    """

    def __init__(self, of: Any, constant: bool = False) -> None:
        self.of, self.constant = of, constant
        self.places: list[int] | None = None  # of the fields in memory, once they are known
        kind = "Constant" if constant else "Reference"
        super().__init__(f"{kind}({of.instance_class.__name__}, {hexdigest(str(of))})")


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):  # type: ignore[misc]
    """An untyped address: a typed pointer would repeat the types of all arrays at each use."""

    def __init__(self, known: Any, reference: Reference) -> None:
        super().__init__(known, reference, known.lookup(types.voidptr).get_value_type())


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, reference: Reference, name: str) -> Any:
        """Return the type of field `name`, a reference for a nested NamedTuple; None if unknown."""
        if name not in reference.of.fields:
            return None
        field = reference.of[reference.of.fields.index(name)]
        if isinstance(field, types.BaseNamedTuple):
            return Reference(field, reference.constant)
        return field


@lower_getattr_generic(Reference)
def _load_field(context: Any, builder: Any, reference: Reference, address: Any, name: str) -> Any:
    at = reference.of.fields.index(name)
    if reference.places is None:
        fields = [context.get_value_type(field) for field in reference.of]
        of = cgutils.ir.LiteralStructType(fields)
        count = range(len(fields))
        reference.places = [of.get_element_offset(context.target_data, each) for each in count]
    place = builder.gep(address, [cgutils.intp_t(reference.places[at])], inbounds=True)
    if isinstance(reference.of[at], types.BaseNamedTuple):
        return place
    kind = context.get_value_type(reference.of[at]).as_pointer()
    field = builder.load(builder.bitcast(place, kind))
    if reference.constant:
        field.set_metadata("invariant.load", builder.module.add_metadata([]))
    return field


@type_callable(jit.by_reference)
def _type_reference(context: Any) -> Callable[[Any], Reference]:
    def typer(arrays: Any) -> Reference:
        return Reference(arrays.of if isinstance(arrays, Reference) else arrays)

    return typer


@lower_builtin(jit.by_reference, types.Any)
def _refer(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    """Put a NamedTuple on the calling function's stack; return its address."""
    given, value = called.args[0], arguments[0]
    if isinstance(given, Reference):
        kind = context.get_value_type(given.of).as_pointer()
        value = builder.load(builder.bitcast(value, kind))
    return builder.bitcast(cgutils.alloca_once_value(builder, value), cgutils.voidptr_t)


_DATA, _SHAPE = 4, 5  # of the seven parts of an array


def _item_place(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    """Return an item's address; None for slices, layouts other than C, or with bounds checks on."""
    (array, index), (values, index_value) = called.args[:2], arguments[:2]
    in_tuple = isinstance(index, types.BaseTuple)
    kinds = index.types if in_tuple else (index,)
    plain = all(isinstance(kind, types.Integer) for kind in kinds) and array.layout == "C"
    if not plain or len(kinds) != array.ndim or context.enable_boundscheck:
        return None
    indices = cgutils.unpack_tuple(builder, index_value) if in_tuple else (index_value,)
    place = None
    for dimension, (kind, given) in enumerate(zip(kinds, indices, strict=True)):
        size = builder.extract_value(values, (_SHAPE, dimension))
        at = context.cast(builder, given, kind, types.intp)
        if kind.signed and not getattr(at, "constant", -1) >= 0:
            negative = builder.icmp_signed("<", at, at.type(0))  # from the end
            at = builder.select(negative, builder.add(at, size), at)
        place = at if place is None else builder.add(builder.mul(place, size), at)
    return builder.gep(builder.extract_value(values, _DATA), [place])


@lower_builtin(operator.getitem, types.Array, types.Integer)
@lower_builtin(operator.getitem, types.Array, types.BaseTuple)
def _load_item(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    array = called.args[0]
    place = _item_place(context, builder, called, arguments)
    if place is None:
        in_tuple = isinstance(called.args[1], types.BaseTuple)
        other = getitem_array_tuple if in_tuple else getitem_arraynd_intp
        return other(context, builder, called, arguments)
    return context.unpack_value(builder, array.dtype, place, align=None if array.aligned else 1)


@lower_builtin(operator.setitem, types.Array, types.Integer, types.Any)
@lower_builtin(operator.setitem, types.Array, types.BaseTuple, types.Any)
def _store_item(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    array, _, given = called.args
    place = _item_place(context, builder, called, arguments)
    if place is None:
        return setitem_array(context, builder, called, arguments)
    value = context.cast(builder, arguments[2], given, array.dtype)
    return context.pack_value(
        builder, array.dtype, value, place, align=None if array.aligned else 1
    )


@lower_builtin(len, types.Array)
def _load_length(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    return builder.extract_value(arguments[0], (_SHAPE, 0))


class Bare(types.Type):  # type: ignore[misc]
    """The type of a contiguous array as address and sizes: at most half the words of numba's."""

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__(f"Bare({of})")


@register_model(Bare)
class _BareModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, known: Any, bare: Bare) -> None:
        shape = types.UniTuple(types.intp, bare.of.ndim)
        super().__init__(known, bare, [("data", types.CPointer(bare.of.dtype)), ("shape", shape)])


def unwrapped(argument: Any) -> Any:
    """Return the argument; in compiled code, numba's array for a `Bare` (address and sizes)."""
    return argument


@type_callable(unwrapped)
def _type_unwrapped(context: Any) -> Callable[[Any], Any]:
    def typer(argument: Any) -> Any:
        return argument.of if isinstance(argument, Bare) else argument

    return typer


@lower_builtin(unwrapped, types.Any)
def _unwrap(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    bare, value = called.args[0], arguments[0]
    if not isinstance(bare, Bare):
        return value
    known = cgutils.create_struct_proxy(bare)(context, builder, value=value)
    size = context.get_constant(
        types.intp, context.get_abi_sizeof(context.get_data_type(bare.of.dtype))
    )
    shape = cgutils.unpack_tuple(builder, known.shape)
    strides: list[Any] = []
    step = size
    for length in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, length)
    array = context.make_array(bare.of)(context, builder)
    populate_array(array, known.data, shape, strides, size, None)
    return array._getvalue()  # noqa: SLF001  # numba's own way


class FunctionAddress(types.Callable):  # type: ignore[misc]
    """The type of a function that is called by its address, with its argument and return types."""

    def __init__(self, returns: Any, arguments: tuple[Any, ...]) -> None:
        self.returns, self.arguments = returns, arguments
        self.passed = tuple(
            Bare(each) if isinstance(each, types.Array) else each for each in arguments
        )
        super().__init__(f"Function({returns}, {self.passed})")

    def get_call_type(self, context: Any, arguments: Any, keywords: Any) -> Any:
        """Return the signature of a call, without a check that its arguments fit.

        Where the function takes a NamedTuple, a reference or an opaque address, the argument keeps
        its own type, and `_converted` checks it; numba converts others to the function's type.
        """
        types_of = [
            given if isinstance(wanted, _AS_GIVEN) else wanted
            for given, wanted in zip(arguments, self.arguments, strict=True)
        ]
        return signature(self.returns, *types_of, recvr=self)

    def get_call_signatures(self) -> tuple[list[Any], bool]:
        """Return the function's only signature, and False: it is not parametrized."""
        return [signature(self.returns, *self.arguments)], False

    def get_impl_key(self, called: Any) -> type:
        """Return this class, for which `_call` is registered."""
        return type(self)


@register_model(FunctionAddress)
class _FunctionModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, known: Any, function: FunctionAddress) -> None:
        super().__init__(known, function, known.lookup(types.voidptr).get_value_type())


@lower_builtin(FunctionAddress, FunctionAddress, types.VarArg(types.Any))
def _call(context: Any, builder: Any, called: Any, arguments: Any) -> Any:
    """Call a function by numba's calling convention, and propagate its errors."""
    returns, wanted = called.return_type, called.args[0].passed
    convention = context.call_conv
    address = convention.get_function_type(returns, wanted).as_pointer()
    function = builder.bitcast(arguments[0], address)
    values = [
        _converted(context, builder, *argument)
        for argument in zip(arguments[1:], called.args[1:], wanted, strict=True)
    ]
    status, value = convention.call_function(builder, function, returns, wanted, values)
    with cgutils.if_unlikely(builder, status.is_error):
        convention.return_status_propagate(builder, status)
    return value


class OpaqueAddress(types.Type):  # type: ignore[misc]
    """The type of an address that a kernel only passes on to a function."""

    def __init__(self) -> None:
        super().__init__("OpaqueAddress")


@register_model(OpaqueAddress)
class _AddressModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, known: Any, address: OpaqueAddress) -> None:
        super().__init__(known, address, known.lookup(types.voidptr).get_value_type())


_AS_GIVEN = types.BaseNamedTuple | Reference | OpaqueAddress  # calls convert them, not numba


def _converted(context: Any, builder: Any, value: Any, given: Any, wanted: Any) -> Any:
    """Return an argument of type `given`, converted to the type `wanted` that a function takes.

    An array becomes `Bare`, a whole number an address, and each field of a NamedTuple gets its
    wanted type; other arguments are unchanged. Raises TypeError for a reference to a NamedTuple
    with other types than that of `wanted`.
    """
    if isinstance(wanted, Bare):
        array = context.make_array(given)(context, builder, value=value)
        bare = cgutils.create_struct_proxy(wanted)(context, builder)
        bare.data, bare.shape = array.data, array.shape
        return bare._getvalue()  # noqa: SLF001
    same_tuple = isinstance(wanted, Reference) and given.of == wanted.of
    if given == wanted or same_tuple:
        return value
    if isinstance(wanted, OpaqueAddress) and isinstance(given, Reference):
        return value
    if isinstance(wanted, OpaqueAddress):  # as a whole number
        return builder.inttoptr(value, context.get_value_type(wanted))
    if isinstance(wanted, Reference):
        raise TypeError(f"a function that takes {wanted.of} is called with {given}")
    fields = [
        context.cast(builder, builder.extract_value(value, at), given[at], wanted[at])
        for at in range(len(wanted))
    ]
    return context.make_tuple(builder, wanted, fields)


@typeof_impl.register(jit.Function)
def _type_of_function(function: jit.Function, context: Any) -> FunctionAddress:
    return function_type(function.contract)


@typeof_impl.register(jit.Opaque)
def _type_of_opaque(opaque: jit.Opaque, context: Any) -> OpaqueAddress:
    return OpaqueAddress()


@typeof_impl.register(jit.Referenced)
def _type_of_referenced(referenced: jit.Referenced, context: Any) -> Reference:
    known: Reference = referenced.described(described)
    return known


_types: dict[Any, Reference] = {}


def described(arrays: Any) -> Reference:
    """Return the type of a constant reference to a tuple, cached by the types of its fields."""
    mark = _mark(arrays)
    if mark not in _types:
        _types[mark] = Reference(typeof(arrays), constant=True)
    return _types[mark]


def _mark(value: Any) -> Any:
    """Return a tuple's key in the cache of `described`, equal for tuples of equal type."""
    try:
        return compute_fingerprint(value)
    except NotImplementedError:  # a function, or it has some
        if isinstance(value, jit.Function):
            return value.contract
        return type(value), *map(_mark, value)


@unbox(OpaqueAddress)
@unbox(FunctionAddress)
@unbox(Reference)
def _take_address(passed: Any, value: Any, context: Any) -> Any:
    """Unbox a Python object as the whole number in its attribute `address`."""
    number = context.pyapi.object_getattr_string(value, "address")
    with cgutils.if_unlikely(context.builder, cgutils.is_null(context.builder, number)):
        context.builder.ret(context.pyapi.get_null_object())  # what was raised is raised
    address = context.pyapi.long_as_voidptr(number)
    context.pyapi.decref(number)
    wanted = context.context.get_value_type(passed)
    return NativeValue(context.builder.bitcast(address, wanted))


@cache
def function_type(contract: Callable[..., Any], memory: Any = None) -> FunctionAddress:
    """Return the type of functions with the annotations of `contract`.

    `memory` is the type of arguments annotated `Any`; by default an opaque address.
    """
    memory = OpaqueAddress() if memory is None else memory
    hints = get_type_hints(contract)
    returns = _type_of(hints.pop("return"), memory)
    return FunctionAddress(returns, tuple(_type_of(hint, memory) for hint in hints.values()))


def _type_of(hint: Any, memory: Any) -> Any:
    """Return numba's type for an annotation, `memory` for `Any`; arrays are contiguous."""
    if hint is Any:
        return memory
    if hint in _NUMBERS:
        return _NUMBERS[hint]
    # NumPy 2.5 defines NDArray, and the shape in it, by statements of `type`.
    alias = getattr(get_origin(hint), "__value__", None)
    if alias is not None:
        return _type_of(alias[get_args(hint)], memory)
    if get_origin(hint) is np.ndarray:
        shape, dtype = get_args(hint)
        sizes = get_args(getattr(shape, "__value__", shape))
        dimensions = 1 if Ellipsis in sizes else len(sizes)
        return types.Array(from_dtype(np.dtype(get_args(dtype)[0])), dimensions, "C")
    if get_origin(hint) is tuple:
        return types.BaseTuple.from_types([_type_of(each, memory) for each in get_args(hint)])
    named = _tuple_type(hint)
    by_value = all(isinstance(field, types.Number | types.Boolean) for field in named)
    return named if by_value else Reference(named)


def _tuple_type(named: type) -> Any:
    """Return the type of a NamedTuple by value, including NamedTuples in its fields."""
    fields = []
    for hint in get_type_hints(named).values():
        field = _type_of(hint, OpaqueAddress())
        fields.append(field.of if isinstance(field, Reference) else field)
    return types.BaseTuple.from_types(fields, named)


def layout(value: Any) -> bytes:
    """Return a NamedTuple of arrays, numbers and functions as bytes in numba's memory layout.

    Booleans take one byte; all else begins at a multiple of 8 bytes. An array is two addresses for
    numba's memory manager (0), its number of entries, bytes per entry, address, sizes and strides.
    """
    if isinstance(value, tuple):
        memory = b""
        for field in value:
            memory += layout(field) if isinstance(field, bool) else _aligned(memory) + layout(field)
        return memory + _aligned(memory)
    if isinstance(value, bool | np.bool_):
        return bytes([bool(value)])
    if isinstance(value, np.ndarray):
        begin = value.__array_interface__["data"][0]
        words = (0, 0, value.size, value.itemsize, begin, *value.shape, *value.strides)
        return struct.pack(f"{len(words)}q", *words)
    if isinstance(value, jit.Function):
        return struct.pack("q", value.address)
    return struct.pack("d" if isinstance(value, float) else "q", value)


def _aligned(memory: bytes) -> bytes:
    return bytes(-len(memory) % 8)
