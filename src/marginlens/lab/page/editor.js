// The editor of inputs and tokens.

export function mountEditor() {
  return { update() {} };
}
