// The clipboard.

/** Copy a text; resolves to whether the browser let it be copied. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
