// Why logits explode: one small layer under three optimizers, its largest logit, margin and entropy over the steps, and what is predicted.

import { EVERY, growth, GROWTH_STEPS } from "../../kernels/growth.js";
import { element, replace, setText, styledCopy } from "../dom.js";
import { short } from "../numbers.js";
import { Charts } from "./chart.js";
import { evenScale } from "./curve_scale.js";
import { sliderField } from "./settings.js";
import { withGrowth } from "../state.js";
import { text, title } from "../words.js";

const FRAME_BUDGET_MS = 12; // of training in one frame
const [LEAST_HEIGHT, MOST_HEIGHT] = [180, 460]; // of a chart's plot, in pixels, between which it fills the window
const BELOW_CHARTS = 130; // pixels for the legend and for what begins below
const STEPS = Array.from({ length: GROWTH_STEPS / EVERY + 1 }, (_, k) => k * EVERY); // that are measured
const COLOURS = { GD: "var(--limit-1)", Adam: "var(--limit-0)", Muon: "var(--limit-2)" };
const CHARTS = [
  { name: "logit", predicted: "logits", code: "lab.chart.logit" },
  { name: "margin", predicted: "margins", code: "lab.chart.margin" },
  { name: "entropy", code: "lab.chart.entropy" },
];

/** The charts of runs; thin lines are without decay and clip, dotted ones predicted. */
function chartsOf(runs, isChanged, height) {
  return CHARTS.map(({ name, predicted, code }) => {
    const lines = runs.flatMap(({ name: label, curve, plain, predicted: law }) => {
      const line = { label, sign: `${label}:`, colour: COLOURS[label], dash: "", value: (k) => curve[k ?? curve.length - 1]?.[name] ?? NaN };
      const before = { colour: `color-mix(in srgb, ${COLOURS[label]} 45%, transparent)`, isThin: true, dash: "", value: (k) => plain[k]?.[name] ?? NaN };
      const dotted = { colour: COLOURS[label], dash: "2 4", value: (k) => law[predicted][k] };
      return [...(isChanged ? [before] : []), ...(law && predicted ? [dotted] : []), line];
    });
    const values = lines.flatMap(({ value }) => STEPS.map((_, k) => value(k))).filter(Number.isFinite);
    return { title: title(code), about: text(code), lines, range: [Math.min(0, ...values), Math.max(1, ...values)], height, format: short };
  });
}

/** The largest logit that a matrix W of spectral norm one can give: ‖z‖‖x‖ of a query and a token of its input. */
export function largestLogit({ tokens, queries }) {
  return Math.max(...tokens.flatMap((input, i) => input.map((token) => Math.hypot(...token) * Math.hypot(...queries[i]))));
}

/** Who has which largest logit at the end, and what holds it there. */
export function growthVerdict(runs, { decay, clip }, data) {
  const logits = runs.map(({ name, curve }) => ({ code: "lab.growth.logit", numbers: { logit: curve.at(-1).logit, optimizer: name } }));
  return [
    text("lab.growth.ends", { steps: GROWTH_STEPS, logits }),
    clip > 0 ? text("lab.growth.clipped", { clip }) : "",
    decay > 0 ? text("lab.growth.decayed", { goal: data.limits.Muon.logit / decay, bound: largestLogit(data) / decay }) : "",
  ]
    .filter(Boolean)
    .join(" ");
}

/** The pace of the margin in the second half, predicted and measured: rows of [optimizer, size of its steps, predicted, measured]. */
export function growthPaces(runs, { decay, clip }) {
  const half = GROWTH_STEPS / EVERY / 2;
  const gain = (margins) => margins[2 * half] - margins[half];
  const pace = (margins) => `${short(gain(margins) / (half * EVERY))} a step`;
  return runs.map(({ name, size, curve, predicted }) => {
    const margins = curve.map(({ margin }) => margin);
    if (predicted) return [name, short(size), pace(predicted.margins), pace(margins)];
    return [name, short(size), decay > 0 || clip > 0 ? "–" : `${short(Math.log(2))} in all: log of the steps`, `${short(gain(margins))} in all`];
  });
}

/** The chart of the largest logits, as the text of an SVG file. */
export function growthPicture() {
  const chart = document.querySelector("#growth .chart");
  return chart && new XMLSerializer().serializeToString(styledCopy(chart));
}

export function mountGrowth(root, store) {
  const { fields, ...data } = globalThis.labWords.growth;
  const verdict = element("p", { class: "growth-verdict", id: "growth-verdict", "aria-live": "polite" });
  const grid = element("div", { class: "run-charts" });
  const rows = element("tbody");
  const heading = ["Optimizer", "Step size", "Predicted", "Measured"].map((name) => element("th", { scope: "col" }, name));
  const sliders = Object.entries(fields).map(([name, field]) => {
    const label = title(`lab.growth_setting.${name}`);
    const change = (value, gesture) => store.apply(`set ${label.toLowerCase()}`, (state) => withGrowth(state, { [name]: value }), { gesture });
    return { name, ...sliderField(store, `growth-${name}`, { whole: (value) => value, label, about: text(`lab.growth_setting.${name}`), ...field }, change) };
  });
  replace(
    root,
    element("p", {}, text("lab.growth.purpose")),
    verdict,
    element("p", { class: "task" }, text("lab.growth.task")),
    element("div", { class: "growth-settings" }, sliders.map(({ node }) => node)),
    grid,
    element("p", { class: "small" }, text("lab.growth.legend")),
    element("table", {}, element("caption", { class: "small" }, text("lab.growth.paces")), element("thead", {}, element("tr", {}, heading)), rows),
    ["lab.growth.theory_of_steps", "lab.growth.theory_of_descent", "lab.growth.theory_of_decay"].map((code) => element("p", { class: "small theory" }, text(code))),
  );
  let shown = null; // { settings, runs, advance } that the charts are of
  let next = null; // the same, still in training

  const draw = () => {
    if (shown === null) return;
    const { settings, runs } = shown;
    const isStacked = grid.clientWidth < 2 * charts.width;
    const room = innerHeight - (grid.getBoundingClientRect().top + scrollY) - BELOW_CHARTS;
    const height = isStacked ? LEAST_HEIGHT : Math.min(MOST_HEIGHT, Math.max(LEAST_HEIGHT, room));
    charts.draw(chartsOf(runs, settings.decay > 0 || settings.clip > 0, height), STEPS, evenScale(GROWTH_STEPS));
    charts.move(STEPS[runs[0].curve.length - 1]);
    if (shown === next) return;
    charts.describe(GROWTH_STEPS);
    setText(verdict, growthVerdict(runs, settings, data));
    const cells = (values) => values.map((value) => element("td", {}, value));
    replace(rows, growthPaces(runs, settings).map(([name, ...values]) => element("tr", {}, element("th", { scope: "row" }, name), cells(values))));
  };

  /** Train on for some milliseconds of a frame. The first runs are drawn as they go, later ones in the place of those before. */
  const advance = () => {
    const deadline = performance.now() + FRAME_BUDGET_MS;
    let isDone = false;
    while (!isDone && performance.now() < deadline) isDone = next.advance();
    if (isDone) [shown, next] = [next, null];
    if (isDone || shown === next) draw();
    if (!isDone) requestAnimationFrame(advance);
    else if (store.state.growth !== shown.settings) begin();
  };
  const begin = () => {
    next = { settings: store.state.growth, ...growth(data, store.state.growth) };
    shown ??= next;
    requestAnimationFrame(advance);
  };
  const charts = new Charts(grid, draw);
  return {
    update(state) {
      for (const { name, show } of sliders) show(state.growth[name]);
      if (next === null && state.growth !== shown?.settings) begin();
    },
  };
}
