// The page's start: it mounts the views, brings them up to date once in every animation frame, and keeps the address in step.
//
// A view is mounted by `mountX(root, store, runs)`, root being the element with its id in page.html, and returns an object with
// update(state, analysis, previous), previous being the state that it showed last (null at first). To add a view, write its module and
// add a line to VIEWS. Views of a hidden tab are not updated until it is shown.

import { ProblemError } from "../kernels/problem.js";
import { analyse } from "./analysis.js";
import { mountCurves } from "./run/curves.js";
import { mountGrowth } from "./run/growth_panel.js";
import { mountEditor } from "./problem/editor.js";
import { mountLimits } from "./findings/findings.js";
import { mountHelp } from "./guide/help.js";
import { hashOf, stateOfHash } from "./sharing/permalink.js";
import { mountPlane } from "./plane/plane.js";
import { mountPlayback } from "./run/playback.js";
import { mountPriorities } from "./text/priorities.js";
import { Runs } from "./run/run.js";
import { mountSettings } from "./run/settings.js";
import { shareItems, shownScript } from "./sharing/share_menu.js";
import { completeState, startState, stateOfProblem, Store } from "./state.js";
import { mountContinuation, mountTextInput } from "./text/text_panel.js";
import { mountVerdict } from "./findings/verdict.js";
import { mountPanels, mountTabs, mountToolbar } from "./toolbar.js";
import { isCalm, mountStory } from "./guide/story.js";
import { mountHeads } from "./text/heads_panel.js";

const PREDICTION = { id: "verdict", tab: "plane", mount: mountVerdict }; // what is shown first of all
const VIEWS = [
  { id: "plane", tab: "plane", mount: mountPlane },
  { id: "playback", tab: "plane", mount: mountPlayback, isPatient: true },
  { id: "curves", tab: "plane", mount: mountCurves, isPatient: true },
  { id: "limits", tab: "plane", mount: mountLimits, isPatient: true },
  { id: "editor", tab: "plane", mount: mountEditor, isPatient: true },
  { id: "settings", tab: "plane", mount: mountSettings, isPatient: true },
  { id: "text-heads", tab: "text", mount: mountHeads },
  { id: "text-input", tab: "text", mount: mountTextInput },
  { id: "text-graph", tab: "text", mount: mountPriorities },
  { id: "text-continuation", tab: "text", mount: mountContinuation },
  { id: "growth", tab: "growth", mount: mountGrowth },
];

const HASH_DELAY = 300; // ms after the last change until the address follows
const MESSAGE_TIME = 6000; // ms that a notice is shown
const HIDDEN_PAGE_WAIT = 60; // ms after which a page that is not painted goes on
const GESTURE_REST = 120; // ms without a change after which a gesture's frames are no longer counted

/** The JSON that the file holds in the script element with this id. */
function embedded(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

/** { state, isGreeting, complaint }: the state of the address, of the file's problem, or else the one that greets; and what was wrong. */
async function openingState() {
  const problem = embedded("problem");
  const attempt = async (read) => {
    try {
      return await read();
    } catch (error) {
      if (!(error instanceof ProblemError)) throw error;
      return { state: null, complaint: error.message };
    }
  };
  const linked = location.hash.length > 1 ? await attempt(() => stateOfHash(location.hash)) : { state: null, complaint: null };
  const ofFile = () => ({ state: problem && (problem.problem ? completeState(problem) : stateOfProblem(problem)), complaint: null });
  const found = linked.state ? linked : await attempt(ofFile);
  return { state: found.state ?? startState(globalThis.labPresets), isGreeting: found.state === null, complaint: linked.complaint ?? found.complaint };
}

/** Sentences in the live region: notices fade, a refusal stays until something works. */
function mountMessage(root, store) {
  let timer = 0;
  const hide = () => root.classList.add("faded");
  store.subscribeMessages(({ sentence, kind }) => {
    clearTimeout(timer);
    root.classList.remove("faded");
    root.classList.toggle("refusal", kind === "refusal");
    if (root.textContent === sentence) root.textContent = ""; // so that it is announced again
    root.textContent = sentence;
    timer = setTimeout(hide, kind === "refusal" ? 2 * MESSAGE_TIME : MESSAGE_TIME);
  });
  store.subscribe(() => {
    if (root.classList.contains("refusal")) hide();
  });
}

/** The address after changes, a new entry of the browser's history for each example, and changes of the address from outside. */
function followAddress(store) {
  let timer = 0;
  let isEntry = false; // whether the next address is a new entry
  let known = location.hash; // the address that the page wrote or read last: another one is from outside, and hashchange will tell of it
  const opening = store.state; // where the browser goes back to the page as it was opened
  const write = async () => {
    const { state } = store;
    const hash = await hashOf(state);
    if (state !== store.state || location.hash !== known) return;
    if (hash !== known) history[isEntry ? "pushState" : "replaceState"](null, "", hash);
    [known, isEntry] = [hash, false];
  };
  const writeAfter = (delay) => {
    clearTimeout(timer);
    timer = setTimeout(() => write().catch(() => {}), delay);
  };
  addEventListener("exampleopened", () => {
    isEntry = true;
    writeAfter(0);
  });
  store.subscribe(() => writeAfter(HASH_DELAY));
  addEventListener("hashchange", async () => {
    const { hash } = location;
    const { state, complaint } = hash === "" ? { state: opening } : await stateOfHash(hash).catch(({ message }) => ({ state: null, complaint: message }));
    if (hash !== location.hash) return; // and hashchange will tell of that one
    known = hash;
    if (state !== null) store.load(state, "open a link");
    if (complaint) store.say(complaint, "refusal");
  });
}

/** The address of a state: on the public copy of the page where one is named, else here. */
async function linkOf(state) {
  return `${document.documentElement.dataset.address ?? location.href.split("#")[0]}${await hashOf(state)}`;
}

/** One update of all visible views per animation frame, with the times of frames while something is dragged. */
class Frames {
  #views = [];
  #store;
  #waiting = 0;
  #gesture = null;
  #lastChange = 0;
  #lastFrame = 0;
  #isDirty = true;
  #turn = 0;
  isBehind = false; // whether a view shows an older state, for a moment while something is dragged
  intervals = [];
  costs = [];

  constructor(store) {
    this.#store = store;
    store.subscribe(() => this.#changed());
  }

  /** Views { view, tab } that are updated from now on, after those that were added before; without a tab they are always shown. */
  add(...views) {
    this.#views.push(...views.map((view) => ({ ...view, previous: null, turn: 0 })));
    this.update();
  }

  /** Update views although the state is as before, because what is known of it is not. */
  refresh() {
    for (const entry of this.#views) entry.isStale = true;
    this.#isDirty = true;
    this.request();
  }

  #changed() {
    this.#isDirty = true;
    const { gesture } = this.#store;
    if (gesture !== null && gesture !== this.#gesture) {
      this.intervals = [];
      this.costs = [];
      this.#lastFrame = 0;
    }
    this.#gesture = gesture;
    this.#lastChange = performance.now();
    this.request();
  }

  request() {
    if (this.#waiting === 0) this.#waiting = requestAnimationFrame((time) => this.#frame(time));
  }

  #frame(time) {
    this.#waiting = 0;
    const begin = performance.now();
    const isDragging = this.#gesture !== null && begin - this.#lastChange < GESTURE_REST;
    if (isDragging && this.#lastFrame > 0) this.intervals.push(time - this.#lastFrame);
    this.#lastFrame = isDragging ? time : 0;
    if (this.#isDirty || this.isBehind) {
      this.update(isDragging);
      if (isDragging) this.costs.push(performance.now() - begin);
    }
    if (isDragging) this.request();
  }

  /** Bring visible views up to the present state; while something is dragged, of the patient ones the one that has waited longest. */
  update(isDragging = false) {
    this.#isDirty = false;
    const { state } = this.#store;
    const analysis = analyse(state);
    const older = this.#views.filter(({ tab, previous, isStale }) => (!tab || tab === state.tab) && (isStale || previous !== state));
    const patient = isDragging ? older.filter(({ isPatient }) => isPatient).sort((a, b) => a.turn - b.turn) : [];
    const waiting = new Set(patient.slice(1));
    this.isBehind = waiting.size > 0;
    for (const entry of older) {
      if (waiting.has(entry)) continue;
      const { previous } = entry;
      entry.previous = state;
      entry.isStale = false;
      entry.turn = ++this.#turn;
      entry.view.update?.(state, analysis, previous);
    }
  }
}

/** The stage, for a projector: large letters and no panels, where the address ends in #stage or ?stage; Escape leaves it. */
function mountStage() {
  const show = (isStaged) => document.body.classList.toggle("staged", isStaged);
  const look = () => location.hash === "#stage" && show(true);
  addEventListener("hashchange", look);
  document.addEventListener("keydown", ({ key }) => key === "Escape" && !document.querySelector("dialog[open]") && show(false));
  if (location.search === "?stage") show(true);
  look();
}

/** When the browser has painted, or would have in a page that it does not show. */
function painted() {
  return new Promise((resolve) => {
    requestAnimationFrame(() => setTimeout(resolve));
    setTimeout(resolve, HIDDEN_PAGE_WAIT);
  });
}

/**
 * Start the page and offer `window.lab` to tests and lecturers: state(), analysis(), runs(), link() and pythonScript() (promises), frames()
 * ({ intervals, costs } in ms of the last drag), basins() ({ share, first, total, labels } of their picture, times in ms), store, ready
 * (a promise) and firstPrediction (ms from the end of loading to the first prediction on the page).
 */
export function startPage() {
  window.lab = { firstPrediction: null };
  window.lab.ready = openPage();
}

async function openPage() {
  globalThis.labPresets = embedded("presets");
  mountStage();
  const { state, isGreeting, complaint } = await openingState();
  const store = new Store(state);
  const runs = new Runs(store);
  const frames = new Frames(store);
  const mounted = ({ mount, ...entry }) => ({ ...entry, view: mount(document.getElementById(entry.id), store, runs) ?? {} });
  frames.add(mounted({ id: "tabs", mount: mountTabs }), mounted(PREDICTION));
  const firstPrediction = performance.now() - performance.getEntriesByName("lab")[0].startTime;
  mountMessage(document.getElementById("message"), store);
  const help = mountHelp();
  const bar = { items: shareItems(store, runs, linkOf), help };
  frames.add({ view: mountToolbar(document.getElementById("toolbar"), store, bar) });
  await painted();
  const story = mountStory(document.getElementById("story"), store, runs, mountPanels(document.getElementById("panels")));
  const views = VIEWS.map(mounted);
  frames.add({ view: runs, tab: "plane" }, ...views, { view: story });
  Object.assign(window.lab, {
    store,
    state: () => store.state,
    analysis: () => analyse(store.state),
    runs: () => runs,
    link: () => linkOf(store.state),
    pythonScript: () => shownScript(store, runs, linkOf),
    frames: () => ({ intervals: frames.intervals, costs: frames.costs, isBehind: frames.isBehind }),
    basins: () => views.find(({ id }) => id === "plane").view.basinProgress(),
    firstPrediction,
  });
  document.addEventListener("outlook", () => frames.refresh());
  addEventListener("themechange", () => frames.refresh());
  followAddress(store);
  if (isGreeting && !isCalm()) runs.play();
  if (complaint !== null) store.say(complaint, "refusal");
}
