// Problems as files: saved with all that the page shows of them, loaded by a button.

import { ProblemError } from "../../kernels/problem.js";
import { exampleName } from "../examples.js";
import { fittingHalf } from "../plane/plane_scale.js";
import { completeState, keysOf, problemOf, START_VIEW, stateOfProblem } from "../state.js";

export const MAX_FILE_BYTES = 4_000_000;

/** What a file of the state is called, by its example and what is shown of it: marginlens-A-F1b-step-300.json. */
export function fileName(state, ending) {
  const parts = ["marginlens"];
  if (state.tab === "text") parts.push("text", ...(state.text.last === null ? [] : [`after-${state.text.last}`]));
  else if (state.tab === "growth") parts.push("logits");
  else parts.push(exampleName(state, "-changed") ?? "problem", ...(state.playback.step > 0 ? [`step-${state.playback.step}`] : []));
  const name = parts.join("-").replace(/[^\p{L}\p{N}._-]+/gu, "_").replace(/_+$/, "");
  return `${name}.${ending}`;
}

/** The text of a problem file: the problem with its chosen start, as `marginlens predict` and `train` read it, and the page's part. */
export function problemFile(state) {
  const { problem, ...page } = state;
  const entries = Object.entries({ ...problemOf(state), page });
  return `{\n${entries.map(([key, value]) => `  ${JSON.stringify(key)}: ${JSON.stringify(value)}`).join(",\n")}\n}\n`;
}

/** The state of a problem file, or a `ProblemError` with one sentence; current: the state whose text stays where the file has none. */
export function stateOfFile(text, current) {
  if (text.trim() === "") throw new ProblemError("The file is empty.");
  let json;
  try {
    json = JSON.parse(text);
  } catch {
    throw new ProblemError("The file is not JSON; the page loads problems that it saved, or that marginlens wrote.");
  }
  const isObject = typeof json === "object" && json !== null && !Array.isArray(json);
  if (!isObject || (json.format === undefined && json.tokens === undefined && json.keys === undefined))
    throw new ProblemError("The file holds no problem: it must be a JSON object with tokens, or with keys and scores.");
  if (json.sequences !== undefined) throw new ProblemError("The file holds sequences: marginlens lab FILE opens the page with them.");
  const { page, ...problem } = json;
  const opened = stateOfProblem(problem, { text: current.text, view: {} });
  if (typeof page !== "object" || page === null || Array.isArray(page))
    return { ...opened, view: { ...opened.view, half: Math.max(START_VIEW.half, fittingHalf([opened.problem.tokens ?? [], keysOf(opened.problem)].flat(2))) } };
  return completeState({ ...opened, ...page, problem: opened.problem });
}

/** Load a file into the store; resolves to whether the state was shown, and says one sentence either way. */
export async function loadFile(store, file) {
  try {
    if (file.size > MAX_FILE_BYTES) throw new ProblemError(`The file ${file.name} is too large for a problem of the page.`);
    const isLoaded = store.load(stateOfFile(await file.text(), store.state), `load ${file.name}`);
    if (isLoaded) store.say(`Loaded ${file.name}.`);
    return isLoaded;
  } catch (error) {
    store.say(error instanceof ProblemError ? error.message : `The file ${file.name} cannot be read.`, "refusal");
    return false;
  }
}

/** Hand a file to the reader: `content` is a text or a Blob. */
export function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A field that asks for a file, never shown: `click()` opens the browser's dialog. */
export function mountFileField(store) {
  const field = document.createElement("input");
  Object.assign(field, { type: "file", id: "problem-file", accept: ".json,application/json", hidden: true });
  field.addEventListener("change", async () => {
    if (field.files.length > 0) await loadFile(store, field.files[0]);
    field.value = "";
  });
  document.body.append(field);
  return field;
}
