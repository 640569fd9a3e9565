// Why logits explode: one small layer under three optimizers, its largest logit, margin and entropy over the steps, and what is predicted.

import { EVERY, growth, GROWTH_STEPS } from "../../kernels/growth.js";
import { element, replace, setText, styledCopy } from "../dom.js";
import { short } from "../numbers.js";
import { Charts } from "./chart.js";
import { evenScale } from "./curve_scale.js";
import { sliderField } from "./settings.js";
import { withGrowth } from "../state.js";

const FRAME_BUDGET_MS = 12; // of training in one frame
const CHART_HEIGHT = 150;
const STEPS = Array.from({ length: GROWTH_STEPS / EVERY + 1 }, (_, k) => k * EVERY); // that are measured
const COLOURS = { GD: "var(--limit-1)", Adam: "var(--limit-0)", Muon: "var(--limit-2)" };
const CHARTS = [
  { name: "logit", predicted: "logits", title: "Largest logit", about: "of all tokens, without its sign" },
  { name: "margin", predicted: "margins", title: "Margin", about: "by how much the best token leads, in the input where it leads least" },
  { name: "entropy", title: "Entropy", about: "of attention, in nats: 0 where one token has it all" },
];

/** The charts of runs; thin lines are without decay and clip, dotted ones predicted. */
function chartsOf(runs, isChanged) {
  return CHARTS.map(({ name, predicted, title, about }) => {
    const lines = runs.flatMap(({ name: label, curve, plain, predicted: law }) => {
      const line = { label, sign: `${label}:`, colour: COLOURS[label], dash: "", value: (k) => curve[k ?? curve.length - 1]?.[name] ?? NaN };
      const before = { colour: `color-mix(in srgb, ${COLOURS[label]} 45%, transparent)`, isThin: true, dash: "", value: (k) => plain[k]?.[name] ?? NaN };
      const dotted = { colour: COLOURS[label], dash: "2 4", value: (k) => law[predicted][k] };
      return [...(isChanged ? [before] : []), ...(law && predicted ? [dotted] : []), line];
    });
    const values = lines.flatMap(({ value }) => STEPS.map((_, k) => value(k))).filter(Number.isFinite);
    return { title, about, lines, range: [Math.min(0, ...values), Math.max(1, ...values)], height: CHART_HEIGHT, format: short };
  });
}

/** Who has which largest logit at the end, and what holds it there. */
export function growthVerdict(runs, { decay, clip }, limits) {
  const ends = runs.map(({ name, curve }) => `${short(curve.at(-1).logit)} under ${name}`);
  const words = `After ${GROWTH_STEPS.toLocaleString("en")} steps the largest logit is ${ends.slice(0, -1).join(", ")} and ${ends.at(-1)}.`;
  const clipped = clip > 0 ? ` QK-clip scales W back whenever a logit passes ${short(clip)}.` : "";
  const bound = decay > 0 ? ` Weight decay keeps Muon's margin below ${short(limits.Muon.margin / decay)}, the best margin over the decay, however long it trains.` : "";
  return `${words}${clipped}${bound}`;
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
  const { fields, words, ...data } = globalThis.labWords.growth;
  const verdict = element("p", { class: "growth-verdict", id: "growth-verdict", "aria-live": "polite" });
  const grid = element("div", { class: "run-charts" });
  const rows = element("tbody");
  const heading = ["Optimizer", "Step size", "Predicted", "Measured"].map((name) => element("th", { scope: "col" }, name));
  const sliders = Object.entries(fields).map(([name, field]) => {
    const change = (value, gesture) => store.apply(`set ${field.label.toLowerCase()}`, (state) => withGrowth(state, { [name]: value }), { gesture });
    return { name, ...sliderField(store, `growth-${name}`, { whole: (value) => value, ...field }, change) };
  });
  replace(
    root,
    element("p", {}, words.sentence),
    verdict,
    element("p", { class: "task" }, words.task),
    element("div", { class: "growth-settings" }, sliders.map(({ node }) => node)),
    grid,
    element("p", { class: "small" }, words.legend),
    element("table", {}, element("caption", { class: "small" }, words.paces), element("thead", {}, element("tr", {}, heading)), rows),
    words.theory.map((sentence) => element("p", { class: "small theory" }, sentence)),
  );
  let shown = null; // { settings, runs, advance } that the charts are of
  let next = null; // the same, still in training

  const draw = () => {
    if (shown === null) return;
    const { settings, runs } = shown;
    charts.draw(chartsOf(runs, settings.decay > 0 || settings.clip > 0), STEPS, evenScale(GROWTH_STEPS));
    charts.move(STEPS[runs[0].curve.length - 1]);
    if (shown === next) return;
    charts.describe(GROWTH_STEPS);
    setText(verdict, growthVerdict(runs, settings, data.limits));
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
