// Curves along the run.

export function mountCurves() {
  return { update() {} };
}
