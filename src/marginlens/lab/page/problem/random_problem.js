// Random problems: tokens and head uniform on the unit circle, the same for the same seed on every machine.

/** Numbers in [0, 1) from a whole number: the 32-bit generator mulberry32. */
function generatorOf(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** { tokens, labels, head } with `inputs` × `perInput` tokens and labels +1 and −1, to four digits so that people can read them. */
export function randomProblem(inputs, perInput, seed) {
  const next = generatorOf(seed);
  const point = () => {
    const angle = 2 * Math.PI * next();
    return [Math.cos(angle), Math.sin(angle)].map((entry) => Number(entry.toFixed(4)));
  };
  const head = point();
  return {
    tokens: Array.from({ length: inputs }, () => Array.from({ length: perInput }, point)),
    labels: Array.from({ length: inputs }, () => (next() < 0.5 ? 1 : -1)),
    head,
  };
}
