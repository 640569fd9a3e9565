// Where training ends, computed as `ml.predict` does: the run is followed until a tube is found that it never leaves (X Theorem 1).

import { callCore } from "./core.js";
import { loopOf, measurePoint, NORM_CODES, RAN_ALL } from "./descent.js";
import { angleBetween, norm } from "./linalg.js";
import { attSvm, directionOf, marginOf, OPTIMAL } from "./margin.js";
import { normOfOptimizer, planeNormSvm } from "./norms.js";
import { dependentInputs, selectionAt, sharpDifferences, undecidedInputs } from "./optimality.js";
import { placesOf } from "./problem.js";
import { CORRELATION, logSlope } from "./softmax.js";

const FIRST_STEPS = 16; // after which a point is looked at for the first time, and then after √2 times as many steps each
const MAX_STEPS = { "normalized-gd": 1_000_000, "gradient-descent": 100_000 }; // of runs that a theorem covers; a test compares them with Python's
const MAX_OTHER_STEPS = 10_000; // of other runs, or as many as the page plays
const MAX_SCORE = 300; // beyond which slopes of the loss are near the smallest numbers there are
const FLOW_STEP = 0.05; // of the short steps that stand for the flow, over the largest distance of two keys
const MAX_FLOW_STEPS = 200_000;
const LONG_RUN = 10_000; // steps after which it is first asked whether the run stays near a finite minimum
const ENDING_STEPS = 6000; // that grow shorter, to find that out
const ENDING_DECAY = 0.6;
const STAYING = 0.02; // share of the way of their second half up to which they have stayed where they were
const CHUNK_STEPS = 1024; // between two looks at the clock
const SAME_LEAD_RTOL = 1e-9; // leads that differ by less are equal, and the first token has them: those on the margin differ by rounding alone
const BLUR = 1e-6; // radius of the ball around a point that a tube has to hold, relative to the point's norm
const NUDGE = 1e-13; // of the start, relative to a step or to the start, to see how much a run amplifies rounding errors
const FLOW_NUDGE = 1e-7; // the same for short steps that stand for the flow, relative to the start or to the inverse of the largest distance
const NUDGED_TOWARDS = [0.6894137976242852, -0.7243677350940343]; // in which direction: Python's
const NO_MULTIPLIER = 1e-9; // share of the largest multiplier below which a token carries nothing of the margin

/** By the core's outcomes, then those that are found here. */
const MISSING = [
  "NOTHING", "SUPPORT_SCORES_HIGHER", "DEPENDENT_SUPPORT", "TIGHT_WITHOUT_WEIGHT", "WEIGHTS_TOO_LARGE", "OUTWEIGHED", "TUBE_TOO_STEEP",
  "TUBE_TOO_NARROW", "INFEASIBLE", "TIED", "ROUNDING_DECIDES",
];
const UNDECIDED = ["INFEASIBLE", "TIED", "SUPPORT_SCORES_HIGHER", "ROUNDING_DECIDES"]; // with these, the tokens that lead may not be those of the end

/**
 * Whether a point lies in a tube around the ray of the max-margin direction of the tokens that lead there, which plain or normalised steps
 * never leave: { missing, selected, direction, radius }, missing being "NOTHING" where it does. isUndecided: whether rounding decides of an
 * input that was left out whether its output depends on p.
 */
function findTube(problem, point, isUndecided) {
  const { n, T, K, scores, lengths, code, optimizer } = problem;
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
  const isNormalized = optimizer.name === "normalized-gd";
  const found = { anchor: new Float64Array(2), constants: new Float64Array(7), outcome: new Int32Array(1) };
  callCore("find_tubes", {
    first: 0, last: 1, keys: K, scores: differences.map((gap) => -gap), lengths, selected, log_slope: slopes, steepness: code === CORRELATION ? 0 : 1, multipliers,
    direction, margin: [marginOf(solution)], points: point, blur: [BLUR * norm(point)], normalized: Number(isNormalized), size: optimizer.size,
    ...found, batch: 1, n_inputs: n, n_tokens: T, d: 2,
  });
  const outcome = isUndecided || isNear ? "ROUNDING_DECIDES" : MISSING[found.outcome[0]];
  return { missing: unique ? outcome : "TIED", selected, direction, radius: found.constants[2] };
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

/**
 * A run that is followed in slices of time, and what it has come to.
 *
 * `answer` is { kind, missing, selected, direction, point, norm, angle, steps, way, radius, rivals }, kind one of "nothing" (no gradient),
 * "found" (a tube, in double precision, which nothing here verifies), "found in part" (by short steps in place of plain ones), "finite"
 * (steps that grow shorter stay), "amplified" (rounding errors may lead the run elsewhere), "open", "elsewhere" (X Theorem 4, whose
 * proofs Python finds), "optimizer" (which no theorem covers), "range" (scores too large) and "joint". direction is null where it is not
 * known. error is how far the point moves when the start is moved a little, as rounding may do.
 */
export class Outlook {
  #problem;
  #part; // the problem with one token left of every input whose output does not depend on p, so that it constrains nothing
  #isUndecided; // whether rounding decides of an input that was left out whether its output depends on p
  #loop;
  #state;
  #status;
  #twin = null; // { loop, state } of a run from a start that is moved a little, where a theorem covers the run
  #mark = FIRST_STEPS;
  #most;
  #flow = null; // { begun, size, error } where short steps have taken over
  #staying = null; // the radius within which shorter and shorter steps have stayed, null where they have not
  #answered = null; // the last answer, { steps, isDone, answer }
  #looked = null; // what was found at the last point that was looked at, { steps, … }

  constructor(problem) {
    this.#problem = problem;
    const dependent = problem.joint ? Array.from(problem.lengths.keys()) : dependentInputs(problem);
    this.#part = { ...problem, lengths: problem.lengths.map((length, i) => (dependent.includes(i) ? length : 1)) };
    const isFar = !problem.joint && problem.scores.some((score) => Math.abs(score) > MAX_SCORE);
    this.isCovered = !problem.joint && problem.optimizer.name in MAX_STEPS && !isFar;
    this.#most = this.isCovered ? MAX_STEPS[problem.optimizer.name] : Math.max(MAX_OTHER_STEPS, problem.steps);
    this.steps = 0;
    this.isNothing = dependent.length === 0;
    this.#isUndecided = !problem.joint && undecidedInputs(problem).length > 0;
    this.isDone = this.isNothing;
    this.#begin(problem, NUDGE * Math.max(norm(problem.start), problem.optimizer.size));
  }

  #begin(problem, nudge) {
    const begun = (start) => {
      const loop = loopOf({ ...problem, start });
      const state = new Float64Array(loop.size);
      return { loop, state, status: loop.begin(state) };
    };
    ({ loop: this.#loop, state: this.#state, status: this.#status } = begun(problem.start));
    if (this.isCovered) this.#twin = begun(nudged(problem.start, nudge));
  }

  get #point() {
    return this.#state.slice(this.#loop.width - 2, this.#loop.width);
  }

  /** How far the point lies from that of the run whose start is moved a little. */
  get #error() {
    const [x, y] = this.#point;
    const [u, v] = this.#twin?.state ?? [x, y];
    return Math.max(Math.hypot(x - u, y - v), this.#flow?.error ?? 0);
  }

  /** How many steps of the run itself were followed, before short ones took over. */
  get followed() {
    return this.#flow?.begun ?? this.steps;
  }

  /** Follow the run for some milliseconds, or to its end; whether there is something new to say. */
  advance(budget, now = () => performance.now()) {
    if (this.isDone) return false;
    const deadline = now() + budget;
    do {
      const begun = this.#flow?.begun ?? 0;
      const end = Math.min(this.#mark, this.#most, this.steps - begun + CHUNK_STEPS);
      const { status, steps } = this.#loop.advance(this.#state, this.steps - begun, end);
      this.#twin?.loop.advance(this.#twin.state, this.steps - begun, steps);
      [this.#status, this.steps] = [status, begun + steps];
      const isOver = status !== RAN_ALL || steps >= this.#most;
      if (!isOver && steps < this.#mark) continue;
      this.#mark = Math.ceil(this.#mark * Math.SQRT2);
      if (this.isCovered && this.#look().missing === "NOTHING") [this.isDone, this.#staying] = [true, null];
      else if (isOver) this.#end();
      else if (steps >= LONG_RUN && steps < LONG_RUN * Math.SQRT2) this.#staying = this.#ending();
    } while (!this.isDone && now() < deadline);
    return true;
  }

  /** A run that has ended without a tube: plain steps are followed on by short ones, as the flow goes. */
  #end() {
    const { optimizer, K, joint } = this.#problem;
    const keys = Array.from({ length: K.length / 2 }, (_, at) => [K[2 * at], K[2 * at + 1]]);
    const widest = Math.max(...keys.flatMap(([x, y]) => keys.map(([u, v]) => Math.hypot(x - u, y - v))));
    this.isDone = joint || optimizer.name !== "gradient-descent" || this.#flow !== null;
    if (this.isDone) {
      this.#staying = joint ? null : this.#ending();
      return;
    }
    const short = { name: "normalized-gd", size: FLOW_STEP / widest };
    const start = this.#point;
    this.#flow = { begun: this.steps, size: short.size, error: this.#error };
    [this.#mark, this.#most] = [FIRST_STEPS, MAX_FLOW_STEPS];
    this.#begin({ ...this.#problem, start, optimizer: short }, FLOW_NUDGE * Math.max(norm(start), 1 / widest));
  }

  #look() {
    if (this.#looked?.steps !== this.steps) this.#looked = { steps: this.steps, ...findTube(this.#part, this.#point, this.#isUndecided) };
    return this.#looked;
  }

  /** How far steps that grow shorter and shorter are apart in the end, null where they go on. */
  #ending() {
    const size = this.#problem.optimizer.name === "normalized-gd" ? this.#problem.optimizer.size : FLOW_STEP;
    const loop = loopOf({ ...this.#problem, start: this.#point, optimizer: { name: "steepest-descent", p: 2, size, decay: ENDING_DECAY } });
    const state = new Float64Array(loop.size);
    loop.begin(state);
    const { points } = loop.advance(state, 0, ENDING_STEPS, [ENDING_STEPS / 2, ENDING_STEPS]);
    const moved = points.length < 4 ? 0 : Math.hypot(points[2] - points[0], points[3] - points[1]);
    const way = (size * ENDING_STEPS ** (1 - ENDING_DECAY) * (1 - 0.5 ** (1 - ENDING_DECAY))) / (1 - ENDING_DECAY);
    return moved <= STAYING * way ? moved : null;
  }

  get answer() {
    const { steps, isDone } = this;
    if (this.#answered?.steps !== steps || this.#answered.isDone !== isDone) this.#answered = { steps, isDone, answer: this.#answer() };
    return this.#answered.answer;
  }

  #answer() {
    const problem = this.#problem;
    const point = this.#point;
    const shared = { steps: this.steps, way: this.#flow && (this.steps - this.#flow.begun) * this.#flow.size, point, norm: norm(point) };
    const isAmplified = this.#error > BLUR * shared.norm;
    if (this.isNothing && this.#isUndecided)
      return { kind: "open", missing: "ROUNDING_DECIDES", selected: selectionAt(problem, point).selected, direction: null, ...shared };
    if (this.isNothing) return { kind: "nothing", missing: null, selected: [], direction: null, ...shared };
    const looked = this.isCovered ? this.#look() : { missing: null, ...this.#leading() };
    const isFound = looked.missing === "NOTHING";
    if (this.#staying !== null) return { kind: "finite", ...looked, ...shared, direction: null, radius: this.#staying };
    const direction = UNDECIDED.includes(looked.missing) ? null : looked.direction;
    if (direction && isAmplified) return { kind: "amplified", ...looked, ...shared, direction: null, error: this.#error };
    const known = direction && !problem.joint ? { angle: angleBetween(point, direction), rivals: rivalsOf(problem, looked.selected, direction) } : {};
    const uncovered = problem.optimizer.name in NORM_CODES ? "elsewhere" : "optimizer";
    const open = problem.joint ? "joint" : this.isCovered ? "open" : problem.optimizer.name in MAX_STEPS ? "range" : uncovered;
    return { kind: isFound ? (this.#flow ? "found in part" : "found") : open, ...looked, ...shared, direction, ...known };
  }

  /** The tokens that lead, and the direction that the optimizer heads for among those that select them. */
  #leading() {
    const { selected } = measurePoint(this.#part, this.#state.slice(0, this.#loop.width));
    return { selected, direction: this.#problem.joint ? null : headedFor(this.#part, selected) };
  }
}
