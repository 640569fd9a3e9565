// Linear algebra for small dense problems: products, norms, triangular solves and singular values; matrices are flat, row by row.

export const EPS = 2 ** -52; // spacing of doubles at one

const MAX_JACOBI_SWEEPS = 60;

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

/** Whether no entry is nan or infinite. */
export function allFinite(x) {
  let total = 0;
  for (let k = 0; k < x.length; k++) total += x[k] * 0;
  return total === 0;
}

/** out = A x for A (n, d). */
export function matvec(A, n, d, x, out) {
  for (let i = 0, at = 0; i < n; i++) {
    let total = 0;
    for (let k = 0; k < d; k++) total += A[at++] * x[k];
    out[i] = total;
  }
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
 * Singular values of A (n, d) with n ≤ d, largest first, and A = left · diag(values) · right, by rotations of pairs of rows.
 * left is (n, n) and right (n, d); small singular values are as accurate as large ones.
 */
export function singularValues(A, n, d) {
  const rows = Float64Array.from(A);
  const turned = new Float64Array(n * n); // turned · A = rows
  for (let i = 0; i < n; i++) turned[i * n + i] = 1;
  const rotate = (M, width, i, j, cos, sin) => {
    for (let k = 0; k < width; k++) {
      const u = M[i * width + k];
      const w = M[j * width + k];
      M[i * width + k] = cos * u - sin * w;
      M[j * width + k] = sin * u + cos * w;
    }
  };
  for (let sweep = 0, rotated = true; rotated && sweep < MAX_JACOBI_SWEEPS; sweep++) {
    rotated = false;
    for (let i = 0; i < n; i++) {
      for (let j = i + 1; j < n; j++) {
        let first = 0;
        let second = 0;
        let mixed = 0;
        for (let k = 0; k < d; k++) {
          const u = rows[i * d + k];
          const w = rows[j * d + k];
          first += u * u;
          second += w * w;
          mixed += u * w;
        }
        if (Math.abs(mixed) <= EPS * Math.sqrt(first * second)) continue;
        rotated = true;
        const zeta = (second - first) / (2 * mixed);
        const tan = (zeta >= 0 ? 1 : -1) / (Math.abs(zeta) + Math.hypot(1, zeta));
        const cos = 1 / Math.hypot(1, tan);
        rotate(rows, d, i, j, cos, cos * tan);
        rotate(turned, n, i, j, cos, cos * tan);
      }
    }
  }
  const sizes = Array.from({ length: n }, (_, i) => norm(rows.subarray(i * d, (i + 1) * d)));
  const order = sizes.map((_, i) => i).sort((i, j) => sizes[j] - sizes[i]);
  const left = new Float64Array(n * n);
  const right = new Float64Array(n * d);
  order.forEach((i, place) => {
    for (let k = 0; k < n; k++) left[k * n + place] = turned[i * n + k];
    for (let k = 0; k < d; k++) right[place * d + k] = sizes[i] > 0 ? rows[i * d + k] / sizes[i] : 0;
  });
  return { values: Float64Array.from(order, (i) => sizes[i]), left, right };
}

/** The largest singular value of A (n, d). */
export function spectralNorm(A, n, d) {
  if (n <= d) return n === 0 ? 0 : singularValues(A, n, d).values[0];
  const columns = new Float64Array(n * d);
  for (let i = 0; i < n; i++) for (let k = 0; k < d; k++) columns[k * n + i] = A[i * d + k];
  return d === 0 ? 0 : singularValues(columns, d, n).values[0];
}
