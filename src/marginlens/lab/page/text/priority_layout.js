// Where the tokens of a priority graph stand in its picture: bands of equal height, winners on top, components as groups, lines down.

import { shownName } from "./text_model.js";

export const MAX_DRAWN_TOKENS = 40; // a larger graph is summarised: components are drawn with their foremost tokens
const MAX_BOXES = 40;
const MAX_SUMMARY_CHIPS = 3;
const MAX_LINES = 60; // beyond these, lines that longer chains imply are left out
const HEIGHT_ATOL = 1e-6; // heights this close stand in one band
const CHIP_HEIGHT = 28;
const MIN_CHIP_WIDTH = 28;
const LETTER_WIDTH = 8.5; // of the picture's monospaced letters
const CHIP_PADDING = 12;
const CHIP_GAP = 5;
const GROUP_PADDING = 7;
const BOX_GAP = 12;
const BAND_GAP = 56; // where lines and their counts are seen
const BAND_PADDING = 10;
const AXIS_WIDTH = 54;
const MAX_NAME = 14; // letters of a token's name

/** A name as its chip shows it. */
export function chipName(name) {
  const letters = Array.from(shownName(name));
  return letters.length > MAX_NAME ? `${letters.slice(0, MAX_NAME - 1).join("")}…` : letters.join("");
}

function textWidth(text) {
  return Array.from(text).reduce((sum, letter) => sum + (letter.codePointAt(0) > 0x2e7f ? 2 : 1) * LETTER_WIDTH, 0);
}

/** How much a token stands for: the windows that it wins, then those in which it loses. */
function weights(graph) {
  const weight = new Map(graph.nodes.map((token) => [token, { wins: 0, losses: 0 }]));
  for (const { label, other, windows } of graph.edges) {
    weight.get(label).wins += windows;
    weight.get(other).losses += windows;
  }
  return weight;
}

/** How many components the longest chain of strict edges above each has, for graphs whose heights are not known. */
function chainDepths(count, links) {
  const depth = new Int32Array(count);
  for (const { upper, lower } of [...links].sort((a, b) => a.upper - b.upper)) depth[lower] = Math.max(depth[lower], depth[upper] + 1);
  return depth;
}

/** Strict edges between components: [{ upper, lower, windows, pairs }], components being numbered so that upper < lower. */
export function componentLinks(graph) {
  const partOf = new Map(graph.components.flatMap((members, c) => members.map((token) => [token, c])));
  const found = new Map();
  for (const { label, other, windows, isStrict } of graph.edges) {
    if (!isStrict) continue;
    const [upper, lower] = [partOf.get(label), partOf.get(other)];
    const key = upper * graph.components.length + lower;
    const link = found.get(key) ?? { upper, lower, windows: 0, pairs: [] };
    link.windows += windows;
    link.pairs.push([label, other]);
    found.set(key, link);
  }
  return [...found.values()].sort((a, b) => a.upper - b.upper || a.lower - b.lower);
}

/** The links that no chain of others implies. */
function reducedLinks(links, count) {
  const below = Array.from({ length: count }, () => new Set());
  for (const { upper, lower } of links) below[upper].add(lower);
  const reach = below.map((lower) => new Set(lower));
  for (let c = count - 1; c >= 0; c--) for (const lower of below[c]) for (const next of reach[lower]) reach[c].add(next);
  return links.filter(({ upper, lower }) => ![...below[upper]].some((middle) => reach[middle].has(lower)));
}

/** A group of chips in rows: { width, height, chips: [{ token, text, x, y, width }] } from its upper left corner. */
function packed(tokens, more, names) {
  const parts = tokens.map((token) => ({ token, text: chipName(names[token]) }));
  if (more > 0) parts.push({ token: null, text: `+${more.toLocaleString("en")}` });
  const widths = parts.map(({ text }) => Math.max(MIN_CHIP_WIDTH, textWidth(text) + CHIP_PADDING));
  const area = widths.reduce((sum, width) => sum + (width + CHIP_GAP) * (CHIP_HEIGHT + CHIP_GAP), 0);
  const limit = Math.max(Math.sqrt(3 * area), ...widths);
  const padding = parts.length > 1 ? GROUP_PADDING : 0;
  const chips = [];
  let [x, y, right] = [padding, padding, 0];
  parts.forEach((part, k) => {
    if (x > padding && x + widths[k] > limit + padding) [x, y] = [padding, y + CHIP_HEIGHT + CHIP_GAP];
    chips.push({ ...part, x, y, width: widths[k], height: CHIP_HEIGHT });
    right = Math.max(right, x + widths[k]);
    x += widths[k] + CHIP_GAP;
  });
  return { width: right + padding, height: y + CHIP_HEIGHT + padding, chips };
}

/** The components that are drawn, with the tokens that each names. */
function drawnComponents(graph) {
  const weight = weights(graph);
  const foremost = (a, b) => weight.get(b).wins - weight.get(a).wins || weight.get(b).losses - weight.get(a).losses || a - b;
  const isSummary = graph.nodes.length > MAX_DRAWN_TOKENS;
  let drawn = graph.components.map((members, c) => {
    const tokens = isSummary ? [...members].sort(foremost).slice(0, MAX_SUMMARY_CHIPS) : members;
    const sum = (name) => members.reduce((total, token) => total + weight.get(token)[name], 0);
    return { component: c, tokens, more: members.length - tokens.length, wins: sum("wins"), losses: sum("losses") };
  });
  if (drawn.length > MAX_BOXES) {
    drawn = drawn
      .sort((a, b) => b.wins - a.wins || b.losses - a.losses || a.component - b.component)
      .slice(0, MAX_BOXES)
      .sort((a, b) => a.component - b.component);
  }
  return { drawn, isSummary };
}

/**
 * The picture of a graph of `graphAnswer`, no wider than `width` where single boxes allow it: { width, height, isSummary, hiddenTokens,
 * hiddenLinks, bands: [{ height, y, bottom }], boxes: [{ component, x, y, width, height, isGroup }], chips: [{ token, text, component, x, y,
 * width, height }], lines: [{ upper, lower, windows, pairs, points }] }; points are a cubic curve [x, y] × 4 from winner to loser.
 */
export function layoutGraph(graph, names, width = 680) {
  const { drawn, isSummary } = drawnComponents(graph);
  const links = componentLinks(graph);
  const shownLinks = links.length > MAX_LINES ? reducedLinks(links, graph.components.length) : links;
  const depth = graph.heights === null ? chainDepths(graph.components.length, links) : null;
  const levelOf = (c) => (depth === null ? graph.heights[c] : -depth[c]);
  const inBands = [];
  for (const entry of [...drawn].sort((a, b) => levelOf(b.component) - levelOf(a.component) || a.component - b.component)) {
    const level = levelOf(entry.component);
    if (inBands.length === 0 || inBands.at(-1).level - level > HEIGHT_ATOL) inBands.push({ level, entries: [] });
    inBands.at(-1).entries.push({ ...entry, ...packed(entry.tokens, entry.more, names) });
  }
  const boxes = [];
  const chips = [];
  const bands = [];
  const boxOf = new Map();
  let y = BAND_PADDING;
  for (const { level, entries } of inBands) {
    const top = y;
    y += BAND_PADDING;
    const rows = rowsOf(ordered(entries, links, boxOf), width - AXIS_WIDTH - BAND_PADDING);
    rows.forEach((row, r) => {
      const total = row.reduce((sum, entry) => sum + entry.width + BOX_GAP, -BOX_GAP);
      const tallest = Math.max(...row.map((entry) => entry.height));
      let x = AXIS_WIDTH + Math.max(0, (width - AXIS_WIDTH - BAND_PADDING - total) / 2);
      for (const entry of row) {
        const box = { component: entry.component, x, y: y + (tallest - entry.height) / 2, width: entry.width, height: entry.height };
        boxes.push({ ...box, isGroup: entry.chips.length > 1 });
        boxOf.set(entry.component, box);
        for (const chip of entry.chips) chips.push({ ...chip, component: entry.component, x: box.x + chip.x, y: box.y + chip.y });
        x += entry.width + BOX_GAP;
      }
      y += tallest + (r + 1 < rows.length ? BOX_GAP : BAND_PADDING);
    });
    bands.push({ height: depth === null ? level : null, y: top, bottom: y });
    y += BAND_GAP;
  }
  const lines = shownLinks
    .filter(({ upper, lower }) => boxOf.has(upper) && boxOf.has(lower))
    .map((link) => ({ ...link, points: curve(boxOf.get(link.upper), boxOf.get(link.lower)) }));
  const named = chips.filter(({ token }) => token !== null).length;
  return {
    width: Math.max(width, ...boxes.map((box) => box.x + box.width + BAND_PADDING)),
    height: y - BAND_GAP + BAND_PADDING,
    isSummary,
    hiddenTokens: graph.nodes.length - named,
    hiddenLinks: links.length - lines.length,
    bands,
    boxes,
    chips,
    lines,
  };
}

/** The boxes of a band in the order of what stands above them, so that few lines cross. */
function ordered(entries, links, boxOf) {
  const above = new Map();
  for (const { upper, lower } of links) {
    const box = boxOf.get(upper);
    if (box) above.set(lower, [...(above.get(lower) ?? []), box.x + box.width / 2]);
  }
  const mean = (values) => (values ? values.reduce((sum, x) => sum + x, 0) / values.length : 0);
  return entries
    .map((entry) => ({ ...entry, wish: mean(above.get(entry.component)) }))
    .sort((a, b) => a.wish - b.wish || b.wins + b.losses - a.wins - a.losses || a.component - b.component);
}

/** Boxes in rows no wider than `width`, of about the same length. */
function rowsOf(entries, width) {
  const total = entries.reduce((sum, entry) => sum + entry.width + BOX_GAP, 0);
  const limit = Math.min(width, total / Math.ceil(total / width) + Math.max(...entries.map((entry) => entry.width)) / 2);
  const rows = [];
  let right = Infinity;
  for (const entry of entries) {
    if (right + entry.width > limit) {
      rows.push([]);
      right = 0;
    }
    rows.at(-1).push(entry);
    right += entry.width + BOX_GAP;
  }
  return rows;
}

/** From the lower edge of a box to the upper edge of another. */
function curve(upper, lower) {
  const target = lower.x + lower.width / 2;
  const inside = Math.min(0.35 * upper.width, 40);
  const middle = upper.x + upper.width / 2;
  const from = Math.max(middle - inside, Math.min(middle + inside, target));
  const [begin, end] = [upper.y + upper.height, lower.y];
  const bend = Math.max(16, 0.5 * (end - begin));
  return [
    [from, begin],
    [from, begin + bend],
    [target, end - bend],
    [target, end],
  ];
}
