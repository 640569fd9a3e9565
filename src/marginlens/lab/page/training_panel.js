// Training of next tokens.

export function mountTraining() {
  return { update() {} };
}
