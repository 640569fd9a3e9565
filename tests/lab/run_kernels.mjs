// Answers requests about problems with the page's kernels: `node run_kernels.mjs FOLDER < requests.json > answers.json`.
// A request is { call, … }; numbers that JSON lacks travel as the strings "nan", "inf" and "-inf".

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const load = (name) => import(new URL(`${name}.js`, folder));
const { Descent, loopOf } = await load("descent");
const { attSvm, certificateResidual, kktResidual } = await load("margin");
const { readProblem, problemToJson } = await load("problem");
const { locallyOptimalDirections, tokenOptimality } = await load("optimality");
const { basinField, basinTasks, labelPixels, OUTSIDE, pixelStart } = await load("basins");
const { basinCone, predict } = await load("theorems");

const calls = {
  /** Points after some steps, taken in uneven pieces and looked up again from the end. */
  descent({ problem, steps }) {
    const run = new Descent(loopOf(readProblem(problem)));
    const last = steps[steps.length - 1];
    for (let piece = 1; run.steps < last && run.status === 0; piece = 2 * piece + 1) run.advance(Math.min(piece, last - run.steps));
    return { status: run.status, steps: run.steps, points: steps.map((step) => run.at(step)) };
  },
  margin({ problem, selected }) {
    const solution = attSvm(readProblem(problem), selected);
    return { ...solution, residual: kktResidual(solution), certificateResidual: certificateResidual(solution) };
  },
  optimality: ({ problem, selections }) => selections.map((selected) => tokenOptimality(readProblem(problem), selected)),
  predict: ({ problem, maxProblems }) => predict(readProblem(problem), maxProblems),
  cone: ({ problem, selected }) => basinCone(readProblem(problem), selected),
  /** Labels of all pixels in the order of the picture, the start of each, and the pixels of the first piece of work. */
  basins({ problem, ...settings }) {
    const read = readProblem(problem);
    const optima = locallyOptimalDirections(read);
    const field = basinField(read, optima, settings);
    const labels = new Int8Array(settings.side ** 2).fill(OUTSIDE);
    const tasks = basinTasks(settings.side);
    for (const { pixels } of tasks) labelPixels(field, pixels).labels.forEach((label, k) => (labels[pixels[k]] = label));
    return {
      labels,
      starts: Array.from(labels, (_, pixel) => pixelStart(field, pixel)),
      selections: optima.map((one) => one.selected),
      firstPixels: tasks[0].pixels,
    };
  },
  problem: ({ problem }) => problemToJson(readProblem(problem)),
  refusal({ problem }) {
    try {
      readProblem(problem);
    } catch (error) {
      return error.message;
    }
    return null;
  },
};

const plain = (key, value) => {
  if (ArrayBuffer.isView(value)) return Array.from(value);
  if (typeof value === "number" && !Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return value;
};
const answers = JSON.parse(readFileSync(0, "utf8")).map((request) => calls[request.call](request));
process.stdout.write(JSON.stringify(answers, plain));
