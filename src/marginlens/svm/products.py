"""Inner products of rows with a fixed order of additions: explicit vector lanes, so the compiler need not reorder sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from marginlens.compilation import njit
from marginlens.data.tokens import FloatArray, IntArray

LANES = 4


def _block_of_dots(n_left: int, n_right: int, *, matched: bool = False, fetching: bool = False) -> Callable[..., Any]:
    """A compiled f(A, left, B, right, length) of inner products between the first `length` entries of rows of A and of B.

    A and B are C-ordered matrices, or vectors; left and right are tuples of row numbers. Every left row meets every right
    row, or only its own partner when `matched`. `length` must be a multiple of LANES; each product is held in LANES partial
    sums. When `fetching`, left names one more row that is only brought into the cache meanwhile; it may lie past the end.
    """
    meetings = [(i, j) for i in range(n_left) for j in range(n_right) if not matched or i == j]

    @intrinsic
    def dots(typingctx: Any, A: Any, left: Any, B: Any, right: Any, length: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            word, (lane, fma) = ir.IntType(64), _vector_fma(builder)
            starts = [
                _row_start(context, builder, kind, array, builder.extract_value(numbers, r))
                for kind, array, numbers, n in ((A, args[0], args[1], n_left), (B, args[2], args[3], n_right))
                for r in range(n)
            ]
            if fetching:
                ahead = _row_start(context, builder, A, args[0], builder.extract_value(args[1], n_left))
            nothing = ir.Constant(lane, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, nothing) for _ in meetings]
            for place in sums:
                builder.store(nothing, place)
            with cgutils.for_range(builder, builder.udiv(args[4], word(LANES))) as loop:
                offset = builder.mul(loop.index, word(LANES))
                places = [builder.bitcast(builder.gep(start, [offset]), lane.as_pointer()) for start in starts]
                parts = [builder.load(place, align=8) for place in places]
                if fetching:
                    _prefetch(builder, builder.gep(ahead, [offset]))
                for place, (i, j) in zip(sums, meetings, strict=True):
                    builder.store(builder.call(fma, (parts[i], parts[n_left + j], builder.load(place))), place)
            totals = []
            for place in sums:
                held = builder.load(place)
                one, two, three, four = (builder.extract_element(held, ir.IntType(32)(q)) for q in range(LANES))
                totals.append(builder.fadd(builder.fadd(one, two), builder.fadd(three, four)))
            return context.make_tuple(builder, sig.return_type, totals)

        rows = (types.UniTuple(types.int64, n_left + fetching), types.UniTuple(types.int64, n_right))
        result = types.UniTuple(types.float64, len(meetings))
        return result(A, rows[0], B, rows[1], types.int64), generate

    return dots


@intrinsic
def _add_multiples_4(typingctx: Any, A: Any, rows: Any, weights: Any, out: Any, length: Any) -> Any:
    """out[:length] += sum over q < 4 of weights[q] * A[rows[q], :length]; `length` must be a multiple of LANES."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word, (lane, fma) = ir.IntType(64), _vector_fma(builder)
        starts = [_row_start(context, builder, A, args[0], builder.extract_value(args[1], q)) for q in range(4)]
        starts.append(_row_start(context, builder, out, args[3], word(0)))
        factors = []
        for q in range(4):
            one = builder.insert_element(ir.Constant(lane, ir.Undefined), builder.extract_value(args[2], q), word(0))
            spread = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            factors.append(builder.shuffle_vector(one, ir.Constant(lane, ir.Undefined), spread))
        with cgutils.for_range(builder, builder.udiv(args[4], word(LANES))) as loop:
            offset = builder.mul(loop.index, word(LANES))
            places = [builder.bitcast(builder.gep(start, [offset]), lane.as_pointer()) for start in starts]
            total = builder.load(places[4], align=8)
            for q in range(4):
                total = builder.call(fma, (factors[q], builder.load(places[q], align=8), total))
            builder.store(total, places[4], align=8)
        return context.get_dummy_value()

    four = types.UniTuple(types.int64, 4), types.UniTuple(types.float64, 4)
    return types.void(A, four[0], four[1], out, types.int64), generate


def _vector_fma(builder: Any) -> tuple[Any, Any]:
    """The type of LANES doubles and the fused multiply-add on it."""
    lane = ir.VectorType(ir.DoubleType(), LANES)
    kind = ir.FunctionType(lane, [lane] * 3)
    return lane, cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f64")


def _prefetch(builder: Any, place: Any) -> None:
    """Ask for the cache line at an address, to be read soon."""
    word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.bitcast(place, byte), word(0), word(2), word(1)])


def _row_start(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """Where a row of a C-ordered matrix begins; a vector is its own row 0."""
    view = context.make_array(kind)(context, builder, array)
    if kind.ndim == 1:
        return view.data
    width = cgutils.unpack_tuple(builder, view.shape)[1]
    return builder.gep(view.data, [builder.mul(row, width)])


_dots_4x2 = _block_of_dots(4, 2, fetching=True)
_dots_2x2 = _block_of_dots(2, 2)
dots_4x1 = _block_of_dots(4, 1)
_dots_1x1 = _block_of_dots(1, 1)
_squares_4 = _block_of_dots(4, 4, matched=True)


@njit(cache=True, nogil=True)
def row_squares(A: FloatArray, out: FloatArray) -> None:
    """out[r] = A[r] · A[r]."""
    n, d = A.shape
    whole = d - d % LANES
    for i in range(0, n, 4):
        rows = (i, min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1))
        totals = _squares_4(A, rows, A, rows, whole)
        for q in range(4):
            total = totals[q]
            for k in range(whole, d):
                total += A[rows[q], k] * A[rows[q], k]
            out[rows[q]] = total


@njit(cache=True, nogil=True)
def row_dot(A: FloatArray, r: int, x: FloatArray) -> float:
    """A[r] · x."""
    d = A.shape[1]
    whole = d - d % LANES
    total = _dots_1x1(A, (r,), x, (0,), whole)[0]
    for k in range(whole, d):
        total += A[r, k] * x[k]
    return total


@njit(cache=True, nogil=True)
def square_sum(x: FloatArray) -> float:
    """x · x."""
    whole = len(x) - len(x) % LANES
    total = _dots_1x1(x, (0,), x, (0,), whole)[0]
    for k in range(whole, len(x)):
        total += x[k] * x[k]
    return total


@njit(cache=True, nogil=True)
def apply_rows(A: FloatArray, n: int, x: FloatArray, out: FloatArray) -> None:
    """out[:n] = A[:n] @ x."""
    d = A.shape[1]
    whole = d - d % LANES
    for i in range(0, n, 4):
        i1, i2, i3 = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        s0, s1, s2, s3 = dots_4x1(A, (i, i1, i2, i3), x, (0,), whole)
        for k in range(whole, d):
            s0 += A[i, k] * x[k]
            s1 += A[i1, k] * x[k]
            s2 += A[i2, k] * x[k]
            s3 += A[i3, k] * x[k]
        out[i], out[i1], out[i2], out[i3] = s0, s1, s2, s3


@njit(cache=True, nogil=True)
def combine_rows(A: FloatArray, n: int, weights: FloatArray, out: FloatArray) -> None:
    """out = sum over r < n of weights[r] * A[r]."""
    out[:] = 0.0
    for i in range(0, n, 4):
        w0 = weights[i]
        w1 = weights[i + 1] if i + 1 < n else 0.0
        w2 = weights[i + 2] if i + 2 < n else 0.0
        w3 = weights[i + 3] if i + 3 < n else 0.0
        if w0 != 0.0 or w1 != 0.0 or w2 != 0.0 or w3 != 0.0:
            last = n - 1
            _add_four(A, (i, min(i + 1, last), min(i + 2, last), min(i + 3, last)), (w0, w1, w2, w3), out)


@njit(cache=True, nogil=True)
def combine_chosen(A: FloatArray, chosen: IntArray, weights: FloatArray, out: FloatArray) -> None:
    """out = sum over i of weights[i] * A[chosen[i]]."""
    n = len(chosen)
    out[:] = 0.0
    for i in range(0, n, 4):
        w1 = weights[i + 1] if i + 1 < n else 0.0
        w2 = weights[i + 2] if i + 2 < n else 0.0
        w3 = weights[i + 3] if i + 3 < n else 0.0
        last = n - 1
        rows = (chosen[i], chosen[min(i + 1, last)], chosen[min(i + 2, last)], chosen[min(i + 3, last)])
        _add_four(A, rows, (weights[i], w1, w2, w3), out)


@njit(cache=True, nogil=True)
def _add_four(A: FloatArray, rows: Any, weights: Any, out: FloatArray) -> None:
    d = A.shape[1]
    whole = d - d % LANES
    _add_multiples_4(A, rows, weights, out, whole)
    r0, r1, r2, r3 = rows
    w0, w1, w2, w3 = weights
    for k in range(whole, d):
        out[k] += (w0 * A[r0, k] + w1 * A[r1, k]) + (w2 * A[r2, k] + w3 * A[r3, k])


@njit(cache=True, nogil=True)
def gram(A: FloatArray, chosen: IntArray, known: int, G: FloatArray) -> None:
    """Lower triangle of the Gram matrix of the rows A[chosen], from row `known` on, written into the leading block of G."""
    n, d = len(chosen), A.shape[1]
    whole = d - d % LANES
    for i in range(known, n, 4):
        i1, i2, i3 = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        r0, r1, r2, r3 = chosen[i], chosen[i1], chosen[i2], chosen[i3]
        for j in range(0, min(i + 2, n), 2):
            j1 = min(j + 1, n - 1)
            c0, c1 = chosen[j], chosen[j1]
            ahead = r3 + 1 + min(j // 2, 3)
            s00, s01, s10, s11, s20, s21, s30, s31 = _dots_4x2(A, (r0, r1, r2, r3, ahead), A, (c0, c1), whole)
            for k in range(whole, d):
                left, right = A[c0, k], A[c1, k]
                s00 += A[r0, k] * left
                s01 += A[r0, k] * right
                s10 += A[r1, k] * left
                s11 += A[r1, k] * right
                s20 += A[r2, k] * left
                s21 += A[r2, k] * right
                s30 += A[r3, k] * left
                s31 += A[r3, k] * right
            G[i, j], G[i, j1] = s00, s01
            G[i1, j], G[i1, j1] = s10, s11
            G[i2, j], G[i2, j1] = s20, s21
            G[i3, j], G[i3, j1] = s30, s31
        s22, s32, _, s33 = _dots_2x2(A, (r2, r3), A, (r2, r3), whole)
        for k in range(whole, d):
            s22 += A[r2, k] * A[r2, k]
            s32 += A[r3, k] * A[r2, k]
            s33 += A[r3, k] * A[r3, k]
        G[i2, i2], G[i3, i2], G[i3, i3] = s22, s32, s33
