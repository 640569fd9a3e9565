"use strict";
(() => {
  const data = JSON.parse(document.getElementById("curves").textContent);
  const state = { measure: 0, layer: 0, head: 0 };

  // ---- numbers
  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    const measure = data.measures[state.measure];
    if (measure.percent) return `${(100 * value).toFixed(0)}%`;
    const size = Math.abs(value);
    if (size >= 1e4 || (size && size < 1e-3)) return value.toExponential(1).replaceAll("-", "−");
    return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3).replace("-", "−");
  };
  const curve = (measure, layer, head) => measure.values.map((rows) => rows[layer][head]);
  const ends = (values) => {
    const known = values.filter((value) => value !== null);
    return known.length ? `${shown(known[0])} → ${shown(known[known.length - 1])}` : "–";
  };
  const alarmed = (layer, head) => data.alarms.some(([l, h]) => l === layer && h === head);

  // ---- a curve as the parts of a path: what has no number breaks it
  const place = (measure, box) => {
    const [first, last] = [measure.steps[0], measure.steps[measure.steps.length - 1]];
    const [low, high] = measure.range;
    return [
      (step) => box.left + (last > first ? (step - first) / (last - first) : 0.5) * box.width,
      (value) => box.top + (1 - (high > low ? (value - low) / (high - low) : 0.5)) * box.height,
    ];
  };
  const path = (measure, values, box) => {
    const [x, y] = place(measure, box);
    let isOpen = false;
    return values.map((value, k) => {
      if (value === null) { isOpen = false; return ""; }
      const letter = isOpen ? "L" : "M";
      isOpen = true;
      return `${letter}${x(measure.steps[k]).toFixed(1)} ${y(value).toFixed(1)}`;
    }).join("");
  };

  // ---- all heads, small
  const SMALL = { left: 3, top: 4, width: 90, height: 36 };

  function showMeasures() {
    showMeasureButtons(byId("measures"), data.measures, state.measure, (k) => {
      state.measure = k;
      showAll();
    });
  }

  function showHeads() {
    const measure = data.measures[state.measure];
    byId("says").textContent = measure.says;
    fillHeads(byId("many"), data, (layer, head) => cell(measure, layer, head));
    const ends = { low: shown(measure.range[0]), high: shown(measure.range[1]) };
    const steps = { first: measure.steps[0].toLocaleString("en"), last: measure.steps[measure.steps.length - 1].toLocaleString("en") };
    byId("scale").textContent = say("probe_page.scale", { ...ends, ...steps }) + (data.alarms.length ? ` ${say("probe_page.framed")}` : "");
  }

  function cell(measure, layer, head) {
    const values = curve(measure, layer, head), chosen = layer === state.layer && head === state.head;
    const picture = draw("svg", { width: 96, height: 44, viewBox: "0 0 96 44", "aria-hidden": "true" });
    picture.append(draw("path", { d: path(measure, values, SMALL), class: "curve" }));
    const [x, y] = place(measure, SMALL);
    values.forEach((value, k) => { // a point that has no neighbour would not be seen
      if (value !== null && (values[k - 1] ?? null) === null && (values[k + 1] ?? null) === null) {
        picture.append(draw("circle", { cx: x(measure.steps[k]), cy: y(value), r: 1.8, class: "point" }));
      }
    });
    const last = values.filter((value) => value !== null).pop();
    const button = make("button", { type: "button", id: `curve-${layer}-${head}`, "aria-pressed": String(chosen) }, picture, make("small", {}, shown(last)));
    const warning = alarmed(layer, head);
    if (warning) button.classList.add("alarmed");
    button.setAttribute("aria-label", `${layerTitle(data.layerNames[layer])}, head ${head}: ${measure.title} ${ends(values)}${warning ? say("probe_page.with_alarm") : ""}`);
    button.tabIndex = chosen ? 0 : -1;
    button.addEventListener("click", () => choose(layer, head));
    return button;
  }

  function choose(layer, head) {
    if (layer < 0 || head < 0 || layer >= data.layers || head >= data.heads) return;
    Object.assign(state, { layer, head });
    showHeads();
    showHead();
    letKeysScroll();
    byId(`curve-${layer}-${head}`).focus();
  }

  chooseByArrows(byId("many"), state, choose);

  // ---- one head, large, before the others of its layer
  function showHead() {
    const measure = data.measures[state.measure], values = curve(measure, state.layer, state.head);
    const box = { left: 64, top: 12, width: 620, height: 210 };
    const [x, y] = place(measure, box), bottom = box.top + box.height;
    const title = `${layerTitle(data.layerNames[state.layer])}, head ${state.head}`, words = `${title}: ${measure.title} ${ends(values)}`;
    const picture = draw("svg", { class: "large", viewBox: "0 0 700 262", role: "img", "aria-label": words });
    [0, 0.5, 1].forEach((share) => {
      const value = measure.range[0] + share * (measure.range[1] - measure.range[0]);
      picture.append(draw("line", { x1: box.left, x2: box.left + box.width, y1: y(value), y2: y(value), class: "rule" }));
      picture.append(draw("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, shown(value)));
    });
    const [first, last] = [measure.steps[0], measure.steps[measure.steps.length - 1]];
    [first, (first + last) / 2, last].forEach((step, k) => {
      const anchor = ["start", "middle", "end"][k];
      picture.append(draw("text", { x: x(step), y: bottom + 18, "text-anchor": anchor }, Math.round(step).toLocaleString("en")));
    });
    picture.append(draw("text", { x: box.left + box.width / 2, y: bottom + 36, "text-anchor": "middle" }, data.axis));
    for (let head = 0; head < data.heads; head += 1) {
      if (head !== state.head) picture.append(draw("path", { d: path(measure, curve(measure, state.layer, head), box), class: "other" }));
    }
    picture.append(draw("path", { d: path(measure, values, box), class: "curve" }));
    values.forEach((value, k) => {
      if (value === null) return;
      const point = draw("circle", { cx: x(measure.steps[k]), cy: y(value), r: 3, class: "point" });
      point.append(draw("title", {}, `step ${measure.steps[k].toLocaleString("en")}: ${shown(value)}`));
      picture.append(point);
    });
    byId("one").replaceChildren(make("h3", {}, words), make("div", { class: "scroll" }, picture),
      make("p", { class: "under" }, say("probe_page.other_heads")));
  }

  function showAll() {
    showMeasures();
    showHeads();
    showHead();
    letKeysScroll();
  }

  const [start] = data.alarms;
  if (start) Object.assign(state, { layer: start[0], head: start[1] });
  showAll();
})();
