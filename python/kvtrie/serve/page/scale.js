// The horizontal axis: offsets in tokens to pixels, as in viz/scale.py.
//
// Lengths are proportional to tokens. A run without any branch that is so long that the rest would be too small to see
// (a system prompt of 1,500 tokens before turns of 20) is shortened, and what is drawn says so.

const SMALL = 26; // pixels that a typical node should have
const SHARE = 0.34; // of the axis: what a shortened run may take

/** An axis over 0 to the furthest end, `width` pixels from `left`, for nodes with a start and a length. */
export function makeScale(nodes, left, width) {
  const borders = [...new Set([0, ...nodes.flatMap((node) => [node.start, node.start + node.length])])].sort((a, b) => a - b);
  if (borders.length < 2) borders.push(borders[0] + 1);
  const lengths = borders.slice(1).map((end, index) => end - borders[index]);
  const shown = shorten(lengths, nodes.map((node) => node.length).sort((a, b) => a - b), width);
  const total = shown.reduce((sum, length) => sum + length, 0);
  const pixels = [left];
  for (const length of shown) pixels.push(pixels[pixels.length - 1] + (length / total) * width);
  const breaks = borders.slice(0, -1).map((begin, index) => [begin, borders[index + 1]]);
  return { borders, pixels, breaks: breaks.filter((_, index) => shown[index] < 0.9 * lengths[index]) };
}

/** Caps long runs until a short node has its pixels, or no run has more than its share. */
function shorten(lengths, bars, width) {
  const typical = bars.length ? Math.max(bars[Math.floor(bars.length / 4)], 1) : 1;
  const sum = (all) => all.reduce((total, each) => total + each, 0);
  let cap = lengths.reduce((most, each) => Math.max(most, each), 0);
  let shown = lengths;
  while ((typical / sum(shown)) * width < SMALL && cap > SHARE * sum(shown) && cap > typical) {
    cap *= 0.9;
    shown = lengths.map((length) => Math.min(length, cap));
  }
  return shown;
}

/** The pixel of an offset; offsets outside the axis are clamped. */
export function at(scale, offset) {
  const { borders, pixels } = scale;
  let low = 0;
  let high = borders.length - 1;
  if (offset >= borders[high]) return pixels[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (borders[middle] <= offset) low = middle;
    else high = middle;
  }
  const share = Math.max(0, offset - borders[low]) / (borders[high] - borders[low]);
  return pixels[low] + share * (pixels[high] - pixels[low]);
}

/** Offsets to label: both ends, ends of shortened runs and round numbers, none nearer than `gap` pixels. */
export function ticks(scale, gap = 48) {
  const { borders, pixels, breaks } = scale;
  const end = borders[borders.length - 1];
  const step = roundStep(end / Math.max((pixels[pixels.length - 1] - pixels[0]) / (1.6 * gap), 1));
  const broken = [...breaks].sort((a, b) => b[1] - b[0] - (a[1] - a[0])).map(([, last]) => last);
  const wanted = [0, end, ...broken];
  for (let offset = step; offset < end; offset += step) wanted.push(offset);
  const chosen = [];
  for (const offset of wanted) {
    if (chosen.every((other) => Math.abs(at(scale, offset) - at(scale, other)) >= gap)) chosen.push(offset);
  }
  return chosen.sort((a, b) => a - b);
}

function roundStep(atLeast) {
  for (let step = 1; ; step *= 10) {
    for (const factor of [1, 2, 5]) if (step * factor >= atLeast) return step * factor;
  }
}
