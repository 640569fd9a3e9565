// Problems as tables of text: a line for each token, read from what people paste and written as CSV.

import { MAX_ENTRY, MAX_INPUTS, MAX_TOKENS, ProblemError } from "../../kernels/problem.js";

const COLUMNS = ["input", "label", "x1", "x2", "score", "k1", "k2"];
const OTHER_NAMES = { "x₁": "x1", "x₂": "x2", "k₁": "k1", "k₂": "k2", x: "x1", y: "x2", inputs: "input", labels: "label", scores: "score", key1: "k1", key2: "k2" };
/** What the columns of a table without a header are, by their number; of four, see `columnsWithoutHeader`. */
const USUAL_COLUMNS = {
  2: ["x1", "x2"],
  3: ["input", "x1", "x2"],
  5: ["input", "label", "x1", "x2", "score"],
  7: COLUMNS,
};
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

function refuse(sentence) {
  throw new ProblemError(sentence);
}

function quoted(text) {
  return `“${text.length > 20 ? `${text.slice(0, 19)}…` : text}”`;
}

/** The sign between cells: a tab, a semicolon, a comma or, where there is none of them, spaces. */
function separatorOf(text) {
  return ["\t", ";", ","].find((sign) => text.includes(sign)) ?? /\s+/;
}

/** Lines with content as { line, cells }, line counted from one; decimal commas become points where commas do not separate. */
function cellsOf(text) {
  const separator = separatorOf(text);
  const decimal = (cell) => (separator === "," ? cell : cell.replace(/^([+-]?\d*),(\d+(e[+-]?\d+)?)$/i, "$1.$2"));
  return text
    .split(/\r\n|\r|\n/)
    .map((content, k) => ({ line: k + 1, content: content.replace(/^\uFEFF/, "").trim() }))
    .filter(({ content }) => content !== "" && !content.startsWith("#"))
    .map(({ line, content }) => ({
      line,
      cells: content.split(separator).map((cell) => decimal(cell.trim().replace(/^"(.*)"$/, "$1").replace("−", "-").trim())),
    }));
}

function headerColumns({ line, cells }) {
  const names = cells.map((cell) => OTHER_NAMES[cell.toLowerCase()] ?? cell.toLowerCase());
  names.forEach((name, k) => {
    if (!COLUMNS.includes(name)) refuse(`Line ${line}: the page knows no column ${quoted(cells[k])}; columns are ${COLUMNS.join(", ")}.`);
    if (names.indexOf(name) < k) refuse(`Line ${line}: the column ${name} stands there twice.`);
  });
  if (names.includes("k1") !== names.includes("k2")) refuse(`Line ${line}: keys need both columns, k1 and k2.`);
  if (!names.includes("x1") || !names.includes("x2")) refuse(`Line ${line}: the columns x1 and x2 must be there; they say where a token is.`);
  return names;
}

/** Four columns are input, label, x1, x2 where the second holds labels only, else input, x1, x2, score. */
function columnsWithoutHeader(rows) {
  const { line, cells } = rows[0];
  if (cells.length === 4) {
    const areLabels = rows.every((row) => /^[+-]?1(\.0*)?$/.test(row.cells[1] ?? ""));
    return areLabels ? ["input", "label", "x1", "x2"] : ["input", "x1", "x2", "score"];
  }
  return (
    USUAL_COLUMNS[cells.length] ??
    refuse(`Line ${line} has ${cells.length} columns; without a line of names the page takes 2 to 5, or 7: ${COLUMNS.join(", ")}.`)
  );
}

function numberIn(cell, name, line) {
  if (!NUMBER.test(cell)) refuse(`Line ${line}: ${name} must be a number; got ${cell === "" ? "nothing" : quoted(cell)}.`);
  const value = Number(cell);
  if (!(Math.abs(value) <= MAX_ENTRY)) refuse(`Line ${line}: ${name} must lie between −${MAX_ENTRY} and ${MAX_ENTRY}; got ${cell}.`);
  return value;
}

/**
 * The problem in a pasted table: { tokens, labels, keys?, scores? }, or a `ProblemError` whose sentence names the line.
 *
 * A line for each token, with commas, semicolons, tabs or spaces between the numbers; decimal commas where commas do not separate.
 * Columns: input, label, x1, x2, score, k1, k2, by name in the first line or else as they are usual; only x1 and x2 must be there.
 */
export function parseTable(text) {
  const lines = cellsOf(text);
  if (lines.length === 0) refuse("The table is empty; paste a line for each token.");
  const hasHeader = lines[0].cells.every((cell) => cell !== "" && !NUMBER.test(cell));
  const rows = hasHeader ? lines.slice(1) : lines;
  if (rows.length === 0) refuse("The table has a line of names only; paste a line for each token below it.");
  const columns = hasHeader ? headerColumns(lines[0]) : columnsWithoutHeader(rows);
  const inputs = new Map();
  for (const { line, cells } of rows) {
    if (cells.length !== columns.length)
      refuse(`Line ${line} has ${cells.length} ${cells.length === 1 ? "column" : "columns"}, the first line has ${columns.length}.`);
    const entries = Object.fromEntries(columns.map((name, k) => [name, numberIn(cells[k], name, line)]));
    const name = entries.input ?? 1;
    if (!Number.isInteger(name)) refuse(`Line ${line}: input must be a whole number; got ${quoted(cells[columns.indexOf("input")])}.`);
    const label = entries.label ?? 1;
    if (label !== 1 && label !== -1) refuse(`Line ${line}: label must be 1 or −1; got ${quoted(cells[columns.indexOf("label")])}.`);
    if (!inputs.has(name)) {
      if (inputs.size === MAX_INPUTS) refuse(`Line ${line}: the page takes up to ${MAX_INPUTS} inputs; this is one more.`);
      inputs.set(name, { label, tokens: [], keys: [], scores: [] });
    }
    const input = inputs.get(name);
    if (input.label !== label) refuse(`Line ${line}: input ${name} has two labels; all its tokens share one.`);
    if (input.tokens.length === MAX_TOKENS) refuse(`Line ${line}: the page takes up to ${MAX_TOKENS} tokens in an input; this is one more.`);
    input.tokens.push([entries.x1, entries.x2]);
    if ("k1" in entries) input.keys.push([entries.k1, entries.k2]);
    if ("score" in entries) input.scores.push(entries.score);
  }
  const all = [...inputs.values()];
  const problem = { tokens: all.map((input) => input.tokens), labels: all.map((input) => input.label) };
  if (columns.includes("k1")) problem.keys = all.map((input) => input.keys);
  if (columns.includes("score")) problem.scores = all.map((input) => input.scores);
  return problem;
}

/** The table of a problem, as CSV that `parseTable` reads back. */
export function tableText({ tokens, keys, labels, scores }) {
  const places = tokens ?? keys;
  const apart = tokens !== undefined && keys !== undefined;
  const columns = ["input", "label", "x1", "x2", ...(scores ? ["score"] : []), ...(apart ? ["k1", "k2"] : [])];
  const lines = places.flatMap((input, i) =>
    input.map((point, t) => [i + 1, labels?.[i] ?? 1, ...point, ...(scores ? [scores[i][t]] : []), ...(apart ? keys[i][t] : [])].join(",")),
  );
  return `${[columns.join(","), ...lines].join("\n")}\n`;
}
