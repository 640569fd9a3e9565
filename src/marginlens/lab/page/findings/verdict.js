// The verdict on top: which token wins, why, and whether that is proved; numbers and theorems are a click away. It is computed while the
// page is looked at, in lines of fixed height, so that the plane below does not move under a hand that drags.

import { measurePoint } from "../../kernels/descent.js";
import { expectedLimit } from "../analysis.js";
import { element, replace, setText } from "../dom.js";
import { text } from "../words.js";
import { verdictWords } from "./sentences.js";

const CHANGE_BUDGET_MS = 10; // of following the run in the frame of a change
const FRAME_BUDGET_MS = 6; // and in those after it
const QUIET_MS = 700; // without a change after which the verdict is read aloud

/** Whether a line is longer than its place. */
function isCut(line) {
  return line.scrollHeight > line.clientHeight + 1;
}

/** The three lines with their details; `outlook` events of the document tell that another limit is expected. */
export function mountVerdict(root, store, runs) {
  const [winner, from] = [element("span", { id: "headline" }), element("small")];
  const [because, proved] = ["because", "proved"].map((id) => element("p", { id }));
  const details = element("div", { id: "verdict-details", tabindex: "0" });
  const opener = element("details", {}, element("summary", {}, "Details"), details);
  const note = element("p", { id: "note" }); // what was assumed
  const aloud = element("p", { class: "visually-hidden", role: "status" });
  const box = element("div", { class: "verdict" }, note, element("p", { class: "winner" }, winner, " ", from), because, proved, opener);
  replace(root, box, aloud);
  let last = null; // { state, analysis }
  let limit = null;
  let timer = 0;
  let isWaiting = false;

  /** The run of the chosen start where it was played to its end, further than it was followed; else null. */
  const played = () => {
    const path = runs?.paths[last.state.chosen.start ?? 0];
    if (!path || runs.isPlaying || runs.step < runs.end || path.taken <= (last.analysis.outlook?.followed ?? Infinity)) return null;
    const { selected, norm } = measurePoint(path.problem, path.descent.point);
    return { steps: path.taken, selected, norm };
  };

  /** The words of the verdict, or while the reader guesses a question. */
  const words = () => {
    const { state, analysis } = last;
    if (state.view.guess === null) return verdictWords(analysis, played());
    return { endsAt: text("lab.question"), because: text("lab.question_hint"), proved: "", kind: "question" };
  };

  /** Write what the lines have no room for, and how the answer was found. */
  const showDetails = () => {
    if (!opener.open) return;
    const said = words();
    const cut = [because, proved].filter(isCut).map((line) => line.textContent);
    replace(details, [...cut, ...(said.details ?? [])].map((sentence) => element("p", {}, sentence)));
  };
  opener.addEventListener("toggle", showDetails);

  const show = () => {
    const { state, analysis } = last;
    const said = words();
    if (winner.textContent !== "" && winner.textContent !== said.endsAt) {
      clearTimeout(timer);
      timer = setTimeout(() => setText(aloud, winner.textContent), QUIET_MS);
    }
    setText(from, state.starts.length > 1 && !analysis.refusal ? `from start s${state.chosen.start ?? 0}` : "");
    setText(note, state.note ?? "");
    note.hidden = state.note === null;
    setText(winner, said.endsAt);
    setText(because, said.because);
    setText(proved, said.proved);
    box.dataset.kind = said.kind;
    box.dataset.proved = String(said.codes?.proved === "outcome.verdict.proved");
    box.dataset.inputs = analysis.problem?.n > 1 ? "several" : "one";
    const found = analysis.refusal || state.view.guess ? null : expectedLimit(analysis);
    box.style.setProperty("--limit", found?.colour ?? "var(--control)");
    showDetails();
    if (found !== limit) document.dispatchEvent(new Event("outlook"));
    limit = found;
  };

  const follow = () => {
    if (isWaiting || !last.analysis.outlook || last.analysis.outlook.isDone) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      if (last.analysis.outlook?.advance(FRAME_BUDGET_MS)) show();
      follow();
    });
  };

  runs?.subscribe(() => {
    if (last !== null && !runs.isPlaying) show();
  });
  return {
    update(state, analysis) {
      last = { state, analysis };
      analysis.outlook?.advance(CHANGE_BUDGET_MS);
      show();
      follow();
    },
  };
}
