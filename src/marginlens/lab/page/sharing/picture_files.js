// Pictures of what is seen, as SVG that opens in other programs and as PNG of twice the size.

import { exampleName } from "../examples.js";

const GAP = 16; // px around and between the parts
const CAPTION_HEIGHT = 22;
const PNG_SCALE = 2;
const MAX_PNG_SIDE = 8192; // px, what browsers draw

function escaped(text) {
  return text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);
}

/** The size that an SVG text gives itself: { width, height }, from its attributes or else its view box. */
export function sizeOf(svg) {
  const opening = svg.match(/<svg\b[^>]*>/)?.[0] ?? "";
  const number = (name) => Number(opening.match(new RegExp(`\\s${name}="([\\d.]+)(?:px)?"`))?.[1]);
  const box = (opening.match(/\sviewBox="([^"]*)"/)?.[1] ?? "").trim().split(/[\s,]+/).map(Number);
  return { width: number("width") || box[2] || 300, height: number("height") || box[3] || 150 };
}

/** Names of fonts that every program has. */
function withGenericFonts(svg) {
  return svg.replace(/(font-family(?:="|:\s*))((?:&quot;|[^";])*)/g, (_, name, fonts) => name + (/mono/i.test(fonts) ? "monospace" : "sans-serif"));
}

/**
 * Pictures side by side as the text of one SVG file, with a caption below.
 * parts: texts of SVG files; colours: { ground, ink } of the background and the caption.
 */
export function joined(parts, caption, { ground, ink }) {
  const sizes = parts.map(sizeOf);
  const width = sizes.reduce((total, size) => total + size.width + GAP, GAP);
  const height = Math.max(...sizes.map((size) => size.height)) + CAPTION_HEIGHT + 2 * GAP;
  let x = GAP;
  const nested = parts.map((part, k) => {
    const inner = part.slice(part.indexOf("<svg")).replace(/<svg\b/, `<svg x="${x}" y="${GAP}"`);
    x += sizes[k].width + GAP;
    return withGenericFonts(inner);
  });
  const text = `<text x="${GAP}" y="${height - GAP}" font-family="sans-serif" font-size="13" fill="${ink}">${escaped(caption)}</text>`;
  const opening = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">`;
  return `${opening}<rect width="${width}" height="${height}" fill="${ground}"/>${nested.join("")}${text}</svg>\n`;
}

/** What the picture shows, in words. */
export function captionOf(state) {
  if (state.tab === "text") return `marginlens lab: priorities${state.text.last === null ? "" : ` after “${state.text.last}”`}`;
  const name = exampleName(state);
  return `marginlens lab: ${name ? `${name}, ` : ""}step ${state.playback.step}`;
}

/** The PNG of an SVG text, as a Blob. */
export async function pngOf(svg) {
  const { width, height } = sizeOf(svg);
  const scale = Math.min(PNG_SCALE, MAX_PNG_SIDE / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"));
}
