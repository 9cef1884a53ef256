// @ts-check
// Draw signed numbers as strips, heat maps and bars: blue below 0 and red above.

import { contextOf, element } from "../token_map/parts.js";
import { limitOf, written } from "./tensors.js";
import { tr } from "../token_map/strings.js";

/** @import { Tensor } from "./tensors.js" */

const FOLD = 512; // numbers in one line of a strip

/** Text with indices _{…}, exponents ^{…} and emphasis **…**.
 * @param {string} text @returns {(Node | string)[]} */
export function rich(text) {
  return text.split(/([_^]\{[^}]*\}|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith("**")) return element("strong", { textContent: part.slice(2, -2) });
    const name = part.startsWith("_{") ? "sub" : part.startsWith("^{") ? "sup" : "";
    return name ? element(name, { textContent: part.slice(2, -1) }) : part;
  });
}

/** Write the colour of a number between -limit and limit into a picture.
 * @param {ImageData} image @param {number} at @param {number} value @param {number} limit
 * @param {Uint8Array} lut */
function paint(image, at, value, limit, lut) {
  const position = Math.min(1, Math.max(0, 0.5 + value / limit / 2));
  const colour = 3 * Math.round(255 * position);
  for (let c = 0; c < 3; c++) image.data[4 * at + c] = lut[colour + c];
  image.data[4 * at + 3] = 255;
}

/** How many numbers stand in a line of a strip, and how many lines it has.
 * @param {number} count @returns {[width: number, lines: number]} */
export function folded(count) {
  const lines = Math.ceil(count / FOLD);
  return [Math.ceil(count / lines), lines];
}

/** The boxes around neighbouring numbers of a strip, one a line, in shares of its sides.
 * @param {number} first @param {number} count @param {number} all numbers of the strip
 * @returns {[left: number, top: number, width: number, height: number][]} */
export function boxesAround(first, count, all) {
  const [width, lines] = folded(all);
  /** @type {[number, number, number, number][]} */
  const boxes = [];
  for (let line = Math.floor(first / width); line * width < first + count; line++) {
    const from = Math.max(0, first - line * width);
    const to = Math.min(width, first + count - line * width);
    boxes.push([from / width, line / lines, (to - from) / width, 1 / lines]);
  }
  return boxes;
}

/** @param {HTMLCanvasElement} canvas @param {ArrayLike<number>} values @param {number} limit
 * @param {Uint8Array} lut @param {number} [end] numbers from here on are not yet drawn */
export function drawStrip(canvas, values, limit, lut, end = values.length) {
  const [width, lines] = folded(values.length);
  [canvas.width, canvas.height] = [width, lines];
  const image = new ImageData(width, lines);
  for (let i = 0; i < end; i++) paint(image, i, values[i], limit, lut);
  contextOf(canvas).putImageData(image, 0, 0);
}

/** Draw a tensor as a heat map; of a large one only evenly spaced rows and columns.
 * @param {HTMLCanvasElement} canvas @param {Tensor} tensor @param {number} most rows
 * @param {number} wide columns @param {Uint8Array} lut */
export function drawMatrix(canvas, tensor, most, wide, lut) {
  const rows = Math.min(most, tensor.rows);
  const cols = Math.min(wide, tensor.width);
  const picked = new Float32Array(rows * cols);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < cols; c++)
      picked[r * cols + c] = tensor.at(
        Math.floor((r * tensor.rows) / rows), Math.floor((c * tensor.width) / cols));
  const limit = limitOf(picked);
  [canvas.width, canvas.height] = [cols, rows];
  const image = new ImageData(cols, rows);
  picked.forEach((value, i) => paint(image, i, value, limit, lut));
  contextOf(canvas).putImageData(image, 0, 0);
  return limit;
}

/** One channel of a picture (H, W, C), or its colours if channel is null.
 * @param {Tensor} picture @param {number | null} channel
 * @param {{ mean: number[], std: number[], planes: number[] }} facts @param {Uint8Array} lut */
export function pixels(picture, channel, { mean, std, planes }, lut) {
  const [height, width] = picture.shape;
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    if (channel !== null) paint(image, i, picture.at(i, channel), 2.2, lut);
    else {
      for (let c = 0; c < 3; c++) {
        const from = planes[c] ?? planes[0];
        image.data[4 * i + c] = 255 * (picture.at(i, from) * std[from] + mean[from]);
      }
      image.data[4 * i + 3] = 255;
    }
  }
  const canvas = element("canvas", { width, height });
  contextOf(canvas).putImageData(image, 0, 0);
  return canvas;
}

/** Draw the picture cut into patches, with gaps between them.
 * @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} picture
 * @param {number} rows @param {number} cols @param {number} gap share of a patch
 * @param {number} [chosen] @param {string} [colour] of the box around it */
export function drawCut(canvas, picture, rows, cols, gap, chosen = -1, colour = "") {
  const [width, height] = [picture.width / cols, picture.height / rows];
  const scale = Math.max(1, Math.ceil(320 / picture.width));
  [canvas.width, canvas.height] = [picture.width * scale, picture.height * scale];
  const context = contextOf(canvas);
  context.imageSmoothingEnabled = false;
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < cols; c++)
      context.drawImage(picture, c * width, r * height, width, height,
        (c + gap / 2) * width * scale, (r + gap / 2) * height * scale,
        (1 - gap) * width * scale, (1 - gap) * height * scale);
  if (chosen < 0) return;
  const box = [(chosen % cols) * width, Math.floor(chosen / cols) * height, width, height];
  for (const [style, line] of /** @type {const} */ ([["#000", 5], [colour, 3]])) {
    context.strokeStyle = style;
    context.lineWidth = (line * canvas.width) / 400;
    const [x, y, w, h] = box.map((side) => side * scale);
    context.strokeRect(x, y, w, h);
  }
}

/** Draw bars up and down from 0, one of them marked.
 * @param {HTMLCanvasElement} canvas @param {Float64Array} values @param {number} mark
 * @param {number} grown from 0 to 1 @param {string} colour @param {string} marked */
export function drawBars(canvas, values, mark, grown, colour, marked) {
  const bar = Math.max(2, Math.floor(900 / values.length));
  [canvas.width, canvas.height] = [bar * values.length, 120];
  const context = contextOf(canvas);
  const most = Math.max(0, ...values);
  const least = Math.min(0, ...values);
  const y = (/** @type {number} */ value) => (118 * (most - value)) / (most - least || 1) + 1;
  const draw = (/** @type {number} */ i, /** @type {string} */ style, /** @type {number} */ width) => {
    const end = y(values[i] * grown);
    context.fillStyle = style;
    context.fillRect(i * bar - (width - bar) / 2, Math.min(y(0), end), width * 0.9,
      Math.max(1, Math.abs(end - y(0))));
  };
  values.forEach((_, i) => draw(i, colour, bar));
  if (mark >= 0) draw(mark, marked, Math.max(bar, canvas.width / 90));
  context.fillStyle = colour;
  context.fillRect(0, y(0), canvas.width, 1);
}

/** The largest size of the values of a grid. @param {ArrayLike<number>} values */
export function sizeOf(values) {
  return Math.max(...Array.from(values, Math.abs)) || 1;
}

/** A number as a cell of a grid holds it: shares in whole percent.
 * @param {number} value @param {boolean} shares */
export function inCell(value, shares) {
  return shares ? (100 * value).toFixed(0) : value.toFixed(1).replace("-", "−");
}

/** @param {ArrayLike<number>} values @param {number} limit */
export function countOf(values, limit) {
  return tr("{count} numbers, ±{limit}", { count: values.length, limit: written(limit, 2) });
}

/** Draw the small picture of a step: the picture, its patches, or the numbers of a tensor.
 * @param {HTMLCanvasElement} canvas @param {{ name: string }} card @param {Tensor | undefined} tensor
 * @param {HTMLCanvasElement | null} picture @param {{ grid: number[], stem: boolean }} facts
 * @param {Uint8Array} lut */
export function drawThumbnail(canvas, { name }, tensor, picture, { grid, stem }, lut) {
  const whole = name === "picture";
  canvas.className = "";
  if (whole || (name === "patches" && !stem)) {
    canvas.className = "picture";
    const [rows, cols] = whole ? [1, 1] : grid.map((n) => Math.min(4, n));
    if (picture) drawCut(canvas, picture, rows, cols, whole ? 0 : 0.12);
  } else if (!tensor) canvas.hidden = true;
  else if (tensor.rows === 1) {
    const values = tensor.row(0);
    if (values) drawStrip(canvas, values, limitOf(values), lut);
    canvas.className = "one";
  } else drawMatrix(canvas, tensor, 24, 48, lut);
}
