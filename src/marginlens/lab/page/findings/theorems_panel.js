// Which theorem applies: each as a disclosure, with a plain sentence for every condition.

import { element, replace, setAttributes, setText } from "../dom.js";
import { questionOf, render, text, title as titleOf } from "../words.js";
import { biasSentence, conclusionOf, theoremCode } from "./sentences.js";

const FIRST_OPEN = "A Thm 3"; // the theorem about the start, which changes under the pointer

/** "A Thm 3" as small print: "paper A, Theorem 3". */
function sourceOf(citation) {
  return citation.replace(/^A Thm (\d+)$/, "paper A, Theorem $1");
}

function conditionItem() {
  const question = element("span", { class: "condition-question" });
  const mark = element("b");
  const sentence = element("span");
  const label = element("small");
  return {
    node: element("li", {}, question, " ", mark, " ", sentence, " ", label),
    fill(condition) {
      const { question: asked, reference } = questionOf(condition.code);
      setText(mark, condition.holds === null ? "? Undecided." : condition.holds ? "✓ Yes." : "✗ No.");
      mark.className = condition.holds ? "holds" : "fails";
      setText(question, asked);
      setText(sentence, render(condition));
      setText(label, `(${reference})`);
    },
  };
}

function theoremView(isOpen) {
  const mark = element("span", { class: "theorem-mark" });
  const title = element("span", { class: "theorem-title" });
  const count = element("small");
  const conclusion = element("p");
  const list = element("ul", { class: "conditions" });
  const items = [];
  const node = element("details", { class: "theorem", open: isOpen }, element("summary", {}, title, " ", mark, " ", count), conclusion, list);
  return {
    node,
    fill(verdict, inputs) {
      const { conditions, applies } = verdict;
      const fulfilled = conditions.filter((condition) => condition.holds).length;
      setText(title, titleOf(theoremCode(verdict.citation)));
      setText(mark, applies ? "✓ applies" : "✗ does not apply");
      mark.className = `theorem-mark ${applies ? "holds" : "fails"}`;
      setText(count, `${fulfilled} of ${conditions.length} conditions hold · ${sourceOf(verdict.citation)}`);
      setText(conclusion, conclusionOf(verdict, inputs));
      while (items.length < conditions.length) items.push(conditionItem());
      if (list.childElementCount !== conditions.length) replace(list, items.slice(0, conditions.length).map((item) => item.node));
      conditions.forEach((condition, k) => items[k].fill(condition));
    },
  };
}

/** The theorems with their conditions, as the prediction gives them. */
export function mountTheorems(root) {
  const theorems = element("div", { class: "theorems" });
  const bias = element("p", { class: "small" });
  const nothing = element("p");
  replace(root, theorems, bias, nothing);
  const made = new Map(); // citation → view
  let shown = "";
  return {
    update(state, { problem, prediction }) {
      const verdicts = prediction?.verdicts ?? [];
      for (const { citation } of verdicts) if (!made.has(citation)) made.set(citation, theoremView(citation === FIRST_OPEN));
      const citations = verdicts.map(({ citation }) => citation).join();
      if (citations !== shown) replace(theorems, verdicts.map(({ citation }) => made.get(citation).node));
      shown = citations;
      for (const verdict of verdicts) made.get(verdict.citation).fill(verdict, prediction.dependent?.length ?? problem.n);
      setAttributes(nothing, { hidden: verdicts.length > 0 || problem?.joint === true });
      setText(nothing, text("lab.no_theorem"));
      setText(bias, problem === null ? "" : biasSentence(problem));
    },
  };
}
