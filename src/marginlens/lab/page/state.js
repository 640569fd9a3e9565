// The state of the page: plain frozen JSON, its check with one sentence for each fault, its changes, and the history behind undo.

import { currentProblem, FORMAT, FORMAT_VERSION, MAX_INPUTS, MAX_START, MAX_TOKENS, ProblemError, readProblem } from "../kernels/problem.js";
import { checkSequences, MAX_WINDOW } from "./text/text_model.js";

export const MAX_STARTS = 8;
export const MAX_SOURCE = 200_000; // characters of a text
export const MAX_NOTE = 300; // characters
const MAX_HISTORY = 200; // steps that undo can go back
const DEFAULT_START = [0, 0];
const LISTS_OF_TOKENS = ["tokens", "keys", "scores", "words"]; // with an entry for each token of each input
const PROBLEM_KEYS = ["tokens", "keys", "labels", "head", "scores", "train", "start_head", "optimizer", "loss", "steps", "words"];

export const START_CHOSEN = { input: null, token: null, start: 0, limit: null };
export const START_VIEW = { half: 4, lines: true, cones: false, basins: false, paths: true, guess: null };
export const START_PLAYBACK = { step: 0 };
export const START_GROWTH = { rate: 0.03, decay: 0, clip: 0 };
export const START_TEXT = globalThis.labWords.texts[0].text;

// ---- states and problems

/** Freeze a value and all that it holds; what is frozen already is taken as frozen throughout. */
export function deepFrozen(value) {
  if (typeof value !== "object" || value === null || Object.isFrozen(value)) return value;
  Object.values(value).forEach(deepFrozen);
  return Object.freeze(value);
}

/** A state of a problem's JSON form, with the parts that are not given as they are at the start. */
export function stateOfProblem(json, { preset = null, starts = null, view = {}, ...parts } = {}) {
  const current = currentProblem(json);
  const problem = Object.fromEntries(
    PROBLEM_KEYS.filter((key) => current[key] !== undefined && current[key] !== null).map((key) => [key, structuredClone(current[key])]),
  );
  return completeState({ ...parts, preset, problem, starts: starts ?? [json.start ?? DEFAULT_START], view });
}

/** A state that leaves parts out, with them as they are at the start; what it holds is checked. */
export function completeState(given) {
  if (typeof given !== "object" || given === null || Array.isArray(given)) throw new ProblemError("The state must be a JSON object.");
  const known = (start, value) => Object.entries(value ?? {}).filter(([key]) => key in start || key === "sequences"); // older links have more
  const part = (start, value) => ({ ...start, ...Object.fromEntries(known(start, value)) });
  return checkState({
    tab: given.tab ?? "plane",
    preset: given.preset ?? null,
    note: given.note ?? null,
    problem: structuredClone(given.problem && currentProblem(given.problem)),
    starts: structuredClone(given.starts ?? [DEFAULT_START]),
    chosen: part(START_CHOSEN, given.chosen),
    view: part(START_VIEW, given.view),
    playback: part(START_PLAYBACK, given.playback),
    text: part(START_TEXT, given.text),
    growth: part(START_GROWTH, given.growth),
  });
}

/** The state of a preset { name, title, problem, starts, view } and of the other parts that it names. */
export function stateOfPreset({ name, title, problem, ...parts }) {
  return stateOfProblem(problem, { ...parts, preset: name });
}

/** The state that the page opens with: the preset start-decides, or the first. */
export function startState(presets) {
  return stateOfPreset(presets.find(({ name }) => name === "start-decides") ?? presets[0]);
}

/** The problem's JSON form with start number k, as `readProblem` takes it and as files hold it. */
export function problemOf(state, k = state.chosen.start ?? 0) {
  return { format: FORMAT, version: FORMAT_VERSION, ...state.problem, start: state.starts[Math.min(k, state.starts.length - 1)] };
}

/** The lists of vectors that attention reads: keys where they are apart from the tokens. */
export function keysOf(problem) {
  return problem.keys ?? problem.tokens;
}

/** The labels, +1 where none are given. */
export function labelsOf(problem) {
  return problem.labels ?? keysOf(problem).map(() => 1);
}

// ---- the check

function refuse(sentence) {
  throw new ProblemError(sentence);
}

function isPoint(value, largest) {
  return Array.isArray(value) && value.length === 2 && value.every((entry) => Number.isFinite(entry) && Math.abs(entry) <= largest);
}

function checkNumber(value, what, low, high, whole = false) {
  if (!Number.isFinite(value) || value < low || value > high || (whole && !Number.isInteger(value)))
    refuse(`${what} must be a ${whole ? "whole " : ""}number between ${low} and ${high}; got ${JSON.stringify(value) ?? "nothing"}.`);
}

function checkChoice(value, what, choices) {
  if (!choices.includes(value)) refuse(`${what} must be ${choices.join(" or ")}; got ${JSON.stringify(value) ?? "nothing"}.`);
}

const checkedProblems = new WeakSet(); // frozen problems that have passed

function checkProblem(problem) {
  if (checkedProblems.has(problem)) return;
  if (typeof problem !== "object" || problem === null) refuse("The state must hold a problem.");
  const unknown = Object.keys(problem).find((key) => !PROBLEM_KEYS.includes(key));
  if (unknown !== undefined) refuse(`A problem of the page has no part named ${unknown}.`);
  readProblem(problem);
  if (Object.isFrozen(problem)) checkedProblems.add(problem);
}

function checkIndex(value, what, count) {
  if (value === null) return;
  if (!Number.isInteger(value) || value < 0 || value >= count) refuse(`The chosen ${what} is not among those of the problem.`);
}

/** The state itself where it can be shown, or a `ProblemError` with one sentence. */
export function checkState(state) {
  checkChoice(state.tab, "The tab", ["plane", "text", "growth"]);
  if (state.preset !== null && typeof state.preset !== "string") refuse("The name of a preset must be a text.");
  if (state.note !== null && (typeof state.note !== "string" || state.note.length > MAX_NOTE)) refuse(`A note must be a text of at most ${MAX_NOTE} characters.`);
  checkProblem(state.problem);
  const { starts, chosen, view, playback, text, growth } = state;
  if (!Array.isArray(starts) || starts.length === 0) refuse("There must be at least one start.");
  if (starts.length > MAX_STARTS) refuse(`There can be at most ${MAX_STARTS} starts; got ${starts.length}.`);
  starts.forEach((start, k) => {
    if (!isPoint(start, MAX_START)) refuse(`Start ${k} must be two numbers up to 10¹² in modulus.`);
  });
  const keys = keysOf(state.problem);
  checkIndex(chosen.input, "input", keys.length);
  checkIndex(chosen.token, "token", chosen.input === null ? 0 : keys[chosen.input].length);
  checkIndex(chosen.start, "start", starts.length);
  if (chosen.limit !== null) checkNumber(chosen.limit, "The chosen limit", 0, 1e6, true);
  checkNumber(view.half, "Half the window's width", 1e-6, 1e12);
  for (const name of ["lines", "cones", "basins", "paths"]) checkChoice(view[name], `The view's ${name}`, [true, false]);
  if (view.guess !== null && !isPoint(view.guess, MAX_START)) refuse("The guess must be two numbers up to 10¹² in modulus.");
  checkNumber(playback.step, "The step shown", 0, 1e7, true);
  if (typeof text.source !== "string" || text.source.length > MAX_SOURCE)
    refuse(`The text must be at most ${MAX_SOURCE.toLocaleString("en")} characters long.`);
  checkChoice(text.unit, "The unit of the text", ["characters", "words"]);
  checkNumber(text.window, "The window's length", 1, MAX_WINDOW, true);
  if (text.sequences) checkSequences(text.sequences);
  if (text.last !== null && typeof text.last !== "string") refuse("The last token must be a text.");
  if (typeof text.prompt !== "string" || text.prompt.length > MAX_SOURCE) refuse("The beginning that is continued must be a text.");
  checkNumber(text.count, "The number of tokens to add", 0, 1000, true);
  checkChoice(text.draw, "The way of choosing the next token", ["likely", "random"]);
  checkNumber(text.seed, "The seed", 0, 2 ** 32 - 1, true);
  checkNumber(growth.rate, "The rate", 1e-4, 0.1);
  checkNumber(growth.decay, "The weight decay", 0, 0.3);
  checkNumber(growth.clip, "QK-clip", 0, 1e6);
  return state;
}

/** The chosen indices without those that the state no longer has. */
function validChosen(state) {
  const { chosen, problem, starts } = state;
  const keys = keysOf(problem);
  const input = chosen.input !== null && chosen.input < keys.length ? chosen.input : null;
  const token = input !== null && chosen.token !== null && chosen.token < keys[input].length ? chosen.token : null;
  const start = chosen.start === null ? null : Math.min(chosen.start, starts.length - 1);
  if (input === chosen.input && token === chosen.token && start === chosen.start) return state;
  return { ...state, chosen: { ...chosen, input, token, start } };
}

// ---- changes: state → state

function replaced(list, place, value) {
  return list.map((entry, k) => (k === place ? value : entry));
}

function without(list, place) {
  return list.filter((_, k) => k !== place);
}

/** Parts of the problem; those that are undefined are left out. */
export function withProblem(state, part) {
  const problem = { ...state.problem, ...part };
  for (const key of Object.keys(problem)) if (problem[key] === undefined) delete problem[key];
  return { ...state, problem };
}

function withVector(state, name, i, t, point) {
  return withProblem(state, { [name]: replaced(state.problem[name], i, replaced(state.problem[name][i], t, Array.from(point))) });
}

/** Token t of input i moved; where tokens are given by keys and scores, its key. */
export function withToken(state, i, t, point) {
  return withVector(state, state.problem.tokens ? "tokens" : "keys", i, t, point);
}

/** The key of token t of input i moved, where keys are apart from the tokens; else the token. */
export function withKey(state, i, t, point) {
  return withVector(state, state.problem.keys ? "keys" : "tokens", i, t, point);
}

/** The head v, where scores come from a head. */
export function withHead(state, point) {
  return withProblem(state, { head: Array.from(point), scores: undefined });
}

/** The score of token t of input i, where scores are given outright. */
export function withScore(state, i, t, score) {
  const { scores } = state.problem;
  return withProblem(state, { scores: replaced(scores, i, replaced(scores[i], t, score)) });
}

/** The label of input i, +1 or -1. */
export function withLabel(state, i, label) {
  return withProblem(state, { labels: replaced(labelsOf(state.problem), i, label) });
}

/** The problem with its lists of these names changed by change(list, name). */
function withLists(state, names, change) {
  const held = names.filter((name) => state.problem[name]);
  return withProblem(state, Object.fromEntries(held.map((name) => [name, change(state.problem[name], name)])));
}

/** One more token of input i, with its key where keys are apart and its score where scores are given; it becomes the chosen one. */
export function addToken(state, i, point, { key = point, score = 0 } = {}) {
  const length = keysOf(state.problem)[i].length;
  if (length >= MAX_TOKENS) refuse(`Input ${i} has ${length} tokens already, the most that the page takes.`);
  const entry = { tokens: Array.from(point), keys: Array.from(key), scores: score, words: "" };
  const changed = withLists(state, LISTS_OF_TOKENS, (lists, name) => replaced(lists, i, [...lists[i], entry[name]]));
  return { ...changed, chosen: { ...state.chosen, input: i, token: length } };
}

/** Input i without its token t. */
export function removeToken(state, i, t) {
  if (keysOf(state.problem)[i].length <= 1) refuse(`Input ${i} must have at least one token.`);
  const changed = withLists(state, LISTS_OF_TOKENS, (lists) => replaced(lists, i, without(lists[i], t)));
  return { ...changed, chosen: { ...state.chosen, token: null } };
}

/** One more input with the given points as its tokens; the first of them scores 1 where scores are given. */
export function addInput(state, points) {
  const count = keysOf(state.problem).length;
  if (count >= MAX_INPUTS) refuse(`There are ${count} inputs already, the most that the page takes.`);
  const vectors = points.map((point) => Array.from(point));
  const entry = { tokens: vectors, keys: vectors, scores: points.map((_, t) => (t === 0 ? 1 : 0)), words: points.map(() => ""), labels: 1 };
  const changed = withLists(state, [...LISTS_OF_TOKENS, "labels"], (lists, name) => [...lists, entry[name]]);
  return { ...changed, chosen: { ...state.chosen, input: count, token: null } };
}

/** The problem without input i. */
export function removeInput(state, i) {
  if (keysOf(state.problem).length <= 1) refuse("There must be at least one input.");
  const changed = withLists(state, [...LISTS_OF_TOKENS, "labels"], (lists) => without(lists, i));
  return { ...changed, chosen: { ...state.chosen, input: null, token: null } };
}

/** Start k moved. */
export function withStart(state, k, point) {
  return { ...state, starts: replaced(state.starts, k, Array.from(point)) };
}

/** One more start, which becomes the chosen one. */
export function addStart(state, point) {
  if (state.starts.length >= MAX_STARTS) refuse(`There are ${MAX_STARTS} starts already, the most that the page takes.`);
  return { ...state, starts: [...state.starts, Array.from(point)], chosen: { ...state.chosen, start: state.starts.length } };
}

/** The state without start k. */
export function removeStart(state, k) {
  if (state.starts.length <= 1) refuse("There must be at least one start.");
  return validChosen({ ...state, starts: without(state.starts, k) });
}

/**
 * What is trained: "attention", or "both" head and attention. Then scores that were given outright are left out, and the head stays for
 * the way back; without one, the attention alone is trained with the head that joint training starts from.
 */
export function withTrain(state, train) {
  const { tokens, keys, optimizer, head, scores, start_head: startHead } = state.problem;
  if (train !== "both") {
    const isGiven = head !== undefined || scores !== undefined;
    return withProblem(state, { train, head: isGiven ? head : startHead?.some((entry) => entry !== 0) ? startHead : [1, 0] });
  }
  const isJoint = !optimizer || optimizer.name === "gradient-descent" || optimizer.name === "normalized-gd";
  return withProblem(state, {
    train,
    tokens: tokens ?? keys,
    keys: tokens ? keys : undefined,
    scores: undefined,
    optimizer: isJoint ? optimizer : undefined,
  });
}

/** Part of what is shown. */
export function withView(state, part) {
  return { ...state, view: { ...state.view, ...part } };
}

/** Part of the text tab. */
export function withText(state, part) {
  return { ...state, text: { ...state.text, ...part } };
}

/** Part of the tab about growing logits. */
export function withGrowth(state, part) {
  return { ...state, growth: { ...state.growth, ...part } };
}

/** What is focused in the panels. */
export function withChosen(state, part) {
  return { ...state, chosen: { ...state.chosen, ...part } };
}

/** The step of the playback. */
export function withPlayback(state, part) {
  return { ...state, playback: { ...state.playback, ...part } };
}

// ---- the store

/**
 * The present state and the way back.
 *
 * Listeners of `subscribe` get (state, previous) after every change, those of `subscribeMessages` ({ sentence, kind }).
 */
export class Store {
  #past = []; // { label, state } before each change
  #future = [];
  #gesture = null;
  #first;
  #listeners = new Set();
  #messageListeners = new Set();

  /** first: the state that `reset` goes back to. */
  constructor(first) {
    this.state = deepFrozen(checkState(first));
    this.#first = this.state;
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  subscribeMessages(listener) {
    this.#messageListeners.add(listener);
    return () => this.#messageListeners.delete(listener);
  }

  /** Show one sentence in the page's live region; kind: "notice" or "refusal". */
  say(sentence, kind = "notice") {
    for (const listener of this.#messageListeners) listener({ sentence, kind });
  }

  /**
   * Change the state; returns whether it was changed. Changes that share a gesture that is not null are undone together. A `ProblemError`
   * leaves the state as it is and shows its sentence.
   */
  apply(label, change, { gesture = null, undoable = true } = {}) {
    const previous = this.state;
    let next;
    try {
      next = change(previous);
      if (next === previous) return false;
      next = deepFrozen(checkState(validChosen(next)));
    } catch (error) {
      if (!(error instanceof ProblemError)) throw error;
      this.say(error.message, "refusal");
      return false;
    }
    if (undoable) {
      if (gesture === null || gesture !== this.#gesture) this.#past.push({ label, state: previous });
      if (this.#past.length > MAX_HISTORY) this.#past.shift();
      this.#future = [];
      this.#gesture = gesture;
    }
    this.#show(next);
    return true;
  }

  /** The gesture that the last change belongs to, or null. */
  get gesture() {
    return this.#gesture;
  }

  /** What undo would take back, or null. */
  get undoLabel() {
    return this.#past.at(-1)?.label ?? null;
  }

  /** What redo would do again, or null. */
  get redoLabel() {
    return this.#future.at(-1)?.label ?? null;
  }

  undo() {
    this.#move(this.#past, this.#future, "Undone");
  }

  redo() {
    this.#move(this.#future, this.#past, "Done again");
  }

  /** Back to the state that the page, or the last preset or file, began with. */
  reset() {
    if (this.apply("start again", () => ({ ...this.#first, tab: this.state.tab }))) this.say("Back at the start.");
  }

  /** Show another state, from which `reset` then begins; returns whether it can be shown. */
  load(state, label) {
    const isShown = this.apply(label, () => state);
    if (isShown) this.#first = this.state;
    return isShown;
  }

  #move(from, to, verb) {
    const entry = from.pop();
    if (entry === undefined) return;
    to.push({ label: entry.label, state: this.state });
    this.#gesture = null;
    const { chosen, playback } = this.state;
    this.#show(deepFrozen(validChosen({ ...entry.state, chosen, playback })));
    this.say(`${verb}: ${entry.label}.`);
  }

  #show(next) {
    const previous = this.state;
    this.state = next;
    for (const listener of this.#listeners) listener(next, previous);
  }
}
