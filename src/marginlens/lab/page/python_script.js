// The state as a Python script.

export function pythonScript() {
  return "";
}
