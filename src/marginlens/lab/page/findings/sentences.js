// What the page says in words: where training ends, each condition of each theorem, and what optimizers head for.

import { normOfOptimizer } from "../../kernels/norms.js";
import { powerOfTen, short } from "../numbers.js";
import { wordOf } from "../state.js";
import { counted, listed } from "../text/text_reasons.js";

const MAX_LOG = 700; // of a number that a double holds
const DEGREES = 180 / Math.PI;
const NUMBER_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
const CERTIFIED_RTOL = 1e-9; // gap up to which a margin counts as proved

/** How an optimizer is called in a sentence. */
export function optimizerWord(name) {
  return globalThis.labWords.optimizers[name]["in a sentence"];
}

// ---- small words

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** "token 3 of input 1 and token 1 of input 2": what a problem selects in the given inputs, in all of them by default. */
function selectionWords(problem, selected, inputs = selected.map((_, i) => i)) {
  const name = (i) => `token ${selected[i] + 1}${wordOf(problem, i, selected[i])}`;
  if (selected.length === 1) return name(0);
  return listed(inputs.map((i) => `${name(i)} of input ${i + 1}`), Infinity);
}

/** A positive number given by its logarithm, as a power of ten where a double does not hold it. */
function fromLog(logarithm) {
  if (logarithm === -Infinity || Math.abs(logarithm) < MAX_LOG) return short(Math.exp(logarithm));
  return logarithm === Infinity ? "infinity" : powerOfTen(Math.round(logarithm / Math.LN10));
}

/** The angle in degrees between unit vectors whose correlation is one less `deviation`, without cancellation. */
function degreesOf(deviation) {
  return `${short(2 * DEGREES * Math.asin(Math.sqrt(Math.min(deviation, 2) / 2)))}°`;
}

/** The angle of a direction of the plane in degrees, from −180 to 180, without the rounding of its last digits. */
export function angleWords(direction) {
  return `${short(Number((DEGREES * Math.atan2(direction[1], direction[0])).toFixed(2)))}°`;
}

// ---- conditions and theorems, in the words of words.json, which whoever starts the page's code puts into globalThis.labWords

const FORMATS = { one_minus_cosine: degreesOf, mu: degreesOf, minima: (count) => capital(NUMBER_WORDS[count] ?? String(count)), inputs: String, input: String };

/** A text with numbers in the place of their {names}, less those of {-names}; names of logarithms begin with log_. */
function filled(text, numbers) {
  const formatOf = (name) => FORMATS[name] ?? (name.startsWith("log_") ? fromLog : short);
  return text.replace(/\{(-?)(\w+)\}/g, (_, minus, name) => formatOf(name)(minus ? -numbers[name] : numbers[name]));
}

/** What a condition asks, what the papers call it, and its sentence; undefined where there is none, which a test rules out. */
export function conditionWords({ name, code, holds, numbers }) {
  const { conditions } = globalThis.labWords;
  const { question, label, as = name } = conditions[name];
  const text = conditions[as][holds ? "holds" : "fails"]?.[code];
  return { question, label, sentence: text && filled(text, numbers) };
}

/** What a theorem is about, and what it concludes where it applies to a number of inputs. */
export function theoremWords(citation, inputs) {
  const { title, conclusion, "of several inputs": several = conclusion } = globalThis.labWords.theorems[citation];
  return { title, conclusion: filled(inputs === 1 ? conclusion : several, { inputs }) };
}

// ---- the verdict, in the words of theory/outcome.json, which Python has too

const SHOWN_RIVALS = 4;
const CHECKER = "Copy as Python, in Share,"; // the script's prediction verifies in intervals what the page finds in double precision

/** A text of the table of predictions with words and numbers in the place of their {names}. */
function outcomeText(place, name, values = {}) {
  const digits = { norm: 4, way: 4 };
  const shown = (entry, key) => (typeof entry === "number" ? short(entry, digits[key]) : entry);
  return globalThis.labWords.outcome[place][name].replace(/\{(\w+)\}/g, (_, key) => shown(values[key], key));
}

function rivalWords(problem, { input, selected, token, lead, score, higher, higherLead }) {
  const name = (t) => `${t + 1}${wordOf(problem, input, t)}`;
  const names = { input: String(input + 1), selected: name(selected), token: name(token) };
  const text = outcomeText("because", score >= 0 ? "higher" : "lower", { ...names, ahead: lead, score: Math.abs(score) });
  if (higher === null || higher === token) return text;
  return text + outcomeText("because", "but", { higher: name(higher), behind: higherLead });
}

function becauseWords({ kind, direction, rivals = [] }, problem, { joint }) {
  if (kind === "joint") return jointSentence(problem, joint);
  if (kind === "nothing" || kind === "finite") return outcomeText("because", kind);
  if (direction === null) return outcomeText("because", kind === "open" || kind === "amplified" ? "unknown" : "level");
  if (rivals.length === 0) return outcomeText("because", "alone");
  const left = rivals.length - SHOWN_RIVALS;
  return rivals.slice(0, SHOWN_RIVALS).map((rival) => rivalWords(problem, rival)).join("; ") + (left > 0 ? outcomeText("because", "more", { left: String(left) }) : "");
}

function proofWords({ kind, missing, norm, radius, error }, { optimizer }, { promise, step }, isDone) {
  const isFound = missing === "NOTHING";
  if (kind !== "found" && promise && step.holds) return outcomeText("proved", "promised", promise);
  if (["found", "found in part"].includes(kind) || (kind === "amplified" && isFound)) {
    const claim = outcomeText("proved", "tube", { norm, radius, moving: outcomeText("moving", optimizer.name, { size: optimizer.size }) });
    const found = outcomeText("proved", kind === "amplified" ? "found in part" : kind, { citation: "X Thm 1", claim, checker: CHECKER });
    return `${found}. ${outcomeText("way", { found: "computed", "found in part": "follows", amplified: "amplified" }[kind], { error })}`;
  }
  if (kind === "finite") return outcomeText("proved", "staying", { radius });
  if (kind !== "open" && kind !== "amplified") return outcomeText("proved", kind, { optimizer: optimizerWord(optimizer.name) });
  const lacking = outcomeText("proved", "missing", { norm, missing: globalThis.labWords.outcome.missing[missing] });
  return outcomeText("proved", isDone ? "no" : "not yet", { missing: lacking });
}

/**
 * Where training ends, because of what, and whether that is proved: { endsAt, because, proved, kind }, kind that of the outlook's answer, or
 * "refusal". played: { steps, selected, norm } of a run that was played further than the outlook followed it, or null.
 */
export function verdictWords({ problem, prediction, outlook, refusal }, played = null) {
  if (refusal) return { endsAt: refusal, because: "", proved: "", kind: "refusal" };
  const { answer, isDone } = outlook;
  const { kind, selected, direction, angle, steps, way, norm } = answer;
  const inputs = prediction.dependent?.length ? prediction.dependent : Array.from(problem.lengths.keys());
  const tokens = selectionWords(problem, selected, inputs);
  const isOne = inputs.length === 1;
  const reached = outcomeText("reached", way === null ? "steps" : "flow", { steps: steps.toLocaleString("en"), way, norm });
  const power = normOfOptimizer(problem.optimizer);
  const known = ["optimizer", "range", "joint"].includes(kind) ? (direction === null ? "selection" : power === 2 ? "tokens" : "norm") : direction === null ? "unknown" : "tokens";
  const name = ["nothing", "finite", "amplified"].includes(kind) ? kind : known;
  const values = { tokens, their: isOne ? "its" : "their", lead: isOne ? "leads" : "lead", reached, angle, length: normWords(power) };
  const endsAt = outcomeText("ends at", name, values);
  const elsewhere = played !== null && kind !== "found" && inputs.some((i) => played.selected[i] !== selected[i]);
  const ran = elsewhere && { tokens: selectionWords(problem, played.selected, inputs), steps: played.steps.toLocaleString("en"), norm: played.norm, predicted: endsAt };
  return {
    endsAt: capital(`${elsewhere ? outcomeText("ends at", "played", ran) : endsAt}.`),
    because: `${capital(becauseWords(answer, problem, prediction))}.`,
    proved: `${capital(proofWords(answer, problem, prediction, isDone))}.`,
    kind: prediction.promise && prediction.step.holds ? "found" : kind,
  };
}

/** Where the best pairs of head and attention are, where both are trained together. */
function jointSentence(problem, { complete, margin, found }) {
  if (!complete) return "there are too many selections to try them all";
  if (!(margin > 0)) return "no choice of tokens lets a head tell the labels apart";
  if (found.length === 0) return "no direction selects the tokens that a head tells apart best";
  const choices = found.map(({ selected }) => selectionWords(problem, selected));
  const best = choices.length === 1 ? choices[0] : `${choices[0]}, or ${counted(choices.length - 1, "other choice")} as good`;
  return `head and attention do best on ${best}: there the labels are told apart with the widest margin, ${short(margin)}`;
}

/** A sentence on the inputs that the theorems leave out, or null. */
export function leftOut({ problem, prediction }) {
  const left = Array.from(problem?.lengths ?? [], (_, i) => i).filter((i) => prediction?.dependent && !prediction.dependent.includes(i));
  if (left.length === 0 || left.length === problem.n) return null;
  const names = left.length === 1 ? `Input ${left[0] + 1} has` : `Inputs ${listed(left.map((i) => String(i + 1)), Infinity)} have`;
  return `${names} one token, one place or one score only; the theorems leave that out.`;
}

// ---- margins and norms

/** What bounds on the smallest norm that differ by a relative gap prove of a margin. */
export function marginProof(gap, isShared) {
  if (!(gap <= CERTIFIED_RTOL)) return `✗ Two bounds on the margin differ by ${short(gap)} of it; it is known only to that.`;
  return `✓ The margin lies between two bounds that agree to ${short(Math.max(gap, 0))} of it.${isShared ? " Other directions have it too." : ""}`;
}

/** The notes that stand beside the numbers of an optimizer that measures length differently. */
export function normWords(power) {
  if (power === 2) return "the ordinary length";
  if (power === Infinity) return "the largest entry";
  return power === 1 ? "the sum of entries without signs" : `the ℓ${short(power)} length`;
}

/** In which sense the direction that an optimizer heads for is the best, and who knows it. */
export function biasSentence({ optimizer, joint }) {
  if (joint)
    return "Theorem 5 and Theorem 6 of paper A speak of the best pairs of head and attention of given lengths; that training finds them is not proved. Share, Copy as Python, asks whether they apply.";
  const power = normOfOptimizer(optimizer);
  const name = capital(optimizerWord(optimizer.name));
  const among = `among vectors that select the same tokens by a lead of one it heads for the one that is shortest by ${normWords(power)}`;
  if (optimizer.name === "gradient-descent") return `${name}: ${among}. The theorems above prove it where they apply.`;
  const early = optimizer.name === "adam" && power === 2 ? ", after a long time near the shortest by the largest entry" : "";
  return `${name}: ${among}${early}. Seen in experiments; proved for models without attention.${memorySentence(optimizer)}`;
}

/** Where an optimizer that remembers gradients does not go where its steps lead; nothing for one without memory. */
function memorySentence({ name, betas, momentum = 0 }) {
  const rate = name === "adam" ? -Math.log(betas[1]) / 2 : -Math.log(momentum);
  if (!Number.isFinite(rate)) return "";
  const memory = name === "adam" ? "½ log(1/β₂)" : "log(1/momentum)";
  return ` That holds where its memory is short for its steps: steps that fall, or step size times margin below ${memory} = ${short(rate)}${name === "adam" ? ", and β₁ ≤ β₂" : ""}; beyond that it is not known where it ends.`;
}
