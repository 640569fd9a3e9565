// Workers that run the page's own code beside it.

let address = null; // of the bundle, made when the first worker starts

/** What gives a worker the page's words before the bundle runs. */
function wordsScript() {
  return `globalThis.labWords = ${JSON.stringify(globalThis.labWords)};\n`;
}

/**
 * A worker that runs the page's bundle with the page's core, where `startWorker` of worker.js answers its messages by their `role`; null
 * where the browser allows none.
 */
export function newWorker() {
  if (typeof Worker === "undefined") return null;
  try {
    address ??= URL.createObjectURL(new Blob([wordsScript(), document.getElementById("bundle").textContent], { type: "text/javascript" }));
    const worker = new Worker(address);
    worker.postMessage({ core: globalThis.labCore.module });
    return worker;
  } catch {
    return null;
  }
}
