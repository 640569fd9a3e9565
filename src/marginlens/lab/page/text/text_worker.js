// The worker of the next-token tab, and the page's side of it: requests that are answered in order, the newest of each kind alone.

import { newWorker } from "../background.js";
import { textAnswers } from "./text_model.js";

const NO_WORKERS = "This browser runs no workers, so that texts are not read.";

/** Answer the messages { role: "text", id, ask, … } of a worker's scope by { id, answer } or { id, refusal }. */
export function startTextWorker(scope) {
  const answer = textAnswers();
  scope.onmessage = ({ data }) => scope.postMessage({ id: data.id, ...answer(data) });
}

/**
 * Requests about the text of the page: `read(text)` begins with another one where it differs and tells the listeners of `subscribe` when
 * it begins and when `summary` or `refusal`, a sentence, is there. `ask(request)` is a promise of { answer } or { refusal }, or of null where a newer request of the
 * same kind, or another text, came first. A new text ends the work on the old one at once.
 */
export class TextWork {
  #worker = null;
  #number = 0;
  #running = null; // { id, request, resolve }
  #waiting = new Map(); // by what is asked
  #text = null;
  #listeners = [];
  summary = null;
  refusal = null;

  subscribe(listener) {
    this.#listeners.push(listener);
  }

  async read({ source, unit, window, sequences }) {
    const text = { source, unit, window, sequences };
    if (this.#text !== null && Object.keys(text).every((part) => text[part] === this.#text[part])) return;
    this.#text = text;
    this.#restart();
    this.summary = this.refusal = null;
    this.#tell();
    const reply = await this.ask({ ask: "read", text });
    if (reply === null) return;
    this.summary = reply.answer ?? null;
    this.refusal = reply.refusal ?? null;
    this.#tell();
  }

  #tell() {
    for (const listener of this.#listeners) listener();
  }

  ask(request) {
    this.#waiting.get(request.ask)?.resolve(null);
    return new Promise((resolve) => {
      this.#waiting.set(request.ask, { request, resolve });
      this.#next();
    });
  }

  #restart() {
    for (const { resolve } of this.#waiting.values()) resolve(null);
    this.#waiting.clear();
    if (this.#running === null) return;
    this.#running.resolve(null);
    this.#running = null;
    this.#worker?.terminate();
    this.#worker = null;
  }

  #next() {
    if (this.#running !== null || this.#waiting.size === 0) return;
    const [kind, { request, resolve }] = this.#waiting.entries().next().value;
    this.#waiting.delete(kind);
    const id = ++this.#number;
    this.#running = { id, request, resolve };
    this.#start();
    if (this.#worker === null) this.#done({ id, refusal: NO_WORKERS });
    else this.#worker.postMessage({ role: "text", id, ...request });
  }

  #start() {
    if (this.#worker !== null) return;
    this.#worker = newWorker();
    if (this.#worker === null) return;
    this.#worker.onmessage = ({ data }) => this.#done(data);
    this.#worker.onerror = ({ message }) => this.#done({ id: this.#running?.id, refusal: `The work on the text broke off: ${message}` });
  }

  #done({ id, ...reply }) {
    if (this.#running === null || this.#running.id !== id) return;
    const { resolve } = this.#running;
    this.#running = null;
    resolve(reply);
    this.#next();
  }
}

const works = new WeakMap();

/** The work on the text of a store's state, shared by the panels. */
export function textWork(store) {
  if (!works.has(store)) works.set(store, new TextWork());
  return works.get(store);
}
