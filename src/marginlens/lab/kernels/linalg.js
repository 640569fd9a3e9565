// Linear algebra for small dense problems: products, norms and definite systems; matrices are flat, row by row.

const MAX_SHIFT = 1000; // binary digits behind the point of an exact sum: the rest of them is too small for a double

/** x · y over their first `length` entries. */
export function dot(x, y, length = x.length) {
  let total = 0;
  for (let k = 0; k < length; k++) total += x[k] * y[k];
  return total;
}

/** x and by which power of two it is too large: the whole number x · 2^shift. */
function wholeNumber(x) {
  let shift = 0;
  for (; !Number.isInteger(x); x *= 2) shift++;
  return { whole: BigInt(x), shift };
}

/** x · y of finite numbers without rounding before the end, so that it is zero only if the sum is. */
export function exactDot(x, y) {
  const terms = Array.from(x, (entry, k) => {
    const [a, b] = [wholeNumber(entry), wholeNumber(y[k])];
    return { whole: a.whole * b.whole, shift: a.shift + b.shift };
  });
  const shift = Math.max(0, ...terms.map((term) => term.shift));
  const total = terms.reduce((sum, term) => sum + (term.whole << BigInt(shift - term.shift)), 0n);
  const kept = Math.min(shift, MAX_SHIFT);
  return Number(total >> BigInt(shift - kept)) * 2 ** -kept;
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

/** The angle between two vectors of the plane in degrees, without cancellation where it is small. */
export function angleBetween(a, b) {
  return (180 / Math.PI) * Math.atan2(Math.abs(a[0] * b[1] - a[1] * b[0]), a[0] * b[0] + a[1] * b[1]);
}

/** The largest singular value of rows A (n, 2). */
export function spectralNorm(A) {
  const scale = maxAbs(A) || 1;
  const [xx, xy, yy] = [[0, 0], [0, 1], [1, 1]].map(([k, l]) => {
    let total = 0;
    for (let at = 0; at < A.length; at += 2) total += (A[at + k] / scale) * (A[at + l] / scale);
    return total;
  });
  return scale * Math.sqrt((xx + yy) / 2 + Math.hypot((xx - yy) / 2, xy));
}
