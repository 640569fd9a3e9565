// The automaton that a trained next-token layer with one-hot embeddings becomes: who is retrieved, in which proportions, and why.
//
// With one-hot embeddings every last token has a problem of its own: heights from Graph-SVM, mixing logits within components from the cyclic
// correction, and where tokens of different components share the greatest height, the slower terms of the regularisation path.

import { callCore } from "./core.js";
import { componentOfToken, componentOrder, lastToken, priorityGraph, priorityGraphs, sufficientPairs } from "./graphs.js";
import { leastDistance, OPTIMAL } from "./margin.js";
import { logAddExp, softmax } from "./softmax.js";

const TIE_NONE = "NONE";
const TIE_OFFSET = "OFFSET";
const TIE_SLOW = "SLOW";
export const TIE_UNKNOWN = "UNKNOWN";
const SHARE_ATOL = 1e-9; // probabilities closer than that are equal
export const HEIGHT_ATOL = 1e-7; // heights closer than that, where 1 is the gap of a strict pair, are equal

const ACTIVE_GAP = 1e-7; // logit gap beyond one at which a strict pair no longer counts as active
const WEAK_MULTIPLIER = 1e-9; // a multiplier below this share of their sum counts as zero
const MAX_LEVELS = 20; // terms beyond the leading one

/** The different tokens of a sequence, increasing, with how often each occurs. */
function countedTokens(ids) {
  const counts = new Map();
  for (const token of Int32Array.from(ids).sort()) counts.set(token, (counts.get(token) ?? 0) + 1);
  return counts;
}

/** Sequences in which those that hold the same tokens before the same label are one: [{ last, label, tokens, counts, count }], the label first. */
function mergedSamples(data) {
  const merged = new Map();
  for (let i = 0; i < data.labels.length; i++) {
    const [last, label] = [lastToken(data, i), data.labels[i]];
    const counts = countedTokens(data.tokens.subarray(data.offsets[i], data.offsets[i + 1]));
    const key = `${last}:${label}:${[...counts].join()}`;
    const tokens = [label, ...[...counts.keys()].filter((token) => token !== label)];
    if (!merged.has(key)) merged.set(key, { last, label, tokens, counts: tokens.map((token) => counts.get(token)), count: 0 });
    merged.get(key).count++;
  }
  return [...merged.values()];
}

/** The automaton of sequences, with everything about a last token computed when it is first asked for. */
export function makeAutomaton(data) {
  const [merged, graphs] = [mergedSamples(data), priorityGraphs(data)];
  const samples = new Map(Array.from(graphs.keys(), (last) => [last, merged.filter((sample) => sample.last === last)]));
  return { data, graphs, samples, columns: new Map(), later: new Map() };
}

/**
 * Graph-SVM of one graph: the shortest heights with h_i ≥ h_j + 1 for i ⇒ j and equal heights within components.
 * { height (of each component), multipliers: [{ upper, lower, pair, multiplier }] }, or null where it was not solved.
 */
function graphHeights(graph) {
  const chosen = sufficientPairs(graph);
  const count = graph.components.length;
  const unitOf = graph.components.map((members) => Math.sqrt(members.length)); // makes the norm that of all tokens
  const ends = chosen.map((e) => graph.strict[e].map((token) => componentOfToken(graph, token)));
  if (chosen.length === 0) return { height: new Float64Array(count), multipliers: [] };
  const A = new Float64Array(chosen.length * count);
  ends.forEach(([upper, lower], r) => {
    A[r * count + upper] = 1 / unitOf[upper];
    A[r * count + lower] = -1 / unitOf[lower];
  });
  const solution = leastDistance(A, chosen.length, count, new Float64Array(chosen.length).fill(1));
  if (solution.status !== OPTIMAL) return null;
  return {
    height: solution.x.map((entry, c) => entry / unitOf[c]),
    multipliers: ends.map(([upper, lower], r) => {
      return { upper, lower, pair: graph.strict[chosen[r]], multiplier: solution.multipliers[r] };
    }),
  };
}

/** Heights and mixing logits of every token after `last`: { height, mix, multipliers }, zero where no training sequence ends in it. */
export function columnOf(automaton, last) {
  if (automaton.columns.has(last)) return automaton.columns.get(last);
  const K = automaton.data.nVocabulary;
  const column = { height: new Float64Array(K), mix: new Float64Array(K), multipliers: [], isSolved: true };
  const graph = automaton.graphs.get(last);
  if (graph) {
    const solved = graphHeights(graph);
    column.isSolved = solved !== null;
    if (solved) {
      graph.components.forEach((members, c) => members.forEach((token) => (column.height[token] = solved.height[c])));
      column.multipliers = solved.multipliers;
    }
    graph.components.forEach((members, c) => {
      if (members.length > 1) cyclicLogits(automaton, graph, c).forEach((logit, k) => (column.mix[members[k]] = logit));
    });
  }
  automaton.columns.set(last, column);
  return column;
}

// ---- mixing within a component

/** W^cyc within one component: the logits, adding up to zero, that minimise the log-loss of its samples over its own tokens. */
function cyclicLogits(automaton, graph, c) {
  const members = graph.components[c];
  const size = members.length;
  const place = new Map(members.map((token, k) => [token, k]));
  const samples = automaton.samples
    .get(graph.last)
    .filter(({ label }) => place.has(label))
    .map(({ tokens, counts, count }) => ({ entries: tokens.flatMap((token, k) => (place.has(token) ? [[place.get(token), counts[k]]] : [])), count }))
    .filter(({ entries }) => entries.length > 1);
  const total = samples.reduce((sum, { count }) => sum + count, 0);
  const entries = samples.flatMap((sample) => sample.entries);
  const offsets = [0];
  for (const sample of samples) offsets.push(offsets.at(-1) + sample.entries.length);
  const cells = new Float64Array(size);
  callCore("minimise_likelihoods", {
    cells,
    cell: entries.map(([cell]) => cell),
    log_count: entries.map(([, count]) => Math.log(count)),
    offsets,
    label: offsets.slice(0, -1), // comes first
    share: samples.map(({ count }) => count / total),
    component: samples.map(() => 0),
    ...{ first: [0], sizes: [size], corners: [0, size ** 2] },
    ...{ n_cells: size, n_entries: entries.length, n_samples: samples.length, n_components: 1 },
  });
  const mean = cells.reduce((sum, logit) => sum + logit, 0) / size;
  return cells.map((logit) => logit - mean);
}

// ---- slower terms of the path

/**
 * What decides between equal heights after `last`: { slow, offset, reason }, logits of every token along the slowly growing directions of
 * the path and of its constant term; offset is null if it is unknown, and reason a fact that says why.
 */
export function laterTerms(automaton, last) {
  if (!automaton.later.has(last)) automaton.later.set(last, expandColumn(automaton, last));
  return automaton.later.get(last);
}

function expandColumn(automaton, last) {
  const K = automaton.data.nVocabulary;
  const offset = new Float64Array(K);
  let graph = automaton.graphs.get(last);
  const column = columnOf(automaton, last);
  if (!graph || graph.strict.length === 0) return { slow: [], offset, reason: null };
  let entries = strictEntries(automaton, graph, column.mix);
  let height = column.height;
  let multipliers = column.multipliers;
  const slow = [];
  const unknown = (code, numbers = {}) => ({ slow, offset: null, reason: { code, numbers } });
  for (let level = 0; level < MAX_LEVELS; level++) {
    const edges = activeEdges(graph, entries, height, multipliers);
    if (edges.length === 0) return unknown("expansion_reason.no_active_pair");
    const found = balanceComponents(graph, edges);
    if (found === null) return unknown("expansion_reason.not_balanced");
    for (let token = 0; token < K; token++) {
      const c = componentOfToken(graph, token);
      if (c >= 0) offset[token] += found.logit[c];
    }
    const left = edges.filter((_, e) => !found.carries[e]);
    if (left.length === 0) return { slow, offset, reason: null };
    entries = left.map(({ above, below, upper, lower, logC }) => {
      return { label: above, token: below, logPull: logC - (found.logit[upper] - found.logit[lower]) };
    });
    graph = mergedGraph(graph, edges, found.carries);
    const solved = graphHeights(graph);
    if (solved === null) return unknown("expansion_reason.multipliers");
    height = new Float64Array(K);
    graph.components.forEach((members, c) => members.forEach((token) => (height[token] = solved.height[c])));
    multipliers = solved.multipliers;
    slow.push(height);
  }
  return unknown("expansion_reason.too_many_terms", { terms: MAX_LEVELS });
}

/** The graph in which components joined by an active pair with a multiplier are one, and those without are strict. */
function mergedGraph(graph, edges, carries) {
  const listed = [];
  edges.forEach(({ above, below }, e) => {
    listed.push([above, below, 1]);
    if (carries[e]) listed.push([below, above, 1]);
  });
  for (const members of graph.components) {
    members.forEach((token, k) => listed.push([token, members[(k + members.length - 1) % members.length], 1]));
  }
  return priorityGraph(graph.last, listed);
}

/** What each token of lower priority weighs in the slope of the risk at W^cyc: [{ label, token, logPull }]. */
function strictEntries(automaton, graph, mix) {
  const samples = automaton.samples.get(graph.last);
  const total = samples.reduce((sum, sample) => sum + sample.count, 0);
  return samples.flatMap(({ tokens, counts, label, count }) => {
    const own = componentOfToken(graph, label);
    const logits = tokens.map((token, k) => mix[token] + Math.log(counts[k]));
    const isTied = tokens.map((token) => componentOfToken(graph, token) === own);
    const within = logits.reduce((sum, logit, k) => (isTied[k] ? logAddExp(sum, logit) : sum), -Infinity);
    return tokens
      .map((token, k) => ({ label, token, logPull: logits[k] - within + Math.log(count / total), isTied: isTied[k] }))
      .filter((entry) => !entry.isTied);
  });
}

/** The pairs of components that `height` separates by one and no more, with log c and multipliers that add up to one. */
function activeEdges(graph, entries, height, multipliers) {
  const found = new Map();
  for (const { label, token, logPull } of entries) {
    if (height[label] - height[token] > 1 + ACTIVE_GAP) continue;
    const [upper, lower] = [componentOfToken(graph, label), componentOfToken(graph, token)];
    const key = `${upper},${lower}`;
    const edge = found.get(key);
    if (edge) edge.logC = logAddExp(edge.logC, logPull);
    else found.set(key, { upper, lower, above: label, below: token, logC: logPull, multiplier: 0 });
  }
  let total = 0;
  for (const { upper, lower, multiplier } of multipliers) {
    const edge = found.get(`${upper},${lower}`);
    if (!edge) continue;
    edge.multiplier += multiplier;
    total += multiplier;
  }
  const edges = [...found.values()];
  for (const edge of edges) {
    edge.multiplier /= Math.max(total, Number.MIN_VALUE);
    if (!(edge.multiplier > WEAK_MULTIPLIER)) edge.multiplier = 0;
  }
  return edges;
}

/** Which edges can carry a multiplier, and the logit of every component at which residual attention is a dual solution; or null. */
function balanceComponents(graph, edges) {
  const [count, carries] = [graph.components.length, new Uint8Array(edges.length)];
  const logit = new Float64Array(count);
  const listed = { upper: edges.map(({ upper }) => upper), lower: edges.map(({ lower }) => lower), log_c: edges.map(({ logC }) => logC) };
  const weights = { multipliers: edges.map(({ multiplier }) => multiplier), n_tokens: graph.components.map(({ length }) => length) };
  const isFound = callCore("balance_components", { ...listed, ...weights, carries, logits: logit, n_pairs: edges.length, n_components: count });
  return isFound ? { carries, logit } : null;
}

// ---- the rule

/** Shares of different tokens that occur `counts` times after `last`, and what decided between equal heights; nan where unknown. */
function sharesOf(automaton, last, tokens, counts) {
  const { height, mix } = columnOf(automaton, last);
  const graph = automaton.graphs.get(last);
  const top = Math.max(...tokens.map((token) => height[token]));
  let leads = tokens.map((token) => height[token] >= top - HEIGHT_ATOL);
  let decided = TIE_NONE;
  let logits = tokens.map((token) => mix[token]);
  const leading = tokens.filter((_, k) => leads[k]);
  const parts = leading.map((token) => (graph ? componentOfToken(graph, token) : -1));
  const isOneComponent = parts[0] >= 0 && parts.every((part) => part === parts[0]);
  if (leading.length > 1 && !isOneComponent) {
    const { slow, offset } = laterTerms(automaton, last);
    if (offset === null) return { shares: leads.map((ahead) => (ahead ? NaN : 0)), decided: TIE_UNKNOWN };
    decided = TIE_OFFSET;
    for (const slower of slow) {
      const best = Math.max(...tokens.filter((_, k) => leads[k]).map((token) => slower[token]));
      const ahead = tokens.map((token, k) => leads[k] && slower[token] >= best - HEIGHT_ATOL);
      if (ahead.some((is, k) => is !== leads[k])) decided = TIE_SLOW;
      leads = ahead;
    }
    logits = tokens.map((token) => mix[token] + offset[token]);
  }
  return { shares: softmax(tokens.map((_, k) => (leads[k] ? logits[k] + Math.log(counts[k]) : -Infinity))), decided };
}

/**
 * Why a sequence goes on as it does: { last, isKnown, tie, reason, rivals, reasons, implied }.
 *
 * rivals are the different tokens, highest priority first: { token, count, height, component, probability }; reasons the pairs (winner,
 * loser) that training sequences rank strictly, with their multipliers; implied the tokens that the data rank below the winners.
 */
export function explainNext(automaton, ids) {
  const last = ids[ids.length - 1];
  const graph = automaton.graphs.get(last);
  const counts = countedTokens(ids);
  const tokens = [...counts.keys()];
  const { height, multipliers } = columnOf(automaton, last);
  const { shares, decided } = sharesOf(automaton, last, tokens, [...counts.values()]);
  const byHeight = [...tokens].sort((a, b) => height[b] - height[a]);
  const level = new Map();
  byHeight.forEach((token, k) => {
    const above = byHeight[k - 1];
    level.set(token, k === 0 ? 0 : level.get(above) + (height[above] - height[token] > HEIGHT_ATOL ? 1 : 0));
  });
  const rivals = tokens
    .map((token, k) => {
      const component = graph ? componentOfToken(graph, token) : -1;
      return { token, count: counts.get(token), height: height[token], component, probability: shares[k] };
    })
    .sort((a, b) => level.get(a.token) - level.get(b.token) || (b.probability - a.probability || 0) || a.token - b.token);
  const winners = new Set(rivals.filter(({ probability }) => probability !== 0).map(({ token }) => token));
  const weightOf = new Map(multipliers.map(({ pair, multiplier }) => [pair.join(), multiplier]));
  const reasons = (graph ? graph.strict : [])
    .filter(([i, j]) => winners.has(i) && counts.has(j) && !winners.has(j))
    .map(([winner, loser]) => ({ winner, loser, multiplier: weightOf.get(`${winner},${loser}`) ?? 0 }))
    .sort((a, b) => b.multiplier - a.multiplier || a.winner - b.winner || a.loser - b.loser);
  const winning = new Set(rivals.filter(({ token }) => winners.has(token)).map(({ component }) => component));
  let implied = [];
  if (graph && winning.size === 1 && !winning.has(-1)) {
    const below = componentOrder(graph).reach[[...winning][0]];
    implied = tokens.filter((token) => below.has(componentOfToken(graph, token)));
  }
  const reason = decided === TIE_UNKNOWN ? laterTerms(automaton, last).reason : null;
  return { last, isKnown: graph !== undefined, tie: decided, reason, rivals, reasons, implied };
}

/**
 * Continue a sequence by `count` tokens, each given the last `window` ones: [explanation with `token`].
 * draw(): a number from 0 up to below 1 for every token; the most probable one, the smallest id where several tie, without it. It ends
 * early where shares are unknown.
 */
export function continueSequence(automaton, ids, count, window, draw = null) {
  const all = Array.from(ids);
  const steps = [];
  for (let n = 0; n < count; n++) {
    const explanation = explainNext(automaton, all.slice(-window));
    if (explanation.tie === TIE_UNKNOWN) break;
    const ordered = [...explanation.rivals].sort((a, b) => a.token - b.token);
    const most = Math.max(...ordered.map(({ probability }) => probability));
    let { token } = ordered.find(({ probability }) => probability >= most - SHARE_ATOL);
    if (draw !== null) {
      let rest = draw();
      token = (ordered.find(({ probability }) => (rest -= probability) < 0) ?? ordered[ordered.length - 1]).token;
    }
    all.push(token);
    steps.push({ ...explanation, token });
  }
  return steps;
}
