"use strict";
// Elements of HTML (make) and of SVG (draw), before the script of a page; texts only ever enter as text.
const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const draw = (name, attributes = {}, text = null) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
};
// The texts of the page by code: {name} stands for a value, {name:one|several} for the noun that fits a number, {name:# one|several} for both.
const texts = JSON.parse(document.getElementById("words").textContent);
const say = (code, values = {}) => texts[code].replace(/\{(\w+)(?::(# )?([^|}]*)\|([^}]*))?\}/g, (_, name, count, one, several) => {
  const value = values[name];
  if (several === undefined) return String(value);
  return `${count ? `${value.toLocaleString("en")} ` : ""}${value === 1 ? one : several}`;
});
const byId = (id) => document.getElementById(id);
// What is wider than its place can be reached and scrolled without a mouse.
const letKeysScroll = () => document.querySelectorAll(".scroll").forEach((place) => {
  if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
  else place.removeAttribute("tabindex");
});
window.addEventListener("resize", letKeysScroll);
// Layers have a number, or the name of a part of the model before it.
const layerTitle = (name) => (/^\d+$/.test(name) ? `Layer ${name}` : name[0].toUpperCase() + name.slice(1));
// A number with the digits that matter.
const digits = (value) => {
  const size = Math.abs(value);
  const text = size >= 1e4 || (size && size < 1e-3) ? value.toExponential(1) : value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
  return text.replaceAll("-", "−");
};
// All heads in a table, a row for each layer, with what `cell(layer, head)` makes.
const fillHeads = (table, { layerNames, heads }, cell) => {
  const each = Array.from({ length: heads }, (_, head) => head);
  const top = make("tr", {}, make("th", { scope: "col" }, "layer \\ head"), ...each.map((head) => make("th", { scope: "col" }, String(head))));
  const row = (name, layer) => make("tr", {}, make("th", { scope: "row" }, name), ...each.map((head) => make("td", {}, cell(layer, head))));
  table.replaceChildren(make("thead", {}, top), make("tbody", {}, ...layerNames.map(row)));
};
// Rows and columns that an arrow key goes on by; undefined for another key.
const arrowStep = (event) => ({ ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] })[event.key];
// Arrow keys in a table choose the head beside the chosen one.
const chooseByArrows = (table, state, choose) => table.addEventListener("keydown", (event) => {
  const step = arrowStep(event);
  if (!step) return;
  event.preventDefault();
  choose(state.layer + step[0], state.head + step[1]);
});
// Buttons for measures, in their groups; `choose(k)` draws the page anew, these buttons included, and the chosen one has the focus then.
const showMeasureButtons = (place, measures, chosen, choose) => {
  const groups = [...new Set(measures.map((measure) => measure.group))];
  place.replaceChildren(...groups.flatMap((group) => [
    make("span", {}, group),
    make("div", { role: "group", "aria-label": group }, ...measures.flatMap((measure, k) => {
      if (measure.group !== group) return [];
      const button = make("button", { type: "button", "aria-pressed": String(k === chosen) }, measure.label);
      button.addEventListener("click", () => {
        choose(k);
        place.querySelector('[aria-pressed="true"]').focus();
      });
      return [button];
    })),
  ]));
};
