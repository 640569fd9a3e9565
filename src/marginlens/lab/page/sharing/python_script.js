// "Copy as Python": a script with marginlens that computes and prints what the page shows of a state.

import { isSteady, LEAST_STEPS } from "../../kernels/basins.js";
import { normOfOptimizer } from "../../kernels/norms.js";
import { dependentInputs, strictOptimum } from "../../kernels/optimality.js";
import { ProblemError, readProblem } from "../../kernels/problem.js";
import { exampleName } from "../examples.js";
import { MAX_COUNT, MAX_VOCABULARY, promptIds, readText, summaryOf } from "../text/text_model.js";

const LINE_WIDTH = 110;
const FEW_TOKENS = 48; // in all inputs together: up to so many, listing the limits solves fewer problems than Python's default limit
const MAX_JOINT_SELECTIONS = 4096; // choices of a token per input up to which the page tries them all
const BASIN_SIDE = 64; // pixels of the script's picture of basins in each direction

/** A number as Python writes it, which reads back as the same double; a name stays as it is. */
export function pythonNumber(x) {
  if (typeof x === "string") return x;
  if (Object.is(x, -0)) return "-0.0";
  return Number.isInteger(x) && Math.abs(x) < 1e16 ? `${x}.0` : String(x);
}

/** A string as a Python literal in double quotes. */
export function pythonString(text) {
  const escaped = Array.from(text, (letter) => {
    const code = letter.codePointAt(0);
    if (letter === "\\" || letter === '"') return `\\${letter}`;
    if (letter === "\n") return "\\n";
    if (letter === "\t") return "\\t";
    const isOdd = code < 32 || (code >= 127 && code < 160) || (code >= 0xd800 && code < 0xe000) || code === 0x2028 || code === 0x2029;
    return isOdd ? `\\u${code.toString(16).padStart(4, "0")}` : letter;
  });
  return `"${escaped.join("")}"`;
}

function vector(entries) {
  return `[${Array.from(entries, pythonNumber).join(", ")}]`;
}

/** Nested lists with one input on a line, or one token where an input is too long for a line. */
function inputs(name, rows, entry) {
  const lines = rows.flatMap((row) => {
    const parts = row.map(entry);
    const whole = `    [${parts.join(", ")}],`;
    return whole.length <= LINE_WIDTH ? [whole] : ["    [", ...parts.map((part) => `        ${part},`), "    ],"];
  });
  return [`${name} = [`, ...lines, "]"];
}

/** A long text as lines of adjacent string literals in brackets. */
function longText(name, text) {
  const letters = Array.from(text);
  const pieces = [];
  for (let piece = ""; letters.length > 0 || piece !== ""; ) {
    const letter = letters.shift() ?? "";
    piece += letter;
    const width = pythonString(piece).length;
    if (letters.length === 0 || letter === "\n" || width >= LINE_WIDTH - 5 || (letter === " " && width >= LINE_WIDTH - 20)) {
      pieces.push(pythonString(piece));
      piece = "";
    }
  }
  if (pieces.length <= 1) return [`${name} = ${pieces[0] ?? '""'}`];
  return [`${name} = (`, ...pieces.map((piece) => `    ${piece}`), ")"];
}

/** The optimizer of a problem as it is called in Python. */
export function pythonOptimizer(optimizer) {
  const size = optimizer.decay
    ? `ml.optimizers.PowerDecay(${pythonNumber(optimizer.size)}, ${pythonNumber(optimizer.decay)})`
    : pythonNumber(optimizer.size);
  const momentum = optimizer.momentum ? `, momentum=${pythonNumber(optimizer.momentum)}` : "";
  if (optimizer.name === "steepest-descent") return `ml.SteepestDescent(ml.Lp(${pythonNumber(optimizer.p)}), ${size}${momentum})`;
  if (optimizer.name === "adam")
    return `ml.Adam(${size}, betas=(${optimizer.betas.map(pythonNumber).join(", ")}), eps=${pythonNumber(optimizer.eps)})`;
  return `ml.${globalThis.labWords.optimizers[optimizer.name].python}(${size}${momentum})`;
}

function pythonNorm(power) {
  if (power === Infinity) return "ml.LInf()";
  return power === 1 ? "ml.L1()" : `ml.Lp(${pythonNumber(power)})`;
}

/** A part of python_script.txt, by its name, with values in the place of «names», as lines. */
function part(name, values = {}) {
  const text = globalThis.labWords.script.split(/^# %% /m).find((one) => one.startsWith(`${name}\n`));
  return text.slice(name.length + 1, -1).replace(/«(\w+)»/g, (_, key) => values[key]).split("\n");
}

/** The lines at the top: where the script comes from. */
function opening(state, link) {
  const name = exampleName(state) ?? "a problem of your own";
  const subject = state.tab === "text" ? "next tokens of a text" : `token selection in the plane, ${name}`;
  return part("opening", { subject, link: link ? `\n# ${link}` : "" });
}

// ---- the plane

/** The names of the tokens, if they have any. */
function nameLines({ words }) {
  if (!words?.flat().some(Boolean)) return [];
  return [`data = data.named([${words.map((names) => `[${names.map(pythonString).join(", ")}]`).join(", ")}])`];
}

/** data, head (where there is one) and y. */
function dataLines(problem, json) {
  const labels = `y = [${Array.from(problem.y, (label) => (label > 0 ? "1" : "-1")).join(", ")}]`;
  const point = (entries) => `(${entries.map(pythonNumber).join(", ")})`;
  const lines = ["# ---- the data"];
  if (problem.byScores) {
    const isEven = problem.lengths.every((length) => length === problem.T);
    lines.push(...inputs("keys", json.keys ?? json.tokens, point), ...inputs("scores", json.scores, pythonNumber), labels);
    return [...lines, ...part(isEven ? "scored tokens" : "scored tokens of different lengths"), ...nameLines(json)];
  }
  lines.push(...inputs("tokens", json.tokens, point), labels);
  if (!problem.keysAreTokens) lines.push(...inputs("keys", json.keys, point));
  lines.push(`data = ml.TokenDataset(tokens, y${problem.keysAreTokens ? "" : ", K=keys"})`, ...nameLines(json));
  if (!problem.joint) lines.push(`head = ${vector(problem.head)}`);
  return lines;
}

/** The predicted limits in the page's order with what proves them, and the theorems. */
function predictionLines(problem) {
  const most = problem.lengths.reduce((sum, length) => sum + length, 0) > FEW_TOKENS ? ", max_problems=100_000" : "";
  const dependent = dependentInputs(problem);
  const isWhole = dependent.length === 0 || dependent.length === problem.n;
  const power = normOfOptimizer(problem.optimizer);
  const tokens = isWhole ? "data, selected" : "part, [selected[i] for i in inputs]";
  const lines = [...part("limits", { most }), ...(isWhole ? [] : part("part of the inputs", { dependent: dependent.join(", ") }))];
  if (power === 2) {
    const sets = strictOptimum(problem).isStrict ? [] : part("without sets");
    lines.push(...part("limits in the Euclidean norm"), ...sets, ...part("certificates", { tokens }));
  } else lines.push(...part("limits in another norm", { optimizer: globalThis.labWords.optimizers[problem.optimizer.name].python, norm: pythonNorm(power), tokens }));
  return [...lines, ...part("multipliers", { input: isWhole ? "i" : "inputs[i]" }), ...part("theorems")];
}

function descentLines(problem, state) {
  const step = state.playback?.step ?? 0;
  const steps = step > 0 ? Math.min(step, problem.steps) : problem.steps;
  const reach = steps < problem.steps ? `up to step ${steps} of ${problem.steps}` : `all ${steps} steps`;
  const words = problem.joint
    ? { risk: "", start: "(start_head, start)", p: "split().p" }
    : { risk: "\nrisk = ml.AttentionRisk(data, head, loss)", start: "start", p: "final" };
  return [...part("descent", { steps, reach, ...words }), ...(problem.joint ? part("head") : []), ...part("correlations")];
}

/** Where head and attention go together: the selections that a head tells apart best, with p^mm and p^relax, and the theorems. */
function jointLines(problem) {
  const count = problem.lengths.reduce((total, length) => total * length, 1);
  const limits = count > MAX_JOINT_SELECTIONS ? part("no joint limits", { count }) : part("joint limits");
  return [...part("joint"), ...limits, ...part("theorems")];
}

function basinLines(view, problem) {
  const isDisc = view.map === "disc";
  const words = {
    side: BASIN_SIDE,
    size: isDisc ? `far = ${pythonNumber(view.far)}\nrim = np.log10(1.0 + far)` : `half = ${pythonNumber(view.half)}`,
    reach: isDisc ? "rim" : "half",
    steps: Math.max(problem.steps, LEAST_STEPS),
    cosine: isSteady(problem) ? "0.99" : "0.8",
    step: pythonNumber(problem.optimizer.size),
    sized: pythonOptimizer({ ...problem.optimizer, size: "size" }),
  };
  const ends = isDisc && isSteady(problem) ? part("ends in the disc with long steps", words) : part("ends", words);
  return [...part("basins", words), ...(isDisc ? part("starts in the disc") : []), ...ends, ...part("shares of basins", words)];
}

function planeScript(state, link) {
  const chosen = state.chosen?.start ?? 0;
  const problem = readProblem({ ...state.problem, start: state.starts[chosen] });
  const optimizer = pythonOptimizer(problem.optimizer);
  const byPart = problem.joint && problem.optimizer.name === "normalized-gd";
  const lines = [
    ...opening(state, link),
    ...dataLines(problem, state.problem),
    "",
    "# ---- how it is trained",
    `loss = ml.${globalThis.labWords.losses[problem.loss].python}()`,
    byPart
      ? `optimizer = ml.optimizers.Blockwise(${optimizer})  # head and attention take a step of that length each`
      : `optimizer = ${optimizer}`,
    `starts = [${state.starts.map(vector).join(", ")}]`,
  ];
  if (problem.joint) {
    const start = `start_head = ${vector(problem.startHead)}`;
    return [...lines, start, ...jointLines(problem), ...descentLines(problem, state)];
  }
  lines.push(`chosen = ${chosen}  # the start that the theorems are asked about`);
  lines.push(...predictionLines(problem), ...descentLines(problem, state));
  if (state.view?.basins) lines.push(...basinLines(state.view, problem));
  return lines;
}

// ---- next tokens

/** names, data and window of a text, or of sequences given outright. */
function textLines({ text }, model) {
  if (text.sequences) {
    const { samples, labels, names } = text.sequences;
    const words = { labels: labels.join(", "), names: names.map((name) => pythonString(String(name))).join(", "), window: model.window };
    return ["# ---- the sequences, each with the token that follows", ...inputs("sequences", samples, String), ...part("sequences", words)];
  }
  const unit = text.unit === "words" ? `ml.data.Words(max_vocabulary=${MAX_VOCABULARY})` : "ml.data.Characters()";
  return [
    "# ---- the text: every window of it that holds the token which follows",
    ...longText("text", text.source),
    ...part("windows", { window: text.window, unit }),
  ];
}

function continuationLines({ text }, model) {
  try {
    promptIds(model, text.prompt);
  } catch (error) {
    if (!(error instanceof ProblemError)) throw error;
    return ["", `# ---- nothing is continued. ${error.message}`];
  }
  const encoded = text.sequences ? "[names.index(token) for token in prompt.split()]" : "named.vocabulary.encode(prompt).tolist()";
  const isRandom = text.draw === "random";
  return [
    ...part("prompt", { prompt: pythonString(text.prompt), encoded }),
    ...(isRandom ? part("draws", { seed: text.seed }) : []),
    ...part("continuation", { count: Math.min(text.count, MAX_COUNT) }),
    ...part(isRandom ? "drawn token" : "likeliest token"),
    ...part("next token"),
  ];
}

const STEP_PER_PROBLEM = 0.01; // length of a normalised step for each last token, which has a problem of its own

function textScript(state, link) {
  let model;
  try {
    model = readText(state.text);
  } catch (error) {
    if (!(error instanceof ProblemError)) throw error;
    return [...opening(state, link), `print(${pythonString(error.message)})`];
  }
  const { lasts } = summaryOf(model);
  const wanted = state.text.last === null ? undefined : model.place.get(state.text.last);
  const { token } = lasts.find((entry) => entry.token === wanted) ?? lasts[0];
  return [
    ...opening(state, link),
    ...textLines(state, model),
    ...part("graph", { last: pythonString(model.names[token]) }),
    ...continuationLines(state, model),
    ...part("training", { size: pythonNumber(Number((STEP_PER_PROBLEM * Math.sqrt(lasts.length)).toPrecision(2))) }),
  ];
}

/** A Python script that computes and prints what the page shows of a state; link: the state's own, to be named at the top. */
export function pythonScript(state, link = null) {
  const lines = state.tab === "text" ? textScript(state, link) : planeScript(state, link);
  return `${lines.join("\n")}\n`;
}
