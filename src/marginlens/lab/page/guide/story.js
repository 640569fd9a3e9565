// The story: six scenes, each an example with one sentence, which is its caption, and one thing to do; in some the reader guesses first.

import { expectedLimit } from "../analysis.js";
import { exampleNamed } from "../examples.js";
import { element, replace, setAttributes, setText } from "../dom.js";
import { short } from "../numbers.js";
import { stateOfPreset, withView } from "../state.js";

const GUESS_LENGTH = 0.45; // of half the window: of the arrow before it is dragged
const DEGREES = 180 / Math.PI;

/** Whether the reader asks for little motion. */
export function isCalm() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** The angle between two vectors of the plane, in degrees. */
function degreesBetween(p, q) {
  return DEGREES * Math.abs(Math.atan2(p[0] * q[1] - p[1] * q[0], p[0] * q[0] + p[1] * q[1]));
}

/** The scenes in `root`; showPanel(name) shows a panel beside the picture. */
export function mountStory(root, store, runs, showPanel) {
  const scenes = globalThis.labWords.story;
  const open = ({ preset, panel, guesses }) => {
    const opened = stateOfPreset(exampleNamed(preset));
    const state = exampleNamed(preset).text ? opened : { ...opened, text: store.state.text };
    const guess = guesses ? [0, -GUESS_LENGTH * opened.view.half] : null;
    runs.pause();
    if (!store.load(withView(state, { guess }), `open example ${preset}`)) return;
    if (panel) showPanel(panel);
    if (!guesses && state.tab === "plane" && !isCalm()) requestAnimationFrame(() => runs.play()); // after the runs have followed the state
  };
  const buttons = scenes.map((scene, k) => element("button", { type: "button", onclick: () => open(scene) }, element("b", {}, String(k + 1)), ` ${scene.name}`));
  const task = element("p", { class: "task" });
  const answer = element("button", { type: "button", class: "primary", onclick: () => reveal() }, "Show the answer");
  const next = element("button", { type: "button", onclick: () => open(scenes[place + 1]) }, "Next scene ▸");
  replace(root, element("ol", {}, buttons.map((button) => element("li", {}, button))), task, answer, next);
  let place = -1; // of the scene that is shown
  let last = null; // { state, analysis }
  let guessed = ""; // how the guess of this scene was

  /** Show where training ends, and how far the arrow was off. */
  const reveal = () => {
    const { state, analysis } = last;
    const limit = expectedLimit(analysis);
    const away = limit && short(degreesBetween(state.view.guess, limit.direction), 2);
    guessed = limit ? `Your arrow was ${away}° away from where training ends. ` : "";
    store.apply("see the answer", (before) => withView(before, { guess: null }), { undoable: false });
    if (!isCalm()) runs.play();
  };
  document.addEventListener("guessed", reveal);
  return {
    update(state, analysis) {
      const at = scenes.findIndex(({ preset }) => preset === state.preset);
      if (at !== place || state.view.guess) guessed = "";
      place = at;
      last = { state, analysis };
      buttons.forEach((button, k) => setAttributes(button, { "aria-current": k === place ? "step" : null }));
      const isGuessing = state.view.guess !== null;
      document.body.classList.toggle("guessing", isGuessing);
      const { task: words = "" } = scenes[place] ?? {};
      setText(task, isGuessing ? globalThis.labWords.guess : `${guessed}${words}`);
      answer.hidden = !isGuessing;
      next.hidden = place < 0 || place + 1 === scenes.length || isGuessing;
    },
  };
}
