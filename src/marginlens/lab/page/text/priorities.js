// What wins over what after a last token: choosing the token, its rivals in bands with the winners on top, and the pairs behind them.

import { element, replace, setAttributes, setText } from "../dom.js";
import { short } from "../numbers.js";
import { withText } from "../state.js";
import { listed, text as textOf } from "../words.js";
import { counted, firstOf, quoted } from "./text_reasons.js";
import { textWork } from "./text_worker.js";

const FIRST_PAIRS = 30; // of the list, until all are asked for
const HEIGHT_ATOL = 1e-6; // heights this close stand in one band

/** The id of the last token whose graph is shown: the state's, or the most frequent. */
function chosenLast({ text }, summary) {
  const token = text.last === null ? -1 : summary.names.indexOf(text.last);
  return summary.lasts.some((entry) => entry.token === token) ? token : summary.lasts[0].token;
}

/** Components of a graph in bands, the highest first: [{ level, components }]; without heights, by the longest chain of wins above each. */
export function bandsOf({ components, heights, levels }) {
  const levelOf = (c) => (heights === null ? -levels[c] : heights[c]);
  const bands = [];
  for (const c of Array.from(components.keys()).sort((a, b) => levelOf(b) - levelOf(a) || a - b)) {
    if (bands.length === 0 || bands.at(-1).level - levelOf(c) > HEIGHT_ATOL) bands.push({ level: levelOf(c), components: [] });
    bands.at(-1).components.push(c);
  }
  return bands;
}

/** What a graph says in a sentence or two. */
function graphSentence(graph, names) {
  const top = bandsOf(graph)[0].components.flatMap((c) => graph.components[c]);
  const winners = listed(firstOf(top.map((token) => quoted(names[token]))));
  const groups = graph.components.filter((members) => members.length > 1).length;
  const ties = groups === 0 ? "" : ` In ${counted(groups, "group")} tokens win over each other in turn and share.`;
  const what = graph.edges.length === 0 ? "nothing is compared" : `on top ${top.length === 1 ? "stands" : "stand"} ${winners}`;
  return `${counted(graph.windows, "window")} of the text ${graph.windows === 1 ? "ends" : "end"} in ${quoted(names[graph.last])} and hold what follows: ${what}.${ties}`;
}

/** Whom a token wins over and whom it loses to, with the windows behind each. */
function tokenSentence(graph, names, token) {
  const named = (edges, end) => {
    const sorted = [...edges].sort((a, b) => b.windows - a.windows);
    const rivals = sorted.map((edge) => textOf("lab.reason.by_windows", { token: quoted(names[edge[end]]), windows: edge.windows }));
    return listed(firstOf(rivals)) || "nothing";
  };
  const wins = named(graph.edges.filter((edge) => edge.label === token), "other");
  const losses = named(graph.edges.filter((edge) => edge.other === token), "label");
  return `After ${quoted(names[graph.last])}, ${quoted(names[token])} wins over ${wins} and loses to ${losses}.`;
}

/** The bands of a graph with their tokens, components of several tokens in a frame; choose(token) is called for the one that is pressed. */
function bandNodes(graph, names, choose) {
  const chip = (token, c, isTop) => {
    const height = graph.heights === null ? "" : `height ${short(graph.heights[c])}, `;
    const label = `${quoted(names[token])}, ${height}group ${c + 1}`;
    const press = { "aria-label": label, "aria-pressed": "false", dataset: { token }, onclick: () => choose(token) };
    return element("button", { type: "button", class: isTop ? "chip top" : "chip", ...press }, quoted(names[token]));
  };
  return bandsOf(graph).map(({ level, components }, k) => {
    const groups = components.map((c) => {
      const chips = graph.components[c].map((token) => chip(token, c, k === 0));
      return chips.length > 1 ? element("span", { class: "group" }, chips) : chips;
    });
    const height = graph.heights === null ? null : element("span", { class: "height" }, short(level));
    return element("li", { class: "band" }, height, element("span", { class: "chips" }, groups));
  });
}

/** The list of pairs, the most frequent first. */
function pairNodes(graph, names, all) {
  const pairs = [...graph.edges].sort((a, b) => b.isStrict - a.isStrict || b.windows - a.windows || a.label - b.label || a.other - b.other);
  return (all ? pairs : pairs.slice(0, FIRST_PAIRS)).map(({ label, other, windows, isStrict }) =>
    element("li", { class: "pair", dataset: { pair: `${label},${other}` } },
      element("b", {}, quoted(names[label])), isStrict ? " wins over " : " wins in turn with ", element("b", {}, quoted(names[other])),
      element("span", { class: "small" }, ` ${counted(windows, "window")}`)),
  );
}

export function mountPriorities(root, store) {
  const work = textWork(store);
  const search = element("input", { type: "search", id: "last-search", autocomplete: "off", oninput: () => showLasts() });
  const select = element("select", { id: "last-token", size: 6, onchange: () => chooseLast(Number(select.value)) });
  const sentence = element("p", { class: "lead", "aria-live": "polite" });
  const bands = element("ol", { class: "bands" });
  const about = element("p", { class: "about", "aria-live": "polite" });
  const note = element("p", { class: "small" }, textOf("lab.priorities.unsolved"));
  const pairs = element("ul", { class: "pairs" });
  const more = element("button", { type: "button", onclick: () => showPairs(true) });
  const summaryLine = element("summary");
  const list = element("details", {}, summaryLine, pairs, more);
  const small = element("p", { class: "small" }, textOf("lab.priorities.heights"));
  const content = element("div", { class: "text-graph" }, sentence, bands, about, note, list, small);
  const picker = element("div", { class: "last-picker" },
    element("div", { class: "field" }, element("label", { for: "last-search" }, "Find a last token"), search),
    element("div", { class: "field" }, element("label", { for: "last-token" }, "Windows that end in"), select));
  replace(root, element("div", { class: "text-graph-panel" }, picker, content));
  let graph = null;
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
    const options = lasts.filter(({ token }) => fits(names[token])).map(({ token, windows }) =>
      element("option", { value: token }, `${quoted(names[token])}  ${counted(windows, "window")}`));
    replace(select, options);
    select.value = String(chosenLast(store.state, work.summary));
    return null;
  };

  /** Show whom a token beats and who beats it. */
  const choose = (token) => {
    setText(about, tokenSentence(graph, work.summary.names, token));
    const isEdge = (label, other) => graph.edges.some((edge) => edge.isStrict && edge.label === label && edge.other === other);
    for (const chip of bands.querySelectorAll(".chip")) {
      const other = Number(chip.dataset.token);
      setAttributes(chip, { "aria-pressed": String(other === token) });
      chip.classList.toggle("beaten", isEdge(token, other));
      chip.classList.toggle("winner", isEdge(other, token));
    }
  };

  const showPairs = (isAll) => {
    replace(pairs, pairNodes(graph, work.summary.names, isAll));
    more.hidden = isAll || graph.edges.length <= FIRST_PAIRS;
    setText(more, `Show all ${graph.edges.length.toLocaleString("en")}`);
    setText(summaryLine, `Pair by pair: ${counted(graph.edges.length, "pair")}`);
  };

  const show = async () => {
    const { summary } = work;
    content.hidden = picker.hidden = summary === null;
    if (summary === null) {
      graph = asked = null;
      return;
    }
    const last = chosenLast(store.state, summary);
    if (asked?.summary === summary && asked.last === last) return;
    asked = { summary, last };
    showLasts();
    const reply = await work.ask({ ask: "graph", last });
    if (!reply?.answer || work.summary !== summary || asked.last !== last) return;
    graph = reply.answer;
    replace(bands, bandNodes(graph, summary.names, choose));
    setAttributes(bands, { "aria-label": `Priorities after ${quoted(summary.names[last])}, the highest first` });
    setText(sentence, graphSentence(graph, summary.names));
    setText(about, graph.edges.length === 0 ? "" : textOf("lab.priorities.choose"));
    note.hidden = graph.heights !== null;
    showPairs(false);
  };

  work.subscribe(show);
  return { update: show };
}
