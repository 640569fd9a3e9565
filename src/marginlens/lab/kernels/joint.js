// Head and attention trained together: label margins of selections, Assumption C, and A Theorems 5 and 6 condition by condition.

import { measurePoints } from "./descent.js";
import { drawsOf } from "./draws.js";
import { dot, norm, solveDefinite } from "./linalg.js";
import { attSvm, attSvms, directionOf, INFEASIBLE, leastDistance, leastDistances, marginOf, OPTIMAL, TRIVIAL } from "./margin.js";
import { placesOf } from "./problem.js";
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
const MAX_SELECTIONS = 4096; // that are tried one by one while something is dragged
const MAX_OUTRIGHT = 60; // selections up to which all are candidates for the cheapest mixture
const [N_SAMPLES, N_ROUNDS, N_BEST, N_NEAR] = [40, 2, 16, 8]; // random mixtures, rounds around the best ones, and how many then

const ones = (count) => new Float64Array(count).fill(1);
const rowsOf = (A) => Array.from({ length: A.length / 2 }, (_, r) => A.subarray(2 * r, 2 * r + 2));
const allInputs = (problem) => Array.from(problem.lengths.keys());
const countOf = (problem, inputs) => inputs.reduce((total, i) => total * problem.lengths[i], 1);

/** The margins max_‖v‖≤1 min_i v·r_i over rows (count, m, 2). */
function labelMarginsOf(rows, m) {
  const count = rows.length / (2 * m);
  return leastDistances(rows, ones(count * m), count, m, 2).map(marginOf);
}

/** Rows Y_i x_iα of some inputs, for one selection after the other. */
function signedTokens({ T, X, y }, selections, inputs) {
  const rows = new Float64Array(2 * selections.length * inputs.length);
  selections.forEach((selected, j) => {
    inputs.forEach((i, r) => {
      for (let k = 0; k < 2; k++) rows[2 * (j * inputs.length + r) + k] = y[i] * X[2 * (i * T + selected[i]) + k];
    });
  });
  return rows;
}

/** The head's SVM of a selection on some inputs: its solution v^mm with `margin`. */
function labelSvm(problem, selected, inputs) {
  const solution = leastDistance(signedTokens(problem, [selected], inputs), inputs.length, 2, ones(inputs.length));
  return { ...solution, margin: marginOf(solution) };
}

/** Every choice of one token for each of some inputs, those of the last input changing first. */
function selectionsOf(problem, inputs) {
  const extended = (all, i) => all.flatMap((chosen) => Array.from({ length: problem.lengths[i] }, (_, t) => [...chosen, t]));
  return inputs.reduce(extended, [[]]);
}

/**
 * The margin problems of a selection: { head, support, strict, relaxed }, of which support are the head's support vectors, strict is p^mm,
 * and relaxed, of Eq. (10), the shortest p that separates the selected token of these inputs and merely selects it elsewhere.
 */
function solutionsOf(problem, selected) {
  const head = labelSvm(problem, selected, allInputs(problem));
  const support = Array.from(head.active, Boolean);
  const strict = attSvm(problem, selected);
  const { A, m, pairs } = strict;
  const relaxed = { ...leastDistance(A, m, 2, Float64Array.from(pairs, ({ input }) => Number(support[input]))), pairs };
  return { head, support, strict, relaxed };
}

/** The selections with the largest label margin: { selections, margin, runnerUp }. */
function bestSelections(problem) {
  const selections = selectionsOf(problem, allInputs(problem));
  const margins = labelMarginsOf(signedTokens(problem, selections, allInputs(problem)), problem.n);
  const margin = margins.reduce((largest, value) => Math.max(largest, value), 0);
  const isBest = (value) => value >= margin * (1 - SAME_LABEL_MARGIN_RTOL);
  return {
    selections: selections.filter((_, k) => isBest(margins[k])),
    margin,
    runnerUp: margins.reduce((next, value) => (isBest(value) ? next : Math.max(next, value)), 0),
  };
}

// ---- Assumption C

/** Multipliers of the head's SVM that sum to one, with the largest weight on row i that optimality allows; vertices are tried in turn. */
function heaviestMultipliers(head, i) {
  const { A, m, x, margin } = head;
  const rows = rowsOf(A);
  const active = Array.from(rows.keys()).filter((r) => head.active[r]);
  let best = Float64Array.from(head.multipliers, (value, r) => (head.active[r] ? value * margin ** 2 : 0));
  if (!active.includes(i)) return best;
  const scale = Math.max(...active.map((r) => norm(rows[r])), 1e-300);
  const right = [...Array.from(x, (entry) => (entry * margin ** 2) / scale), 1];
  const others = active.filter((r) => r !== i);
  for (let bits = 0; bits < 2 ** others.length; bits++) {
    const chosen = [i, ...others.filter((_, k) => (bits >> k) & 1)];
    if (chosen.length > 3) continue;
    const columns = chosen.map((r) => [rows[r][0] / scale, rows[r][1] / scale, 1]);
    const gram = Float64Array.from(columns.flatMap((a) => columns.map((b) => dot(a, b))));
    const weights = solveDefinite(gram, columns.map((a) => dot(a, right)));
    if (weights === null || weights[0] <= best[i] || weights.some((weight) => weight < -SAME_POINT_RTOL)) continue;
    const residual = right.map((entry, k) => entry - columns.reduce((total, a, c) => total + weights[c] * a[k], 0));
    if (norm(residual) > SAME_POINT_RTOL) continue;
    best = new Float64Array(m);
    chosen.forEach((r, c) => (best[r] = Math.max(weights[c], 0)));
  }
  return best;
}

/** A lower bound on ν over all mixtures: zero where none is proved. */
function provedCost(problem, selected, inputs, head) {
  const choices = selectionsOf(problem, inputs).map((chosen) => {
    const choice = Array.from(selected);
    inputs.forEach((i, r) => (choice[i] = chosen[r]));
    return choice;
  });
  const rows = signedTokens(problem, choices, inputs);
  const bounds = inputs.flatMap((input, place) => {
    if (problem.lengths[input] === 1) return [];
    const weights = heaviestMultipliers(head, place);
    let [inside, leaving] = [0, 0];
    choices.forEach((choice, j) => {
      const sum = (k) => weights.reduce((total, weight, r) => total + weight * rows[2 * (j * inputs.length + r) + k], 0);
      const length = Math.hypot(sum(0), sum(1));
      if (choice[input] === selected[input]) inside = Math.max(inside, length);
      else leaving = Math.max(leaving, length);
    });
    return [inside > head.margin * (1 + SAME_LABEL_MARGIN_RTOL) ? 0 : head.margin - leaving];
  });
  return Math.max(0, Math.min(...bounds));
}

/** (Γ - Γ(p)) / max_i (1 - s_iα) over some inputs at every point p, infinite where so little is mixed that rounding would decide. */
function mixingCosts(problem, selected, inputs, gamma, points) {
  const { n, T, X, y, lengths } = problem;
  const { probabilities } = measurePoints(problem, Float64Array.from(points.flatMap((p) => Array.from(p))));
  const rows = new Float64Array(2 * points.length * inputs.length);
  const mixed = new Float64Array(points.length); // the largest share of other tokens
  points.forEach((_, j) => {
    inputs.forEach((i, r) => {
      let elsewhere = 0;
      for (let t = 0; t < lengths[i]; t++) {
        const share = probabilities[(j * n + i) * T + t];
        if (t !== selected[i]) elsewhere += share;
        for (let k = 0; k < 2; k++) rows[2 * (j * inputs.length + r) + k] += y[i] * share * X[2 * (i * T + t) + k];
      }
      mixed[j] = Math.max(mixed[j], elsewhere);
    });
  });
  const margins = labelMarginsOf(rows, inputs.length);
  return margins.map((margin, j) => (mixed[j] > MIN_VISIBLE_SHARE ? (gamma - margin) / mixed[j] : Infinity));
}

/** Points at which an input mixes α with one other token and every other input, as far as possible, has settled on α. */
function twoTokenMixtures({ A, m, pairs }, inputs) {
  const rows = rowsOf(A);
  return rows.flatMap((row, r) => {
    const size = dot(row, row);
    if (!inputs.includes(pairs[r].input) || size === 0) return [];
    const others = rows.filter((_, s) => s !== r);
    const projected = others.flatMap((other) => {
      const left = other.map((entry, k) => entry - (dot(other, row) / size) * row[k]);
      return norm(left) > PARALLEL_RTOL * norm(other) ? Array.from(left) : [0, 0];
    });
    const ray = leastDistance(Float64Array.from(projected), m - 1, 2, ones(m - 1));
    if (ray.status !== OPTIMAL && ray.status !== TRIVIAL) return [];
    const offsets = MIXTURE_SHARES.map((q) => row.map((entry) => (Math.log((1 - q) / q) * entry) / size));
    const reach = Math.max(0, ...others.flatMap((other) => offsets.map((offset) => Math.abs(dot(other, offset)))));
    return offsets.map((offset) => offset.map((entry, k) => entry + (SETTLED_LOGIT_MARGIN + reach) * ray.x[k]));
  });
}

/** The smallest cost of mixing found: at mixtures of two tokens, outright selections, random points, and around the best of them. */
function searchedCost(problem, selected, inputs, gamma, separator, rivals) {
  const { T, K } = problem;
  const withCosts = (points) => {
    const costs = mixingCosts(problem, selected, inputs, gamma, points);
    return points.map((p, k) => ({ p, cost: costs[k] }));
  };
  const uniform = drawsOf(1);
  const gaussian = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  const points = twoTokenMixtures(separator, inputs);
  const isFew = countOf(problem, allInputs(problem)) <= MAX_OUTRIGHT;
  const listed = (isFew ? selectionsOf(problem, allInputs(problem)) : rivals).filter((one) => one.some((t, i) => t !== selected[i]));
  for (const { status, x } of attSvms(problem, listed)) if (status === OPTIMAL) points.push(x.map((entry) => SETTLED_LOGIT_MARGIN * entry));
  const away = (at, i) => Math.hypot(K[2 * at] - K[2 * i * T], K[2 * at + 1] - K[2 * i * T + 1]);
  const spread = Math.max(...allInputs(problem).flatMap((i) => placesOf(problem, i).map((at) => away(at, i))));
  const centre = separator.status === OPTIMAL ? directionOf(separator) : new Float64Array(2);
  for (let sample = 0; sample < N_SAMPLES; sample++) {
    const size = 10 ** (2.5 * uniform() - 1) / (spread || 1);
    points.push(centre.map((entry) => size * (gaussian() / Math.SQRT2 + (sample % 2 === 0 ? entry : 0))));
  }
  let tried = withCosts(points);
  for (let round = 0; round < N_ROUNDS; round++) {
    tried = tried.sort((a, b) => a.cost - b.cost).slice(0, N_BEST);
    const near = ({ p }) => Array.from({ length: N_NEAR }, () => p.map((entry) => entry + 2 ** -round * Math.max(norm(p), 1) * gaussian()));
    tried.push(...withCosts(tried.flatMap(near)));
  }
  return tried.reduce((least, { cost }) => Math.min(least, cost), Infinity);
}

/** Whether there is a ray that selects α on which the last other token to fade costs no label margin to first order. */
function hasFreeRay({ T, X, y }, inputs, head, { A, pairs }) {
  const asked = pairs.map((_, r) => r).filter((r) => inputs.includes(pairs[r].input));
  const rows = asked.map((r) => rowsOf(A)[r]);
  const direction = directionOf(head);
  const score = (i, t) => y[i] * dot(X.subarray(2 * (i * T + t), 2 * (i * T + t) + 2), direction);
  const weights = inputs.map((_, place) => heaviestMultipliers(head, place)[place]);
  const costs = asked.map((r) => {
    const { input, selected, other } = pairs[r];
    return weights[inputs.indexOf(input)] > NO_COST_RTOL && score(input, selected) - score(input, other) > NO_COST_RTOL * head.margin;
  });
  const statusOf = (list, bounds) => leastDistance(Float64Array.from(list.flatMap((row) => Array.from(row))), list.length, 2, Float64Array.from(bounds)).status;
  if (statusOf(rows, ones(rows.length)) !== OPTIMAL) return false;
  return rows.some((free, r) => {
    if (costs[r]) return false;
    const faster = rows.filter((_, s) => costs[s]).map((row) => row.map((entry, k) => entry - free[k] / (1 - FADING_RTOL)));
    return statusOf([...rows, ...faster], [...costs.map(Number), ...faster.map(() => 0)]) !== INFEASIBLE;
  });
}

/**
 * Assumption C for a selection over some inputs: a condition with { margin, nu, proved_nu }; nu is the smallest cost of mixing found, nan
 * where proved_nu, a lower bound on it, is positive, since nothing is looked for then. Without a proof rivals are tried, among others.
 */
function checkAssumptionC(problem, selected, inputs, separator, rivals) {
  const head = labelSvm(problem, selected, inputs);
  const found = (holds, numbers, way) =>
    inputs.length === problem.n ? check("A Assumption C", holds, numbers, way) : check("A Assumption C over S", holds, numbers, way);
  if (head.status !== OPTIMAL) return found(false, { margin: 0, nu: 0, proved_nu: 0 }, "no margin");
  const { margin } = head;
  if (inputs.every((i) => problem.lengths[i] === 1)) return found(true, { margin, nu: Infinity, proved_nu: Infinity }, "alone");
  const provedNu = provedCost(problem, selected, inputs, head);
  if (provedNu > NO_COST_RTOL * margin) return found(true, { margin, nu: NaN, proved_nu: provedNu }, "proved");
  let nu = searchedCost(problem, selected, inputs, margin, separator, rivals);
  if (nu > 0 && hasFreeRay(problem, inputs, head, separator)) nu = 0;
  return found(nu > NO_COST_RTOL * margin, { margin, nu, proved_nu: provedNu }, nu < 0 ? "gains" : "");
}

// ---- Theorems 5 and 6

/** Whether p^relax selects α outside the support set too, with room to spare. */
function selectedInTheLimit(support, relaxed) {
  if (relaxed.status !== OPTIMAL) return check("selected in the limit", false, { room: 0 }, relaxed.status);
  const rows = rowsOf(relaxed.A);
  const outside = rows.filter((_, r) => !support[relaxed.pairs[r].input]);
  const room = Math.min(Infinity, ...outside.map((row) => dot(row, directionOf(relaxed))));
  const size = Math.max(...rows.map((row) => norm(row)));
  return check("selected in the limit", room > SELECTED_RTOL * size, { room }, room === Infinity ? "alone" : "");
}

/** A Thms 5 and 6 on a selection: { selected, verdicts, applies }. */
function aboutSelection(problem, best, selected) {
  const { head, support, strict, relaxed } = solutionsOf(problem, selected);
  const shared = [
    check("logistic loss", problem.code === LOGISTIC, {}, problem.loss),
    check("labels separable", head.margin > 0, { margin: head.margin, runner_up: best.runnerUp }),
    check("separable tokens", strict.status === OPTIMAL, { margin: marginOf(strict) }, strict.status),
  ];
  const inside = allInputs(problem).filter((i) => support[i]);
  const mixing = (inputs) => checkAssumptionC(problem, selected, inputs, strict, best.selections.slice(0, MAX_CANDIDATES));
  const everywhere = mixing(allInputs(problem));
  const onSupport = inside.length === 0 || inside.length === problem.n ? everywhere : mixing(inside);
  const verdicts = [
    verdict("A Thm 5", [...shared, everywhere]),
    verdict("A Thm 6", [...shared, selectedInTheLimit(support, relaxed), onSupport]),
  ];
  return { selected, verdicts, applies: verdicts.some(({ applies }) => applies) };
}

/**
 * What a page shows of joint training: { margin, complete, found: [{ selected, support, head, strict, relaxed }], verdicts }, for
 * each of the selections with the largest label margin that some p makes; not complete where there are too many selections to try.
 *
 * head is the direction of v; strict solves ATT-SVM (A Thm 5), and relaxed A Eq. (10), which selects outside of the support without a
 * margin (A Thm 6); relaxed is null where that is not strict selecting. The verdicts are those of the first selection to which a theorem
 * applies, which comes first, else of the last one looked at.
 */
export function jointLimits(problem) {
  if (countOf(problem, allInputs(problem)) > MAX_SELECTIONS) return { margin: NaN, complete: false, found: [], verdicts: [] };
  const best = bestSelections(problem);
  let certain = null;
  for (const selected of best.selections.slice(0, best.margin > 0 ? MAX_CANDIDATES : 1)) {
    certain = aboutSelection(problem, best, selected);
    if (certain.applies) break;
  }
  const found = (best.margin > 0 ? best.selections : [])
    .map((selected) => ({ selected, ...solutionsOf(problem, selected) }))
    .filter(({ strict }) => strict.status === OPTIMAL)
    .map(({ head, relaxed, ...solutions }) => {
      const isSelecting = relaxed.status === OPTIMAL && rowsOf(relaxed.A).every((row) => dot(row, relaxed.x) > 0);
      return { ...solutions, head: directionOf(head), relaxed: isSelecting ? relaxed : null };
    });
  const isCertain = ({ selected }) => certain.applies && selected.join() === certain.selected.join();
  found.sort((a, b) => isCertain(b) - isCertain(a));
  return { margin: best.margin, complete: true, found, verdicts: certain.verdicts };
}
