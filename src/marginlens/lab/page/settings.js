// Settings of the training.

export function mountSettings() {
  return { update() {} };
}
