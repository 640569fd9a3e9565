// A text of the next-token tab, read once, and the answers about it: counts, priority graphs, evidence, continuation.
//
// Nothing of the document is used, so that all of it can run in a worker.

import {
  columnOf,
  continueSequence,
  explainNext,
  makeAutomaton,
  TIE_UNKNOWN,
} from "../../kernels/automaton.js";
import { indexCharacters, indexWords, lastToken, rankingEvidence, sequences, splitWords, textWindows } from "../../kernels/graphs.js";
import { ProblemError } from "../../kernels/problem.js";
import { drawsOf } from "../../kernels/draws.js";

export const MAX_VOCABULARY = 400; // different tokens that the page takes
export const MAX_WINDOW = 32;
export const MAX_COUNT = 200; // tokens of a continuation
const SIGNS = { " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍" };

function refuse(sentence) {
  throw new ProblemError(sentence);
}

/** A token's name with signs for what would not be seen. */
export function shownName(name) {
  return Array.from(name, (letter) => SIGNS[letter] ?? letter).join("");
}

// ---- reading

/**
 * The model of `state.text`: { names, unknown, ids, data, automaton, window, unit }; ids is null for sequences given outright. A
 * `ProblemError` says in one sentence why a text cannot be read.
 */
export function readText({ source, unit, window, sequences: listed = null }) {
  if (listed) return modelOf({ unit: "listed", ids: null, ...readSequences(listed) });
  if (source.trim() === "") refuse("There is no text yet: type or paste one, or take an example.");
  const { names, ids, unknown } = unit === "words" ? indexWords(source, MAX_VOCABULARY) : indexCharacters(source);
  const count = `${ids.length.toLocaleString("en")} ${ids.length === 1 ? unit.slice(0, -1) : unit}`;
  if (ids.length === 0) refuse("The text has no words: take characters instead.");
  if (unit === "characters" && names.length > MAX_VOCABULARY)
    refuse(`The page takes up to ${MAX_VOCABULARY} different characters; this text has ${names.length}: take words, of which the frequent ones count.`);
  if (window >= ids.length) refuse(`The window must be shorter than the text, which has ${count}; got ${window}.`);
  const data = textWindows(ids, window, names.length);
  if (data.labels.length === 0)
    refuse(`No window of ${window} ${unit} holds what follows it: take a longer window or a text that repeats itself.`);
  return modelOf({ names, unknown, ids, data, window, unit });
}

const checkedSequences = new WeakSet(); // frozen ones that have passed

/** Refuse what is not { samples, labels, names } with ids of the names. */
export function checkSequences(listed) {
  if (checkedSequences.has(listed)) return;
  const { samples, labels, names } = listed;
  const isList = Array.isArray(samples) && Array.isArray(labels) && Array.isArray(names);
  if (!isList || samples.length !== labels.length || samples.length === 0) refuse("Sequences need samples, a label for each, and names.");
  if (names.length > MAX_VOCABULARY) refuse(`The page takes up to ${MAX_VOCABULARY} different tokens; got ${names.length}.`);
  const isId = (id) => Number.isInteger(id) && id >= 0 && id < names.length;
  samples.forEach((sample, i) => {
    if (!Array.isArray(sample) || sample.length === 0 || !sample.every(isId) || !isId(labels[i]))
      refuse(`Sequence ${i} and its label must be ids from 0 to ${names.length - 1}.`);
  });
  if (Object.isFrozen(listed)) checkedSequences.add(listed);
}

/** Sequences given outright; those that lack their label play no part. */
function readSequences(listed) {
  checkSequences(listed);
  const { samples, labels, names } = listed;
  const usable = samples.map((_, i) => i).filter((i) => samples[i].includes(labels[i]));
  if (usable.length === 0) refuse("No sequence holds its label, so that attention cannot answer any of them.");
  const data = sequences(usable.map((i) => samples[i]), usable.map((i) => labels[i]), names.length);
  const window = Math.max(...samples.map((sample) => sample.length));
  return { names: names.map(String), unknown: null, data: { ...data, dropped: samples.length - usable.length }, window };
}

function modelOf(parts) {
  const place = new Map(parts.names.map((name, id) => [name, id]));
  return { ...parts, place, automaton: makeAutomaton(parts.data), evidence: new Map() };
}

/**
 * What the page says of a text: { unit, window, names, opening, tokens, windows, dropped, rare, lasts: [{ token, windows, nodes,
 * components }] }, the most frequent last token first; opening is its first window.
 */
export function summaryOf(model) {
  const { unit, names, unknown, ids, data, automaton, window } = model;
  const counts = new Map();
  for (let i = 0; i < data.labels.length; i++) counts.set(lastToken(data, i), (counts.get(lastToken(data, i)) ?? 0) + 1);
  const lasts = [...automaton.graphs.values()].map(({ last, nodes, components }) => {
    return { token: last, windows: counts.get(last), nodes: nodes.length, components: components.length };
  });
  lasts.sort((a, b) => b.windows - a.windows || a.token - b.token);
  const rare = unknown === null || ids === null ? 0 : ids.reduce((sum, id) => sum + (id === unknown), 0);
  const first = Array.from((ids ?? data.tokens).subarray(0, ids ? window : data.offsets[1]), (id) => names[id]);
  const opening = first.join(unit === "characters" ? "" : " ");
  const counted = { tokens: ids?.length ?? null, windows: data.labels.length, dropped: data.dropped, rare };
  return { unit, window, names, opening, ...counted, lasts };
}

/** The ids of a prompt; a `ProblemError` names the first token that the text does not have. */
export function promptIds({ unit, place, unknown }, prompt) {
  const split = { characters: (text) => Array.from(text), words: splitWords, listed: (text) => text.split(/\s+/).filter(Boolean) };
  const tokens = split[unit](prompt);
  if (tokens.length === 0) refuse("There is no beginning to continue: type one.");
  return tokens.map((token) => {
    const id = place.get(token) ?? unknown;
    if (id === null) refuse(`The beginning holds “${shownName(token)}”, which the text does not: use tokens of the text.`);
    return id;
  });
}

// ---- graphs and evidence

/** How many windows stand behind each edge of a graph: a Map from "label,other". */
function evidenceOf(model, graph) {
  if (!model.evidence.has(graph.last)) {
    const found = rankingEvidence(model.data, graph, graph.edges);
    model.evidence.set(graph.last, new Map(found.map(({ label, other, samples }) => [`${label},${other}`, samples])));
  }
  return model.evidence.get(graph.last);
}

/**
 * The priority graph of a last token for the bands and the list: { last, windows, nodes, components, edges: [{ label, other, windows,
 * isStrict }], heights (of each component, or null where Graph-SVM was not solved), levels (the longest chain above each) }.
 */
export function graphAnswer(model, last) {
  const graph = model.automaton.graphs.get(last);
  if (!graph) return null;
  const { height, isSolved } = columnOf(model.automaton, last);
  const windows = evidenceOf(model, graph);
  const partOf = (token) => graph.componentOf[graph.place.get(token)];
  return {
    last,
    windows: model.data.labels.filter((_, i) => lastToken(model.data, i) === last).length,
    nodes: graph.nodes,
    components: graph.components,
    levels: graph.levels,
    heights: isSolved ? graph.components.map(([token]) => height[token]) : null,
    edges: graph.edges.map(([label, other]) => ({
      label,
      other,
      windows: windows.get(`${label},${other}`),
      isStrict: partOf(label) !== partOf(other),
    })),
  };
}

// ---- continuation

function withEvidence(model, explanation) {
  const graph = model.automaton.graphs.get(explanation.last);
  const windows = graph ? evidenceOf(model, graph) : new Map();
  const reasons = explanation.reasons.map((pair) => ({ ...pair, windows: windows.get(`${pair.winner},${pair.loser}`) ?? 0 }));
  return { ...explanation, reasons };
}

/**
 * How a prompt goes on: { ids, steps: [{ token, … as of explainNext, reasons with the windows behind each }], end }; end explains where the
 * shares are unknown, and is null where all tokens were found.
 */
export function continuationAnswer(model, { prompt, count, draw, seed }) {
  const ids = promptIds(model, prompt);
  const { automaton, window } = model;
  const steps = continueSequence(automaton, ids, count, window, draw === "random" ? drawsOf(seed) : null);
  const all = [...ids, ...steps.map(({ token }) => token)];
  const end = steps.length < count ? withEvidence(model, explainNext(automaton, all.slice(-window))) : null;
  return { ids, steps: steps.map((step) => withEvidence(model, step)), end: end?.tie === TIE_UNKNOWN ? end : null };
}

// ---- requests

/** The answers to requests about a text at a time: call it with { ask, … }; a `ProblemError` comes back as { refusal }. */
export function textAnswers() {
  let model = null;
  const answers = {
    read: ({ text }) => {
      model = null;
      model = readText(text);
      return summaryOf(model);
    },
    graph: ({ last }) => graphAnswer(model, last),
    continue: (request) => continuationAnswer(model, request),
  };
  return (request) => {
    if (model === null && request.ask !== "read") return { refusal: "There is no text." };
    try {
      return { answer: answers[request.ask](request) };
    } catch (error) {
      if (!(error instanceof ProblemError)) throw error;
      return { refusal: error.message };
    }
  };
}
