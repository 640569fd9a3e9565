// The next-token tab without a browser: reading, bands, windows, reasons and requests.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./core.mjs";

const { readRow } = await load("text/heads_panel.js");
const { SENTENCE_HEADS } = await load("text/sentence_heads.js");
const { bandsOf } = await load("text/priorities.js");
const TEXT_EXAMPLES = globalThis.labWords.texts;
const { continuationAnswer, graphAnswer, promptIds, readText, summaryOf } = await load("text/text_model.js");
const { endSentence, firstOf, reasonSentence } = await load("text/text_reasons.js");
const { startTextWorker, TextWork } = await load("text/text_worker.js");

const START = { unit: "characters", window: 8 };
const { drawsOf } = await load("../kernels/draws.js");
const draws = drawsOf(7);
const words = Array.from({ length: 90 }, (_, k) => `w${k}`);
const manyWords = Array.from({ length: 4000 }, () => words[Math.floor(words.length * draws() ** 2)]).join(" ");
const TEXTS = [...TEXT_EXAMPLES.map(({ text }) => text), { source: manyWords, unit: "words", window: 12 }, { source: "日本日語語本日語 naïve 日語".repeat(3), ...START }];

/** Every graph of every text, with the names of its tokens. */
function* graphs() {
  for (const text of TEXTS) {
    const model = readText({ ...START, ...text });
    for (const last of model.automaton.graphs.keys()) yield { model, graph: graphAnswer(model, last) };
  }
}

test("bands go down from the greatest height, and every winner of a strict pair stands above its loser", () => {
  let strict = 0;
  for (const { graph } of graphs()) {
    for (const heights of [graph.heights, null]) {
      const bands = bandsOf({ ...graph, heights });
      bands.slice(1).forEach(({ level }, k) => assert.ok(level < bands[k].level));
      assert.deepEqual(bands.flatMap(({ components }) => components).sort((a, b) => a - b), Array.from(graph.components.keys()));
      const bandOf = (token) => bands.findIndex(({ components }) => components.some((c) => graph.components[c].includes(token)));
      for (const { label, other, isStrict } of graph.edges) {
        if (isStrict) assert.ok(bandOf(label) < bandOf(other));
        else assert.equal(bandOf(label), bandOf(other));
        strict += isStrict;
      }
    }
  }
  assert.ok(strict > 1000);
});

test("bands are chains of wins where the heights are not known", () => {
  const model = readText(TEXT_EXAMPLES.at(-1).text);
  const graph = { ...graphAnswer(model, 0), heights: null };
  const tokens = bandsOf(graph).map(({ components }) => components.flatMap((c) => graph.components[c]));
  assert.deepEqual(tokens, [[3], [1], [2], [0]]);
});

test("as many windows stand behind a pair as end in the last token, hold the loser and are followed by the winner", () => {
  const model = readText(TEXT_EXAMPLES[0].text);
  const { ids, window } = model;
  const found = new Map();
  for (let first = 0; first + window < ids.length; first++) {
    const [tokens, next] = [ids.subarray(first, first + window), ids[first + window]];
    if (!tokens.includes(next)) continue;
    for (const other of new Set(tokens)) {
      const key = [tokens.at(-1), next, other].join();
      found.set(key, (found.get(key) ?? 0) + 1);
    }
  }
  for (const last of model.automaton.graphs.keys()) {
    const { windows, edges } = graphAnswer(model, last);
    assert.equal(windows, [...found].reduce((sum, [key, count]) => sum + (key.startsWith(`${last},`) && key.endsWith(`,${last}`) ? count : 0), 0));
    for (const { label, other, windows: behind } of edges) assert.equal(behind, found.get([last, label, other].join()));
  }
});

test("texts that cannot be read are refused in a sentence", () => {
  const letters = String.fromCodePoint(...Array.from({ length: 500 }, (_, k) => 0x4e00 + k));
  const refused = [
    [{ ...START, source: "  " }, /^There is no text yet/],
    [{ ...START, source: " \n—", unit: "words", window: 1 }, /^The window must be shorter than the text, which has 1 word; got 1\.$/],
    [{ ...START, source: "abc" }, /^The window must be shorter than the text, which has 3 characters; got 8\.$/],
    [{ ...START, source: "abcdefghijklmnop" }, /^No window of 8 characters holds what follows it/],
    [{ ...START, source: letters }, /^The page takes up to 400 different characters; this text has 500/],
    [{ sequences: { samples: [[0, 2]], labels: [0], names: ["a", "b"] } }, /^Sequence 0 and its label must be ids from 0 to 1\.$/],
    [{ sequences: { samples: [[0]], labels: [1], names: ["a", "b"] } }, /^No sequence holds its label/],
    [{ sequences: { samples: [] } }, /^Sequences need samples/],
  ];
  for (const [text, sentence] of refused) assert.throws(() => readText(text), { message: sentence });
  const model = readText({ ...START, source: "abcabcabcabc" });
  assert.throws(() => promptIds(model, "abz"), { message: /^The beginning holds “z”/ });
  assert.throws(() => promptIds(model, ""), { message: /^There is no beginning/ });
});

test("rare words are one token, and counts say so", () => {
  const model = readText({ source: `${Array.from({ length: 600 }, (_, k) => `v${k}`).join(" ")} a b a b a b`, unit: "words", window: 4 });
  const summary = summaryOf(model);
  assert.equal(summary.names.length, 401);
  assert.equal(summary.rare, 602 - 400);
  assert.deepEqual(promptIds(model, "a zebra"), [0, 400]);
});

test("reasons name the rivals, the windows behind them, ties and shares", () => {
  const { text } = TEXT_EXAMPLES.at(-1);
  const model = readText(text);
  const [step] = continuationAnswer(model, { prompt: "e2 e4 e1", count: 1, draw: "likely", seed: 1 }).steps;
  assert.equal(reasonSentence(step, model.names), "After “e1” comes “e4”. Windows that end in “e1” put it above “e1” (1 window) and “e2” (1 window).");
  const [mixed] = continuationAnswer(model, { prompt: "e1 e3 e4 e2", count: 1, draw: "random", seed: 2 }).steps;
  assert.match(reasonSentence(mixed, model.names, true), /^After “e2” comes “e\d”, drawn from “e3” \(65 %\) and “e2” \(35 %\)\. Each of them wins over another .* above “e4” \(1 window\)\.$/);
  const [new_] = continuationAnswer(model, { prompt: "e1 e2 e4", count: 1, draw: "likely", seed: 1 }).steps;
  assert.match(reasonSentence(new_, model.names), /^After “e4” comes “e\d”, the likeliest of .*\. No training window ends in “e4”/);
  const [single] = continuationAnswer(model, { prompt: "e1", count: 1, draw: "likely", seed: 1 }).steps;
  assert.equal(reasonSentence(single, model.names), "After “e1” comes “e1”: the window holds nothing else.");
  const end = { last: 0, rivals: [{ token: 1, probability: NaN }, { token: 2, probability: NaN }], reason: { code: "expansion_reason.too_many_terms", numbers: { terms: 20 } } };
  assert.match(endSentence(end, model.names), /“e2” and “e3” are equally high, and their shares are not known because the expansion has more than 20 terms\./);
  assert.deepEqual(firstOf(["a", "b", "c", "d", "e", "f"]), ["a", "b", "c", "d", "2 more"]);
});

test("every reason is a sentence without undefined, and ties of every kind are met", () => {
  const ties = new Set();
  for (const text of TEXTS.slice(0, 5)) {
    const model = readText({ ...START, ...text });
    const ids = model.ids ?? model.data.tokens;
    for (let k = 0; k < 12; k++) {
      const tokens = Array.from({ length: 7 }, () => ids[Math.floor(ids.length * draws())]);
      const prompt = tokens.map((id) => model.names[id]).join(model.unit === "characters" ? "" : " ");
      for (const step of continuationAnswer(model, { prompt, count: 5, draw: "random", seed: k }).steps) {
        ties.add(step.tie);
        const sentence = reasonSentence(step, model.names, true);
        assert.match(sentence, /^After .*\.$/s);
        assert.doesNotMatch(sentence, /undefined|NaN|null/);
      }
    }
  }
  assert.ok(ties.has("NONE") && ties.has("OFFSET"), [...ties].join());
});

test("the same seed draws the same tokens, and another seed others", () => {
  const model = readText(TEXT_EXAMPLES[0].text);
  const tokens = (seed) => continuationAnswer(model, { ...TEXT_EXAMPLES[0].text, seed }).steps.map(({ token }) => token);
  assert.deepEqual(tokens(1), tokens(1));
  assert.notDeepEqual(tokens(1), tokens(2));
});

/** Let workers be what answers in this process, or what breaks off, until a test has ended. */
function withWorkers(context, Worker) {
  const before = { Worker: globalThis.Worker, document: globalThis.document };
  context.after(() => Object.assign(globalThis, before));
  globalThis.document = { getElementById: () => ({ textContent: "" }) };
  globalThis.Worker = Worker;
}

class AnsweringWorker {
  constructor() {
    this.scope = { postMessage: (data) => setTimeout(() => this.onmessage?.({ data })) };
    startTextWorker(this.scope);
  }

  postMessage(data) {
    if (!data.core) this.scope.onmessage({ data });
  }

  terminate() {
    this.onmessage = null;
  }
}

test("a newer request of a kind, and another text, come before older ones", async (context) => {
  withWorkers(context, AnsweringWorker);
  const work = new TextWork();
  const told = [];
  work.subscribe(() => told.push(work.summary?.names.length ?? work.refusal));
  const first = work.read({ ...START, source: "abababababab" });
  const second = work.read({ ...START, source: "abcabcabcabcabc" });
  await Promise.all([first, second]);
  assert.deepEqual(told, [null, null, 3]);
  const other = work.ask({ ask: "continue", prompt: "abc", count: 2, draw: "likely", seed: 1 });
  const [older, newer] = [work.ask({ ask: "graph", last: 1 }), work.ask({ ask: "graph", last: 2 })];
  assert.equal(await older, null);
  assert.deepEqual([(await other).answer.ids.length, (await newer).answer.last], [3, 2]);
  await work.read({ ...START, source: "" });
  assert.match(work.refusal, /^There is no text yet/);
  assert.match((await work.ask({ ask: "graph", last: 0 })).refusal, /no text/);
});

test("where workers break off, or the browser runs none, a sentence says so", async (context) => {
  class BrokenWorker {
    postMessage() {
      setTimeout(() => this.onerror({ message: "blocked" }));
    }
  }
  for (const [Worker, sentence] of [[BrokenWorker, /broke off: blocked/], [undefined, /runs no workers/]]) {
    withWorkers(context, Worker);
    const work = new TextWork();
    await work.read({ ...START, source: "abcabcabcabcabc" });
    assert.match(work.refusal, sentence);
  }
});

test("a text that compares nothing is read", () => {
  const model = readText({ ...START, source: "aaaaaaaaaaaaaaaa" });
  const graph = graphAnswer(model, 0);
  assert.deepEqual([graph.edges, graph.heights], [[], [0]]);
  assert.deepEqual(bandsOf(graph), [{ level: 0, components: [0] }]);
});

// ---- heads of a real model

test("every head and word of the six sentences has a winner with its lead, and the table is small", () => {
  const { sentences, heads } = SENTENCE_HEADS;
  assert.deepEqual([sentences.length, heads.length], [6, 6]);
  for (const { words, logits } of sentences)
    for (const { name } of heads) {
      assert.equal(logits[name].length, words.length);
      for (const row of logits[name]) {
        const { shares, winner, second, lead } = readRow(row);
        assert.equal(shares.length, words.length);
        assert.ok(Math.abs(shares.reduce((sum, share) => sum + share, 0) - 1) < 1e-12);
        assert.equal(Math.max(...shares), shares[winner]);
        assert.ok(winner !== second && Math.abs(Math.log(shares[winner] / shares[second]) - lead) < 1e-9);
      }
    }
  const { words, logits } = sentences.find(({ sentence }) => sentence.startsWith("The river"));
  assert.equal(words[readRow(logits.subject[words.indexOf("it")]).winner], "river");
  assert.ok(JSON.stringify(SENTENCE_HEADS).length <= 60_000);
});
