// Help: what keys, mouse and fingers do.

import { element } from "./dom.js";

/** What there is to press, by place: [[keys, what they do], …]. */
export const HELP = {
  "In the picture": [
    ["Drag", "move a token, a key, the head v or a start"],
    ["Tab, then [ and ]", "go from mark to mark"],
    ["Arrow keys", "move the chosen mark; with Shift in larger steps"],
    ["Enter", "choose a mark, so that the panels speak of it"],
    ["Delete", "remove a token or a start"],
    ["+ and −", "zoom in and out; so do a pinch and Ctrl with the wheel"],
  ],
  "The run": [
    ["Space", "play and pause"],
    [", and .", "one step back, one step on"],
    ["← and → on the bar", "move along the path; Page keys go farther"],
  ],
  "The page": [
    ["Ctrl+Z, Ctrl+Y", "undo, redo"],
    ["← and → on the tabs", "token selection, next tokens"],
    ["Esc", "close a menu, a dialog or the tour"],
    ["?", "this help"],
    ["Drop a file", "load a problem"],
  ],
};

/** Open the dialog with all keys. */
export function openHelp() {
  if (document.getElementById("help")) return;
  const opener = document.activeElement;
  const close = element("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close");
  const parts = Object.entries(HELP).map(([place, rows]) => [
    element("h3", {}, place),
    element("dl", {}, rows.map(([keys, does]) => element("div", {}, element("dt", {}, keys), element("dd", {}, does)))),
  ]);
  const heading = element("h2", { id: "help-title" }, "Keyboard and mouse");
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
    const isTyping = event.target.matches?.('textarea, [contenteditable], input:not([type="range"], [type="checkbox"], [type="radio"])');
    if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    event.preventDefault();
    openHelp();
  });
  return openHelp;
}
