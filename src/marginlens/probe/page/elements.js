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
const byId = (id) => document.getElementById(id);
// What is wider than its place can be reached and scrolled without a mouse.
const letKeysScroll = () => document.querySelectorAll(".scroll").forEach((place) => {
  if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
  else place.removeAttribute("tabindex");
});
window.addEventListener("resize", letKeysScroll);
// Layers have a number, or the name of a part of the model before it.
const layerTitle = (name) => (/^\d+$/.test(name) ? `Layer ${name}` : name[0].toUpperCase() + name.slice(1));
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
