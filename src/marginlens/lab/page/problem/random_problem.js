// Random problems: tokens and head uniform on the unit circle, the same for the same seed on every machine.

import { drawsOf } from "../../kernels/draws.js";

/** { tokens, labels, head } with `inputs` × `perInput` tokens and labels +1 and −1, to four digits so that people can read them. */
export function randomProblem(inputs, perInput, seed) {
  const next = drawsOf(seed);
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
