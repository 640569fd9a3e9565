// Help: what keys, mouse and fingers do.

import { element } from "../dom.js";
import { isTyping } from "../toolbar.js";
import { text, title } from "../words.js";

/** Open the dialog with all keys. */
export function openHelp() {
  if (document.getElementById("help")) return;
  const opener = document.activeElement;
  const close = element("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close");
  const parts = Object.entries(globalThis.labWords.keys).map(([place, rows]) => [
    element("h3", {}, place),
    element("dl", {}, rows.map((name) => element("div", {}, element("dt", {}, title(`lab.key.${name}`)), element("dd", {}, text(`lab.key.${name}`))))),
  ]);
  const heading = element("h2", { id: "help-title", tabindex: "-1", autofocus: true }, "Keyboard and mouse");
  const dialog = element("dialog", { id: "help", class: "help", "aria-labelledby": "help-title" }, heading, parts, close);
  dialog.addEventListener("close", () => {
    dialog.remove();
    opener?.focus?.();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** The key ? opens the help, except where text is typed. */
export function mountHelp() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    event.preventDefault();
    openHelp();
  });
  return openHelp;
}
