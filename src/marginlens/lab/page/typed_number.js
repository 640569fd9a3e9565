// Fields for numbers: what is typed counts on Enter or when the field is left, and what is refused gives way to what stood there.

import { element } from "./dom.js";
import { short } from "./numbers.js";

const FRACTION = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?:\/([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?))?$/i;
const THOUSANDS = /^[+-]?\d{1,3}([, ]\d{3})+$/;

/** The number that a text means, NaN where it means none: 1,5 is 1.5 and 1/3 a third; in 10,000 the comma parts thousands of a whole number. */
export function typedNumber(text, isWhole = false) {
  const written = text.trim().replaceAll("−", "-");
  if (isWhole && THOUSANDS.test(written)) return Number(written.replace(/[, ]/g, ""));
  const parts = FRACTION.exec(written.replaceAll(",", "."));
  return parts ? Number(parts[1]) / Number(parts[2] ?? 1) : NaN;
}

/** A number as a field shows it: four decimals, or few digits where that says too little or too much. */
export function fieldText(value) {
  const size = Math.abs(value);
  if (size >= 1000) return String(Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  return String(Number(size < 1e-3 ? value.toPrecision(3) : value.toFixed(4)));
}

/**
 * A field for a number: { node, fill(value) }. change(value) follows an entry between low and high and returns whether it was taken; arrow
 * keys add and take off `step`. Other attributes are the element's.
 */
export function numberField(store, { name, low = -Infinity, high = Infinity, isWhole = false, step = isWhole ? 1 : 0.1, change, ...attributes }) {
  const keys = low < 0 ? "text" : isWhole ? "numeric" : "decimal"; // number pads of telephones have no minus
  const node = element("input", { type: "text", class: "number", inputmode: keys, autocomplete: "off", spellcheck: "false", ...attributes });
  let shown = { text: "", value: NaN };
  const fill = (value) => {
    const isEdited = document.activeElement === node && node.value !== shown.text;
    shown = { text: fieldText(value), value };
    if (!isEdited && node.value !== shown.text) node.value = shown.text;
  };
  const commit = (value) => {
    const isNumber = value >= low && value <= high && (!isWhole || Number.isInteger(value));
    const above = Number.isFinite(low) ? ` of at least ${short(low)}` : "";
    const range = Number.isFinite(high) ? ` from ${short(low)} to ${short(high)}` : above;
    const forms = isWhole ? "" : ", such as 1.5, 1,5, 1/3 or 1e-3";
    if (isNumber && Number.isFinite(value)) {
      if (change(value)) return fill(value);
    } else store.say(`${name} must be a ${isWhole ? "whole " : ""}number${range}${forms}; got “${node.value.slice(0, 20)}”, so it stays ${shown.text}.`, "refusal");
    node.value = shown.text;
  };
  node.addEventListener("change", () => node.value !== shown.text && commit(typedNumber(node.value, isWhole)));
  node.addEventListener("keydown", (event) => {
    const by = { ArrowUp: step, ArrowDown: -step }[event.key];
    if (event.key === "Escape") node.value = shown.text;
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    commit(Math.min(high, Math.max(low, Number((shown.value + by).toPrecision(12)))));
  });
  return { node, fill };
}
