// The page's texts by code: templates of words/texts.toml, filled in by the rules of words/renderer.py.
//
// Whoever starts the page's code puts the entries of `texts.toml` into globalThis.labWords.sentences. A whole number that is to show a fraction
// or a power of ten needs a format, because JavaScript does not tell 2.0 from 2.

import { typeset } from "./numbers.js";

const MAX_LOG = 700; // of a number that a double holds
const TINY_SHARE = 5e-4; // below which a share in percent has two significant digits
const PLACEHOLDER = /\{(\w+)(?::([^{}]*))?\}/g;
const FORMAT = /^(,)?(?:\.(\d+))?([defg%])?$/;

function entryOf(code) {
  const entry = globalThis.labWords.sentences[code];
  if (entry === undefined) throw new Error(`no text ${code}`);
  return entry;
}

/** The name of a condition, a choice or a key. */
export function title(code) {
  return entryOf(code).title;
}

/** The text of a code with its numbers. */
export function text(code, numbers = {}, show = typeset) {
  return render({ code, numbers }, show);
}

/**
 * A fact { code, numbers, holds } as a sentence; holds of a condition alone, and numbers.case names one of several texts.
 *
 * show: what is done to a formatted number; by default it gets true minus signs and powers of ten.
 */
export function render({ code, numbers = {}, holds }, show = typeset) {
  const form = holds === undefined ? "en" : { true: "yes", false: "no", null: "open" }[holds];
  const texts = entryOf(code)[form];
  const template = typeof texts === "string" ? texts : texts?.[numbers.case ?? "default"];
  if (template === undefined) throw new Error(`no text ${code} for ${form}, case ${numbers.case}`);
  return template.replace(PLACEHOLDER, (_, name, format = "") => {
    if (numbers[name] === undefined) throw new Error(`no number ${name} for ${code}`);
    return shown(numbers[name], format, show);
  });
}

/** "a", "a and b", "a, b and c". */
export function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

/** The first letter of a sentence in upper case. */
export function capital(sentence) {
  return sentence.charAt(0).toUpperCase() + sentence.slice(1);
}

function shown(value, format, show) {
  if (Array.isArray(value)) return listed(value.map((item) => shown(item, "", show)));
  if (typeof value === "object") return render(value, show);
  if (format.includes("|")) {
    const [one, several] = format.replace(/^# /, "").split("|");
    const noun = value === 1 ? one : several;
    return format.startsWith("# ") ? `${formatted(value, ",")} ${noun}` : noun;
  }
  if (typeof value !== "number") return String(value);
  return show((named[format] ?? formatted)(value, format));
}

/** e to the power of a number: to four digits if a double holds it, else as a power. */
function exponential(logarithm) {
  const isInRange = logarithm === -Infinity || Math.abs(logarithm) < MAX_LOG;
  return isInRange ? general(Math.exp(logarithm), 4) : `e^${general(logarithm, 4)}`;
}

/** A share in whole percent, with more digits if rounding would turn a part into all or nothing. */
function percent(share) {
  if (share > 0 && share < TINY_SHARE) return `${general(100 * share, 2)}%`;
  const isWhole = share === 0 || share === 1 || (share >= 0.095 && share < 0.995);
  return `${fixed(100 * share, isWhole ? 0 : 1)}%`;
}

/** A number in three digits, with a minus sign; a dash if there is none. */
function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const written = (size >= 1e-3 && size < 1e4) || value === 0 ? general(value, 3) : styles.e(value, 1);
  return written.replaceAll("-", "−");
}

const named = { exp: exponential, percent, short };

/** A number as Python formats it. */
function formatted(value, format) {
  const match = FORMAT.exec(format);
  if (match === null) throw new Error(`no format ${format}`);
  const [, comma, digits, type = Number.isInteger(value) ? "d" : "g"] = match;
  const isWhole = type === "d" && digits === undefined;
  const plain = isWhole ? String(value) : styles[type](value, Number(digits ?? (format === "" || format === "," ? 4 : 6)));
  if (!comma) return plain;
  const [whole, rest = ""] = plain.split(/(?=[.e])/, 2);
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + rest;
}

const styles = {
  g: general,
  d: general,
  e: (value, digits) => padded(value.toExponential(digits)),
  f: fixed,
  "%": (value, digits) => `${fixed(100 * value, digits)}%`,
};

/** A number with some digits behind the point; ties are rounded away from zero. */
function fixed(value, digits) {
  if (!Number.isFinite(value)) return special(value);
  const isLong = Math.abs(value) >= 1e21; // from where toFixed has powers of ten
  return isLong ? `${BigInt(value)}${digits > 0 ? `.${"0".repeat(digits)}` : ""}` : value.toFixed(digits);
}

/** Significant digits, without zeros at the end; with a power of ten below 1e-4 and if the digits do not reach the point. */
function general(value, digits) {
  if (!Number.isFinite(value)) return special(value);
  const significant = Math.max(digits, 1);
  const [mantissa, power] = value.toExponential(significant - 1).split("e");
  const isShort = Number(power) >= -4 && Number(power) < significant;
  if (isShort) return withoutZeros(value.toFixed(significant - 1 - Number(power)));
  return padded(`${withoutZeros(mantissa)}e${power}`);
}

const withoutZeros = (number) => (number.includes(".") ? number.replace(/\.?0+$/, "") : number);
const padded = (number) => number.replace(/e([+-])(\d)$/, "e$10$2");
const special = (value) => (Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf");
