// Permalinks: the state as a URL hash, "#1." and its deflated JSON, or the name of an example that is as it opens.

import { ProblemError } from "../../kernels/problem.js";
import { exampleLinked, exampleNamed, linkName } from "../examples.js";
import { completeState, START_CHOSEN, START_GROWTH, START_PLAYBACK, START_TEXT, START_VIEW, stateOfPreset } from "../state.js";

const DEFLATED = "1";
const MAX_JSON_BYTES = 4_000_000;
const DAMAGED = "This link is damaged: what it holds cannot be read, so the page stays as it is.";

/** What differs from a start, so that links stay short; undefined where nothing does. */
function differing(part, start) {
  const entries = Object.entries(part).filter(([key, value]) => value !== start[key]);
  return entries.length > 0 ? Object.fromEntries(entries) : undefined;
}

/** The JSON text of a state without what is as at the start. */
export function stateText(state) {
  return JSON.stringify({
    ...state,
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

function fromBase64(text) {
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
}

/** All bytes that come out of a stream when these go in. */
async function through(stream, bytes) {
  const writer = stream.writable.getWriter();
  writer.write(bytes).catch(() => {});
  writer.close().catch(() => {});
  const parts = [];
  let size = 0;
  for (const reader = stream.readable.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
    if (size > MAX_JSON_BYTES) throw new ProblemError("This link holds more than the page takes, so the page stays as it is.");
  }
  const whole = new Uint8Array(size);
  parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
  return whole;
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
  const bytes = new TextEncoder().encode(stateText(state));
  return `#${DEFLATED}.${toBase64(await through(new CompressionStream("deflate-raw"), bytes))}`;
}

/** The state of a hash, null where the hash is empty or names a place on the page; a `ProblemError` with one sentence where it cannot be read. */
export async function stateOfHash(hash) {
  const found = /^#(\w+)\.(.*)$/s.exec(hash);
  if (found === null) {
    const preset = exampleLinked(hash.slice(1));
    return preset && stateOfPreset(preset);
  }
  const [, version, content] = found;
  if (version !== DEFLATED)
    throw new ProblemError(`This link was made by another version of the page (${version.slice(0, 12)}), so the page stays as it is.`);
  let given;
  try {
    const bytes = await through(new DecompressionStream("deflate-raw"), fromBase64(content));
    given = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw error instanceof ProblemError ? error : new ProblemError(DAMAGED);
  }
  try {
    return completeState(given);
  } catch (error) {
    if (error instanceof ProblemError) throw error;
    throw new ProblemError(DAMAGED);
  }
}
