// The conditions of X Theorems 1, 2 and 4 in intervals, in the plane: the paragraphs of docs/proofs/attraction.md and docs/proofs/any_norm.md in
// their order and letters. The lab calls a result proved only if this agrees.
//
// It imports nothing but intervals.js and shares no code with the search. It takes nothing on trust: of a problem it reads the numbers that were
// given, and every number of a proof is compared with an interval computed from them.

import {
  add, cross, divide, dot, exp, isSameProduct, largest, log, modulus, multiply, negative, normBound, real, root, smallest, square, subtract, sum,
} from "./intervals.js";

const STATED = 1e-9; // by how much the entries of a stated direction, and a stated margin as a share of it, may differ from the exact ones
const SLOW = 0.1; // share of R² from which on a row makes the tube grow; the theorem allows any
const E = exp(1);
const PLANE = [0, 1];
const POWERS = { "sign-descent": () => Infinity, "coordinate-descent": () => 1, "steepest-descent": ({ p }) => p };
const CHECKS = { "X Thm 1": checkTube, "X Thm 2": checkMinimum, "X Thm 4": checkSteepest };

class NotProved extends Error {}

const LOSSES = ["logistic", "exponential", "correlation-loss"]; // that the bounds below are for

function need(condition, holds) {
  if (!holds) throw new NotProved(condition);
}

const isBelow = (x, y) => real(x)[1] < real(y)[0];
const isAtMost = (x, y) => real(x)[1] <= real(y)[0];
const exactly = (x) => Array.from(x, real);

/** The first condition of a proof that does not hold for certain, null if the proof is right: { citation, …numbers } about a problem. */
export function failedCondition(problem, proof) {
  try {
    need("loss", LOSSES.includes(problem.loss));
    CHECKS[proof.citation](problem, proof);
    return null;
  } catch (error) {
    if (error instanceof NotProved) return error.message;
    throw error;
  }
}

/** Numbers of a proof that are finite, and of at least some size. */
function needNumbers(proof, names, isAllowed = () => true) {
  for (const name of names) need(name, Number.isFinite(proof[name]) && isAllowed(proof[name]));
}

function needList(proof, name, length, least = -Infinity) {
  const list = proof[name];
  need(name, list?.length === length && Array.from(list).every((entry) => Number.isFinite(entry) && entry >= least));
}

const needPositive = (proof, names) => needNumbers(proof, names, (value) => value > 0);
const needNotNegative = (proof, names) => needNumbers(proof, names, (value) => value >= 0);

// ---- the problem

const keyOf = ({ K }, at) => exactly(K.slice(2 * at, 2 * at + 2));
const apart = (x, y) => PLANE.map((k) => subtract(x[k], y[k]));
const lengthOf = (x) => root(sum(x.map(square)));

/** γ of the token at a place: y v·x, or as given. */
function scoreOf({ given, X, T, y, head }, at) {
  return given ? real(given[at]) : multiply(y[Math.floor(at / T)], dot(exactly(X.slice(2 * at, 2 * at + 2)), exactly(head)));
}

/** -ℓ' at a margin. */
function slopeAt({ loss }, margin) {
  if (loss === "logistic") return divide(1, add(1, exp(margin)));
  return loss === "exponential" ? exp(negative(margin)) : real(1);
}

const steepnessOf = ({ loss }) => (loss === "correlation-loss" ? 0 : 1); // Λ

/** Whether the output of an input depends on p: its keys differ, and its scores. */
function isDependent(problem, places) {
  const { K, X, given, head } = problem;
  const [first] = places;
  const vector = (at) => X.slice(2 * at, 2 * at + 2);
  const isSame = (at) => (given ? given[at] === given[first] : isSameProduct(vector(at), vector(first), head));
  return places.some((at) => K[2 * at] !== K[2 * first] || K[2 * at + 1] !== K[2 * first + 1]) && !places.every(isSame);
}

/** The rows of a selection, { input, token, a, delta, c }: a_r, Δ_r and c_i^∞. */
function rowsOf(problem, selected) {
  const { n, T, lengths } = problem;
  need("selected", selected?.length === n && Array.from(selected).every((t, i) => Number.isInteger(t) && t >= 0 && t < lengths[i]));
  return Array.from(lengths).flatMap((length, input) => {
    const tokens = Array.from({ length }, (_, token) => token);
    if (!isDependent(problem, tokens.map((token) => input * T + token))) return [];
    const chosen = input * T + selected[input];
    const score = scoreOf(problem, chosen);
    const c = divide(slopeAt(problem, score), n);
    return tokens.filter((token) => token !== selected[input]).map((token) => {
      const at = input * T + token;
      return { input, token, a: apart(keyOf(problem, chosen), keyOf(problem, at)), delta: subtract(score, scoreOf(problem, at)), c };
    });
  });
}

/** Rows that a proof names as [input, token], in their order, and the others. */
function named(rows, names, what) {
  const isNamed = ({ input, token }) => names.some(([i, t]) => i === input && t === token);
  const found = rows.filter(isNamed);
  const isNext = ({ input, token }, r) => names[r].length === 2 && names[r][0] === input && names[r][1] === token;
  need(what, found.length > 0 && found.length === names.length && found.every(isNext));
  need(`${what} scores`, found.every(({ delta }) => isBelow(0, delta)));
  return [found, rows.filter((row) => !isNamed(row))];
}

/** To each row ε_i, the sum of bounds φ_r over its input, and Δ_i^+ and Δ_i^-. */
function addInputBounds(rows) {
  for (const input of new Set(rows.map((row) => row.input))) {
    const own = rows.filter((row) => row.input === input);
    const eps = sum(own.map(({ phi }) => phi));
    const plus = largest([0, ...own.map(({ delta }) => delta)]);
    const minus = largest([0, ...own.map(({ delta }) => negative(delta))]);
    need("epsilon", isBelow(eps, 1));
    for (const row of own) Object.assign(row, { eps, plus, minus });
  }
}

/** A bound on |Δ_r - Σ sΔ|, and one on c_i. */
const leadOf = ({ delta, eps, plus, minus }) => add(modulus(delta), multiply(eps, largest([plus, minus])));
const pullOf = ({ c, eps, plus }, steep) => multiply(c, exp(multiply(steep, eps, plus)));

// ---- X Theorem 1

function checkTube(problem, proof) {
  const { optimizer } = problem;
  const isNormalized = optimizer.name === "normalized-gd";
  need("optimizer", isNormalized || optimizer.name === "gradient-descent");
  needPositive(proof, ["margin", "radius", "share", "progress"]);
  needNotNegative(proof, ["tolerance", "deviation", "growth"]);
  needNumbers(proof, ["along"]);
  need("share", proof.share < 1);
  needList(proof, "point", 2);
  needList(proof, "direction", 2);
  const { radius: R, growth: K, share: psi, progress, along: P0, tolerance } = proof;
  const point = exactly(proof.point);
  const steep = steepnessOf(problem);
  const rows = rowsOf(problem, proof.selected);
  const [S, beyond] = named(rows, proof.support, "support");
  need("independent", S.length <= 2);

  // Eq. (1): p^mm with a·p^mm = 1 on S, θ = 1/‖p^mm‖, p̄ = θ p^mm and λ = θ w with p^mm = Σ w a.
  const [a, b] = S.map((row) => row.a);
  const det = b && cross(a, b);
  const shortest = b ? [divide(subtract(b[1], a[1]), det), divide(subtract(a[0], b[0]), det)] : a.map((entry) => divide(entry, dot(a, a)));
  const weights = b ? [divide(cross(shortest, b), det), divide(cross(a, shortest), det)] : [divide(1, dot(a, a))];
  need("multipliers", weights.every((weight) => isBelow(0, weight)));
  const theta = divide(1, lengthOf(shortest));
  const ray = shortest.map((entry) => multiply(theta, entry));
  for (const row of rows) {
    row.along = S.includes(row) ? theta : dot(ray, row.a);
    row.sigma = S.includes(row) ? real(0) : subtract(row.along, theta);
    row.side = cross(ray, row.a);
    row.wide = modulus(row.side);
  }
  need("beyond the margin", beyond.every(({ sigma }) => isBelow(0, sigma)));
  need("direction", PLANE.every((k) => isAtMost(modulus(subtract(ray[k], proof.direction[k])), STATED)));
  need("margin", isAtMost(modulus(subtract(proof.margin, theta)), multiply(STATED, theta)));

  // The anchor q*, which in the plane is a multiple z of the vector orthogonal to p̄.
  const rho = S.map((row, r) => log(divide(multiply(row.c, row.delta), multiply(theta, weights[r]))));
  const level = multiply(square(theta), dot(weights, rho));
  const z = b ? divide(subtract(rho[0], level), S[0].side) : real(0);
  for (const row of rows) row.at = multiply(row.side, z);
  need("along", isAtMost(P0, subtract(dot(ray, point), tolerance)));
  need("deviation", isAtMost(add(modulus(subtract(cross(ray, point), z)), tolerance), proof.deviation));

  // Bounds in the tube, Eqs (3) and (4).
  for (const row of rows) row.phi = exp(subtract(multiply(row.wide, R), add(multiply(row.along, P0), row.at)));
  addInputBounds(rows);
  const lost = ({ eps, plus, delta }) => divide(multiply(eps, plus), delta);
  need("support stays forward", S.every((row) => isBelow(lost(row), 1)));
  const more = largest(S.map((row) => multiply(row.eps, add(multiply(steep, row.plus), divide(row.minus, row.delta)))));
  const less = largest(S.map((row) => subtract(multiply(row.eps, steep, row.minus), add(log(subtract(1, row.eps)), log(subtract(1, lost(row)))))));
  const mu = add(more, less);

  // Eqs (5) to (7): o_r of forward rows and τ_r of backward ones. Eq. (8): θ'.
  const forward = beyond.filter(({ delta, eps, plus }) => isBelow(0, delta) && isBelow(multiply(eps, plus), delta));
  const backward = beyond.filter((row) => !forward.includes(row));
  for (const row of beyond) {
    const mass = multiply(theta, pullOf(row, steep), exp(negative(sum([level, multiply(row.sigma, P0), row.at]))));
    row.o = multiply(mass, add(row.delta, multiply(row.eps, row.minus)));
    row.tau = multiply(mass, leadOf(row), exp(add(multiply(row.wide, R), less)));
  }
  const sumOver = (list, term) => sum(list.map(term));
  need("progress", isAtMost(add(progress, sumOver(backward, ({ tau, along }) => multiply(tau, along))), theta));

  // Eq. (11): e and D. One step: its length h.
  const e = sum([
    multiply(largest(S.map(({ wide }) => wide)), subtract(exp(mu), 1), 0.5),
    multiply(sumOver(forward, ({ o, wide }) => multiply(o, wide)), exp(less)),
    sumOver(backward, ({ tau, wide }) => multiply(tau, wide)),
  ]);
  const sides = rows.filter(({ delta }) => !isAtMost(delta, 0)).map(({ side }) => side);
  const A2 = divide(square(subtract(largest(sides), smallest(sides))), multiply(4, subtract(1, psi)));
  const gradient = isNormalized ? 1 : sumOver(rows, (row) => multiply(pullOf(row, steep), leadOf(row), row.phi, lengthOf(row.a)));
  const h = isNormalized ? optimizer.size : multiply(optimizer.size, gradient);

  // Eqs (12) and (13): K is large enough for steps, and for slow rows.
  const isShort = isAtMost(multiply(h, A2), progress);
  const sideways = divide(multiply(isShort ? h : 1, square(e)), multiply(isShort ? progress : A2, psi));
  const fading = forward.filter(({ o, sigma }) => isBelow(o, multiply(SLOW, square(R), theta, sigma)));
  const slow = forward.filter((row) => !fading.includes(row));
  const grown = [
    ...(isShort ? [] : [divide(multiply(square(h), A2), 4)]),
    ...(slow.length > 0 ? [multiply(2, log(add(1, sumOver(slow, ({ o }) => o)))), sideways] : []),
  ];
  need("growth", grown.length === 0 || isAtMost(divide(sum(grown), progress), K));

  // Eq. (14), and the theorem.
  const kappa = divide(K, multiply(2, R));
  for (const row of rows) row.s = subtract(row.along, multiply(row.wide, kappa));
  for (const row of backward) row.d = subtract(row.sigma, multiply(row.wide, kappa));
  const s = smallest(rows.map((row) => row.s));
  need("ahead", isBelow(0, s));
  need("aside", backward.every(({ d }) => isBelow(0, d)));
  const lasting = ({ d }) => {
    if (isBelow(kappa, multiply(d, R))) return sum([divide(R, d), divide(kappa, square(d)), multiply(h, R)]);
    return multiply(add(R, divide(multiply(2, kappa), multiply(E, d))), add(divide(2, d), h));
  };
  const slowest = smallest([s, ...fading.map(({ sigma }) => sigma), ...backward.map(({ d }) => d)]);
  const drift = sum([
    multiply(mu, add(divide(1, s), h)),
    sumOver(fading, ({ o, sigma }) => multiply(o, add(divide(1, sigma), h))),
    sumOver(backward, (row) => multiply(row.tau, row.wide, lasting(row))),
    slow.length > 0 ? 0 : multiply(sideways, 0.5, add(divide(1, multiply(2, slowest)), h)),
  ]);
  need("drift", isAtMost(add(square(proof.deviation), divide(multiply(2, drift), progress)), square(R)));
}

// ---- X Theorem 2

/** Of the loss of one input: its gradient, its Hessian [xx, xy, yy], and a bound M on third derivatives within a radius. */
function derivativesOf(problem, input, point, radius) {
  const places = Array.from({ length: problem.lengths[input] }, (_, t) => input * problem.T + t);
  const keys = places.map((at) => keyOf(problem, at));
  const scores = places.map((at) => scoreOf(problem, at));
  const middles = keys.map((key) => dot(key, point)[0]);
  const best = middles.indexOf(Math.max(...middles));
  const moved = keys.map((key) => apart(key, keys[best]));
  const logits = moved.map((row) => dot(row, point));
  const powers = logits.map(exp);
  const mass = sum(powers);
  const shares = powers.map((power) => divide(power, mass));
  const mean = dot(shares, scores);
  const centre = PLANE.map((k) => dot(shares, moved.map((row) => row[k])));
  const from = moved.map((row) => apart(row, centre));
  const pull = shares.map((share, t) => multiply(share, subtract(scores[t], mean)));
  const slope = PLANE.map((k) => sum(from.map((row, t) => multiply(pull[t], row[k]))));
  const size = slopeAt(problem, mean);
  const first = negative(size);
  const second = { logistic: multiply(size, subtract(1, size)), exponential: size, "correlation-loss": real(0) }[problem.loss];
  const bent = (k, j) => sum(from.map((row, t) => multiply(pull[t], row[k], row[j])));
  const hessian = [[0, 0], [0, 1], [1, 1]].map(([k, j]) => add(multiply(first, bent(k, j)), multiply(second, slope[k], slope[j])));
  const near = sum(moved.map((row, t) => (t === best ? 0 : exp(add(multiply(lengthOf(row), radius), logits[t])))));
  const eps = isBelow(near, 1) ? near : real(1);
  const D = largest(keys.flatMap((x, t) => keys.slice(t).map((y) => lengthOf(apart(x, y)))));
  const most = slopeAt(problem, smallest(scores));
  const bounds = { logistic: [most, 0.25, 0.1], exponential: [most, most, most], "correlation-loss": [1, 0, 0] }[problem.loss];
  const spread = multiply(eps, subtract(largest(scores), smallest(scores)), D);
  const third = sum([
    multiply(bounds[0], 3.5, spread, square(D)),
    multiply(12, bounds[1], square(spread), D),
    multiply(8, bounds[2], square(spread), spread),
  ]);
  return [...slope.map((entry) => multiply(first, entry)), ...hessian, third];
}

function checkMinimum(problem, proof) {
  needPositive(proof, ["radius", "curvature"]);
  needNotNegative(proof, ["tolerance"]);
  needList(proof, "point", 2);
  const { radius, curvature, tolerance } = proof;
  const inputs = Array.from(problem.lengths.keys(), (input) => derivativesOf(problem, input, exactly(proof.point), radius));
  const [x, y, xx, xy, yy, third] = inputs[0].map((_, k) => divide(sum(inputs.map((one) => one[k])), problem.n));
  const shift = add(curvature, multiply(radius, third));
  const pivot = subtract(xx, shift);
  need("convex", isBelow(0, pivot) && isBelow(0, subtract(subtract(yy, shift), divide(square(xy), pivot))));
  need("inside", isAtMost(add(tolerance, divide(multiply(2, lengthOf([x, y])), curvature)), radius));
}

// ---- X Theorem 4

function checkSteepest(problem, proof) {
  const { optimizer } = problem;
  const { size, decay, momentum: beta, p } = optimizer;
  need("optimizer", optimizer.name in POWERS && decay >= 0 && decay <= 1 && beta >= 0 && beta < 1 && !(p <= 1));
  const power = POWERS[optimizer.name](optimizer);
  const dualPower = power === 1 ? Infinity : power === Infinity ? 1 : divide(power, subtract(power, 1));
  const dual = (x) => normBound(x, dualPower);
  needPositive(proof, ["rate", "longest", "high"]);
  needNotNegative(proof, ["tolerance", "limit", "taken"]);
  needNumbers(proof, ["low"]);
  const { rate: g, longest: h, limit, low, high, tolerance: rho, taken } = proof;
  need("longest", isAtMost(decay > 0 ? multiply(size, exp(multiply(-decay, log(add(taken, 1))))) : size, h));
  need("limit", limit <= h && (decay > 0 || size <= limit));
  const rows = rowsOf(problem, proof.selected);
  const [leading, others] = named(rows, proof.leading, "leading");
  const m = leading.length;
  needList(proof, "point", 2);
  needList(proof, "witness", 2);
  needList(proof, "weights", m, 0);
  needList(proof, "multipliers", others.length * m, 0);
  needList(proof, "remembered", m, 0);
  needList(proof, "memory", 2);
  const point = exactly(proof.point);
  const combined = (weights) => PLANE.map((k) => dot(weights, leading.map(({ a }) => a[k])));
  const mean = (weights) => combined(weights).map((entry) => divide(entry, sum(weights)));

  // Eq. (3): γ from below by the witness, and from above by the weights. D and D₂.
  need("witness", normBound(exactly(proof.witness), power) <= 1);
  const gamma = smallest(leading.map(({ a }) => dot(a, exactly(proof.witness))));
  need("high", dual(mean(exactly(proof.weights))) <= high);
  const D = Math.max(...leading.map(({ a }) => dual(a)));
  const D2 = Math.max(0, ...leading.flatMap(({ a }, r) => leading.slice(0, r).map((other) => dual(apart(a, other.a)))));

  // Eq. (2) at the point, in units of about the largest term, and in the ball around it; F is too small for a double far out.
  for (const row of leading) {
    row.at = dot(row.a, point);
    row.logLimit = log(multiply(row.c, row.delta));
    row.logTerm = subtract(row.logLimit, row.at);
  }
  const unit = largest(leading.map(({ logTerm }) => logTerm))[1];
  const terms = leading.map(({ logTerm }) => exp(subtract(logTerm, unit)));
  const here = add(unit, log(sum(terms)));
  const logF = real(add(here, multiply(D, rho))[1]);

  // Eqs (6) and (7): φ of leading rows and of the others.
  for (const row of leading) row.logPhi = subtract(logF, row.logLimit);
  others.forEach((row, k) => {
    const mu = exactly(proof.multipliers.slice(k * m, (k + 1) * m));
    const rest = dual(apart(row.a, combined(mu)));
    need("outrun", isBelow(rest, multiply(subtract(sum(mu), 1), g)));
    const ahead = dot(mu, leading.map(({ at, logPhi }) => add(at, logPhi)));
    row.logPhi = add(subtract(ahead, dot(row.a, point)), multiply(rest, rho));
  });
  for (const row of rows) row.phi = exp(row.logPhi);

  // Eqs (9) and (10): ε, ζ, ω and ν.
  addInputBounds(rows);
  const steep = steepnessOf(problem);
  const errors = leading.flatMap((row) => {
    const { eps, plus, minus, delta } = row;
    const lost = divide(multiply(eps, plus), delta);
    need("leading rows stay forward", isBelow(lost, 1));
    const kept = multiply(subtract(1, eps), subtract(1, lost), exp(negative(multiply(eps, steep, minus))));
    return [subtract(exp(multiply(eps, add(multiply(steep, plus), divide(minus, delta)))), 1), subtract(1, kept)];
  });
  const omega = sum(others.map((row) => multiply(pullOf(row, steep), leadOf(row), dual(row.a), exp(subtract(row.logPhi, logF)))));
  const saturation = add(multiply(largest(errors), D), omega);

  // Eqs (11) and (12), with what momentum costs; or a sharper step, Eq. (14).
  const memory = beta > 0 ? memoryOf(proof, { beta, D, D2, here, terms, mean, dual }) : { error: 0, lost: 0, inLimit: 0 };
  const nu = largest([saturation, memory.error]);
  const range = divide(square(D2), 8);
  const isByVertices = proof.turns.length > 0;
  if (isByVertices) checkTurns(proof, { leading, gamma, nu, power, beta });
  else need("rate", isAtMost(sum([g, multiply(2, nu), memory.lost, multiply(h, range)]), gamma));
  if (!isByVertices || limit === 0) need("low", isAtMost(sum([low, memory.inLimit, multiply(limit, range)]), gamma));
}

/** With memory, Eqs (16) to (19): κ, J and q d_0 together, and J in the limit. */
function memoryOf(proof, { beta, D, D2, here, terms, mean, dual }) {
  const { longest, limit, tolerance: rho } = proof;
  const weights = exactly(proof.remembered);
  const growth = exp(multiply(longest, D));
  const fading = (length) => multiply(beta, exp(multiply(length, D)));
  need("memory length", isBelow(fading(longest), 1));
  const [J, inLimit] = [longest, limit].map((length) => divide(multiply(fading(length), length, square(D2), 0.25), subtract(1, fading(length))));
  if (!proof.remembered.some((weight) => weight > 0)) {
    need("memory", proof.memory.every((entry) => entry === 0));
    return { error: 0, lost: J, inLimit };
  }
  const S = sum(weights);
  const sigma = exp(add(subtract(log(S), here), multiply(D, rho)));
  need("memory size", isAtMost(multiply(sigma, subtract(1, fading(longest))), growth));
  const before = mean(weights);
  const away = add(dual(apart(before, mean(terms))), multiply(square(D2), rho, 0.25));
  const error = add(dual(apart(exactly(proof.memory).map((entry) => divide(entry, S)), before)), multiply(rho, D));
  const weight = multiply(beta, sigma);
  return { error, lost: add(J, multiply(divide(weight, add(1, weight)), away)), inLimit };
}

/** A sharper step, Eq. (14), at every vertex of the unit ball. */
function checkTurns(proof, { leading, gamma, nu, power, beta }) {
  const { longest: h, limit, rate, low } = proof;
  need("turns", beta === 0 && (power === 1 || power === Infinity));
  const vertices = power === 1 ? [[1, 0], [0, 1], [-1, 0], [0, -1]] : [[1, 1], [1, -1], [-1, 1], [-1, -1]];
  needList(proof, "turns", 3 * vertices.length);
  vertices.forEach((vertex, j) => {
    const [kappa, ...z] = proof.turns.slice(3 * j, 3 * j + 3);
    need("turns", kappa >= 0);
    const slope = add(kappa, normBound(exactly(z), power));
    const ends = leading.map(({ a }) => {
      const along = dot(a, exactly(vertex));
      return subtract(add(exp(multiply(-h, along)), multiply(slope, along)), dot(a, exactly(z)));
    });
    const left = subtract(largest(ends), multiply(kappa, gamma));
    need("turn", isAtMost(add(left, multiply(2, nu, slope)), exp(multiply(-rate, h))));
    if (limit > 0) need("low", isAtMost(left, exp(multiply(-low, h))));
  });
}
