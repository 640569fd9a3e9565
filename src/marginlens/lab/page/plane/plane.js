// The plane: tokens, head, starts, predicted limits, separating lines, cones and descent paths, moved by pointer, touch and keyboard.

import { powerNorm } from "../../kernels/norms.js";
import { optimalTokens } from "../../kernels/optimality.js";
import { basinCone } from "../../kernels/theorems.js";
import { shownLimit } from "../analysis.js";
import { mountBasins } from "./basin_picture.js";
import { element, replace, setText, shape, styledCopy } from "../dom.js";
import { tokenName } from "../findings/sentences.js";
import { pointText, short } from "../numbers.js";
import {
  axisTicks, drawnPath, fittingHalf, linePixels, markerPath, moved, pathThrough, pathUpTo, planeScale, rayEnd, rounded,
  sectorPixels, zoomed,
} from "./plane_scale.js";
import { addStart, removeStart, removeToken, withChosen, withHead, withKey, withStart, withToken, withView } from "../state.js";
import { text as textOf } from "../words.js";

const SMALL_STEP = 1 / 100; // of the view's width, for an arrow key
const LARGE_STEP = 1 / 10; // with Shift
const KEY_BURST_MS = 1000; // arrow keys closer than this are one change
const [SMALLEST_MARKER, LARGEST_MARKER] = [5.5, 10]; // pixels: radii of the lowest and the highest score of an input
const [FINE_HIT, COARSE_HIT] = [12, 22]; // pixels: radii at which mouse and fingers hold a handle
const SAME_PLACE_PIXELS = 5; // tokens closer than this have their labels side by side
const INVITATION = " drag me"; // behind the name of a handle until something was moved
const ARROW_INSET = 72; // pixels from the edge at which the arrow p ends where p is outside, clear of the marks of limits
const [PILL_HEIGHT, LETTER_PIXELS] = [22, 7.6]; // of the marks of limits
const WHEEL_ZOOM = 1.0015; // for each pixel of the wheel
const BUTTON_ZOOM = 1.5;
const KEY_OF_ARROW = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** Write an attribute where it differs. */
function put(node, name, value) {
  const text = String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** A pixel no further out than pictures can be drawn. */
function clipped(pixel) {
  return pixel.map((entry) => Math.min(1e5, Math.max(-1e5, entry)));
}

/** SVG nodes of a layer by name, made when first asked for and taken out when an update has not asked for them. */
class Nodes {
  #made = new Map();
  #used = new Set();

  constructor(layer) {
    this.layer = layer;
  }

  /** The node of a name; make() gives it where there is none yet. */
  get(name, make) {
    this.#used.add(name);
    let node = this.#made.get(name);
    if (node === undefined) {
      node = make();
      this.#made.set(name, node);
      this.layer.append(node);
    }
    return node;
  }

  find(name) {
    return this.#made.get(name) ?? null;
  }

  /** Take out what was not asked for since the last sweep. */
  sweep() {
    for (const [name, node] of this.#made)
      if (!this.#used.has(name)) {
        node.remove();
        this.#made.delete(name);
      }
    this.#used.clear();
  }
}

/** Points of the inputs that the plane shows: where keys are given apart, those are the hollow ones. */
function pointsOf(problem) {
  const tokens = problem.tokens ?? problem.keys;
  return { tokens, keys: problem.tokens && problem.keys ? problem.keys : null, isByKeys: !problem.tokens };
}

/** Whether a handle is the tip of an arrow from the origin. */
function isArrow({ kind }) {
  return kind === "head" || kind === "guess";
}

/** How much of a limit's multipliers each token carries, of one in all: support[i][t]. */
export function supportShares(limit, lengths, dependent) {
  const shares = Array.from(lengths, (length) => new Array(length).fill(0));
  const { pairs, multipliers } = limit?.solution ?? {};
  if (!pairs || !multipliers) return shares;
  const total = multipliers.reduce((sum, multiplier) => sum + multiplier, 0);
  if (!(total > 0)) return shares;
  const isPart = dependent && dependent.length > 0 && dependent.length < lengths.length;
  pairs.forEach(({ input, selected, other }, r) => {
    const i = isPart ? dependent[input] : input;
    shares[i][selected] += multipliers[r] / total;
    shares[i][other] += multipliers[r] / total;
  });
  return shares;
}

/** For each input with two tokens, where a direction puts its selected and its closest other token: [{ input, top, next }]. */
export function separations(keys, limit) {
  return keys.flatMap((input, i) => {
    const along = input.map((key) => key[0] * limit.direction[0] + key[1] * limit.direction[1]);
    const others = along.filter((_, t) => t !== limit.selected[i]);
    return others.length > 0 ? [{ input: i, top: along[limit.selected[i]], next: Math.max(...others) }] : [];
  });
}

/** What can be moved, chosen and removed: { id, point, name, value, move?, remove?, choose } in the order of the keyboard. */
function handlesOf(state, analysis) {
  const { problem, starts } = state;
  const { tokens, keys, isByKeys } = pointsOf(problem);
  const kernel = analysis.problem;
  const scoreOf = (i, t) => (kernel?.hasScores ? kernel.scores[i * kernel.T + t] : null);
  const found = [];
  tokens.forEach((input, i) =>
    input.forEach((point, t) => {
      const score = scoreOf(i, t);
      const name = `${tokenName(problem, i, t)} of input ${i}`;
      found.push({
        id: `token:${i}:${t}`, kind: "token", i, t, score, point, name, word: problem.words?.[i][t] ?? "",
        value: `${score === null ? "" : `score ${short(score)}, `}at ${pointText(point)}`,
        move: (at) => (before) => (isByKeys ? withKey : withToken)(before, i, t, at),
        remove: (before) => removeToken(before, i, t),
        choose: { input: i, token: t },
      });
    }),
  );
  keys?.forEach((input, i) =>
    input.forEach((point, t) => {
      const name = `key of ${tokenName(problem, i, t)} of input ${i}`;
      found.push({
        id: `key:${i}:${t}`, kind: "key", i, t, point, name, value: `at ${pointText(point)}`,
        move: (at) => (before) => withKey(before, i, t, at),
        choose: { input: i, token: t },
      });
    }),
  );
  if (problem.train === "both") {
    const point = problem.start_head ?? [0, 0];
    found.push({
      id: "head", kind: "head", point, name: "head v at the start", value: `at ${pointText(point)}`,
      move: (at) => (before) => ({ ...before, problem: { ...before.problem, start_head: at } }), choose: {},
    });
  } else if (problem.head?.length === 2)
    found.push({
      id: "head", kind: "head", point: problem.head, name: "head v", value: `at ${pointText(problem.head)}`,
      move: (at) => (before) => withHead(before, at), choose: {},
    });
  if (state.view.guess !== null)
    found.push({
      id: "guess", kind: "guess", point: state.view.guess, name: "your guess", value: `towards ${pointText(state.view.guess)}`,
      move: (at) => (before) => withView(before, { guess: at }), choose: {},
    });
  starts.forEach((point, k) =>
    found.push({
      id: `start:${k}`, kind: "start", k, point, name: `start ${k}`, value: `at ${pointText(point)}`,
      move: (at) => (before) => withStart(before, k, at),
      remove: (before) => removeStart(before, k),
      choose: { start: k },
    }),
  );
  for (const limit of analysis.limits)
    found.push({
      id: `limit:${limit.index}`, kind: "limit", k: limit.index, limit, point: null,
      name: `limit ${limit.mark}${limit.isGlobal ? ", the best" : ""}`,
      value: `selects ${Array.from(limit.selected, (t, i) => `${tokenName(problem, i, t)} of input ${i}`).join(", ")}; margin ${short(limit.margin)}`,
      choose: { limit: limit.index },
    });
  return found;
}

/** The lowest and the highest score of every input, by its number. */
function scoreRanges(handles) {
  const ranges = new Map();
  for (const { kind, i, score } of handles) {
    if (kind !== "token" || score === null) continue;
    const [low, high] = ranges.get(i) ?? [Infinity, -Infinity];
    ranges.set(i, [Math.min(low, score), Math.max(high, score)]);
  }
  return ranges;
}

/** A token's marker radius in pixels, by its score between the lowest and the highest. */
function markerRadius(score, range) {
  let height = 0.5;
  if (score !== null) height = range[1] > range[0] ? (score - range[0]) / (range[1] - range[0]) : 1;
  return SMALLEST_MARKER + height * (LARGEST_MARKER - SMALLEST_MARKER);
}

/** The plane in its region, with the basins under it; `runs` gives the descent paths. */
export function mountPlane(root, store, runs = null) {
  const canvas = root.querySelector("canvas") ?? element("canvas", { id: "basins" });
  const layers = Object.fromEntries(
    ["grid", "cones", "bands", "limits", "paths", "rings", "joins", "heads", "handles", "points"].map((name) => [name, shape("g", { class: `plane-${name}` })]),
  );
  const nodes = Object.fromEntries(Object.entries(layers).map(([name, layer]) => [name, new Nodes(layer)]));
  const svg = shape("svg", { class: "plane-picture", role: "group", "aria-label": "The plane of tokens and attention weights", "aria-describedby": "plane-print" }, Object.values(layers));
  const square = element("div", { class: "plane-square" }, canvas, svg);
  const legend = element("ul", { class: "plane-legend", "aria-label": "Inputs" });
  const note = element("p", { class: "plane-note" });
  const basinLegend = element("div", { class: "basin-legend" });
  const controls = planeControls(store);
  replace(root, square);
  replace(
    document.getElementById("plane-view"),
    controls.node,
    legend,
    basinLegend,
    note,
    element("p", { class: "print", id: "plane-print" }, textOf("lab.plane")),
  );
  const basins = mountBasins(canvas, store, basinLegend);
  const isCoarse = matchMedia("(pointer: coarse)");
  let side = 0; // the height in pixels
  let pad = 0; // pixels by which the picture reaches further to the left and to the right
  let isInviting = true; // until something was moved
  let scale = null;
  let shown = null; // { state, analysis } of the last update
  let handles = [];
  let current = "token:0:0"; // the handle that Tab reaches
  let cones = null; // of the last analysis
  let drawn = new Map(); // drawn paths by start
  let gestures = 0;
  let dragged = null; // the handle that a pointer holds
  const looks = new WeakMap(); // what the nodes of handles show
  let lastKey = { id: null, time: -Infinity, gesture: null };

  // ---- drawing

  function drawGrid(view) {
    const grid = nodes.grid;
    const centre = side / 2;
    const line = (name, attributes) => {
      const node = grid.get(name, () => shape("line", { class: name.startsWith("axis") ? "axis" : "tick" }));
      for (const [key, value] of Object.entries(attributes)) put(node, key, typeof value === "number" ? value.toFixed(1) : value);
    };
    const text = (name, x, y, content, anchor = "middle") => {
      const node = grid.get(name, () => shape("text", { class: "tick-text" }));
      put(node, "x", x.toFixed(1));
      put(node, "y", y.toFixed(1));
      put(node, "text-anchor", anchor);
      setText(node, content);
    };
    line("axis-x", { x1: -pad, y1: centre, x2: side + pad, y2: centre });
    line("axis-y", { x1: centre, y1: 0, x2: centre, y2: side });
    text("name-x", side + pad - 8, side - 8, "p₁ →", "end");
    text("name-y", 8 - pad, 16, "↑ p₂", "start");
    for (const value of axisTicks(view.half, scale.wide)) {
      const [x, y] = scale.toPixel([value, value]);
      line(`x${value}`, { x1: x, y1: centre - 3, x2: x, y2: centre + 3 });
      text(`tx${value}`, x, centre + 16, short(value));
      if (Math.abs(value) >= 0.97 * view.half) continue;
      line(`y${value}`, { x1: centre - 3, y1: y, x2: centre + 3, y2: y });
      text(`ty${value}`, centre - 7, y + 4, short(value), "end");
    }
    grid.sweep();
  }

  function drawCones(state, analysis) {
    const { view } = state;
    const notes = [];
    if (view.cones && analysis.problem && !analysis.problem.joint) {
      if (cones?.of !== analysis)
        cones = { of: analysis, found: analysis.limits.map((limit) => basinCone(analysis.problem, limit.selected)) };
      analysis.limits.forEach((limit, k) => {
        const cone = cones.found[k];
        if (cone === null || !(cone.mu > 0)) return;
        if (cone.radius >= scale.far) notes.push(`the cone of the limit ${limit.mark} begins at norm ${short(cone.radius)}, beyond this view`);
        const node = nodes.cones.get(limit.index, () => shape("path", { class: "cone" }));
        put(node, "d", pathThrough(sectorPixels(scale, limit.direction, Math.acos(1 - cone.mu), cone.radius), true));
        node.style.setProperty("--colour", limit.colour);
      });
    }
    nodes.cones.sweep();
    const sentence = notes.join("; ");
    setText(note, sentence === "" ? "" : `${sentence[0].toUpperCase()}${sentence.slice(1)}.`);
    note.hidden = sentence === "";
  }

  function drawBands(state, limit) {
    const { tokens, keys } = pointsOf(state.problem);
    if (state.view.lines && limit && !(limit.margin === Infinity)) {
      const along = [-limit.direction[1], limit.direction[0]];
      const length = powerNorm(limit.direction, limit.power); // as the optimizer measures it, so that the smallest lead is the margin
      const at = (offset) => limit.direction.map((entry) => entry * offset);
      separations(keys ?? tokens, limit).forEach(({ input, top, next }, place, all) => {
        const [upper, lower] = [linePixels(scale, at(top), along), linePixels(scale, at(next), along)];
        const isFaint = state.chosen.input !== null && state.chosen.input !== input;
        const group = nodes.bands.get(input, () =>
          shape("g", { class: "band", style: { "--colour": `var(--input-${input})` } }, shape("path"), shape("path", { class: "top" }), shape("path", { class: "next" }), shape("text")),
        );
        const [area, first, second, text] = group.children;
        put(group, "class", isFaint ? "band faint" : "band");
        put(area, "d", pathThrough([...upper, ...lower.slice().reverse()], true));
        put(first, "d", pathThrough(upper));
        put(second, "d", pathThrough(lower));
        const shift = scale.half * (0.86 - (0.3 * place) / all.length);
        const middle = (top + next) / 2;
        const label = scale.toPixel(at(middle).map((entry, k) => entry + shift * along[k]));
        put(text, "x", Math.min(side + pad - 30, Math.max(30 - pad, label[0])).toFixed(1));
        put(text, "y", Math.min(side - 8, Math.max(14, label[1] + 4)).toFixed(1));
        setText(text, isFaint || top <= next ? "" : `lead ${short((top - next) / length)}`);
      });
    }
    nodes.bands.sweep();
  }

  /** Where the pill at the end of a ray stands: whole inside the picture, and off the names of the axes in its corners. */
  function pillPlace(end, width) {
    const centre = side / 2;
    const length = Math.hypot(end[0] - centre, end[1] - centre);
    const at = (back) => {
      const place = end.map((entry) => entry - (back / length) * (entry - centre));
      return place.map((entry, axis) => {
        const [room, beyond] = axis ? [2 + PILL_HEIGHT / 2, 0] : [2 + width / 2, pad];
        return Math.min(side + beyond - room, Math.max(room - beyond, entry));
      });
    };
    const first = at(16);
    const isOnName = [[-pad, 0], [side + pad, side]].some((corner) => Math.abs(first[0] - corner[0]) < 44 + width / 2 && Math.abs(first[1] - corner[1]) < 36);
    return isOnName ? at(70) : first;
  }

  function drawLimits(analysis, limit) {
    for (const one of analysis.limits) {
      const node = nodes.limits.get(one.index, () =>
        shape("g", { class: "limit", "data-handle": `limit:${one.index}`, role: "button" },
          shape("path", { class: "limit-hit" }), shape("path", { class: "limit-ray" }), shape("rect", { class: "limit-mark", rx: 11 }), shape("text", { class: "limit-text" }),
          shape("path", { class: "limit-euclidean" })),
      );
      const [hit, ray, pill, text, euclidean] = node.children;
      const isFlat = !(Math.hypot(...one.direction) > 0);
      node.style.setProperty("--colour", one.colour);
      put(node, "class", `limit${one === limit ? " chosen" : ""}${one.isGlobal ? " global" : ""}`);
      put(node, "aria-pressed", one === limit);
      if (isFlat) continue;
      const end = scale.toPixel(rayEnd(scale, one.direction));
      const centre = side / 2;
      const d = pathThrough([[centre, centre], end]);
      put(hit, "d", d);
      put(ray, "d", d);
      put(euclidean, "d", one.euclidean ? pathThrough([[centre, centre], scale.toPixel(rayEnd(scale, one.euclidean.direction))]) : "");
      const words = `${one.mark}${one.isGlobal ? " ★" : ""}`;
      const width = 9 + LETTER_PIXELS * words.length;
      const place = pillPlace(end, width);
      for (const [name, value] of Object.entries({ x: place[0] - width / 2, y: place[1] - PILL_HEIGHT / 2, width, height: PILL_HEIGHT })) put(pill, name, value.toFixed(1));
      put(text, "x", place[0].toFixed(1));
      put(text, "y", (place[1] + 4.5).toFixed(1));
      setText(text, words);
    }
    nodes.limits.sweep();
  }

  function drawRings(state, analysis, limit) {
    const kernel = analysis.problem;
    if (kernel) {
      const shares = limit ? supportShares(limit, kernel.lengths, analysis.prediction?.dependent) : [];
      const optimal = kernel.hasScores ? optimalTokens(kernel) : [];
      for (const handle of handles) {
        if (handle.kind !== "token") continue;
        const { i, t } = handle;
        const share = shares[i]?.[t] ?? 0;
        const isSelected = limit?.selected[i] === t;
        const isOptimal = optimal[i] === t;
        if (share === 0 && !isSelected && !isOptimal) continue;
        const node = nodes.rings.get(handle.id, () => shape("g", { class: "ring" }, shape("circle", { class: "selected" }), shape("circle", { class: "support" }), shape("text", { class: "optimal" })));
        const [selected, support, text] = node.children;
        const [x, y] = handles.find((other) => other.id === `key:${i}:${t}`)?.pixel ?? handle.pixel; // attention reads keys
        put(node, "transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
        if (limit) node.style.setProperty("--colour", limit.colour);
        put(selected, "r", isSelected ? (handle.radius + 4).toFixed(1) : 0);
        put(support, "r", share > 0 ? (handle.radius + 7).toFixed(1) : 0);
        put(support, "stroke-width", (1 + 4 * share).toFixed(1));
        put(text, "x", (handle.pixel[0] - x).toFixed(1));
        put(text, "y", (handle.pixel[1] - y - handle.radius - 6).toFixed(1));
        setText(text, isOptimal ? "▲" : "");
      }
    }
    nodes.rings.sweep();
  }

  /** A handle's group: what is drawn of it, and a circle that pointers and focus hit. */
  function handleNode(handle) {
    return nodes.handles.get(handle.id, () => {
      const drawing = isArrow(handle) ? shape("path", { d: "M-9 -6L5 0L-9 6L-6 0Z" }) : handle.kind === "start" ? shape("circle", { r: 6.5 }) : shape("path");
      const style = { "--colour": `var(--input-${handle.i ?? 0})` };
      return shape("g", { class: handle.kind, "data-handle": handle.id, role: "slider", "aria-roledescription": "point of the plane", style },
        shape("circle", { class: "hit" }), drawing, shape("text", { class: "handle-text" }));
    });
  }

  function drawHandles(state, limit) {
    const taken = { token: [], start: [] }; // where labels stand
    const ranges = scoreRanges(handles);
    const hitRadius = isCoarse.matches ? COARSE_HIT : FINE_HIT;
    const labels = state.problem.labels ?? [];
    const isSigned = labels.some((label) => label === -1);
    for (const handle of handles) {
      if (handle.kind === "limit") continue;
      handle.pixel = scale.toPixel(handle.point);
      handle.radius = handle.kind === "token" ? markerRadius(handle.score, ranges.get(handle.i)) : 7;
      const [x, y] = handle.pixel;
      const { chosen } = state;
      const isOut = x < -pad - 20 || y < -20 || x > side + pad + 20 || y > side + 20;
      const isChosen = handle.kind === "start" ? chosen.start === handle.k : handle.kind === "token" && chosen.input === handle.i && chosen.token === handle.t;
      const classes = [handle.kind, isChosen && "chosen", isOut && "out", handle.id === dragged && "dragged"].filter(Boolean).join(" ");
      let column = 0;
      if (handle.kind in taken) {
        column = taken[handle.kind].filter((other) => Math.abs(other[0] - x) + Math.abs(other[1] - y) < SAME_PLACE_PIXELS).length;
        taken[handle.kind].push(handle.pixel);
      }
      const sign = isSigned ? (labels[handle.i] === -1 ? "⁻" : "⁺") : "";
      const size = (handle.kind === "key" ? 6 : handle.radius).toFixed(1);
      const node = handleNode(handle);
      const invites = isInviting && !dragged && (state.view.guess === null ? handle.kind === "start" && isChosen : handle.kind === "guess") ? INVITATION : "";
      const look = `${classes}${invites} ${column} ${sign} ${size} ${hitRadius} ${handle.value} ${handle.word}`;
      const last = looks.get(node);
      if (last?.look === look && last.scale === scale && last.point === handle.point) continue;
      looks.set(node, { look, scale, point: handle.point });
      const [hit, drawing, text] = node.children;
      put(hit, "r", hitRadius);
      put(node, "transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      put(node, "class", classes);
      put(node, "aria-label", `${handle.name}, ${handle.value}; arrow keys move it`);
      put(node, "aria-valuetext", handle.value);
      put(node, "aria-valuenow", Number(handle.point[0].toPrecision(4)));
      put(node, "aria-valuemin", -scale.far);
      put(node, "aria-valuemax", scale.far);
      if (isArrow(handle)) put(drawing, "transform", `rotate(${((-Math.atan2(handle.point[1], handle.point[0]) * 180) / Math.PI).toFixed(1)})`);
      if (handle.kind === "token" || handle.kind === "key") put(drawing, "d", markerPath(handle.i, Number(size)));
      put(text, "x", ((handle.kind === "start" ? -7 : handle.radius + 5) + 16 * column).toFixed(1));
      put(text, "y", { head: -8, guess: -10, start: 20 }[handle.kind] ?? 4);
      setText(text, { token: `${handle.word || handle.t}${sign}`, key: "", head: "v", guess: invites, start: `s${handle.k}${invites}` }[handle.kind]);
    }
    nodes.handles.sweep();
    for (const handle of handles) {
      if (handle.kind !== "key" && !isArrow(handle)) continue;
      const from = isArrow(handle) ? [side / 2, side / 2] : handles.find((other) => other.id === `token:${handle.i}:${handle.t}`).pixel;
      const node = nodes.joins.get(handle.id, () => shape("path", { class: isArrow(handle) ? `${handle.kind}-line` : "join" }));
      put(node, "d", pathThrough([from, handle.pixel]));
      if (handle.kind === "key") node.style.setProperty("--colour", `var(--input-${handle.i})`);
    }
    nodes.joins.sweep();
    for (const handle of handles)
      if (handle.kind === "limit") {
        const node = nodes.limits.find(handle.k);
        put(node, "aria-label", `${handle.name}: ${handle.value}; Enter chooses it`);
      }
    if (!handles.some((handle) => handle.id === current)) current = handles[0]?.id;
    for (const handle of handles) put(nodeOf(handle.id), "tabindex", handle.id === current ? 0 : -1);
  }

  function nodeOf(id) {
    return id.startsWith("limit:") ? nodes.limits.find(Number(id.slice(6))) : nodes.handles.find(id);
  }

  /** The arrow p of the chosen start, from the origin as far as the picture reaches. */
  function drawArrow(pixel) {
    const centre = side / 2;
    const [x, y] = pixel.map((entry) => entry - centre);
    const factor = Math.min(1, (centre + pad - ARROW_INSET) / Math.abs(x), (centre - ARROW_INSET) / Math.abs(y));
    const [tipX, tipY] = [centre + factor * x, centre + factor * y];
    const node = nodes.heads.get("p", () => shape("g", { class: "arrow" }, shape("line"), shape("path", { d: "M-11 -6L4 0L-11 6L-8 0Z" }), shape("text", { "text-anchor": "middle" }, "p")));
    const [line, tip, text] = node.children;
    for (const [name, value] of Object.entries({ x1: centre, y1: centre, x2: tipX, y2: tipY })) put(line, name, value.toFixed(1));
    const length = Math.hypot(x, y);
    put(tip, "transform", `translate(${tipX.toFixed(1)} ${tipY.toFixed(1)}) rotate(${((Math.atan2(y, x) * 180) / Math.PI).toFixed(1)})`);
    const aside = length > 0 ? [(-16 * x - 12 * y) / length, (-16 * y + 12 * x) / length] : [12, 12];
    put(text, "x", (tipX + aside[0]).toFixed(1));
    put(text, "y", (tipY + aside[1] + 4).toFixed(1));
  }

  function drawPaths() {
    if (!scale || !shown) return;
    const { state } = shown;
    if (runs && state.view.paths)
      runs.paths.forEach((path, k) => {
        let entry = drawn.get(k);
        if (!entry || entry.scale !== scale || entry.points !== path.points || entry.count !== path.points.length) {
          entry = { scale, points: path.points, count: path.points.length, line: drawnPath(scale, path.points, path.steps) };
          drawn.set(k, entry);
        }
        const node = nodes.paths.get(k, () => shape("path", { class: "path" }));
        const point = path.now ? path.now.point : path.points[path.points.length - 1];
        const pixel = clipped(scale.toPixel(point)).map((entry) => entry.toFixed(1));
        const line = pathUpTo(entry.line, runs.step);
        put(node, "d", line === "" ? "" : `${line}L${pixel[0]} ${pixel[1]}`);
        put(node, "class", state.chosen.start === k ? "path chosen" : "path");
        if (path.now?.head && (state.chosen.start ?? 0) === k) {
          const arrow = nodes.heads.get("now", () => shape("path", { class: "head-now" }));
          put(arrow, "d", pathThrough([[side / 2, side / 2], clipped(scale.toPixel(path.now.head))]));
        }
        if (state.view.guess === null && (state.chosen.start ?? 0) === k) drawArrow(clipped(scale.toPixel(point)));
        const dot = nodes.points.get(k, () => shape("circle", { class: "path-point", r: 4.5 }));
        put(dot, "cx", pixel[0]);
        put(dot, "cy", pixel[1]);
      });
    nodes.paths.sweep();
    nodes.points.sweep();
    nodes.heads.sweep();
  }

  function drawLegend(state, limit) {
    const { tokens } = pointsOf(state.problem);
    const labels = state.problem.labels ?? [];
    const key = `${tokens.length} ${labels.join()}`;
    if (legend.dataset.of === key) return;
    legend.dataset.of = key;
    replace(
      legend,
      tokens.map((_, i) =>
        element("li", {},
          shape("svg", { viewBox: "-12 -12 24 24", width: 16, height: 16, "aria-hidden": "true" },
            shape("path", { d: markerPath(i, 7), class: "legend-marker", style: { "--colour": `var(--input-${i})` } })),
          ` input ${i}, label ${labels[i] === -1 ? "−1" : "+1"}`),
      ),
      element("li", {}, "▲ highest score"),
      element("li", {}, "→ 3: a limit, named by the token that it selects"),
      element("li", {}, "◯ selected by the limit"),
      element("li", {}, "◌ support: the wider the ring, the larger its multiplier"),
    );
  }

  function draw() {
    if (!shown || side < 2) return;
    const { state } = shown;
    const { view } = state;
    const isGuessing = view.guess !== null; // then nothing that gives the answer away is drawn
    const analysis = isGuessing ? { ...shown.analysis, limits: [] } : shown.analysis;
    const wide = 1 + (2 * pad) / side;
    if (!scale || scale.side !== side || scale.wide !== wide || scale.half !== view.half) {
      scale = planeScale(view, side, wide);
      put(svg, "viewBox", `${-pad} 0 ${side + 2 * pad} ${side}`);
      drawGrid(view);
    }
    const limit = shownLimit(state, analysis);
    handles = handlesOf(state, analysis);
    drawCones(state, analysis);
    drawBands(state, limit);
    drawLimits(analysis, limit);
    drawHandles(state, limit);
    drawRings(state, analysis, limit);
    drawPaths();
    drawLegend(state, limit);
    controls.update(state);
  }

  // ---- moving

  function pixelOf(event) {
    const box = svg.getBoundingClientRect();
    return [((event.clientX - box.left) * (side + 2 * pad)) / box.width - pad, ((event.clientY - box.top) * side) / box.height];
  }

  function moveTo(handle, pixel, gesture) {
    const point = rounded(scale, scale.toPlane(pixel));
    store.apply(`move ${handle.name}`, handle.move(point), { gesture });
  }

  function choose(handle) {
    if (Object.keys(handle.choose).length > 0)
      store.apply(`choose ${handle.name}`, (before) => withChosen(before, handle.choose), { undoable: false });
  }

  function focusOn(id, isFocused = true) {
    current = id;
    for (const handle of handles) put(nodeOf(handle.id), "tabindex", handle.id === id ? 0 : -1);
    if (isFocused) nodeOf(id)?.focus({ preventScroll: true });
  }

  /** The movable handle nearest to a pixel, within what a pointer can hold; of close ones that with the focus, else a start. */
  function nearest(pixel, reach) {
    let found = null;
    let least = reach;
    for (const handle of handles) {
      if (!handle.move) continue;
      const preference = nodeOf(handle.id) === document.activeElement ? 4 : handle.kind === "start" ? 2 : 0;
      const distance = Math.hypot(handle.pixel[0] - pixel[0], handle.pixel[1] - pixel[1]) - preference;
      if (distance <= least) [found, least] = [handle, distance];
    }
    return found;
  }

  svg.addEventListener(
    "touchstart",
    (event) => {
      if (event.touches.length === 1 && nearest(pixelOf(event.touches[0]), COARSE_HIT)) event.preventDefault(); // it drags and does not scroll
    },
    { passive: false },
  );

  const fingers = new Map(); // touches on the background, for pinching
  let pinch = null;
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const target = event.target.closest("[data-handle]");
    const pixel = pixelOf(event);
    const handle = nearest(pixel, event.pointerType === "touch" ? COARSE_HIT : FINE_HIT) ?? handles.find((one) => one.id === target?.dataset.handle);
    if (!handle) {
      if (event.pointerType === "touch") fingers.set(event.pointerId, [event.clientX, event.clientY]);
      focusOn(current);
      event.preventDefault();
      return;
    }
    event.preventDefault();
    focusOn(handle.id);
    choose(handle);
    if (!handle.move) return;
    const gesture = `drag-${++gestures}`;
    const offset = [handle.pixel[0] - pixel[0], handle.pixel[1] - pixel[1]];
    svg.setPointerCapture(event.pointerId);
    dragged = handle.id;
    basins.pause(true);
    const onMove = (move) => {
      if (move.pointerId !== event.pointerId) return;
      const at = pixelOf(move);
      moveTo(handle, [at[0] + offset[0], at[1] + offset[1]], gesture);
    };
    const onEnd = (end) => {
      if (end.pointerId !== event.pointerId) return;
      svg.removeEventListener("pointermove", onMove);
      svg.removeEventListener("pointerup", onEnd);
      svg.removeEventListener("pointercancel", onEnd);
      dragged = null;
      isInviting = false;
      if (handle.kind === "guess") document.dispatchEvent(new Event("guessed"));
      draw();
      basins.pause(false);
    };
    svg.addEventListener("pointermove", onMove);
    svg.addEventListener("pointerup", onEnd);
    svg.addEventListener("pointercancel", onEnd);
  });

  const spread = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a[0] - b[0], a[1] - b[1]);
  };
  svg.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (fingers.size !== 2) return;
    pinch ??= { distance: spread(), gesture: `pinch-${++gestures}` };
    const distance = spread();
    zoom(distance / pinch.distance, pinch.gesture);
    pinch.distance = distance;
  });
  for (const type of ["pointerup", "pointercancel"])
    svg.addEventListener(type, (event) => {
      fingers.delete(event.pointerId);
      pinch = null;
    });

  function zoom(factor, gesture) {
    store.apply("zoom", (before) => withView(before, zoomed(before.view, factor)), { gesture, undoable: false });
  }

  svg.addEventListener(
    "wheel",
    (event) => {
      if (!(event.ctrlKey || event.metaKey || svg.contains(document.activeElement))) return;
      event.preventDefault();
      zoom(WHEEL_ZOOM ** (-event.deltaY * (event.deltaMode === 1 ? 16 : event.ctrlKey ? 4 : 1)), "wheel");
    },
    { passive: false },
  );

  svg.addEventListener("dblclick", (event) => {
    if (event.target.closest("[data-handle]")) return;
    const point = rounded(scale, scale.toPlane(pixelOf(event)));
    if (store.apply("add a start", (before) => addStart(before, point)) !== false) current = `start:${store.state.starts.length - 1}`;
  });

  svg.addEventListener("focusin", (event) => {
    const id = event.target.closest("[data-handle]")?.dataset.handle;
    if (id && id !== current) focusOn(id, false);
  });

  svg.addEventListener("keydown", (event) => {
    const place = handles.findIndex((handle) => handle.id === current);
    const handle = handles[place];
    if (!handle || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const go = (to) => focusOn(handles[(to + handles.length) % handles.length].id);
    if (key in KEY_OF_ARROW && handle.move) {
      const now = event.timeStamp;
      const isBurst = lastKey.id === handle.id && now - lastKey.time < KEY_BURST_MS;
      lastKey = { id: handle.id, time: now, gesture: isBurst ? lastKey.gesture : `keys-${++gestures}` };
      const step = event.shiftKey ? LARGE_STEP : SMALL_STEP;
      const [right, up] = KEY_OF_ARROW[key];
      const from = handlesOf(store.state, shown.analysis).find((one) => one.id === handle.id)?.point ?? handle.point;
      const point = rounded(scale, moved(scale, from, step * right, step * up));
      store.apply(`move ${handle.name}`, handle.move(point), { gesture: lastKey.gesture });
    } else if (key === "]" || key === "PageDown") go(place + 1);
    else if (key === "[" || key === "PageUp") go(place - 1);
    else if (key === "Home") go(0);
    else if (key === "End") go(handles.length - 1);
    else if (key === "Enter" && handle.kind === "guess") document.dispatchEvent(new Event("guessed"));
    else if (key === "Enter" || key === " ") choose(handle);
    else if (key === "+" || key === "=") zoom(BUTTON_ZOOM, null);
    else if (key === "-" || key === "−") zoom(1 / BUTTON_ZOOM, null);
    else if (key === "Delete" || key === "Backspace") {
      if (handle.remove) store.apply(`remove ${handle.name}`, handle.remove);
      else store.say(handle.kind === "limit" ? "A limit follows from the tokens and cannot be removed." : `The ${handle.kind} cannot be removed.`, "refusal");
    } else return;
    event.preventDefault();
  });

  // ---- size and updates

  new ResizeObserver(([{ contentRect }]) => {
    side = Math.floor(contentRect.height);
    pad = Math.max(0, (contentRect.width - side) / 2);
    draw();
    basins.resize();
  }).observe(square);
  runs?.subscribe(drawPaths);
  return {
    basinProgress: basins.progress,
    update(state, analysis, previous) {
      const hadFocus = svg.contains(document.activeElement);
      shown = { state, analysis };
      draw();
      if (hadFocus && !svg.contains(document.activeElement) && current) nodeOf(current)?.focus({ preventScroll: true });
      basins.update(state.view.guess === null ? state : withView(state, { basins: false }), analysis, previous);
    },
  };
}

/** Buttons and boxes below the square: how near, and what is drawn. */
function planeControls(store) {
  const change = (label, part) => store.apply(label, (before) => withView(before, typeof part === "function" ? part(before) : part), { undoable: false });
  const button = (text, label, onclick, attributes = {}) => element("button", { type: "button", "aria-label": label, title: label, onclick, ...attributes }, text);
  const boxes = Object.entries({ lines: "Lines", basins: "Basins", paths: "Paths", cones: "Cones" }).map(([name, text]) => {
    const box = element("input", { type: "checkbox", name, onchange: () => change(`${box.checked ? "show" : "hide"} ${text.toLowerCase()}`, { [name]: box.checked }) });
    return { name, box, node: element("label", { class: "check" }, box, ` ${text}`) };
  });
  const fits = button("Fit", "Fit: show all tokens and starts", () =>
    change("fit the view", ({ problem, starts }) => {
      const { tokens, keys } = pointsOf(problem);
      return { half: fittingHalf([...tokens.flat(), ...(keys ?? []).flat(), ...starts, ...(problem.head?.length === 2 ? [problem.head] : [])]) };
    }),
  );
  const node = element("div", { class: "plane-controls", role: "toolbar", "aria-label": "The plane's view" },
    element("span", { class: "plane-group", role: "group", "aria-label": "Zoom" },
      button("−", "Zoom out", () => change("zoom out", (before) => zoomed(before.view, 1 / BUTTON_ZOOM))),
      button("+", "Zoom in", () => change("zoom in", (before) => zoomed(before.view, BUTTON_ZOOM))), fits),
    element("span", { class: "plane-group", role: "group", "aria-label": "Shown" }, boxes.map((entry) => entry.node)),
  );
  return {
    node,
    update(state) {
      for (const { name, box } of boxes) if (box.checked !== Boolean(state.view[name])) box.checked = Boolean(state.view[name]);
    },
  };
}

/** The plane as it stands, as the text of an SVG file: the basins are an image below. */
export function planePicture(root = document.getElementById("plane")) {
  const svg = root.querySelector(".plane-picture");
  const canvas = root.querySelector("canvas");
  const copy = styledCopy(svg);
  copy.querySelectorAll("circle[r='0']").forEach((node) => node.remove());
  for (const text of copy.querySelectorAll("text")) setText(text, text.textContent.replace(INVITATION, ""));
  const { x, width, height } = svg.viewBox.baseVal;
  const background = shape("rect", { x, width, height, fill: getComputedStyle(root.querySelector(".plane-square")).backgroundColor });
  const image =
    canvas.hidden || canvas.clientWidth === 0
      ? []
      : [shape("image", { x: x + canvas.offsetLeft, y: canvas.offsetTop, width: canvas.clientWidth, height: canvas.clientHeight, href: canvas.toDataURL("image/png"), style: "image-rendering:pixelated" })];
  copy.prepend(background, ...image);
  return new XMLSerializer().serializeToString(copy);
}
