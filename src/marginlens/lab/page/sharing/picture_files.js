// Pictures of what is seen, with its words below, as SVG that opens in other programs, as PNG and as a short film.

import { exampleName } from "../examples.js";

const WIDTH = 1280; // px of every picture
const GAP = 28; // px around what is seen
const TYPE_SIZE = 22; // px of the words
const LINE_HEIGHT = 1.4 * TYPE_SIZE;
const MOST_LETTERS = Math.floor((WIDTH - 2 * GAP) / (0.54 * TYPE_SIZE)); // in a line
const PNG_SCALE = 1.5; // 1920 px wide
const [FILM_SECONDS, LAST_SECONDS, FRAMES_PER_SECOND] = [6, 1, 20];
const FILM_TYPES = ["video/webm;codecs=vp9", "video/webm", "video/mp4"];

function escaped(text) {
  return text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);
}

/** The size that an SVG text gives itself, and its view box: { width, height, box }, the size from its attributes or else the view box. */
export function sizeOf(svg) {
  const opening = svg.match(/<svg\b[^>]*>/)?.[0] ?? "";
  const number = (name) => Number(opening.match(new RegExp(`\\s${name}="([\\d.]+)(?:px)?"`))?.[1]);
  const box = (opening.match(/\sviewBox="([^"]*)"/)?.[1] ?? "").trim().split(/[\s,]+/).map(Number);
  const [width, height] = [number("width") || box[2] || 300, number("height") || box[3] || 150];
  return { width, height, box: box.length === 4 ? box.join(" ") : `0 0 ${width} ${height}` };
}

/** Names of fonts that every program has. */
function withGenericFonts(svg) {
  return svg.replace(/(font-family(?:="|:\s*))((?:&quot;|[^";])*)/g, (_, name, fonts) => name + (/mono/i.test(fonts) ? "monospace" : "sans-serif"));
}

/** A text in lines of at most so many letters. */
function wrapped(text) {
  return text.split(/\s+/).reduce((lines, word) => {
    const longer = `${lines[lines.length - 1]} ${word}`;
    return lines[0] !== "" && longer.length > MOST_LETTERS ? [...lines, word] : [...lines.slice(0, -1), longer.trim()];
  }, [""]);
}

/** A picture as the text of an SVG file: what is seen, the text of one too, over the width, and sentences below; colours: { ground, ink }. */
export function framed(seen, sentences, { ground, ink }) {
  const { width, height, box } = sizeOf(seen);
  const shown = { width: WIDTH - 2 * GAP, height: ((WIDTH - 2 * GAP) * height) / width };
  const place = `x="${GAP}" y="${GAP}" width="${shown.width}" height="${shown.height}" viewBox="${box}"`;
  const opening = (text) => text.replace(/\s(?:x|y|width|height|viewBox)="[^"]*"/g, "").replace("<svg", `<svg ${place}`);
  const inner = withGenericFonts(seen.slice(seen.indexOf("<svg")).replace(/<svg\b[^>]*>/, opening));
  const lines = sentences.flatMap(wrapped);
  const below = (k) => GAP + shown.height + (k + 1) * LINE_HEIGHT;
  const words = lines.map((line, k) => `<text x="${GAP}" y="${below(k)}" font-family="sans-serif" font-size="${TYPE_SIZE}" fill="${ink}">${escaped(line)}</text>`);
  const whole = Math.ceil(below(lines.length));
  const frame = `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${whole}" viewBox="0 0 ${WIDTH} ${whole}">`;
  return `${frame}<rect width="${WIDTH}" height="${whole}" fill="${ground}"/>${inner}${words.join("")}</svg>\n`;
}

/** What the picture shows, in words. */
export function captionOf(state) {
  if (state.tab === "growth") return `marginlens lab: rate ${state.growth.rate}, weight decay ${state.growth.decay}, QK-clip ${state.growth.clip || "none"}`;
  const name = exampleName(state);
  return `marginlens lab: ${name ? `${name}, ` : ""}step ${state.playback.step}`;
}

/** A canvas for an SVG text. */
function canvasFor(svg, scale) {
  const { width, height } = sizeOf(svg);
  return Object.assign(document.createElement("canvas"), { width: width * scale, height: Math.round(height * scale) });
}

/** An SVG text drawn on a canvas, over its width. */
async function drawnOn(canvas, svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, (canvas.width * image.height) / image.width);
}

/** The PNG of a picture, as a Blob. */
export async function pngOf(svg) {
  const canvas = canvasFor(svg, PNG_SCALE);
  await drawnOn(canvas, svg);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"));
}

/** A film of six seconds, as a Blob, null where the browser records none; frame(share) gives the picture at a share of it. */
export async function filmOf(frame) {
  const mimeType = FILM_TYPES.find((type) => globalThis.MediaRecorder?.isTypeSupported(type));
  if (!mimeType) return null;
  const first = frame(0);
  const canvas = canvasFor(first, 1);
  await drawnOn(canvas, first);
  const recorder = new MediaRecorder(canvas.captureStream(FRAMES_PER_SECOND), { mimeType, videoBitsPerSecond: 4e6 });
  const parts = [];
  recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
  const stopped = new Promise((resolve) => recorder.addEventListener("stop", resolve));
  recorder.start();
  const begun = performance.now();
  for (let seconds = 0; seconds < FILM_SECONDS + LAST_SECONDS; seconds = (performance.now() - begun) / 1000) {
    await drawnOn(canvas, frame(Math.min(1, seconds / FILM_SECONDS)));
    await new Promise((resolve) => setTimeout(resolve, 1000 / FRAMES_PER_SECOND / 2));
  }
  recorder.stop();
  await stopped;
  return new Blob(parts, { type: mimeType.split(";")[0] });
}
