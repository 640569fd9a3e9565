// The guided tour: four steps for a class, in a panel that leaves the page free to use.

import { element, replace, setText } from "../dom.js";
import { START_VIEW, withPlayback, withTab } from "../state.js";

const KEYS = [[[-0.1, 1], [1, 0], [0, 0]]];
const TWO_LIMITS = { keys: KEYS, scores: [[1, 0.9, 0]], optimizer: { name: "NormalizedGD", size: 0.1 }, steps: 200 };
const NARROW_WIDTH = 760; // px below which the page has a single column
const PROMISED = { keys: KEYS, scores: [[1, 0.9, 0.9]], optimizer: { name: "GradientDescent", size: 0.4 }, steps: 20_000 };

/** A problem and starts of the tour in the window of the plane, at the first step; everything else stays. */
function withExample(state, preset, problem, starts, view = {}) {
  const chosen = { input: null, token: null, start: 0, limit: null };
  return { ...state, tab: "plane", preset, problem, starts, chosen, view: { ...START_VIEW, ...view }, playback: { ...state.playback, step: 0 } };
}

/**
 * The steps: title, words for mouse and keyboard, the regions that are marked, the control to go to, what is shown, and what counts as done:
 * done({ state, first, runs, analysis }), first being the state that the step began with, gives a sentence or null.
 */
export const TOUR_STEPS = [
  {
    title: "Move a token",
    words: [
      "Three tokens lie in the plane. Token 1 has the best score, token 2 almost as good a one. The rays show where training will end, and nothing has been trained yet.",
      "Drag token 2 up towards token 1 – or go to it with Tab and ], and press the arrow keys – and watch the prediction jump.",
    ],
    regions: ["plane", "limits"],
    control: '#plane svg [tabindex="0"]',
    prepare: (state) => withExample(state, "A-F1b", TWO_LIMITS, [[2, -1.5]]),
    done: ({ state, first, analysis }) => {
      if (state.problem === first.problem) return null;
      const count = analysis.limits.length;
      return `You moved it: attention can now settle in ${count === 1 ? "one place" : `${count} places`}.`;
    },
  },
  {
    title: "Press play",
    words: [
      "Now train. Descent starts at the three marks s1, s2 and s3 and knows nothing of the prediction.",
      "Press Play below the picture, or the space bar. Every path bends towards one of the rays, and the correlation with it climbs to 1.",
    ],
    regions: ["playback", "curves"],
    control: "#playback .play",
    prepare: (state) => withExample(state, "A-F1b", TWO_LIMITS, [[2, -1.5], [-1, -0.5], [0.5, 0.2]], { half: 6 }),
    speed: 40,
    done: ({ runs }) => (runs.step > 0 ? "It runs: the paths go where the rays point." : null),
  },
  {
    title: "The start decides",
    words: [
      "The colours show, for every start, which limit it ends at: one basin for each ray.",
      "Drag a start across the border, or move it with the arrow keys, and its path ends in the other place.",
    ],
    regions: ["plane"],
    control: '#plane svg [tabindex="0"]',
    prepare: (state) => withPlayback(withExample(state, "A-F1b", TWO_LIMITS, [[2, -1.5], [-1, -0.5]], { basins: true }), { step: 200 }),
    done: ({ state, first }) => (state.starts === first.starts ? null : "Its path has followed."),
  },
  {
    title: "The proof",
    words: [
      "A prediction is worth what proves it. The numbers with a tick certify the direction: no other one has a wider margin.",
      "In this example both losing tokens have the same score. Then a theorem promises the limit from every start: open “Training from any start” and read its conditions.",
    ],
    regions: ["theorems", "certificate"],
    control: "#theorems summary",
    prepare: (state) => withPlayback(withExample(state, "A-F1a", PROMISED, [[2, -1.5], [-1, -0.5]]), { step: 20_000 }),
    done: () => null,
  },
];

const ENDING = {
  title: "That was the tour",
  words: ["Keep this example to play with, or go back to what you had. The other tab does the same for text: which token comes next, and why."],
};

/** The region's section, which is marked. */
function sectionOf(id) {
  const region = document.getElementById(id);
  return region?.closest("section") ?? region;
}

/** The tour's panel in `root`: { start, update }. */
export function mountTour(root, store, runs) {
  const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  let place = -1; // of the step that is shown, TOUR_STEPS.length for the ending, -1 while closed
  let before = null; // the state when the tour began
  let first = null; // the state when the step began
  let opener = null;
  let marked = [];
  const title = element("h2", { id: "tour-title", tabindex: "-1" });
  const count = element("p", { class: "small" });
  const words = element("div", { id: "tour-words" });
  const said = element("p", { class: "tour-done", role: "status" });
  const hint = element("p", { class: "small tour-hint" }, "F6 goes from here into the page and back, Esc closes.");
  const buttons = element("div", { class: "row" });
  const close = element("button", { type: "button", class: "icon plain", "aria-label": "Close the tour", title: "Close (Esc)", onclick: () => finish() }, "✕");
  const panel = element(
    "div",
    { class: "tour-panel", role: "dialog", "aria-modal": "false", "aria-labelledby": "tour-title", "aria-describedby": "tour-words", hidden: true },
    element("div", { class: "tour-head" }, element("div", {}, count, title), close),
    words,
    said,
    buttons,
    hint,
  );
  replace(root, panel);

  const unmark = () => {
    for (const node of marked) node.classList.remove("tour-marked");
    marked = [];
  };

  const show = (next) => {
    place = next;
    unmark();
    runs?.pause?.();
    const step = TOUR_STEPS[place];
    if (step) {
      store.apply(`tour: ${step.title.toLowerCase()}`, step.prepare);
      if (step.speed) store.apply("set the speed", (state) => withPlayback(state, { speed: step.speed }), { undoable: false });
    }
    first = store.state;
    setText(count, step ? `Tour, step ${place + 1} of ${TOUR_STEPS.length}` : "Tour");
    setText(title, (step ?? ENDING).title);
    replace(words, (step ?? ENDING).words.map((text) => element("p", {}, text)));
    setText(said, "");
    replace(buttons, step ? stepButtons(step) : endButtons());
    panel.hidden = false;
    if (step) {
      marked = step.regions.map(sectionOf).filter(Boolean);
      for (const node of marked) node.classList.add("tour-marked");
      const block = innerWidth < NARROW_WIDTH ? "start" : "nearest"; // on a phone the panel covers the lower part
      marked[0]?.scrollIntoView?.({ block, behavior: isCalm() ? "auto" : "smooth" });
    }
    title.focus({ preventScroll: true });
  };

  const button = (text, onclick, attributes = {}) => element("button", { type: "button", onclick, ...attributes }, text);

  /** Into the page: the control that the step is about, or else the marked section. */
  const visit = (step) => {
    const control = document.querySelector(step.control) ?? marked[0];
    if (control && control.tabIndex < 0) control.setAttribute("tabindex", "-1");
    control?.focus();
  };

  const stepButtons = (step) => [
    place > 0 && button("Back", () => show(place - 1)),
    button("Take me there", () => visit(step)),
    button(place + 1 < TOUR_STEPS.length ? "Next" : "Finish", () => show(place + 1), { class: "primary" }),
  ];

  const endButtons = () => [
    button("Leave as is", () => finish(), { class: "primary" }),
    button("Back to where I was", () => finish(true)),
    button("See next tokens", () => {
      finish();
      store.apply("show text", (state) => withTab(state, "text"), { undoable: false });
      document.getElementById("tab-button-text")?.focus();
    }),
  ];

  const finish = (isRestored = false) => {
    if (place < 0) return;
    place = -1;
    unmark();
    runs?.pause?.();
    panel.hidden = true;
    if (isRestored) {
      store.apply("leave the tour", () => before);
      store.say("Back to where you were.");
    } else store.say("The tour is closed. Undo leads back to what you had before it.");
    (opener?.isConnected ? opener : document.getElementById("content"))?.focus?.({ preventScroll: true });
  };

  const check = (analysis) => {
    const sentence = TOUR_STEPS[place]?.done({ state: store.state, first, runs, analysis }) ?? null;
    if (sentence !== null && said.textContent === "") panel.classList.add("is-done");
    if (sentence === null) panel.classList.remove("is-done");
    setText(said, sentence ?? "");
  };

  document.addEventListener("keydown", (event) => {
    if (place < 0 || event.defaultPrevented || (event.key !== "Escape" && event.key !== "F6")) return;
    if (document.querySelector('dialog[open], [role="menu"]:not([hidden])')) return;
    event.preventDefault();
    if (event.key === "Escape") finish();
    else if (panel.contains(document.activeElement) && TOUR_STEPS[place]) visit(TOUR_STEPS[place]);
    else title.focus({ preventScroll: true });
  });
  runs?.subscribe?.(() => {
    if (place >= 0 && TOUR_STEPS[place]?.speed) check({ limits: [] });
  });

  return {
    start() {
      if (place >= 0) return;
      opener = document.activeElement;
      before = store.state;
      show(0);
    },
    update(state, analysis) {
      if (place >= 0) check(analysis);
    },
  };
}
