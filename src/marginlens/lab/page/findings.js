// Limits and certificates.

export function mountLimits() {
  return { update() {} };
}

export function mountCertificate() {
  return { update() {} };
}
