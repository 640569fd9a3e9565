// The compiled core and its words as the page has them, for modules of the page that run in node, and what tests do with these.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const lab = new URL("../../src/marginlens/lab/", import.meta.url);
const file = (name) => readFileSync(new URL(name, lab));
const module = new WebAssembly.Module(file("core.wasm"));
globalThis.labCore = { module, instance: new WebAssembly.Instance(module) };
globalThis.labWords = JSON.parse(readFileSync(process.env.MARGINLENS_LAB_WORDS)); // written by lab_kernels.py
globalThis.labPresets = JSON.parse(file("presets.json"));

/** A module by its path beside the page's own: "state.js", "../kernels/basins.js". */
export const load = (path) => import(new URL(path, new URL("page/", lab)));

/** Fail unless numbers, or lists of them, agree relative to the larger of 1 and what is wanted. */
export function near(found, wanted, tolerance = 1e-9) {
  if (!Array.isArray(wanted)) return assert.ok(Math.abs(found - wanted) <= tolerance * Math.max(1, Math.abs(wanted)), `${found} is not ${wanted}`);
  assert.equal(found.length, wanted.length);
  wanted.forEach((entry, k) => near(found[k], entry, tolerance));
}
