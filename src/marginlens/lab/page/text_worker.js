// The worker of the next-token tab.

/** Answer the messages of a worker's scope. */
export function startTextWorker(scope) {
  scope.onmessage = ({ data }) => scope.postMessage({ id: data.id });
}
