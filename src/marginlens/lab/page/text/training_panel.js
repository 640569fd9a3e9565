// Training of W beside the automaton: normalised gradient descent in pieces, curves along it, and both predictions side by side.

import { element, replace, setText } from "../dom.js";
import { percent, short } from "../numbers.js";
import { Charts } from "../run/chart.js";
import { stepScale } from "../run/curve_scale.js";
import { withText } from "../state.js";
import { curveSteps } from "./text_model.js";
import { counted, quoted } from "./text_reasons.js";
import { runningText } from "./text_tokens.js";
import { textWork, WORKER_BUDGET } from "./text_worker.js";

const STEP_CHOICES = [400, 1000, 4000, 20_000, 100_000];
const MAX_BARS = 10;
const CURVES = [
  { name: "distance", title: "Distance from the rule", about: "total variation: 0 where both give the same shares" },
  { name: "loss", title: "Training loss", about: "log-loss of the windows" },
  { name: "correlation", title: "Correlation with Graph-SVM", about: "cosine of W with its limit direction", high: 1 },
];

/** The charts of a curve, with the values at the point that is shown. */
function chartsOf(curve, shown) {
  return CURVES.map(({ name, title, about, high }) => {
    const value = (k) => (k === null ? shown : curve[k])?.[name] ?? NaN;
    const values = curve.map((_, k) => value(k)).filter(Number.isFinite);
    const range = [Math.min(0, ...values), high ?? Math.max(1e-6, ...values)];
    return { title, about, range, format: short, lines: [{ label: title, sign: "", colour: "var(--limit-0)", value }] };
  });
}

/** A share as a bar with its number. */
function bar(share, kind) {
  const isKnown = share !== null && Number.isFinite(share);
  return element("td", {}, element("div", { class: `bar ${kind}` }, element("i", { style: { width: `${isKnown ? 100 * share : 0}%` } }), element("span", {}, isKnown ? percent(share) : "–")));
}

/** What rule and layer expect, side by side. */
function comparison({ rivals }, names) {
  const rows = rivals.slice(0, MAX_BARS).map(({ token, automaton, layer }) =>
    element("tr", {}, element("th", { scope: "row", class: "mono" }, quoted(names[token])), bar(automaton, "rule"), bar(layer, "layer")));
  const heading = ["Next token", "The rule", "Trained W"].map((name) => element("th", { scope: "col" }, name));
  const rest = rivals.length > MAX_BARS ? element("p", { class: "small" }, `${counted(rivals.length - MAX_BARS, "token")} with smaller shares not shown.`) : null;
  return [element("table", { class: "shares" }, element("thead", {}, element("tr", {}, heading)), element("tbody", {}, rows)), rest];
}

export function mountTraining(root, store) {
  const work = textWork(store);
  const play = element("button", { type: "button", class: "primary", onclick: () => (isPlaying ? pause() : start()) }, "Train");
  const again = element("button", { type: "button", onclick: () => restart() }, "Start again");
  const steps = element("select", { id: "text-steps" }, STEP_CHOICES.map((count) => element("option", { value: count }, count.toLocaleString("en"))));
  steps.addEventListener("change", () => {
    store.apply(`train ${steps.value} steps`, (state) => withText(state, { steps: Number(steps.value) }));
  });
  const scrub = element("input", { type: "range", id: "text-scrub", min: 0, max: 0, step: 1, "aria-label": "Step of the training that is shown" });
  scrub.addEventListener("input", () => {
    isFollowing = Number(scrub.value) === curve.length - 1;
    place = Number(scrub.value);
    show();
  });
  const status = element("p", { class: "status" });
  const agreement = element("p", { class: "lead", "aria-live": "polite" });
  const grid = element("div", { class: "run-charts" });
  const shares = element("div", {});
  const small = element("p", { class: "small" });
  const content = element("div", { class: "text-training" },
    element("p", {}, "The rule needs no training. Train the weights W by gradient descent and watch the two agree."),
    element("div", { class: "row" }, play, again, element("div", { class: "field" }, element("label", { for: "text-steps" }, "Steps"), steps)),
    scrub, status, grid, shares, agreement, small);
  replace(root, content);
  let curve = [];
  let reached = null; // the newest answer of the training
  let place = 0; // of the curve, whose point is shown
  let isFollowing = true;
  let isPlaying = false;
  let run = 0; // grows when training begins anew
  let begun = null; // summary and steps of the training
  let compared = null;

  const nextFrame = () => new Promise((resolve) => requestAnimationFrame(resolve));

  const pause = () => {
    isPlaying = false;
    show();
  };

  const start = async () => {
    if (reached !== null && (reached.step >= store.state.text.steps || !reached.isRunning)) await restart();
    isPlaying = isFollowing = true;
    const present = run;
    const goal = store.state.text.steps;
    const grid = curveSteps(goal);
    show();
    while (isPlaying && present === run) {
      const to = grid.find((step) => step > (reached?.step ?? 0)) ?? goal;
      const reply = await work.ask({ ask: "train", to, budget: WORKER_BUDGET, measured: curve.length, grid });
      if (present !== run || !reply?.answer) break;
      reached = reply.answer;
      curve = [...curve, ...reached.curve];
      if (isFollowing) place = Math.max(0, curve.length - 1);
      if (reached.step >= goal || !reached.isRunning) isPlaying = false;
      await nextFrame();
      if (present === run) show();
    }
  };

  const restart = async () => {
    run++;
    isPlaying = false;
    isFollowing = true;
    curve = [];
    reached = compared = null;
    place = 0;
    if (work.summary !== null) await work.ask({ ask: "restart" });
    show();
  };

  /** What the numbers at the shown step mean. */
  const agreementOf = ({ distance }) => {
    if (!Number.isFinite(distance)) return "";
    const words = distance < 0.01 ? "The trained layer and the rule agree" : distance < 0.1 ? "The trained layer is close to the rule" : "The trained layer is still on its way to the rule";
    return `${words}: over the text their shares differ by ${percent(distance)} on average.`;
  };

  const showComparison = async () => {
    const { summary, seen } = work;
    if (summary === null || seen === null) return replace(shares);
    const step = curve[place]?.step ?? 0;
    const key = `${seen.join()}:${step}:${curve.length > 0}`;
    if (compared === key) return null;
    compared = key;
    const reply = await work.ask({ ask: "compare", ids: seen, step });
    if (reply?.answer && work.summary === summary) {
      replace(shares, element("p", {}, "After ", element("span", { class: "window" }, runningText(seen, summary.names, summary.unit)), ":"), comparison(reply.answer, summary.names));
    }
    return null;
  };

  const show = () => {
    const goal = store.state.text.steps;
    const point = curve[place] ?? null;
    scrub.max = String(Math.max(0, curve.length - 1));
    scrub.value = String(place);
    scrub.disabled = curve.length < 2;
    scrub.setAttribute("aria-valuetext", `step ${point?.step ?? 0} of ${goal}`);
    setText(play, isPlaying ? "Pause" : reached === null ? "Train" : reached.step < goal && reached.isRunning ? "Go on" : "Train again");
    again.disabled = reached === null;
    const isStill = reached !== null && !reached.isRunning ? " There the gradient is zero: nothing more is learnt." : "";
    const solving = reached !== null && reached.solved < reached.all ? `Solving for the rule: ${reached.solved} of ${reached.all} last tokens.` : null;
    setText(status, solving ?? (point === null ? "Not trained yet." : `Step ${point.step.toLocaleString("en")} of ${goal.toLocaleString("en")}, norm of W ${short(point.norm)}.${isStill}`));
    setText(agreement, point === null || isPlaying ? "" : agreementOf(point));
    const size = reached?.pairs ? ` It moves ${counted(reached.pairs, "weight")} over ${counted(reached.merged, "different window")}${reached.step > 50 ? `, ${short(reached.ms / reached.step)} ms a step` : ""}.` : "";
    setText(small, `Normalised gradient descent with steps of ${work.summary?.stepSize ?? "–"} from W = 0, log-loss, one-hot embeddings.${size} In the limit W follows Graph-SVM, and its finite part sets the shares (C, Thm 3).`);
    grid.hidden = curve.length === 0;
    charts.draw(chartsOf(curve, point), curve.map(({ step }) => step), stepScale(goal));
    charts.move(point?.step ?? 0);
    charts.describe(point?.step ?? 0);
    root.dataset.step = String(reached?.step ?? 0);
    root.dataset.distance = String(curve.at(-1)?.distance ?? "");
    root.dataset.playing = String(isPlaying);
    showComparison();
  };

  const charts = new Charts(grid, () => show());

  const follow = () => {
    content.hidden = work.summary === null;
    if (work.summary === null) {
      begun = null;
      return;
    }
    const isOther = begun === null || begun.summary !== work.summary || begun.steps !== store.state.text.steps;
    if (!isOther) return showComparison();
    begun = { summary: work.summary, steps: store.state.text.steps };
    return restart();
  };
  work.subscribe(follow);
  return {
    update({ text }) {
      if (![...steps.options].some((option) => Number(option.value) === text.steps)) steps.append(element("option", { value: text.steps }, text.steps.toLocaleString("en")));
      steps.value = String(text.steps);
      follow();
    },
  };
}
