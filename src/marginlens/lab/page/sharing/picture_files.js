// Pictures of what is seen, 16:9 with words beside it, as SVG that opens in other programs, as PNG and as a short film.

import { exampleName } from "../examples.js";

const [WIDTH, HEIGHT] = [1280, 720]; // px
const GAP = 28; // px around and between the parts
const MOST_OF_WIDTH = 0.62; // that what is seen takes
const LETTER_SHARE = 0.54; // of the type size that a letter is wide, about
const PNG_SCALE = 1.5; // 1920 × 1080
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
function wrapped(text, letters) {
  return text.split(/\s+/).reduce((lines, word) => {
    const longer = `${lines[lines.length - 1]} ${word}`;
    return lines[0] !== "" && longer.length > letters ? [...lines, word] : [...lines.slice(0, -1), longer.trim()];
  }, [""]);
}

/** Rows of words in a column, as SVG elements and the height that they take: { drawn, height }; `zoom` of their type sizes. */
function column(rows, left, ink, zoom) {
  let y = GAP;
  const drawn = rows.flatMap(({ text, size: whole = 19, isBold = false, colour = null }) => {
    const size = zoom * whole;
    const indent = colour === null ? 0 : 1.4 * size;
    const square = colour === null ? [] : [`<rect x="${left}" y="${y + 0.35 * size}" width="${0.8 * size}" height="${0.8 * size}" rx="2" fill="${colour}"/>`];
    const lines = wrapped(text, Math.floor((WIDTH - left - GAP - indent) / (LETTER_SHARE * size)));
    const words = lines.map((line) => textElement(line, left + indent, (y += 1.3 * size) - 0.2 * size, size, ink, isBold));
    y += 0.45 * size;
    return [...square, ...words];
  });
  return { drawn, height: y };
}

function textElement(words, x, y, size, ink, isBold = false) {
  return `<text x="${x}" y="${y}" font-family="sans-serif" font-size="${size}"${isBold ? ' font-weight="700"' : ""} fill="${ink}">${escaped(words)}</text>`;
}

/**
 * A picture of 16:9 as the text of an SVG file: what is seen at the left, and words beside it, as small as they must be, with a caption below.
 * seen: the text of an SVG file; rows: [{ text, size, isBold, colour }], those with a colour behind a square of it; colours: { ground, ink }.
 */
export function card(seen, rows, caption, { ground, ink }) {
  const { width, height, box } = sizeOf(seen);
  const scale = Math.min((HEIGHT - 2 * GAP) / height, (WIDTH * MOST_OF_WIDTH) / width);
  const [shownWidth, shownHeight] = [width * scale, height * scale];
  const place = `x="${GAP}" y="${(HEIGHT - shownHeight) / 2}" width="${shownWidth}" height="${shownHeight}" viewBox="${box}"`;
  const opening = (text) => text.replace(/\s(?:x|y|width|height|viewBox)="[^"]*"/g, "").replace("<svg", `<svg ${place}`);
  const inner = withGenericFonts(seen.slice(seen.indexOf("<svg")).replace(/<svg\b[^>]*>/, opening));
  const left = 2 * GAP + shownWidth;
  const zooms = Array.from({ length: 9 }, (_, k) => 1 - 0.07 * k);
  const columns = zooms.map((zoom) => column(rows.filter(({ text }) => text !== ""), left, ink, zoom));
  const { drawn } = columns.find((one) => one.height < HEIGHT - 2 * GAP) ?? columns[columns.length - 1];
  const frame = `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}">`;
  const below = textElement(caption, left, HEIGHT - GAP, 15, ink);
  return `${frame}<rect width="${WIDTH}" height="${HEIGHT}" fill="${ground}"/>${inner}${drawn.join("")}${below}</svg>\n`;
}

/** What the picture shows, in words. */
export function captionOf(state) {
  if (state.tab === "growth") return `marginlens lab: rate ${state.growth.rate}, weight decay ${state.growth.decay}, QK-clip ${state.growth.clip || "none"}`;
  const name = exampleName(state);
  return `marginlens lab: ${name ? `${name}, ` : ""}step ${state.playback.step}`;
}

/** An SVG text drawn on a canvas. */
async function drawnOn(canvas, svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
}

/** The PNG of a card, as a Blob. */
export async function pngOf(svg) {
  const canvas = Object.assign(document.createElement("canvas"), { width: WIDTH * PNG_SCALE, height: HEIGHT * PNG_SCALE });
  await drawnOn(canvas, svg);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"));
}

/** A film of six seconds, as a Blob, null where the browser records none; frame(share) gives the card at a share of it. */
export async function filmOf(frame) {
  const mimeType = FILM_TYPES.find((type) => globalThis.MediaRecorder?.isTypeSupported(type));
  if (!mimeType) return null;
  const canvas = Object.assign(document.createElement("canvas"), { width: WIDTH, height: HEIGHT });
  await drawnOn(canvas, frame(0));
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
