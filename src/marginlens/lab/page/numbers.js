// Numbers as people read them: few digits, true minus signs, powers of ten.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

function special(x) {
  if (Number.isNaN(x)) return "–";
  return x > 0 ? "∞" : "−∞";
}

/** An exponent in superscript digits: 10⁻¹². */
export function powerOfTen(k) {
  const digits = Array.from(String(Math.abs(k)), (digit) => SUPERSCRIPTS[digit]).join("");
  return `10${k < 0 ? "⁻" : ""}${digits}`;
}

/** Up to `digits` significant digits, as a plain decimal where that is short, else with a power of ten. */
export function short(x, digits = 3) {
  if (!Number.isFinite(x)) return special(x);
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 1e-3 || size >= 1e5) return exponent(x, Math.min(digits, 2));
  return String(Number(x.toPrecision(digits))).replace("-", "−");
}

/** A number with a power of ten: 3.2·10⁻¹⁶. */
function exponent(x, digits = 2) {
  if (!Number.isFinite(x)) return special(x);
  if (x === 0) return "0";
  const [mantissa, power] = x.toExponential(digits - 1).split("e");
  const front = Number(mantissa);
  const shown = Math.abs(front) === 1 ? (front < 0 ? "−" : "") : `${String(front).replace("-", "−")}·`;
  return `${shown}${powerOfTen(Number(power))}`;
}

/** A share as a percentage: whole above 10, else with up to two digits. */
export function percent(x) {
  if (!Number.isFinite(x)) return special(x);
  const value = 100 * x;
  if (value === 0 || Math.abs(value) >= 9.95) return `${Math.round(value)} %`.replace("-", "−");
  if (Math.abs(value) < 0.01) return x < 0 ? "−0.01 % or less" : "under 0.01 %";
  return `${Number(value.toPrecision(2))} %`.replace("-", "−");
}

/** A point of the plane: (0.5, −1). */
export function pointText(point, digits = 3) {
  return `(${Array.from(point, (entry) => short(entry, digits)).join(", ")})`;
}

/** A number that was formatted, such as "-2.5e-16", with true minus signs and powers of ten: −2.5·10⁻¹⁶. */
export function typeset(number) {
  if (number.startsWith("e^")) return `e^${typeset(number.slice(2))}`;
  const [, sign, mantissa, power] = /^(-?)(.*?)(?:e([+-]\d+))?$/.exec(number);
  const minus = sign ? "−" : "";
  if (power === undefined) return `${minus}${mantissa === "inf" ? "∞" : mantissa}`;
  const front = mantissa === "1" ? "" : `${mantissa}·`;
  return `${minus}${front}${powerOfTen(Number(power))}`;
}
