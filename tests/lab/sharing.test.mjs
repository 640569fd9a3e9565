// Links and files: every state comes back from them, and what cannot be read is refused in one sentence.

import assert from "node:assert/strict";
import test from "node:test";
import { deflateRawSync } from "node:zlib";
import { load } from "./core.mjs";

const { captionOf } = await load("sharing/picture_files.js");
const { hashOf, stateOfHash } = await load("sharing/permalink.js");
const { fileName, loadFile, MAX_FILE_BYTES, problemFile, stateOfFile } = await load("sharing/problem_transfer.js");
const { pythonScript } = await load("sharing/python_script.js");
const { completeState, stateOfPreset, Store } = await load("state.js");
const { ProblemError } = await load("../kernels/problem.js");

const KEYS = [[[-0.1, 1], [1, 0], [0, 0]], [[0.3, 0.1 + 0.2], [7, -2.5]]];
const SCORED = { keys: KEYS, scores: [[1, 0.9, 0], [0.25, -1]] };
const PROBLEMS = [
  { ...SCORED, labels: [1, -1], steps: 70 },
  { tokens: KEYS, head: [0.5, -1e-7], optimizer: { name: "adam", size: 0.2 }, loss: "exponential" },
  { tokens: KEYS, keys: [[[1, 2], [3, 4], [5, 6]], [[0, 1], [1, 0]]], head: [1, 1] },
  { tokens: KEYS, labels: [1, -1], train: "both", start_head: [0.1, 0.2], optimizer: { name: "gradient-descent", size: 0.01 }, steps: 10 },
  { tokens: [[[1, 2]], [[3, 4], [5, 6.5]]], keys: [[[1, 0]], [[0, 1], [2, 2]]], head: [0, 1] },
];
const PARTS = [
  { starts: [[1e12, -1e-300], [-0, 0.1 + 0.2]] },
  { view: { half: 1e5, basins: true, lines: false } },
  { playback: { step: 12345 }, preset: "A-F1b", starts: [[0.5, -1.5], [1e6, 0.1]] },
  { note: "If only <b>the selected</b> token paid off, …" },
  { chosen: { input: 0, token: 0, start: null, limit: 1 } },
  { tab: "text", text: { source: "Ünïcödé – “quotes” 😀\n\t\x00<script>", unit: "words", last: "é", prompt: "", window: 3 } },
];
const linkOf = (text) => `#1.${deflateRawSync(text).toString("base64url")}`;

test("every state comes back from its link and from its file, and an example's link is its name", async () => {
  for (const preset of globalThis.labPresets) assert.match(await hashOf(stateOfPreset(preset)), /^#[\w-]+$/);
  for (const problem of PROBLEMS)
    for (const part of PARTS) {
      const state = completeState({ problem, ...part });
      const hash = await hashOf(state);
      assert.match(hash, /^#1\.[\w-]+$/);
      const shown = JSON.parse(JSON.stringify(state)); // in which -0 is 0
      for (const back of [(await stateOfHash(hash)).state, stateOfFile(problemFile(state), completeState({ problem }))]) {
        assert.deepEqual(JSON.parse(JSON.stringify(back)), shown);
        for (const [name, value] of Object.entries(part))
          if (!Array.isArray(value) && typeof value === "object") for (const key of Object.keys(value)) assert.equal(back[name][key], value[key]);
      }
    }
});

test("a problem without the page's part is shown whole", () => {
  const current = completeState({ problem: SCORED, text: { source: "mine" } });
  const { starts, view, text } = stateOfFile(JSON.stringify({ ...SCORED, start: [3, 4] }), current);
  assert.deepEqual([starts, view.half >= 7, text.source], [[[3, 4]], true, "mine"]);
});

test("links that cannot be read are refused, and a place on the page is no link", async () => {
  const json = (state) => linkOf(JSON.stringify(state));
  const refused = {
    "#2.abc": "made by another version of the page (2)",
    "#v9.abc": "made by another version of the page (v9)",
    "#0.abc": "made by another version of the page (0)",
    "#1.": "damaged",
    "#1.abc": "damaged",
    "#1.!!!": "damaged",
    "#garbage": "damaged",
    [linkOf("{}").slice(0, -3)]: "damaged",
    [linkOf(Buffer.from([0xff, 0xfe]))]: "damaged",
    [linkOf("not json")]: "damaged",
    [linkOf("null")]: "must be a JSON object",
    [linkOf("{}")]: "must hold a problem",
    [json({ problem: { ...SCORED, scores: [[1, 2], [3, 4]] } })]: "must have 3 scores",
    [json({ problem: SCORED, starts: "none" })]: "at least one start",
    [json({ problem: SCORED, note: 7 })]: "A note must be a text",
    [json({ problem: SCORED, chosen: { input: 5 } })]: "not among those of the problem",
    [linkOf(`${" ".repeat(5_000_000)}{}`)]: "more than the page takes",
  };
  for (const [hash, words] of Object.entries(refused))
    await assert.rejects(stateOfHash(hash), (error) => error instanceof ProblemError && error.message.includes(words), words);
  for (const hash of ["", "#", "#content"]) assert.deepEqual(await stateOfHash(hash), { state: null, complaint: null });
});

test("of a link that was cut, what can be read is kept, and a sentence says so", async () => {
  const example = stateOfPreset(globalThis.labPresets.find(({ name }) => name === "A-F1c"));
  const shared = completeState({ ...example, starts: [[0.25, 0.5]], view: { half: 7 } });
  const whole = await hashOf(shared);
  const kept = [];
  for (let length = 12; length < whole.length; length++) {
    const { state, complaint } = await stateOfHash(whole.slice(0, length)).catch(({ message }) => ({ state: null, complaint: message }));
    if (complaint === null) {
      assert.deepEqual(state, shared); // nothing but the end of the compressed stream is missing
      continue;
    }
    assert.match(complaint, /^This link is damaged.*\.$/);
    if (state === null) continue;
    if (JSON.stringify(state.problem) !== JSON.stringify(example.problem)) assert.fail("a number was cut in two");
    kept.push(complaint.includes("example") ? "example" : "problem");
  }
  assert.deepEqual(kept, kept.toSorted()); // first the example is known, with more of the link the problem too
  assert.deepEqual(new Set(kept), new Set(["example", "problem"]));
  const { state, complaint } = await stateOfHash(whole.slice(0, 120));
  assert.equal(state.preset, "A-F1c");
  assert.ok(complaint.includes(globalThis.labPresets.find(({ name }) => name === "A-F1c").title));
});

test("wrong files are one sentence, and the state stays", async () => {
  const refused = {
    "": "The file is empty.",
    "x, y\n1, 2\n": "not JSON",
    "[1, 2]": "holds no problem",
    '{"name": "package"}': "holds no problem",
    '{"format": "png"}': 'The format must be marginlens-problem; got "png".',
    '{"tokens": [[[1, 2]]], "head": [1, 1], "version": 7}': "got version 7",
    '{"format": "marginlens-problem", "sequences": [[0]], "labels": [0]}': "holds sequences",
    '{"tokens": [[[1, 2]]], "W": [[1, 0]], "head": [1, 1]}': "W must be a list of 2 rows; got 1 rows",
    '{"tokens": [[[1, 2], [3]]], "head": [1, 1]}': "token 1 of input 0 has 1",
    '{"tokens": [[[1, 2, 3]]], "head": [1, 1, 1]}': "is two-dimensional",
    '{"tokens": [[[1, 2]]], "head": [1, 1], "page": {"starts": []}}': "at least one start",
  };
  const files = Object.entries(refused).map(([text, words]) => [{ name: "a.json", size: text.length, text: async () => text }, words]);
  files.push([{ name: "big.json", size: MAX_FILE_BYTES + 1, text: async () => "{}" }, "too large"]);
  files.push([{ name: "gone.json", size: 1, text: () => Promise.reject(new TypeError("gone")) }, "cannot be read"]);
  for (const [file, words] of files) {
    const store = new Store(completeState({ problem: SCORED }));
    const [before, said] = [store.state, []];
    store.subscribeMessages((message) => said.push(message));
    assert.equal(await loadFile(store, file), false);
    assert.equal(store.state, before);
    const [{ kind, sentence }] = said;
    assert.equal(kind, "refusal");
    assert.ok(sentence.includes(words) && sentence.endsWith(".") && !sentence.includes("\n"), sentence);
  }
});

test("files, pictures and scripts are called by example and step, and say where it was changed", () => {
  const example = stateOfPreset(globalThis.labPresets.find(({ name }) => name === "A-F1b"));
  const played = { ...example, playback: { step: 300 } };
  const changed = completeState({ problem: SCORED, preset: "A-F1b" });
  const named = [
    [played, "A-F1b-step-300", false],
    [{ ...played, starts: [[0.25, 0.5]] }, "A-F1b-changed-step-300", true],
    [changed, "A-F1b-changed", true],
    [completeState({ problem: SCORED }), "problem", false],
    [completeState({ ...example, tab: "text", text: { last: " /é" } }), "text-after-_é", false],
  ];
  for (const [state, name, isChanged] of named) {
    assert.equal(fileName(state, "png"), `marginlens-${name}.png`);
    assert.equal(captionOf(state).includes(" changed,"), isChanged);
    assert.equal(/A-F1b, changed\.?$/.test(pythonScript(state).split("\n")[0]), isChanged);
  }
  assert.match(pythonScript(played).split("\n")[0], /in the plane, A-F1b\.?$/);
});
