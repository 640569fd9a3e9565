// The share menu: link, Python script, problem files and pictures.

import { copyText } from "./clipboard.js";
import { curvesPicture } from "../run/curves.js";
import { element } from "../dom.js";
import { captionOf, joined, pngOf } from "./picture_files.js";
import { planePicture } from "../plane/plane.js";
import { graphPicture } from "../text/priority_picture.js";
import { download, fileName, mountDrop, mountFileField, problemFile } from "./problem_transfer.js";
import { pythonScript } from "./python_script.js";

/** A dialog with a text that is selected, for browsers that do not let the page copy. */
export function showText(title, text) {
  const field = element("textarea", { readonly: true, rows: 12, spellcheck: "false", "aria-label": title });
  field.value = text;
  const close = element("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close");
  const heading = element("h2", { id: "text-dialog-title" }, title);
  const hint = element("p", { class: "small" }, "The browser does not let the page copy. The text is selected: press Ctrl+C, or ⌘C.");
  const dialog = element("dialog", { class: "text-dialog", "aria-labelledby": "text-dialog-title" }, heading, hint, field, close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
  field.select();
}

/** The state with the step that is shown now, also while a run plays. */
function shownState(store, runs) {
  const { state } = store;
  const step = runs?.step ?? state.playback.step;
  return step === state.playback.step ? state : { ...state, playback: { ...state.playback, step } };
}

/** The picture of what is seen as SVG text, or null where nothing is drawn yet. */
export function seenPicture(state) {
  const parts = (state.tab === "text" ? [graphPicture?.()] : [planePicture?.(), curvesPicture?.()]).filter(Boolean);
  if (parts.length === 0) return null;
  const colours = getComputedStyle(document.documentElement);
  const colour = (name, other) => colours.getPropertyValue(name).trim() || other;
  return joined(parts, captionOf(state), { ground: colour("--panel", "#ffffff"), ink: colour("--ink", "#000000") });
}

async function savePicture(store, runs, ending) {
  const state = shownState(store, runs);
  const svg = seenPicture(state);
  if (svg === null) {
    store.say("There is no picture yet.", "refusal");
    return;
  }
  const name = fileName(state, ending);
  try {
    download(name, ending === "png" ? await pngOf(svg) : svg, "image/svg+xml");
    store.say(`Saved ${name}.`);
  } catch {
    store.say("The browser could not draw the picture; save it as SVG.", "refusal");
  }
}

async function copied(store, text, what) {
  if (await copyText(text)) store.say(`${what} is copied.`);
  else showText(what, text);
}

/** What the share menu offers: [{ label, run }]; linkOf(state): a promise of the address of a state. */
export function shareItems(store, runs, linkOf) {
  const field = mountFileField(store);
  mountDrop(store);
  return [
    { label: "Copy link", run: async () => copied(store, await linkOf(shownState(store, runs)), "The link") },
    { label: "Copy as Python", run: async () => copied(store, await shownScript(store, runs, linkOf), "The Python script") },
    {
      label: "Save problem (JSON)",
      run: () => {
        const state = shownState(store, runs);
        download(fileName(state, "json"), problemFile(state), "application/json");
        store.say(`Saved ${fileName(state, "json")}: marginlens solve and marginlens train read it too.`);
      },
    },
    { label: "Load problem …", run: () => field.click() },
    { label: "Save picture (PNG)", run: () => savePicture(store, runs, "png") },
    { label: "Save picture (SVG)", run: () => savePicture(store, runs, "svg") },
  ];
}

/** The Python script of what is shown, with its link at the top. */
export async function shownScript(store, runs, linkOf) {
  const state = shownState(store, runs);
  return pythonScript(state, await linkOf(state));
}
