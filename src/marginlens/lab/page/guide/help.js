// Help: what keys, mouse and fingers do.

import { element } from "../dom.js";

/** What keys, mouse and fingers do in the plane: [[keys, what they do], …]. */
export const PLANE_KEYS = [
  ["Drag", "moves a token, a key, the head v or a start"],
  ["Tab", "enters the plane; ] or Page Down goes to the next point, [ or Page Up to the one before, Home and End to the first and last"],
  ["Arrow keys", "move the point by a hundredth of the view, with Shift by a tenth"],
  ["Enter", "chooses the point or the limit for the panels beside"],
  ["Delete", "removes a token or a start"],
  ["Double click", "adds a start"],
  ["+ and −", "zoom; so do the wheel once the plane is clicked, and two fingers"],
];

const HELP = {
  "In the plane": PLANE_KEYS,
  "The run": [
    ["Space", "plays and pauses"],
    [", and .", "go one step back, one step on"],
    ["← and → on the bar", "move along the path, with Shift or the Page keys farther"],
  ],
  "The graph of a text": [["Tab, then arrow keys", "go from token to token; Enter chooses one, to see what it wins over"]],
  "The page": [
    ["Ctrl+Z, Ctrl+Y", "undo and redo"],
    ["← and → on the tabs", "change between token selection and next tokens"],
    ["F6", "goes between the tour and the page"],
    ["Esc", "closes a menu, a dialog or the tour"],
    ["?", "shows this help"],
    ["Dropping a file", "loads a problem"],
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
    const isTyping = event.target.matches?.('textarea, [contenteditable], input:not([type="range"], [type="checkbox"], [type="radio"])');
    if (event.key !== "?" || event.ctrlKey || event.metaKey || event.altKey || isTyping) return;
    event.preventDefault();
    openHelp();
  });
  return openHelp;
}
