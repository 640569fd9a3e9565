// The facts that the page states: where training ends, each condition of each theorem, and what optimizers head for. Their texts are in
// words/texts.toml.

import { normOfOptimizer } from "../../kernels/norms.js";
import { short } from "../numbers.js";
import { capital, render, text } from "../words.js";

const DEGREES = 180 / Math.PI;
const CERTIFIED_RTOL = 1e-9; // gap up to which a margin counts as proved
const SHOWN_RIVALS = 4;
const SURE_DIGITS = 12; // of a difference of scores, so that the rounding of the last ones does not decide a tie of the digits that are shown

const codeOf = (name) => name.toLowerCase().replace(/[- ]/g, "_");

/** How an optimizer is called in a sentence. */
export function optimizerFact(name) {
  return { code: `optimizer.${codeOf(name)}` };
}

/** The norm lp of a power in a sentence. */
export function measureFact(power) {
  const name = { 1: "sum", 2: "euclidean", Infinity: "max" }[power] ?? "lp";
  return { code: `outcome.measure.${name}`, numbers: { p: power } };
}

/** The norm in which an optimizer is steepest, as Python names it. */
function normFact({ name, p }) {
  if (name === "steepest-descent") return { code: "norm.lp", numbers: { p } };
  return { code: name === "sign-descent" ? "norm.linf" : "norm.l1" };
}

/** A token of an input by its word, or by its number. */
export function tokenFact({ words }, i, token) {
  const word = words?.[i]?.[token];
  const number = { code: "outcome.token.number", numbers: { token } };
  if (!word) return number;
  const isRepeated = words[i].filter((other) => other === word).length > 1;
  return { code: `outcome.token.${isRepeated ? "repeated" : "word"}`, numbers: { word, number } };
}

/** Where a token is, as in "in input 2". */
function inputFact(input) {
  return { code: "outcome.input.where", numbers: { input } };
}

/** The same as text. */
export function tokenName(problem, i, token) {
  return render(tokenFact(problem, i, token));
}

/** Which token wins or leads in each input, as the numbers of a first line. */
function winners(problem, selected, inputs) {
  const [first, ...rest] = inputs;
  const others = rest.map((input) => ({
    code: "outcome.token.in_input",
    numbers: { name: tokenFact(problem, input, selected[input]), where: inputFact(input) },
  }));
  const way = selected.length === 1 ? "alone" : others.length > 0 ? "several" : "default";
  return { first: tokenFact(problem, first, selected[first]), where: inputFact(first), others, case: way };
}

/** The angle of a direction of the plane in degrees, from −180 to 180, without the rounding of its last digits. */
export function angleWords(direction) {
  return `${short(Number((DEGREES * Math.atan2(direction[1], direction[0])).toFixed(2)))}°`;
}

// ---- the verdict

/** The tokens of a rivalry by name, and the case of its text where another token scores higher. */
function rivalry(problem, { input, selected, token, higher }) {
  const isBeside = higher !== null && higher !== token;
  const names = { selected: tokenFact(problem, input, selected), token: tokenFact(problem, input, token) };
  return { isBeside, names: isBeside ? { ...names, higher: tokenFact(problem, input, higher) } : names };
}

/** Why a rival loses, as a clause. */
function rivalFact(problem, rival) {
  const { isBeside, names } = rivalry(problem, rival);
  const way = `${rival.score >= 0 ? "default" : "lower"}${isBeside ? "_beside_higher" : ""}`;
  const fact = { code: "outcome.rival", numbers: { ...names, score: Number(Math.abs(rival.score).toPrecision(SURE_DIGITS)), case: way } };
  return problem.n === 1 ? fact : { code: "outcome.because.in_input", numbers: { where: inputFact(rival.input), rival: fact } };
}

/** By how much a rival falls behind for each unit of norm. */
function leadFact(problem, rival) {
  const { isBeside, names } = rivalry(problem, rival);
  const numbers = { ...names, ahead: rival.lead, behind: rival.higherLead, case: isBeside ? "higher" : "default" };
  const fact = { code: "outcome.lead", numbers };
  return problem.n === 1 ? fact : { code: "outcome.lead_in_input", numbers: { where: inputFact(rival.input), lead: fact } };
}

/** The facts behind an answer, one for each input that is named. */
function becauseFacts({ kind, isFinite, isKnown, rivals }, problem, { joint }) {
  if (kind === "joint") return [jointFact(problem, joint)];
  if (kind === "nothing" || kind === "amplified") return [{ code: `outcome.because.${kind}` }];
  if (isFinite) return [{ code: "outcome.because.finite" }];
  if (!isKnown || !rivals) return [{ code: `outcome.because.${isKnown ? "level" : "unknown"}` }];
  if (rivals.length === 0) return [{ code: "outcome.because.alone" }];
  const rest = rivals.length - SHOWN_RIVALS;
  const more = rest > 0 ? [{ code: "outcome.because.more", numbers: { inputs: { code: "outcome.input.more", numbers: { count: rest } } } }] : [];
  return [...rivals.slice(0, SHOWN_RIVALS).map((rival) => rivalFact(problem, rival)), ...more];
}

/** Where the best pairs of head and attention are if both are trained together. */
function jointFact(problem, { complete, margin, found }) {
  if (!complete) return { code: "lab.joint.too_many" };
  if (!(margin > 0)) return { code: "lab.joint.inseparable" };
  if (found.length === 0) return { code: "lab.joint.unselected" };
  const others = found.length - 1;
  const { selected } = found[0];
  const names = Array.from(selected, (token, input) => ({ name: tokenFact(problem, input, token), input }));
  const tokens = names.map((numbers) => (problem.n === 1 ? numbers.name : { code: "outcome.token.of_input", numbers }));
  const numbers = { tokens, margin, others };
  return { code: "lab.joint.best", numbers: { ...numbers, case: others > 0 ? "several" : "default" } };
}

/** What a proof shows, as a clause. */
function claimFact({ proof, norm }, { optimizer }) {
  const { citation, radius } = proof;
  if (citation === "X Thm 2") return { code: "outcome.ball", numbers: { radius } };
  if (citation === "X Thm 1") return { code: "outcome.tube", numbers: { norm, radius, size: optimizer.size, case: codeOf(optimizer.name) } };
  const { low, high, longest } = proof;
  const { momentum } = optimizer;
  const numbers = { low, high, longest, norm, momentum, measure: normFact(optimizer), case: momentum > 0 ? "momentum" : "default" };
  return { code: "outcome.margin_between", numbers };
}

/** Why only a part of the end is proved, as the last part of codes; null if all is proved. */
function gapOf({ kind, isFinite }) {
  if (kind === "found") return null;
  return kind === "amplified" ? "amplified" : isFinite ? "circling" : "follows";
}

/** Whether the end is proved, or what is missing. */
function proofFact(answer, problem, { promise }) {
  const { kind, bySteepest, missing, proof, verified, isFinite, isKnown } = answer;
  const computed = (reason, numbers = {}) => ({ code: "outcome.verdict.computed", numbers: { reason: { code: reason, numbers } } });
  const gap = gapOf(answer);
  if (kind === "nothing" || (verified && gap === null)) return { code: "outcome.verdict.proved" };
  if (verified) return { code: "outcome.verdict.in_part", numbers: { reason: { code: `outcome.gap.${gap}` } } };
  if (promise?.coversSteps) return computed("outcome.missing.promised");
  if (proof) return computed("outcome.missing.checker");
  if (isFinite) return computed("outcome.missing.gradient");
  if (kind === "range" || kind === "joint") return computed(`outcome.missing.${kind}`);
  const optimizer = optimizerFact(problem.optimizer.name);
  const uncovered = `outcome.missing.${problem.optimizer.name === "adam" ? "uncovered" : "vanishing"}`;
  const lacking = kind === "optimizer" ? uncovered : `outcome.${bySteepest ? "lacking" : "missing"}.${codeOf(missing ?? "")}`;
  return { code: `outcome.verdict.${isKnown ? "computed" : "undecided"}`, numbers: { reason: { code: lacking, numbers: { optimizer } } } };
}

/** Which tokens win, or what training ends at instead. */
function endFact({ kind, selected, isKnown }, problem, inputs) {
  if (kind === "nothing" || kind === "finite") return { code: `outcome.ends_at.${kind}` };
  const end = kind === "amplified" ? "amplified" : isKnown ? "direction" : "unknown";
  return { code: `outcome.ends_at.${end}`, numbers: winners(problem, selected, inputs) };
}

/** How far the run was followed. */
function reachedFact({ kind, direction, angle, steps, way, norm }, { optimizer }) {
  const followed = { steps, norm, length: way, case: way === null ? "steps" : "flow" };
  if (kind === "finite" || kind === "amplified" || !direction) return { code: "outcome.reached.elsewhere", numbers: followed };
  const power = normOfOptimizer(optimizer);
  if (power === 2) return { code: "outcome.reached.towards", numbers: { ...followed, angle } };
  return { code: "outcome.reached.towards_in_norm", numbers: { ...followed, angle, measure: measureFact(power) } };
}

/** The numbers and the theorem behind an answer, one sentence each. */
function detailFacts(answer, problem, { promise }) {
  const { kind, error, steps, rivals, proof, verified } = answer;
  if (kind === "nothing") return [{ code: "outcome.claim.constant" }];
  const leads = kind === "amplified" ? [] : (rivals ?? []).slice(0, SHOWN_RIVALS).map((rival) => leadFact(problem, rival));
  const facts = [reachedFact(answer, problem)];
  if (leads.length > 0) facts.push({ code: "outcome.leads", numbers: { leads } });
  if (verified) {
    const numbers = { claim: claimFact(answer, problem), statement: { code: `outcome.statement.${codeOf(proof.citation)}` } };
    facts.push({ code: "outcome.claim.checked", numbers });
    facts.push({ code: `outcome.way.${gapOf(answer) ?? "computed"}`, numbers: { error, steps } });
  } else if (promise?.coversSteps) facts.push({ code: "outcome.claim.promised", numbers: { citation: promise.citation } });
  return facts;
}

/**
 * The answer as sentences, as Python's `Answer` has them: { endsAt, because, proved, details, kind, codes }. The first three are its short
 * lines, details the sentences behind them. kind is that of the outlook's answer, or "refusal", and codes those of the three lines. played: {
 * steps, selected, norm } of a run that was played further than the outlook followed it, or null.
 */
export function verdictWords({ problem, prediction, outlook, refusal }, played = null) {
  if (refusal) return { endsAt: refusal, because: "", proved: "", details: [], kind: "refusal", codes: {} };
  const { answer } = outlook;
  const inputs = prediction.dependent?.length ? prediction.dependent : Array.from(problem.lengths.keys());
  let end = endFact(answer, problem, inputs);
  let details = detailFacts(answer, problem, prediction);
  if (played !== null && answer.kind !== "found" && inputs.some((i) => played.selected[i] !== answer.selected[i])) {
    const { steps, selected, norm } = played;
    const winner = { code: "outcome.ends_at.direction", numbers: winners(problem, selected, inputs) };
    details = [{ code: "lab.played_to", numbers: { norm, predicted: end } }];
    end = { code: "lab.played", numbers: { winner, steps } };
  }
  const because = becauseFacts(answer, problem, prediction);
  const proved = proofFact(answer, problem, prediction);
  return {
    endsAt: `${capital(render(end))}.`,
    because: text("outcome.why", { because: because.map((fact) => render(fact)).join("; ") }),
    proved: render(proved),
    details: details.map((fact) => render(fact)),
    kind: prediction.promise?.coversSteps ? "found" : answer.kind,
    codes: { endsAt: end.code, because: because[0].code, proved: proved.code, reason: proved.numbers?.reason.code ?? null },
  };
}

/** A sentence on the inputs that are left out, or null. */
export function leftOut({ problem, prediction }) {
  const inputs = Array.from(problem?.lengths ?? [], (_, i) => i).filter((i) => prediction?.dependent && !prediction.dependent.includes(i));
  if (inputs.length === 0 || inputs.length === problem.n) return null;
  const names = inputs.map((i) => ({ code: "lab.input", numbers: { input: i } }));
  return text("lab.left_out", { inputs: names, count: inputs.length });
}

// ---- margins and norms

/** What bounds on the smallest norm that differ by a relative gap prove of a margin. */
export function marginProof(gap, isShared) {
  if (!(gap <= CERTIFIED_RTOL)) return text("lab.margin_open", { gap });
  return text("lab.margin_proved", { gap: Math.max(gap, 0), case: isShared ? "shared" : "default" });
}

/** In which sense the direction that an optimizer heads for is the best, and who knows it. */
export function biasSentence({ optimizer, joint }) {
  if (joint) return text("lab.bias.joint");
  const power = normOfOptimizer(optimizer);
  const numbers = { optimizer: optimizerFact(optimizer.name), measure: measureFact(power) };
  if (optimizer.name === "gradient-descent") return text("lab.bias.gradient_descent", numbers);
  const way = optimizer.name === "adam" && power === 2 ? "adam" : "default";
  return [text("lab.bias.other", { ...numbers, case: way }), ...memorySentence(optimizer)].join(" ");
}

/** Where an optimizer that remembers gradients does not go where its steps lead; nothing for one without memory. */
function memorySentence({ name, betas, momentum = 0 }) {
  const rate = name === "adam" ? -Math.log(betas[1]) / 2 : -Math.log(momentum);
  return Number.isFinite(rate) ? [text("lab.bias.memory", { rate, case: name === "adam" ? "adam" : "momentum" })] : [];
}
