// The share menu: link, page, pictures, film, Python script and problem files.

import { element } from "../dom.js";
import { captionOf, filmOf, framed, pngOf } from "./picture_files.js";
import { stepScale } from "../run/curve_scale.js";
import { growthPicture } from "../run/growth_panel.js";
import { planePicture } from "../plane/plane.js";
import { download, fileName, mountFileField, problemFile } from "./problem_transfer.js";
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

const textsOf = (selector) => Array.from(document.querySelectorAll(selector), (node) => node.textContent.trim().replace(/\s+/g, " ")).filter(Boolean);

/** The picture of what is seen as SVG text, or null where nothing is drawn, as on the tab of next tokens. */
export function seenPicture(state) {
  const { picture, words } = { plane: { picture: planePicture, words: "#headline, #because, #proved" }, growth: { picture: growthPicture, words: "#growth-verdict" } }[state.tab] ?? {};
  const seen = picture?.();
  if (!seen) return null;
  const colours = getComputedStyle(document.documentElement);
  return framed(seen, [...textsOf(words), captionOf(state)], { ground: colours.getPropertyValue("--panel").trim(), ink: colours.getPropertyValue("--ink").trim() });
}

/** Make a file of what is seen and hand it out by `give(name, content)`; what goes wrong is one sentence. */
async function withPicture(store, runs, ending, give) {
  const state = shownState(store, runs);
  const svg = seenPicture(state);
  if (svg === null) return store.say("There is no picture of this: copy the link, or save the page.", "refusal");
  try {
    store.say(await give(fileName(state, ending), svg));
  } catch {
    store.say("The browser does not let the page do that with a picture; save it as SVG.", "refusal");
  }
}

async function saved(name, content, type) {
  download(name, content, type);
  return `Saved ${name}.`;
}

async function copyPicture(svg) {
  await navigator.clipboard.write([new ClipboardItem({ "image/png": pngOf(svg) })]);
  return "The picture is copied.";
}

/** The run from its start to its end, as a film. */
async function saveFilm(store, runs) {
  if (store.state.tab !== "plane") return store.say("A film shows a run: go to token selection first.", "refusal");
  const { step } = runs;
  const { step: stepAt } = stepScale(runs.end);
  const shown = () => ({ ...store.state, playback: { ...store.state.playback, step: runs.step } });
  store.say("Filming the run: seven seconds …");
  const film = await filmOf((share) => {
    runs.scrubTo(stepAt(share), { save: false });
    return seenPicture(shown());
  });
  const name = film && fileName(store.state, film.type.split("/")[1]);
  runs.scrubTo(step, { save: false });
  store.say(film ? await saved(name, film) : "This browser records no film; save a picture.", film ? "notice" : "refusal");
}

/** The page itself as a file that opens with a state. */
function pageWith(state) {
  const json = JSON.stringify(state).replaceAll("<", "\\u003c");
  const filled = window.labSource.replace(/(<script type="application\/json" id="problem">)[^]*?(<\/script>)/, (_, open, close) => `${open}${json}${close}`);
  return `<!doctype html>\n${filled}\n`;
}

/** Copy a text, or show it where the browser does not let it be copied. */
async function copied(store, text, what, note = "") {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    return showText(what, text);
  }
  return store.say(`${what} is copied.${note}`);
}

/** Whether links to this page open on this machine alone. */
function isLocal() {
  return location.protocol === "file:" && !document.documentElement.dataset.address;
}

/** What the share menu offers: [{ label, run }]; linkOf(state): a promise of the address of a state. */
export function shareItems(store, runs, linkOf) {
  const field = mountFileField(store);
  const state = () => shownState(store, runs);
  const onlyHere = " It works only on this computer. To share the problem, use Save page.";
  const ofProblem = (run) => () => (store.state.tab === "growth" ? store.say("That is for token selection and next tokens: go there first.", "refusal") : run());
  return [
    { label: "Copy link", run: async () => copied(store, await linkOf(state()), "The link", isLocal() ? onlyHere : "") },
    { label: "Save page (HTML)", run: async () => store.say(await saved(fileName(state(), "html"), pageWith(state()), "text/html")) },
    { label: "Copy picture", run: () => withPicture(store, runs, "png", (_, svg) => copyPicture(svg)) },
    { label: "Save picture (PNG)", run: () => withPicture(store, runs, "png", async (name, svg) => saved(name, await pngOf(svg))) },
    { label: "Save picture (SVG)", run: () => withPicture(store, runs, "svg", (name, svg) => saved(name, svg, "image/svg+xml")) },
    { label: "Save film", run: () => saveFilm(store, runs) },
    { label: "Copy as Python", run: ofProblem(async () => copied(store, await shownScript(store, runs, linkOf), "The Python script")) },
    {
      label: "Save problem (JSON)",
      run: ofProblem(async () => {
        const sentence = await saved(fileName(state(), "json"), problemFile(state()), "application/json");
        store.say(`${sentence.slice(0, -1)}: marginlens predict and marginlens train read it too.`);
      }),
    },
    { label: "Load problem …", run: () => field.click() },
  ];
}

/** The Python script of what is shown, with its link at the top where others can open it. */
export async function shownScript(store, runs, linkOf) {
  const state = shownState(store, runs);
  return pythonScript(state, isLocal() ? null : await linkOf(state));
}
