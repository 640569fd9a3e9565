// The facts that the page states: where training ends, each condition of each theorem, and what optimizers head for. Their texts are in
// words/texts.toml.

import { normOfOptimizer } from "../../kernels/norms.js";
import { short } from "../numbers.js";
import { wordOf } from "../state.js";
import { capital, render, text } from "../words.js";

const DEGREES = 180 / Math.PI;
const CERTIFIED_RTOL = 1e-9; // gap up to which a margin counts as proved
const SHOWN_RIVALS = 4;

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

/** The tokens that a problem selects in the given inputs, in all of them by default. */
function tokenFacts(problem, selected, inputs = selected.map((_, i) => i)) {
  const code = selected.length === 1 ? "outcome.token.alone" : "outcome.token.of_input";
  return inputs.map((i) => ({ code, numbers: { token: `${selected[i] + 1}${wordOf(problem, i, selected[i])}`, input: i + 1 } }));
}

/** The angle of a direction of the plane in degrees, from −180 to 180, without the rounding of its last digits. */
export function angleWords(direction) {
  return `${short(Number((DEGREES * Math.atan2(direction[1], direction[0])).toFixed(2)))}°`;
}

/** What a theorem concludes of a number of inputs, or would conclude if all its conditions held. */
export function conclusionOf({ citation, applies }, inputs) {
  const isOpen = citation === "A Thm 2" && inputs > 1;
  const way = [isOpen && "several", !applies && "unmet"].filter(Boolean).join("_") || "default";
  return text(theoremCode(citation), { inputs, case: way });
}

/** The code of a theorem by its citation, such as "A Thm 3". */
export function theoremCode(citation) {
  return `lab.theorem.${codeOf(citation)}`;
}

// ---- the verdict

function rivalFact(problem, { input, selected, token, lead, score, higher, higherLead }) {
  const name = (t) => `${t + 1}${wordOf(problem, input, t)}`;
  const isBeside = higher !== null && higher !== token;
  const way = `${score >= 0 ? "default" : "lower"}${isBeside ? "_beside_higher" : ""}`;
  const others = isBeside ? { higher: name(higher), behind: higherLead } : {};
  const names = { input: input + 1, selected: name(selected), token: name(token) };
  return { code: "outcome.rival", numbers: { ...names, ahead: lead, score: Math.abs(score), ...others, case: way } };
}

/** The facts behind an answer, one for each input that is named. */
function becauseFacts({ kind, isFinite, isKnown, rivals }, problem, { joint }) {
  if (kind === "joint") return [jointFact(problem, joint)];
  if (kind === "nothing") return [{ code: "outcome.because.nothing" }];
  if (isFinite) return [{ code: "outcome.because.finite" }];
  if (!isKnown) return [{ code: "outcome.because.unknown" }];
  if (!rivals) return [{ code: "outcome.because.level" }];
  if (rivals.length === 0) return [{ code: "outcome.because.alone" }];
  const rest = rivals.length - SHOWN_RIVALS;
  const more = rest > 0 ? [{ code: "outcome.because.more", numbers: { count: rest } }] : [];
  return [...rivals.slice(0, SHOWN_RIVALS).map((rival) => rivalFact(problem, rival)), ...more];
}

/** Where the best pairs of head and attention are if both are trained together. */
function jointFact(problem, { complete, margin, found }) {
  if (!complete) return { code: "lab.joint.too_many" };
  if (!(margin > 0)) return { code: "lab.joint.inseparable" };
  if (found.length === 0) return { code: "lab.joint.unselected" };
  const others = found.length - 1;
  const numbers = { tokens: tokenFacts(problem, found[0].selected), margin, others };
  return { code: "lab.joint.best", numbers: { ...numbers, case: others > 0 ? "several" : "default" } };
}

/** What is proved of an answer, as a clause; null where nothing is. */
function claimFact({ missing, norm, radius, bracket, ball, isFinite }, { optimizer }) {
  if (isFinite) return ball && { code: "outcome.ball", numbers: ball };
  if (bracket) {
    const measure = measureFact(normOfOptimizer(optimizer));
    return { code: "outcome.margin_between", numbers: { ...bracket, norm, measure, case: bracket.momentum > 0 ? "momentum" : "default" } };
  }
  const numbers = { norm, radius, size: optimizer.size, case: codeOf(optimizer.name) };
  return missing === "NOTHING" && radius !== undefined ? { code: "outcome.tube", numbers } : null;
}

/** Whether the end is proved, by what, or what is missing. */
function proofFact(answer, problem, { promise, step }, isDone) {
  const { kind, citation = "X Thm 1", missing, norm, error, isFinite } = answer;
  if (kind !== "found" && promise && step.holds) return { code: "outcome.proved.promised", numbers: { citation: promise.citation } };
  const claim = claimFact(answer, problem);
  if (claim) {
    const found = { citation, claim, checker: { code: "lab.checker" } };
    if (kind === "found") return { code: "outcome.proved.found", numbers: found };
    const follows = isFinite ? { code: "outcome.path.circling" } : { code: "outcome.way.follows" };
    const way = kind === "amplified" ? { code: "outcome.way.amplified", numbers: { error } } : follows;
    return { code: "outcome.proved.found_in_part", numbers: { ...found, way } };
  }
  if (isFinite) return { code: "outcome.verified.gradient" };
  if (!["open", "amplified", "settled"].includes(kind)) return { code: `outcome.proved.${kind}`, numbers: { optimizer: optimizerFact(problem.optimizer.name) } };
  const lacking = citation === "X Thm 4" ? { code: `outcome.lacking.${codeOf(missing)}` } : { code: `outcome.missing.${codeOf(missing)}` };
  return { code: isDone ? "outcome.proved.missing" : "outcome.proved.missing_so_far", numbers: { norm, missing: lacking } };
}

/** What training ends at, and how far it was followed. */
function endFacts({ kind, selected, direction, angle, steps, way, norm, isKnown }, problem, inputs) {
  const tokens = tokenFacts(problem, selected, inputs);
  const power = normOfOptimizer(problem.optimizer);
  const followed = { steps, norm, length: way, case: way === null ? "steps" : "flow" };
  const elsewhere = { code: "outcome.reached.elsewhere", numbers: followed };
  if (kind === "nothing") return { end: { code: "outcome.ends_at.nothing" }, reached: null };
  if (kind === "finite") return { end: { code: "outcome.ends_at.finite" }, reached: elsewhere };
  if (!isKnown) {
    const code = kind === "amplified" ? "outcome.ends_at.amplified" : "outcome.ends_at.unknown";
    return { end: { code, numbers: { tokens, count: tokens.length } }, reached: elsewhere };
  }
  const end = { code: "outcome.ends_at.direction", numbers: { tokens } };
  if (direction === null) return { end, reached: elsewhere };
  if (power === 2) return { end, reached: { code: "outcome.reached.towards", numbers: { ...followed, angle } } };
  return { end, reached: { code: "outcome.reached.towards_in_norm", numbers: { ...followed, angle, measure: measureFact(power) } } };
}

/**
 * Where training ends, how far it was followed, because of what, and whether that is proved: { endsAt, reached, because, proved, kind,
 * codes }, kind that of the outlook's answer, or "refusal", and codes those of the three lines. played: { steps, selected, norm } of a run
 * that was played further than the outlook followed it, or null.
 */
export function verdictWords({ problem, prediction, outlook, refusal }, played = null) {
  if (refusal) return { endsAt: refusal, reached: "", because: "", proved: "", kind: "refusal", codes: {} };
  const { answer, isDone } = outlook;
  const inputs = prediction.dependent?.length ? prediction.dependent : Array.from(problem.lengths.keys());
  let { end, reached } = endFacts(answer, problem, inputs);
  if (played !== null && answer.kind !== "found" && inputs.some((i) => played.selected[i] !== answer.selected[i])) {
    const { steps, selected, norm } = played;
    [end, reached] = [{ code: "lab.played", numbers: { tokens: tokenFacts(problem, selected, inputs), steps, norm, predicted: end } }, null];
  }
  const because = becauseFacts(answer, problem, prediction);
  const proved = proofFact(answer, problem, prediction, isDone);
  const sentence = (...facts) => `${capital(facts.map((fact) => render(fact)).join("; "))}.`.replace(/\.\.$/, ".");
  return {
    endsAt: sentence(end),
    reached: reached === null ? "" : render(reached),
    because: sentence(...because),
    proved: sentence(proved),
    kind: prediction.promise && prediction.step.holds ? "found" : answer.kind,
    codes: { endsAt: end.code, because: because[0].code, proved: proved.code, missing: proved.numbers?.missing?.code ?? null },
  };
}

/** A sentence on the inputs that the theorems leave out, or null. */
export function leftOut({ problem, prediction }) {
  const inputs = Array.from(problem?.lengths ?? [], (_, i) => i).filter((i) => prediction?.dependent && !prediction.dependent.includes(i));
  if (inputs.length === 0 || inputs.length === problem.n) return null;
  const names = inputs.map((i) => ({ code: "lab.input", numbers: { input: i + 1 } }));
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
