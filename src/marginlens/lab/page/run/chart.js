// Charts of numbers along steps: axes, lines with their names and values at a cursor, and a sentence for who cannot see them.
//
// A chart is { title, about, range, height, format, lines: [{ label, sign, colour, isThin, dash, value(k) }] }, sign being the label where
// there is little room, value(k) that of place k of the steps, or of the point shown where k is null. Lines without a label have no value
// beside them.

import { decimated, linePath, pushedApart, valueScale } from "./curve_scale.js";
import { element, replace, setAttributes, setText, shape } from "../dom.js";

const LABEL_HEIGHT = 15; // pixels of a line of text
const MOST_LABEL_WIDTH = 150; // at the right, where lines have their names
const NUMBER_LETTERS = 11; // of a value behind a name
const AXIS_WIDTH = 40;
const TOP = 8;
const BOTTOM = 20;
const MIN_PLOT_HEIGHT = 64;
const WIDTH = 340; // of a chart before it is laid out
const MIN_WIDTH = 200;
const LETTER_WIDTH = 7; // in px
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 3", "10 4", "4 4", "12 3 3 3"];

/** What a chart shows, as a sentence. */
export function chartSentence(chart, step) {
  const parts = chart.lines.filter(({ label }) => label).map(({ label, value }) => {
    const [first, now] = [value(0), value(null)];
    return `${label} ${Number.isFinite(first) ? `from ${chart.format(first)} to` : "is"} ${chart.format(now)}`;
  });
  const until = step === 0 ? "at the start" : `from step 0 to step ${step.toLocaleString("en")}`;
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

/** The SVG of a chart with lines over steps, and what puts the cursor, with names and values, at a step: { svg, move }. */
function drawnChart(chart, steps, horizontal, width) {
  const named = chart.lines.filter(({ label }) => label);
  const letters = Math.max(0, ...named.map(({ label, sign = label }) => sign.length)) + NUMBER_LETTERS;
  const plotWidth = Math.max(60, width - AXIS_WIDTH - Math.min(MOST_LABEL_WIDTH, 18 + LETTER_WIDTH * letters));
  const plotHeight = Math.max(chart.height ?? MIN_PLOT_HEIGHT, LABEL_HEIGHT * named.length);
  const height = plotHeight + TOP + BOTTOM;
  const places = decimated(steps, horizontal.end, horizontal.at, plotWidth);
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
  chart.lines.forEach(({ colour, isThin, dash: given }, line) => {
    const dash = given ?? (chart.lines.length > 1 ? DASHES[line % DASHES.length] : "");
    const points = places.map((k, place) => [x(horizontal.at(steps[k])), y(values[line][place])]);
    const style = { fill: "none", style: `stroke:${colour}`, "stroke-width": isThin ? 1.25 : 2, "stroke-linejoin": "round" };
    svg.append(shape("path", { d: linePath(points), ...style, "stroke-dasharray": dash || null }));
  });
  const marks = named.map(({ label, sign = label, colour }) => {
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
    const at = x(horizontal.at(Math.min(step, horizontal.end)));
    setAttributes(cursor, { x1: at, x2: at });
    const shown = named.map(({ value }) => value(null));
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

/** Charts in the figures of a grid, as wide as these are; onresize() is called where they are to be drawn anew. */
export class Charts {
  #grid;
  #figures = [];
  #charts = [];
  #moves = [];
  #width = 0; // of a chart, measured again when the grid's width changes

  constructor(grid, onresize) {
    this.#grid = grid;
    let last = 0;
    new ResizeObserver(() => {
      if (grid.clientWidth === last) return;
      last = grid.clientWidth;
      this.#width = 0;
      onresize();
    }).observe(grid);
  }

  get width() {
    this.#width ||= Math.max(MIN_WIDTH, Math.floor(this.#figures[0]?.picture.clientWidth || WIDTH));
    return this.#width;
  }

  #figure(place) {
    if (this.#figures[place] === undefined) {
      const [title, about, picture] = [element("h3"), element("span", { class: "small" }), element("div", { role: "img" })];
      const node = element("figure", {}, element("figcaption", {}, title, " ", about), picture);
      this.#figures[place] = { node, title, about, picture };
    }
    return this.#figures[place];
  }

  /** Draw charts over steps on a horizontal scale { at, ticks, end }. */
  draw(charts, steps, horizontal) {
    this.#charts = charts;
    const shown = charts.map((_, place) => this.#figure(place));
    if (this.#grid.childElementCount !== shown.length) replace(this.#grid, shown.map(({ node }) => node));
    this.#moves = charts.map((chart, place) => {
      const { title, about, picture } = shown[place];
      setText(title, chart.title);
      setText(about, chart.about);
      const { svg, move } = drawnChart(chart, steps, horizontal, this.width);
      replace(picture, svg);
      return move;
    });
  }

  /** Put the cursor at a step. */
  move(step) {
    for (const move of this.#moves) move(step);
  }

  /** Say what the charts show up to a step. */
  describe(step) {
    this.#charts.forEach((chart, place) => this.#figures[place].picture.setAttribute("aria-label", chartSentence(chart, step)));
  }
}
