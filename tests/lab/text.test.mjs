// The next-token tab without a browser: reading, layout, evidence, reasons and requests.

import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./core.mjs";

const { readRow } = await load("text/heads_panel.js");
const { SENTENCE_HEADS } = await load("text/sentence_heads.js");
const { componentLinks, layoutGraph, MAX_DRAWN_TOKENS } = await load("text/priority_layout.js");
const TEXT_EXAMPLES = globalThis.labWords.texts;
const { continuationAnswer, evidenceAnswer, graphAnswer, promptIds, readText, summaryOf } =
  await load("text/text_model.js");
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

const overlap = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

test("boxes of a graph do not overlap, chips lie in their box, and winners stand above", () => {
  let summarised = 0;
  let drawnLines = 0;
  for (const { model, graph } of graphs()) {
    for (const width of [320, 680]) {
      const layout = layoutGraph(graph, model.names, width);
      const { boxes, chips, lines, bands } = layout;
      boxes.forEach((box, k) => boxes.slice(0, k).forEach((other) => assert.ok(!overlap(box, other))));
      chips.forEach((chip, k) => {
        const box = boxes.find(({ component }) => component === chip.component);
        assert.ok(chip.x >= box.x && chip.x + chip.width <= box.x + box.width + 1e-9);
        assert.ok(chip.y >= box.y && chip.y + chip.height <= box.y + box.height + 1e-9);
        chips.slice(0, k).forEach((other) => assert.ok(!overlap(chip, other)));
      });
      for (const box of boxes) {
        assert.ok(box.x + box.width <= layout.width && box.y + box.height <= layout.height);
        const band = bands.find(({ height }) => Math.abs(height - graph.heights[box.component]) < 1e-5);
        assert.ok(box.y >= band.y && box.y + box.height <= band.bottom);
      }
      bands.slice(1).forEach((band, k) => assert.ok(bands[k].height > band.height && bands[k].bottom < band.y));
      for (const { upper, lower, points } of lines) {
        assert.ok(graph.heights[upper] >= graph.heights[lower] + 1 - 1e-6);
        assert.ok(points[0][1] < points[3][1]);
      }
      const drawn = chips.map(({ token }) => token).filter((token) => token !== null);
      assert.equal(new Set(drawn).size, drawn.length);
      assert.equal(drawn.length + layout.hiddenTokens, graph.nodes.length);
      assert.equal(layout.isSummary, graph.nodes.length > MAX_DRAWN_TOKENS);
      assert.ok(boxes.length <= 40);
      summarised += layout.isSummary;
      drawnLines += lines.length;
    }
  }
  assert.ok(summarised > 10 && drawnLines > 1000);
});

test("a graph is laid out alike each time, whatever the order of its edges", () => {
  for (const { model, graph } of graphs()) {
    const turned = { ...graph, edges: [...graph.edges].reverse() };
    const plain = (layout) => ({ ...layout, lines: layout.lines.map(({ upper, lower, windows, points }) => ({ upper, lower, windows, points })) });
    assert.deepEqual(plain(layoutGraph(graph, model.names)), plain(layoutGraph(turned, model.names)));
  }
});

test("bands are chains of wins where the heights are not known", () => {
  const model = readText(TEXT_EXAMPLES.at(-1).text);
  const layout = layoutGraph({ ...graphAnswer(model, 0), heights: null }, model.names);
  assert.deepEqual(layout.chips.map(({ token }) => token), [3, 1, 2, 0]);
  assert.deepEqual(layout.bands.map(({ height }) => height), [null, null, null, null]);
});

test("the windows behind a ranking end in the last token, hold the loser and are followed by the winner", () => {
  const model = readText(TEXT_EXAMPLES[0].text);
  for (const last of model.automaton.graphs.keys()) {
    const graph = graphAnswer(model, last);
    for (const { label, other, windows } of graph.edges) {
      const evidence = evidenceAnswer(model, last, [[label, other]]);
      assert.equal(evidence.total, windows);
      for (const { before, window, next, after } of evidence.windows) {
        assert.ok(window.at(-1) === last && window.includes(other) && window.includes(label) && next === label);
        const all = [...before, ...window, next, ...after].join();
        assert.ok(`,${Array.from(model.ids).join()},`.includes(`,${all},`));
      }
    }
    assert.equal(evidenceAnswer(model, last, [[null, null]]).total, graph.windows);
    for (const { pairs, windows } of componentLinks(graph)) {
      const { total } = evidenceAnswer(model, last, pairs);
      assert.ok(total <= windows && total >= Math.max(...pairs.map((pair) => evidenceAnswer(model, last, [pair]).total)));
    }
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
  const running = work.ask({ ask: "graph", last: 0 });
  const [older, newer] = [work.ask({ ask: "graph", last: 1 }), work.ask({ ask: "graph", last: 2 })];
  assert.equal(await older, null);
  assert.deepEqual([(await running).answer.last, (await newer).answer.last], [0, 2]);
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

test("a text that compares nothing is read and laid out", () => {
  const model = readText({ ...START, source: "aaaaaaaaaaaaaaaa" });
  const graph = graphAnswer(model, 0);
  assert.deepEqual([graph.edges, graph.heights], [[], [0]]);
  assert.equal(layoutGraph(graph, model.names).chips.length, 1);
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
