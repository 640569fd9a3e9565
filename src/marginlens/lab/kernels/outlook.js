// Where training ends, computed as `ml.predict` does: the run is followed until a theorem gives its limit, or until nothing seems to change it.

import { failedCondition } from "./checker/proofs.js";
import { callCore } from "./core.js";
import { loopOf, measurePoint, RAN_ALL } from "./descent.js";
import { AT_MINIMUM, convexBall, Flow, GOES_ON } from "./flow.js";
import { angleBetween, norm, unit } from "./linalg.js";
import { attSvm, directionOf, marginOf, OPTIMAL } from "./margin.js";
import { normOfOptimizer, planeNormSvm } from "./norms.js";
import { dependentInputs, selectionAt, sharpDifferences, undecidedInputs } from "./optimality.js";
import { placesOf } from "./problem.js";
import { CORRELATION, logSlope } from "./softmax.js";
import { LASTING, NOT_SELECTED, NOTHING, nRemembered, placeAt, planFor, steepestSteps } from "./steepest.js";

const FIRST_STEPS = 16; // after which a point is looked at for the first time, and then after √2 times as many steps each
const MAX_STEPS = { "normalized-gd": 1_000_000, "gradient-descent": 100_000 }; // of runs that X Theorem 1 covers; a test compares them with Python's
const FIRST_STEEPEST_STEPS = 64; // the same of other optimizers, and then after twice as many each
const MAX_STEEPEST_STEPS = 65_536;
const SURE_LEAD = 20; // of the selected logits, beyond which other tokens get less than 2e-9 of the attention
const MAX_OTHER_STEPS = 10_000; // of other runs, or as many as the page plays
const MAX_SCORE = 300; // beyond which slopes of the loss are near the smallest numbers there are
const FIRST_WAY = 8; // the length of the flow until it is first looked at, over the largest distance of two keys, and then twice as far each time
const MAX_DOUBLINGS = 12;
const CHUNK_STEPS = 1024; // between two looks at the clock
const SAME_LEAD_RTOL = 1e-9; // leads that differ by less are equal, and the first token has them: those on the margin differ by rounding alone
const BLUR = 1e-6; // radius of the ball around a point that a tube has to hold, relative to the point's norm
const NUDGE = 1e-13; // of the start, relative to a step or to the start, to see how much a run amplifies rounding errors
const FLOW_NUDGE = 1e-7; // the same for the flow, relative to the start or to the inverse of the largest distance
const NUDGED_TOWARDS = [0.6894137976242852, -0.7243677350940343]; // in which direction: Python's
const NO_MULTIPLIER = 1e-9; // share of the largest multiplier below which a token carries nothing of the margin

/** By the core's outcomes, then those that are found here. */
const MISSING = [
  NOTHING, "SUPPORT_SCORES_HIGHER", "DEPENDENT_SUPPORT", "TIGHT_WITHOUT_WEIGHT", "WEIGHTS_TOO_LARGE", "OUTWEIGHED", "TUBE_TOO_STEEP",
  "TUBE_TOO_NARROW", "INFEASIBLE", "TIED", "ROUNDING_DECIDES",
];
const UNDECIDED = ["INFEASIBLE", "TIED", "SUPPORT_SCORES_HIGHER", "ROUNDING_DECIDES"]; // with these, the tokens that lead may not be those of the end

/**
 * Whether a point lies in a tube around the ray of the max-margin direction of the tokens that lead there, which plain or normalised steps
 * never leave: { missing, selected, direction, proof }, missing being "NOTHING" where it does. isUndecided: whether rounding decides of an
 * input that was left out whether its output depends on p. optimizer: null for the flow.
 */
function findTube(problem, point, isUndecided, optimizer = problem.optimizer) {
  const { n, T, K, scores, lengths, code } = problem;
  const { selected, unique } = selectionAt(problem, point);
  const solution = attSvm(problem, selected);
  if (solution.status !== OPTIMAL || norm(point) === 0) return { missing: "INFEASIBLE", selected, direction: null };
  const size = norm(solution.x);
  const direction = directionOf(solution);
  const multipliers = new Float64Array(n * T);
  solution.others.forEach((at, r) => (multipliers[at] = solution.multipliers[r] / size));
  const { differences, near } = sharpDifferences(problem, selected);
  const carries = NO_MULTIPLIER * Math.max(...multipliers);
  const isNear = multipliers.some((weight, at) => weight > 0 && weight > carries && near[at]);
  const slopes = selected.map((t, i) => logSlope(code, scores[i * T + t]) - Math.log(n));
  const isNormalized = optimizer?.name === "normalized-gd";
  const blur = BLUR * norm(point);
  const found = { anchor: new Float64Array(2), constants: new Float64Array(7), outcome: new Int32Array(1) };
  callCore("find_tubes", {
    first: 0, last: 1, keys: K, scores: differences.map((gap) => -gap), offsets: new Float64Array(0), lengths, selected, log_slope: slopes, steepness: code === CORRELATION ? 0 : 1, multipliers,
    direction, margin: [marginOf(solution)], points: point, blur: [blur], normalized: Number(isNormalized), size: optimizer?.size ?? 0,
    ...found, batch: 1, n_inputs: n, n_tokens: T, d: 2, n_offsets: 0,
  });
  const outcome = isUndecided || isNear ? "ROUNDING_DECIDES" : MISSING[found.outcome[0]];
  const missing = unique ? outcome : "TIED";
  if (missing !== NOTHING) return { missing, selected, direction };
  const support = Array.from(multipliers.keys()).filter((at) => multipliers[at] > carries).map((at) => [Math.floor(at / T), at % T]);
  const [along, deviation, radius, growth, share, , progress] = found.constants;
  const constants = { along, deviation, radius, growth, share, progress };
  const proof = { citation: "X Thm 1", selected, support, direction, margin: marginOf(solution), point, tolerance: blur, ...constants };
  return { missing, selected, direction, proof };
}

/** A start moved by a length. */
function nudged(start, size) {
  return Float64Array.from(start, (entry, k) => entry + size * NUDGED_TOWARDS[k]);
}

/** The direction of widest margin that an optimizer heads for among those that select some tokens, null where it is not one. */
function headedFor(problem, selected) {
  const power = normOfOptimizer(problem.optimizer);
  const solution = power === 2 ? attSvm(problem, selected) : planeNormSvm(problem, selected, power);
  return solution.status === OPTIMAL && solution.isUnique !== false ? directionOf(solution) : null;
}

/**
 * The token of each input with several that comes closest to the selected one in the limit: { input, selected, token, lead, score, higher,
 * higherLead }, lead being by how much the selected token's logit leads per unit of norm, score by how much its score is higher, and
 * higher the nearest token of a higher score, null where there is none.
 */
export function rivalsOf(problem, selected, direction) {
  const { T, K, scores } = problem;
  return dependentInputs(problem).map((input) => {
    const chosen = input * T + selected[input];
    const others = placesOf(problem, input).filter((at) => at !== chosen);
    const lead = (at) => (K[2 * chosen] - K[2 * at]) * direction[0] + (K[2 * chosen + 1] - K[2 * at + 1]) * direction[1];
    const nearest = (places) => {
      const least = Math.min(...places.map(lead));
      return places.find((at) => lead(at) <= least + SAME_LEAD_RTOL * Math.abs(least));
    };
    const next = nearest(others);
    const above = nearest(others.filter((at) => scores[at] > scores[chosen]));
    const higher = above === undefined ? {} : { higher: above % T, higherLead: lead(above) };
    return { input, selected: selected[input], token: next % T, lead: lead(next), score: scores[chosen] - scores[next], higher: null, ...higher };
  });
}

/** A problem's largest distance between two keys of one input. */
function largestDistance(problem) {
  const { K, lengths } = problem;
  const apart = (s, t) => Math.hypot(K[2 * s] - K[2 * t], K[2 * s + 1] - K[2 * t + 1]);
  return Math.max(...Array.from(lengths.keys(), (i) => placesOf(problem, i)).flatMap((places) => places.flatMap((s) => places.map((t) => apart(s, t)))));
}

/** The smallest lead of the largest logit at a point, over some inputs. */
function smallestLead(problem, inputs, point) {
  const leads = inputs.map((i) => {
    const logits = placesOf(problem, i).map((at) => problem.K[2 * at] * point[0] + problem.K[2 * at + 1] * point[1]);
    const [first, second = -Infinity] = logits.sort((x, y) => y - x);
    return first - second;
  });
  return Math.min(Infinity, ...leads);
}

/** A run that is followed, with the points before the last steps where momentum remembers them: { point, status, past(count) }. */
class Followed {
  #loop;
  #state;
  #past = [];
  #kept; // how many points are

  constructor(problem, kept) {
    this.#loop = loopOf(problem);
    this.#state = new Float64Array(this.#loop.size);
    this.#kept = kept;
    this.status = this.#loop.begin(this.#state);
  }

  get point() {
    return this.#state.slice(this.#loop.width - 2, this.#loop.width);
  }

  /** The whole point: with the head where it is trained too. */
  get weights() {
    return this.#state.slice(0, this.#loop.width);
  }

  advance(from, to) {
    if (this.status !== RAN_ALL) return from;
    const wanted = this.#kept > 0 ? Array.from({ length: to - from - 1 }, (_, k) => from + k + 1) : [];
    const before = this.point;
    const { status, steps, points } = this.#loop.advance(this.#state, from, to, wanted);
    if (this.#kept > 0) this.#past.push(before, ...wanted.map((_, k) => points.slice(2 * k, 2 * k + 2)));
    if (this.#past.length > 2 * this.#kept + CHUNK_STEPS) this.#past = this.#past.slice(-this.#kept);
    this.status = status;
    return steps;
  }

  past(count) {
    return count > 0 ? this.#past.slice(-count) : [];
  }
}

/**
 * A run that is followed in slices of time, and what it has come to.
 *
 * `answer` is { kind, missing, selected, direction, point, norm, angle, steps, way, proof, verified, rivals, isKnown }, kind one of "nothing"
 * (no gradient), "found" (a proof), "found in part" (by the flow in place of plain steps), "finite" (the flow ends at a minimum),
 * "amplified" (rounding errors may lead the run elsewhere), "settled" (steepest steps that select tokens by a lead which nothing is
 * expected to change), "open", "optimizer" (which no theorem covers), "range" (scores too large) and "joint". isKnown is whether the tokens
 * are those of the end, as far as is known; direction is null where it is not known. error is how far the point moves when the start is
 * moved a little, as rounding may do.
 */
export class Outlook {
  #problem;
  #part; // the problem with one token left of every input whose output does not depend on p, so that it constrains nothing
  #dependent;
  #isUndecided; // whether rounding decides of an input that was left out whether its output depends on p
  #isSteepest; // whether the run is looked at by X Theorem 4, which covers most of these optimizers
  #run;
  #twin = null; // a run from a start that is moved a little, where the run is looked at
  #mark;
  #most;
  #flow = null; // { flow, count, way, part, optimizer } where the flow has taken over
  #end = null; // what the flow came to, { point, isFinite, error, way, proof }
  #plans = new Map();
  #answered = null; // the last answer, { steps, isDone, answer }
  #looked = null; // what was found at the last point that was looked at, { steps, … }

  constructor(problem) {
    const { joint, optimizer, start } = problem;
    this.#problem = problem;
    this.#dependent = joint ? Array.from(problem.lengths.keys()) : dependentInputs(problem);
    this.#part = { ...problem, lengths: problem.lengths.map((length, i) => (this.#dependent.includes(i) ? length : 1)) };
    const isFollowed = !joint && !problem.scores.some((score) => Math.abs(score) > MAX_SCORE);
    this.isCovered = isFollowed && optimizer.name in MAX_STEPS;
    this.#isSteepest = isFollowed && !this.isCovered;
    this.#mark = this.#isSteepest ? FIRST_STEEPEST_STEPS : FIRST_STEPS;
    const most = { steepest: MAX_STEEPEST_STEPS, covered: MAX_STEPS[optimizer.name], other: Math.max(MAX_OTHER_STEPS, problem.steps) };
    this.#most = most[this.#isSteepest ? "steepest" : this.isCovered ? "covered" : "other"];
    this.steps = 0;
    this.#isUndecided = !joint && undecidedInputs(problem).length > 0;
    this.isNothing = this.#dependent.length === 0;
    this.isDone = this.isNothing;
    const kept = this.#isSteepest ? nRemembered(steepestSteps(optimizer, 0).momentum, MAX_STEEPEST_STEPS) : 0;
    this.#run = new Followed(problem, kept);
    const nudge = NUDGE * Math.max(norm(start), this.#isSteepest ? 1 : optimizer.size);
    if (isFollowed) this.#twin = new Followed({ ...problem, start: nudged(start, nudge) }, kept);
  }

  get #point() {
    return this.#end?.point ?? this.#run.point;
  }

  /** How far the point lies from that of the run whose start is moved a little. */
  get #error() {
    if (this.#end !== null) return this.#end.error;
    const [x, y] = this.#run.point;
    const [u, v] = this.#twin?.point ?? [x, y];
    return Math.hypot(x - u, y - v);
  }

  /** How many steps of the run were followed. */
  get followed() {
    return this.steps;
  }

  /** Follow the run for some milliseconds, or to its end; whether there is something new to say. */
  advance(budget, now = () => performance.now()) {
    if (this.isDone) return false;
    const deadline = now() + budget;
    do {
      if (this.#flow !== null) this.#advanceFlow();
      else this.#advanceRun();
    } while (!this.isDone && now() < deadline);
    return true;
  }

  #advanceRun() {
    const end = Math.min(this.#mark, this.#most, this.steps + CHUNK_STEPS);
    const steps = this.#run.advance(this.steps, end);
    this.#twin?.advance(this.steps, end);
    const isOver = this.#run.status !== RAN_ALL || steps >= this.#most;
    this.steps = isOver && this.#twin ? Math.min(this.#mark, this.#most) : steps;
    if (!isOver && steps < this.#mark) return;
    this.#mark = this.#isSteepest ? 2 * this.#mark : Math.ceil(this.#mark * Math.SQRT2);
    if (this.#isSteepest) {
      const { isProved, isSettled, isLast } = this.#look();
      if (isLast) this.isDone = true;
      else if (isOver && (isProved || isSettled)) this.isDone = true;
      else if (isOver) this.#beginFlow(null);
    } else if (!this.isCovered) this.isDone = isOver;
    else if (this.#look().missing === NOTHING) this.isDone = true;
    else if (isOver) this.#beginFlow(this.#problem.optimizer);
  }

  /** Follow the flow from where the run has ended: to a finite minimum, perhaps, or for longer than plain steps can be followed. */
  #beginFlow(optimizer) {
    const size = largestDistance(this.#problem) || 1;
    this.#flow = { flow: new Flow(this.#problem, this.#run.point), count: 0, way: 0, part: FIRST_WAY / size, size, optimizer };
  }

  #advanceFlow() {
    const { flow, optimizer, size } = this.#flow;
    this.#flow.way += this.#flow.part;
    this.#flow.part *= 2;
    this.#flow.count++;
    flow.follow(this.#flow.way);
    const looked = { steps: this.steps, ...findTube(this.#part, flow.point, this.#isUndecided, optimizer) };
    const isFound = looked.missing === NOTHING;
    if (!isFound && flow.reason === GOES_ON && this.#flow.count < MAX_DOUBLINGS) return;
    this.isDone = true;
    const isFinite = flow.reason === AT_MINIMUM;
    if (!isFinite && optimizer?.name !== "gradient-descent") return;
    const { point } = flow;
    let error = 0;
    if (isFinite || isFound) {
      const start = this.#run.point;
      const twin = new Flow(this.#problem, nudged(start, FLOW_NUDGE * Math.max(norm(start), 1 / size)));
      twin.follow(this.#flow.way);
      error = Math.hypot(twin.point[0] - point[0], twin.point[1] - point[1]);
    }
    if (!isFinite) error = Math.max(error, this.#error);
    this.#looked = looked;
    this.#end = { point, isFinite, error, way: optimizer === null ? null : this.#flow.way, proof: isFinite ? convexBall(this.#problem, point) : null };
  }

  #look() {
    if (this.#looked?.steps === this.steps) return this.#looked;
    const found = this.#isSteepest ? this.#lookBySteepest() : findTube(this.#part, this.#point, this.#isUndecided);
    return (this.#looked = { steps: this.steps, ...found });
  }

  /** What X Theorem 4 says of the tokens that lead, and whether they lead by so much, on both runs, that nothing is expected to change. */
  #lookBySteepest() {
    const problem = this.#problem;
    const steps = steepestSteps(problem.optimizer, this.steps);
    const runs = [this.#run, this.#twin];
    const [here, there] = runs.map(({ point }) => selectionAt(problem, norm(point) > 0 ? point : [1, 1]));
    const plan = this.#plan(here.selected, steps);
    const isSame = here.unique && there.unique && this.#dependent.every((i) => here.selected[i] === there.selected[i]);
    const isSure = isSame && runs.every(({ point }) => smallestLead(problem, this.#dependent, point) > SURE_LEAD);
    const isSettled = isSure && !NOT_SELECTED.includes(plan.lacking);
    const past = nRemembered(steps.momentum, this.steps);
    const places = steps.isCovered ? runs.map((run) => placeAt(problem, plan, run.point, steps, run.past(past))) : [{ lacking: null }];
    const [{ lacking, proof }] = places;
    const isProved = steps.isCovered && isSame && places.every((place) => place.lacking === NOTHING);
    const isLast = isProved || (isSettled && (!steps.isCovered || LASTING.includes(plan.lacking)));
    const missing = lacking === NOTHING && !isProved ? "ROUNDING_DECIDES" : lacking; // as the moved run does not agree
    return { missing, selected: here.selected, isCovered: steps.isCovered, isProved, isSettled, isLast, proof: isProved ? proof : null };
  }

  #plan(selected, steps) {
    const key = JSON.stringify([selected, steps.longest]);
    if (!this.#plans.has(key)) this.#plans.set(key, planFor(this.#problem, this.#dependent, selected, steps, this.#isUndecided));
    return this.#plans.get(key);
  }

  get answer() {
    const { steps, isDone } = this;
    if (this.#answered?.steps !== steps || this.#answered.isDone !== isDone) {
      const answer = this.#answer();
      const proof = answer.proof ?? null;
      const verified = proof && failedCondition(this.#problem, proof) === null;
      this.#answered = { steps, isDone, answer: { ...answer, proof, verified } };
    }
    return this.#answered.answer;
  }

  #answer() {
    const problem = this.#problem;
    const point = this.#point;
    const shared = { steps: this.steps, way: this.#end?.way ?? null, point, norm: norm(point), isKnown: false, direction: null };
    if (this.isNothing && this.#isUndecided)
      return { kind: "open", ...shared, missing: "ROUNDING_DECIDES", selected: selectionAt(problem, point).selected };
    if (this.isNothing) return { kind: "nothing", missing: null, selected: [], ...shared };
    if (this.#end?.isFinite) return this.#atMinimum(shared);
    if (this.#isSteepest) return this.#bySteepest(shared);
    if (!this.isCovered) return this.#uncovered(shared);
    const looked = this.#look();
    const isFound = looked.missing === NOTHING;
    const direction = UNDECIDED.includes(looked.missing) ? null : looked.direction;
    const isAmplified = this.#error > BLUR * shared.norm;
    if (direction && isAmplified) return { kind: "amplified", ...looked, ...shared, error: this.#error };
    const known = direction && { isKnown: true, angle: angleBetween(point, direction), rivals: rivalsOf(problem, looked.selected, direction) };
    return { kind: isFound ? (this.#end ? "found in part" : "found") : "open", ...looked, ...shared, direction, ...known };
  }

  #atMinimum(shared) {
    const { proof, error } = this.#end;
    const isRepeatable = error <= (proof?.radius ?? BLUR * shared.norm);
    const { selected } = this.#look();
    return { kind: isRepeatable ? "finite" : "amplified", missing: null, selected, ...shared, proof, isFinite: true, error };
  }

  #bySteepest(shared) {
    const problem = this.#problem;
    const { isProved, isSettled, isCovered, missing, selected, proof } = this.#look();
    const kind = isProved ? "found" : !isCovered ? "optimizer" : isSettled ? "settled" : "open";
    const answer = { kind, bySteepest: true, missing, selected, proof, ...shared };
    if (!(isProved || isSettled)) return answer;
    const direction = headedFor(this.#part, selected);
    const angle = direction === null ? null : angleBetween(shared.point, direction);
    return { ...answer, isKnown: true, direction, angle, rivals: rivalsOf(problem, selected, unit(shared.point)) };
  }

  /** The tokens that lead on a run that no theorem covers, and the direction that the optimizer heads for among those that select them. */
  #uncovered(shared) {
    const problem = this.#problem;
    const { selected } = measurePoint(this.#part, this.#run.weights);
    if (problem.joint) return { kind: "joint", missing: null, selected, ...shared, isKnown: true };
    const direction = headedFor(this.#part, selected);
    const known = direction && { angle: angleBetween(shared.point, direction), rivals: rivalsOf(problem, selected, direction) };
    return { kind: "range", missing: null, selected, ...shared, isKnown: true, direction, ...known };
  }
}
