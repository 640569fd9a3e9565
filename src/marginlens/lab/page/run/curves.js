// Curves beside the plane: norm, correlation with the predicted limits, attention and risk along the chosen start's run.

import { measurePoint } from "../../kernels/descent.js";
import { correlation, norm } from "../../kernels/linalg.js";
import { Charts } from "./chart.js";
import { stepScale } from "./curve_scale.js";
import { element, setText } from "../dom.js";
import { tokenName } from "../findings/sentences.js";
import { percent, short } from "../numbers.js";

const MAX_WORD = 9; // letters of a token's word beside a curve
const REBUILD_MS = 100; // between two drawings of the lines, while a run plays or something is dragged

/** p and v of a path's sample, or of the point shown where k is null. */
function sampleOf(path, k) {
  return k === null ? path.now : { step: path.steps[k], point: path.points[k], head: path.heads === null ? null : path.heads[k] };
}

const measured = new WeakMap(); // p → what was measured there

/** `measurePoint` at a sample, computed once. */
function measureOf(path, k) {
  const { point, head } = sampleOf(path, k);
  let known = measured.get(point);
  if (known === undefined) {
    known = measurePoint(path.problem, head === null ? point : Float64Array.from([...head, ...point]));
    measured.set(point, known);
  }
  return known;
}

/** Tokens whose attention is drawn: all of the chosen input, or of every input the one it attends to most: { input, token, label, sign, isTop }. */
export function attentionTokens(chosenInput, selected, problem) {
  const begun = (input, token) => (problem.words?.[input]?.[token] || null)?.slice(0, MAX_WORD);
  if (chosenInput === null) {
    const signs = (input, token) => (selected.length === 1 ? (begun(input, token) ?? `token ${token}`) : `in ${input}, ${begun(input, token) ?? `tok ${token}`}`);
    return selected.map((token, input) => ({ input, token, label: `input ${input}, ${tokenName(problem, input, token)}`, sign: signs(input, token), isTop: true }));
  }
  const tokens = Array.from({ length: problem.lengths[chosenInput] }, (_, token) => token);
  return tokens.map((token) => {
    const word = begun(chosenInput, token);
    const [label, sign] = [tokenName(problem, chosenInput, token), word ? `${token} ${word}` : `token ${token}`];
    return { input: chosenInput, token, label, sign, isTop: token === selected[chosenInput] };
  });
}

/** Directions that p is compared with: { label, sign, colour, direction }, sign being how the plane marks the limit. */
export function comparedLimits({ limits }) {
  return limits.map(({ mark, isGlobal, colour, direction }) => {
    const sign = `${mark}${isGlobal ? " ★" : ""}`;
    return { label: `limit ${sign}`, sign: `${sign}:`, colour, direction };
  });
}

const shareText = (x) => (x < 1e-4 ? "< 0.01 %" : percent(x));

const cosine = (point, direction) => (norm(point) > 0 ? correlation(point, direction) : NaN);

/**
 * The charts of a path: [{ title, about, range, format, lines: [{ label, sign, colour, isThin, value(k) }] }], sign being the label where
 * there is little room, value(k) that of sample k, or of the point shown where k is null.
 */
export function chartsOf(path, analysis, chosenInput) {
  const { T, joint } = path.problem;
  const accent = "var(--accent)";
  const { selected } = measureOf(path, path.steps.length - 1);
  const limits = comparedLimits(analysis);
  const charts = [
    {
      title: "Norm ‖p‖",
      about: "how far p has gone",
      range: null,
      format: short,
      lines: [{ label: "‖p‖", sign: "", colour: accent, value: (k) => norm(sampleOf(path, k).point) }],
    },
    {
      title: "Correlation with the predicted limits",
      about: "cosine; 1 is the same direction",
      range: [-1, 1],
      format: (x) => (x > 0.9995 && x < 1 ? `1 − ${short(1 - x, 1)}` : short(x)),
      lines: limits.map(({ label, sign, colour, direction }) => ({ label, sign, colour, value: (k) => cosine(sampleOf(path, k).point, direction) })),
    },
    {
      title: chosenInput === null ? "Attention to the selected tokens" : `Attention within input ${chosenInput}`,
      about: "share of the softmax",
      range: [0, 1],
      format: shareText,
      lines: attentionTokens(chosenInput, selected, path.problem).map(({ input, token, label, sign, isTop }) => ({
        label,
        sign,
        colour: isTop ? accent : "var(--muted)",
        isThin: !isTop,
        value: (k) => measureOf(path, k).attention[input * T + token],
      })),
    },
    {
      title: "Risk",
      about: `mean ${path.problem.loss.replace("-loss", "")} loss over the inputs`,
      range: null,
      format: short,
      lines: [{ label: "risk", sign: "", colour: accent, value: (k) => measureOf(path, k).risk }],
    },
  ];
  if (!joint) return charts;
  const head = analysis.head ?? null;
  charts.push({
    title: "Norm of the head ‖v‖",
    about: "how far the head has gone",
    range: null,
    format: short,
    lines: [{ label: "‖v‖", sign: "", colour: accent, value: (k) => norm(sampleOf(path, k).head) }],
  });
  if (head !== null)
    charts.push({
      title: "Correlation of the head",
      about: "cosine; 1 is the same direction",
      range: [-1, 1],
      format: short,
      lines: [{ label: "limit of v", sign: "v:", colour: head.colour, value: (k) => cosine(sampleOf(path, k).head, head.direction) }],
    });
  return charts;
}

export function mountCurves(root, store, runs) {
  const heading = element("p", { class: "small" });
  const grid = element("div", { class: "run-charts" });
  root.replaceChildren(heading, grid);
  let analysis = null;
  let shownKey = [];
  let lastBuilt = -Infinity;
  let timer = 0;
  const drawn = () => {
    const { state } = store;
    const place = Math.min(state.chosen.start ?? 0, runs.paths.length - 1);
    const path = runs.paths[place];
    if (path === undefined || analysis === null || analysis.problem === null) return;
    const input = state.chosen.input !== null && state.chosen.input < path.problem.n ? state.chosen.input : null;
    const key = [path, analysis, input, runs.end, charts.width, place];
    const isOther = key.some((entry, k) => entry !== shownKey[k]);
    const hasGrown = path.steps.length !== shownKey[key.length];
    const rest = lastBuilt + REBUILD_MS - performance.now();
    clearTimeout(timer);
    if (isOther || hasGrown) {
      if (rest > 0) timer = setTimeout(drawn, rest);
      if (rest > 0 && isOther) return;
    }
    if ((isOther || hasGrown) && rest <= 0) {
      shownKey = [...key, path.steps.length];
      setText(heading, runs.paths.length > 1 ? `The run from start ${place}, against its steps` : "The run, against its steps");
      charts.draw(chartsOf(path, analysis, input), path.steps, stepScale(runs.end));
      lastBuilt = performance.now();
    }
    charts.move(runs.step);
    if (!runs.isPlaying) charts.describe(runs.step);
  };
  const charts = new Charts(grid, () => {
    lastBuilt = -Infinity;
    drawn();
  });
  runs.subscribe(drawn);
  return {
    update(state, found) {
      analysis = found;
      drawn();
    },
  };
}
