// The story: six scenes to scroll through beside the picture, each an example with one sentence, which is its caption, and one task, whose
// success it notices; in some the reader guesses first.

import { angleBetween } from "../../kernels/linalg.js";
import { analyse, expectedLimit } from "../analysis.js";
import { exampleNamed, exampleOf } from "../examples.js";
import { element, replace, setAttributes, setText } from "../dom.js";
import { stateOfPreset, withView } from "../state.js";
import { text, title } from "../words.js";

const GUESS_LENGTH = 0.45; // of half the window: of the arrow before it is dragged
const SCROLL_REST_MS = 150; // after which the scene that was scrolled to is opened
const FIRST_BUDGET_MS = 30; // of following the run that a scene opens with

/** Whether the reader asks for little motion. */
export function isCalm() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** The token that wins in a problem of one input, null where none is known. */
function winnerOf(analysis) {
  return expectedLimit(analysis)?.mark.replace("→ ", "") ?? null;
}

/** The token that wins where nothing was changed in an example. */
function firstWinner(preset) {
  const analysis = analyse(stateOfPreset(exampleNamed(preset)));
  analysis.outlook.advance(FIRST_BUDGET_MS);
  return winnerOf(analysis);
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
    const number = element("b", {}, `${k + 1} of ${scenes.length}`);
    const name = element("button", { type: "button", onclick: () => open(scene) }, number, ` ${title(`lab.scene.${scene.name}`)}`);
    const marks = k === 0 ? element("p", { class: "marks small" }, text("lab.marks")) : null;
    return { sentence, task, node: element("li", {}, name, sentence, task, marks) };
  });
  const list = element("ol", {}, cards.map(({ node }) => node));
  const answer = element("button", { type: "button", class: "primary", onclick: () => reveal() }, "Show the answer");
  const next = element("button", { type: "button", onclick: () => open(scenes[place + 1]) }, "Next ▸");
  replace(root, list, element("div", { class: "row" }, answer, next));
  let place = -1; // of the scene that is shown
  let last = null; // { state, analysis }
  let guessed = ""; // how the guess of this scene was
  let first = null; // the token that won when this scene was opened
  let done = null; // the numbers of what is said of this scene's task, once it is done
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
    const isTouched = state.view.guess[0] !== 0; // which it is before it is dragged
    guessed = limit && isTouched ? `${text("lab.guessed", { angle: angleBetween(state.view.guess, limit.direction) })} ` : "";
    store.apply("see the answer", (before) => withView(before, { guess: null }), { undoable: false });
    if (!isCalm()) runs.play();
  };
  document.addEventListener("guessed", reveal);

  /** Look whether the task of the scene is done, which it then stays. */
  const notice = () => {
    const { state, analysis } = last;
    if (place < 0 || done !== null || state.view.guess) return;
    const isChanged = exampleOf(state)?.isChanged ?? false;
    const winner = winnerOf(analysis);
    const isDone = {
      changed: () => isChanged,
      winner: () => isChanged && winner !== null && winner !== first,
      played: () => !runs.isPlaying && runs.step > 0 && runs.step >= runs.end,
      asked: () => false,
    }[scenes[place].done];
    if (isDone()) show({ winner });
  };
  const show = (numbers) => {
    done = numbers;
    const { state } = last;
    const isGuessing = state.view.guess !== null;
    cards.forEach(({ node, sentence, task }, k) => {
      const isHere = k === place;
      setAttributes(node, { "aria-current": isHere ? "step" : null });
      sentence.hidden = !isHere || isGuessing;
      task.classList.toggle("done", isHere && done !== null);
      const code = `lab.scene.${scenes[k].name}`;
      if (isHere && isGuessing) setText(task, text("lab.guess"));
      else if (isHere && done !== null) setText(task, text(code, { ...done, case: "done" }));
      else setText(task, `${isHere ? guessed : ""}${text(code)}`);
    });
    answer.hidden = !isGuessing;
    next.hidden = place < 0 || place + 1 === scenes.length || isGuessing;
    next.classList.toggle("primary", done !== null);
  };
  runs.subscribe(() => last !== null && notice());
  document.addEventListener("reasonshown", () => scenes[place]?.done === "asked" && show({}));
  return {
    update(state, analysis) {
      const at = scenes.findIndex(({ preset }) => preset === state.preset && (exampleNamed(preset).tab ?? "plane") === state.tab);
      const isOther = at !== place;
      const isGuessing = state.view.guess !== null;
      last = { state, analysis };
      if (isOther || isGuessing) [guessed, done] = ["", null];
      if (isOther && scenes[at]?.done === "winner") first = firstWinner(state.preset);
      place = at;
      document.body.classList.toggle("guessing", isGuessing);
      root.hidden = state.tab === "growth";
      show(done);
      notice();
      if (isOther) align();
    },
  };
}
