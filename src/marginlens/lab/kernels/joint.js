// Head and attention trained together: label margins of selections, Assumption C, and A Theorems 5 and 6 condition by condition.

import { measurePoints } from "./descent.js";
import { dot, norm } from "./linalg.js";
import { attSvm, attSvms, directionOf, INFEASIBLE, leastDistance, leastDistances, marginOf, OPTIMAL, TRIVIAL } from "./margin.js";
import { LOGISTIC } from "./softmax.js";
import { check, verdict } from "./theorems.js";

const SAME_LABEL_MARGIN_RTOL = 1e-10; // label margins that agree to this share are the same
const NO_COST_RTOL = 1e-7; // a cost of mixing below this share of the label margin is no cost
const SELECTED_RTOL = 1e-9; // logit margins per unit of ‖p‖, relative to the largest key difference, that count as positive
const FADING_RTOL = 1e-6; // how much slower a token must fade to count as the last
const MIN_VISIBLE_SHARE = 1e-5; // shares above which a cost per share is not rounding
const SETTLED_LOGIT_MARGIN = 40; // at which the other inputs of a counter-example are settled
const MIXTURE_SHARES = [1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]; // of the other token in a mixture of two
const PARALLEL_RTOL = 1e-12; // of a row, that is rounding where a projection should leave nothing
const SAME_POINT_RTOL = 1e-8; // residual of multipliers that solve their equations
const MAX_CANDIDATES = 32; // selections with the same label margin that are looked at one by one
const THOROUGH = { samples: 2000, rounds: 12, outright: 1000, isThorough: true };
const QUICK = { samples: 40, rounds: 2, outright: 60, isThorough: false };
const MAX_SELECTIONS = 4096; // that may be tried one by one while something is dragged
const MAX_PROOF_SELECTIONS = 20_000; // up to which a bound on the cost of mixing is looked for
const CLIMBS = 64; // random selections from which single tokens are exchanged where there are too many selections

/** Numbers in [0, 1) that are the same every time. */
function uniforms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
}

function gaussians(uniform) {
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** max_‖v‖≤1 min_i Y_i v·r_i over rows Y_i r_i (m, d): the solution of the head's SVM, with `margin`. */
function labelSvm(rows, m, d) {
  const solution = leastDistance(rows, m, d, new Float64Array(m).fill(1));
  return { ...solution, margin: marginOf(solution) };
}

/** The margins of `labelSvm` of rows (count, m, d). */
function labelMarginsOf(rows, m, d) {
  const count = rows.length / (m * d);
  return leastDistances(rows, new Float64Array(count * m).fill(1), count, m, d).map(marginOf);
}

/** Rows Y_i x_iα of some inputs, for one selection after the other. */
function signedTokens(problem, selections, inputs) {
  const { T, dModel, X, y } = problem;
  const rows = new Float64Array(selections.length * inputs.length * dModel);
  selections.forEach((selected, j) => {
    inputs.forEach((i, r) => {
      const at = (j * inputs.length + r) * dModel;
      for (let k = 0; k < dModel; k++) rows[at + k] = y[i] * X[(i * T + selected[i]) * dModel + k];
    });
  });
  return rows;
}

const allInputs = (problem) => Array.from({ length: problem.n }, (_, i) => i);
const countOf = (problem, inputs) => inputs.reduce((total, i) => total * problem.lengths[i], 1);

/** Every choice of one token for each of some inputs, those of the last input changing first. */
function* selectionsOf(problem, inputs) {
  const chosen = inputs.map(() => 0);
  for (;;) {
    yield chosen;
    let place = inputs.length - 1;
    while (place >= 0 && ++chosen[place] === problem.lengths[inputs[place]]) chosen[place--] = 0;
    if (place < 0) return;
  }
}

/**
 * Label margin Γ of a selection: { selected, head (the solution v^mm), margin, support, slack }, support (n) marking the support vectors
 * and slack (n) by how much the margins of the others exceed Γ at unit v.
 */
export function labelMargin(problem, selected) {
  const { n, dModel } = problem;
  const head = labelSvm(signedTokens(problem, [selected], allInputs(problem)), n, dModel);
  const direction = directionOf(head);
  const slack = Float64Array.from({ length: n }, (_, i) =>
    head.active[i] ? 0 : dot(head.A.subarray(i * dModel, (i + 1) * dModel), direction) - head.margin,
  );
  return { selected: Array.from(selected), head, margin: head.margin, support: Array.from(head.active, Boolean), slack };
}

/** Eq. (10): shortest p that separates the selected token where the head has a support vector and merely selects it elsewhere. */
export function relaxedSvm(problem, selected, support) {
  const { A, m, d, pairs } = attSvm(problem, selected);
  const b = Float64Array.from(pairs, ({ input }) => (support[input] ? 1 : 0));
  return { ...leastDistance(A, m, d, b), pairs };
}

/** The selections with the largest label margin: { selections, margin, runnerUp, complete }; found by climbing where there are too many. */
export function bestSelections(problem, maxProblems = 10_000) {
  const inputs = allInputs(problem);
  const { dModel, n } = problem;
  const margins = (selections) => labelMarginsOf(signedTokens(problem, selections, inputs), n, dModel);
  const tried = new Map();
  const tryOne = (selected) => {
    const name = selected.join();
    if (!tried.has(name)) tried.set(name, { selected: Array.from(selected), margin: margins([selected])[0] });
    return tried.get(name).margin;
  };
  const complete = countOf(problem, inputs) <= maxProblems;
  const all = [];
  if (complete) {
    const selections = Array.from(selectionsOf(problem, inputs), (selected) => selected.slice());
    margins(selections).forEach((margin, k) => all.push({ selected: selections[k], margin }));
  } else {
    const uniform = uniforms(0);
    for (let climb = 0; climb < CLIMBS && tried.size < maxProblems; climb++) {
      const selected = inputs.map((i) => Math.floor(uniform() * problem.lengths[i]));
      let value = tryOne(selected);
      for (let grew = true; grew && tried.size < maxProblems; ) {
        grew = false;
        for (const i of inputs)
          for (let t = 0; t < problem.lengths[i]; t++) {
            const before = selected[i];
            selected[i] = t;
            const margin = tryOne(selected);
            if (margin > value * (1 + SAME_LABEL_MARGIN_RTOL)) [value, grew] = [margin, true];
            else selected[i] = before;
          }
      }
    }
  }
  all.push(...tried.values());
  const top = all.reduce((largest, { margin }) => Math.max(largest, margin), 0);
  const isBest = ({ margin }) => margin >= top * (1 - SAME_LABEL_MARGIN_RTOL);
  return {
    selections: all.filter(isBest).map(({ selected }) => selected),
    margin: top,
    runnerUp: all.reduce((next, entry) => (isBest(entry) ? next : Math.max(next, entry.margin)), 0),
    complete,
  };
}

// ---- Assumption C

/** The solution of a small square system by elimination with pivots, or null where it is singular. */
function solved(matrix, right, n) {
  const M = matrix.slice();
  const x = right.slice();
  for (let c = 0; c < n; c++) {
    let pivot = c;
    for (let r = c + 1; r < n; r++) if (Math.abs(M[r * n + c]) > Math.abs(M[pivot * n + c])) pivot = r;
    if (!(Math.abs(M[pivot * n + c]) > 1e-13)) return null;
    for (let k = 0; k < n; k++) [M[c * n + k], M[pivot * n + k]] = [M[pivot * n + k], M[c * n + k]];
    [x[c], x[pivot]] = [x[pivot], x[c]];
    for (let r = 0; r < n; r++) {
      if (r === c) continue;
      const factor = M[r * n + c] / M[c * n + c];
      for (let k = c; k < n; k++) M[r * n + k] -= factor * M[c * n + k];
      x[r] -= factor * x[c];
    }
  }
  return x.map((entry, k) => entry / M[k * n + k]);
}

/** Multipliers of the head's SVM that sum to one, with the largest weight on row i that optimality allows; vertices are tried in turn. */
function heaviestMultipliers(head, i) {
  const { A, d, m, x, margin } = head;
  const plain = Float64Array.from(head.multipliers, (value, r) => (head.active[r] ? value * margin ** 2 : 0));
  const active = Array.from({ length: m }, (_, r) => r).filter((r) => head.active[r]);
  if (!active.includes(i)) return plain;
  const scale = Math.max(...active.map((r) => norm(A.subarray(r * d, (r + 1) * d))), 1e-300);
  const column = (r) => [...Array.from(A.subarray(r * d, (r + 1) * d), (entry) => entry / scale), 1];
  const right = [...Array.from(x, (entry) => (entry * margin ** 2) / scale), 1];
  const others = active.filter((r) => r !== i);
  let best = plain;
  for (let bits = 0; bits < 2 ** others.length; bits++) {
    const chosen = [i, ...others.filter((_, k) => (bits >> k) & 1)];
    if (chosen.length > d + 1) continue;
    const columns = chosen.map(column);
    const gram = columns.flatMap((a) => columns.map((b) => dot(a, b)));
    const weights = solved(gram, columns.map((a) => dot(a, right)), chosen.length);
    if (weights === null || weights[0] <= best[i] || weights.some((weight) => weight < -SAME_POINT_RTOL)) continue;
    const residual = right.map((entry, k) => entry - columns.reduce((total, a, c) => total + weights[c] * a[k], 0));
    if (norm(residual) > SAME_POINT_RTOL) continue;
    best = new Float64Array(m);
    chosen.forEach((r, c) => (best[r] = Math.max(weights[c], 0)));
  }
  return best;
}

/** A lower bound on ν over all mixtures: zero where none is proved or there are too many selections. */
function provedCost(problem, selected, inputs, head, maxProblems) {
  if (countOf(problem, inputs) > maxProblems) return 0;
  const { T, dModel, X, y, lengths } = problem;
  let bound = Infinity;
  for (let place = 0; place < inputs.length; place++) {
    if (lengths[inputs[place]] === 1) continue;
    const weights = heaviestMultipliers(head, place);
    let inside = 0;
    let leaving = 0;
    const sum = new Float64Array(dModel);
    for (const choice of selectionsOf(problem, inputs)) {
      sum.fill(0);
      inputs.forEach((i, r) => {
        const at = (i * T + choice[r]) * dModel;
        for (let k = 0; k < dModel; k++) sum[k] += weights[r] * y[i] * X[at + k];
      });
      if (choice[place] === selected[inputs[place]]) inside = Math.max(inside, norm(sum));
      else leaving = Math.max(leaving, norm(sum));
    }
    if (inside > head.margin * (1 + SAME_LABEL_MARGIN_RTOL)) return 0;
    bound = Math.min(bound, head.margin - leaving);
  }
  return Math.max(bound, 0);
}

/** (Γ - Γ(p)) / max_i (1 - s_iα) over some inputs at every point p, infinite where so little is mixed that rounding would decide. */
function mixingCosts(problem, selected, inputs, gamma, points) {
  const { n, T, d, dModel, lengths, X, y } = problem;
  const all = new Float64Array(points.length * d);
  points.forEach((p, j) => all.set(p, j * d));
  const { probabilities } = measurePoints(problem, all);
  const rows = new Float64Array(points.length * inputs.length * dModel);
  const mixed = points.map((_, j) => {
    const others = inputs.map((i, r) => {
      const shares = probabilities.subarray((j * n + i) * T, (j * n + i) * T + lengths[i]);
      const at = (j * inputs.length + r) * dModel;
      shares.forEach((share, t) => {
        for (let k = 0; k < dModel; k++) rows[at + k] += y[i] * share * X[(i * T + t) * dModel + k];
      });
      return shares.reduce((total, share, t) => (t === selected[i] ? total : total + share), 0);
    });
    return Math.max(0, ...others);
  });
  const margins = labelMarginsOf(rows, inputs.length, dModel);
  return mixed.map((share, j) => (share > MIN_VISIBLE_SHARE ? (gamma - margins[j]) / share : Infinity));
}

/** Points at which an input mixes α with one other token and every other input, as far as possible, has settled on α. */
function twoTokenMixtures(problem, selected, inputs) {
  const { A, m, d, pairs } = attSvm(problem, selected);
  const points = [];
  const row = (r) => A.subarray(r * d, (r + 1) * d);
  for (let r = 0; r < m; r++) {
    const size = dot(row(r), row(r));
    if (!inputs.includes(pairs[r].input) || size === 0) continue;
    const others = Array.from({ length: m }, (_, s) => s).filter((s) => s !== r);
    const projected = new Float64Array(others.length * d);
    others.forEach((s, place) => {
      const along = dot(row(s), row(r)) / size;
      const left = row(s).map((entry, k) => entry - along * row(r)[k]);
      if (norm(left) > PARALLEL_RTOL * norm(row(s))) projected.set(left, place * d);
    });
    const ray = leastDistance(projected, others.length, d, new Float64Array(others.length).fill(1));
    if (ray.status !== OPTIMAL && ray.status !== TRIVIAL) continue;
    const offsets = MIXTURE_SHARES.map((q) => row(r).map((entry) => (Math.log((1 - q) / q) * entry) / size));
    const reach = Math.max(0, ...others.flatMap((s) => offsets.map((offset) => Math.abs(dot(row(s), offset)))));
    const stretch = SETTLED_LOGIT_MARGIN + reach;
    for (const offset of offsets) points.push(offset.map((entry, k) => entry + stretch * ray.x[k]));
  }
  return points;
}

/** The smallest cost of mixing found: at mixtures of two tokens, outright selections, random points, and around the best of them. */
function searchedCost(problem, selected, inputs, gamma, { samples, rounds, outright, rivals = [] }) {
  const { T, d, lengths, K } = problem;
  const withCosts = (some) => {
    const costs = mixingCosts(problem, selected, inputs, gamma, some);
    return some.map((p, k) => ({ p, cost: costs[k] }));
  };
  const uniform = uniforms(1);
  const gaussian = gaussians(uniform);
  const points = twoTokenMixtures(problem, selected, inputs);
  const isFew = countOf(problem, allInputs(problem)) <= outright;
  const listed = isFew ? Array.from(selectionsOf(problem, allInputs(problem)), (one) => one.slice()) : rivals;
  for (const { status, x } of attSvms(problem, listed.filter((one) => one.some((t, i) => t !== selected[i]))))
    if (status === OPTIMAL) points.push(x.map((entry) => SETTLED_LOGIT_MARGIN * entry));
  let spread = 0;
  lengths.forEach((length, i) => {
    for (let t = 1; t < length; t++) {
      const away = Array.from({ length: d }, (_, k) => K[(i * T + t) * d + k] - K[i * T * d + k]);
      spread = Math.max(spread, norm(away));
    }
  });
  const separator = attSvm(problem, selected);
  const centre = separator.status === OPTIMAL ? directionOf(separator) : new Float64Array(d);
  for (let sample = 0; sample < samples; sample++) {
    const size = 10 ** (2.5 * uniform() - 1) / (spread || 1);
    points.push(Float64Array.from(centre, (entry) => size * (gaussian() / Math.sqrt(d) + (sample % 2 === 0 ? entry : 0))));
  }
  let tried = withCosts(points);
  let width = 1;
  for (let round = 0; round < rounds; round++, width /= 2) {
    tried = tried.sort((a, b) => a.cost - b.cost).slice(0, 16);
    const near = tried.flatMap(({ p }) => {
      const scale = width * Math.max(norm(p), 1);
      return Array.from({ length: 8 }, () => p.map((entry) => entry + scale * gaussian()));
    });
    tried.push(...withCosts(near));
  }
  return tried.reduce((least, { cost }) => Math.min(least, cost), Infinity);
}

/** Whether there is a ray that selects α on which the last other token to fade costs no label margin to first order. */
function hasFreeRay(problem, selected, inputs, head) {
  const { T, dModel, X, y } = problem;
  const { A, d, pairs } = attSvm(problem, selected);
  const asked = pairs.map((_, r) => r).filter((r) => inputs.includes(pairs[r].input));
  const rows = asked.map((r) => A.subarray(r * d, (r + 1) * d));
  const direction = directionOf(head);
  const score = (i, t) => y[i] * dot(X.subarray((i * T + t) * dModel, (i * T + t + 1) * dModel), direction);
  const weights = inputs.map((_, place) => heaviestMultipliers(head, place)[place]);
  const costs = asked.map((r) => {
    const { input, selected: chosen, other } = pairs[r];
    return weights[inputs.indexOf(input)] > NO_COST_RTOL && score(input, chosen) - score(input, other) > NO_COST_RTOL * head.margin;
  });
  const feasible = (list, bounds) => leastDistance(Float64Array.from(list.flatMap((row) => Array.from(row))), list.length, d, Float64Array.from(bounds)).status;
  if (feasible(rows, rows.map(() => 1)) !== OPTIMAL) return false;
  return rows.some((free, r) => {
    if (costs[r]) return false;
    const faster = rows.filter((_, s) => costs[s]).map((row) => row.map((entry, k) => entry - free[k] / (1 - FADING_RTOL)));
    return feasible([...rows, ...faster], [...costs.map(Number), ...faster.map(() => 0)]) !== INFEASIBLE;
  });
}

/**
 * Assumption C for a selection over some inputs: { name, holds, numbers: { margin, nu, proved_nu }, proved }; nu is the smallest cost of
 * mixing found, proved_nu a lower bound on it.
 *
 * search: how hard to look for mixtures: random `samples`, `rounds` around the best of them, and all selections where there are at most
 * `outright`, else the `rivals` that are named; where it is not `isThorough` nothing is looked for once a bound is proved, and nu is nan.
 */
export function checkAssumptionC(problem, selected, inputs = allInputs(problem), search = THOROUGH) {
  const head = labelSvm(signedTokens(problem, [selected], inputs), inputs.length, problem.dModel);
  const isEverywhere = inputs.length === problem.n;
  const found = (holds, numbers, proved) => ({
    ...(isEverywhere ? check("A Assumption C", holds, numbers) : check("A Assumption C over S", holds, numbers)),
    proved,
  });
  if (head.status !== OPTIMAL) return found(false, { margin: 0, nu: 0, proved_nu: 0 }, false);
  const { margin } = head;
  if (inputs.every((i) => problem.lengths[i] === 1)) return found(true, { margin, nu: Infinity, proved_nu: Infinity }, true);
  const provedNu = provedCost(problem, selected, inputs, head, MAX_PROOF_SELECTIONS);
  const proved = provedNu > NO_COST_RTOL * margin;
  if (proved && !search.isThorough) return found(true, { margin, nu: NaN, proved_nu: provedNu }, true);
  let nu = searchedCost(problem, selected, inputs, margin, search);
  if (nu > 0 && hasFreeRay(problem, selected, inputs, head)) nu = 0;
  return found(nu > NO_COST_RTOL * margin, { margin, nu, proved_nu: provedNu }, proved);
}

// ---- Theorems 5 and 6

/** Whether p^relax selects α outside the support set too, with room to spare. */
function selectedInTheLimit(problem, head, relaxed) {
  if (relaxed.status !== OPTIMAL) return check("selected in the limit", false, { room: 0 }, relaxed.status);
  const { A, d, pairs } = relaxed;
  const direction = directionOf(relaxed);
  let room = Infinity;
  let size = 0;
  pairs.forEach(({ input }, r) => {
    const row = A.subarray(r * d, (r + 1) * d);
    size = Math.max(size, norm(row));
    if (!head.support[input]) room = Math.min(room, dot(row, direction));
  });
  return check("selected in the limit", room > SELECTED_RTOL * size, { room }, room === Infinity ? "all support" : "");
}

/** The smallest r/R at which no input outside S holds the path back from p^relax. */
function growthOf(head, relaxed) {
  if (relaxed.status !== OPTIMAL) return 0;
  const { A, d, pairs } = relaxed;
  const direction = directionOf(relaxed);
  const margin = marginOf(relaxed);
  return pairs.reduce((growth, { input }, r) => {
    const missing = margin - dot(A.subarray(r * d, (r + 1) * d), direction);
    return !head.support[input] && missing > 0 ? Math.max(growth, missing / head.slack[input]) : growth;
  }, 0);
}

/** x - ℓ⁻¹(n ℓ(x)) for the logistic loss: log n for large x. */
function mostMixed(x, n) {
  const small = Math.exp(-x);
  return small < 1e-300 ? Math.log(n) : x + Math.log(Math.expm1(n * Math.log1p(small)));
}

/** An r from which on the joint path goes to p^mm when ‖v‖ ≤ r stays fixed and R grows alone; infinite where none is known. */
function fixedHeadRadius(problem, head, nu) {
  const { n, T, dModel, lengths, X, y } = problem;
  const direction = directionOf(head.head);
  let alignment = Infinity;
  let longest = 0;
  for (let i = 0; i < n; i++)
    for (let t = 0; t < lengths[i]; t++) {
      if (t === head.selected[i]) continue;
      const away = Array.from({ length: dModel }, (_, k) => X[(i * T + head.selected[i]) * dModel + k] - X[(i * T + t) * dModel + k]);
      longest = Math.max(longest, norm(away));
      alignment = Math.min(alignment, (y[i] * dot(away, direction)) / Math.max(norm(away), Number.MIN_VALUE));
    }
  if (longest === 0 && alignment === Infinity) return 0;
  if (!(head.margin > 0 && nu > 0 && alignment > SELECTED_RTOL)) return Infinity;
  const enough = Number.isFinite(nu) ? (head.margin * alignment ** 2) / (2 * (nu + longest)) : 0.5 * head.margin * alignment ** 2;
  const spread = Number.isFinite(nu) ? nu : 1;
  const isShort = (r) => mostMixed(r * head.margin, n) / (r * spread) >= enough;
  let [low, high] = [0, 1 / head.margin];
  while (isShort(high)) [low, high] = [high, 2 * high];
  for (let round = 0; round < 60; round++) {
    const middle = 0.5 * (low + high);
    if (isShort(middle)) low = middle;
    else high = middle;
  }
  return high;
}

function aboutSelection(problem, best, selected, effort) {
  const search = { ...effort, rivals: best.selections.slice(0, MAX_CANDIDATES) }; // as good a margin elsewhere makes mixing free
  const head = labelMargin(problem, selected);
  const strict = attSvm(problem, selected);
  const relaxed = relaxedSvm(problem, selected, head.support);
  const shared = [
    check("logistic loss", problem.code === LOGISTIC, {}, problem.loss),
    check("labels separable", head.margin > 0, { margin: head.margin, runner_up: best.runnerUp }),
    check("separable tokens", strict.status === OPTIMAL, { margin: marginOf(strict) }, strict.status),
  ];
  const support = allInputs(problem).filter((i) => head.support[i]);
  const everywhere = checkAssumptionC(problem, selected, allInputs(problem), search);
  const onSupport =
    support.length === 0 || support.length === problem.n ? everywhere : checkAssumptionC(problem, selected, support, search);
  const five = verdict("A Thm 5", [...shared, everywhere]);
  const six = verdict("A Thm 6", [...shared, selectedInTheLimit(problem, head, relaxed), onSupport]);
  const applying = five.applies ? five : six.applies ? six : null;
  const mixing = five.applies ? everywhere : onSupport;
  const nu = !mixing.holds ? 0 : mixing.proved ? mixing.numbers.proved_nu : mixing.numbers.nu;
  return {
    verdicts: [five, six],
    best,
    selected: Array.from(selected),
    support: head.support,
    labelMargin: head.margin,
    head: head.head,
    strict,
    relaxed,
    applies: applying?.citation ?? null,
    isProved: applying !== null && mixing.proved,
    headDirection: applying === null ? null : directionOf(head.head),
    direction: applying === null ? null : directionOf(five.applies ? strict : relaxed),
    growth: growthOf(head, relaxed),
    headRadius: strict.status === OPTIMAL ? fixedHeadRadius(problem, head, nu) : Infinity,
  };
}

/**
 * Which theorem speaks about training head and attention together, and the directions of v and p along the joint path:
 *
 * { verdicts, best, selected, support, labelMargin, head, strict, relaxed, applies, isProved, headDirection, direction, growth, headRadius }:
 * the selection with the largest label margin to which a theorem applies, else the last one looked at; head solves the head's SVM, strict
 * and relaxed are p^mm and p^relax; `direction` is p^mm under A Thm 5 and p^relax under A Thm 6 once r ≥ growth R, null where neither
 * applies; isProved says whether Assumption C is proved. best: of `bestSelections`; search: how hard mixtures are looked for, as in
 * `checkAssumptionC`.
 */
export function predictJoint(problem, best = bestSelections(problem), search = THOROUGH) {
  let found = aboutSelection(problem, best, best.selections[0], search);
  for (const selected of best.selections.slice(1, MAX_CANDIDATES)) {
    if (found.direction !== null || best.margin === 0) break;
    found = aboutSelection(problem, best, selected, search);
  }
  return found;
}

/**
 * What a page shows of joint training at once: { margin, complete, found: [{ selected, support, head, strict, relaxed }], verdicts }, for
 * each of the selections with the largest label margin that some p makes; not complete where there are too many selections to try.
 *
 * head is the direction of v; strict solves ATT-SVM (A Thm 5), and relaxed A Eq. (10), which selects outside of the support without a
 * margin (A Thm 6); relaxed is null where that is not strict selecting. Those to which a theorem applies come first.
 */
export function jointLimits(problem) {
  if (countOf(problem, allInputs(problem)) > MAX_SELECTIONS) return { margin: NaN, complete: false, found: [], verdicts: [] };
  const best = bestSelections(problem, MAX_SELECTIONS);
  const { verdicts, applies, selected: certain } = predictJoint(problem, best, QUICK);
  const found = [];
  for (const selected of best.margin > 0 ? best.selections : []) {
    const { head, support } = labelMargin(problem, selected);
    const strict = attSvm(problem, selected);
    if (strict.status !== OPTIMAL) continue;
    const relaxed = relaxedSvm(problem, selected, support);
    const isSelecting =
      relaxed.status === OPTIMAL &&
      relaxed.pairs.every((_, r) => dot(relaxed.A.subarray(r * problem.d, (r + 1) * problem.d), relaxed.x) > 0);
    found.push({ selected, support, head: directionOf(head), strict, relaxed: isSelecting ? relaxed : null });
  }
  if (applies !== null) found.sort((a, b) => (b.selected.join() === certain.join()) - (a.selected.join() === certain.join()));
  return { margin: best.margin, complete: true, found, verdicts };
}
