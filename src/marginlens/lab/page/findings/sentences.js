// What the page says in words: the headline before training, each condition of each theorem, selections and certificates.

import { INACCURATE, INFEASIBLE, OPTIMAL, TRIVIAL } from "../../kernels/margin.js";
import { normOfOptimizer } from "../../kernels/norms.js";
import { selectionAt } from "../../kernels/optimality.js";
import { powerOfTen, short } from "../numbers.js";

const MAX_LOG = 700; // of a number that a double holds
const DEGREES = 180 / Math.PI;
const CERTIFIED_RTOL = 1e-9; // residual or gap up to which a certificate gets its tick

/** How an optimizer is called in a sentence. */
export const OPTIMIZER_WORDS = {
  GradientDescent: "plain gradient descent",
  NormalizedGD: "normalised gradient descent",
  SignDescent: "sign descent",
  CoordinateDescent: "coordinate descent",
  SteepestDescent: "ℓp descent",
  Adam: "Adam",
};

/** Which step of the proofs is missing for an optimizer that they do not cover. */
const MISSING_STEP = {
  NormalizedGD:
    "The proof needs that each step lowers the loss by an amount tied to the slope; steps of fixed length stay long where the slope is small, so that is missing",
  SignDescent:
    "The proof compares the slope with the direction of the limit; sign descent moves along the signs of the slope only, so that comparison is missing",
  CoordinateDescent:
    "The proof compares the slope with the direction of the limit; coordinate descent moves along the steepest axis only, so that comparison is missing",
  SteepestDescent:
    "The proof compares the slope with the direction of the limit; ℓp descent bends the slope before it moves, so that comparison is missing",
  Adam: "The proof needs that each step follows the slope of the moment; Adam mixes in past slopes and rescales them, so that is missing",
};

// ---- small words

function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}`;
}

function counted(count, what) {
  const words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
  return `${words[count] ?? count} ${what}${count === 1 ? "" : "s"}`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** "token 3 of input 1 and token 1 of input 2": what is selected in the given inputs, in all of them by default. */
export function selectionWords(selected, inputs = selected.map((_, i) => i)) {
  if (selected.length === 1) return `token ${selected[0] + 1}`;
  return listed(inputs.map((i) => `token ${selected[i] + 1} of input ${i + 1}`));
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

// ---- conditions

/** What mixing in other tokens costs: a bound where there is a proof, else the least that was found. */
const MIXING_COST = {
  holds: ({ nu, proved_nu: least }) =>
    least === Infinity
      ? "No input has a second token to mix in."
      : least > 0
        ? `Each unit of attention on other tokens costs at least ${short(least)} of the label margin; this is proved.`
        : `No mixture of tokens was found that costs less than ${short(nu)} of the label margin per unit of attention; this is not proved.`,
  fails: ({ margin, nu }) =>
    margin === 0
      ? "Without a label margin there is nothing that mixing could cost."
      : nu < 0
        ? `Some attention on other tokens even widens the label margin, by ${short(-nu)} per unit.`
        : "Some attention on other tokens costs no label margin.",
};

/**
 * Every condition by its name: what it asks, what the papers call it, and its sentence by code and by whether it holds. A sentence is text
 * or a function of the condition's numbers.
 */
export const CONDITIONS = {
  "A Assumption A": {
    question: "Does the loss always fall?",
    label: "Assumption A",
    sentences: {
      "": {
        holds: ({ low, high, log_smallest_slope: smallest, log_M1: largest }) =>
          `On the scores of this problem, ${short(low)} to ${short(high)}, the loss falls everywhere, with slopes from ${fromLog(smallest)} to ${fromLog(largest)}.`,
        fails: ({ low, high }) =>
          `On the scores of this problem, ${short(low)} to ${short(high)}, the loss is flat or infinitely steep somewhere; the proof divides by its smallest slope, so that step is missing.`,
      },
    },
  },
  "strict optimum": {
    question: "Does every input have one best token?",
    label: "Theorem 1's optimal tokens",
    sentences: {
      "": {
        holds: ({ smallest_gap: gap }) =>
          gap === Infinity
            ? "No input has a second token to compare with."
            : `In every input one token has the highest score, at least ${short(gap)} above the others.`,
        fails: "In at least one input two tokens share the highest score, so there is no single best token.",
      },
    },
  },
  "A Assumption B": {
    question: "Do all other tokens score alike?",
    label: "Assumption B",
    sentences: {
      "": {
        holds: ({ smallest_gap: gap }) =>
          gap === Infinity
            ? "No input has a second token to compare with."
            : `In every input all tokens except the best one have the same score, at least ${short(gap)} below it.`,
        fails: ({ spread, smallest_gap: gap }) =>
          gap > 0
            ? `Within an input the scores of the lesser tokens differ by up to ${short(spread)}; the theorem asks that they be equal.`
            : "In at least one input two tokens share the highest score; the theorem asks for one best token.",
      },
    },
  },
  "separable optimum": {
    question: "Does one direction select every best token?",
    label: "Definition 1",
    sentences: {
      [OPTIMAL]: {
        holds: ({ margin }) =>
          `One direction puts the best token of every input ahead of the others; its margin, the lead per unit of length, is ${short(margin)}.`,
      },
      [INFEASIBLE]: { fails: "No direction puts the best token of every input ahead of the others at the same time." },
      [TRIVIAL]: { fails: "No input has two tokens, so there is nothing to select." },
      [INACCURATE]: { fails: "Rounding hides whether a direction puts the best token of every input ahead of the others." },
    },
  },
  "step size": {
    question: "Are the steps small, and along the slope?",
    label: "Lemma 6",
    sentences: {
      GradientDescent: {
        holds: ({ size, log_L_p: log }) => `The step size ${short(size)} is at most ${fromLog(-log)}, the largest that the proof takes.`,
        fails: ({ size, log_L_p: log }) =>
          `The step size ${short(size)} is larger than ${fromLog(-log)}, the largest that the proof takes; with it a step may raise the loss.`,
      },
      ...Object.fromEntries(
        Object.entries(MISSING_STEP).map(([name, missing]) => [
          name,
          {
            fails: ({ log_L_p: log }) =>
              `The theorem speaks of plain gradient descent with steps up to ${fromLog(-log)}, not of ${OPTIMIZER_WORDS[name]}. ${missing}.`,
          },
        ]),
      ),
    },
  },
  "start in a cone": {
    question: "Does the start point close to a limit?",
    label: "Equation 32",
    sentences: {
      zero: { fails: "The start is zero: it favours no token, so it is close to no limit." },
    },
  },
  "locally optimal start": {
    question: "Do the tokens that the start favours beat their rivals?",
    label: "Definition 2",
    sentences: {
      "": {
        holds: ({ score_gap: gap }) =>
          gap === Infinity
            ? "The tokens that the start favours have no rivals: no other token comes close enough to support their margin."
            : `The tokens that the start favours score at least ${short(gap)} more than their rivals, the support tokens of their margin.`,
        fails: ({ score_gap: gap }) =>
          gap < 0
            ? `The start favours a token that scores ${short(-gap)} less than one of its rivals, the support tokens of its margin.`
            : "The start favours a token that scores no more than one of its rivals, the support tokens of its margin.",
      },
      tie: { fails: "The start favours two tokens of an input equally, so it selects neither." },
      [TRIVIAL]: { fails: "No input has two tokens, so there is nothing to select." },
    },
  },
  "start in cone_μ": {
    question: "Does the start point close to the limit?",
    label: "Equation 32",
    sentences: {
      "": {
        holds: ({ one_minus_cosine: off, mu }) => `The start points ${degreesOf(off)} away from the limit; the theorem allows ${degreesOf(mu)}.`,
        fails: ({ one_minus_cosine: off, mu }) =>
          `The start points ${degreesOf(off)} away from the limit; the theorem allows only ${degreesOf(mu)}.`,
      },
    },
  },
  "start beyond R": {
    question: "Is the start long enough?",
    label: "Equation 46",
    sentences: {
      "": {
        holds: ({ norm, proven_radius: full }) => `The start has length ${short(norm)}; the proof asks for at least ${short(full)}.`,
        fails: ({ norm, radius, proven_radius: full }) =>
          `The start has length ${short(norm)}; the proof written out in full asks for ${short(full)}, the paper's own formula for ${short(radius)}.`,
      },
    },
  },
  "A Assumption D": {
    question: "Does attention on lesser tokens cost in proportion?",
    label: "Assumption D, by Lemma 14",
    sentences: {
      "": {
        holds: ({ log_C_minus: least, log_C_plus: most }) =>
          `The loss lies above its lowest value by between ${fromLog(least)} and ${fromLog(most)} times the largest share of attention on lesser tokens.`,
      },
      rounding: { fails: "Rounding hides which tokens share the highest score of an input." },
    },
  },
  "separable sets": {
    question: "Does one direction select a best token everywhere?",
    label: "the margin problem of sets",
    sentences: {
      [OPTIMAL]: {
        holds: ({ margin, minima }) =>
          `${minima === 1 ? "One direction puts" : `${capital(counted(minima, "direction"))} put`} a best token of every input ahead of all lesser ones, with margin ${short(margin)}.`,
      },
      [INFEASIBLE]: { fails: "No direction puts a best token of every input ahead of all lesser ones at the same time." },
      [TRIVIAL]: { fails: "All tokens are best tokens, so there is nothing to select." },
      [INACCURATE]: { fails: "Rounding hides whether a direction puts best tokens ahead of all lesser ones." },
      MAX_PROBLEMS: { fails: "So many tokens tie that not all ways to choose among them were tried." },
    },
  },
  "logistic loss": {
    question: "Is the loss the logistic one?",
    label: "Theorems 5 and 6",
    sentences: {
      Logistic: { holds: "The loss is the logistic one." },
      Exponential: { fails: "The theorem speaks of the logistic loss, not of the exponential one." },
      CorrelationLoss: { fails: "The theorem speaks of the logistic loss, not of the correlation." },
    },
  },
  "labels separable": {
    question: "Can a head tell the labels apart?",
    label: "label margin Γ",
    sentences: {
      "": {
        holds: ({ margin, runner_up: next }) =>
          `On the chosen tokens a head tells the labels apart with a margin of ${short(margin)}; the next best choice of tokens has ${short(next)}.`,
        fails: "No choice of tokens lets a head tell the labels apart.",
      },
    },
  },
  "separable tokens": {
    question: "Does one direction select these tokens?",
    label: "Definition 1",
    sentences: {
      [OPTIMAL]: { holds: ({ margin }) => `One direction puts the chosen token of every input ahead of the others, with margin ${short(margin)}.` },
      [INFEASIBLE]: { fails: "No direction puts the chosen token of every input ahead of the others at the same time." },
      [TRIVIAL]: { fails: "No input has two tokens, so there is nothing to select." },
      [INACCURATE]: { fails: "Rounding hides whether a direction puts the chosen tokens ahead of the others." },
    },
  },
  "selected in the limit": {
    question: "Does the direction select the other inputs' tokens too?",
    label: "Equation 10",
    sentences: {
      "": {
        holds: ({ room }) => `Made for the inputs that hold the head back, the direction selects the tokens of the others too, by ${short(room)} per unit of length.`,
        fails: "Made for the inputs that hold the head back, the direction does not select the tokens of the others.",
      },
      "all support": { holds: "Every input with several tokens holds the head back, so none is left over." },
      [TRIVIAL]: { fails: "The inputs that hold the head back have one token each, which leaves the direction open." },
      [INFEASIBLE]: { fails: "No direction selects the chosen tokens." },
      [INACCURATE]: { fails: "Rounding hides whether the direction selects the tokens of the other inputs." },
    },
  },
  "A Assumption C": {
    question: "Does attention on other tokens cost label margin?",
    label: "Assumption C",
    sentences: { "": MIXING_COST },
  },
  "A Assumption C over S": {
    question: "Does attention on other tokens cost label margin where it counts?",
    label: "Assumption C over the support set",
    sentences: { "": MIXING_COST },
  },
};

/** The sentence of a condition; undefined where there is none, which a test rules out. */
export function conditionSentence({ name, code = "", holds, numbers }) {
  const sentence = CONDITIONS[name]?.sentences[code]?.[holds ? "holds" : "fails"];
  return typeof sentence === "function" ? sentence(numbers) : sentence;
}

/** Every theorem by its citation: what it is about, and what it concludes where it applies to a number of inputs. */
export const THEOREMS = {
  "A Thm 1": {
    title: "The best direction of a given length",
    conclusion: () => "Among all attention vectors of a given length the one with the lowest loss turns to the limit marked ★ as the length grows.",
  },
  "A Thm 2": {
    title: "Training from any start",
    conclusion: (inputs) =>
      inputs === 1
        ? "From every start the attention vector grows without end and turns to the limit marked ★."
        : `From every start the attention vector grows without end; with ${inputs} inputs its direction stays open.`,
  },
  "A Thm 3": {
    title: "Training from a start close to a limit",
    conclusion: () => "From this start the attention vector turns to the limit of the tokens that the start favours.",
  },
  "A Thm 5": {
    title: "Head and attention together, every input close",
    conclusion: () =>
      "Among all pairs of head and attention of given lengths the best one turns to the head's limit and to the limit marked ★, as both lengths grow.",
  },
  "A Thm 6": {
    title: "Head and attention together, some inputs with room",
    conclusion: () =>
      "As both lengths grow, the head's fast enough, the best pair turns to the head's limit and to the limit marked ★, made for the inputs that hold the head back.",
  },
  "A Thm 8": {
    title: "The best direction where best tokens tie",
    conclusion: () => "Among all attention vectors of a given length the one with the lowest loss turns to a limit that selects best tokens.",
  },
};

// ---- the headline

/** The limit that the page expects before training: certain, observed or expected; null where no theorem helps. */
export function expectedLimit({ prediction, limits }) {
  const { promise = null, basin = null, candidates = [] } = prediction ?? {};
  let found = basin === null ? undefined : candidates[basin];
  if (promise !== null && candidates.length > 0) {
    const along = ({ direction }) => direction.reduce((total, entry, k) => total + entry * promise.direction[k], 0);
    found = candidates.reduce((best, candidate) => (along(candidate) > along(best) ? candidate : best));
  }
  return limits.find(({ selected, label }) => found && label === found.label && selected.join() === found.selected.join()) ?? null;
}

/** Where most attention is at the start, or nothing where tokens are level. */
function startSentence(problem, inputs) {
  const { selected, unique } = selectionAt(problem, problem.start);
  return unique ? ` At the start most attention is on ${selectionWords(selected, inputs)}.` : "";
}

function openSentence(problem, { dependent }, limits) {
  if (limits.length === 0) return "No theorem decides: no direction selects tokens that all beat their rivals in score, so no limit is known.";
  const possible = `${counted(limits.length, "limit")} ${limits.length === 1 ? "is" : "are"} possible`;
  return `No theorem decides from this start; ${possible}.${startSentence(problem, dependent)}`;
}

/**
 * What will happen, said before training: { sentence, kind }, kind one of "refusal", "nothing", "certain", "observed", "expected", "open".
 */
export function headline(analysis) {
  const { problem, prediction, limits, refusal } = analysis;
  if (refusal) return { sentence: refusal, kind: "refusal" };
  if (problem.joint) return jointHeadline(prediction, limits);
  if (prediction.dependent.length === 0)
    return { sentence: "Training changes nothing here: no input has two places and two scores to choose between.", kind: "nothing" };
  const limit = expectedLimit(analysis);
  if (limit === null) return { sentence: openSentence(problem, prediction, limits), kind: "open" };
  const tokens = selectionWords(limit.selected, prediction.dependent);
  const { promise, step } = prediction;
  if (!promise) {
    return {
      sentence: `From this start the attention should settle on ${tokens}. The start lies in the cone of this limit, but is shorter than the full proof asks.`,
      kind: "expected",
    };
  }
  const theorem = promise.citation.replace("A Thm", "Theorem");
  if (step.holds) return { sentence: `From this start the attention settles on ${tokens}. ${theorem} makes this certain.`, kind: "certain" };
  const { name } = problem.optimizer;
  const largest = fromLog(-step.numbers.log_L_p);
  if (name === "GradientDescent") {
    return {
      sentence: `From this start the attention should settle on ${tokens}. ${theorem} makes this certain for steps up to ${largest}; yours are ${short(problem.optimizer.size)}.`,
      kind: "expected",
    };
  }
  if (normOfOptimizer(problem.optimizer) === 2) {
    const others = name === "NormalizedGD" ? "; normalised steps went the same way in experiments" : "";
    return {
      sentence: `From this start the attention should settle on ${tokens}. ${theorem} proves it for plain gradient descent with steps up to ${largest}, not for ${OPTIMIZER_WORDS[name]}${others}.`,
      kind: "observed",
    };
  }
  return {
    sentence: `Plain gradient descent would settle on ${tokens}, by ${theorem}. No theorem covers ${OPTIMIZER_WORDS[name]}; it may turn to another direction that selects the same tokens.`,
    kind: "expected",
  };
}

/** What is known where head and attention are trained together, of which the theorems say only where the best pairs go. */
function jointHeadline({ joint }) {
  const { complete, margin, found } = joint;
  if (!complete) return { sentence: "Head and attention are trained together; there are too many selections to try them all.", kind: "open" };
  if (!(margin > 0)) return { sentence: "Head and attention are trained together; no choice of tokens lets a head tell the labels apart.", kind: "open" };
  if (found.length === 0)
    return { sentence: "Head and attention are trained together; no direction selects the tokens that a head tells apart best.", kind: "open" };
  const choices = found.map(({ selected }) => selectionWords(selected));
  const best = choices.length === 1 ? choices[0] : `${choices[0]}, or ${counted(choices.length - 1, "other choice")} as good`;
  return {
    sentence: `Together head and attention do best on ${best}: there the labels are told apart with the widest margin, ${short(margin)}.`,
    kind: "expected",
  };
}

/** A sentence on the inputs that the theorems leave out, or null. */
export function leftOut({ problem, prediction }) {
  const left = Array.from(problem?.lengths ?? [], (_, i) => i).filter((i) => prediction?.dependent && !prediction.dependent.includes(i));
  if (left.length === 0 || left.length === problem.n) return null;
  const names = left.length === 1 ? `Input ${left[0] + 1} has` : `Inputs ${listed(left.map((i) => String(i + 1)))} have`;
  return `${names} one token, one place or one score only; the theorems leave that out.`;
}

// ---- selections and certificates

/** The tick of a certificate's number. */
export function isCertified(value) {
  return value <= CERTIFIED_RTOL;
}

/** What a selection amounts to: { verdict, sentence, rival }, rival the neighbour in the way as { input, token } or null. */
export function selectionVerdict(problem, found) {
  const { T, scores } = problem;
  const { solution, selected, neighbours, scoreGap } = found;
  const tokens = selectionWords(selected);
  if (solution.status === TRIVIAL) return { verdict: "nothing", sentence: "No input has two tokens, so there is nothing to select.", rival: null };
  if (solution.status === INFEASIBLE) {
    const weighted = solution.pairs.filter((_, r) => solution.certificate[r] > 0);
    const same = weighted.length === 1 ? weighted[0] : null;
    const reason = same
      ? `tokens ${same.selected + 1} and ${same.other + 1} of input ${same.input + 1} are in one place`
      : `${counted(weighted.length, "demand")} contradict each other`;
    return { verdict: "infeasible", sentence: `No direction selects ${tokens}: ${reason}.`, rival: null };
  }
  if (solution.status === INACCURATE)
    return { verdict: "inaccurate", sentence: `Rounding hides whether a direction selects ${tokens}.`, rival: null };
  if (found.isLocallyOptimal) {
    const lead = scoreGap === Infinity ? "have no rivals" : `score at least ${short(scoreGap)} more than their rivals`;
    const place = found.isGloballyOptimal ? "These are the best tokens of all inputs" : "Not the best tokens of all inputs, yet training can end here";
    return { verdict: found.isGloballyOptimal ? "global" : "local", sentence: `A direction selects ${tokens}, and they ${lead}. ${place}.`, rival: null };
  }
  let rival = null;
  let worst = Infinity;
  neighbours.forEach((isNeighbour, at) => {
    const input = Math.floor(at / T);
    const gap = scores[input * T + selected[input]] - scores[at];
    if (isNeighbour && gap < worst) [worst, rival] = [gap, { input, token: at % T }];
  });
  const more = scoreGap < 0 ? `scores ${short(-scoreGap)} more` : "scores just as much";
  return {
    verdict: "beaten",
    sentence: `A direction selects ${tokens}, but training does not end there: token ${rival.token + 1} of input ${rival.input + 1} stands right behind and ${more}.`,
    rival,
  };
}

/** What the certificate of a solution proves, in one sentence; isRelaxed: some inputs need no lead of one. */
export function certificateSentence(solution, tokens, { residual, gap }, isRelaxed = false) {
  if (solution.status === INFEASIBLE) {
    return isCertified(residual)
      ? `This proves that no direction selects ${tokens}: each demand asks for a positive lead, and the demands, added with these weights, cancel to zero.`
      : "The weights do not cancel to rounding, so this proves nothing.";
  }
  if (solution.status !== OPTIMAL) return "There is nothing to prove.";
  return isCertified(residual) && isCertified(gap)
    ? `This proves that no shorter vector puts ${tokens} ahead of all others by one${isRelaxed ? " in the inputs that support the head, and at all in the rest" : ""}: no direction that does so has a wider margin.`
    : "The two bounds do not meet to rounding, so this proves the margin only to their gap.";
}

/** The notes that stand beside the numbers of an optimizer that measures length differently. */
export function normWords(power) {
  if (power === 2) return "the ordinary length";
  if (power === Infinity) return "the largest entry";
  return power === 1 ? "the sum of entries without signs" : `the ℓ${short(power)} length`;
}

/** In which sense the direction that an optimizer heads for is the best, and who knows it. */
export function biasSentence({ optimizer, joint }) {
  if (joint) return "These theorems speak of the best pairs of head and attention of given lengths; that training finds them is the step that is not proved.";
  const power = normOfOptimizer(optimizer);
  const name = capital(OPTIMIZER_WORDS[optimizer.name]);
  const among = `among vectors that select the same tokens by a lead of one it heads for the one that is shortest by ${normWords(power)}`;
  if (optimizer.name === "GradientDescent") return `${name}: ${among}. The theorems above prove it where they apply.`;
  const early = optimizer.name === "Adam" && power === 2 ? ", after a long time near the shortest by the largest entry" : "";
  return `${name}: ${among}${early}. Seen in experiments; proved for models without attention.${memorySentence(optimizer)}`;
}

/** Where an optimizer that remembers gradients does not go where its steps lead; nothing for one without memory. */
export function memorySentence({ name, betas, momentum = 0 }) {
  const rate = name === "Adam" ? -Math.log(betas[1]) / 2 : -Math.log(momentum);
  if (!Number.isFinite(rate)) return "";
  const memory = name === "Adam" ? "½ log(1/β₂)" : "log(1/momentum)";
  return ` That holds where its memory is short for its steps: steps that fall, or step size times margin below ${memory} = ${short(rate)}${name === "Adam" ? ", and β₁ ≤ β₂" : ""}; beyond that it is not known where it ends.`;
}
