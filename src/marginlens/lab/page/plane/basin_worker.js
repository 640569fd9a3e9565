// The worker that labels basins: it is given a picture of starts once, then pixels of it piece by piece.

import { basinField, labelPixels } from "../../kernels/basins.js";
import { readProblem } from "../../kernels/problem.js";

/** The picture of a request { problem, optima, settings }, the problem in its JSON form; see `basinField`. */
export function requestedField({ problem, optima, settings }) {
  return basinField(readProblem(problem), optima, settings);
}

/**
 * Answer messages: { generation, request } is a new picture, { generation, pixels } asks for labels, which come back as
 * { generation, pixels, labels }. Pixels of another generation than that of the picture are left out.
 */
export function startWorker(scope) {
  let field = null;
  let current = null;
  scope.onmessage = ({ data }) => {
    if (data.request) {
      field = requestedField(data.request);
      current = data.generation;
    } else if (data.generation === current) {
      const labels = labelPixels(field, data.pixels);
      scope.postMessage({ generation: current, pixels: data.pixels, labels });
    }
  };
}
