// Six heads of a real model on six sentences: which word each word attends to, and by how much it leads.

import { element, replace, setAttributes, setText } from "../dom.js";
import { text } from "../words.js";
import { SENTENCE_HEADS } from "./sentence_heads.js";
import { quoted } from "./text_reasons.js";

const FIRST = { sentence: 2, head: 3, query: "it" }; // where the head finds what a word stands for
const LOGIT_UNITS = 100; // of the table in one logit

/** The attention and the leads of a query: { shares, winner, second, lead } from its row of logits. */
export function readRow(row) {
  const weights = row.map((logit) => Math.exp(logit / LOGIT_UNITS));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const [winner, second] = row.map((_, t) => t).sort((a, b) => row[b] - row[a] || a - b);
  return { shares: weights.map((weight) => weight / total), winner, second, lead: (row[winner] - row[second]) / LOGIT_UNITS };
}

const wholePercent = (share) => `${Math.round(100 * share)} %`;

export function mountHeads(root) {
  const { model, sentences, heads } = SENTENCE_HEADS;
  const chosen = { ...FIRST, query: sentences[FIRST.sentence].words.indexOf(FIRST.query) };
  const option = (name, k) => element("option", { value: k }, name);
  const picker = (part, label, names) => {
    const select = element("select", { id: `heads-${part}` }, names.map(option));
    select.value = String(chosen[part]);
    select.addEventListener("change", () => {
      chosen[part] = Number(select.value);
      chosen.query = Math.min(chosen.query, sentences[chosen.sentence].words.length - 1);
      show();
    });
    return element("div", { class: "field" }, element("label", { for: select.id }, label), select);
  };
  const headName = ({ name, layer, head }) => text("lab.heads.head", { layer, head, about: text(`lab.model_head.${name}`) });
  const words = element("p", { class: "head-words" });
  const verdict = element("p", { id: "heads-verdict", "aria-live": "polite" });
  replace(
    root,
    element("div", { class: "row" }, picker("sentence", "Sentence", sentences.map(({ sentence }) => sentence)), picker("head", "Head", heads.map(headName))),
    words,
    verdict,
    element("p", { class: "small" }, text("lab.heads.source", { model })),
  );
  const show = () => {
    const { words: names, logits } = sentences[chosen.sentence];
    const { shares, winner, second, lead } = readRow(logits[heads[chosen.head].name][chosen.query]);
    const choose = (t) => {
      chosen.query = t;
      show();
      words.children[t].focus();
    };
    replace(
      words,
      names.map((name, t) => {
        const button = element("button", { type: "button", class: "head-word", style: { "--share": shares[t].toFixed(3) }, onclick: () => choose(t) }, name, element("small", {}, wholePercent(shares[t])));
        return setAttributes(button, { "aria-pressed": String(t === chosen.query), "data-wins": t === winner });
      }),
    );
    const numbers = { query: quoted(names[chosen.query]), winner: quoted(names[winner]), share: wholePercent(shares[winner]), second: quoted(names[second]), lead };
    setText(verdict, text("lab.heads.wins", numbers));
  };
  show();
}
