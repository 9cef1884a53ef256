// @ts-check
// Parts of the page: elements, rows of buttons, the colour bar, and drawing on a canvas.

import { asText, patchBox, range } from "./maps.js";

/** @import { Box, DrawnTile, Grid, Kind, Scale, ViewMessage } from "./maps.js" */

const FLOOR = 0.25; // brightness of a spotlight where nothing is looked at

/** @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, any>} [properties] of the element; `aria` holds attributes
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Name]} */
export function element(name, { aria = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  for (const [key, value] of Object.entries(aria)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A row of buttons of which one is pressed.
 * @template {string} Value
 * @param {string} label
 * @param {Record<Value, string>} options
 * @param {Value} pressed
 * @param {(value: Value) => void} choose */
export function choice(label, options, pressed, choose) {
  const values = /** @type {Value[]} */ (Object.keys(options));
  const buttons = values.map((value) =>
    element("button", {
      type: "button",
      textContent: options[value],
      onclick: () => choose(value),
      aria: { "aria-pressed": String(value === pressed) },
    }),
  );
  const aria = { role: "group", "aria-label": label };
  const name = element("span", { textContent: label });
  return element("div", { className: "choice", aria }, name, ...buttons);
}

/** @param {string} label @param {boolean} checked @param {(checked: boolean) => void} change */
export function check(label, checked, change) {
  const box = element("input", { type: "checkbox", checked });
  box.onchange = () => change(box.checked);
  return element("label", {}, box, element("span", { textContent: label }));
}

/** @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** The picture at the size of a canvas, scaled once; what the model did not see is dimmed.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLImageElement | undefined} photo
 * @param {ViewMessage["picture"]} picture */
export function backdrop(canvas, photo, { width, height, crop: [left, top, right, bottom] }) {
  const made = element("canvas", { width: canvas.width, height: canvas.height });
  const context = contextOf(made);
  context.scale(canvas.width / width, canvas.height / height);
  if (photo?.complete && photo.naturalWidth) context.drawImage(photo, 0, 0, width, height);
  context.fillStyle = "rgb(0 0 0 / 0.6)";
  context.beginPath();
  context.rect(0, 0, width, height);
  context.rect(left, top, right - left, bottom - top);
  context.fill("evenodd");
  return made;
}

/** @param {CanvasRenderingContext2D} context @param {Grid} grid */
export function drawGrid(context, { rows, cols, crop: [left, top, right, bottom] }) {
  context.beginPath();
  for (let c = 0; c <= cols; c++) {
    const x = left + (c * (right - left)) / cols;
    context.moveTo(x, top);
    context.lineTo(x, bottom);
  }
  for (let r = 0; r <= rows; r++) {
    const y = top + (r * (bottom - top)) / rows;
    context.moveTo(left, y);
    context.lineTo(right, y);
  }
  context.stroke();
}

/** Outline a patch, in a colour on black.
 * @param {CanvasRenderingContext2D} context
 * @param {number} line one pixel of the screen
 * @param {number} patch @param {Grid} grid @param {string} colour @param {boolean} dashed */
export function outline(context, line, patch, grid, colour, dashed) {
  context.setLineDash(dashed ? [4 * line, 3 * line] : []);
  for (const [style, width] of /** @type {const} */ ([["#000", 5], [colour, 3]])) {
    context.strokeStyle = style;
    context.lineWidth = width * line;
    context.strokeRect(...patchBox(patch, grid));
  }
  context.setLineDash([]);
}

/** Draw a map as a small picture, one pixel a patch: in colours, or as the shade of a spotlight.
 * @param {HTMLCanvasElement} canvas
 * @param {Float64Array} patches
 * @param {Grid} grid
 * @param {Scale} scale
 * @param {Uint8Array} lut
 * @param {boolean} spotlight */
export function drawPixels(canvas, patches, { rows, cols }, scale, lut, spotlight) {
  if (canvas.width !== cols) canvas.width = cols;
  if (canvas.height !== rows) canvas.height = rows;
  const image = new ImageData(cols, rows);
  patches.forEach((value, i) => {
    const position = scale.position(value);
    if (spotlight) image.data[4 * i + 3] = Math.round(255 * (1 - FLOOR) * (1 - position));
    else {
      const first = 3 * Math.round(255 * position);
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = lut[first + c];
      image.data[4 * i + 3] = 255;
    }
  });
  contextOf(canvas).putImageData(image, 0, 0);
}

/** Red, green and blue of a position on the colour bar.
 * @param {number} position @param {Uint8Array} lut @param {boolean} spotlight */
function colourAt(position, lut, spotlight) {
  const grey = Math.round(255 * (FLOOR + (1 - FLOOR) * position));
  const first = 3 * Math.round(255 * position);
  return spotlight ? [grey, grey, grey] : lut.subarray(first, first + 3);
}

/** The colour bar, its ends and a tick where every token would have the same share.
 * @param {HTMLElement} bar
 * @param {Kind} kind
 * @param {Scale} scale
 * @param {number | null} equalShare
 * @param {Uint8Array} lut
 * @param {boolean} spotlight */
export function drawBar(bar, kind, scale, equalShare, lut, spotlight) {
  if (bar.dataset.spotlight !== String(spotlight)) {
    bar.dataset.spotlight = String(spotlight);
    const gradient = element("canvas", { width: 256, height: 1, aria: { "aria-hidden": "true" } });
    const image = new ImageData(256, 1);
    for (const i of range(256)) image.data.set([...colourAt(i / 255, lut, spotlight), 255], 4 * i);
    contextOf(gradient).putImageData(image, 0, 0);
    const track = element("div", { className: "track" }, gradient, element("i"));
    bar.replaceChildren(element("span"), track, element("span"));
  }
  const [least, track, most] = bar.children;
  least.textContent = asText(kind, scale.min);
  most.textContent = asText(kind, scale.max);
  const tick = /** @type {HTMLElement} */ (track.lastChild);
  tick.hidden = !equalShare;
  if (!equalShare) return;
  tick.className = equalShare > scale.max ? "tick beyond" : "tick";
  tick.style.left = `${100 * scale.position(equalShare)}%`;
}

/** One cell for each token that is no part of the picture.
 * @param {HTMLElement} cells
 * @param {string[]} names
 * @param {Float64Array} values
 * @param {Kind} kind
 * @param {Scale} scale
 * @param {Uint8Array} lut
 * @param {boolean} spotlight
 * @param {number} query
 * @param {string} queryColour */
export function drawCells(cells, names, values, kind, scale, lut, spotlight, query, queryColour) {
  if (cells.childElementCount !== names.length)
    cells.replaceChildren(...names.map(() =>
      element("div", { className: "cell" }, element("span"), element("b"), element("strong"))));
  names.forEach((text, index) => {
    const [name, swatch, share] = /** @type {any} */ (cells.children[index].children);
    const colour = colourAt(scale.position(values[index]), lut, spotlight);
    name.textContent = text;
    swatch.style.background = `rgb(${[...colour].join(" ")})`;
    swatch.style.outlineColor = index === query ? queryColour : "transparent";
    share.textContent = asText(kind, values[index]);
  });
}

/** A button for each map of the strip.
 * @param {HTMLElement} strip
 * @param {number} count
 * @param {number} columns */
export function fillStrip(strip, count, columns) {
  if (strip.childElementCount === count) return;
  strip.style.setProperty("--columns", String(columns));
  strip.style.setProperty("--tile", columns === 2 ? "150px" : "110px");
  strip.replaceChildren(...range(count).map(() =>
    element("button", { type: "button" },
      element("span", {}, element("b"), element("br"), element("span")),
      element("div", { className: "tile" }, element("canvas"), element("i")))));
}
