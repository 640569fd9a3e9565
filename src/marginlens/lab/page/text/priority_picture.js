// The priority graph of a last token: choosing the token, the picture, the same as a list, and the windows of the text behind it.

import { element, replace, setText, shape, styledCopy } from "../dom.js";
import { short } from "../numbers.js";
import { layoutGraph } from "./priority_layout.js";
import { withText } from "../state.js";
import { listed } from "../words.js";
import { counted, firstOf, quoted } from "./text_reasons.js";
import { shownTokens } from "./text_tokens.js";
import { textWork } from "./text_worker.js";

const FIRST_PAIRS = 30; // of the list, until all are asked for
const MAX_LABELLED_LINES = 24; // lines that carry their counts in the picture
const MAX_PICTURE_WIDTH = 900;
const LAYOUT_FONT_SIZE = 15; // px of the page's letters for which the layout is made; the picture grows with them

let picture = null; // the SVG element that is shown

/** The id of the last token whose graph is shown: the state's, or the most frequent. */
export function chosenLast({ text }, summary) {
  const token = text.last === null ? -1 : summary.names.indexOf(text.last);
  return summary.lasts.some((entry) => entry.token === token) ? token : summary.lasts[0].token;
}

/** The picture of the graph as the text of an SVG file, or null where none is drawn. */
export function graphPicture() {
  return picture && new XMLSerializer().serializeToString(styledCopy(picture));
}

/** What a graph says in a sentence or two. */
export function graphSentence(graph, names) {
  const top = graph.components.filter((_, c) => graph.heights === null || graph.heights[c] >= Math.max(...graph.heights) - 1e-6);
  const winners = listed(firstOf(top.flat().map((token) => quoted(names[token]))));
  const groups = graph.components.filter((members) => members.length > 1).length;
  const ties = groups === 0 ? "" : ` In ${counted(groups, "group")} tokens win over each other in turn and share.`;
  const what = graph.edges.length === 0 ? "nothing is compared" : `on top ${top.flat().length === 1 ? "stands" : "stand"} ${winners}`;
  return `${counted(graph.windows, "window")} of the text ${graph.windows === 1 ? "ends" : "end"} in ${quoted(names[graph.last])} and hold what follows: ${what}.${ties}`;
}

/** The curve of a line as SVG writes it. */
function path([from, first, second, to]) {
  return `M${from} C${first} ${second} ${to}`;
}

/** The point at share t of a cubic curve. */
function along(points, t) {
  const weight = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t ** 2 * (1 - t), t ** 3];
  return [0, 1].map((axis) => points.reduce((sum, point, k) => sum + weight[k] * point[axis], 0));
}

/** The SVG of a layout; choose({ token }) and choose({ pairs: [[label, other]] }) are called for what is clicked. */
function drawing(layout, graph, names, focus, choose) {
  const isLit = ({ upper, lower, pairs }) => {
    if (focus === null) return false;
    if (focus.pairs) return pairs.some((pair) => focus.pairs.some((chosen) => chosen.join() === pair.join()));
    return graph.components[upper].includes(focus.token) || graph.components[lower].includes(focus.token);
  };
  const bands = layout.bands.flatMap(({ height, y, bottom }, k) => [
    shape("rect", { class: k % 2 ? "band odd" : "band", x: 0, y, width: layout.width, height: bottom - y, rx: 6 }),
    height === null ? null : shape("text", { class: "axis", x: 8, y: y + 19 }, short(height)),
  ]);
  const lines = layout.lines.map((line) => {
    const { upper, lower, windows, pairs, points } = line;
    const [label, other] = pairs[0];
    const words = `${quoted(names[label])} wins over ${quoted(names[other])}${pairs.length > 1 ? ` and ${counted(pairs.length - 1, "pair")} more` : ""}: ${counted(windows, "window")}`;
    const d = path(points);
    const middle = along(points, 0.6);
    const isLabelled = layout.lines.length <= MAX_LABELLED_LINES || isLit(line);
    return shape(
      "g",
      { class: isLit(line) ? "line lit" : "line", "data-upper": upper, "data-lower": lower, onclick: () => choose({ pairs }) },
      shape("title", {}, words),
      shape("path", { class: "reach", d }),
      shape("path", { class: "stroke", d, "stroke-width": Math.min(5, 1 + Math.log2(windows) / 2), "marker-end": "url(#priority-arrow)" }),
      isLabelled ? shape("text", { class: "count", x: middle[0], y: middle[1] + 4, "text-anchor": "middle" }, String(windows)) : null,
    );
  });
  const groups = layout.boxes
    .filter(({ isGroup }) => isGroup)
    .map((box) => shape("rect", { class: "group", x: box.x, y: box.y, width: box.width, height: box.height, rx: 10 }));
  const best = Math.max(...layout.bands.map(({ height }) => height ?? 0));
  const chips = layout.chips.map((chip, k) => {
    const { token, text, x, y, width, height } = chip;
    const middle = { x: x + width / 2, y: y + height / 2 + 5, "text-anchor": "middle" };
    if (token === null) return shape("text", { class: "more", ...middle }, text);
    const isTop = (graph.heights?.[chip.component] ?? -Infinity) >= best - 1e-6;
    const isFocused = focus !== null && [focus.token, ...(focus.pairs ?? []).flat()].includes(token);
    const pick = () => choose({ token });
    const node = shape(
      "g",
      {
        class: `chip${isTop ? " top" : ""}${isFocused ? " lit" : ""}`,
        role: "button",
        tabindex: k === 0 ? 0 : -1,
        "aria-pressed": String(isFocused),
        "aria-label": `${quoted(names[token])}, ${graph.heights === null ? "" : `height ${short(graph.heights[chip.component])}, `}group ${chip.component + 1}`,
        "data-token": token,
        onclick: pick,
        onkeydown: (event) => moveFocus(event, pick),
      },
      shape("rect", { x, y, width, height, rx: 7 }),
      shape("text", middle, text),
    );
    return node;
  });
  const arrow = shape(
    "marker",
    { id: "priority-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" },
    shape("path", { class: "tip", d: "M0 0 L8 4 L0 8 Z" }),
  );
  return shape(
    "svg",
    {
      class: "priority",
      width: layout.width,
      height: layout.height,
      viewBox: `0 0 ${layout.width} ${layout.height}`,
      role: "group",
      "aria-label": `Priority graph after ${quoted(names[graph.last])}; arrow keys go from token to token`,
    },
    shape("defs", {}, arrow),
    bands.filter(Boolean),
    lines,
    groups,
    chips,
  );
}

/** Enter and space choose a token of the picture, arrow keys go to the next. */
function moveFocus(event, pick) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    pick();
    return;
  }
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const all = [...event.currentTarget.ownerSVGElement.querySelectorAll(".chip")];
  const at = all.indexOf(event.currentTarget);
  const next = all[(at + step + all.length) % all.length];
  all.forEach((chip) => chip.setAttribute("tabindex", chip === next ? 0 : -1));
  next.focus();
}

/** The list of pairs, the most frequent first. */
function pairButtons(graph, names, focus, all, choose) {
  const pairs = [...graph.edges].sort((a, b) => b.isStrict - a.isStrict || b.windows - a.windows || a.label - b.label || a.other - b.other);
  return (all ? pairs : pairs.slice(0, FIRST_PAIRS)).map(({ label, other, windows, isStrict }) => {
    const isFocused = focus?.pairs?.some((pair) => pair[0] === label && pair[1] === other) ?? false;
    const verb = isStrict ? "wins over" : "wins in turn with";
    const press = { "aria-pressed": String(isFocused), onclick: () => choose({ pairs: [[label, other]] }), dataset: { pair: `${label},${other}` } };
    return element("li", {}, element("button", { type: "button", class: "pair", ...press },
      element("b", {}, quoted(names[label])), ` ${verb} `, element("b", {}, quoted(names[other])),
      element("span", { class: "small" }, ` ${counted(windows, "window")}`)));
  });
}

export function mountPriorityPicture(root, store) {
  const work = textWork(store);
  const search = element("input", { type: "search", id: "last-search", autocomplete: "off", oninput: () => showLasts() });
  const select = element("select", { id: "last-token", size: 6, onchange: () => chooseLast(Number(select.value)) });
  const sentence = element("p", { class: "lead", "aria-live": "polite" });
  const frame = element("div", { class: "priority-frame" });
  const note = element("p", { class: "small" });
  const evidence = element("div", { class: "evidence", "aria-live": "polite" });
  const pairs = element("ul", { class: "pairs" });
  const more = element("button", { type: "button", onclick: () => { isAll = true; showPairs(); } });
  const summaryLine = element("summary", {}, "The same as a list");
  const list = element("details", {}, summaryLine, pairs, more);
  const small = element("p", { class: "small" },
    "Higher wins: of the tokens in a window, those in the highest band keep all the attention. Numbers at the left are heights, the shortest that put each winner at least 1 above (C, Graph-SVM); numbers on lines count windows, once for each pair of tokens; tokens in one group are a strongly connected component (C, Figure 2). Tokens have one-hot embeddings here.");
  const content = element("div", { class: "text-graph" }, sentence, frame, note, evidence, list, small);
  const picker = element("div", { class: "last-picker" },
    element("div", { class: "field" }, element("label", { for: "last-search" }, "Find a last token"), search),
    element("div", { class: "field" }, element("label", { for: "last-token" }, "Windows that end in"), select));
  replace(root, element("div", { class: "text-graph-panel" }, picker, content));
  let graph = null;
  let focus = null;
  let isAll = false;
  let asked = null; // summary and last token of the graph that is shown or on its way

  const chooseLast = (token) => {
    const name = work.summary.names[token];
    store.apply(`show priorities after ${quoted(name)}`, (state) => withText(state, { last: name }), { gesture: "last-token" });
  };

  const showLasts = () => {
    if (work.summary === null) return replace(select);
    const { names, lasts } = work.summary;
    const wanted = search.value.toLowerCase();
    const fits = (name) => wanted === "" || name.toLowerCase().includes(wanted) || quoted(name).includes(wanted);
    const last = chosenLast(store.state, work.summary);
    const options = lasts.filter(({ token }) => fits(names[token])).map(({ token, windows }) =>
      element("option", { value: token }, `${quoted(names[token])}  ${counted(windows, "window")}`));
    replace(select, options);
    select.value = String(last);
    return null;
  };

  const choose = async (wanted) => {
    const isSame = JSON.stringify(focus) === JSON.stringify(wanted);
    const active = document.activeElement?.dataset?.token;
    focus = isSame ? null : wanted;
    showGraph();
    if (active !== undefined) frame.querySelector(`[data-token="${active}"]`)?.focus();
    if (focus === null) return replace(evidence);
    const shown = focus;
    const reply = await work.ask({ ask: "evidence", last: graph.last, pairs: focus.pairs ?? [[focus.token, null]] });
    if (reply?.answer && focus === shown) showEvidence(reply.answer, focus);
    return null;
  };

  const showEvidence = ({ total, windows }, { token, pairs: ranked = [] }) => {
    const { names, unit } = work.summary;
    const named = (tokens) => listed(firstOf([...new Set(tokens)].map((id) => quoted(names[id]))));
    const last = quoted(names[graph.last]);
    const winners = new Set(token === undefined ? ranked.map(([label]) => label) : [token]);
    const losers = new Set(ranked.map(([, other]) => other));
    const isPlural = winners.size > 1;
    const wins = graph.edges.filter((edge) => edge.label === token).map((edge) => edge.other);
    const losses = graph.edges.filter((edge) => edge.other === token).map((edge) => edge.label);
    const about = token === undefined
      ? `${named(winners)} ${isPlural ? "follow" : "follows"} ${counted(total, "window")} that end in ${last} and hold ${named(losers)}: so ${isPlural ? "they win" : "it wins"}.`
      : `After ${last}, ${quoted(names[token])} wins over ${named(wins) || "nothing"} and loses to ${named(losses) || "nothing"}; it follows ${counted(total, "window")}.`;
    const lines = windows.map(({ before, window, next, after }) => element("li", {},
      before.length > 0 ? element("span", { class: "context" }, "… ", shownTokens(before, names, unit)) : null,
      element("span", { class: "window" }, window.map((id, k) => {
        const kind = id === next && winners.has(id) ? "winner" : losers.has(id) ? "loser" : k === window.length - 1 ? "last" : null;
        return kind === null ? shownTokens([id], names, unit) : element("mark", { class: kind }, shownTokens([id], names, unit, true));
      })),
      element("mark", { class: "next" }, shownTokens([next], names, unit, true)),
      after.length > 0 ? element("span", { class: "context" }, shownTokens(after, names, unit), " …") : null));
    const rest = total > windows.length ? element("p", { class: "small" }, `The first ${windows.length} of ${total.toLocaleString("en")}.`) : null;
    replace(evidence, element("p", {}, about), element("ol", {}, lines), rest);
  };

  const showPairs = () => {
    const { names } = work.summary;
    replace(pairs, pairButtons(graph, names, focus, isAll, choose));
    more.hidden = isAll || graph.edges.length <= FIRST_PAIRS;
    setText(more, `Show all ${graph.edges.length.toLocaleString("en")}`);
    setText(summaryLine, `The same as a list: ${counted(graph.edges.length, "pair")}`);
  };

  const showGraph = () => {
    const { names } = work.summary;
    const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / LAYOUT_FONT_SIZE;
    const room = Math.max(300, Math.min(MAX_PICTURE_WIDTH, (frame.clientWidth || 600) / scale));
    const layout = layoutGraph(graph, names, room);
    picture = drawing(layout, graph, names, focus, choose);
    picture.style.setProperty("width", `${layout.width * scale}px`);
    picture.style.setProperty("height", "auto");
    replace(frame, picture);
    setText(sentence, graphSentence(graph, names));
    const notes = [];
    if (layout.isSummary) notes.push(`A graph of ${graph.nodes.length} tokens is summarised: ${counted(layout.hiddenTokens, "token")} stand in the list alone.`);
    if (layout.hiddenLinks > 0) notes.push(`${counted(layout.hiddenLinks, "line")} that follow from others or lead to what is not drawn are left out.`);
    if (graph.heights === null) notes.push("Graph-SVM was not solved to its accuracy, so that bands are chains of wins.");
    setText(note, notes.join(" "));
    showPairs();
  };

  const show = async () => {
    const { summary } = work;
    content.hidden = picker.hidden = summary === null;
    if (summary === null) {
      graph = asked = picture = null;
      return;
    }
    const last = chosenLast(store.state, summary);
    if (asked?.summary === summary && asked.last === last) return;
    asked = { summary, last };
    focus = null;
    isAll = false;
    replace(evidence);
    showLasts();
    const reply = await work.ask({ ask: "graph", last });
    if (!reply?.answer || work.summary !== summary || asked.last !== last) return;
    graph = reply.answer;
    showGraph();
  };

  work.subscribe(show);
  let width = 0;
  new ResizeObserver(() => {
    if (graph !== null && frame.clientWidth > 0 && Math.abs(frame.clientWidth - width) > 20) showGraph();
    width = frame.clientWidth;
  }).observe(root);
  return { update: show };
}
