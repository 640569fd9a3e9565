// Tokens as running text.

import { shownName } from "./text_model.js";

const CLOSE_MARKS = /^[,.;:!?)\]’'”]/u;

/** Tokens in a row as people read them: words with spaces between; isSigned shows spaces and line ends by signs. */
export function shownTokens(ids, names, unit, isSigned = false) {
  if (unit === "characters") {
    const text = ids.map((id) => names[id]).join("");
    return isSigned ? shownName(text) : text.replaceAll("\n", "↵\n");
  }
  return ids.map((id) => (unit === "words" && CLOSE_MARKS.test(names[id]) ? names[id] : ` ${names[id]}`)).join("");
}

/** Tokens from the beginning of a line. */
export function runningText(ids, names, unit) {
  const text = shownTokens(ids, names, unit);
  return unit === "characters" ? text : text.trimStart();
}
