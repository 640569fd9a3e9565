// The verdict on top: where training ends, because of what, and whether a proof was found; computed while the page is looked at.

import { measurePoint } from "../../kernels/descent.js";
import { expectedLimit } from "../analysis.js";
import { element, replace, setText } from "../dom.js";
import { verdictWords } from "./sentences.js";

const CHANGE_BUDGET_MS = 10; // of following the run in the frame of a change
const FRAME_BUDGET_MS = 6; // and in those after it
const QUIET_MS = 700; // without a change after which the verdict is read aloud

/** The three lines; `outlook` events of the document tell that another limit is expected. */
export function mountVerdict(root, store, runs) {
  const line = (name, id) => {
    const words = element("dd", { id });
    return { words, node: element("div", {}, element("dt", {}, name), words) };
  };
  const [ends, because, proved] = [line("Ends at", "headline"), line("Because", "because"), line("Proved?", "proved")];
  const from = element("small");
  const reached = element("dd", { id: "reached" });
  const aloud = element("p", { class: "visually-hidden", role: "status" });
  const list = element("dl", { class: "verdict" }, ends.node, because.node, proved.node);
  ends.node.firstChild.append(" ", from);
  ends.node.append(reached);
  replace(root, list, aloud);
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

  const show = () => {
    const { state, analysis } = last;
    const said = verdictWords(analysis, played());
    if (ends.words.textContent !== "" && ends.words.textContent !== said.endsAt) {
      clearTimeout(timer);
      timer = setTimeout(() => setText(aloud, `Ends at: ${ends.words.textContent}`), QUIET_MS);
    }
    setText(from, state.starts.length > 1 ? `from start ${state.chosen.start ?? 0}` : "");
    setText(ends.words, said.endsAt);
    setText(reached, said.reached);
    setText(because.words, said.because);
    setText(proved.words, said.proved);
    list.dataset.kind = said.kind;
    const found = analysis.refusal ? null : expectedLimit(analysis);
    list.style.setProperty("--limit", found?.colour ?? "var(--control)");
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
