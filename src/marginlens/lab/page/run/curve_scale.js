// Scales of the curves: steps and values to shares of an axis, their ticks, which samples are drawn, and labels pushed apart.

import { powerOfTen, short } from "../numbers.js";

const LOG_RATIO = 30; // of the largest to the smallest value, from which on their axis is logarithmic
const TICK_STEPS = [1, 2, 5, 10];

/** Steps 0 … end on an axis of log(1 + step): { end, at(step) in [0, 1], step(share), ticks: [{ at, label }] }. */
export function stepScale(end) {
  const last = Math.max(1, end);
  const at = (step) => Math.log1p(step) / Math.log1p(last);
  const step = (share) => Math.round(Math.expm1(share * Math.log1p(last)));
  const ticks = [{ at: 0, label: "0" }];
  const powers = Math.floor(Math.log10(last));
  const every = Math.ceil((powers + 1) / 5);
  for (let k = powers % every; k <= powers; k += every) ticks.push({ at: at(10 ** k), label: k < 4 ? String(10 ** k) : powerOfTen(k) });
  return { end, at, step, ticks };
}

/** Steps 0 … end evenly on an axis. */
export function evenScale(end) {
  const ticks = linearTicks(0, end, 4).map((step) => ({ at: step / end, label: step.toLocaleString("en") }));
  return { end, at: (step) => step / end, ticks };
}

/** Round numbers from low to high, about `count` of them. */
export function linearTicks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const width = TICK_STEPS.find((factor) => factor * power >= raw) * power;
  const ticks = [];
  for (let k = Math.ceil(low / width - 1e-9); k * width <= high + 1e-9 * width; k++) ticks.push(Number((k * width).toPrecision(12)));
  return ticks;
}

/** Values on an axis: { at(value) in [0, 1], ticks, isLog }; logarithmic where all are positive and far apart, unless a range is given. */
export function valueScale(values, range = null) {
  const finite = values.filter(Number.isFinite);
  let [low, high] = range ?? [Math.min(...finite), Math.max(...finite)];
  if (range === null && finite.length === 0) [low, high] = [0, 1];
  const positive = finite.filter((value) => value > 0);
  const smallest = Math.min(...positive);
  const isLog = range === null && low >= 0 && positive.length > 0 && high > LOG_RATIO * smallest;
  if (isLog) {
    const [first, last] = [Math.log10(smallest), Math.log10(high)];
    const at = (value) => Math.max(0, (Math.log10(value) - first) / (last - first));
    const every = Math.max(1, Math.ceil((Math.floor(last) - Math.ceil(first) + 1) / 4));
    const ticks = [];
    for (let k = Math.ceil(first); k <= last; k += every) ticks.push({ at: at(10 ** k), label: Math.abs(k) < 3 ? short(10 ** k) : powerOfTen(k) });
    return { at, ticks, isLog };
  }
  if (!(high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) {
    const pad = Math.max(Math.abs(low), 1) / 2;
    [low, high] = [low - pad, high + pad];
  }
  const at = (value) => (value - low) / (high - low);
  return { at, ticks: linearTicks(low, high, 3).map((value) => ({ at: at(value), label: short(value) })), isLog };
}

/** Places of the steps up to `last` that fall on different ones of `count` pixels, the first and the last among them. */
export function decimated(steps, last, at, count) {
  const places = [];
  let pixel = -1;
  for (let k = 0; k < steps.length && steps[k] <= last; k++) {
    const next = Math.floor(at(steps[k]) * count);
    if (next === pixel) places[places.length - 1] = k;
    else places.push(k);
    pixel = next;
  }
  if (places.length > 0) places[0] = 0;
  return places;
}

/** Heights near the given ones, at least `gap` apart, in the same order and within [low, high] where they fit. */
export function pushedApart(heights, gap, low, high) {
  const order = heights.map((_, k) => k).sort((a, b) => heights[a] - heights[b] || a - b);
  const out = heights.slice();
  let floor = low;
  for (const k of order) {
    out[k] = Math.max(heights[k], floor);
    floor = out[k] + gap;
  }
  let ceiling = high;
  for (const k of order.reverse()) {
    out[k] = Math.min(out[k], ceiling);
    ceiling = out[k] - gap;
  }
  return out;
}

/** The `d` of a line through points [x, y]; it is broken where a number is missing. */
export function linePath(points) {
  let text = "";
  let isDown = false;
  for (const [x, y] of points) {
    const isPoint = Number.isFinite(x) && Number.isFinite(y);
    if (isPoint) text += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = isPoint;
  }
  return text;
}
