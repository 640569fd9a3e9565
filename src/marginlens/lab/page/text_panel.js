// Texts and how they go on.

export function mountTextInput() {
  return { update() {} };
}

export function mountContinuation() {
  return { update() {} };
}
