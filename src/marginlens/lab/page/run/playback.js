// The playback: a button, a bar over all steps, and in words where the runs are.

import { angleBetween, norm } from "../../kernels/linalg.js";
import { MAX_STEPS } from "../../kernels/problem.js";
import { expectedLimit } from "../analysis.js";
import { stepScale } from "./curve_scale.js";
import { element, setAttributes, setText } from "../dom.js";
import { short } from "../numbers.js";
import { endOf } from "./run.js";
import { numberField } from "../typed_number.js";

const BAR_POSITIONS = 1000;

/** Where the runs are, in words: the step, the norm of p at the chosen start, its angle to a limit, and which paths have ended. */
export function runsText(runs, chosen, limit = null) {
  if (runs.paths.length === 0) return "Nothing can be run.";
  const path = runs.paths[Math.min(chosen ?? 0, runs.paths.length - 1)];
  const { point, head } = path.now;
  const many = runs.paths.length > 1;
  const sizes = `‖p‖ = ${short(norm(point))}${head === null ? "" : `, ‖v‖ = ${short(norm(head))}`}`;
  const angle = limit && norm(point) > 0 ? `, ${short(angleBetween(point, limit.direction))}° from limit ${limit.mark}` : "";
  const start = many ? ` from start ${runs.paths.indexOf(path)}` : "";
  const ended = runs.paths
    .map((one, k) => ({ words: endOf(one), name: many ? `The run from start ${k}` : "The run", isShown: runs.step >= one.taken }))
    .filter(({ words, isShown }) => words && isShown)
    .map(({ words, name }) => ` ${name} ${words}.`);
  const computing = runs.isComputing ? " Computing…" : "";
  return `Step ${runs.step.toLocaleString("en")} of ${runs.end.toLocaleString("en")}${start}: ${sizes}${angle}.${ended.join("")}${computing}`;
}

/** What a key does to the runs: "toggle", "back", "on", or null where it is meant for what has the focus. */
export function keyAction({ key, target, ctrlKey, metaKey, altKey, defaultPrevented }) {
  if (ctrlKey || metaKey || altKey || defaultPrevented) return null;
  const tag = target?.tagName?.toLowerCase() ?? "";
  const isText = tag === "textarea" || target?.isContentEditable || (tag === "input" && !["range", "checkbox", "radio", "button"].includes(target.type));
  if (isText) return null;
  if (key === ",") return "back";
  if (key === ".") return "on";
  const takesSpace = ["button", "input", "select", "summary", "a"].includes(tag) || target?.getAttribute?.("role");
  return key === " " && !takesSpace ? "toggle" : null;
}

export function mountPlayback(root, store, runs) {
  const play = element("button", { type: "button", class: "primary play", onclick: () => runs.toggle() }, "Play");
  const bar = element("input", { type: "range", id: "playback-bar", min: 0, max: BAR_POSITIONS, step: "any" });
  const toStep = (step) => (runs.scrubTo(step), true);
  const stepField = numberField(store, { name: "The step", low: 0, high: MAX_STEPS, isWhole: true, change: toStep, id: "playback-step", "aria-label": "Step shown" });
  const words = element("p", { class: "playback-words" });
  const scale = () => stepScale(runs.end);
  const barStep = () => scale().step(Number(bar.value) / BAR_POSITIONS);
  bar.addEventListener("input", () => runs.scrubTo(barStep(), { save: false }));
  bar.addEventListener("change", () => runs.scrubTo(barStep()));
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const { at } = scale();
    const far = Math.round(runs.step * (event.shiftKey || Math.abs(by) > 1 ? 0.1 : 0.02)); // a fiftieth, or a tenth
    runs.scrubTo(at(runs.step) < 1 || by < 0 ? runs.step + Math.sign(by) * Math.max(1, far) : runs.step);
  });
  root.replaceChildren(
    play,
    element("div", { class: "playback-line" }, element("label", { for: "playback-bar" }, "Step"), bar, stepField.node),
    words,
  );
  document.addEventListener("keydown", (event) => {
    if (store.state.tab !== "plane") return;
    const action = keyAction(event);
    if (action === null) return;
    event.preventDefault();
    if (action === "toggle") runs.toggle();
    else runs.stepBy(action === "on" ? 1 : -1);
  });
  let announced = "";
  let analysis = null;
  const drawn = () => {
    const { state } = store;
    setText(play, runs.isPlaying ? "Pause" : "Play");
    play.title = runs.isPlaying ? "Pause (space)" : "Play (space)";
    const text = runsText(runs, state.chosen.start, analysis?.refusal === null && state.view.guess === null ? expectedLimit(analysis) : null);
    setText(words, text);
    if (document.activeElement !== bar || Math.abs(barStep() - runs.step) > 0) bar.value = scale().at(runs.step) * BAR_POSITIONS;
    setAttributes(bar, { "aria-valuetext": `step ${runs.step.toLocaleString("en")} of ${runs.end.toLocaleString("en")}` });
    stepField.fill(runs.step);
    const endings = runs.paths.map((path) => (runs.step >= path.taken ? endOf(path) : "")).join("");
    if (endings !== announced && endings && !runs.isPlaying) store.say(text);
    announced = endings;
  };
  runs.subscribe(drawn);
  drawn();
  return {
    update(state, found) {
      analysis = found;
      drawn();
    },
  };
}
