// "Copy as Python": a script with marginlens that computes and prints what the page shows of a state.

import { basinRefusal } from "../../kernels/basins.js";
import { normOfOptimizer } from "../../kernels/norms.js";
import { dependentInputs, strictOptimum } from "../../kernels/optimality.js";
import { ProblemError, readProblem } from "../../kernels/problem.js";
import { MAX_COUNT, MAX_VOCABULARY, promptIds, readText, summaryOf } from "../text/text_model.js";

const LINE_WIDTH = 110;
const FEW_TOKENS = 48; // in all inputs together: up to so many, listing the limits solves fewer problems than Python's default limit
const MAX_JOINT_SELECTIONS = 4096; // choices of a token per input up to which the page tries them all
const BASIN_SIDE = 128; // pixels of the page's picture of basins in each direction
const BASIN_STEPS = 5000;

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
  if (optimizer.name === "SteepestDescent") return `ml.SteepestDescent(ml.Lp(${pythonNumber(optimizer.p)}), ${size}${momentum})`;
  if (optimizer.name === "Adam")
    return `ml.Adam(${size}, betas=(${optimizer.betas.map(pythonNumber).join(", ")}), eps=${pythonNumber(optimizer.eps)})`;
  return `ml.${optimizer.name}(${size}${momentum})`;
}

function pythonNorm(power) {
  if (power === Infinity) return "ml.LInf()";
  return power === 1 ? "ml.L1()" : `ml.Lp(${pythonNumber(power)})`;
}

/** The lines at the top: where the script comes from. */
function opening(state, link) {
  const name = state.preset === null || state.preset === undefined ? "a problem of your own" : `began as ${state.preset}`;
  const subject = state.tab === "text" ? "next tokens of a text" : `token selection in the plane, ${name}`;
  const where = link ? [`# ${link}`] : [];
  return [`# What the marginlens lab shows: ${subject}.`, ...where, "", "import numpy as np", "", "import marginlens as ml", ""];
}

// ---- the plane

/** data, head (where there is one) and y. */
function dataLines(problem, json) {
  const labels = `y = [${Array.from(problem.y, (label) => (label > 0 ? "1" : "-1")).join(", ")}]`;
  const point = (entries) => `(${entries.map(pythonNumber).join(", ")})`;
  const lines = ["# ---- the data"];
  if (problem.byScores) {
    lines.push(...inputs("keys", json.keys ?? json.tokens, point), ...inputs("scores", json.scores, pythonNumber), labels);
    const isEven = problem.lengths.every((length) => length === problem.T);
    if (isEven) lines.push("data, head = ml.data.scored_tokens(keys, scores, y)");
    else {
      lines.push(
        "# inputs differ in length: a last coordinate, which the head reads and the keys leave out, gives each token its score",
        "tokens = [[(*k, label * s) for k, s in zip(K, row)] for K, row, label in zip(keys, scores, y)]",
        `data, head = ml.TokenDataset(tokens, y, K=keys), ${vector([0, 0, 1])}`,
      );
    }
    return lines;
  }
  lines.push(...inputs("tokens", json.tokens, point), labels);
  if (!problem.keysAreTokens) lines.push(...inputs("keys", json.keys, point));
  lines.push(`data = ml.TokenDataset(tokens, y${problem.keysAreTokens ? "" : ", K=keys"})`);
  if (!problem.joint) lines.push(`head = ${vector(problem.head)}`);
  return lines;
}

/** The predicted limits in the page's order with what proves them, and the theorems. */
function predictionLines(problem) {
  const most = problem.lengths.reduce((sum, length) => sum + length, 0) > FEW_TOKENS ? ", max_problems=100_000" : "";
  const dependent = dependentInputs(problem);
  const isWhole = dependent.length === 0 || dependent.length === problem.n;
  const power = normOfOptimizer(problem.optimizer);
  const isEuclidean = power === 2;
  const tokens = isWhole ? "data, selected" : "part, [selected[i] for i in inputs]";
  const lines = [
    "",
    "# ---- the predicted limits: every locally optimal direction, the globally optimal one first, and what proves it",
    "# (inputs and tokens are counted from 0)",
    `prediction = ml.predict_limit(data, head, loss=loss, start=starts[chosen], optimizer=optimizer${most})`,
    "found = prediction.candidates",
    "limits = sorted(",
    "    zip(found.labels, found.selections.tolist(), found.directions, found.margins),",
    '    key=lambda limit: (limit[0] == "LMM", limit[1]),',
    ")",
  ];
  if (!isWhole) {
    lines.push(
      `inputs = [${dependent.join(", ")}]  # the others have one token, one key or one score: nothing of them depends on p`,
      "part = data.take_inputs(inputs)",
    );
  }
  if (isEuclidean) lines.push("solutions = []");
  else {
    lines.push(
      `# ${problem.optimizer.name} heads for the largest margin in this norm:`,
      `norm = ${pythonNorm(power)}`,
      `solutions = [ml.att_svm(${tokens}, norm=norm) for _, selected, _, _ in limits]`,
      "limits = [",
      "    (label, selected, solution.x / np.linalg.norm(solution.x), solution.margin)",
      "    for (label, selected, _, _), solution in zip(limits, solutions)",
      "]",
    );
  }
  lines.push(
    'print("Predicted limits")',
    isEuclidean ? "for label, selected, direction, margin in limits:" : "for (label, selected, direction, margin), solution in zip(limits, solutions):",
    '    print(f"  {label} selects {selected}: direction {direction}, margin {margin:.6g}")',
  );
  if (isEuclidean) {
    if (!strictOptimum(problem).isStrict) {
      lines.push(
        '    if label == "G^mm":  # several tokens share the highest score, and any of them will do',
        "        continue",
      );
    }
    lines.push(
      `    solution = ml.att_svm(${tokens})`,
      "    solutions.append(solution)",
      '    print(f"    certificate: residual {solution.kkt_residual():.1e}, gap {solution.bracket().gap:.1e}")',
    );
  } else {
    lines.push(
      "    low, high = solution.bracket()",
      '    print(f"    certificate: the smallest norm lies between {low:.9g} and {high:.9g}")',
    );
  }
  lines.push(
    "    for (i, token, other), multiplier in zip(solution.pairs.tolist(), solution.multipliers):",
    "        if multiplier > 0:",
    `            print(f"    input {${isWhole ? "i" : "inputs[i]"}}: token {token} beats {other} with multiplier {multiplier:.6g}")`,
    "",
    "# ---- which theorem applies, condition by condition",
    'print("Theorems")',
    "for verdict in prediction.verdicts:",
    "    print(verdict)",
    "print(prediction.why)",
  );
  return lines;
}

function descentLines(problem, state) {
  const step = state.playback?.step ?? 0;
  const all = step > 0 ? Math.min(step, problem.steps) : problem.steps;
  const run = problem.joint
    ? "ml.descend(risk, optimizer=optimizer, n_steps=n_steps, start=(start_head, start))"
    : "ml.descend(risk, optimizer=optimizer, n_steps=n_steps, start=start)";
  const lines = [
    "",
    `# ---- descent from every start, ${step > 0 && step < problem.steps ? `up to step ${all} of ${problem.steps}` : `all ${all} steps`}`,
    `n_steps = ${all}`,
    ...(problem.joint ? [] : ["risk = ml.AttentionRisk(data, head, loss)"]),
    `runs = [${run} for start in starts]`,
    'print(f"After {n_steps} steps")',
    "for start, run in zip(starts, runs):",
    `    p = run.${problem.joint ? "split().p" : "final"}`,
    '    print(f"  from {start}: p = {p}, norm {np.linalg.norm(p):.6g}, selects {run.selected.tolist()}, risk {risk.value(run.final):.6g}")',
  ];
  if (problem.joint) lines.push('    print(f"    v = {run.split().v}")');
  lines.push(
    "    for label, selected, direction, _ in limits:",
    '        print(f"    correlation with {label} {selected}: {ml.correlation(p, direction):.6f}")',
  );
  return lines;
}

/** Where head and attention go together: the selections that a head tells apart best, with p^mm and p^relax, and the theorems. */
function jointLines(problem) {
  const count = problem.lengths.reduce((total, length) => total * length, 1);
  const asked = ["", "risk = ml.JointRisk(data, loss)", "prediction = ml.predict(risk)"];
  const theorems = [
    "",
    "# ---- which theorem applies, condition by condition",
    'print("Theorems")',
    "for verdict in prediction.verdicts:",
    "    print(verdict)",
    "print(prediction.why)",
  ];
  if (count > MAX_JOINT_SELECTIONS) {
    const sentence = `No predicted limits: ${count} ways to choose tokens are too many for the page to try`;
    return [...asked, "limits = []", `print("${sentence}")`, ...theorems];
  }
  return [
    ...asked,
    "",
    "# ---- the predicted limits: the tokens that let a head tell the labels apart best, those of a theorem first",
    "# (inputs and tokens are counted from 0)",
    "best = prediction.details.best",
    "certain = None if prediction.path_direction is None else prediction.details.selected.tolist()",
    "limits = []",
    "for selected in sorted(best.selections.tolist(), key=lambda selected: selected != certain) if best.margin > 0 else []:",
    "    strict = ml.att_svm(data, selected)",
    "    if strict.status is not ml.Status.OPTIMAL:",
    "        continue",
    "    relaxed = ml.relaxed_svm(data, selected, ml.theory.label_margin(data, selected).support)",
    "    selects = relaxed.status is ml.Status.OPTIMAL and (relaxed.rows @ relaxed.x > 0).all()",
    "    if selects and ml.correlation(strict.x, relaxed.x) < 1 - 1e-12:",
    '        limits.append(("p^relax", selected, relaxed.direction, relaxed.margin))',
    '    limits.append(("p^mm", selected, strict.direction, strict.margin))',
    'print(f"Predicted limits, label margin {best.margin:.6g}")',
    "for label, selected, direction, margin in limits:",
    '    print(f"  {label} selects {selected}: direction {direction}, margin {margin:.6g}")',
    ...theorems,
  ];
}

function basinLines(view, problem) {
  const refusal = basinRefusal(problem);
  if (refusal !== "") return ["", `# ---- ${refusal}`];
  const isDisc = view.map === "disc";
  const reach = isDisc ? "rim" : "half";
  const isEuclidean = normOfOptimizer(problem.optimizer) === 2;
  const { name, p } = problem.optimizer;
  const rule = isEuclidean ? "ml.NormalizedGD(size)" : pythonOptimizer({ name, p, size: "size" });
  const lines = [
    "",
    `# ---- basins: where ${isEuclidean ? "normalised descent" : "descent with constant steps"} from every pixel of the picture ends`,
    `side = ${BASIN_SIDE}`,
    ...(isDisc ? [`far = ${pythonNumber(view.far)}`, "rim = np.log10(1.0 + far)"] : [`half = ${pythonNumber(view.half)}`]),
    `line = (np.arange(side) + 0.5) / side * 2.0 * ${reach} - ${reach}`,
    "pixels = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)",
    "",
    "",
    "def ends(start, size, n_steps):",
    `    return ml.descend(data.repeat(len(start)), head, loss=loss, optimizer=${rule}, n_steps=n_steps, start=start)`,
    "",
    "",
  ];
  if (isDisc) {
    lines.push(
      "# the whole plane: a pixel at the radius r stands for a start of the norm 10^r - 1, and far starts take long steps first",
      "radius = np.linalg.norm(pixels, axis=1)",
      "pixels, radius = pixels[radius <= rim], radius[radius <= rim]",
      "norms = np.expm1(radius * np.log(10.0))",
      "final = pixels * (norms / radius)[:, None]",
      "near = norms <= 20.0",
      "if near.any():",
      "    final[near] = ends(final[near], 0.1, 2000).final",
      "for size in np.unique(norms[~near]):",
      "    final[norms == size] = ends(final[norms == size], size * 0.005, 2500).final",
      "if not near.all():",
      "    final[~near] = ends(final[~near], 0.1, 200).final",
      "last = ends(final, 0.1, 0)",
    );
  } else lines.push(`last = ends(pixels, 0.1, ${BASIN_STEPS})`);
  lines.push(
    "basins = np.full(len(last.final), -1)",
    "for k, (_, selected, direction, _) in enumerate(limits):",
    "    reached = (last.selected == selected).all(axis=1) & (ml.correlation(last.final, direction) >= 0.99)",
    "    basins[reached & (basins < 0)] = k",
    'print("Basins")',
    "for k, (_, selected, _, _) in enumerate(limits):",
    '    print(f"  {np.mean(basins == k):.4f} of the picture flows to {selected}")',
    'print(f"  {np.mean(basins < 0):.4f} flows to none of them: to a finite minimum, or not yet settled")',
  );
  return lines;
}

function planeScript(state, link) {
  const chosen = state.chosen?.start ?? 0;
  const problem = readProblem({ ...state.problem, start: state.starts[chosen] });
  const optimizer = pythonOptimizer(problem.optimizer);
  const byPart = problem.joint && problem.optimizer.name === "NormalizedGD";
  const lines = [
    ...opening(state, link),
    ...dataLines(problem, state.problem),
    "",
    "# ---- how it is trained",
    `loss = ml.${problem.loss}()`,
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
  const reading = ["# ---- the text: every window of it that holds the token which follows"];
  if (text.sequences) {
    const { samples, labels, names } = text.sequences;
    return [
      "# ---- the sequences, each with the token that follows",
      ...inputs("sequences", samples, String),
      `labels = [${labels.join(", ")}]`,
      `names = [${names.map((name) => pythonString(String(name))).join(", ")}]`,
      'data = ml.SequenceDataset(sequences, labels, np.eye(len(names)), unrealizable="drop")',
      `window = ${model.window}`,
    ];
  }
  const unit = text.unit === "words" ? `ml.data.Words(max_vocabulary=${MAX_VOCABULARY})` : "ml.data.Characters()";
  return [
    ...reading,
    ...longText("text", text.source),
    `window = ${text.window}`,
    `named = ml.data.text_windows(text, window, ${unit})`,
    "data, names = named.data, named.vocabulary.names",
  ];
}

function graphLines(last) {
  return [
    'print(f"{len(data)} windows, {len(data.dropped)} others left out, {len(names)} different tokens")',
    "",
    "# ---- what wins over what after a last token: tokens of a component share, and win over those below",
    "graphs = ml.priority_graphs(data)",
    "automaton = ml.NextTokenAutomaton.fit(data, graphs=graphs)",
    `last = ${last}`,
    "heights = automaton.heights(last)",
    'print(f"After {names[last]!r}")',
    "for members in graphs[last].components:",
    '    print(f"  height {heights[members[0]]:.6g}: {[names[token] for token in members]}")',
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
  const generator = [
    "",
    "",
    "def draws(state):",
    "    # numbers from 0 up to below 1: the page's generator, mulberry32",
    "    while True:",
    "        state = (state + 0x6D2B79F5) % 2**32",
    "        mixed = (state ^ state >> 15) * (state | 1) % 2**32",
    "        mixed ^= (mixed + (mixed ^ mixed >> 7) * (mixed | 61)) % 2**32",
    "        yield (mixed ^ mixed >> 14) / 2**32",
    "",
    "",
    `draw = draws(${text.seed})`,
  ];
  return [
    "",
    "# ---- the automaton continues",
    `prompt = ${pythonString(text.prompt)}`,
    `ids = ${encoded}`,
    "continuation = []",
    ...(isRandom ? generator : []),
    `for _ in range(${Math.min(text.count, MAX_COUNT)}):`,
    "    probability = automaton.predict_proba(ids[-window:])",
    "    if np.isnan(probability).any():  # the shares of tokens of equal height are not known",
    "        break",
    ...(isRandom
      ? ["    rest = next(draw)", "    for token in sorted(set(ids[-window:])):", "        rest -= probability[token]", "        if rest < 0:", "            break"]
      : ["    token = int(np.flatnonzero(probability >= probability.max() - 1e-9)[0])"]),
    '    print(f"  {names[token]!r} with probability {probability[token]:.6g}")',
    "    ids.append(token)",
    "    continuation.append(token)",
  ];
}

function trainingLines({ text }, size) {
  return [
    "",
    "# ---- the same from training: W by normalised gradient descent from zero",
    `run = ml.descend(data, optimizer=ml.NormalizedGD(${pythonNumber(size)}), n_steps=${text.steps})`,
    "distance = automaton.total_variation(data, run.final).mean()",
    "loss = run.risk.value(run.final)",
    'print(f"After {run.steps_taken} steps: norm {run.norm:.6g}, loss {loss:.6g}")',
    'print(f"  total variation between the layer and the automaton {distance:.6g}")',
    'print(f"  correlation with the Graph-SVM {ml.correlation(run.final.ravel(), automaton.priority.x.ravel()):.6f}")',
  ];
}

function textScript(state, link) {
  let model;
  try {
    model = readText(state.text);
  } catch (error) {
    if (!(error instanceof ProblemError)) throw error;
    return [...opening(state, link), `print(${pythonString(error.message)})`];
  }
  const { lasts, stepSize } = summaryOf(model);
  const wanted = state.text.last === null ? undefined : model.place.get(state.text.last);
  const { token } = lasts.find((entry) => entry.token === wanted) ?? lasts[0];
  const last = `names.index(${pythonString(model.names[token])})`;
  return [
    ...opening(state, link),
    ...textLines(state, model),
    ...graphLines(last),
    ...continuationLines(state, model),
    ...trainingLines(state, stepSize),
  ];
}

/** A Python script that computes and prints what the page shows of a state; link: the state's own, to be named at the top. */
export function pythonScript(state, link = null) {
  const lines = state.tab === "text" ? textScript(state, link) : planeScript(state, link);
  return `${lines.join("\n")}\n`;
}
