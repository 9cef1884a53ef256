// @ts-check
// Build parts of the page: elements, rows of buttons, the colour bar; and draw on a canvas.

import { asText, patchBox, range } from "./maps.js";
import { tr } from "./strings.js";

/** @import { Grid, Scale, Selected, Tile } from "./maps.js" */
/** @import { Kind, State, ViewMessage } from "./message.js" */
/** @typedef {{ kind: Kind, scale: Scale, lut: Uint8Array, spotlight: boolean }} Paint */

const FLOOR = 0.25; // brightness of a spotlight where there is no attention

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
function choice(label, options, pressed, choose) {
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
function check(label, checked, change) {
  const box = element("input", { type: "checkbox", checked });
  box.onchange = () => change(box.checked);
  return element("label", {}, box, element("span", { textContent: label }));
}

/** The empty parts of the view by name, and the element that holds them.
 * @param {ViewMessage} data */
export function layout({ titles, frames, state, matrix, beside = [] }) {
  /** @type {Record<string, any>} */
  const parts = {};
  /** @param {string} name @param {keyof HTMLElementTagNameMap} tag */
  const part = (name, tag, properties = {}) => {
    parts[name] = element(tag, { className: name, ...properties });
    parts[name].dataset.part = name;
    return parts[name];
  };
  const section = (/** @type {Node[]} */ ...children) => element("section", {}, ...children);
  const drawing = { role: "img" };
  const photo = section(
    element("div", { className: "head" }, part("photoTitle", "h4"), part("tokens", "div")),
    part("photo", "canvas", { tabIndex: 0, aria: drawing }),
    ...(titles.caption ? [element("p", { className: "caption" },
      element("b", { textContent: titles.caption }), ` · ${titles.hint ?? ""}`)] : []));
  const map = section(
    element("div", { className: "head" }, part("mapTitle", "h4")),
    part("map", "canvas", { aria: drawing }),
    element("div", { className: "below" }, part("bar", "div"), part("prefix", "div")));
  const others = beside.map((_, index) => section(
    element("div", { className: "head" }, part(`besideTitle${index}`, "h4")),
    part(`beside${index}`, "canvas", { aria: drawing }),
    element("div", { className: "below" }, part(`besideBar${index}`, "div", { className: "bar" }),
      part(`besideNote${index}`, "small"))));
  const strip = section(part("stripTitle", "h4"), part("strip", "div"));
  if (titles.slider && frames.length > 1)
    strip.append(part("slider", "input", { type: "range", min: 0, max: frames.length - 1, step: 1,
      value: state.frame, aria: { "aria-label": titles.slider } }));
  const whole = section(
    element("div", { className: "head" }, part("matrixTitle", "h4")),
    part("matrix", "canvas", { aria: drawing }),
    element("div", { className: "below" }, part("matrixBar", "div", { className: "bar" }),
      part("matrixNote", "small")));
  const maps = [...others.slice(0, 1), map, ...others.slice(1), ...(matrix ? [whole] : [])];
  const sections = element("div", { className: "sections" }, photo, ...maps, strip);
  parts.sections = sections;
  const live = part("live", "p", { aria: { "aria-live": "polite" } });
  return { parts, content: [sections, part("reading", "p"), part("tools", "div"), live] };
}

/** The controls of the maps' style.
 * @param {boolean} share whether the maps are shares
 * @param {boolean} columns whether they can be read by column
 * @param {string[] | null} shown the names of the controls to draw; null for all
 * @param {State} state
 * @param {(part: Partial<State>) => void} change */
export function toolbar(share, columns, shown, state, change) {
  const { direction, view, scale, leaveOut, smooth } = state;
  const read = { row: tr("row: attends to"), column: tr("column: attended to by") };
  const views = { heat: tr("heat map"), spotlight: tr("spotlight") };
  const scales = { map: tr("per map"), shared: tr("shared"), log: tr("log") };
  const role = columns && direction === "column" ? "key" : "query";
  const smoothed = check(tr("smoothed"), smooth, (smooth) => change({ smooth }));
  const drawn = (/** @type {string} */ name) => shown?.includes(name) ?? true;
  if (!share) return drawn("smooth") ? [smoothed] : [];
  return [
    ...(columns && drawn("read") ? [choice(tr("Read"), read, direction, (direction) => change({ direction }))] : []),
    ...(drawn("view") ? [choice(tr("View"), views, view, (view) => change({ view }))] : []),
    ...(drawn("scale") ? [choice(tr("Scale"), scales, scale, (scale) => change({ scale }))] : []),
    ...(drawn("leave_out") ? [check(tr("leave the {role} out of the scale", { role: tr(role) }), leaveOut, (leaveOut) => change({ leaveOut }))] : []),
    ...(drawn("smooth") ? [smoothed] : []),
  ];
}

/** @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** Give a canvas the picture's shape, as large as fits; return the size of one pixel of the screen
 * and of the canvas, in pixels of the picture.
 * @param {HTMLCanvasElement} canvas @param {{ width: number, height: number }} picture
 * @param {{ width: number, height: number }} room */
export function fit(canvas, { width, height }, room) {
  const factor = Math.min(room.width / width, room.height / height);
  const ratio = window.devicePixelRatio || 1;
  const size = [width, height].map((side) => Math.max(1, Math.round(side * factor * ratio)));
  if (canvas.width !== size[0] || canvas.height !== size[1]) {
    [canvas.width, canvas.height] = size;
    canvas.style.width = `${width * factor}px`;
    canvas.style.height = `${height * factor}px`;
  }
  return { line: (ratio * width) / canvas.width, pixel: width / canvas.width };
}

/** Draw the picture at the size of a canvas, dimmed outside of the model's input.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLImageElement | null | undefined} photo
 * @param {ViewMessage["picture"]} picture
 * @param {[number, number, number, number, number, number]} transform from its pixels */
export function backdrop(canvas, photo, { width, height, crop: [left, top, right, bottom] }, transform) {
  const made = element("canvas", { width: canvas.width, height: canvas.height });
  const context = contextOf(made);
  context.setTransform(...transform);
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

/** Outline a patch in a colour on black, which is visible on every picture.
 * @param {CanvasRenderingContext2D} context
 * @param {number} line one pixel of the screen
 * @param {number} patch @param {Grid} grid @param {string} colour @param {boolean} dashed */
export function outline(context, line, patch, grid, colour, dashed) {
  for (const [style, width] of /** @type {const} */ ([["#000", 5], [colour, 3]])) {
    if (dashed && style === colour) context.setLineDash([6 * line, 3 * line]);
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
 * @param {Paint} paint */
export function drawPixels(canvas, patches, { rows, cols }, { scale, lut, spotlight }) {
  if (canvas.width !== cols) canvas.width = cols;
  if (canvas.height !== rows) canvas.height = rows;
  const image = new ImageData(cols, rows);
  patches.forEach((value, i) => {
    const position = scale.position(value);
    const first = 3 * Math.round(255 * position);
    for (let c = 0; c < 3 && !spotlight; c++) image.data[4 * i + c] = lut[first + c];
    image.data[4 * i + 3] = spotlight ? Math.round(255 * (1 - FLOOR) * (1 - position)) : 255;
  });
  contextOf(canvas).putImageData(image, 0, 0);
}

/** Red, green and blue of a position on the colour bar.
 * @param {number} position @param {Paint} paint */
export function colourAt(position, { lut, spotlight }) {
  const grey = Math.round(255 * (FLOOR + (1 - FLOOR) * position));
  const first = 3 * Math.round(255 * position);
  return spotlight ? [grey, grey, grey] : [...lut.subarray(first, first + 3)];
}

/** Draw the colour bar, its ends and a tick at the share of uniform attention.
 * @param {HTMLElement} bar @param {Paint} paint @param {number | null} equalShare */
export function drawBar(bar, paint, equalShare) {
  const { kind, scale, spotlight } = paint;
  if (bar.dataset.spotlight !== String(spotlight)) {
    bar.dataset.spotlight = String(spotlight);
    const gradient = element("canvas", { width: 256, height: 1, aria: { "aria-hidden": "true" } });
    const image = new ImageData(256, 1);
    for (const i of range(256)) image.data.set([...colourAt(i / 255, paint), 255], 4 * i);
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

/** Draw one cell for each prefix token.
 * @param {HTMLElement} cells @param {string[]} names @param {Float64Array} values
 * @param {number} query @param {Paint} paint */
export function drawCells(cells, names, values, query, paint) {
  if (cells.childElementCount !== values.length)
    cells.replaceChildren(...range(values.length).map(() =>
      element("div", { className: "cell" }, element("span"), element("b"), element("strong"))));
  values.forEach((value, index) => {
    const [name, swatch, share] = /** @type {any} */ (cells.children[index].children);
    name.textContent = names[index];
    swatch.style.background = `rgb(${colourAt(paint.scale.position(value), paint).join(" ")})`;
    swatch.className = index === query ? "chosen" : "";
    share.textContent = asText(paint.kind, value);
  });
}

/** As many buttons as there are small maps.
 * @param {HTMLElement} strip @param {number} count
 * @param {number} few up to which they stand in two columns */
export function fillStrip(strip, count, few) {
  if (strip.childElementCount === count) return;
  const columns = count > 20 ? 6 : count > 8 ? 5 : count > few ? 4 : 2;
  strip.style.setProperty("--columns", String(columns));
  strip.style.setProperty("--tile", columns === 2 ? "max(150px, 11cqi)" : "max(110px, 9cqi)");
  strip.replaceChildren(...range(count).map(() =>
    element("button", { type: "button" },
      element("span", {}, element("b"), " ", element("span")),
      element("div", { className: "tile" }, element("canvas"), element("i")))));
}

/** Draw a small map on its button, with its largest value and the patch of the query.
 * @param {HTMLElement} button @param {Tile} tile @param {Selected} selection
 * @param {Paint} paint @param {boolean} smooth */
export function drawTile(button, tile, { patch, grid, mapGrid }, paint, smooth) {
  const [label, holder] = /** @type {any} */ (button.children);
  const [canvas, mark] = holder.children;
  const peak = asText(paint.kind, tile.strongest.value);
  label.firstChild.textContent = tile.name;
  label.lastChild.textContent = peak;
  button.setAttribute("aria-label", tr("{name} {peak}, its maximum", { name: tile.name, peak }));
  drawPixels(canvas, tile.map.patches, mapGrid, paint);
  canvas.style.imageRendering = smooth ? "auto" : "pixelated";
  mark.hidden = patch < 0;
  const [x, y, width, height] = patchBox(patch, { ...grid, crop: [0, 0, 100, 100] });
  mark.style.inset = `${y}% auto auto ${x}%`;
  mark.style.width = `${width}%`;
  mark.style.height = `${height}%`;
}
