// @ts-check
// Draw the photo and its boxes in a saved picture.

import { patchBox } from "./maps.js";
import { drawn } from "./saving.js";

/** @import { Grid } from "./maps.js" */
/** @import { ViewMessage } from "./message.js" */

/** The photo, dimmed outside of the model's input.
 * @param {ViewMessage["picture"]} picture @param {string} photo its address */
export function background({ width, height, crop: [left, top, right, bottom] }, photo) {
  const around = `M0,0H${width}V${height}H0ZM${left},${top}V${bottom}H${right}V${top}Z`;
  return [
    drawn("image", { href: photo, width, height, preserveAspectRatio: "none" }),
    drawn("path", { d: around, "fill-rule": "evenodd", fill: "#000", "fill-opacity": 0.6 }),
  ];
}

/** A box around a patch, in a colour on black.
 * @param {number} patch @param {Grid} grid @param {string} colour @param {boolean} dashed
 * @param {number} factor pixels of the drawing in one of the picture */
export function boxed(patch, grid, colour, dashed, factor) {
  const [x, y, width, height] = patchBox(patch, grid);
  return /** @type {[string, number][]} */ ([["#000", 5], [colour, 3]]).map(([stroke, wide]) =>
    drawn("rect", { x, y, width, height, fill: "none", stroke, "stroke-width": wide / factor,
      ...(dashed && stroke === colour
        ? { "stroke-dasharray": `${6 / factor} ${3 / factor}` } : {}) }));
}
