// The story: six scenes to scroll through beside the picture, each an example with one sentence, which is its caption, and one thing to do;
// in some the reader guesses first.

import { angleBetween } from "../../kernels/linalg.js";
import { expectedLimit } from "../analysis.js";
import { exampleNamed, exampleOf } from "../examples.js";
import { element, replace, setAttributes, setText } from "../dom.js";
import { stateOfPreset, withView } from "../state.js";
import { text, title } from "../words.js";

const GUESS_LENGTH = 0.45; // of half the window: of the arrow before it is dragged
const SCROLL_REST_MS = 150; // after which the scene that was scrolled to is opened

/** Whether the reader asks for little motion. */
export function isCalm() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** The scenes in `root`, a list that the reader scrolls; showPanel(name) shows a panel beside the picture. */
export function mountStory(root, store, runs, showPanel) {
  const scenes = globalThis.labWords.story;
  const open = ({ preset, panel, guesses }) => {
    const opened = stateOfPreset(exampleNamed(preset));
    const state = exampleNamed(preset).text ? opened : { ...opened, text: store.state.text };
    const guess = guesses ? [0, -GUESS_LENGTH * opened.view.half] : null;
    runs.pause();
    if (!store.load(withView(state, { guess }), `open example ${preset}`)) return;
    dispatchEvent(new Event("exampleopened"));
    if (panel) showPanel(panel);
    if (!guesses && state.tab === "plane" && !isCalm()) requestAnimationFrame(() => runs.play()); // after the runs have followed the state
  };
  const cards = scenes.map((scene, k) => {
    const sentence = element("p", { class: "sentence" }, exampleNamed(scene.preset).caption);
    const task = element("p", { class: "task" });
    const name = element("button", { type: "button", onclick: () => open(scene) }, element("b", {}, String(k + 1)), ` ${title(`lab.scene.${scene.name}`)}`);
    return { sentence, task, node: element("li", {}, name, sentence, task) };
  });
  const list = element("ol", {}, cards.map(({ node }) => node));
  const answer = element("button", { type: "button", class: "primary", onclick: () => reveal() }, "Show the answer");
  const next = element("button", { type: "button", onclick: () => open(scenes[place + 1]) }, "Next scene ▸");
  replace(root, list, element("div", { class: "row" }, answer, next));
  let place = -1; // of the scene that is shown
  let last = null; // { state, analysis }
  let guessed = ""; // how the guess of this scene was
  let isReading = false; // whether the reader scrolls, and not the page
  let timer = 0;

  /** Scroll to the scene that is shown. */
  const align = () => {
    const { offsetLeft, offsetTop } = cards[Math.max(0, place)].node;
    list.scrollTo(offsetLeft, offsetTop);
  };
  for (const type of ["wheel", "touchmove", "pointerdown"]) list.addEventListener(type, () => (isReading = true), { passive: true });
  for (const type of ["click", "keydown"]) list.addEventListener(type, () => (isReading = false)); // where a focus scrolls, nobody reads on
  list.addEventListener("scroll", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const { left, top } = list.getBoundingClientRect();
      const boxes = cards.map(({ node }) => node.getBoundingClientRect());
      const distances = boxes.map((box) => Math.hypot(box.left - left, box.top - top));
      const nearest = distances.indexOf(Math.min(...distances));
      if (isReading && nearest !== place) open(scenes[nearest]);
      isReading = false;
    }, SCROLL_REST_MS);
  });
  new ResizeObserver(align).observe(list);

  /** Show where training ends, and how far the arrow was off. */
  const reveal = () => {
    const { state, analysis } = last;
    const limit = expectedLimit(analysis);
    guessed = limit ? `${text("lab.guessed", { angle: angleBetween(state.view.guess, limit.direction) })} ` : "";
    store.apply("see the answer", (before) => withView(before, { guess: null }), { undoable: false });
    if (!isCalm()) runs.play();
  };
  document.addEventListener("guessed", reveal);
  return {
    update(state, analysis) {
      const at = scenes.findIndex(({ preset }) => preset === state.preset && (exampleNamed(preset).tab ?? "plane") === state.tab);
      const isOther = at !== place;
      if (isOther || state.view.guess) guessed = "";
      place = at;
      last = { state, analysis };
      const isGuessing = state.view.guess !== null;
      const isTrue = place >= 0 && !isGuessing && !exampleOf(state).isChanged; // what the example says of itself
      document.body.classList.toggle("guessing", isGuessing);
      root.hidden = state.tab === "growth";
      cards.forEach(({ node, sentence, task }, k) => {
        setAttributes(node, { "aria-current": k === place ? "step" : null });
        sentence.style.visibility = isTrue ? "visible" : "hidden"; // its place stays, so that nothing jumps
        sentence.hidden = k !== place || isGuessing;
        setText(task, k === place && isGuessing ? text("lab.guess") : `${k === place ? guessed : ""}${text(`lab.scene.${scenes[k].name}`)}`);
      });
      answer.hidden = !isGuessing;
      next.hidden = place < 0 || place + 1 === scenes.length || isGuessing;
      if (isOther) align();
    },
  };
}
