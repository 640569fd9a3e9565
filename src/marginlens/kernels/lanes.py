"""Four doubles as one value in compiled code, which the compiler holds in vector registers: two of NEON, or one of AVX2.

Sums, differences, products and quotients are written as those of numbers, with numbers on either side; the functions below are for
numbers and for lanes alike. What happens in one lane never depends on the others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

N_LANES = 4


class _LanesType(types.Type):
    """The type of four doubles."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


_DOUBLE, _BITS = ir.DoubleType(), ir.IntType(64)
_VECTOR, _BIT_VECTOR = ir.VectorType(_DOUBLE, N_LANES), ir.VectorType(_BITS, N_LANES)
lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _spread(builder: Any, value: Any) -> Any:
    """A number in every lane; lanes as they are."""
    if value.type == _VECTOR:
        return value
    vector = ir.Constant(_VECTOR, ir.Undefined)
    for k in range(N_LANES):
        vector = builder.insert_element(vector, value, ir.Constant(ir.IntType(32), k))
    return vector


def _define(operation: Any, instruction: str) -> None:
    """An operation between lanes, and between lanes and numbers."""

    @type_callable(operation)
    def operation_type(context: Any) -> Callable[[Any, Any], Any]:
        def of(x: Any, y: Any) -> Any:
            pair = {x, y}
            return lanes if pair == {lanes} or pair == {lanes, types.float64} else None

        return of

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*(_spread(builder, value) for value in arguments))

    for pair in ((lanes, lanes), (lanes, types.float64), (types.float64, lanes)):
        lower_builtin(operation, *pair)(generate)


for _operation, _instruction in (
    (operator.add, "fadd"),
    (operator.iadd, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.imul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define(_operation, _instruction)


_POINTER = types.CPointer(types.float64)


def _four_at(builder: Any, start: Any, k: Any) -> Any:
    return builder.bitcast(builder.gep(start, [k]), _VECTOR.as_pointer())


@intrinsic
def pointer(typing_context: Any, array: Any) -> Any:
    """Where the entries of a contiguous array begin; x[k] reads and writes as that of the array, flat.

    A pointer does not hold on to the array: whoever makes one lets a call have it and uses the array after that. In return it costs no
    counting of references, which in a step of a hundred nanoseconds is half of it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def offset(typing_context: Any, start: Any, k: Any) -> Any:
    """The pointer k entries further on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return _POINTER(_POINTER, types.intp), generate


@intrinsic
def load(typing_context: Any, start: Any, k: Any) -> Any:
    """The entries k, …, k + 3 from a pointer on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_four_at(builder, *arguments))
        value.align = 8
        return value

    return lanes(_POINTER, types.intp), generate


@intrinsic
def store(typing_context: Any, start: Any, k: Any, x: Any) -> Any:
    """The entries k, …, k + 3 from a pointer on become the lanes of x."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        written = builder.store(arguments[2], _four_at(builder, *arguments[:2]))
        written.align = 8
        return context.get_dummy_value()

    return types.void(_POINTER, types.intp, lanes), generate


def _four_entries(context: Any, builder: Any, kind: Any, array: Any, indices: list[Any]) -> Any:
    """Four neighbours along the last axis: one load where that axis is contiguous, four elsewhere."""
    array = context.make_array(kind)(context, builder, array)
    if kind.layout == "C":
        place = cgutils.get_item_pointer(context, builder, kind, array, indices, wraparound=False, boundscheck=False)
        value = builder.load(builder.bitcast(place, _VECTOR.as_pointer()))
        value.align = 8
        return value
    vector, last = ir.Constant(_VECTOR, ir.Undefined), indices[-1]
    for k in range(N_LANES):
        entry = [*indices[:-1], builder.add(last, ir.Constant(last.type, k))]
        place = cgutils.get_item_pointer(context, builder, kind, array, entry, wraparound=False, boundscheck=False)
        vector = builder.insert_element(vector, builder.load(place), ir.Constant(ir.IntType(32), k))
    return vector


@intrinsic
def four_entries(typing_context: Any, x: Any, k: Any) -> Any:
    """The entries k, …, k + 3 of an array of one axis, contiguous or not."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _four_entries(context, builder, signature.args[0], arguments[0], [arguments[1]])

    return lanes(x, types.intp), generate


@intrinsic
def four_in_row(typing_context: Any, A: Any, row: Any, k: Any) -> Any:
    """The entries k, …, k + 3 of a row of a matrix, contiguous or not."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _four_entries(context, builder, signature.args[0], arguments[0], list(arguments[1:]))

    return lanes(A, types.intp, types.intp), generate


@intrinsic
def spread(typing_context: Any, x: Any) -> Any:
    """A number in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _spread(builder, arguments[0])

    return lanes(types.float64), generate


@intrinsic
def where_greater(typing_context: Any, x: Any, y: Any, yes: Any, no: Any) -> Any:
    """`yes` where x > y, `no` elsewhere, in every lane."""
    kind = lanes if lanes in (x, y, yes, no) else types.float64
    given = tuple(lanes if argument == lanes else types.float64 for argument in (x, y, yes, no))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if kind == lanes:
            arguments = [_spread(builder, value) for value in arguments]
        return builder.select(builder.fcmp_ordered(">", arguments[0], arguments[1]), arguments[2], arguments[3])

    return kind(*given), generate


@intrinsic
def power_of_two(typing_context: Any, x: Any) -> Any:
    """The double whose biased exponent is in the last bits of x."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = arguments[0].type == _VECTOR
        bits = _BIT_VECTOR if vector else _BITS
        shift = ir.Constant(bits, [52] * N_LANES if vector else 52)
        return builder.bitcast(builder.shl(builder.bitcast(arguments[0], bits), shift), arguments[0].type)

    return x(x), generate


@intrinsic
def transpose(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The 4 × 4 matrix with these rows, by its columns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def chosen(x: Any, y: Any, *order: int) -> Any:
            return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), N_LANES), list(order)))

        rows = arguments
        even = [chosen(rows[k], rows[k + 1], 0, 4, 2, 6) for k in (0, 2)]
        odd = [chosen(rows[k], rows[k + 1], 1, 5, 3, 7) for k in (0, 2)]
        columns = [chosen(*pair, *order) for order in ((0, 1, 4, 5), (2, 3, 6, 7)) for pair in (even, odd)]
        return context.make_tuple(builder, signature.return_type, columns)

    return types.UniTuple(lanes, N_LANES)(lanes, lanes, lanes, lanes), generate


@intrinsic
def lane_sum(typing_context: Any, x: Any) -> Any:
    """The sum over the lanes, ((0) + (1)) + ((2) + (3))."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        entries = [builder.extract_element(arguments[0], ir.Constant(ir.IntType(32), k)) for k in range(N_LANES)]
        return builder.fadd(builder.fadd(entries[0], entries[1]), builder.fadd(entries[2], entries[3]))

    return types.float64(lanes), generate


@intrinsic
def modulus(typing_context: Any, x: Any) -> Any:
    """|x| in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _BIT_VECTOR)
        mask = ir.Constant(_BIT_VECTOR, [2**63 - 1] * N_LANES)
        return builder.bitcast(builder.and_(bits, mask), _VECTOR)

    return lanes(lanes), generate


def _extreme(comparison: str) -> Any:
    """The larger or the smaller of two, in every lane; neither is nan."""

    @intrinsic
    def extreme(typing_context: Any, x: Any, y: Any) -> Any:
        kind = lanes if lanes in (x, y) else types.float64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            left, right = (_spread(builder, value) for value in arguments) if kind == lanes else arguments
            flags = ("nnan", "nsz")  # without which processors need three instructions
            chosen = builder.fcmp_ordered(comparison, left, right, flags=flags)
            return builder.select(chosen, left, right, flags=flags)

        return kind(*(lanes if argument == lanes else types.float64 for argument in (x, y))), generate

    return extreme


larger, smaller = _extreme(">"), _extreme("<")


@intrinsic
def lane_max(typing_context: Any, x: Any) -> Any:
    """The largest of the lanes, none of which is nan."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        entries = [builder.extract_element(arguments[0], ir.Constant(ir.IntType(32), k)) for k in range(N_LANES)]
        pairs = [builder.select(builder.fcmp_ordered(">", x, y), x, y) for x, y in (entries[:2], entries[2:])]
        return builder.select(builder.fcmp_ordered(">", pairs[0], pairs[1]), pairs[0], pairs[1])

    return types.float64(lanes), generate
