// Basins under the plane: painted coarse to fine by workers.

import { basinTasks, COARSEST_STRIDE, isSteady, LEAST_STEPS, OUTSIDE, UNSETTLED } from "../../kernels/basins.js";
import { newWorker } from "../background.js";
import { element, replace, setText } from "../dom.js";
import { percent } from "../numbers.js";
import { problemOf } from "../state.js";

const [SIDE, SLOW_SIDE] = [128, 64]; // pixels; fewer of rules whose runs are followed one by one
const UNPAINTED = -3;
const PIECE_PIXELS = 32; // of a worker's answer
const QUIET_MS = 220; // without a change before painting begins
const [FEWEST_WORKERS, MOST_WORKERS] = [2, 4];
const BASIN_ALPHA = 78; // of 255
const [UNSETTLED_GREY, MINIMUM_GREY] = [120, 95];

/** Pixels in lists that a worker labels before it answers. */
function pieces(pixels) {
  return Array.from({ length: Math.ceil(pixels.length / PIECE_PIXELS) }, (_, k) => pixels.slice(k * PIECE_PIXELS, (k + 1) * PIECE_PIXELS));
}

/**
 * A picture's labels as they come in, coarse to fine; a coarse label stands for its square until finer ones come. Pixels beside a border are
 * given out first at every fineness, and those inside of a basin, which change nothing that is seen, afterwards.
 */
export class Painting {
  #fineness; // of what is shown at each pixel: the stride of its label
  #coming; // levels of which nothing was given out
  #pieces = []; // to be given out next
  #later = []; // lists of pixels inside of basins
  #urgent = new Set(); // pixels beside borders that have not come

  constructor(side) {
    this.side = side;
    this.labels = new Int8Array(side * side).fill(UNPAINTED);
    this.#fineness = new Uint8Array(side * side).fill(255);
    const levels = basinTasks(side, side * side);
    this.strides = new Map(levels.flatMap(({ stride, pixels }) => pixels.map((pixel) => [pixel, stride])));
    this.painted = 0;
    this.levels = new Map(levels.map(({ stride, pixels }) => [stride, { missing: pixels.length, counts: new Map() }])); // coarse to fine: how many pixels are missing, and of those that came how many have each label
    this.#coming = levels;
  }

  get isDone() {
    return this.painted === this.side * this.side;
  }

  get share() {
    return this.painted / (this.side * this.side);
  }

  /** Whether what is shown differs around a pixel, within so many pixels. */
  #isBorder(pixel, reach) {
    const { side, labels } = this;
    const [row, column] = [Math.floor(pixel / side), pixel % side];
    const at = (y, x) => labels[Math.min(side - 1, Math.max(0, y)) * side + Math.min(side - 1, Math.max(0, x))];
    const steps = [-reach, 0, reach];
    return steps.some((y) => steps.some((x) => at(row + y, column + x) !== labels[pixel]));
  }

  /** The next pixels to label, null where all are given out. */
  take() {
    while (this.#pieces.length === 0) {
      if (this.#coming.length > 0) {
        const { stride, pixels } = this.#coming.shift();
        const isFirst = stride >= COARSEST_STRIDE / 2;
        const urgent = isFirst ? pixels : pixels.filter((pixel) => this.#isBorder(pixel, stride));
        this.#pieces = pieces(urgent);
        for (const pixel of urgent) this.#urgent.add(pixel);
        this.#later.push(pixels.filter((pixel) => !this.#urgent.has(pixel)));
      } else if (this.#later.length > 0) this.#pieces = pieces(this.#later.shift());
      else return null;
    }
    return this.#pieces.shift();
  }

  add(pixels, labels) {
    const { side } = this;
    pixels.forEach((pixel, k) => {
      this.#urgent.delete(pixel);
      const stride = this.strides.get(pixel);
      const level = this.levels.get(stride);
      level.missing--;
      level.counts.set(labels[k], (level.counts.get(labels[k]) ?? 0) + 1);
      const [row, column] = [Math.floor(pixel / side), pixel % side];
      for (let y = Math.max(0, row - stride + 1); y < Math.min(side, row + stride); y++)
        for (let x = column; x < Math.min(side, column + stride); x++) {
          const at = y * side + x;
          const isAround = y < row && this.labels[at] !== OUTSIDE && this.labels[at] !== UNPAINTED; // squares below the window's edge have no label of their own
          if (this.#fineness[at] < stride || isAround) continue;
          if (y >= row) this.#fineness[at] = stride;
          this.labels[at] = labels[k];
        }
    });
    this.painted += pixels.length;
  }

  /** Whether a coarse picture is complete. */
  get isCoarse() {
    return this.levels.get(COARSEST_STRIDE).missing === 0;
  }

  /** Whether borders are as fine as they get. */
  get isFine() {
    return this.#coming.length === 0 && this.#urgent.size === 0;
  }

  /** The share of each label inside the finest picture that is complete, whose pixels lie evenly: [[label, share], …], largest first. */
  shares() {
    const counts = new Map();
    for (const level of this.levels.values()) {
      if (level.missing > 0) break;
      for (const [label, count] of level.counts) if (label !== OUTSIDE) counts.set(label, (counts.get(label) ?? 0) + count);
    }
    const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
    return [...counts].map(([label, count]) => [label, count / total]).sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  }

  /** Colours of all pixels (4 side²), the largest second coordinate first; colours: [r, g, b] of each direction. */
  colours(colours) {
    const { side, labels } = this;
    const data = new Uint8ClampedArray(4 * side * side);
    for (let y = 0; y < side; y++)
      for (let x = 0; x < side; x++) {
        const label = labels[(side - 1 - y) * side + x];
        const at = 4 * (y * side + x);
        if (label === UNPAINTED || label === OUTSIDE) continue;
        const colour = colours[label];
        if (colour) data.set([...colour, BASIN_ALPHA], at);
        else {
          const isDark = label === UNSETTLED ? (x + y) % 4 === 0 : x % 3 === 0 && y % 3 === 0;
          const grey = label === UNSETTLED ? UNSETTLED_GREY : MINIMUM_GREY;
          data.set([grey, grey, grey, isDark ? 150 : 50], at);
        }
      }
    return data;
  }
}

/** What the starts with a label do, in words. */
export function basinSentence(label, limits) {
  if (label === UNSETTLED) return "starts here end near no limit";
  if (label >= limits.length) return "starts here stay at a finite point";
  return `start here ${limits[label].mark}${limits[label].isGlobal ? " ★" : ""}`;
}

/** What a picture, `wide` times as wide as high, is computed from; the same text means the same picture. */
function requestOf(state, analysis, wide) {
  const { half } = state.view;
  const side = isSteady(analysis.problem) ? SIDE : SLOW_SIDE;
  const wideSide = COARSEST_STRIDE * Math.round((side * Math.sqrt(wide)) / COARSEST_STRIDE); // about as many pixels, the rest being outside
  return {
    problem: { ...problemOf(state), start: [0, 0] },
    optima: analysis.limits.map(({ direction, selected }) => ({ direction, selected: Array.from(selected) })),
    settings: { side: wideSide, half: half * wide, wide },
  };
}

/** What is done from every pixel, in a sentence. */
function trainingSentence(read) {
  return `Every start is trained as you set it: ${Math.max(read.steps, LEAST_STEPS).toLocaleString("en")} steps.`;
}

/** Workers that label the pixels of a picture. */
class Crew {
  #workers = null;
  #generation = 0;
  #painting = null;
  #onPiece = null;

  /** Begin a picture; onPiece() is called after every piece. What older pictures still send is dropped. Whether there are workers. */
  start(request, painting, onPiece) {
    const count = Math.min(MOST_WORKERS, Math.max(FEWEST_WORKERS, navigator.hardwareConcurrency ?? FEWEST_WORKERS));
    this.#workers ??= Array.from({ length: count }, newWorker).filter((worker) => worker !== null);
    this.#painting = painting;
    this.#onPiece = onPiece;
    const generation = ++this.#generation;
    for (const worker of this.#workers) {
      worker.onmessage = ({ data }) => this.#answer(worker, data);
      worker.postMessage({ generation, request });
      this.#give(worker);
    }
    return this.#workers.length > 0;
  }

  stop() {
    this.#generation++;
    this.#painting = null;
  }

  #give(worker) {
    const pixels = this.#painting.take();
    if (pixels) worker.postMessage({ generation: this.#generation, pixels });
  }

  #answer(worker, { generation, pixels, labels }) {
    if (generation !== this.#generation || !this.#painting) return;
    this.#give(worker);
    this.#painting.add(pixels, labels);
    this.#onPiece();
  }
}

/** The red, green and blue of a CSS colour as it is at a node. */
function rgbAt(node, colour) {
  const probe = element("span", { style: { color: colour, display: "none" } });
  node.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return parts;
}

/** The basins on their canvas, with shares and progress in `legend`; pause(true) while something is dragged. */
export function mountBasins(canvas, store, legend) {
  const status = element("p", { class: "basin-status" });
  const list = element("ul", { class: "basin-shares", "aria-label": "Where starts end" });
  replace(legend, list, status);
  const crew = new Crew();
  let shown = null; // { state, analysis, theme }
  let wanted = ""; // the request that the canvas shows or will show
  let painting = null;
  let begun = 0;
  let times = { first: null, fine: null, total: null }; // ms until the coarsest picture, fine borders and all pixels were there
  let timer = 0;
  let isPaused = false;
  let isFrameWaiting = false;

  /** How many times as wide as high the picture is. */
  function wide() {
    const { clientWidth: width, clientHeight: height } = canvas.parentElement;
    return height > 0 ? Number(Math.max(1, width / height).toFixed(2)) : 1;
  }

  /** Tell the page the share of each direction among the starts of a finished picture, by its label; null where none is finished. */
  function announce(shares) {
    canvas.dispatchEvent(new CustomEvent("basinshares", { bubbles: true, detail: shares && new Map(shares) }));
  }

  function paint() {
    isFrameWaiting = false;
    if (!painting || !shown) return;
    if (canvas.width !== painting.side) [canvas.width, canvas.height] = [painting.side, painting.side];
    const { limits } = shown.analysis;
    const colours = limits.map((limit) => rgbAt(legend, limit.colour));
    canvas.getContext("2d").putImageData(new ImageData(painting.colours(colours), painting.side, painting.side), 0, 0);
    canvas.classList.remove("stale");
    const about = painting.isDone ? "" : "about ";
    replace(
      list,
      painting.shares().map(([label, share]) =>
        element("li", {},
          element("span", { class: `basin-swatch${limits[label] ? "" : label === UNSETTLED ? " hatched" : " dotted"}`, style: { "--colour": limits[label]?.colour ?? "var(--muted)" } }),
          ` ${basinSentence(label, limits)}: ${about}${percent(share)}`),
      ),
    );
    if (painting.isDone) announce(painting.shares());
    setText(status, painting.isDone ? trainingSentence(shown.analysis.problem) : `Basins: ${Math.floor(100 * painting.share)} % painted.`);
  }

  function requestPaint() {
    if (painting.isCoarse) times.first ??= performance.now() - begun;
    if (painting.isFine) times.fine ??= performance.now() - begun;
    if (painting.isDone) times.total ??= performance.now() - begun;
    if (isFrameWaiting) return;
    isFrameWaiting = true;
    requestAnimationFrame(paint);
  }

  function begin() {
    if (isPaused || !shown || !shown.state.view.basins) return;
    const request = requestOf(shown.state, shown.analysis, wide());
    painting = new Painting(request.settings.side);
    begun = performance.now();
    times = { first: null, fine: null, total: null };
    if (!crew.start(request, painting, requestPaint)) clear("This browser runs no workers, so that basins are not painted.");
  }

  function clear(sentence) {
    clearTimeout(timer);
    crew.stop();
    painting = null;
    wanted = "";
    canvas.hidden = true;
    replace(list);
    setText(status, sentence);
    announce(null);
  }

  return {
    /** { share, first, fine, total, labels } of the present picture, the times in ms and the labels row by row from the smallest second coordinate on. */
    progress: () => ({ ...times, share: painting?.share ?? 0, labels: painting?.labels ?? null }),
    pause(value) {
      isPaused = value;
      if (!value && painting === null && wanted !== "") {
        clearTimeout(timer);
        timer = setTimeout(begin, QUIET_MS);
      }
    },
    resize() {
      const { clientWidth: width, clientHeight: height } = canvas.parentElement;
      const size = Math.max(width, height);
      const place = { left: (width - size) / 2, top: (height - size) / 2, width: size, height: size };
      for (const [name, pixels] of Object.entries(place)) canvas.style.setProperty(name, `${pixels}px`);
    },
    update(state, analysis) {
      const theme = document.documentElement.dataset.theme;
      const isRepainted = painting !== null && shown?.theme !== theme;
      shown = { state, analysis, theme };
      legend.hidden = !state.view.basins;
      if (!state.view.basins) return wanted === "" && canvas.hidden ? undefined : clear("");
      if (!analysis.problem) return clear("");
      if (analysis.limits.length === 0) return clear("There is no limit to paint the basins of.");
      this.resize();
      canvas.hidden = false;
      const key = JSON.stringify(requestOf(state, analysis, wide()));
      if (key === wanted) return isRepainted ? requestPaint() : undefined;
      const isFirst = wanted === "";
      wanted = key;
      crew.stop();
      painting = null;
      announce(null);
      canvas.classList.add("stale");
      setText(status, "Basins: painted when nothing moves.");
      clearTimeout(timer);
      timer = setTimeout(begin, isFirst ? 0 : QUIET_MS);
    },
  };
}
