// The plane.

export function mountPlane() {
  return { update() {} };
}
