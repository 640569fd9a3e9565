// The editor: inputs with their labels, tokens and scores as tables, the head and the starts.

import { MAX_ENTRY, MAX_INPUTS, MAX_START, MAX_TOKENS } from "../../kernels/problem.js";
import { element, replace, setAttributes, setText } from "../dom.js";
import { tokenName } from "../findings/sentences.js";
import { short } from "../numbers.js";
import { numberField } from "../typed_number.js";
import {
  addInput, addStart, addToken, keysOf, labelsOf, MAX_STARTS, removeInput, removeStart, removeToken, withChosen, withHead, withKey, withLabel,
  withProblem, withScore, withStart, withToken,
} from "../state.js";

const SLIDER_REACH = 3; // of scores, unless a score lies beyond
const OPEN_INPUTS = 3; // so many inputs are unfolded at first
const GOLDEN_ANGLE = Math.PI * (3 - Math.sqrt(5)); // turns new tokens and starts away from those before

/** Where the next of several points goes: around a centre, in no place that is taken. */
function nextPoint(count, radius = 1) {
  const angle = GOLDEN_ANGLE * (count + 1);
  return [radius * Math.cos(angle), radius * Math.sin(angle)].map((entry) => Number(entry.toFixed(2)));
}

// ---- fields

let gestures = 0;

/** A field whose entries change the state: change(state, value). */
function stateField(store, { name, key, largest = MAX_ENTRY, change }) {
  const taken = (value) => store.apply(`change ${name}`, (state) => change(state, value));
  return numberField(store, { name, low: -largest, high: largest, change: taken, "aria-label": name, dataset: { key } });
}

function pointFields(store, { name, key, largest, letters, change, read }) {
  return [0, 1].map((k) =>
    stateField(store, {
      name: `${letters[k]} of ${name}`,
      key: `${key}-${k}`,
      largest,
      change: (state, value) => change(state, read(state).map((entry, j) => (j === k ? value : entry))),
    }),
  );
}

function iconButton(text, label, key, onclick) {
  return element("button", { type: "button", class: "icon", "aria-label": label, title: label, dataset: { key }, onclick }, text);
}

// ---- an input's table

/** How tokens are given: { byHand, isApart, isJoint, lengths, words }, and a text that changes with it. */
function formOf(problem) {
  const form = {
    byHand: problem.scores !== undefined,
    isApart: problem.tokens !== undefined && problem.keys !== undefined,
    isJoint: problem.train === "both",
    lengths: keysOf(problem).map((input) => input.length),
    words: problem.words,
  };
  return { ...form, text: JSON.stringify(form) };
}

function tokenRow(store, form, i, t) {
  const own = tokenName(form, i, t);
  const name = `${own} of input ${i}`;
  const key = `${i}-${t}`;
  const places = (state) => state.problem.tokens ?? state.problem.keys;
  const fields = pointFields(store, {
    name, key: `x-${key}`, letters: ["x₁", "x₂"], read: (state) => places(state)[i][t], change: (state, point) => withToken(state, i, t, point),
  });
  const keyFields = form.isApart
    ? pointFields(store, {
        name: `the key of ${name}`, key: `k-${key}`, letters: ["k₁", "k₂"], read: (state) => state.problem.keys[i][t],
        change: (state, point) => withKey(state, i, t, point),
      })
    : [];
  const changeScore = (state, value) => withScore(state, i, t, value);
  const score = form.byHand ? stateField(store, { name: `the score of ${name}`, key: `s-${key}`, change: changeScore }) : null;
  const shownScore = element("output");
  const slider = form.byHand ? element("input", { type: "range", step: "0.01", "aria-label": `Score of ${name}`, dataset: { key: `r-${key}` } }) : null;
  slider?.addEventListener("input", () => {
    store.apply(`change the score of ${name}`, (state) => changeScore(state, Number(slider.value)), { gesture: slider.dataset.gesture });
  });
  const begin = () => (slider.dataset.gesture = `slider ${++gestures}`);
  slider?.addEventListener("pointerdown", begin);
  slider?.addEventListener("focus", begin);
  const remove = iconButton("×", `Remove ${name}`, `d-${key}`, () => store.apply(`remove ${name}`, (state) => removeToken(state, i, t)));
  const cell = (field) => element("td", {}, field.node);
  const node = element(
    "tr",
    {},
    element("th", { scope: "row" }, form.words?.[i][t] ? own : String(t)),
    fields.map(cell),
    keyFields.map(cell),
    form.isJoint ? null : element("td", { class: "score" }, score?.node, slider, form.byHand ? null : shownScore),
    element("td", {}, form.lengths[i] > 1 ? remove : null),
  );
  node.addEventListener("focusin", () => {
    const { input, token } = store.state.chosen;
    if (input !== i || token !== t) store.apply(`look at ${name}`, (state) => withChosen(state, { input: i, token: t }), { undoable: false });
  });
  return {
    fill(state, problem) {
      places(state)[i][t].forEach((entry, k) => fields[k].fill(entry));
      if (form.isApart) state.problem.keys[i][t].forEach((entry, k) => keyFields[k].fill(entry));
      if (form.byHand) {
        const value = state.problem.scores[i][t];
        const reach = Math.max(SLIDER_REACH, Math.ceil(Math.abs(value)));
        setAttributes(slider, { min: -reach, max: reach });
        if (Number(slider.value) !== value) slider.value = String(value);
        score.fill(value);
      } else if (problem?.hasScores) setText(shownScore, short(problem.scores[i * problem.T + t]));
      const isChosen = state.chosen.input === i && state.chosen.token === t;
      node.classList.toggle("chosen", isChosen);
      setAttributes(node, { "aria-current": isChosen ? "true" : null });
    },
    node,
  };
}

function inputView(store, form, i, isOpen, focusOn) {
  const rows = form.lengths[i];
  const made = Array.from({ length: rows }, (_, t) => tokenRow(store, form, i, t));
  const summary = element("summary", {}, `Input ${i} `, element("small", {}, `${rows} ${rows === 1 ? "token" : "tokens"}`));
  const label = element("button", { type: "button", class: "label", dataset: { key: `y-${i}` } });
  label.addEventListener("click", () => {
    store.apply(`change the label of input ${i}`, (state) => withLabel(state, i, -labelsOf(state.problem)[i]));
  });
  const hidden = (text) => element("span", { class: "visually-hidden" }, text);
  const labelText = element("span");
  label.append(labelText, hidden(` of input ${i}; press to change it`));
  const add = element("button", { type: "button", dataset: { key: `a-${i}` } }, "Add token", hidden(` to input ${i}`));
  add.addEventListener("click", () => {
    const point = nextPoint(rows);
    if (store.apply(`add a token to input ${i}`, (state) => addToken(state, i, point))) focusOn(`x-${i}-${rows}-0`);
  });
  const remove = element("button", { type: "button", dataset: { key: `e-${i}` } }, "Remove input");
  setAttributes(remove, { "aria-label": `Remove input ${i}`, disabled: form.lengths.length === 1 });
  setAttributes(add, { "aria-label": `Add token to input ${i}`, disabled: rows >= MAX_TOKENS });
  remove.addEventListener("click", () => store.apply(`remove input ${i}`, (state) => removeInput(state, i)));
  const columns = ["Token", "x₁", "x₂", ...(form.isApart ? ["k₁", "k₂"] : []), ...(form.isJoint ? [] : ["Score"])];
  const table = element(
    "table",
    { class: form.isApart ? "apart" : "" },
    element("thead", {}, element("tr", {}, columns.map((text) => element("th", { scope: "col" }, text)), element("td"))),
    element("tbody", {}, made.map(({ node }) => node)),
  );
  const node = element("details", { open: isOpen, class: "input" }, summary, element("div", { class: "scroll" }, table), element("div", { class: "row" }, label, add, remove));
  return {
    node,
    fill(state, problem) {
      const y = labelsOf(state.problem)[i];
      setText(label, `Label ${y > 0 ? "+1" : "−1"}`);
      setAttributes(label, { "aria-label": `Label ${y > 0 ? "+1" : "−1"} of input ${i}; press to change it` });
      if (state.chosen.input === i && state.chosen.token !== null && !node.open) node.open = true;
      for (const row of made) row.fill(state, problem);
    },
  };
}

// ---- head and starts

/** The head, or where it is trained too, the head at the start: { node, fill }. */
function mountForm(store) {
  const head = pointFields(store, { name: "the head", key: "v", letters: ["v₁", "v₂"], read: (state) => state.problem.head, change: withHead });
  const startHead = pointFields(store, {
    name: "the head at the start", key: "w", letters: ["v₁", "v₂"], largest: MAX_START, read: (state) => state.problem.start_head ?? [0, 0],
    change: (state, point) => withProblem(state, { start_head: point }),
  });
  const headRow = element("div", { class: "row fields" }, element("span", {}, "Head"), head.map(({ node }) => node));
  const jointRow = element("div", { class: "row fields" }, element("span", {}, "Head at the start"), startHead.map(({ node }) => node));
  return {
    node: element("div", { class: "form" }, headRow, jointRow),
    fill(state, form) {
      headRow.hidden = form.isJoint || form.byHand;
      jointRow.hidden = !form.isJoint;
      if (!headRow.hidden) state.problem.head.forEach((entry, k) => head[k].fill(entry));
      if (form.isJoint) (state.problem.start_head ?? [0, 0]).forEach((entry, k) => startHead[k].fill(entry));
    },
  };
}

function mountStarts(store, focusOn) {
  const list = element("ul", { class: "starts", "aria-label": "Starts" });
  const add = element("button", { type: "button" }, "Add start");
  add.addEventListener("click", () => {
    const count = store.state.starts.length;
    if (store.apply(`add start ${count}`, (state) => addStart(state, nextPoint(count, 2)))) focusOn(`p-${count}-0`);
  });
  let rows = [];
  const startRow = (k, count) => {
    const choose = element("input", { type: "radio", name: "chosen-start", dataset: { key: `c-${k}` } });
    choose.addEventListener("change", () => store.apply(`choose start ${k}`, (state) => withChosen(state, { start: k }), { undoable: false }));
    const fields = pointFields(store, {
      name: `start ${k}`, key: `p-${k}`, largest: MAX_START, letters: ["p₁", "p₂"], read: (state) => state.starts[k],
      change: (state, point) => withStart(state, k, point),
    });
    const remove = iconButton("×", `Remove start ${k}`, `q-${k}`, () => store.apply(`remove start ${k}`, (state) => removeStart(state, k)));
    const node = element("li", { class: "row" }, element("label", { class: "check" }, choose, `Start ${k}`), fields.map((field) => field.node), count > 1 ? remove : null);
    return {
      node,
      fill(state) {
        choose.checked = (state.chosen.start ?? 0) === k;
        state.starts[k].forEach((entry, j) => fields[j].fill(entry));
      },
    };
  };
  return {
    node: element("div", { class: "form" }, element("h3", {}, "Starts"), list, element("div", { class: "row" }, add)),
    fill(state) {
      const { length } = state.starts;
      if (rows.length !== length) {
        rows = Array.from({ length }, (_, k) => startRow(k, length));
        replace(list, rows.map(({ node }) => node));
      }
      for (const row of rows) row.fill(state);
      add.disabled = length >= MAX_STARTS;
    },
  };
}

/** The problem as tables that can be edited; the row in focus is the chosen token. */
export function mountEditor(root, store) {
  let wanted = null; // the key of the field that gets the focus once it stands
  const focusOn = (key) => (wanted = key);
  const form = mountForm(store);
  const inputs = element("div", { class: "inputs" });
  const more = element("button", { type: "button" }, "Add input");
  more.addEventListener("click", () => {
    const count = keysOf(store.state.problem).length;
    if (store.apply("add an input", (state) => addInput(state, [0, 1, 2].map((k) => nextPoint(count + k))))) focusOn(`x-${count}-0-0`);
  });
  const starts = mountStarts(store, focusOn);
  replace(root, form.node, inputs, element("div", { class: "row" }, more), starts.node);
  let shown = "";
  let views = [];
  return {
    update(state, { problem }) {
      const given = formOf(state.problem);
      const focused = root.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
      if (given.text !== shown) {
        const wereOpen = views.map(({ node }) => node.open);
        views = given.lengths.map((_, i) => inputView(store, given, i, wereOpen[i] ?? (i < OPEN_INPUTS || i === state.chosen.input), focusOn));
        replace(inputs, views.map(({ node }) => node));
        shown = given.text;
      }
      form.fill(state, given);
      for (const view of views) view.fill(state, problem);
      more.disabled = given.lengths.length >= MAX_INPUTS;
      starts.fill(state);
      const key = wanted ?? focused;
      if (key !== undefined && document.activeElement?.dataset?.key !== key) root.querySelector(`[data-key="${key}"]`)?.focus();
      wanted = null;
    },
  };
}
