// The examples of the page: which one a state began as, whether it was changed since, and what it is called.
//
// Whoever starts the page's code puts the examples, as presets.json has them, into globalThis.labPresets.

import { stateOfPreset } from "./state.js";

const opened = new Map(); // the state of each example, by its name

/** The example of a name, undefined where there is none. */
export function exampleNamed(name) {
  return globalThis.labPresets.find((preset) => preset.name === name);
}

/** What an example is about, as text: the problem with its starts, or on the other tab what is read. */
function contentOf({ problem, starts, text: { source, sequences, unit, window } }, isText) {
  return JSON.stringify(isText ? [source, sequences, unit, window] : [Object.entries(problem).sort(), starts]);
}

/** The example that a tab of a state began as, with `isChanged`; null where it began as none. */
export function exampleOf(state) {
  const preset = exampleNamed(state.preset);
  const isText = state.tab === "text";
  if (preset === undefined || state.tab === "growth" || (isText && !preset.text)) return null;
  if (!opened.has(preset.name)) opened.set(preset.name, stateOfPreset(preset));
  return { ...preset, isChanged: contentOf(state, isText) !== contentOf(opened.get(preset.name), isText) };
}

/** The name of an example in an address: that of its claim, or its title in small letters: the-start-decides. */
export function linkName({ name, title, claim }) {
  return claim ? name : title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

/** The example that an address names, null where it names none. */
export function exampleLinked(text) {
  const wanted = text.toLowerCase();
  return globalThis.labPresets.find((preset) => [preset.name, linkName(preset)].some((name) => name.toLowerCase() === wanted)) ?? null;
}

/** What a state is called: the name of its example, with what is said where it was changed since; null where it began as none. */
export function exampleName(state, changed = ", changed") {
  const example = exampleOf(state);
  return example && `${linkName(example)}${example.isChanged ? changed : ""}`;
}
