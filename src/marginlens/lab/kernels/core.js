// The compiled core: the functions of core.wasm, called by the names of the parameters that they declare in C++.
//
// Whoever starts the page's code puts { module, instance } of core.wasm into globalThis.labCore before the first call.

const SECTION = "marginlens"; // of the file, with the declarations
const FAILURES = { [-1000]: "not enough memory", [-1001]: "arrays whose sizes do not fit each other" };
const BYTES = { float64: 8, int64: 8, bool: 1 };

let declared = null; // parameters by function: { name, type, written, count }, count(given) being the entries of an array
let views = null; // of the memory, made anew when it has grown

/** The entries of an array with a shape, whose axes are sizes or sums of products of them, from the sizes by name. */
function counter(shape) {
  const product = (text) => text.split("*").map((part) => (/^\d+$/.test(part) ? () => Number(part) : (given) => given[part]));
  const axes = shape.map((axis) => axis.split("+").map(product));
  const sizeOf = (sum, given) => sum.reduce((total, factors) => total + factors.reduce((size, factor) => size * factor(given), 1), 0);
  return (given) => axes.reduce((total, sum) => total * sizeOf(sum, given), 1);
}

function parametersOf(name) {
  if (declared === null) {
    const [section] = WebAssembly.Module.customSections(globalThis.labCore.module, SECTION);
    declared = JSON.parse(new TextDecoder().decode(section)).functions;
    for (const parameters of Object.values(declared)) for (const one of parameters) one.count = one.shape && counter(one.shape);
  }
  return declared[name];
}

function memory() {
  const { buffer } = globalThis.labCore.instance.exports.memory;
  if (views?.buffer !== buffer)
    views = { buffer, float64: new Float64Array(buffer), int32: new Int32Array(buffer), bool: new Uint8Array(buffer) };
  return views;
}

/** Copy whole numbers into memory as 64 bits each, or from there. */
function copyWholeNumbers(values, address, isWritten) {
  const { int32 } = memory();
  for (let k = 0, at = address / 4; k < values.length; k++, at += 2) {
    if (isWritten) values[k] = int32[at + 1] * 2 ** 32 + (int32[at] >>> 0);
    else [int32[at], int32[at + 1]] = [values[k] | 0, Math.floor(values[k] / 2 ** 32)];
  }
}

/**
 * Call a function of the core with its numbers, sizes, arrays and structs by name; returns what it returns.
 * Arrays are flat, structs have their fields by name. Those that it writes are changed in place; whole numbers may come in any array of numbers.
 */
export function callCore(name, given) {
  const { exports } = globalThis.labCore.instance;
  const parameters = parametersOf(name);
  const structs = parameters.filter(({ fields }) => fields).map(({ name: struct, fields }) => ({ fields, values: given[struct], struct }));
  for (const { fields, values, struct } of structs) given = { ...given, [struct]: Float64Array.from(fields, (field) => values[field]) };
  const bottom = exports.allocate(0);
  const passed = parameters.map(({ name: parameter, type, count }) => {
    const value = given[parameter];
    if (value === undefined) throw new TypeError(`${name} was called without ${parameter}.`);
    if (!count) return type === "float64" ? value : BigInt(value);
    const size = count(given);
    if (value.length !== size) throw new RangeError(`${parameter} of ${name} must have ${size} entries; got ${value.length}.`);
    const address = exports.allocate(size * BYTES[type]);
    if (address === 0) throw new Error(`${name}: ${FAILURES[-1000]}.`);
    return address;
  });
  parameters.forEach(({ name: parameter, type, count }, k) => {
    if (!count) return;
    if (type === "int64") copyWholeNumbers(given[parameter], passed[k], false);
    else memory()[type].set(given[parameter], passed[k] / BYTES[type]);
  });
  const result = Number(exports[name](...passed));
  parameters.forEach(({ name: parameter, type, written }, k) => {
    if (!written) return;
    const first = passed[k] / BYTES[type];
    if (type === "int64") copyWholeNumbers(given[parameter], passed[k], true);
    else given[parameter].set(memory()[type].subarray(first, first + given[parameter].length));
  });
  for (const { fields, values, struct } of structs) fields.forEach((field, k) => (values[field] = given[struct][k]));
  exports.release(bottom);
  if (result in FAILURES) throw new Error(`${name}: ${FAILURES[result]}.`);
  return result;
}
