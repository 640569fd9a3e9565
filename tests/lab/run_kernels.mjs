// Answers requests about problems with the page's kernels and its words: `node run_kernels.mjs < requests.json > answers.json`.
// A request is { call, … }; numbers that JSON lacks travel as the strings "nan", "inf" and "-inf", a refusal as { refusal: its sentence }.

import { readFileSync } from "node:fs";
import { load as loaded } from "./core.mjs";

const load = (name) => loaded(`../kernels/${name}.js`);
const words = await loaded("findings/sentences.js");
const { render } = await loaded("words.js");
const { callCore } = await load("core");
const { Descent, loopOf, measurePoint } = await load("descent");
const { jointLimits } = await load("joint");
const { bracketOf, INACCURATE, INFEASIBLE, kktResidual, OPTIMAL, TRIVIAL } = await load("margin");
const { OPTIMIZERS, ProblemError, readProblem, tokenProblem } = await load("problem");
const intervals = await load("checker/intervals");
const { failedCondition } = await load("checker/proofs");
const { Outlook } = await load("outlook");
const { locallyOptimalDirections, tokenOptimality } = await load("optimality");
const { normOfOptimizer, planeNormSvm } = await load("norms");
const { basinField, basinTasks, labelPixels, OUTSIDE, pixelStart } = await load("basins");
const { basinCone, predict } = await load("theorems");
const { indexCharacters, indexWords, priorityGraphs, componentOrder, rankingEvidence, sequences, textWindows } = await load("graphs");
const { columnOf, continueSequence, explainNext, laterTerms, makeAutomaton } = await load("automaton");

function analysisOf(json, maxProblems) {
  const problem = readProblem(json);
  const outlook = new Outlook(problem);
  if (problem.joint) {
    const joint = jointLimits(problem);
    return { problem, outlook, prediction: { joint, candidates: [] }, limits: [], refusal: null };
  }
  const prediction = predict(problem, maxProblems);
  return { problem, prediction, outlook, limits: prediction.candidates, refusal: null };
}

const SPECIAL = { nan: NaN, inf: Infinity, "-inf": -Infinity };
const withNumbers = (value) => JSON.parse(JSON.stringify(value), (_, entry) => SPECIAL[entry] ?? entry);

const calls = {
  /** Points after some steps, taken in uneven pieces and looked up again from the end. */
  descent({ problem, steps }) {
    const run = new Descent(loopOf(readProblem(problem)));
    const last = steps[steps.length - 1];
    for (let piece = 1; run.steps < last && run.status === 0; piece = 2 * piece + 1) run.advance(Math.min(piece, last - run.steps));
    return { status: run.status, steps: run.steps, points: steps.map((step) => run.at(step)) };
  },
  measure: ({ problem, points }) => points.map((point) => measurePoint(readProblem(problem), Float64Array.from(point))),
  normMargin: ({ problem, selected, power }) => planeNormSvm(readProblem(problem), selected, power === "inf" ? Infinity : power),
  normOf: ({ problem }) => normOfOptimizer(readProblem(problem).optimizer),
  optimality({ problem, selections }) {
    const read = readProblem(problem);
    return selections.map((selected) => {
      const { solution, ...verdict } = tokenOptimality(read, selected);
      const { A, b, pairs, ...found } = solution;
      return { ...verdict, solution: found, residual: kktResidual(solution), ...bracketOf(solution) };
    });
  },
  predict({ problem, maxProblems }) {
    const found = predict(readProblem(problem), maxProblems);
    return { ...found, candidates: found.candidates.map((one) => ({ ...one, optimality: null })) };
  },
  cone: ({ problem, selected }) => basinCone(readProblem(problem), selected),
  /** Labels of all pixels in the order of the picture, the start of each, and the pixels of the first piece of work. */
  basins({ problem, ...settings }) {
    const read = readProblem(problem);
    const optima = locallyOptimalDirections(read);
    const field = basinField(read, optima, settings);
    const labels = new Int8Array(settings.side ** 2).fill(OUTSIDE);
    const tasks = basinTasks(settings.side);
    for (const { pixels } of tasks) labelPixels(field, pixels).forEach((label, k) => (labels[pixels[k]] = label));
    return {
      labels,
      starts: Array.from(labels, (_, pixel) => pixelStart(field, pixel)),
      selections: optima.map((one) => one.selected),
      firstPixels: tasks[0].pixels,
    };
  },
  windows({ text, unit, window }) {
    const { names, ids, unknown } = unit === "words" ? indexWords(text) : indexCharacters(text);
    return { names, ids, unknown, ...textWindows(ids, window, names.length) };
  },
  graphs({ samples, labels, nVocabulary }) {
    const data = sequences(samples, labels, nVocabulary);
    return [...priorityGraphs(data).values()].map((graph) => {
      const { direct, reach } = componentOrder(graph);
      const pairs = (sets) => sets.flatMap((lower, c) => [...lower].sort((a, b) => a - b).map((l) => [c, l]));
      return { ...graph, place: null, direct: pairs(direct), reach: pairs(reach), evidence: rankingEvidence(data, graph) };
    });
  },
  /** What the automaton says of some sequences, and where it goes on from the first of them. */
  automaton({ samples, labels, nVocabulary, asked, window }) {
    const automaton = makeAutomaton(sequences(samples, labels, nVocabulary));
    return {
      heights: Array.from({ length: nVocabulary }, (_, last) => columnOf(automaton, last).height),
      mix: Array.from({ length: nVocabulary }, (_, last) => columnOf(automaton, last).mix),
      later: [...automaton.graphs.keys()].map((last) => ({ last, ...laterTerms(automaton, last) })),
      probabilities: asked.map((ids) => {
        const shares = new Map(explainNext(automaton, ids).rivals.map(({ token, probability }) => [token, probability]));
        return Array.from({ length: nVocabulary }, (_, token) => shares.get(token) ?? 0);
      }),
      explanations: asked.map((ids) => explainNext(automaton, ids)),
      continued: continueSequence(automaton, asked[0], 12, window).map(({ token }) => token),
    };
  },
  /** What a function of the core returns, and the arrays of its arguments after the call. */
  core({ name, given }) {
    for (const [key, value] of Object.entries(given)) if (Array.isArray(value)) given[key] = Float64Array.from(value, (entry) => (typeof entry === "string" ? Number(entry.replace("inf", "Infinity")) : entry));
    return { result: callCore(name, given), ...given };
  },
  /** Nothing, where a problem is read. */
  read({ problem }) {
    readProblem(problem);
    return null;
  },
  /** Where training ends: what the page says once it has followed the run to its end, and the numbers behind it. */
  verdict({ problem, played = null }) {
    const analysis = analysisOf(problem);
    const { outlook } = analysis;
    outlook.advance(Infinity);
    const { selected, steps, norm, way, proof, verified, isKnown, followed = outlook.followed } = outlook.answer;
    return { ...words.verdictWords(analysis, played), selected, steps, norm, way, proof, verified, isKnown, followed };
  },
  /** The first condition that fails of each of several proofs, null for those that are right. */
  failed: ({ problem, proofs }) => proofs.map((proof) => failedCondition(readProblem(problem), withNumbers(proof))),
  /** What the checker's intervals give for a function and its arguments. */
  intervals: ({ name, given }) => given.map((one) => intervals[name](...one)),
  leftOut: ({ problem }) => words.leftOut(analysisOf(problem)),
};

const plain = (key, value) => {
  if (ArrayBuffer.isView(value)) return Array.from(value);
  if (typeof value === "number" && !Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return value;
};
const answers = JSON.parse(readFileSync(0, "utf8")).map(({ call, ...request }) => {
  try {
    return calls[call](request);
  } catch (error) {
    if (error instanceof ProblemError) return { refusal: error.message };
    throw error;
  }
});
process.stdout.write(JSON.stringify(answers, plain));
