// The priority graph.

export function mountPriorityPicture() {
  return { update() {} };
}
