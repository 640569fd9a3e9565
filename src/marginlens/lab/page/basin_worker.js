// The worker that labels basins.

export function startWorker() {}
