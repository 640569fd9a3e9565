// Linear algebra for small dense problems: products, norms, triangular solves and singular values; matrices are flat, row by row.

import { callCore } from "./core.js";

/** x · y over their first `length` entries. */
export function dot(x, y, length = x.length) {
  let total = 0;
  for (let k = 0; k < length; k++) total += x[k] * y[k];
  return total;
}

/** The largest modulus among the entries of x. */
export function maxAbs(x) {
  let largest = 0;
  for (let k = 0; k < x.length; k++) {
    const size = Math.abs(x[k]);
    if (size > largest || size !== size) largest = size;
  }
  return largest;
}

/** ‖x‖ without overflow or underflow. */
export function norm(x) {
  const square = dot(x, x);
  if (square > 1e-250 && square < 1e250) return Math.sqrt(square);
  const scale = maxAbs(x);
  if (scale === 0 || !Number.isFinite(scale)) return scale;
  let total = 0;
  for (let k = 0; k < x.length; k++) total += (x[k] / scale) ** 2;
  return scale * Math.sqrt(total);
}

/** x/‖x‖; nan where x is zero. */
export function unit(x) {
  const size = norm(x);
  return Float64Array.from(x, (entry) => entry / size);
}

/** 1 - ‖a/‖a‖ - b/‖b‖‖²/2, the cosine without a sum that exceeds one. */
export function correlation(a, b) {
  const first = norm(a);
  const second = norm(b);
  let square = 0;
  for (let k = 0; k < a.length; k++) square += (a[k] / first - b[k] / second) ** 2;
  return 1 - 0.5 * square;
}

/** out = Aᵀ w for A (n, d). */
export function vecmat(w, A, n, d, out) {
  out.fill(0, 0, d);
  for (let i = 0, at = 0; i < n; i++) {
    const weight = w[i];
    if (weight === 0) at += d;
    else for (let k = 0; k < d; k++) out[k] += weight * A[at++];
  }
}

/** right[:n] becomes L⁻¹ right[:n] for a lower triangle with `stride` numbers in a row. */
export function solveLower(L, stride, n, right) {
  for (let i = 0; i < n; i++) {
    let total = right[i];
    for (let j = 0; j < i; j++) total -= L[i * stride + j] * right[j];
    right[i] = total / L[i * stride + i];
  }
}

/** right[:n] becomes L⁻ᵀ right[:n]. */
export function solveUpper(L, stride, n, right) {
  for (let i = n - 1; i >= 0; i--) {
    right[i] /= L[i * stride + i];
    for (let j = 0; j < i; j++) right[j] -= L[i * stride + j] * right[i];
  }
}

/** Factor the lower triangle of A (n, n) in place as L Lᵀ; false where a pivot is not positive. */
export function cholesky(A, n) {
  for (let j = 0; j < n; j++) {
    let pivot = A[j * n + j];
    for (let k = 0; k < j; k++) pivot -= A[j * n + k] ** 2;
    if (!(pivot > 0)) return false;
    pivot = Math.sqrt(pivot);
    A[j * n + j] = pivot;
    for (let i = j + 1; i < n; i++) {
      let total = A[i * n + j];
      for (let k = 0; k < j; k++) total -= A[i * n + k] * A[j * n + k];
      A[i * n + j] = total / pivot;
    }
  }
  return true;
}

/**
 * Singular values of A (n, d), largest first, min(n, d) of them, and A = left · diag(values) · right with left (n, count) and right
 * (count, d); small singular values are as accurate as large ones.
 */
export function singularValues(A, n, d) {
  const count = Math.min(n, d);
  const identity = Float64Array.from({ length: n * n }, (_, k) => (k % (n + 1) === 0 ? 1 : 0));
  const found = { U: new Float64Array(count * n), V: new Float64Array(count * d), logs: new Float64Array(count), ranks: new Int32Array(1) };
  callCore("singular_triplets", { left: identity, right: A, log_scale: new Float64Array(n), ...found, batch: 1, m: n, q: n, d, count });
  const sizes = Array.from(found.logs, (log, k) => (k < found.ranks[0] ? Math.exp(log) : 0));
  const order = sizes.map((_, k) => k).sort((k, l) => sizes[l] - sizes[k]);
  const left = new Float64Array(n * count);
  const right = new Float64Array(count * d);
  order.forEach((k, place) => {
    for (let i = 0; i < n; i++) left[i * count + place] = found.U[k * n + i];
    right.set(found.V.subarray(k * d, (k + 1) * d), place * d);
  });
  return { values: Float64Array.from(order, (k) => sizes[k]), left, right };
}

/** The largest singular value of A (n, d). */
export function spectralNorm(A, n, d) {
  return Math.min(n, d) === 0 ? 0 : singularValues(A, n, d).values[0];
}
