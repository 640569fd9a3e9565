// "Copy as Python": a script with marginlens that computes and prints what the page shows of a state.

import { DEFAULT_STEPS } from "../../kernels/problem.js";
import { exampleName } from "../examples.js";
import { problemOf } from "../state.js";
import { MAX_COUNT, MAX_VOCABULARY } from "../text/text_model.js";

/** A value of JSON as Python writes it, which reads back as the same. */
export function pythonLiteral(value) {
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value === "object" && value !== null) {
    return `{${Object.entries(value).map(([key, entry]) => `${JSON.stringify(key)}: ${pythonLiteral(entry)}`).join(", ")}}`;
  }
  return Object.is(value, -0) ? "-0.0" : JSON.stringify(value);
}

/** A list of lists with an entry on each line; any other value on one line. */
function byLine(value, indent) {
  if (!Array.isArray(value) || !value.some(Array.isArray)) return pythonLiteral(value);
  return `[\n${value.map((entry) => `${indent}    ${pythonLiteral(entry)},\n`).join("")}${indent}]`;
}

/** A part of python_script.txt, by its name, with values in the place of «names». */
function part(name, values) {
  const text = globalThis.labWords.script.split(/^# %% /m).find((one) => one.startsWith(`${name}\n`));
  return text.slice(name.length + 1).replace(/«(\w+)»/g, (_, key) => values[key]);
}

function planeScript(state) {
  const { problem, starts, playback } = state;
  const all = problem.steps ?? DEFAULT_STEPS;
  const steps = playback.step > 0 ? Math.min(playback.step, all) : all;
  const entries = Object.entries(problemOf(state)).map(([key, value]) => `        ${JSON.stringify(key)}: ${byLine(value, "        ")},`);
  return part("plane", {
    problem: entries.join("\n"),
    starts: pythonLiteral(starts),
    steps,
    reach: steps < all ? `up to step ${steps} of ${all}` : `all ${steps} steps`,
    start: problem.train === "both" ? "(problem.start_head, start)" : "start",
    p: problem.train === "both" ? "run.split().p" : "run.final",
  });
}

function textScript({ text }) {
  const { source, unit, window, sequences, last, prompt, count, draw, seed } = text;
  const data = sequences
    ? part("sequences", { samples: byLine(sequences.samples, ""), labels: pythonLiteral(sequences.labels), names: pythonLiteral(sequences.names.map(String)) })
    : part("windows", { text: pythonLiteral(source), window, unit: unit === "words" ? `ml.data.Words(max_vocabulary=${MAX_VOCABULARY})` : "ml.data.Characters()" });
  const graph = part("graph", { last: last === null ? "max(graphs, key=ends.count)  # the most frequent" : `names.index(${pythonLiteral(last)})` });
  const encoded = sequences ? "[names.index(token) for token in prompt.split()]" : "named.vocabulary.encode(prompt).tolist()";
  const values = { prompt: pythonLiteral(prompt), encoded, count: Math.min(count, MAX_COUNT), seed };
  return `${data}${graph}${part(draw === "random" ? "drawn tokens" : "likeliest tokens", values)}`;
}

/** A Python script that computes and prints what the page shows of a state; link: the state's own, to be named at the top. */
export function pythonScript(state, link = null) {
  const isText = state.tab === "text";
  const subject = isText ? "next tokens of a text" : `token selection in the plane, ${exampleName(state) ?? "a problem of your own"}`;
  return `${part("opening", { subject, link: link ? `\n# ${link}` : "" })}${isText ? textScript(state) : planeScript(state)}`;
}
