// Permalinks: the state as a URL hash, "#1." and its deflated JSON, or the name of an example that is as it opens.

import { ProblemError } from "../../kernels/problem.js";
import { exampleLinked, exampleNamed, linkName } from "../examples.js";
import { completeState, START_CHOSEN, START_GROWTH, START_PLAYBACK, START_TEXT, START_VIEW, stateOfPreset } from "../state.js";
import { text } from "../words.js";

const DEFLATED = "1";
const MAX_JSON_BYTES = 4_000_000;
const PLACES = ["", "content", "stage"]; // hashes that are no links

/** What differs from a start, so that links stay short; undefined where nothing does. */
function differing(part, start) {
  const entries = Object.entries(part).filter(([key, value]) => value !== start[key]);
  return entries.length > 0 ? Object.fromEntries(entries) : undefined;
}

/** The JSON text of a state without what is as at the start. */
export function stateText(state) {
  return JSON.stringify({
    ...state,
    note: state.note ?? undefined,
    chosen: differing(state.chosen, START_CHOSEN),
    view: differing(state.view, START_VIEW),
    playback: differing(state.playback, START_PLAYBACK),
    text: differing(state.text, START_TEXT),
    growth: differing(state.growth, START_GROWTH),
  });
}

function toBase64(bytes) {
  let letters = "";
  for (let first = 0; first < bytes.length; first += 4096) letters += String.fromCharCode(...bytes.subarray(first, first + 4096));
  return btoa(letters).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** The bytes of letters, those before the first that belongs to none. */
function fromBase64(letters) {
  const [whole] = /^[\w-]*/.exec(letters);
  const text = whole.length % 4 === 1 ? whole.slice(0, -1) : whole;
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
}

/** The bytes that come out of a stream when these go in, up to where it fails. */
async function through(stream, given) {
  const writer = stream.writable.getWriter();
  writer.write(given).catch(() => {});
  writer.close().catch(() => {});
  const parts = [];
  let size = 0;
  for (const reader = stream.readable.getReader(); ; ) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) break;
    parts.push(value);
    size += value.length;
    if (size > MAX_JSON_BYTES) throw new ProblemError(text("lab.link.too_large"));
  }
  const bytes = new Uint8Array(size);
  parts.reduce((at, part) => (bytes.set(part, at), at + part.length), 0);
  return bytes;
}

/** What closes the brackets that are open at the end of JSON; null inside of a string. */
function closing(json) {
  const open = [];
  for (const [sign] of json.matchAll(/"(?:[^"\\]|\\.)*"|["[\]{}]/gs)) {
    if (sign === '"') return null;
    if (sign === "[" || sign === "{") open.unshift(sign === "[" ? "]" : "}");
    else if (sign === "]" || sign === "}") open.shift();
  }
  return open.join("");
}

/** The value of JSON that was cut, without what was cut in two; null where nothing is left. */
function valueOfCut(json) {
  for (let end = json.length; end > 0; end--) {
    if (json[end] !== "," && !/[\]}"]/.test(json[end - 1])) continue; // a number may go on
    const close = closing(json.slice(0, end));
    if (close === null) continue;
    try {
      return JSON.parse(json.slice(0, end) + close);
    } catch {
      // it ends at a name without a value
    }
  }
  return null;
}

/** Whether a state is that of an example as it opens, in whatever order its parts are. */
function isAsOpened(state, preset) {
  const sorted = ({ problem, ...parts }) => stateText({ problem: Object.fromEntries(Object.entries(problem).sort()), ...parts });
  return sorted(completeState(state)) === sorted(stateOfPreset(preset));
}

/** The hash of a state, "#" included. */
export async function hashOf(state) {
  const preset = exampleNamed(state.preset);
  if (preset && isAsOpened(state, preset)) return `#${linkName(preset)}`;
  const bytes = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(stateText(state)));
  return `#${DEFLATED}.${toBase64(bytes)}`;
}

/** { state, complaint } of what a damaged link still holds: the problem, whole where starts follow it, or else the example that it began as. */
function stateOfRest(given) {
  const example = exampleNamed(given?.preset);
  try {
    if (given?.starts) return { state: completeState(given), complaint: text("lab.link.cut") };
  } catch {
    // too much of the problem is missing
  }
  if (example) return { state: stateOfPreset(example), complaint: text("lab.link.example_left", { title: example.title }) };
  throw new ProblemError(text("lab.link.damaged"));
}

/**
 * { state, complaint } of a hash: the state is null where it names a place on the page, the complaint null where all of it was read.
 * A `ProblemError` with one sentence where nothing can be read.
 */
export async function stateOfHash(hash) {
  const found = /^#(\w+)\.(.*)$/s.exec(hash);
  if (found === null) {
    const name = hash.slice(1);
    const preset = exampleLinked(name);
    if (preset === null && !PLACES.includes(name)) throw new ProblemError(text("lab.link.damaged"));
    return { state: preset && stateOfPreset(preset), complaint: null };
  }
  const [, version, content] = found;
  if (version !== DEFLATED) throw new ProblemError(text("lab.link.other_version", { version: version.slice(0, 12) }));
  const json = new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), fromBase64(content)));
  let given;
  try {
    given = JSON.parse(json);
  } catch {
    return stateOfRest(valueOfCut(json));
  }
  return { state: completeState(given), complaint: null };
}
