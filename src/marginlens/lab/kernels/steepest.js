// Proofs that steepest descent in any norm selects its tokens for ever, X Theorem 4: the same search as Python's, whose core judges each point.

import { callCore } from "./core.js";
import { derivativesAt } from "./flow.js";
import { dot, norm } from "./linalg.js";
import { INFEASIBLE } from "./margin.js";
import { dualNorm, normOfOptimizer, powerNorm, shortestInNorm } from "./norms.js";
import { sharpDifferences } from "./optimality.js";
import { placesOf } from "./problem.js";
import { CORRELATION, logSlope } from "./softmax.js";

const TOLERANCE = 1e-6; // radius of the ball around a point that a proof has to hold, relative to the point's norm
const ROOM = 1e-9; // by which stated numbers stay inside what the theorem allows
const NEAR = 1e-7; // slack up to which a row is on the margin
const CARRIES = 1e-9; // multipliers, relative to the largest, below which a row carries nothing of the margin
const WORTH = 0.01; // loss to the length of steps, relative to γ, from which on a sharper bound is worth its time
const POWER_ROOM = 1e-12; // share by which a computed power may be too small
const KEPT = 0.98; // share of the largest rate that other rows have to stay below
const FORGOTTEN = 1e-12; // weight of gradients that are left out of a running sum
const SHORTEST = 1e-300; // length of steps that no theorem covers: the plan shows whether any direction selects their tokens
const N_VERTICES = 4; // of the unit balls of ℓ1 and ℓ∞ in the plane

export const NOTHING = "NOTHING";
/** Conditions that no further step changes, and those with which nothing is selected. */
export const LASTING = ["STEPS_TOO_LONG", "REMEMBERS_TOO_MUCH", "OUTRUN"];
export const NOT_SELECTED = ["INFEASIBLE", "SUPPORT_SCORES_HIGHER", "ROUNDING_DECIDES"];

/** What the theorem needs of an optimizer's steps after some: { isCovered, power, taken, longest, limit, momentum }. */
export function steepestSteps(optimizer, taken) {
  const { name, size, decay, momentum = 0 } = optimizer;
  if (name === "adam") return { isCovered: false, power: 2, taken, longest: SHORTEST, limit: 0, momentum: 0 };
  const isCovered = decay <= 1;
  const power = normOfOptimizer(optimizer);
  const fallen = decay > 0 ? size * (taken + 1) ** -decay * (1 + POWER_ROOM) : size;
  const longest = isCovered ? fallen : SHORTEST;
  return { isCovered, power, taken, longest, limit: decay > 0 || !isCovered ? 0 : longest, momentum: isCovered ? momentum : 0 };
}

/** How many of the steps taken a running sum of gradients remembers. */
export function nRemembered(momentum, taken) {
  return momentum > 0 ? Math.min(taken, Math.ceil(Math.log(FORGOTTEN) / Math.log(momentum))) : 0;
}

/** The rows of a selection for some inputs: { input, token, a, delta, logSlope, isNear }. */
function rowsOf(problem, inputs, selected) {
  const { n, T, K, scores, code } = problem;
  const { differences, near } = sharpDifferences(problem, selected);
  return inputs.flatMap((input) => {
    const chosen = input * T + selected[input];
    const others = placesOf(problem, input).filter((at) => at !== chosen);
    const slope = logSlope(code, scores[chosen]) - Math.log(n);
    const row = (at) => [K[2 * chosen] - K[2 * at], K[2 * chosen + 1] - K[2 * at + 1]];
    return others.map((at) => ({ input, token: at % T, a: row(at), delta: differences[at], logSlope: slope, isNear: near[at] === 1 }));
  });
}

/**
 * What the theorem needs of a selection, wherever the point is: { lacking, selected, rows, isLeading, a, gamma, high, longest, widest,
 * witness, weights, multipliers, mass, rest, sizes, turns, rate }, as in Python; only `lacking` where no proof can begin.
 */
export function planFor(problem, inputs, selected, steps, isUndecided) {
  const rows = rowsOf(problem, inputs, selected);
  const lead = rows.length === 0 ? null : shortestInNorm(rows.map(({ a }) => a), rows.map(() => 1), steps.power);
  if (lead === null || lead.status === INFEASIBLE) return { lacking: "INFEASIBLE" };
  const most = Math.max(...lead.multipliers);
  const carries = rows.map((_, r) => lead.multipliers[r] > CARRIES * most);
  const isForward = rows.map(({ delta }) => delta > 0);
  if (carries.some((does, r) => does && !isForward[r])) return { lacking: "SUPPORT_SCORES_HIGHER" };
  const leads = rows.map(({ a }) => dot(a, lead.x));
  const least = Math.min(...leads) * (1 + NEAR);
  let isLeading = rows.map((_, r) => (carries[r] || leads[r] <= least) && isForward[r]);
  for (;;) {
    if (isUndecided || rows.some(({ isNear }, r) => isLeading[r] && isNear)) return { lacking: "ROUNDING_DECIDES" };
    const plan = withLeading(rows, isLeading, steps);
    if (plan.lacking !== "OUTRUN") return { ...plan, selected };
    const others = Array.from(rows.keys()).filter((r) => !isLeading[r]);
    const fails = others.filter((_, k) => plan.rest[k] >= KEPT * plan.rate * plan.mass[k]);
    const forward = (list) => list.filter((r) => isForward[r]);
    const joining = forward(fails).length > 0 ? forward(fails) : forward(others);
    if (joining.length === 0) return plan;
    isLeading = isLeading.map((leading, r) => leading || joining.includes(r));
  }
}

/** γ, D and D₂ of leading rows, and the comparison of every other row with them. */
function withLeading(rows, isLeading, steps) {
  const { power, longest: length, momentum } = steps;
  const a = rows.filter((_, r) => isLeading[r]).map((row) => row.a);
  const rest = rows.filter((_, r) => !isLeading[r]).map((row) => row.a);
  const best = shortestInNorm(a, a.map(() => 1), power);
  if (best.status === INFEASIBLE) return { lacking: "INFEASIBLE" };
  const size = powerNorm(best.x, power) * (1 + ROOM);
  const total = best.multipliers.reduce((sum, weight) => sum + weight, 0);
  const weights = Array.from(best.multipliers, (weight) => weight / total);
  const combined = (weights) => [0, 1].map((k) => a.reduce((sum, row, s) => sum + weights[s] * row[k], 0));
  const compared = rest.map((row) => multipliersOf(row, a, power));
  const plan = {
    lacking: NOTHING,
    rows,
    isLeading,
    a,
    gamma: Math.min(...a.map((row) => dot(row, best.x))) / size,
    high: dualNorm(combined(weights), power),
    witness: Array.from(best.x, (entry) => entry / size),
    weights,
    longest: Math.max(...a.map((row) => dualNorm(row, power))),
    widest: Math.max(0, ...a.flatMap((row, r) => a.slice(0, r).map((other) => dualNorm([row[0] - other[0], row[1] - other[1]], power)))),
    multipliers: compared,
    mass: compared.map((weights) => weights.reduce((sum, weight) => sum + weight, 0) - 1),
    rest: rest.map((row, k) => dualNorm(combined(compared[k]).map((entry, l) => row[l] - entry), power)),
    sizes: rest.map((row) => dualNorm(row, power)),
    turns: { duals: [], values: [], slopes: [] },
  };
  const judged = judgedPlan(plan, steps);
  const isSharper = (length * plan.widest ** 2) / 8 > WORTH * plan.gamma && momentum === 0 && (power === 1 || power === Infinity);
  if (judged.lacking === NOTHING || !isSharper) return judged;
  const needed = Math.max(0, ...plan.rest.map((value, k) => (plan.mass[k] > 0 ? value / (KEPT * plan.mass[k]) : Infinity)));
  const turns = { duals: new Float64Array(3 * N_VERTICES), values: new Float64Array(N_VERTICES), slopes: new Float64Array(N_VERTICES) };
  const sizes = { n_leading: a.length, d: 2, n_turns: N_VERTICES };
  callCore("bound_vertex_steps", { rows: a.flat(), by_signs: Number(power === Infinity), gamma: plan.gamma, length, needed, ...turns, ...sizes });
  const turning = judgedPlan({ ...plan, turns }, steps);
  return turning.rate > judged.rate ? turning : judged;
}

function numbersOf(plan, steps, steepness = 0, radius = 0) {
  return { gamma: plan.gamma, longest: plan.longest, widest: plan.widest, length: steps.longest, momentum: steps.momentum, steepness, radius };
}

/** The plan with the rate at which steps lower the potential, and with what is lacking wherever the point is. */
function judgedPlan(plan, steps) {
  const { values, slopes } = plan.turns;
  const fall = new Float64Array(1);
  callCore("find_least_fall", { numbers: numbersOf(plan, steps), values, slopes, nu: 0, fall, n_turns: values.length });
  const [rate] = fall;
  if (!(rate > 0)) return { ...plan, rate, lacking: steps.momentum > 0 ? "REMEMBERS_TOO_MUCH" : "STEPS_TOO_LONG" };
  return { ...plan, rate, lacking: plan.rest.some((value, k) => value >= KEPT * rate * plan.mass[k]) ? "OUTRUN" : NOTHING };
}

/** μ, by which a row compares with leading rows. */
function multipliersOf(row, a, power) {
  const behind = a.map((other) => [other[0] - row[0], other[1] - row[1]]);
  const solved = shortestInNorm([...a, ...behind], [...a.map(() => 1), ...a.map(() => 0)], power);
  const weights = Array.from(solved.certificate ?? solved.multipliers, (weight) => (weight > 0 ? weight : 0));
  const total = weights.slice(a.length).reduce((sum, weight) => sum + weight, 0);
  return a.map((_, s) => (total > 0 ? (weights[s] + weights[a.length + s]) / total : 0));
}

/**
 * Whether the theorem proves at a point that the tokens of a plan are selected for ever: { lacking, proof }, lacking being NOTHING and the proof
 * its numbers where it does. past: the points before the last steps that momentum remembers, the latest one last.
 */
export function placeAt(problem, plan, point, steps, past) {
  if (plan.lacking !== NOTHING) return { lacking: plan.lacking };
  const { rows, isLeading, a, multipliers, rest, sizes, turns } = plan;
  const { values, slopes } = turns;
  const tolerance = TOLERANCE * powerNorm(point, steps.power);
  const numbers = numbersOf(plan, steps, problem.code === CORRELATION ? 0 : 1, tolerance);
  const rate = new Float64Array(1);
  const given = { rows: rows.flatMap((row) => row.a), delta: rows.map(({ delta }) => delta), log_slope: rows.map((row) => row.logSlope) };
  const compared = { leading: isLeading.map(Number), multipliers: multipliers.flat(), rest, sizes, values, slopes };
  const shape = { m: rows.length, d: 2, n_others: rest.length, n_leading: a.length, n_turns: values.length, n_inputs: problem.n };
  const memory = rememberedAt(problem, plan, point, steps, past);
  const remembered = [memory.size, memory.error, memory.distance];
  const at = { input: rows.map(({ input }) => input), remembered, numbers, point, others: new Float64Array(problem.n), rate };
  callCore("find_steepest_rate", { ...given, ...compared, ...at, ...shape });
  if (!(rate[0] > 0)) return { lacking: "WEIGHTS_TOO_LARGE" };
  const { longest, limit, taken } = steps;
  const { selected, witness, weights } = plan;
  const bracket = { low: (limit > 0 ? plan.rate : plan.gamma) - ROOM * plan.gamma, high: plan.high * (1 + ROOM) };
  const lengths = { longest, limit, taken, rate: rate[0], ...bracket };
  const leading = rows.filter((_, r) => isLeading[r]).map(({ input, token }) => [input, token]);
  const compare = { leading, witness, weights, multipliers: multipliers.flat(), turns: Array.from(turns.duals) };
  const before = { memory: memory.total, remembered: memory.weights };
  return { lacking: NOTHING, proof: { citation: "X Thm 4", point, tolerance, selected, ...lengths, ...compare, ...before } };
}

/** What momentum remembers before a point, { total, weights }, its size, its error, and how far its mean is from that of the potential. */
function rememberedAt(problem, { rows, isLeading, a }, point, { power, momentum }, past) {
  if (momentum === 0) return { total: [0, 0], weights: a.map(() => 0), size: 0, error: 0, distance: 0 };
  const logLimit = rows.filter((_, r) => isLeading[r]).map((row) => row.logSlope + Math.log(row.delta));
  const terms = (x) => a.map((row, s) => logLimit[s] - dot(row, x));
  const weights = new Float64Array(a.length);
  const total = new Float64Array(2);
  past.forEach((x, k) => {
    const share = momentum ** (past.length - 1 - k);
    const { gradient } = derivativesAt(problem, x);
    gradient.forEach((entry, l) => (total[l] -= share * entry));
    terms(x).forEach((term, s) => (weights[s] += share * Math.exp(term)));
  });
  const size = weights.reduce((sum, weight) => sum + weight, 0);
  if (size === 0) return { total, weights, size, error: norm(total) > 0 ? Infinity : 0, distance: 0 };
  const mean = [0, 1].map((k) => a.reduce((sum, row, s) => sum + (weights[s] / size) * row[k], 0));
  const here = terms(point);
  const top = Math.max(...here);
  const powers = here.map((term) => Math.exp(term - top));
  const mass = powers.reduce((sum, term) => sum + term, 0);
  const centre = [0, 1].map((k) => a.reduce((sum, row, s) => sum + (powers[s] / mass) * row[k], 0));
  const apart = (x, y) => dualNorm([x[0] - y[0], x[1] - y[1]], power);
  return { total, weights, size, error: apart([total[0] / size, total[1] / size], mean), distance: apart(mean, centre) };
}
