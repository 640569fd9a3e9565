// The compiled core and its words as the page has them, for modules of the page that run in node.

import { readFileSync } from "node:fs";

const file = (name) => readFileSync(new URL(`../../src/marginlens/lab/${name}`, import.meta.url));
const module = new WebAssembly.Module(file("core.wasm"));
globalThis.labCore = { module, instance: new WebAssembly.Instance(module) };
globalThis.labWords = { ...JSON.parse(file("words.json")), outcome: JSON.parse(file("../theory/outcome.json")), script: String(file("python_script.txt")) };
globalThis.labPresets = JSON.parse(file("presets.json"));
