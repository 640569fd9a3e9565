"use strict";
(() => {
  const data = JSON.parse(document.getElementById("difference").textContent);
  const state = { measure: 0, layer: data.start[0], head: data.start[1] };
  const layerName = (layer) => data.layerNames[layer];

  // ---- numbers and colours
  const shown = (value, measure) => {
    if (value === null || value === undefined) return "–";
    return measure.percent ? `${(100 * value).toFixed(Math.abs(value) < 0.0995 && value ? 1 : 0)}%`.replace("-", "−") : digits(value);
  };
  const signed = (value, measure) => `${value > 0 && !measure.distance ? "+" : ""}${shown(value, measure)}`;
  const mix = (from, to, share) => {
    const at = Math.min(Math.max(share, 0), 1);
    return `rgb(${from.map((channel, k) => Math.round(channel + at * (to[k] - channel))).join(",")})`;
  };
  const NONE = [250, 248, 243], LESS = [96, 166, 214], MORE = [244, 165, 110]; // light enough for dark letters throughout
  const colour = (value, measure) => {
    if (value === null) return "#e9e6e0";
    const share = measure.largest ? Math.abs(value) / measure.largest : 0;
    return mix(NONE, value < 0 || measure.distance ? LESS : MORE, share);
  };

  // ---- all heads
  function showMeasures() {
    showMeasureButtons(byId("measures"), data.measures, state.measure, (k) => {
      state.measure = k;
      showMeasures();
      showHeat();
    });
  }

  function showHeat() {
    const measure = data.measures[state.measure];
    byId("says").textContent = measure.distance ? measure.says : `${measure.says} ${say("probe_page.subtracted", { model: data.probed, against: data.against })}`;
    fillHeads(byId("heat"), data, (layer, head) => cell(measure, measure.values[layer][head], layer, head));
    const bar = make("i"), low = measure.distance ? 0 : -measure.largest;
    bar.style.background = `linear-gradient(90deg, ${[low, (low + measure.largest) / 2, measure.largest].map((value) => colour(value, measure)).join(", ")})`;
    byId("legend").replaceChildren(signed(low, measure), bar, signed(measure.largest, measure), ` ${measure.title}`);
    letKeysScroll();
  }

  function cell(measure, value, layer, head) {
    const chosen = layer === state.layer && head === state.head;
    const button = make("button", { type: "button", id: `cell-${layer}-${head}`, "aria-pressed": String(chosen) }, signed(value, measure));
    button.style.background = colour(value, measure);
    button.setAttribute("aria-label", `${layerTitle(layerName(layer))}, head ${head}: ${measure.title} ${signed(value, measure)}`);
    button.tabIndex = chosen ? 0 : -1;
    button.addEventListener("click", () => choose(layer, head));
    return button;
  }

  function choose(layer, head) {
    if (layer < 0 || head < 0 || layer >= data.layers || head >= data.heads) return;
    Object.assign(state, { layer, head });
    history.replaceState(null, "", `#L${layer}H${head}`);
    showHeat();
    showHead();
    byId(`cell-${layer}-${head}`).focus();
    byId("announcement").textContent = say("probe_page.shown_below", { layer: layerTitle(layerName(layer)), head });
  }

  chooseByArrows(byId("heat"), state, choose);

  // ---- one head in both models
  function showHead() {
    const at = (values) => (values ? values[state.layer][state.head] : null);
    const columns = [["measure", ""], [data.against, "number"], [data.probed, "number"], ["difference", "number"]];
    const rows = data.measures.map((measure) => make("tr", {}, make("th", { scope: "row" }, measure.title),
      make("td", { class: "number" }, measure.distance ? "" : shown(at(measure.against), measure)),
      make("td", { class: "number" }, measure.distance ? "" : shown(at(measure.probed), measure)),
      make("td", { class: "number" }, signed(at(measure.values), measure))));
    const heading = make("tr", {}, ...columns.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)));
    byId("head").replaceChildren(make("h2", {}, `${layerTitle(layerName(state.layer))}, head ${state.head}`),
      make("div", { class: "scroll" }, make("table", { class: "rows" }, make("thead", {}, heading), make("tbody", {}, ...rows))));
    letKeysScroll();
  }

  function follow() {
    const at = /^#L(\d+)H(\d+)$/.exec(location.hash);
    if (!at || Number(at[1]) >= data.layers || Number(at[2]) >= data.heads) return;
    Object.assign(state, { layer: Number(at[1]), head: Number(at[2]) });
    showHeat();
    showHead();
    byId("head").scrollIntoView();
    byId("head").focus({ preventScroll: true });
  }
  window.addEventListener("hashchange", follow);
  showMeasures();
  showHeat();
  showHead();
  follow();
})();
