// The compiled core: the functions of core.wasm, called by the names of the parameters that they declare in C++.
//
// Whoever starts the page's code puts { module, instance } of core.wasm into globalThis.labCore before the first call.

const SECTION = "marginlens"; // of the file, with the declarations
const FAILURES = { [-1000]: "not enough memory", [-1001]: "arrays whose sizes do not fit each other" };
const VIEWS = { float64: Float64Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array };

let declared = null;

/** The number of entries of an axis: a size, or a sum or product of sizes. */
function sizeOf(axis, given) {
  const factor = (text) => (/^\d+$/.test(text) ? Number(text) : given[text]);
  const product = (text) => text.split("*").reduce((total, part) => total * factor(part), 1);
  return axis.split("+").reduce((total, part) => total + product(part), 0);
}

/**
 * Call a function of the core with its numbers, sizes and arrays by name; returns what it returns.
 * Arrays are flat. Those that it writes are changed in place; whole numbers may come in any array of numbers.
 */
export function callCore(name, given) {
  const { module, instance } = globalThis.labCore;
  const { exports } = instance;
  declared ??= JSON.parse(new TextDecoder().decode(WebAssembly.Module.customSections(module, SECTION)[0])).functions;
  const bottom = exports.allocate(0);
  const passed = declared[name].map(({ name: parameter, type, shape }) => {
    const value = given[parameter];
    if (value === undefined) throw new TypeError(`${name} was called without ${parameter}.`);
    if (!shape) return type === "float64" ? value : BigInt(value);
    const count = shape.reduce((total, axis) => total * sizeOf(axis, given), 1);
    if (value.length !== count) throw new RangeError(`${parameter} of ${name} must have ${count} entries; got ${value.length}.`);
    return exports.allocate(count * VIEWS[type].BYTES_PER_ELEMENT);
  });
  const view = (k) => new VIEWS[declared[name][k].type](exports.memory.buffer, passed[k], given[declared[name][k].name].length);
  declared[name].forEach(({ name: parameter, type, shape }, k) => {
    if (shape) view(k).set(type === "int64" && !(given[parameter] instanceof BigInt64Array) ? Array.from(given[parameter], BigInt) : given[parameter]);
  });
  const result = Number(exports[name](...passed));
  declared[name].forEach(({ name: parameter, type, written }, k) => {
    if (!written) return;
    const isConverted = type === "int64" && !(given[parameter] instanceof BigInt64Array);
    given[parameter].set(isConverted ? Array.from(view(k), Number) : view(k));
  });
  exports.release(bottom);
  if (result in FAILURES) throw new Error(`${name}: ${FAILURES[result]}.`);
  return result;
}
