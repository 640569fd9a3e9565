"use strict";
// The part of a browser's document that the pages' scripts use; whatever else they ask for throws.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const strict = {
    get(target, key, self) {
      if (!(key in target) && typeof key === "string") throw new TypeError(`the fake document has no ${key}`);
      return Reflect.get(target, key, self);
    },
    set(target, key, value, self) {
      if (!(key in target)) throw new TypeError(`the fake document cannot set ${key}`);
      return Reflect.set(target, key, value, self);
    },
  };
  const later = []; // what a browser does once the running script has ended
  const page = { focused: null, scrolledTo: null, hash: "", outside: [] };

  class Element {
    constructor(name, namespaceURI) {
      Object.assign(this, { name, namespaceURI, parent: null, nodes: [], given: new Map(), hears: [] });
      this.style = new Proxy({ background: "" }, strict);
      return new Proxy(this, strict);
    }

    get id() { return this.getAttribute("id") ?? ""; }
    set id(value) { this.setAttribute("id", value); }
    get tabIndex() { return Number(this.getAttribute("tabindex") ?? (this.isControl ? 0 : -1)); }
    set tabIndex(value) { this.setAttribute("tabindex", value); }
    get textContent() { return this.nodes.map((one) => one instanceof Element ? one.textContent : one).join(""); }
    set textContent(value) { this.replaceChildren(value); }
    get isControl() { return this.name === "button" || (this.name === "a" && this.given.has("href")); }
    get elements() { return this.nodes.filter((one) => one instanceof Element).flatMap((one) => [one, ...one.elements]); }
    get above() { return this.parent ? [this.parent, ...this.parent.above] : []; }
    get isShown() { return this === root || this.above.includes(root); }

    getAttribute(key) { return this.given.get(key) ?? null; }
    setAttribute(key, value) { this.given.set(key, String(value)); }
    addEventListener(kind, act) { this.hears.push([kind, act]); }
    scrollIntoView() { page.scrolledTo = this; }
    focus() { if (this.isShown && (this.isControl || this.given.has("tabindex"))) page.focused = this; }
    querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
    querySelectorAll(selector) { return this.elements.filter((one) => matches(one, selector.split(" "))); }

    append(...nodes) {
      nodes.forEach((one) => {
        if (!(one instanceof Element)) return this.nodes.push(String(one));
        if (one.parent) one.parent.nodes.splice(one.parent.nodes.indexOf(one), 1);
        one.parent = this;
        return this.nodes.push(one);
      });
    }

    replaceChildren(...nodes) {
      this.nodes.forEach((one) => { if (one instanceof Element) one.parent = null; });
      this.nodes.length = 0;
      this.append(...nodes);
      if (!page.focused.isShown) page.focused = body;
    }
  }

  // Selectors: a name, then any of .class, #id and [key="value"]; a space for "somewhere inside".
  function matches(element, words) {
    const [, name, rest] = /^([a-z0-9]*)(.*)$/.exec(words[words.length - 1]);
    const parts = rest.match(/\.[\w-]+|#[\w-]+|\[[\w-]+="[^"]*"\]/g) ?? [];
    if (parts.join("") !== rest) throw new TypeError(`the fake document cannot look for ${words.join(" ")}`);
    const fits = parts.every((part) => {
      if (part[0] === ".") return (element.getAttribute("class") ?? "").split(" ").includes(part.slice(1));
      if (part[0] === "#") return element.id === part.slice(1);
      const [, key, value] = /^\[([\w-]+)="([^"]*)"\]$/.exec(part);
      return element.getAttribute(key) === value;
    });
    if ((name && name !== element.name) || !fits) return false;
    const outer = words.slice(0, -1);
    return !outer.length || element.above.some((one) => matches(one, outer));
  }

  const root = new Element("html", null), body = new Element("body", null);
  page.focused = body;

  globalThis.document = new Proxy({
    body,
    get activeElement() { return page.focused; },
    getElementById: (id) => (id && root.elements.find((one) => one.id === id)) || null,
    createElement: (name) => new Element(name, null),
    createElementNS(space, name) {
      if (space !== SVG) throw new TypeError(`the fake document does not know ${space}`);
      return new Element(name, space);
    },
  }, strict);
  globalThis.window = new Proxy({ addEventListener: (kind, act) => page.outside.push([kind, act]) }, strict);
  globalThis.location = new Proxy({
    get hash() { return page.hash; },
    set hash(place) {
      const next = place && place[0] !== "#" ? `#${place}` : place;
      if (next === page.hash) return;
      page.hash = next;
      if (document.getElementById(next.slice(1))) page.focused = body; // a browser goes on from there
      later.push(() => page.outside.forEach(([kind, act]) => { if (kind === "hashchange") act({ type: kind }); }));
    },
  }, strict);

  function happen(target, type, key = null) {
    let prevented = false;
    const event = new Proxy({ type, key, target, preventDefault() { prevented = true; } }, strict);
    [target, ...target.above].forEach((one) => one.hears.forEach(([kind, act]) => { if (kind === type) act(event); }));
    return !prevented;
  }
  function activate(element) {
    if (happen(element, "click") && element.name === "a" && element.given.has("href")) location.hash = element.getAttribute("href");
  }
  const settle = () => { while (later.length) later.shift()(); };
  const grow = ([name, given, nodes], element = new Element(name, null)) => {
    Object.entries(given).forEach(([key, value]) => element.setAttribute(key, value));
    element.append(...nodes.map((one) => typeof one === "string" ? one : one[0] === "body" ? grow(one, body) : grow(one)));
    return element;
  };
  const told = (one) => ({
    name: one.name, text: one.textContent, given: Object.fromEntries(one.given), background: one.style.background, stop: one.tabIndex, svg: one.namespaceURI === SVG,
  });

  // What a reader does, for the tests.
  globalThis.reader = {
    open(tree, place) { grow(tree, root); page.hash = place; },
    see: (selector) => JSON.stringify(root.querySelectorAll(selector).map(told)),
    tables: (selector) => JSON.stringify(root.querySelectorAll(selector).map((table) =>
      table.querySelectorAll("tr").map((row) => row.nodes.map((one) => one.textContent)))),
    where: () => JSON.stringify({ ...told(page.focused), hash: page.hash, scrolled: page.scrolledTo ? page.scrolledTo.id : null }),
    click(selector, place) {
      const element = root.querySelectorAll(selector)[place];
      page.focused = body;
      element.focus();
      activate(element);
      settle();
    },
    focus: (selector, place) => root.querySelectorAll(selector)[place].focus(),
    press(key) {
      const element = page.focused, unhindered = happen(element, "keydown", key);
      if (unhindered && element.isControl && (key === "Enter" || (key === " " && element.name === "button"))) activate(element);
      settle();
      return unhindered;
    },
    visit(place) {
      location.hash = place;
      settle();
    },
  };
})();
