// Where attention can settle: the limits to choose from with their support tokens, and the proof in numbers.

import { bracketOf, certificateResidual, INFEASIBLE, kktResidual, marginOf, OPTIMAL } from "../../kernels/margin.js";
import { normOfOptimizer } from "../../kernels/norms.js";
import { tokenOptimality } from "../../kernels/optimality.js";
import { shownLimit } from "../analysis.js";
import { element, replace, setAttributes, setText } from "../dom.js";
import { exponent, percent, short } from "../numbers.js";
import { angleWords, certificateSentence, isCertified, leftOut, normWords, optimizerWord, selectionVerdict, selectionWords } from "./sentences.js";
import { withChosen } from "../state.js";

const SAME_MARGIN_RTOL = 1e-9; // relative difference of two margins that are the same

/** Rows that are made once and filled again and again, so that focus and pointers stay on them. */
class Rows {
  #made = [];

  /** make(place) gives { node, fill(entry) }. */
  constructor(root, make) {
    this.root = root;
    this.make = make;
  }

  fill(entries) {
    while (this.#made.length < entries.length) this.#made.push(this.make(this.#made.length));
    const nodes = this.#made.slice(0, entries.length).map(({ node }) => node);
    if (this.root.childElementCount !== nodes.length) replace(this.root, nodes);
    entries.forEach((entry, place) => this.#made[place].fill(entry));
  }
}

// ---- weights as bars

/** A table of { name, weight } with bars; `weightName` says what the weights are. */
function weightTable(weightName) {
  const body = element("tbody");
  const caption = element("caption", { class: "small" });
  const rows = new Rows(body, () => {
    const name = element("th", { scope: "row" });
    const bar = element("span");
    const number = element("td", { class: "number" });
    const node = element("tr", {}, name, element("td", { class: "weight-bar", "aria-hidden": "true" }, bar), number);
    return {
      node,
      fill({ text, weight, largest }) {
        setText(name, text);
        setText(number, short(weight));
        bar.style.width = `${largest > 0 ? (100 * weight) / largest : 0}%`;
      },
    };
  });
  const head = element("thead", { class: "visually-hidden" }, element("tr", {}, element("th", {}, "Token"), element("td"), element("th", {}, weightName)));
  return {
    node: element("table", { class: "weights" }, caption, head, body),
    fill(sentence, entries) {
      setText(caption, sentence);
      const largest = Math.max(0, ...entries.map(({ weight }) => weight));
      rows.fill(entries.map((entry) => ({ ...entry, largest })));
    },
  };
}

function weighted(solution, weights, text) {
  return solution.pairs.map((pair, r) => ({ text: text(pair), weight: weights[r] })).filter(({ weight }, r) => weight > 0 || solution.active?.[r]);
}

// ---- limits

function limitRow(store, place) {
  const sign = element("span", { class: "limit-sign", "aria-hidden": "true" });
  const tokens = element("span", { class: "limit-tokens" });
  const numbers = element("small");
  const name = element("span", { class: "visually-hidden" });
  const angle = element("span", { class: "visually-hidden" }, ", angle ");
  const button = element("button", { type: "button", class: "limit" }, sign, element("span", {}, name, tokens, angle, numbers));
  button.addEventListener("click", () => {
    const limit = store.state.chosen.limit === place ? null : place;
    store.apply(limit === null ? "let go of the limit" : "choose a limit", (state) => withChosen(state, { limit }), { undoable: false });
  });
  return {
    node: element("li", {}, button),
    fill({ limit, isChosen, isShown, share }) {
      const { selected, direction, margin, isGlobal, colour, optimality } = limit;
      setText(sign, `${limit.mark}${isGlobal ? " ★" : ""}`);
      if (sign.style.getPropertyValue("--limit") !== colour) sign.style.setProperty("--limit", colour);
      setText(tokens, selected.length === 1 ? `token ${selected[0] + 1}` : selected.map((t, i) => `${i + 1}: token ${t + 1}`).join(" · "));
      const gap = optimality && Number.isFinite(optimality.scoreGap) ? `, score gap ${short(optimality.scoreGap)}` : "";
      const basin = share === null ? "" : `, ${percent(share)} of the starts shown`;
      setText(numbers, `${angleWords(direction)}, margin ${short(margin, 4)}${gap}${basin}`);
      setText(name, `Limit${isGlobal ? ", the global one" : ""}${selected.length === 1 ? "" : ", input by input"}: `);
      setAttributes(button, { "aria-pressed": String(isChosen) });
      button.classList.toggle("shown", isShown);
    },
  };
}

function legendOf(problem) {
  const power = problem ? normOfOptimizer(problem.optimizer) : 2;
  const length = power === 2 ? "" : `, measured by ${normWords(power)} as ${optimizerWord(problem.optimizer.name)} does`;
  const several = problem?.n > 1 ? "“1: token 3” means token 3 of input 1. " : "";
  const star = problem?.joint ? "★ has the lowest loss in the end." : "★ selects the best token of every input.";
  const gap = problem?.joint ? "" : " Score gap: the lead in score over the support tokens.";
  return `${several}${star} Margin: the lead per unit of length${length}.${gap}`;
}

/** The list of limits and the support tokens of the shown one; `basinshares` of the painted basins say how many starts go where. */
export function mountLimits(root, store) {
  const remarks = element("ul", { class: "remarks small" });
  const list = element("ol", { class: "limits", "aria-label": "Limits: directions in which attention can settle" });
  const legend = element("p", { class: "small" });
  const support = weightTable("Multiplier");
  replace(root, remarks, list, legend, support.node);
  const rows = new Rows(list, (place) => limitRow(store, place));
  const remarkRows = new Rows(remarks, () => {
    const node = element("li");
    return { node, fill: (text) => setText(node, text) };
  });
  let shares = null;
  let last = null;
  const show = (state, analysis) => {
    last = { state, analysis };
    const { limits } = analysis;
    remarkRows.fill([...(analysis.remarks ?? []), leftOut(analysis)].filter(Boolean));
    const shown = shownLimit(state, analysis);
    rows.fill(
      limits.map((limit, k) => ({
        limit,
        isChosen: state.chosen.limit === k,
        isShown: limit === shown,
        share: shares === null ? null : (shares.get(k) ?? 0),
      })),
    );
    list.hidden = limits.length === 0;
    legend.hidden = limits.length === 0;
    setText(legend, legendOf(analysis.problem));
    const solution = shown?.solution;
    const hasSupport = solution !== undefined && solution.status === OPTIMAL;
    support.node.hidden = !hasSupport;
    if (!hasSupport) return;
    const named = (pair) => (analysis.problem.n === 1 ? `token ${pair.other + 1}` : `token ${pair.other + 1} of input ${pair.input + 1}`);
    support.fill(
      `Support tokens of the limit ${shown.mark}: right behind the selected tokens; the multiplier is how hard each pushes.`,
      weighted(solution, solution.multipliers, named),
    );
  };
  document.addEventListener("basinshares", ({ detail }) => {
    if (shares === detail) return;
    shares = detail;
    if (last !== null) show(last.state, last.analysis);
  });
  return { update: show };
}

// ---- certificates

/** What certifies a solution of the margin problem, in the Euclidean norm or, by its two bounds, in another. */
function proofOf(solution, power = 2) {
  if (solution.status === INFEASIBLE) return { residual: certificateResidual(solution), gap: 0 };
  if (power === 2) return { residual: kktResidual(solution), ...bracketOf(solution) };
  const { lower, upper } = solution;
  return { residual: 0, lower, upper, gap: (upper - lower) / lower };
}

/** The numbers of a certificate, each with its tick, and what they prove. */
function proofView() {
  const body = element("tbody");
  const proves = element("p");
  const rows = new Rows(body, () => {
    const tick = element("td", { class: "tick" });
    const name = element("th", { scope: "row" });
    const value = element("td", { class: "number" });
    return {
      node: element("tr", {}, tick, name, value),
      fill({ holds, text, number }) {
        setText(tick, holds === null ? "" : holds ? "✓ holds" : "✗ fails");
        tick.className = `tick ${holds === null ? "" : holds ? "holds" : "fails"}`;
        setText(name, text);
        setText(value, number);
      },
    };
  });
  return {
    node: element("div", { class: "proof" }, element("table", {}, body), proves),
    /** words: how the selected tokens are called; isRelaxed: whether some inputs need no lead of one. */
    fill(solution, words, { power = 2, isRelaxed = false } = {}) {
      const proof = proofOf(solution, power);
      const { residual, lower, upper, gap } = proof;
      if (solution.status === INFEASIBLE) {
        rows.fill([{ holds: isCertified(residual), text: "Residual: what is left when the demands cancel", number: exponent(residual) }]);
      } else if (solution.status === OPTIMAL) {
        const isEuclidean = power === 2;
        rows.fill([
          ...(isEuclidean ? [{ holds: isCertified(residual), text: "Residual: how far vector and multipliers miss each other", number: exponent(residual) }] : []),
          { holds: isCertified(gap), text: "Gap between the two bounds, relative", number: exponent(Math.max(gap, 0)) },
          { holds: null, text: `Lower bound on the length${isEuclidean ? "" : `, as ${normWords(power)}`}`, number: short(lower, 8) },
          { holds: null, text: "Upper bound, the length found", number: short(upper, 8) },
        ]);
      } else rows.fill([]);
      setText(proves, certificateSentence(solution, words, proof, isRelaxed));
    },
  };
}

/** Any selection, by a select box for each input, and what it amounts to. */
function mountQuestion(store) {
  const boxes = element("div", { class: "row" });
  const answer = element("p", { "aria-live": "polite" });
  const proof = proofView();
  const demands = weightTable("Weight");
  const node = element(
    "details",
    { class: "question" },
    element("summary", {}, "Ask about a selection"),
    element("p", { class: "small" }, "Choose a token in every input: can a direction select them, and can training end there?"),
    boxes,
    answer,
    proof.node,
    demands.node,
  );
  let asked = null; // null: what the shown limit selects
  let lengths = "";
  let last = null;
  const fill = () => {
    if (!node.open || last === null) return;
    const { state, analysis } = last;
    const { problem } = analysis;
    node.hidden = problem === null || problem.joint;
    if (node.hidden) return;
    if (lengths !== problem.lengths.join()) {
      lengths = problem.lengths.join();
      asked = null;
      const box = (length, i) =>
        element(
          "label",
          { class: "field" },
          element("span", {}, `Input ${i + 1}`),
          element(
            "select",
            { onchange: (event) => ask(i, Number(event.target.value)) },
            Array.from({ length }, (_, t) => element("option", { value: String(t) }, `token ${t + 1}`)),
          ),
        );
      replace(boxes, Array.from(problem.lengths, box));
    }
    const selected = asked ?? shownLimit(state, analysis)?.selected ?? Array.from(problem.lengths, () => 0);
    boxes.querySelectorAll("select").forEach((box, i) => (box.value = String(selected[i])));
    const found = tokenOptimality(problem, selected);
    setText(answer, selectionVerdict(problem, found).sentence);
    proof.fill(found.solution, selectionWords(selected));
    const isInfeasible = found.solution.status === INFEASIBLE;
    demands.node.hidden = !isInfeasible;
    if (!isInfeasible) return;
    const demand = ({ input, selected: first, other }) => `token ${first + 1} ahead of token ${other + 1}${problem.n === 1 ? "" : `, input ${input + 1}`}`;
    demands.fill("Demands that contradict each other, and their weights.", weighted(found.solution, found.solution.certificate, demand));
  };
  const ask = (input, token) => {
    const { state, analysis } = last;
    const before = asked ?? shownLimit(state, analysis)?.selected ?? Array.from(analysis.problem.lengths, () => 0);
    asked = before.map((t, i) => (i === input ? token : t));
    store.apply(`look at token ${token + 1} of input ${input + 1}`, (now) => withChosen(now, { input, token }), { undoable: false });
    fill();
  };
  node.addEventListener("toggle", fill);
  return {
    node,
    update(state, analysis, previous) {
      if (previous && previous.chosen.limit !== state.chosen.limit) asked = null;
      last = { state, analysis };
      fill();
    },
  };
}

/** The inputs that a limit of the analysis is about. */
function dependentInputs({ problem, prediction }) {
  return prediction.dependent?.length > 0 ? prediction.dependent : Array.from(problem.lengths, (_, i) => i);
}

/** The certificate of the shown limit, and answers about any selection. */
export function mountCertificate(root, store) {
  const about = element("p");
  const proof = proofView();
  const question = mountQuestion(store);
  replace(root, about, proof.node, question.node);
  return {
    update(state, analysis, previous) {
      const limit = shownLimit(state, analysis);
      const isSet = limit !== null && Math.abs(marginOf(limit.solution) - limit.margin) > SAME_MARGIN_RTOL * limit.margin && limit.power === 2;
      proof.node.hidden = limit === null || isSet;
      if (limit === null) setText(about, "There is no limit whose margin could be proved.");
      else if (isSet)
        setText(about, `The limit ${limit.mark} selects any of the tokens that tie; its margin of ${short(limit.margin)} has no certificate on this page.`);
      else {
        const others = limit.solution.isUnique === false ? ", which other directions have too" : "";
        setText(about, `The limit ${limit.mark}, margin ${short(limit.margin, 6)}${others}:`);
        const words = selectionWords(limit.selected, dependentInputs(analysis));
        proof.fill(limit.solution, words, { power: limit.power, isRelaxed: limit.label === "p^relax" });
      }
      question.update(state, analysis, previous);
    },
  };
}
