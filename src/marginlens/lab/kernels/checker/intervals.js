// Intervals [low, high] of doubles that are rounded outwards, for the checker of proofs.
//
// IEEE 754 rounds + - * / and the square root correctly, so that an end moved by one place holds the exact result. Math.exp and Math.log are
// trusted with nothing: exponentials are Taylor series with their remainder, and logarithms are confirmed by them. A result that is not known
// has NaN as an end, and every comparison with it is false.

const LARGEST_EXPONENT = 700; // beyond which the bound of an exponential is that of the end of the range, or infinite
const LN2 = [0.6931471805599453, 0.6931471805599455]; // log 2 is 0.69314718055994530941…, and the first double is below it
const N_TERMS = 16; // of the series of exp for |x| < 0.36, whose remainder is then below 1e-21
const SMALLEST_SHARE = 1e-300; // smaller shares of a norm count as this large

/** A double at least as large as the next one above x: an ulp of x is at most ε|x|, or the smallest double. */
const up = (x) => x + (Math.abs(x) * Number.EPSILON + Number.MIN_VALUE);
const down = (x) => -up(-x);

/** The interval of one number; intervals stay as they are. */
export const real = (x) => (typeof x === "number" ? [x, x] : x);

export function add(x, y) {
  const [a, b] = real(x);
  const [c, d] = real(y);
  return [down(a + c), up(b + d)];
}

export function negative(x) {
  const [low, high] = real(x);
  return [-high, -low];
}

export const subtract = (x, y) => add(x, negative(y));

function times([a, b], [c, d]) {
  const [p, q, r, s] = [a * c, a * d, b * c, b * d];
  return [down(Math.min(p, q, r, s)), up(Math.max(p, q, r, s))];
}

export const multiply = (...factors) => factors.map(real).reduce(times);

export function divide(x, y) {
  const [low, high] = real(y);
  if (!(low > 0 || high < 0)) return [NaN, NaN];
  const [a, b] = real(x);
  const [p, q, r, s] = [a / low, a / high, b / low, b / high];
  return [down(Math.min(p, q, r, s)), up(Math.max(p, q, r, s))];
}

export const sum = (list) => list.reduce(add, [0, 0]);
export const dot = (x, y) => sum(x.map((entry, k) => multiply(entry, y[k])));
export const cross = ([a, b], [c, d]) => subtract(multiply(a, d), multiply(b, c));
export const largest = (list) => [0, 1].map((k) => Math.max(...list.map((x) => real(x)[k])));
export const smallest = (list) => negative(largest(list.map(negative)));
export const modulus = (x) => largest([x, negative(x), 0]);

export function square(x) {
  const [low, high] = multiply(modulus(x), modulus(x));
  return [Math.max(0, low), high];
}

/** The square root of a number that is at least 0. */
export function root(x) {
  const [low, high] = real(x);
  return [Math.max(0, down(Math.sqrt(Math.max(0, low)))), up(Math.sqrt(high))];
}

const bits = new DataView(new ArrayBuffer(8));

/** The power of two with a whole exponent up to ±1022, put together from its bits. */
function powerOfTwo(exponent) {
  bits.setUint32(0, (exponent + 1023) << 20);
  return bits.getFloat64(0);
}

/** e^x of a double as 2^k e^r with k = x / log 2, rounded. */
function exponential(x) {
  if (Number.isNaN(x)) return [NaN, NaN];
  if (x > LARGEST_EXPONENT) return [exponential(LARGEST_EXPONENT)[0], Infinity];
  if (x < -LARGEST_EXPONENT) return [0, exponential(-LARGEST_EXPONENT)[1]];
  const k = Math.round(x / LN2[0]);
  const r = subtract(x, multiply(k, LN2));
  let term = [1, 1];
  let total = term;
  for (let n = 1; n <= N_TERMS; n++) {
    const [low, high] = times(term, r);
    term = [down(low / n), up(high / n)];
    total = [down(total[0] + term[0]), up(total[1] + term[1])];
  }
  const rest = modulus(term)[1]; // terms shrink by more than half each, so those that are left out add up to less than the last
  const scale = powerOfTwo(k);
  const [low, high] = add(total, [-rest, rest]);
  return [Math.max(0, down(low * scale)), up(high * scale)];
}

/** What a growing function, which gives intervals of doubles, gives for an interval. */
function growing(ofDouble, x) {
  const [low, high] = real(x);
  const first = ofDouble(low);
  return high === low ? first : [first[0], ofDouble(high)[1]];
}

export const exp = (x) => growing(exponential, x);

/** log x of a double: any y, plus log(x e^-y), which lies between 1 - 1/u and u - 1 of its argument u. */
function logarithm(x) {
  if (!(x > 0)) return [NaN, NaN];
  const y = Math.log(x);
  const u = multiply(x, exponential(-y));
  return add(y, [subtract(1, divide(1, u))[0], subtract(u, 1)[1]]);
}

export const log = (x) => growing(logarithm, x);

/** An upper bound on ‖x‖_power of a point of the plane whose entries are intervals; the power is an interval, 1 or Infinity. */
export function normBound(x, power) {
  const sizes = x.map((entry) => modulus(entry)[1]);
  const most = Math.max(...sizes);
  if (power === Infinity || most === 0) return most;
  if (power === 1) return up(sizes[0] + sizes[1]);
  const raised = (share, exponent) => exp(multiply(exponent, log(share)))[1];
  const shares = sizes.map((size) => (size === 0 ? 0 : raised(Math.max(up(size / most), SMALLEST_SHARE), power)));
  return up(most * raised(up(shares[0] + shares[1]), divide(1, power)));
}

/** Whether x·v = y·v exactly, in whole multiples of the smallest double. */
export function isSameProduct(x, y, v) {
  const whole = (number) => {
    let [rest, shift] = [number, 1074n];
    for (; !Number.isInteger(rest); shift--) rest *= 2;
    return BigInt(rest) << shift;
  };
  return v.reduce((total, entry, k) => total + (whole(x[k]) - whole(y[k])) * whole(entry), 0n) === 0n;
}
