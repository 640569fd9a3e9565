// Where attention can settle: the limits to choose from, with the support tokens of the shown one and what proves its margin.

import { bracketOf, kktResidual, marginOf, OPTIMAL } from "../../kernels/margin.js";
import { normOfOptimizer } from "../../kernels/norms.js";
import { shownLimit } from "../analysis.js";
import { element, replace, setAttributes, setText } from "../dom.js";
import { percent, short } from "../numbers.js";
import { angleWords, biasSentence, leftOut, marginProof, measureFact, optimizerFact, tokenFact, tokenName } from "./sentences.js";
import { withChosen } from "../state.js";
import { text } from "../words.js";

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
    fill({ limit, problem, isChosen, isShown, share }) {
      const { selected, direction, margin, isGlobal, colour, optimality } = limit;
      setText(sign, `${limit.mark}${isGlobal ? " ★" : ""}`);
      if (sign.style.getPropertyValue("--limit") !== colour) sign.style.setProperty("--limit", colour);
      const names = Array.from(selected, (t, i) => tokenName(problem, i, t));
      setText(tokens, names.length === 1 ? names[0] : names.map((name, i) => `${i}: ${name}`).join(" · "));
      const gap = optimality && Number.isFinite(optimality.scoreGap) ? `, score gap ${short(optimality.scoreGap)}` : "";
      const basin = share === null ? "" : `, ${percent(share)} of the starts shown`;
      setText(numbers, `${angleWords(direction)}, margin ${short(margin, 4)}${gap}${basin}`);
      setText(name, `Limit${isGlobal ? ", the best one" : ""}${selected.length === 1 ? "" : ", input by input"}: `);
      setAttributes(button, { "aria-pressed": String(isChosen) });
      button.classList.toggle("shown", isShown);
    },
  };
}

function legendOf(problem) {
  const power = problem ? normOfOptimizer(problem.optimizer) : 2;
  const inNorm = problem && { measure: measureFact(power), optimizer: optimizerFact(problem.optimizer.name) };
  return [
    problem?.n > 1 ? text("lab.legend.inputs") : "",
    text("lab.legend.star", { case: problem?.joint ? "joint" : "default" }),
    power === 2 ? text("lab.legend.margin") : text("lab.legend.margin_in_norm", inNorm),
    problem?.joint ? "" : text("lab.legend.score_gap"),
  ]
    .filter(Boolean)
    .join(" ");
}

/** The tokens that support a limit of a problem, with their multipliers. */
function supportWords({ mark, solution }, problem) {
  const { pairs, multipliers, active } = solution;
  const held = pairs.map((pair, r) => ({ ...pair, weight: multipliers[r] })).filter(({ weight }, r) => weight > 0 || active?.[r]);
  const rivals = held.map(({ input, other, weight }) => ({
    code: "lab.support_token",
    numbers: { name: tokenFact(problem, input, other), input, weight, case: problem.n === 1 ? "alone" : "of_input" },
  }));
  return text("lab.support", { mark, rivals });
}

/** Whether the margin of a limit is proved, in a sentence; empty where it has no certificate, as where tokens tie. */
function proofOf({ solution, margin, power }) {
  const isSet = power === 2 && Math.abs(marginOf(solution) - margin) > SAME_MARGIN_RTOL * margin;
  if (isSet || solution.status !== OPTIMAL) return "";
  const { lower, upper } = power === 2 ? bracketOf(solution) : solution;
  return marginProof(Math.max(power === 2 ? kktResidual(solution) : 0, (upper - lower) / lower), solution.isUnique === false);
}

/** The list of limits and the support tokens of the shown one; `basinshares` of the painted basins say how many starts go where. */
export function mountLimits(root, store) {
  const remarks = element("ul", { class: "remarks small" });
  const list = element("ol", { class: "limits", "aria-label": "Limits: directions in which attention can settle" });
  const legend = element("p", { class: "small" });
  const support = element("p", { class: "small", id: "support" });
  const proof = element("p", { class: "small", id: "margin-proof" });
  const bias = element("p", { class: "small", id: "bias" });
  const advanced = element("details", { class: "advanced" }, element("summary", {}, "Advanced"), support, proof, bias);
  replace(root, remarks, list, legend, advanced);
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
        problem: analysis.problem,
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
    advanced.hidden = analysis.problem === null;
    support.hidden = proof.hidden = !hasSupport;
    setText(bias, analysis.problem === null ? "" : biasSentence(analysis.problem));
    setText(support, hasSupport ? supportWords(shown, analysis.problem) : "");
    setText(proof, hasSupport ? proofOf(shown) : "");
  };
  document.addEventListener("basinshares", ({ detail }) => {
    if (shares === detail) return;
    shares = detail;
    if (last !== null) show(last.state, last.analysis);
  });
  return { update: show };
}
