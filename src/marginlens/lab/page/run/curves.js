// Curves beside the plane: norm, correlation with the predicted limits, attention and risk along the chosen start's run.

import { measurePoint } from "../../kernels/descent.js";
import { correlation, norm } from "../../kernels/linalg.js";
import { decimated, linePath, pushedApart, stepScale, valueScale } from "./curve_scale.js";
import { element, replace, setAttributes, setText, shape } from "../dom.js";
import { percent, short } from "../numbers.js";

const LABEL_HEIGHT = 15; // pixels of a line of text
const LABEL_WIDTH = 132; // at the right, where lines have their names
const AXIS_WIDTH = 40;
const TOP = 8;
const BOTTOM = 20;
const MIN_PLOT_HEIGHT = 64;
const WIDTH = 340; // of a chart before it is laid out
const MIN_WIDTH = 200;
const LETTER_WIDTH = 7; // of a tick's label, in px
const REBUILD_MS = 100; // between two drawings of the lines, while a run plays or something is dragged
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 3", "10 4", "4 4", "12 3 3 3"];

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
export function attentionTokens(chosenInput, selected, lengths) {
  if (chosenInput === null) {
    const signs = (input, token) => (selected.length === 1 ? `token ${token + 1}` : `in ${input + 1}, tok ${token + 1}`);
    return selected.map((token, input) => ({ input, token, label: `input ${input + 1}, token ${token + 1}`, sign: signs(input, token), isTop: true }));
  }
  const tokens = Array.from({ length: lengths[chosenInput] }, (_, token) => token);
  return tokens.map((token) => ({ input: chosenInput, token, label: `token ${token + 1}`, isTop: token === selected[chosenInput] }));
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
  const { T, lengths, joint } = path.problem;
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
      title: chosenInput === null ? "Attention to the selected tokens" : `Attention within input ${chosenInput + 1}`,
      about: "share of the softmax",
      range: [0, 1],
      format: shareText,
      lines: attentionTokens(chosenInput, selected, lengths).map(({ input, token, label, sign, isTop }) => ({
        label,
        sign,
        colour: isTop ? accent : "var(--muted)",
        isThin: !isTop,
        value: (k) => measureOf(path, k).attention[input * T + token],
      })),
    },
    {
      title: "Risk",
      about: `mean ${path.problem.loss === "CorrelationLoss" ? "correlation" : path.problem.loss.toLowerCase()} loss over the inputs`,
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

/** What a chart shows, as a sentence. */
export function chartSentence(chart, path, step) {
  const last = path.steps.length - 1;
  const parts = chart.lines.map(({ label, value }) => {
    const [first, now] = [value(0), value(null)];
    return `${label} ${Number.isFinite(first) ? `from ${chart.format(first)} to` : "is"} ${chart.format(now)}`;
  });
  const until = last < 0 || step === 0 ? "at the start" : `from step 0 to step ${step.toLocaleString("en")}`;
  return `${chart.title}, ${chart.about}, ${until}: ${parts.length > 0 ? parts.join("; ") : "there is no predicted limit"}.`;
}

/** The first and the last tick and those between whose labels have room. */
function spacedTicks(ticks, plotWidth) {
  const shown = ticks.slice(0, 1);
  const last = ticks.at(-1);
  const isFree = (a, b) => (b.at - a.at) * plotWidth > LETTER_WIDTH * (a.label.length + b.label.length + 1) * (b === last ? 0.75 : 0.5);
  for (const tick of ticks.slice(1, -1)) if (isFree(shown.at(-1), tick) && isFree(tick, last)) shown.push(tick);
  return ticks.length > 1 ? [...shown, last] : shown;
}

/** The SVG of a chart, axes and lines up to the last step taken, and what puts the cursor, with names and values, at a step: { svg, move }. */
function drawnChart(chart, path, end, width) {
  const plotWidth = Math.max(60, width - AXIS_WIDTH - LABEL_WIDTH);
  const plotHeight = Math.max(MIN_PLOT_HEIGHT, LABEL_HEIGHT * chart.lines.length);
  const height = plotHeight + TOP + BOTTOM;
  const horizontal = stepScale(end);
  const places = decimated(path.steps, end, horizontal.at, plotWidth);
  const values = chart.lines.map(({ value }) => places.map(value));
  const vertical = valueScale(values.flat(), chart.range);
  const x = (at) => AXIS_WIDTH + at * plotWidth;
  const y = (value) => TOP + (1 - Math.min(1, Math.max(0, vertical.at(value)))) * plotHeight;
  const ink = { stroke: "var(--line)", "stroke-width": 1 };
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "chart" });
  for (const { at, label } of vertical.ticks) {
    const place = TOP + (1 - at) * plotHeight;
    svg.append(
      shape("line", { x1: x(0), x2: x(1), y1: place, y2: place, ...ink, opacity: 0.6 }),
      shape("text", { x: AXIS_WIDTH - 4, y: place + 4, "text-anchor": "end" }, label),
    );
  }
  spacedTicks(horizontal.ticks, plotWidth).forEach(({ at, label }, k) => {
    const anchor = k === 0 ? "start" : at > 0.95 ? "end" : "middle";
    svg.append(
      shape("line", { x1: x(at), x2: x(at), y1: TOP + plotHeight, y2: TOP + plotHeight + 4, ...ink }),
      shape("text", { x: x(at), y: height - 4, "text-anchor": anchor }, label),
    );
  });
  svg.append(shape("text", { x: x(1) + 8, y: height - 4, style: "fill:var(--muted)" }, "step"));
  const cursor = shape("line", { class: "cursor", y1: TOP, y2: TOP + plotHeight, stroke: "var(--ink)", "stroke-dasharray": "2 2" });
  svg.append(shape("line", { x1: x(0), x2: x(1), y1: TOP + plotHeight, y2: TOP + plotHeight, ...ink }), cursor);
  chart.lines.forEach(({ colour, isThin }, line) => {
    const points = places.map((k, place) => [x(horizontal.at(path.steps[k])), y(values[line][place])]);
    const dash = chart.lines.length > 1 ? DASHES[line % DASHES.length] : "";
    const style = { fill: "none", style: `stroke:${colour}`, "stroke-width": isThin ? 1.25 : 2, "stroke-linejoin": "round" };
    svg.append(shape("path", { d: linePath(points), ...style, "stroke-dasharray": dash || null }));
  });
  const marks = chart.lines.map(({ label, sign = label, colour }) => {
    const number = shape("tspan", { "font-weight": 600 });
    const mark = {
      dot: shape("circle", { r: 3, style: `fill:${colour}` }),
      rule: shape("line", { x1: x(1) + 4, x2: x(1) + 12, style: `stroke:${colour}`, "stroke-width": 3 }),
      text: shape("text", { x: x(1) + 15 }, sign === "" ? "" : `${sign} `, number),
    };
    svg.append(mark.dot, mark.rule, mark.text);
    return { ...mark, number };
  });
  const move = (step) => {
    const at = x(horizontal.at(Math.min(step, end)));
    setAttributes(cursor, { x1: at, x2: at });
    const shown = chart.lines.map(({ value }) => value(null));
    const heights = shown.map((value) => (Number.isFinite(value) ? y(value) : TOP + plotHeight / 2));
    const apart = pushedApart(heights, LABEL_HEIGHT, TOP + 4, TOP + plotHeight);
    marks.forEach(({ dot, rule, text, number }, line) => {
      setAttributes(dot, { cx: at, cy: heights[line], visibility: Number.isFinite(shown[line]) ? null : "hidden" });
      setAttributes(rule, { y1: apart[line], y2: apart[line] });
      text.setAttribute("y", apart[line] + 4);
      setText(number, chart.format(shown[line]));
    });
  };
  return { svg, move };
}

export function mountCurves(root, store, runs) {
  const heading = element("p", { class: "small" });
  const grid = element("div", { class: "run-charts" });
  root.replaceChildren(heading, grid);
  let figures = [];
  let analysis = null;
  let charts = [];
  let width = 0; // of a chart, measured again when the panel's width changes
  const figureOf = (place) => {
    if (figures[place] === undefined) {
      const [title, about, picture] = [element("h3"), element("span", { class: "small" }), element("div", { role: "img" })];
      const node = element("figure", {}, element("figcaption", {}, title, " ", about), picture);
      figures[place] = { node, title, about, picture };
    }
    return figures[place];
  };
  let shownKey = [];
  let moves = [];
  let lastBuilt = -Infinity;
  let timer = 0;
  const drawn = () => {
    const { state } = store;
    const place = Math.min(state.chosen.start ?? 0, runs.paths.length - 1);
    const path = runs.paths[place];
    if (path === undefined || analysis === null || analysis.problem === null) return;
    const input = state.chosen.input !== null && state.chosen.input < path.problem.n ? state.chosen.input : null;
    if (width === 0) width = Math.max(MIN_WIDTH, Math.floor(figures[0]?.picture.clientWidth || WIDTH));
    const key = [path, analysis, input, runs.end, width, place];
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
      rebuild(path, place, input);
      lastBuilt = performance.now();
    }
    for (const move of moves) move(runs.step);
    if (runs.isPlaying) return;
    charts.forEach((chart, k) => figures[k].picture.setAttribute("aria-label", chartSentence(chart, path, runs.step)));
  };
  const rebuild = (path, place, input) => {
    charts = chartsOf(path, analysis, input);
    setText(heading, runs.paths.length > 1 ? `The run from start ${place + 1}, against its steps` : "The run, against its steps");
    const shown = charts.map((_, k) => figureOf(k));
    if (grid.childElementCount !== shown.length) grid.replaceChildren(...shown.map(({ node }) => node));
    moves = charts.map((chart, k) => {
      setText(shown[k].title, chart.title);
      setText(shown[k].about, chart.about);
      const { svg, move } = drawnChart(chart, path, runs.end, width);
      replace(shown[k].picture, svg);
      return move;
    });
  };
  runs.subscribe(drawn);
  let lastWidth = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === lastWidth) return;
    lastWidth = root.clientWidth;
    width = 0;
    lastBuilt = -Infinity;
    drawn();
  }).observe(root);
  return {
    update(state, found) {
      analysis = found;
      drawn();
    },
  };
}
