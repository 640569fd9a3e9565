// Maps between the plane and the pixels of its square: a window around the origin.

const MIN_HALF = 0.05;
const MAX_HALF = 1e6;

const MIN_SEGMENT_PIXELS = 0.8; // of a drawn path
const ARC_POINTS = 16;

/**
 * The map of a view { half } onto `side` × `side` pixels: { side, wide, half, far, toPixel(p), toPlane(pixel) }, half being half the height of
 * the window and far the norm of its corners. A picture that is `wide` times as wide as high has pixels left of 0 and right of `side`.
 */
export function planeScale({ half }, side, wide = 1) {
  const centre = side / 2;
  const unit = centre / half;
  const inside = (entry, most) => Math.min(most, Math.max(-most, entry));
  return {
    side, wide, half, far: half * Math.hypot(wide, 1),
    toPixel: (p) => [centre + unit * p[0], centre - unit * p[1]],
    toPlane: ([x, y]) => [inside((x - centre) / unit, wide * half), inside((centre - y) / unit, half)],
  };
}

/** p moved by shares of the view's width, right and up: what arrow keys do. */
export function moved(scale, p, right, up) {
  const [x, y] = scale.toPixel(p);
  return scale.toPlane([x + right * scale.side, y - up * scale.side]);
}

/** A coordinate rounded to what the view can show, so that dragged points have short numbers. */
export function rounded(scale, p) {
  const digits = Math.max(0, Math.ceil(-Math.log10(scale.half / scale.side)));
  return p.map((entry) => Number(entry.toFixed(Math.min(digits, 12))) + 0);
}

/** The view after zooming in by `factor`. */
export function zoomed(view, factor) {
  return { half: Number(Math.min(MAX_HALF, Math.max(MIN_HALF, view.half / factor)).toPrecision(4)) };
}

/** Half the width of a window that shows all points with some space around them: 1, 1.5, 2, 3, 4, 6 or 8 times a power of ten. */
export function fittingHalf(points) {
  const largest = 1.15 * points.reduce((most, p) => Math.max(most, Math.abs(p[0]), Math.abs(p[1])), 0);
  if (!(largest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(largest));
  const front = [1, 1.5, 2, 3, 4, 6, 8, 10].find((entry) => entry * power >= largest) ?? 10;
  return Math.min(MAX_HALF, Math.max(MIN_HALF, Number((front * power).toPrecision(4))));
}

/** Marks on an axis of the window, without zero: multiples of 1, 2 or 5 times a power of ten, three to five on either side of its height. */
export function axisTicks(half, wide = 1) {
  const power = 10 ** Math.floor(Math.log10(half / 3));
  const step = [1, 2, 5, 10].map((front) => front * power).find((entry) => half / entry <= 5.5);
  const found = [];
  const most = half * wide;
  for (let k = Math.ceil(-most / step); k * step <= most; k++) if (k !== 0 && Math.abs(k * step) < 0.97 * most) found.push(Number((k * step).toPrecision(12)));
  return found;
}

/** The point at which a ray from the origin leaves the view. */
export function rayEnd(scale, direction) {
  const [x, y] = direction.map(Math.abs);
  const length = scale.half / Math.max(x / scale.wide, y);
  return direction.map((entry) => entry * length);
}

/** The ends of the straight line through `point` along the unit vector `along`, beyond the view, as pixels. */
export function linePixels(scale, point, along) {
  const at = (length) => scale.toPixel([point[0] + length * along[0], point[1] + length * along[1]]);
  const length = scale.far + Math.hypot(...point);
  return [at(-length), at(length)];
}

/** Pixels around the sector of directions within `halfAngle` of `axis` and of norms from `radius` on, to the end of the view. */
export function sectorPixels(scale, axis, halfAngle, radius) {
  const middle = Math.atan2(axis[1], axis[0]);
  const arc = (size) =>
    Array.from({ length: ARC_POINTS + 1 }, (_, k) => {
      const angle = middle + halfAngle * ((2 * k) / ARC_POINTS - 1);
      return scale.toPixel([size * Math.cos(angle), size * Math.sin(angle)]);
    });
  return radius < scale.far ? [...arc(radius), ...arc(scale.far).reverse()] : [];
}

/** The `d` of a path through pixels. */
export function pathThrough(pixels, closed = false) {
  return pixels.map(([x, y], k) => `${k ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") + (closed && pixels.length ? "Z" : "");
}

/**
 * A path of points in the plane as it is drawn: { steps, pieces }, where pieces[k] belongs to steps[k]; points closer than a pixel to the
 * one before are left out. Of longer points, as joint runs have, the last two numbers count.
 */
export function drawnPath(scale, points, steps) {
  const found = { steps: [], pieces: [] };
  let last = null;
  points.forEach((point, k) => {
    const pixel = scale.toPixel([point[point.length - 2], point[point.length - 1]]);
    const far = last === null || Math.abs(pixel[0] - last[0]) + Math.abs(pixel[1] - last[1]) >= MIN_SEGMENT_PIXELS;
    if (!far && k < points.length - 1) return;
    const limited = pixel.map((entry) => Math.min(1e5, Math.max(-1e5, entry)).toFixed(1));
    found.pieces.push(`${last === null ? "M" : "L"}${limited[0]} ${limited[1]}`);
    found.steps.push(steps[k]);
    last = pixel;
  });
  return found;
}

/** The part of a drawn path up to a step, as `d`. */
export function pathUpTo({ steps, pieces }, step) {
  let count = 0;
  for (let high = steps.length; count < high; ) {
    const middle = (count + high) >> 1;
    if (steps[middle] <= step) count = middle + 1;
    else high = middle;
  }
  return pieces.slice(0, count).join("");
}

/** Corners of a marker of radius r around the origin: eight shapes, each with about the same area; the first is a circle. */
export function markerPath(kind, r) {
  const polygon = (count, turn, inner = 1) =>
    Array.from({ length: inner < 1 ? 2 * count : count }, (_, k, sides = inner < 1 ? 2 * count : count) => {
      const angle = turn + (2 * Math.PI * k) / sides;
      const size = inner < 1 && k % 2 ? inner : 1;
      return [size * Math.sin(angle), -size * Math.cos(angle)];
    });
  const shapes = [
    null,
    { corners: polygon(4, Math.PI / 4), size: 1.25 },
    { corners: polygon(3, 0), size: 1.45 },
    { corners: polygon(4, 0), size: 1.3 },
    { corners: polygon(3, Math.PI), size: 1.45 },
    { corners: polygon(5, 0), size: 1.15 },
    { corners: polygon(6, Math.PI / 2), size: 1.1 },
    { corners: polygon(4, 0, 0.5), size: 1.65 },
  ];
  const { corners, size } = shapes[kind % shapes.length] ?? {};
  if (!corners) return `M${-r} 0A${r} ${r} 0 1 0 ${r} 0A${r} ${r} 0 1 0 ${-r} 0Z`;
  return pathThrough(corners.map(([x, y]) => [size * r * x, size * r * y]), true);
}
