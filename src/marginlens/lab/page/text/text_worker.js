// The worker of the next-token tab, and the page's side of it: requests of which the newest of each kind is answered.

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
  #asked = new Map(); // the newest request of each kind, { id, resolve }
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
    this.#worker?.terminate();
    this.#worker = null;
    for (const kind of this.#asked.keys()) this.#resolve(kind, null);
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
    this.#resolve(request.ask, null);
    const id = ++this.#number;
    return new Promise((resolve) => {
      this.#asked.set(request.ask, { id, resolve });
      this.#worker ??= this.#started();
      if (this.#worker === null) this.#resolve(request.ask, { refusal: NO_WORKERS });
      else this.#worker.postMessage({ role: "text", id, ...request });
    });
  }

  #resolve(kind, reply) {
    const asked = this.#asked.get(kind);
    this.#asked.delete(kind);
    asked?.resolve(reply);
  }

  #started() {
    const worker = newWorker();
    if (worker === null) return null;
    worker.onmessage = ({ data: { id, ...reply } }) => {
      for (const [kind, asked] of this.#asked) if (asked.id === id) this.#resolve(kind, reply);
    };
    worker.onerror = ({ message }) => {
      for (const kind of this.#asked.keys()) this.#resolve(kind, { refusal: `The work on the text broke off: ${message}` });
    };
    return worker;
  }
}

const works = new WeakMap();

/** The work on the text of a store's state, shared by the panels. */
export function textWork(store) {
  if (!works.has(store)) works.set(store, new TextWork());
  return works.get(store);
}
