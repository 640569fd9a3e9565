// Why a text goes on as it does: an explanation of the automaton as the sentences of `lab.reason`.

import { percent } from "../numbers.js";
import { text } from "../words.js";
import { shownName } from "./text_model.js";

const MAX_NAMED = 4; // tokens named in a list before it says how many more there are
const EVERYTHING = 1 - 1e-9; // share from which on a token takes all

/** A token in quotation marks. */
export function quoted(name) {
  return `“${shownName(name)}”`;
}

/** The parts of a list that are named, with how many more there are; one more is named instead. */
export function firstOf(parts, most = MAX_NAMED) {
  return parts.length > most + 1 ? [...parts.slice(0, most), text("lab.reason.more", { count: parts.length - most })] : parts;
}

/** A number of things: "1 window", "1,204 windows". */
export function counted(count, singular, plural = `${singular}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? singular : plural}`;
}

/** Whom the winners beat: by windows of the text, by chains of these, or by the margin alone. */
function rankings(step, names, winners) {
  const by = new Map(); // loser → the windows of all winners
  for (const { loser, windows } of step.reasons) by.set(loser, (by.get(loser) ?? 0) + windows);
  const beaten = [...by].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  const others = step.rivals.filter(({ probability, token }) => probability === 0 && !by.has(token)).map(({ token }) => token);
  const tokensOf = {
    beaten: beaten.map(([token, windows]) => text("lab.reason.by_windows", { token: quoted(names[token]), windows })),
    implied: others.filter((token) => step.implied.includes(token)).map((token) => quoted(names[token])),
    inferred: others.filter((token) => !step.implied.includes(token)).map((token) => quoted(names[token])),
  };
  return Object.keys(tokensOf)
    .filter((kind) => tokensOf[kind].length > 0)
    .map((kind) => text(`lab.reason.${kind}`, { last: quoted(names[step.last]), winners, tokens: firstOf(tokensOf[kind]) }));
}

/**
 * Why `step.token` came, in sentences: rivals, who beat whom and by how many windows, ties and what decided them, shares.
 *
 * step: an explanation of `continuationAnswer`; names: of the tokens; isDrawn: whether tokens are drawn at random.
 */
export function reasonSentence(step, names, isDrawn = false) {
  const [token, last] = [quoted(names[step.token]), quoted(names[step.last])];
  if (step.rivals.length === 1) return text("lab.reason.only", { last, token });
  const winners = step.rivals.filter(({ probability }) => probability > 0);
  const isCertain = step.rivals.find((rival) => rival.token === step.token).probability >= EVERYTHING;
  const shares = firstOf(winners.map((rival) => text("lab.reason.share", { token: quoted(names[rival.token]), share: percent(rival.probability) })));
  const sentences = [text("lab.reason.next", { case: isCertain ? "certain" : isDrawn ? "drawn" : "likeliest", last, token, shares })];
  if (!step.isKnown) return [...sentences, text("lab.reason.unseen", { last })].join(" ");
  const ranked = rankings(step, names, isCertain ? 1 : winners.length);
  if (!isCertain) sentences.push(text("lab.reason.tie", { case: step.tie.toLowerCase() }));
  else if (step.tie !== "NONE") sentences.push(text("lab.reason.slow"));
  else if (ranked.length === 0) sentences.push(text("lab.reason.highest"));
  return [...sentences, ...ranked].join(" ");
}

/** Why a continuation ends: the shares of the next token are not known. */
export function endSentence(end, names) {
  const winners = end.rivals.filter(({ probability }) => probability !== 0).map(({ token }) => quoted(names[token]));
  return text("lab.reason.end", { last: quoted(names[end.last]), tokens: firstOf(winners), reason: end.reason });
}
