// The text of the next-token tab, and how it goes on: every token that the automaton adds can be asked for its reason.

import { element, replace, setText } from "../dom.js";
import { percent } from "../numbers.js";
import { MAX_SOURCE, withText } from "../state.js";
import { numberField } from "../typed_number.js";
import { MAX_COUNT, MAX_VOCABULARY, MAX_WINDOW, shownName } from "./text_model.js";
import { counted, endSentence, quoted, reasonSentence } from "./text_reasons.js";
import { textWork } from "./text_worker.js";

const { texts: examples } = globalThis.labWords; // { name, text }: the parts of `state.text` that an example sets

const TYPING_REST = 200; // ms without a key after which the text is read
const MAX_SHOWN_SEQUENCES = 50;

const CLOSE_MARKS = /^[,.;:!?)\]’'”]/u; // before which words have no space

/** Tokens in a row as people read them: words with spaces between; isSigned shows spaces and line ends by signs. */
function shownTokens(ids, names, unit, isSigned = false) {
  if (unit === "characters") {
    const text = ids.map((id) => names[id]).join("");
    return isSigned ? shownName(text) : text.replaceAll("\n", "↵\n");
  }
  return ids.map((id) => (unit === "words" && CLOSE_MARKS.test(names[id]) ? names[id] : ` ${names[id]}`)).join("");
}

/** What is known of a text, in words. */
export function countSentences({ unit, window, names, tokens, windows, dropped, rare, lasts }) {
  const what = unit === "listed" ? "sequence" : "window";
  const begin = tokens === null ? "" : `${tokens.toLocaleString("en")} ${unit}, `;
  const size = unit === "listed" ? "" : ` of ${window} ${unit}`;
  const use = windows === 1 ? "holds what follows it and counts" : "hold what follows them and count";
  const left = dropped === 0 ? "" : `; ${counted(dropped, `other ${what}`)} ${dropped === 1 ? "does" : "do"} not and ${dropped === 1 ? "is" : "are"} left out`;
  const unknown = rare === 0 ? "" : ` ${counted(rare, "rare word stands", "rare words stand")} as “<unknown>”: the ${MAX_VOCABULARY} most frequent have a name.`;
  return `${begin}${names.length.toLocaleString("en")} different. ${counted(windows, what)}${size} ${use}, ending in ${counted(lasts.length, "different token")}${left}.${unknown}`;
}

/** The state with another text, or other sequences, and what belongs to them. */
function withSource(state, { sequences = null, ...part }) {
  const { sequences: old, ...text } = state.text;
  return { ...state, text: { ...text, ...part, ...(sequences ? { sequences } : {}) } };
}

/** A labelled field. */
function field(label, input) {
  return element("div", { class: "field" }, element("label", { for: input.id }, label), input);
}

/** Radio buttons for a part of the text: { node, set(value) }. */
function choices(store, part, legend, options) {
  const inputs = options.map(([value, label]) => {
    const change = () => store.apply(`take ${label}`, (state) => withText(state, { [part]: value }));
    return { value, label, input: element("input", { type: "radio", name: `text-${part}`, value, onchange: change }) };
  });
  const labels = inputs.map(({ input, label }) => element("label", { class: "check" }, input, label));
  const node = element("fieldset", { class: "choices" }, element("legend", {}, legend), element("div", { class: "row" }, labels));
  return { node, set: (value) => inputs.forEach((entry) => (entry.input.checked = entry.value === value)) };
}

/** A labelled field for a whole number that is part of the text: { node, fill(value) }. */
function wholeField(store, part, label, name, low, high) {
  const change = (value) => store.apply(`${name.toLowerCase()}: ${value}`, (state) => withText(state, { [part]: value }));
  const { node, fill } = numberField(store, { name, low, high, isWhole: true, change, id: `text-${part}` });
  return { node: field(label, node), fill };
}

/** A field whose text becomes part of the state when keys have rested. */
function typedField(store, part, label, attributes, change) {
  const input = element("textarea", { id: `text-${part}`, spellcheck: "false", autocapitalize: "off", ...attributes });
  let timer = 0;
  let burst = 0;
  const send = () => {
    clearTimeout(timer);
    timer = 0;
    if (input.value === store.state.text[part]) return;
    if (!store.apply(label, (state) => change(state, input.value), { gesture: `text-${part}-${burst}` })) input.value = store.state.text[part];
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(send, TYPING_REST);
  });
  input.addEventListener("change", send);
  input.addEventListener("focus", () => burst++);
  const set = (value) => {
    if (timer === 0 && input.value !== value) input.value = value;
  };
  return { input, set };
}

export function mountTextInput(root, store) {
  const work = textWork(store);
  const source = typedField(store, "source", "edit the text", { rows: 7 }, (state, value) => {
    if (value.length > MAX_SOURCE) store.say(`The page takes texts of up to ${MAX_SOURCE.toLocaleString("en")} characters; this has ${value.length.toLocaleString("en")}.`, "refusal");
    return value.length > MAX_SOURCE ? state : withSource(state, { source: value });
  });
  const typed = element("div", { class: "field" }, element("label", { for: source.input.id }, "Type or paste a text"), source.input);
  const lines = element("ol", { class: "sequences mono" });
  const leave = () => store.apply("type a text", (state) => withSource(state, examples[0].text));
  const given = element("div", {}, element("p", {}, "Sequences and what follows each:"), lines, element("button", { type: "button", onclick: leave }, "Take a text instead"));
  const unit = choices(store, "unit", "A token is", [["characters", "a character"], ["words", "a word"]]);
  const length = element("output", { for: "text-window" });
  const window = element("input", { type: "range", id: "text-window", min: 1, max: MAX_WINDOW, step: 1 });
  window.addEventListener("input", () => {
    store.apply(`window of ${window.value}`, (state) => withText(state, { window: Number(window.value) }), { gesture: "text-window" });
  });
  const example = element("select", { id: "text-example" },
    element("option", { value: "" }, "Choose one …"), examples.map(({ name }, k) => element("option", { value: k }, name)));
  example.addEventListener("change", () => {
    if (example.value === "") return;
    const { name, text } = examples[Number(example.value)];
    example.value = "";
    store.apply(`example: ${name}`, (state) => withSource(state, text));
  });
  const counts = element("p", { class: "counts", "aria-live": "polite" });
  const settings = element("div", { class: "row text-settings" }, unit.node,
    element("div", { class: "field" }, element("label", { for: "text-window" }, "Window: the tokens that are looked at"), element("div", { class: "row" }, window, length)));
  replace(root, element("div", { class: "text-input" },
    element("div", { class: "row" }, field("Sample text", example)), typed, given, settings, counts,
    element("p", { class: "small" }, `Up to ${MAX_SOURCE.toLocaleString("en")} characters and ${MAX_VOCABULARY} different tokens. Attention can only repeat what its window holds, so windows without the token that follows are left out (C, Assumption 2). Nothing leaves this page.`)));

  const show = () => {
    const { summary, refusal } = work;
    counts.classList.toggle("fails", refusal !== null);
    setText(counts, refusal ?? (summary ? countSentences(summary) : "Reading the text …"));
    root.dataset.read = summary ? "yes" : refusal ? "refused" : "reading";
  };
  work.subscribe(show);
  let shownSequences = null;
  return {
    update({ text }) {
      const listed = text.sequences ?? null;
      typed.hidden = listed !== null;
      given.hidden = listed === null;
      settings.hidden = listed !== null;
      if (listed !== null && listed !== shownSequences) {
        const { samples, labels, names } = listed;
        replace(lines, samples.slice(0, MAX_SHOWN_SEQUENCES).map((sample, i) => element("li", {}, sample.map((id) => names[id]).join(" "), " → ", element("b", {}, names[labels[i]]))));
      }
      shownSequences = listed;
      source.set(text.source);
      unit.set(text.unit);
      if (Number(window.value) !== text.window) window.value = String(text.window);
      setText(length, `${text.window} ${text.unit}`);
      work.read(text);
      show();
    },
  };
}

export function mountContinuation(root, store) {
  const work = textWork(store);
  const prompt = typedField(store, "prompt", "edit the beginning", { rows: 2 }, (state, value) => withText(state, { prompt: value }));
  const open = () => store.apply("begin as the text does", (state) => withText(state, { prompt: work.summary.opening }));
  const count = wholeField(store, "count", "Tokens to add", "The number of tokens to add", 0, MAX_COUNT);
  const draw = choices(store, "draw", "Each token is", [["likely", "the likeliest"], ["random", "drawn by its share"]]);
  const seed = wholeField(store, "seed", "Seed", "The seed", 0, 2 ** 32 - 1);
  const text = element("p", { class: "continued" });
  const reason = element("p", { class: "reason", "aria-live": "polite" });
  const rivals = element("div", { class: "rivals" });
  const refusal = element("p", { class: "fails", role: "status" });
  replace(root, element("div", { class: "text-continuation" },
    element("div", { class: "field" }, element("label", { for: "text-prompt" }, "Beginning"), prompt.input),
    element("div", { class: "row" }, count.node, draw.node, seed.node, element("button", { type: "button", onclick: open }, "Begin as the text does")),
    refusal, text, reason, rivals,
    element("p", { class: "small" }, "Choose a token to see why it came. The rule is the limit of training (the automaton of C): the highest tokens of the window take all, and mix in fixed shares. Where tokens that the text does not compare are equally high, gradient descent may share otherwise, or reach this share at enormous norms alone.")));
  let answer = null;
  let chosen = null; // the place of the token whose reason is shown
  let asked = null;

  const pick = (place) => {
    chosen = place;
    showReason();
    document.dispatchEvent(new Event("reasonshown"));
    for (const button of text.querySelectorAll("button")) button.setAttribute("aria-pressed", String(Number(button.dataset.place) === chosen));
  };

  const showReason = () => {
    const { names } = work.summary;
    const step = chosen === null ? null : answer.steps[chosen];
    if (step === null) {
      setText(reason, answer.steps.length === 0 ? "" : "Choose a token above for its reason.");
      return replace(rivals);
    }
    setText(reason, reasonSentence(step, names, store.state.text.draw === "random"));
    const rows = step.rivals.map(({ token, count: times, height, component, probability }) =>
      element("tr", {}, element("th", { scope: "row", class: "mono" }, quoted(names[token])),
        element("td", {}, `${times} ×`), element("td", {}, height.toFixed(2)),
        element("td", {}, component < 0 ? "–" : String(component + 1)), element("td", {}, percent(probability))));
    const heading = ["Token in the window", "Times", "Height", "Group", "Share"].map((name) => element("th", { scope: "col" }, name));
    return replace(rivals, element("details", {}, element("summary", {}, `All ${counted(step.rivals.length, "token")} of the window`),
      element("table", {}, element("thead", {}, element("tr", {}, heading)), element("tbody", {}, rows))));
  };

  const showAnswer = () => {
    const { names, unit } = work.summary;
    const buttons = answer.steps.map(({ token }, place) =>
      element("button", { type: "button", class: "token", "aria-pressed": "false", "aria-label": `${quoted(names[token])}: why?`, dataset: { place, token }, onclick: () => pick(place) },
        shownTokens([token], names, unit, true).trim() || shownTokens([token], names, unit)));
    replace(text, element("span", { class: "prompt" }, unit === "characters" ? shownTokens(answer.ids, names, unit) : shownTokens(answer.ids, names, unit).trimStart()), " ", buttons);
    setText(refusal, answer.end === null ? "" : endSentence(answer.end, names));
    chosen = null;
    showReason();
  };

  const show = async () => {
    const { summary } = work;
    root.firstChild.hidden = summary === null;
    if (summary === null) {
      asked = answer = null;
      return;
    }
    const { prompt: beginning, count: wanted, draw: way, seed: number } = store.state.text;
    const request = { prompt: beginning, count: Math.min(wanted, MAX_COUNT), draw: way, seed: number };
    const key = JSON.stringify(request);
    if (asked?.summary === summary && asked.key === key) return;
    asked = { summary, key };
    const reply = await work.ask({ ask: "continue", ...request });
    if (reply === null || asked.key !== key || work.summary !== summary) return;
    if (reply.refusal) {
      answer = null;
      setText(refusal, reply.refusal);
      setText(reason, "");
      replace(text);
      replace(rivals);
      return;
    }
    answer = reply.answer;
    showAnswer();
  };
  work.subscribe(show);
  return {
    update(state) {
      prompt.set(state.text.prompt);
      count.fill(state.text.count);
      draw.set(state.text.draw);
      seed.fill(state.text.seed);
      seed.node.hidden = state.text.draw !== "random";
      show();
    },
  };
}
