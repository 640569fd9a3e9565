// Why a text goes on as it does: an explanation of the automaton as plain sentences.

import { percent } from "../numbers.js";
import { shownName } from "./text_model.js";

const MAX_NAMED = 4; // tokens named in a list before it says how many more there are
const EVERYTHING = 1 - 1e-9; // share from which on a token takes all

/** A token in quotation marks. */
export function quoted(name) {
  return `“${shownName(name)}”`;
}

/** "a", "a and b", "a, b and 3 more". */
export function listed(parts, most = MAX_NAMED) {
  const named = parts.length > most + 1 ? [...parts.slice(0, most), `${parts.length - most} more`] : parts;
  return named.length < 2 ? named.join("") : `${named.slice(0, -1).join(", ")} and ${named.at(-1)}`;
}

/** A number of things: "1 window", "1,204 windows". */
export function counted(count, singular, plural = `${singular}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? singular : plural}`;
}

/** Who beat whom, by which windows: "the text puts it above “a” (3 windows) and “b” (1 window)". */
function beaten(step, names, subject) {
  const by = new Map(); // loser → the windows of all winners
  for (const { loser, windows } of step.reasons) by.set(loser, (by.get(loser) ?? 0) + windows);
  const losers = [...by].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  const direct = losers.map(([token, windows]) => `${quoted(names[token])} (${counted(windows, "window")})`);
  const winners = new Set(step.rivals.filter(({ probability }) => probability !== 0).map(({ token }) => token));
  const below = step.rivals.map(({ token }) => token).filter((token) => !winners.has(token) && !by.has(token));
  const chained = below.filter((token) => step.implied.includes(token)).map((token) => quoted(names[token]));
  const inferred = below.filter((token) => !step.implied.includes(token)).map((token) => quoted(names[token]));
  const said = [];
  if (direct.length > 0) said.push(`windows ending in ${quoted(names[step.last])} put ${subject} above ${listed(direct)}`);
  if (chained.length > 0) said.push(`chains of such rankings put ${subject} above ${listed(chained)}`);
  if (inferred.length > 0) said.push(`the margin alone puts ${subject} above ${listed(inferred)}, as the text does not compare them`);
  return said;
}

/** Shares of tokens: "“a” 62 % and “b” 38 %". */
function shares(winners, names) {
  return listed(winners.map(({ token, probability }) => `${quoted(names[token])} ${percent(probability)}`));
}

/**
 * Why `step.token` came, in a sentence: rivals, who beat whom and by how many windows, ties and what decided them, shares.
 *
 * step: an explanation of `continuationAnswer`; names: of the tokens; isDrawn: whether tokens are drawn at random.
 */
export function reasonSentence(step, names, isDrawn = false) {
  const token = quoted(names[step.token]);
  const last = quoted(names[step.last]);
  const winners = step.rivals.filter(({ probability }) => probability > 0);
  const chosen = step.rivals.find((rival) => rival.token === step.token);
  const isCertain = chosen.probability >= EVERYTHING;
  const how = isDrawn ? "drawn" : "the likeliest";
  if (step.rivals.length === 1) return `After ${last} comes ${token}: the window holds nothing else.`;
  if (!step.isKnown) {
    const share = isCertain ? "" : ` It is ${how}, with ${percent(chosen.probability)}.`;
    return `After ${last} the text says nothing, as no training window ends in it, so each token counts as often as it occurs: ${shares(winners, names)}.${share}`;
  }
  const subject = isCertain ? "it" : "them";
  const said = beaten(step, names, subject);
  if (isCertain) {
    const rule = step.tie === "NONE" ? "" : ` Others are as high, but weights that grow slowly decide for it.`;
    return `After ${last} comes ${token}: ${said.join("; ") || "its height is the greatest"}.${rule}`;
  }
  const why = {
    NONE: "each of them wins over another in some window, so they share",
    OFFSET: "the text does not compare them and their heights are equal, so the constant term of the trained weights shares",
    SLOW: "the text does not compare them and their heights are equal, so weights that grow slowly pick among them and then share",
  }[step.tie];
  const others = said.length > 0 ? `; ${said.join("; ")}` : "";
  return `After ${last} comes ${token}, ${how} of ${winners.length}: ${why}: ${shares(winners, names)}${others}.`;
}

/** Why a continuation ends: the shares of the next token are not known. */
export function endSentence(end, names) {
  const winners = end.rivals.filter(({ probability }) => probability !== 0).map(({ token }) => quoted(names[token]));
  return `The continuation ends after ${quoted(names[end.last])}: ${listed(winners)} are equally high and their shares are not known: ${end.reason}.`;
}
