"""Random problems by counter: the numbers of problem j of a cell under a seed depend on these three alone.

Numbers come from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a bijection of a counter of four
32-bit words under a key of two. The key is the seed; the counter is (block, j mod 2³², j div 2³², cell). Each block of 128 bits makes
two normals by Box and Muller's method, so any problem can be made without those before it, on any thread, process or device.

Only additions, multiplications, divisions and square roots are used, none of them fused, and sums have a fixed order: the bits are the
same on every processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.device_tokens import DeviceTokens
from marginlens.data.tokens import TokenDataset
from marginlens.errors import reject, whole_number
from marginlens.gpu.device import as_device
from marginlens.gpu.random_problems import Numbers, random_arrays, random_keys
from marginlens.runtime.compilation import njit
from marginlens.runtime.threads import over_problems
from marginlens.typing import FloatArray

MAX_SEED, MAX_CELL, MAX_PROBLEM, MAX_BLOCKS = 2**64 - 1, 2**32 - 1, 2**63 - 1, 2**32 - 1
SHARED_PROBLEM = 2**64 - 1  # the problem number of what all problems of a cell share
_BLOCKS_AT_ONCE = 1024  # that are made together and stay in the first cache
_EXACT: dict[str, Any] = {"nogil": True, "error_model": "numpy"}  # no fastmath: every operation is rounded as written
_U32, _ROUNDS = np.uint64(32), 10
_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_BUMP_0, _BUMP_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_FRACTION, _ONE_BITS = np.uint64(2**52 - 1), np.uint64(0x3FF << 52)
_HALF_ROOT_BITS = np.int64(0x3FE6A09E667F3BCD)  # √½ as the integer with its bits
_LN_2, _HALF_PI = 0.6931471805599453, 1.5707963267948966


def sphere_problems(
    first: int,
    last: int,
    n_inputs: int,
    n_tokens: int,
    d_model: int,
    seed: int,
    cell: int = 0,
    *,
    device: str = "cpu",
) -> tuple[Any, Any]:
    """Problems first … last - 1 of a cell as `sphere_tokens` makes them: tokens and head uniform on the unit sphere, labels ±1, W = I.

    Problem j is the same, bit by bit, whatever `first` and `last` are, and on every processor and device.

    Args:
        first: number of the first problem, from 0. last: one beyond the last, at most 2⁶³ - 1.
        seed: from 0 to 2⁶⁴ - 1. cell: from 0 to 2³² - 1, an independent family of problems, such as a point of a grid.
        device: "cpu", or "cuda" or "cuda:1", where the problems then stay.
    Returns:
        A batch of last - first problems and their heads v, (last - first, d_model); with a device, `DeviceTokens` and an array there.
    """
    shape = _shape(first, last, n_inputs, n_tokens, d_model, seed, cell)
    if device != "cpu":
        return _on_device(*shape, seed, cell, on_sphere=True, device=device)
    X, v, y = _made(*shape, seed, cell, on_sphere=True)
    return TokenDataset(X, y), v


def gaussian_problems(
    first: int,
    last: int,
    n_inputs: int,
    n_tokens: int,
    d_model: int,
    seed: int,
    cell: int = 0,
    *,
    device: str = "cpu",
) -> tuple[Any, Any]:
    """Problems first … last - 1 of a cell as `gaussian_tokens` makes them: standard normal tokens and heads, labels ±1, keys X Wᵀ.

    W (d_model, d_model) has entries of variance 1/d_model and is the same for all problems of a cell. Arguments and returned values are
    those of `sphere_problems`.
    """
    shape = _shape(first, last, n_inputs, n_tokens, d_model, seed, cell)
    if device != "cpu":
        return _on_device(*shape, seed, cell, on_sphere=False, device=device)
    X, v, y = _made(*shape, seed, cell, on_sphere=False)
    W, K = shared_matrix(d_model, seed, cell), np.empty_like(X)
    rows = (X.reshape(-1, d_model), K.reshape(-1, d_model))
    over_problems(_key_rows, len(rows[0]), np.ascontiguousarray(W.T), *rows, step_cost=2.0 * d_model * d_model)
    return TokenDataset(X, y, K=K), v


def shared_matrix(d_model: int, seed: int, cell: int = 0) -> FloatArray:
    """The key-query matrix W (d_model, d_model) of `gaussian_problems`: normal entries over √d_model."""
    matrix = np.empty((1, d_model, d_model))
    numbers = (np.uint64(SHARED_PROBLEM), np.uint64(seed), np.uint64(cell))
    _normal_rows(0, 1, *numbers, np.uint64(0), False, matrix)
    return np.asarray(matrix[0] / np.sqrt(float(d_model)))


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """The four 32-bit words that Philox4x32-10 makes of a counter under a key."""
    low, high = _philox(*(np.uint64(word) for word in (*counter, *key)))
    return int(low) & 0xFFFFFFFF, int(low) >> 32, int(high) & 0xFFFFFFFF, int(high) >> 32


def _shape(
    first: Any, last: Any, n_inputs: Any, n_tokens: Any, d_model: Any, seed: Any, cell: Any
) -> tuple[int, int, int, int, int]:
    """Checked arguments: first, last, n_inputs, n_tokens and d_model."""
    whole_number(first, "first", at_least=0)
    whole_number(last, "last", at_least=first + 1)
    sizes = {"n_inputs": n_inputs, "n_tokens": n_tokens, "d_model": d_model}
    for name, size in sizes.items():
        whole_number(size, name, at_least=1)
    for name, number, largest in (("seed", seed, MAX_SEED), ("cell", cell, MAX_CELL)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number <= largest:
            raise reject(name, f"a whole number from 0 to {largest}", repr(number))
    n_blocks = (n_inputs * n_tokens + 1) * -(-d_model // 2) + -(-n_inputs // 128)
    if n_blocks > MAX_BLOCKS:
        raise reject("d_model", f"small enough for {2 * MAX_BLOCKS} numbers a problem", d_model)
    return int(first), int(last), int(n_inputs), int(n_tokens), int(d_model)


def _made(
    first: int, last: int, n_inputs: int, n_tokens: int, d: int, seed: int, cell: int, *, on_sphere: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Tokens (n, n_inputs, n_tokens, d), heads (n, d) and labels (n, n_inputs) of problems first … last - 1."""
    n_problems, n_rows, n_blocks = last - first, n_inputs * n_tokens, -(-d // 2)  # of the tokens, of each of their rows
    X, v, y = np.empty((n_problems, n_rows, d)), np.empty((n_problems, 1, d)), np.empty((n_problems, n_inputs))
    numbers = (np.uint64(first), np.uint64(seed), np.uint64(cell))
    for rows, block in ((X, 0), (v, n_rows * n_blocks)):
        cost = 20.0 * rows.shape[1] * d
        over_problems(_normal_rows, n_problems, *numbers, np.uint64(block), on_sphere, rows, step_cost=cost)
    _labels(*numbers, np.uint64((n_rows + 1) * n_blocks), y)
    return X.reshape(n_problems, n_inputs, n_tokens, d), v[:, 0], y


def _on_device(
    first: int, last: int, n_inputs: int, n_tokens: int, d: int, seed: int, cell: int, *, on_sphere: bool, device: str
) -> tuple[DeviceTokens, Any]:
    """The same problems in arrays on a device."""
    where: Any = as_device(device)
    shape = (last - first, n_inputs, n_tokens, d)
    X, v, y = random_arrays(where, Numbers(first, seed, cell), shape, on_sphere=on_sphere)
    K = None if on_sphere else random_keys(where, shared_matrix(d, seed, cell), X)
    return DeviceTokens(X, y, K, device=where), v


# ---- compiled: words, normals, rows


@njit(**_EXACT)
def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any]:
    """Words 0 and 1, and words 2 and 3, of the block with this counter, as two 64-bit numbers with the first word below."""
    for _ in range(_ROUNDS):
        product_0, product_1 = _MULTIPLIER_0 * c0, _MULTIPLIER_1 * c2
        c0, c2 = (product_1 >> _U32) ^ c1 ^ k0, (product_0 >> _U32) ^ c3 ^ k1
        c1, c3 = product_1 & _LOW, product_0 & _LOW
        k0, k1 = (k0 + _BUMP_0) & _LOW, (k1 + _BUMP_1) & _LOW
    return c0 | (c1 << _U32), c2 | (c3 << _U32)


@njit(**_EXACT)
def _words(problem: Any, seed: Any, cell: Any, first_block: Any, low: Any, high: Any) -> None:
    """Blocks first_block, first_block + 1, … of one problem: their words in pairs."""
    k0, k1, c1, c2 = seed & _LOW, seed >> _U32, problem & _LOW, problem >> _U32
    for b in range(low.shape[0]):
        low[b], high[b] = _philox(first_block + np.uint64(b), c1, c2, cell, k0, k1)


@njit(**_EXACT)
def _radius(word: Any) -> float:
    """√(-2 ln u), u uniform on (0, 1] in steps of 2⁻⁵²: u = 2ᵉ m with √½ ≤ m < √2, and ln m = 2 artanh((m - 1)/(m + 1))."""
    u = 2.0 - np.uint64((word >> np.uint64(12)) | _ONE_BITS).view(np.float64)
    bits = np.float64(u).view(np.int64)
    exponent = (bits - _HALF_ROOT_BITS) >> np.int64(52)
    m = np.int64(bits - (exponent << np.int64(52))).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    tail = q * (1 / 17 + q * (1 / 19 + q * (1 / 21)))
    series = q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15 + tail)))))))
    return np.sqrt(-2.0 * (np.float64(np.int32(exponent)) * _LN_2 + 2.0 * (s + s * series)))


@njit(**_EXACT)
def _unit_vector(word: Any) -> tuple[float, float]:
    """cos and sin of a uniform angle: a quadrant of two bits, and within it π/2 times a number of [-½, ½), by their power series."""
    quadrant = word >> np.uint64(62)
    fraction = np.uint64(((word >> np.uint64(10)) & _FRACTION) | _ONE_BITS).view(np.float64)
    angle = _HALF_PI * (fraction - 1.5)
    q = angle * angle
    tail = 1 / 39916800 - q * (1 / 6227020800 - q * (1 / 1307674368000))
    sine = angle - angle * (q * (1 / 6 - q * (1 / 120 - q * (1 / 5040 - q * (1 / 362880 - q * tail)))))
    tail = 1 / 3628800 - q * (1 / 479001600 - q * (1 / 87178291200 - q * (1 / 20922789888000)))
    cosine = 1.0 - q * (1 / 2 - q * (1 / 24 - q * (1 / 720 - q * (1 / 40320 - q * tail))))
    is_odd = quadrant & np.uint64(1) != np.uint64(0)
    x, y = (sine, cosine) if is_odd else (cosine, sine)
    turned = (quadrant + np.uint64(1)) & np.uint64(2) != np.uint64(0)  # quadrants 1 and 2, where the cosine is negative
    return (-x if turned else x), (-y if quadrant >= np.uint64(2) else y)


@njit(**_EXACT)
def _normal_rows(
    first: int, last: int, problem: Any, seed: Any, cell: Any, first_block: Any, on_sphere: bool, rows: FloatArray
) -> None:
    """Fill rows[first:last], (…, n_rows, d), with normals of the problems from `problem` on; each row begins a new block."""
    n_rows, d = rows.shape[1:]
    n_blocks = (d + 1) // 2
    at_once = max(1, min(n_rows, _BLOCKS_AT_ONCE // n_blocks))  # rows whose blocks are made together
    low, high = np.empty(at_once * n_blocks, dtype=np.uint64), np.empty(at_once * n_blocks, dtype=np.uint64)
    even, odd = np.empty(at_once * n_blocks), np.empty(at_once * n_blocks)
    for j in range(first, last):
        for r in range(0, n_rows, at_once):
            count = min(at_once, n_rows - r)
            used = count * n_blocks
            begin_block = first_block + np.uint64(r * n_blocks)
            _words(problem + np.uint64(j), seed, cell, begin_block, low[:used], high[:used])
            for b in range(used):
                radius = _radius(low[b])
                x, y = _unit_vector(high[b])
                even[b], odd[b] = radius * x, radius * y
            for k in range(count):
                row, begin = rows[j, r + k], k * n_blocks
                for b in range(d // 2):
                    row[2 * b], row[2 * b + 1] = even[begin + b], odd[begin + b]
                if d % 2 == 1:
                    row[d - 1] = even[begin + n_blocks - 1]
                if on_sphere:
                    factor = 1.0 / np.sqrt(_squared_norm(row))
                    for c in range(d):
                        row[c] *= factor


@njit(**_EXACT)
def _squared_norm(row: FloatArray) -> float:
    """Σ row² as eight sums, each over every eighth coordinate, added in pairs four, two and one apart."""
    s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    d = row.shape[0]
    for c in range(0, d - 7, 8):
        s0 += row[c] * row[c]
        s1 += row[c + 1] * row[c + 1]
        s2 += row[c + 2] * row[c + 2]
        s3 += row[c + 3] * row[c + 3]
        s4 += row[c + 4] * row[c + 4]
        s5 += row[c + 5] * row[c + 5]
        s6 += row[c + 6] * row[c + 6]
        s7 += row[c + 7] * row[c + 7]
    c, left = d - d % 8, d % 8
    s0 += row[c] * row[c] if left > 0 else 0.0
    s1 += row[c + 1] * row[c + 1] if left > 1 else 0.0
    s2 += row[c + 2] * row[c + 2] if left > 2 else 0.0
    s3 += row[c + 3] * row[c + 3] if left > 3 else 0.0
    s4 += row[c + 4] * row[c + 4] if left > 4 else 0.0
    s5 += row[c + 5] * row[c + 5] if left > 5 else 0.0
    s6 += row[c + 6] * row[c + 6] if left > 6 else 0.0
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@njit(**_EXACT)
def _labels(problem: Any, seed: Any, cell: Any, first_block: Any, y: FloatArray) -> None:
    """y (n_problems, n_inputs): label i is bit i mod 32 of word (i div 32) mod 4 of block i div 128 from `first_block` on."""
    k0, k1 = seed & _LOW, seed >> _U32
    for j in range(y.shape[0]):
        number = problem + np.uint64(j)
        bits = np.uint64(0)
        for i in range(y.shape[1]):
            if i % 64 == 0:
                block = first_block + np.uint64(i // 128)
                low, high = _philox(block, number & _LOW, number >> _U32, cell, k0, k1)
                bits = low if i % 128 == 0 else high
            y[j, i] = 1.0 if bits & np.uint64(1) != np.uint64(0) else -1.0
            bits >>= np.uint64(1)


@njit(**_EXACT)
def _key_rows(first: int, last: int, W_transposed: FloatArray, X: FloatArray, K: FloatArray) -> None:
    """K[r] = W X[r] for rows first … last - 1 of X (n_rows, d), summed over coordinates in their order."""
    d = X.shape[1]
    for r in range(first, last):
        K[r] = 0.0
        for c in range(d):
            x = X[r, c]
            for k in range(d):
                K[r, k] += x * W_transposed[c, k]
