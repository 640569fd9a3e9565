// Next tokens: texts as sequences of token ids, windows with the token that follows, and priority graphs of every last token.

import { callCore } from "./core.js";

const UNKNOWN = "<unknown>";
const MAX_WORDS = 2000; // words with an id of their own, the most frequent ones
const PAIRS_PER_COMPONENT = 4; // strict pairs from which on it pays to look for implied ones
const WORD_PATTERN = /[\p{L}\p{N}_]+(?:['’][\p{L}\p{N}_]+)*|<[\p{L}\p{N}_]+>|@[-,.]@|[^\p{L}\p{N}_\s]/gu;

/** Compare two strings by code points. */
function byCodePoints(a, b) {
  const first = Array.from(a, (letter) => letter.codePointAt(0));
  const second = Array.from(b, (letter) => letter.codePointAt(0));
  const k = first.findIndex((point, place) => point !== second[place]);
  return k < 0 ? first.length - second.length : k >= second.length ? 1 : first[k] - second[k];
}

/** The characters of a text by code point and the text in their ids: { names, ids, unknown }. */
export function indexCharacters(text) {
  const letters = Array.from(text);
  const names = [...new Set(letters)].sort(byCodePoints);
  const place = new Map(names.map((name, id) => [name, id]));
  return { names, ids: Int32Array.from(letters, (letter) => place.get(letter)), unknown: null };
}

/** The words and marks of a text in lower case. */
export function splitWords(text) {
  return text.toLowerCase().match(WORD_PATTERN) ?? [];
}

/** Words by frequency, the most frequent first, and the text in their ids; words too rare for the vocabulary are one unknown token. */
export function indexWords(text, maxWords = MAX_WORDS) {
  const words = splitWords(text);
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  const ordered = [...counts].sort((a, b) => b[1] - a[1] || byCodePoints(a[0], b[0]));
  const names = ordered.map(([word]) => word).filter((word) => word !== UNKNOWN).slice(0, maxWords);
  const place = new Map(names.map((name, id) => [name, id]));
  const unknown = names.length < ordered.length ? names.length : null;
  if (unknown !== null) names.push(UNKNOWN);
  return { names, ids: Int32Array.from(words, (word) => place.get(word) ?? unknown), unknown };
}

/**
 * Every window of a text in ids with the token that follows it, where the window holds that token.
 * { tokens, offsets, labels, nVocabulary, dropped }: sample i is tokens[offsets[i]] … tokens[offsets[i + 1] - 1].
 */
export function textWindows(ids, window, nVocabulary) {
  const samples = [];
  const labels = [];
  let dropped = 0;
  for (let first = 0; first + window < ids.length; first++) {
    const sample = ids.subarray(first, first + window);
    if (sample.includes(ids[first + window])) {
      samples.push(sample);
      labels.push(ids[first + window]);
    } else dropped++;
  }
  return { ...sequences(samples, labels, nVocabulary), dropped };
}

/** Samples of token ids, each with a label among its tokens, in flat arrays. */
export function sequences(samples, labels, nVocabulary) {
  const offsets = new Int32Array(samples.length + 1);
  samples.forEach((sample, i) => (offsets[i + 1] = offsets[i] + sample.length));
  const tokens = new Int32Array(offsets[samples.length]);
  samples.forEach((sample, i) => tokens.set(sample, offsets[i]));
  return { tokens, offsets, labels: Int32Array.from(labels), nVocabulary };
}

/** The last token of sample i. */
export function lastToken(data, i) {
  return data.tokens[data.offsets[i + 1] - 1];
}

/**
 * The priority graph of every last token: an edge label → other says that a sequence ending in `last` holds `other` and is followed by
 * `label`. A Map from last token to { last, nodes, edges, counts, componentOf, components, levels, strict, isAcyclic }: nodes are
 * increasing, edges [label, other] in increasing order with the positions behind each, and components are numbered along the edges, 0 the
 * highest, with the longest chain of others above each as its level.
 */
export function priorityGraphs(data) {
  const K = data.nVocabulary;
  const byLast = new Map();
  for (let i = 0; i < data.labels.length; i++) {
    const last = lastToken(data, i);
    if (!byLast.has(last)) byLast.set(last, new Map());
    const counts = byLast.get(last);
    for (let at = data.offsets[i]; at < data.offsets[i + 1]; at++) {
      const key = data.labels[i] * K + data.tokens[at];
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
  }
  const graphs = new Map();
  for (const last of [...byLast.keys()].sort((a, b) => a - b)) {
    const listed = [...byLast.get(last)].map(([key, count]) => [Math.floor(key / K), key % K, count]);
    graphs.set(last, priorityGraph(last, listed));
  }
  return graphs;
}

/** The graph of edges [head, tail, count]; an edge to itself only names a node. */
export function priorityGraph(last, listed) {
  const nodes = [...new Set(listed.flatMap(([head, tail]) => [head, tail]))].sort((a, b) => a - b);
  const proper = listed.filter(([head, tail]) => head !== tail).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const edges = proper.map(([head, tail]) => [head, tail]);
  const place = new Map(nodes.map((token, k) => [token, k]));
  const arcs = edges.map(([head, tail]) => [place.get(head), place.get(tail)]);
  const { ranks: componentOf, levels } = rankedComponents(nodes.length, arcs);
  const components = Array.from({ length: Math.max(-1, ...componentOf) + 1 }, () => []);
  nodes.forEach((token, k) => components[componentOf[k]].push(token));
  const strict = edges.filter((_, e) => componentOf[arcs[e][0]] !== componentOf[arcs[e][1]]);
  return {
    last, nodes, edges, counts: proper.map((edge) => edge[2]), componentOf, components, strict, place,
    levels: components.map(([token]) => levels[place.get(token)]),
    isAcyclic: components.length === nodes.length,
  };
}

/** The component of a token, -1 for one that the graph does not hold. */
export function componentOfToken(graph, token) {
  const place = graph.place.get(token);
  return place === undefined ? -1 : graph.componentOf[place];
}

/** The strong component of each of so many nodes, numbered along the arcs: by the longest chain above it, its level, then by the smallest node. */
function rankedComponents(size, arcs) {
  const [ranks, levels] = [new Int32Array(size), new Int32Array(size)];
  const given = { heads: arcs.map(([head]) => head), tails: arcs.map(([, tail]) => tail), graph: new Int32Array(size) };
  callCore("rank_components", { ...given, ranks, levels, n_arcs: arcs.length, n_nodes: size });
  return { ranks, levels };
}

/** Which components stand strictly above which: { direct, reach }, arrays of sets of lower components, by an edge and by chains. */
export function componentOrder(graph) {
  const count = graph.components.length;
  const direct = Array.from({ length: count }, () => new Set());
  for (const [i, j] of graph.strict) direct[componentOfToken(graph, i)].add(componentOfToken(graph, j));
  const reach = direct.map((lower) => new Set(lower));
  for (let c = count - 1; c >= 0; c--) for (const lower of direct[c]) for (const next of reach[lower]) reach[c].add(next);
  return { direct, reach };
}

/** Pairs of components with a strict edge between them that no longer chain implies. */
export function reducedOrder(graph) {
  const { direct, reach } = componentOrder(graph);
  return direct.flatMap((lower, c) => [...lower].filter((l) => ![...lower].some((middle) => reach[middle].has(l))).map((l) => [c, l]));
}

/** Indices into `graph.strict` of pairs that imply the others: one for any two components, and where they are many none of a chain. */
export function sufficientPairs(graph) {
  const many = graph.strict.length > PAIRS_PER_COMPONENT * graph.components.length;
  if (graph.isAcyclic && !many) return graph.strict.map((_, e) => e);
  const first = new Map();
  graph.strict.forEach(([i, j], e) => {
    const key = `${componentOfToken(graph, i)},${componentOfToken(graph, j)}`;
    if (!first.has(key)) first.set(key, e);
  });
  if (!many) return [...first.values()];
  const direct = new Set(reducedOrder(graph).map(([c, l]) => `${c},${l}`));
  return [...first].filter(([key]) => direct.has(key)).map(([, e]) => e);
}

/** How many sequences that end in the graph's last token hold j and are followed by i, for each strict i ⇒ j. */
export function rankingEvidence(data, graph, edges = graph.strict) {
  const evidence = new Map(edges.map(([i, j]) => [`${i},${j}`, { label: i, other: j, samples: 0 }]));
  for (let i = 0; i < data.labels.length; i++) {
    if (lastToken(data, i) !== graph.last) continue;
    for (const token of new Set(data.tokens.subarray(data.offsets[i], data.offsets[i + 1]))) {
      const found = evidence.get(`${data.labels[i]},${token}`);
      if (found) found.samples++;
    }
  }
  return [...evidence.values()];
}
