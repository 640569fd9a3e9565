// Head and attention trained together: the selections that a head tells apart best, and the two directions of A Theorems 5 and 6.

import { dot } from "./linalg.js";
import { attSvm, directionOf, leastDistance, marginOf, OPTIMAL } from "./margin.js";

const SAME_LABEL_MARGIN_RTOL = 1e-10; // label margins that agree to this share are the same
const MAX_SELECTIONS = 4096; // that may be tried one by one

/** The head's SVM on selected tokens: { solution, margin, support (n) }; margin is Γ = 1/‖v^mm‖, zero where labels cannot be separated. */
export function labelMargin(problem, selected) {
  const { n, T, dModel, X, y } = problem;
  const rows = new Float64Array(n * dModel);
  for (let i = 0; i < n; i++)
    for (let k = 0; k < dModel; k++) rows[i * dModel + k] = y[i] * X[(i * T + selected[i]) * dModel + k];
  const solution = leastDistance(rows, n, dModel, new Float64Array(n).fill(1));
  return { solution, margin: marginOf(solution), support: solution.active };
}

/** Shortest p that beats the other tokens by one in the inputs of the support and merely selects elsewhere (A Eq. (10)). */
export function relaxedSvm(problem, selected, support) {
  const { A, m, d, pairs } = attSvm(problem, selected);
  return { ...leastDistance(A, m, d, Float64Array.from(pairs, ({ input }) => (support[input] ? 1 : 0))), pairs };
}

/** Every choice of one token per input with the largest label margin, { selections, margin }; null where there are too many to try. */
export function bestSelections(problem, maxSelections = MAX_SELECTIONS) {
  const lengths = Array.from(problem.lengths);
  const count = lengths.reduce((total, length) => total * length, 1);
  if (count > maxSelections) return null;
  const tried = [];
  for (let number = 0; number < count; number++) {
    const selected = new Array(lengths.length);
    let rest = number;
    for (let i = lengths.length - 1; i >= 0; i--) {
      selected[i] = rest % lengths[i];
      rest = Math.floor(rest / lengths[i]);
    }
    tried.push({ selected, margin: labelMargin(problem, selected).margin });
  }
  const margin = Math.max(...tried.map((entry) => entry.margin));
  const selections = tried.filter((entry) => entry.margin >= margin * (1 - SAME_LABEL_MARGIN_RTOL)).map((entry) => entry.selected);
  return { selections, margin };
}

/**
 * Where the best pairs (v, p) of growing length go if mixing in other tokens costs label margin (A Assumption C), for each of the best
 * selections that some p makes: { margin, complete, found: [{ selected, support, head, strict, relaxed }] }.
 *
 * head is the direction of v; strict solves ATT-SVM (A Thm 5), and relaxed A Eq. (10), which selects outside of the support without a
 * margin (A Thm 6); relaxed is null where that is not strict selecting.
 */
export function jointLimits(problem) {
  const best = bestSelections(problem);
  if (best === null) return { margin: NaN, complete: false, found: [] };
  const found = [];
  for (const selected of best.margin > 0 ? best.selections : []) {
    const { solution, support } = labelMargin(problem, selected);
    const strict = attSvm(problem, selected);
    if (strict.status !== OPTIMAL) continue;
    const relaxed = relaxedSvm(problem, selected, support);
    const isSelecting =
      relaxed.status === OPTIMAL &&
      relaxed.pairs.every((_, r) => dot(relaxed.A.subarray(r * problem.d, (r + 1) * problem.d), relaxed.x) > 0);
    found.push({ selected, support: Array.from(support), head: directionOf(solution), strict, relaxed: isSelecting ? relaxed : null });
  }
  return { margin: best.margin, complete: true, found };
}
