// Which theorem applies.

export function mountTheorems() {
  return { update() {} };
}
