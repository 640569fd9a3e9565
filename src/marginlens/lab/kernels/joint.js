// Head and attention trained together: the selections that a head tells apart best, with p^mm and p^relax.

import { dot } from "./linalg.js";
import { attSvm, directionOf, leastDistance, leastDistances, marginOf, OPTIMAL } from "./margin.js";

const SAME_LABEL_MARGIN_RTOL = 1e-10; // label margins that agree to this share are the same
const MAX_SELECTIONS = 4096; // that are tried one by one while something is dragged

const ones = (count) => new Float64Array(count).fill(1);
const rowsOf = (A) => Array.from({ length: A.length / 2 }, (_, r) => A.subarray(2 * r, 2 * r + 2));

/** Rows Y_i x_iα of all inputs, for one selection after the other. */
function signedTokens({ n, T, X, y }, selections) {
  const rows = new Float64Array(2 * selections.length * n);
  selections.forEach((selected, j) => {
    selected.forEach((t, i) => {
      for (let k = 0; k < 2; k++) rows[2 * (j * n + i) + k] = y[i] * X[2 * (i * T + t) + k];
    });
  });
  return rows;
}

/**
 * The margin problems of a selection: { head, support, strict, relaxed }, of which support are the head's support vectors, strict is p^mm,
 * and relaxed, of Eq. (10), the shortest p that separates the selected token of these inputs and merely selects it elsewhere.
 */
function solutionsOf(problem, selected) {
  const head = leastDistance(signedTokens(problem, [selected]), problem.n, 2, ones(problem.n));
  const support = Array.from(head.active, Boolean);
  const strict = attSvm(problem, selected);
  const { A, m, pairs } = strict;
  const relaxed = { ...leastDistance(A, m, 2, Float64Array.from(pairs, ({ input }) => Number(support[input]))), pairs };
  return { head, support, strict, relaxed };
}

/** The selections with the largest label margin, max_‖v‖≤1 min_i v·Y_i x_iα: { selections, margin }. */
function bestSelections(problem) {
  const extended = (all, length) => all.flatMap((chosen) => Array.from({ length }, (_, t) => [...chosen, t]));
  const selections = problem.lengths.reduce(extended, [[]]);
  const { length: count } = selections;
  const margins = leastDistances(signedTokens(problem, selections), ones(count * problem.n), count, problem.n, 2).map(marginOf);
  const margin = margins.reduce((largest, value) => Math.max(largest, value), 0);
  return { selections: selections.filter((_, k) => margins[k] >= margin * (1 - SAME_LABEL_MARGIN_RTOL)), margin };
}

/**
 * What a page shows of joint training: { margin, complete, found: [{ selected, support, head, strict, relaxed }] }, for each of the
 * selections with the largest label margin that some p makes; not complete where there are too many selections to try.
 *
 * head is the direction of v; strict solves ATT-SVM (A Thm 5), and relaxed A Eq. (10), which selects outside of the support without a
 * margin (A Thm 6); relaxed is null where that is not strict selecting. Whether the theorems apply, the library's `predict_limit` says.
 */
export function jointLimits(problem) {
  if (problem.lengths.reduce((total, length) => total * length, 1) > MAX_SELECTIONS) return { margin: NaN, complete: false, found: [] };
  const { selections, margin } = bestSelections(problem);
  const found = (margin > 0 ? selections : [])
    .map((selected) => ({ selected, ...solutionsOf(problem, selected) }))
    .filter(({ strict }) => strict.status === OPTIMAL)
    .map(({ head, relaxed, ...solutions }) => {
      const isSelecting = relaxed.status === OPTIMAL && rowsOf(relaxed.A).every((row) => dot(row, relaxed.x) > 0);
      return { ...solutions, head: directionOf(head), relaxed: isSelecting ? relaxed : null };
    });
  return { margin, complete: true, found };
}
