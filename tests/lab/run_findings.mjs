// Answers requests about the words of the page: `node run_findings.mjs LAB_FOLDER < requests.json > answers.json`.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import "./core.mjs";

const folder = pathToFileURL(`${process.argv[2]}/`);
const load = (path) => import(new URL(path, folder));
const { OPTIMIZERS, ProblemError, readProblem, tokenProblem } = await load("kernels/problem.js");
const { INACCURATE, INFEASIBLE, OPTIMAL, TRIVIAL } = await load("kernels/margin.js");
const { jointLimits } = await load("kernels/joint.js");
const { Outlook } = await load("kernels/outlook.js");
const { predict } = await load("kernels/theorems.js");
const words = await load("page/findings/sentences.js");

function analysisOf(json, maxProblems) {
  const problem = readProblem(json);
  const outlook = new Outlook(problem);
  if (problem.joint) {
    const joint = jointLimits(problem);
    return { problem, outlook, prediction: { joint, verdicts: [], candidates: [] }, limits: [], refusal: null };
  }
  const prediction = predict(problem, maxProblems);
  return { problem, prediction, outlook, limits: prediction.candidates, refusal: null };
}

function conditionsOf(prediction) {
  return prediction.verdicts.flatMap((verdict) =>
    verdict.conditions.map((condition) => {
      const { name, code, holds } = condition;
      return { citation: verdict.citation, name, code, holds, sentence: words.conditionWords(condition).sentence ?? null };
    }),
  );
}

const calls = {
  /** Where training ends: what the page says once it has followed the run to its end, and the numbers behind it. */
  verdict({ problem, played = null }) {
    const analysis = analysisOf(problem);
    const { outlook } = analysis;
    outlook.advance(Infinity);
    const { selected, steps, followed = outlook.followed } = outlook.answer;
    return { ...words.verdictWords(analysis, played), selected, steps, followed };
  },
  leftOut: ({ problem }) => words.leftOut(analysisOf(problem)),
  conditions: ({ problem, maxProblems }) => conditionsOf(analysisOf(problem, maxProblems).prediction),
  /** The same for a head whose entries no page takes, so that slopes overflow. */
  conditionsOfHugeHead({ problem, entry }) {
    const { code, ...parts } = readProblem(problem);
    return conditionsOf(predict(tokenProblem({ ...parts, head: parts.head.map(() => entry) })));
  },
  known: () => ({ optimizers: Object.keys(OPTIMIZERS), statuses: [OPTIMAL, INFEASIBLE, TRIVIAL, INACCURATE] }),
};

const requests = JSON.parse(readFileSync(0, "utf8"));
const answers = requests.map(({ call, ...request }) => {
  try {
    return calls[call](request);
  } catch (error) {
    if (error instanceof ProblemError) return { refusal: error.message };
    throw error;
  }
});
process.stdout.write(JSON.stringify(answers));
