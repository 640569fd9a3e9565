"use strict";
(() => {
  const data = JSON.parse(document.getElementById("probe").textContent);
  const maps = data.examples.map((one) => Uint8Array.from(atob(one.maps), (letter) => letter.charCodeAt(0)));
  const kind = { name: "kind", label: "kind of head", title: "kind", group: "Kind", says: say(Object.values(data.beside).some(([name]) => name !== "content") ? "probe_page.kinds_beside" : "probe_page.kinds"), values: data.kinds };
  const measures = [kind, ...data.measures];
  const state = { measure: 0, layer: null, head: null, example: 0 };

  const pressable = (label, pressed, act) => {
    const button = make("button", { type: "button", "aria-pressed": String(pressed) }, label);
    button.addEventListener("click", act);
    return button;
  };
  const layerName = (layer) => data.layerNames[layer];
  const hasTowers = data.layerNames.some((name) => !/^\d+$/.test(name));
  const headName = (layer, head) => (hasTowers ? `${layerName(layer)} H${head}` : `L${layerName(layer)}H${head}`);

  // ---- numbers and colours
  const shown = (value, percent = false) => {
    if (value === null || value === undefined) return "–";
    if (percent) return `${(100 * value).toFixed((value && value < 0.0995) || (value < 1 && value > 0.9905) ? 1 : 0)}%`; // 100% means all
    return digits(value);
  };
  const mix = (stops, share) => {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const channel = (k) => Math.round(stops[low][k] + (at - low) * (stops[low + 1][k] - stops[low][k]));
    return `rgb(${channel(0)},${channel(1)},${channel(2)})`;
  };
  const PALE = [[253, 250, 230], [190, 223, 226], [96, 166, 214]]; // light enough for dark letters throughout
  const NOTHING = "#e9e6e0";
  const kindColour = (name) => data.kindWords[name]?.[3] ?? NOTHING;
  // What a sink head is beside its sink: its kind and the share of its queries; a kind of head is other than "content".
  const beside = (layer, head) => data.beside[`${layer}.${head}`] ?? [];
  const kindBeside = (layer, head) => (beside(layer, head)[0] === "content" ? undefined : beside(layer, head)[0]);
  const DEEP = [[255, 255, 255], [189, 215, 238], [66, 134, 190], [8, 48, 107]];
  const gradient = (stops) => `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((one) => mix(stops, one)).join(", ")})`;
  const attentionColour = (level) => mix(DEEP, Math.sqrt(level / 255)); // the root makes small probabilities visible

  // ---- all heads
  function showMeasures() {
    showMeasureButtons(byId("measures"), measures, state.measure, (k) => {
      state.measure = k;
      showMeasures();
      showHeat();
    });
  }

  function showHeat() {
    const measure = measures[state.measure];
    const [low, high] = measure.range ?? [];
    const written = measure === kind ? (name) => name || "–" : (value) => shown(value, measure.percent);
    const colour = measure === kind ? kindColour : (value) => (value === null ? NOTHING : mix(PALE, high > low ? (value - low) / (high - low) : 0.5));
    byId("says").textContent = measure.says;
    fillHeads(byId("heat"), data, (layer, head) => {
      const value = measure.values[layer][head], chosen = layer === state.layer && head === state.head;
      const cell = pressable(written(value), chosen, () => go(`#L${layer}H${head}`));
      cell.style.background = colour(value);
      const other = measure === kind && kindBeside(layer, head);
      if (other) { // a band of the sink's colour
        cell.append(make("small", {}, `› ${other}`));
        cell.style.background = `linear-gradient(90deg, ${colour(value)} .5rem, ${kindColour(other)} .5rem)`;
      }
      cell.id = `cell-${layer}-${head}`;
      // The name of a button contains what it shows, so that those who say what they see can press it.
      const said = other ? `${cell.textContent}, ${say("probe_page.kind_beside", { kind: value, beside: other })}` : written(value);
      cell.setAttribute("aria-label", `${layerTitle(layerName(layer))}, head ${head}: ${measure.title} ${said}`);
      cell.tabIndex = (state.layer === null ? layer === 0 && head === 0 : chosen) ? 0 : -1;
      return cell;
    });
    const swatch = (background) => {
      const part = make("i");
      part.style.background = background;
      return part;
    };
    const all = data.kinds.flat(), others = Object.values(data.beside).map(([name]) => name).filter((name) => name !== "content");
    const known = Object.keys(data.kindWords).filter((name) => all.includes(name) || others.includes(name));
    const among = (names, name) => names.filter((one) => one === name).length;
    const counted = (name) => make("span", {}, swatch(kindColour(name)), `${name} ${among(all, name)}${others.includes(name) ? ` (${say("probe_page.beside_too", { count: among(others, name) })})` : ""}: ${data.kindWords[name][1]}`);
    for (const part of ["heat", "legend"]) byId(part).classList.toggle("kinds", measure === kind);
    byId("legend").replaceChildren(...(measure === kind ? known.map(counted) : [shown(low, measure.percent), swatch(gradient(PALE)), shown(high, measure.percent), ` ${measure.title}`]));
    letKeysScroll();
  }

  byId("heat").addEventListener("keydown", (event) => {
    const step = arrowStep(event);
    const at = /^cell-(\d+)-(\d+)$/.exec(event.target.id);
    if (!step || !at) return;
    const next = byId(`cell-${Number(at[1]) + step[0]}-${Number(at[2]) + step[1]}`);
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  // ---- one head
  const value = (name) => data.measures.find((one) => one.name === name)?.values[state.layer][state.head] ?? null;

  function showHead() {
    const panel = byId("head");
    if (state.layer === null) {
      panel.replaceChildren();
      return;
    }
    const parts = [title(), sink(), attention(), make("div", { class: "columns" }, make("div", {}, ...margins()), make("div", {}, ...numbers())), preferences()];
    panel.replaceChildren(...parts.flat());
    letKeysScroll();
    if (location.hash) byId("announcement").textContent = say("probe_page.shown_below", { layer: layerTitle(layerName(state.layer)), head: state.head });
  }

  function sink() { // what kind of head it is; of one that has no such kind, the token that gets most of its attention beyond its part
    const name = data.kinds[state.layer][state.head], [title, , measure] = data.kindWords[name] ?? [];
    if (!title) return [];
    const does = say(`head_kind_share.${name}`, { share: measure ? shown(value(measure), true) : "" });
    const sink = measure ? null : data.sinks[`${state.layer}.${state.head}`];
    const beyond = sink ? ` ${say("probe_page.sink", { token: sink[0], share: shown(sink[1], true), expected: shown(sink[2], true) })}` : "";
    return [make("p", {}, make("b", {}, `${title[0].toUpperCase()}${title.slice(1)}.`), ` ${does}${beyond}${besideSink()}`)];
  }

  function besideSink() {
    const [name, share] = beside(state.layer, state.head);
    if (!name) return "";
    if (share === null) return ` ${say("probe_page.nothing_beside")}`;
    return ` ${say("probe_page.beside", { title: data.kindWords[name][0], does: say(`head_kind_share.${name}`, { share: shown(share, true) }) })}`;
  }

  function title() {
    const index = state.layer * data.heads + state.head;
    const link = (rel, words, k) => {
      if (k < 0 || k >= data.layers * data.heads) return [];
      const at = [Math.floor(k / data.heads), k % data.heads];
      return [make("a", { href: `#L${at[0]}H${at[1]}`, rel }, `${words} ${headName(...at)}`)];
    };
    return make("div", { class: "title" }, make("h2", {}, `${layerTitle(layerName(state.layer))}, head ${state.head}`),
      make("p", { class: "facts" }, ...link("prev", "←", index - 1), make("a", { href: "#heads-title" }, "all heads"), ...link("next", "→", index + 1)));
  }

  function attention() {
    if (!data.examples.length) return [];
    const example = data.examples[state.example];
    const choices = make("div", { class: "choices", role: "group", "aria-label": "Example" },
      ...data.examples.map((one, k) => pressable(one.name, k === state.example, () => {
        state.example = k;
        showHead();
        byId("head").querySelectorAll(".choices button")[k].focus();
      })));
    const size = [data.heads, example.queries.length, example.tokens.length];
    const start = (state.layer * size[0] + state.head) * size[1] * size[2];
    const levels = maps[state.example].subarray(start, start + size[1] * size[2]);
    const scale = make("i");
    scale.style.background = example.grid ? gradient(DEEP) : `linear-gradient(90deg, ${[0, 0.0625, 0.25, 0.5625, 1].map((one) => `${attentionColour(255 * one)} ${100 * one}%`).join(", ")})`;
    const picture = example.grid ? patches(example, levels) : squares(example, levels);
    const chosen = example.selected[state.layer][state.head][0];
    const marked = !example.grid || chosen >= before(example);
    return [
      make("h3", {}, "Attention"), choices,
      make("div", { class: "columns" },
        make("div", { class: "scroll" }, picture, make("div", { class: "scale" }, "attention 0", scale, example.grid ? shown(most(example, levels)) : "1",
          ...(marked ? [make("span", { class: "mark" }, "□"), "selected"] : [chosen < 0 ? say("probe_page.no_choice") : say("probe_page.not_a_patch", { token: example.tokens[chosen] })])),
          ...(example.grid ? [make("p", { class: "under" }, say("probe_page.patches"))] : [])),
        make("div", {}, selections(example, levels), ...inLab(example))),
    ];
  }

  const LETTERS = 16; // of a token's name that a map shows; the table beside it shows all
  const WIDE = /[\p{Script=Han}\p{Script=Hangul}\p{Script=Hiragana}\p{Script=Katakana}\uff00-\uff60]/u;

  // what a layer attends with and to: a decoder's tokens, but for its cross-attention, which goes to the encoder's
  const tower = () => (hasTowers ? layerName(state.layer).split(" ")[0] : "");
  const queriesOf = (example) => (example.decoder_tokens && ["decoder", "cross"].includes(tower()) ? example.decoder_tokens : example.tokens);
  const attendedOf = (example) => (example.decoder_tokens && tower() === "decoder" ? example.decoder_tokens : example.tokens);
  const cut = (one) => ([...one].length > LETTERS ? `${[...one].slice(0, LETTERS - 1).join("")}…` : one);

  function squares(example, levels) {
    const cell = 22, n = example.tokens.length, attended = attendedOf(example), asking = queriesOf(example);
    const names = attended.map(cut), asked = asking.map(cut);
    const letters = Math.max(...[...names, ...asked].map((one) => [...one].reduce((sum, letter) => sum + (WIDE.test(letter) ? 2 : 1), 0)));
    const left = Math.max(70, 7.4 * letters + 30), above = 7.4 * letters * 0.75 + 34;
    const chosen = example.selected[state.layer][state.head];
    const width = left + Math.max(n * cell + 0.75 * 7.4 * letters, 104) + 8, height = above + example.queries.length * cell + 8;
    const picture = draw("svg", { class: "map", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": say("probe_page.attention_map") });
    picture.append(draw("text", { x: left, y: 15, class: "axis" }, say("probe_page.token_axis")));
    const side = draw("text", { x: 14, y: above + 4, class: "axis", transform: `rotate(-90 14 ${above + 4})`, "text-anchor": "end" }, "query");
    picture.append(side);
    names.forEach((name, t) => {
      const x = left + (t + 0.5) * cell + 3, y = above - 6;
      picture.append(draw("text", { x, y, transform: `rotate(-48 ${x} ${y})` }, name));
    });
    example.queries.forEach((query, q) => {
      picture.append(draw("text", { x: left - 7, y: above + (q + 0.5) * cell + 4, "text-anchor": "end" }, asked[query]));
      for (let t = 0; t < n; t += 1) {
        const level = levels[q * n + t];
        const box = draw("rect", { x: left + t * cell, y: above + q * cell, width: cell - 1, height: cell - 1, fill: attentionColour(level) });
        box.append(draw("title", {}, `${asking[query]} → ${attended[t]}: ${(level / 255).toFixed(2)}`));
        picture.append(box);
      }
      if (chosen[q] >= 0) {
        picture.append(draw("rect", { x: left + chosen[q] * cell + 0.5, y: above + q * cell + 0.5, width: cell - 2, height: cell - 2, fill: "none", stroke: "#c4420f", "stroke-width": 2 }));
      }
    });
    return picture;
  }

  const before = (example) => example.tokens.length - example.grid[0] * example.grid[1]; // tokens that are no patches
  const peak = (example) => example.peaks ? example.peaks[state.layer][state.head] : 1; // what 255 stands for
  const most = (example, levels) => (peak(example) * Math.max(...levels.subarray(before(example)), 1)) / 255;

  function patches(example, levels) {
    const [rows, columns] = example.grid, cell = Math.max(4, Math.floor(300 / Math.max(rows, columns)));
    const darkest = Math.max(...levels.subarray(before(example)), 1), first = before(example);
    const size = [columns * cell, rows * cell], top = 24, second = example.image ? size[0] + 28 : 8;
    const width = second + size[0] + 8, height = top + size[1] + 8;
    const picture = draw("svg", { class: "map", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": say("probe_page.image_map") });
    if (example.image) {
      picture.append(draw("text", { x: 8, y: 16, class: "axis" }, example.name));
      picture.append(draw("image", { x: 8, y: top, width: size[0], height: size[1], href: example.image, preserveAspectRatio: "none", class: "pixels" }));
      picture.append(draw("rect", { x: 8, y: top, width: size[0], height: size[1], fill: "none", stroke: "#a9a59d", "stroke-width": 0.6 }));
    }
    picture.append(draw("text", { x: second, y: 16, class: "axis" }, say("probe_page.patch_axis")));
    for (let k = 0; k < rows * columns; k += 1) {
      const level = levels[k + first];
      const box = draw("rect", { x: second + (k % columns) * cell, y: top + Math.floor(k / columns) * cell, width: cell, height: cell, fill: mix(DEEP, level / darkest), stroke: "#d8d4cb", "stroke-width": 0.6 });
      box.append(draw("title", {}, `${example.tokens[k + first]}: ${((peak(example) * level) / 255).toFixed(4)}`));
      picture.append(box);
    }
    const chosen = example.selected[state.layer][state.head][0] - first;
    if (chosen >= 0) {
      const place = [(chosen % columns) * cell, Math.floor(chosen / columns) * cell];
      (example.image ? [8, second] : [second]).forEach((left) => picture.append(
        draw("rect", { x: left + place[0], y: top + place[1], width: cell, height: cell, fill: "none", stroke: "#fff", "stroke-width": 4 }),
        draw("rect", { x: left + place[0], y: top + place[1], width: cell, height: cell, fill: "none", stroke: "#c4420f", "stroke-width": 2.2 })));
    }
    return picture;
  }

  const table = (names, rows) => make("div", { class: "scroll" }, make("table", { class: "rows" },
    make("thead", {}, make("tr", {}, ...names.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((one, k) => k || names[k][1] ? make("td", { class: names[k][1] }, one) : make("th", { scope: "row" }, one)))))));

  function inLab(example) { // the surest query of this head as a problem in the plane
    const plane = example.planes[`${state.layer}.${state.head}`];
    if (!plane) return [];
    const [query, tokens, address] = plane;
    const code = tokens.length < attendedOf(example).length ? "probe_page.plane_of_some" : "probe_page.plane_of_all";
    return [make("p", {}, make("a", { href: address }, say("probe_page.open_in_lab"))),
      make("p", { class: "under" }, say(code, { query: queriesOf(example)[query], n_tokens: tokens.length }))];
  }

  function selections(example, levels) {
    const n = example.tokens.length;
    const rows = example.queries.flatMap((query, q) => {
      const chosen = example.selected[state.layer][state.head][q];
      const margin = example.margins[state.layer][state.head][q];
      if (margin === null) return []; // it sees one token only
      const level = chosen < 0 ? Math.max(...levels.subarray(q * n, (q + 1) * n)) : levels[q * n + chosen];
      return [[queriesOf(example)[query], chosen < 0 ? "– (tied)" : attendedOf(example)[chosen], ((peak(example) * level) / 255).toFixed(example.grid ? 3 : 2), shown(margin)]];
    });
    return table([["query", "token"], ["selects", "token"], ["attention", "number"], ["logit margin", "number"]], rows);
  }

  function margins() {
    const { edges, counts } = data.margins, bars = counts[state.layer][state.head];
    const total = bars.reduce((sum, one) => sum + one, 0);
    if (!total) return [];
    const highest = Math.max(...bars), width = 440, height = 150, bottom = 34, left = 18;
    const logs = edges.map(Math.log10), span = logs[logs.length - 1] - logs[0];
    const x = (log) => left + ((log - logs[0]) / span) * (width - left - 22);
    const picture = draw("svg", { class: "map", width, height: height + bottom, viewBox: `0 0 ${width} ${height + bottom}`, role: "img", "aria-label": say("probe_page.margin_histogram") });
    bars.forEach((count, k) => {
      if (!count) return;
      const tall = (count / highest) * (height - 34);
      const box = draw("rect", { x: x(logs[k]), y: height - tall, width: Math.max(x(logs[k + 1]) - x(logs[k]) - 0.6, 0.8), height: tall, fill: "#4286be" });
      box.append(draw("title", {}, say(k ? "probe_page.bar" : "probe_page.first_bar", { low: shown(edges[k]), high: shown(edges[k + 1]), count })));
      picture.append(box);
    });
    for (let power = Math.ceil(logs[0]); power <= logs[logs.length - 1] + 1e-9; power += 1) {
      picture.append(draw("line", { x1: x(power), x2: x(power), y1: height, y2: height + 5, stroke: "#55514a" }));
      const label = power < -3 || power > 3 ? `1e${power}`.replace("-", "−") : String(10 ** power);
      picture.append(draw("text", { x: x(power), y: height + 17, class: "axis", "text-anchor": "middle" }, label));
    }
    picture.append(draw("line", { x1: 0, x2: width, y1: height, y2: height, stroke: "#55514a" }));
    picture.append(draw("text", { x: width - 8, y: height + 31, class: "axis", "text-anchor": "end" }, say("probe_page.margin_axis")));
    const labels = [["margin_low", "5%"], ["margin_median", "median"]].flatMap(([name, words], k) => {
      if (!value(name)) return [];
      const at = x(Math.log10(value(name)));
      picture.append(draw("line", { x1: at, x2: at, y1: k ? 4 : 18, y2: height, stroke: "#c4420f", "stroke-width": 1.5, "stroke-dasharray": k ? "none" : "4 3" }));
      const right = k ? at < width - 120 : at < 90; // on which side of its line a label has room
      return [draw("text", { x: at + (right ? 4 : -4), y: k ? 13 : 27, class: "axis", "text-anchor": right ? "start" : "end", stroke: "#fff", "stroke-width": 3, "paint-order": "stroke" }, `${words} ${shown(value(name))}`)];
    });
    picture.append(...labels); // above both lines
    const tied = value("tied_share");
    const heading = say(tied ? "probe_page.margins_with_ties" : "probe_page.margins", { count: total, share: shown(tied, true) });
    return [make("h3", {}, heading), make("div", { class: "scroll" }, picture)];
  }

  function preferences() {
    const key = `${state.layer}.${state.head}`, rows = data.preferences[key] || [];
    if (!rows.length) return [];
    const listed = table(
      [["prefers", "token"], ["over", "token"], ["queries", "number"], ["the reverse", "number"], ["saw both", "number"]],
      rows.map(([preferred, over, ...counts]) => [preferred, over, ...counts.map(String)]));
    const graph = data.graphs[key];
    return [make("h3", {}, say("probe_page.preferences")),
      make("div", { class: "columns" }, ...(graph ? [make("div", {}, make("div", { class: "scroll" }, priorities(graph)), legend(graph))] : []), make("div", {}, listed))];
  }

  const INK = "#55514a", CYCLE = "#c4420f";

  function priorities(graph) {
    const [width, height] = graph.size;
    const picture = draw("svg", { class: "map graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": say("probe_page.preference_graph") });
    const tips = draw("defs");
    [["tip", INK], ["cycle", CYCLE]].forEach(([id, colour]) => {
      const tip = draw("marker", { id, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" });
      tip.append(draw("path", { d: "M0 0.5 10 5 0 9.5z", fill: colour }));
      tips.append(tip);
    });
    picture.append(tips);
    const line = (points, colour, dashes, tip) => draw("polyline", { points: points.join(" "), fill: "none", stroke: colour, "stroke-width": 1.4, "stroke-dasharray": dashes, "marker-end": `url(#${tip})` });
    graph.arrows.forEach((points) => picture.append(line(points, INK, "none", "tip")));
    graph.boxes.forEach(([x, y, wide, high, kind, headed]) => {
      const cycle = kind === "equal", several = kind === "alike" || kind === "chain";
      picture.append(draw("rect", { x, y, width: wide, height: high, rx: 5, fill: cycle ? "#fdf1eb" : several ? "#f3f2ee" : "#fff", stroke: cycle ? CYCLE : several ? "#a9a59d" : INK, "stroke-width": cycle ? 1.6 : 1.2, "stroke-dasharray": cycle ? "5 3" : "none" }));
      if (headed) picture.append(draw("text", { x: x + wide / 2, y: y + 18, class: "cycle", "text-anchor": "middle" }, "↻ cycle"));
    });
    graph.inner.forEach((points) => picture.append(line(points, CYCLE, "4 3", "cycle")));
    graph.names.forEach(([x, y, name]) => picture.append(draw("text", { x, y: y + 4, "text-anchor": "middle" }, name)));
    return picture;
  }

  function legend(graph) {
    const kinds = new Set(graph.boxes.map((one) => one[4]));
    const codes = ["probe_page.arrows"];
    if (kinds.has("alike")) codes.push("probe_page.grey_box");
    if (kinds.has("chain")) codes.push("probe_page.chain");
    if (kinds.has("equal")) codes.push("probe_page.cycle");
    return make("p", { class: "under" }, codes.map((code) => say(code)).join(" "));
  }

  const FOLDED = ["correlation", "correlation_random_head", "frobenius", "tied_share"]; // for those who know the theory

  function numbers() {
    const row = (one) => {
      const all = one.values.flat().filter((value) => value !== null);
      const mean = all.reduce((sum, value) => sum + value, 0) / all.length;
      return [one.title, shown(one.values[state.layer][state.head], one.percent), shown(mean, one.percent)];
    };
    const listed = (measures) => table([["measure", ""], ["this head", "number"], ["mean of all heads", "number"]], measures.map(row));
    const [plain, others] = [false, true].map((folded) => data.measures.filter((one) => FOLDED.includes(one.name) === folded));
    const more = others.length ? [make("details", {}, make("summary", {}, say("probe_page.more_numbers")), listed(others))] : [];
    return [make("h3", {}, say("probe_page.numbers")), listed(plain), ...more];
  }

  // ---- where the address points
  function go(place) {
    if (location.hash === place) follow();
    else location.hash = place;
  }

  function sparsest() { // the head that is shown until another is chosen
    const values = data.measures.find((one) => one.name === "relative_nnz")?.values ?? [];
    const known = values.flatMap((row, layer) => row.flatMap((number, head) => (number === null ? [] : [[number, layer, head]])));
    return known.length ? known.reduce((best, one) => (one[0] < best[0] ? one : best)).slice(1) : [null, null];
  }

  function follow() {
    const at = /^#L(\d+)H(\d+)$/.exec(location.hash);
    const known = at && Number(at[1]) < data.layers && Number(at[2]) < data.heads;
    if (!known && location.hash && state.layer !== null) return; // an anchor elsewhere on the page
    const held = document.activeElement, cell = held?.id, step = held?.getAttribute("rel");
    [state.layer, state.head] = known ? [Number(at[1]), Number(at[2])] : sparsest();
    showHeat();
    showHead();
    if (cell?.startsWith("cell-")) byId(cell).focus({ preventScroll: true });
    if (step) (byId("head").querySelector(`a[rel="${step}"]`) ?? byId("head")).focus({ preventScroll: true });
    if (known) byId("head").scrollIntoView();
  }
  window.addEventListener("hashchange", follow);
  showMeasures();
  follow();
})();
