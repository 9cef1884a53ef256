// @ts-check
// Draw the map on screen as SVG, to be saved.

import { asText, patchBox, range } from "./maps.js";
import { colourAt } from "./parts.js";
import { background, boxed } from "./placed.js";
import { drawn } from "./saving.js";
import { tr } from "./strings.js";

/** @import { Grid } from "./maps.js" */
/** @import { ViewMessage } from "./message.js" */
/** @import { Paint } from "./parts.js" */

const WIDTH = 640; // pixels
const BAR = 46; // pixels below the picture for the colour bar
const STOPS = 33; // of its gradient

/** @param {object} given
 * @param {ViewMessage["picture"]} given.picture @param {string | undefined} given.photo its address
 * @param {HTMLCanvasElement} given.small the map, one pixel a patch
 * @param {Grid} given.grid of the map @param {Grid} given.asked of the token that is chosen
 * @param {number} given.patch that is chosen, -1 for none
 * @param {string} given.colour of its outline @param {boolean} given.dashed
 * @param {boolean} given.smooth @param {Paint} given.paint
 * @param {number | null} given.equalShare @param {boolean} given.bare
 * @returns {{ drawn: SVGElement, width: number, height: number }} */
export function mapDrawing({ picture, photo, small, grid, asked, patch, colour, dashed, smooth,
  paint, equalShare, bare }) {
  const factor = WIDTH / picture.width;
  const height = picture.height * factor;
  const inPicture = drawn("g", { transform: `scale(${factor})` });
  if (photo && (!bare || paint.spotlight)) inPicture.append(...background(picture, photo));
  inPicture.append(...(smooth ? smoothed(small, grid) : cells(small, grid)));
  if (patch >= 0) inPicture.append(...boxed(patch, asked, colour, dashed, factor));
  if (bare) return { drawn: inPicture, width: WIDTH, height };
  const whole = drawn("g", {}, inPicture, ...bar(paint, equalShare, height));
  return { drawn: whole, width: WIDTH, height: height + BAR };
}

/** A rectangle for each patch.
 * @param {HTMLCanvasElement} small @param {Grid} grid */
function cells(small, grid) {
  const context = /** @type {CanvasRenderingContext2D} */ (small.getContext("2d"));
  const { data } = context.getImageData(0, 0, grid.cols, grid.rows);
  const group = drawn("g", { class: "patches", "shape-rendering": "crispEdges" });
  for (const patch of range(grid.rows * grid.cols)) {
    const [red, green, blue, alpha] = data.subarray(4 * patch, 4 * patch + 4);
    const [x, y, width, height] = patchBox(patch, grid);
    const fill = { fill: `rgb(${red},${green},${blue})`, "fill-opacity": alpha / 255 };
    group.append(drawn("rect", { x, y, width, height, ...fill }));
  }
  return [group];
}

/** @param {HTMLCanvasElement} small @param {Grid} grid */
function smoothed(small, { crop: [x, y, right, bottom] }) {
  return [drawn("image", { href: small.toDataURL(), x, y, width: right - x, height: bottom - y,
    preserveAspectRatio: "none" })];
}

/** The colour bar, its ends, and a mark at the share of uniform attention.
 * @param {Paint} paint @param {number | null} equalShare @param {number} top */
function bar(paint, equalShare, top) {
  const { kind, scale } = paint;
  const stops = range(STOPS).map((stop) => {
    const at = stop / (STOPS - 1);
    return drawn("stop", { offset: at, "stop-color": `rgb(${colourAt(at, paint).join()})` });
  });
  const [left, width, y] = [90, WIDTH - 180, top + 10];
  /** @param {string} words @param {number} x @param {string} anchor */
  const text = (words, x, anchor) => drawn("text", { x, y: y + 12, fill: "currentColor",
    "text-anchor": anchor, "font-family": "sans-serif", "font-size": 13 }, words);
  const parts = [
    drawn("linearGradient", { id: "vitviz-colours" }, ...stops),
    drawn("rect", { x: left, y, width, height: 14, fill: "url(#vitviz-colours)" }),
    text(asText(kind, scale.min), left - 8, "end"),
    text(asText(kind, scale.max), left + width + 8, "start"),
  ];
  if (equalShare && equalShare <= scale.max) {
    const x = left + width * scale.position(equalShare);
    parts.push(drawn("path", { d: `M${x},${y + 15}l5,7h-10z`, fill: "currentColor" }));
    parts.push(drawn("text", { x, y: y + 34, fill: "currentColor", "text-anchor": "middle",
      "font-family": "sans-serif", "font-size": 12 }, tr("equal sharing")));
  }
  return parts;
}
