// The compiled core as the page has it, for modules of the page that run in node.

import { readFileSync } from "node:fs";

const module = new WebAssembly.Module(readFileSync(new URL("../../src/marginlens/lab/core.wasm", import.meta.url)));
globalThis.labCore = { module, instance: new WebAssembly.Instance(module) };
