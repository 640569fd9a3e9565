// The entry of workers: the first message has the compiled core, the second says by its `role` whose work it is, and goes on to that
// module with all that follow.

import { startWorker as startBasinWorker } from "./plane/basin_worker.js";
import { startTextWorker } from "./text/text_worker.js";

const STARTS = { text: startTextWorker };

/** Wait for the first messages of a worker's scope; without a role it is for the basins. */
export function startWorker(scope) {
  scope.onmessage = ({ data }) => {
    if (data.core) {
      globalThis.labCore = { module: data.core, instance: new WebAssembly.Instance(data.core) };
      return;
    }
    scope.onmessage = null;
    (STARTS[data.role] ?? startBasinWorker)(scope);
    scope.dispatchEvent(new MessageEvent("message", { data }));
  };
}
