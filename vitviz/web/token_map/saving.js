// @ts-check
// Save a drawing as PNG at two scales, or as SVG: with its title, colour bar and provenance line, or
// bare on a transparent ground, for slides.

import { tr } from "./strings.js";


/** @typedef {{ drawn: SVGElement, width: number, height: number, title: string, words: string,
 * provenance: string }} Drawing an SVG element, its size in pixels, and its texts */

export const INK = "#31333f"; // of words on white
const TEXT = 13; // pixels
const EDGE = 10;
const MENU = `
  details { position: relative; font-size: 0.875rem; }
  summary { cursor: pointer; list-style: none; padding: 2px 8px; border-radius: 6px;
    white-space: nowrap;
    background: color-mix(in srgb, currentColor 10%, transparent); }
  summary:focus-visible, button:focus-visible { outline: 3px solid currentColor; outline-offset: 1px; }
  div { position: absolute; right: 0; z-index: 9; display: grid; gap: 6px; padding: 10px;
    grid-template-columns: auto auto auto auto; align-items: center; white-space: nowrap;
    background: Canvas; color: CanvasText; border: 1px solid GrayText; border-radius: 6px; }
  button { font: inherit; cursor: pointer; padding: 2px 8px; }`;

/** An element of SVG.
 * @param {string} name @param {Record<string, string | number>} attributes
 * @param {(Node | string)[]} children */
export function drawn(name, attributes = {}, ...children) {
  const made = /** @type {SVGElement} */ (document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/** A menu that saves the drawing that `draw` returns; a `bare` one has no colour bar.
 * @param {(bare: boolean) => Drawing} draw */
export function saveMenu(draw) {
  const host = Object.assign(document.createElement("span"), { className: "save-menu" });
  const root = host.attachShadow({ mode: "open" });
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = tr("Save");
  summary.setAttribute("aria-label", tr("Save as a picture"));
  const box = document.createElement("div");
  for (const [words, bare] of /** @type {[string, boolean][]} */ (
    [[tr("With title"), false], [tr("Bare, transparent"), true]])) {
    box.append(words);
    for (const [label, scale] of /** @type {[string, number][]} */ (
      [["PNG", 1], ["PNG × 2", 2], ["SVG", 0]])) {
      const button = Object.assign(document.createElement("button"), { textContent: label });
      button.type = "button";
      button.setAttribute("aria-label", `${label}, ${words.toLowerCase()}`);
      button.onclick = async () => {
        details.open = false;
        summary.focus(); // else it is lost as the menu closes
        await save(draw(bare), bare, scale);
      };
      box.append(button);
    }
  }
  details.ontoggle = () => { // opens to the left if there is room
    box.style.inset = "auto 0 auto auto";
    if (box.getBoundingClientRect().left < 0) box.style.inset = "auto auto auto 0";
  };
  details.onkeydown = (event) => {
    if (event.key !== "Escape" || !details.open) return;
    details.open = false;
    summary.focus();
    event.stopPropagation();
  };
  details.append(summary, box);
  root.append(Object.assign(document.createElement("style"), { textContent: MENU }), details);
  return host;
}

/** @param {Drawing} drawing @param {boolean} bare @param {number} scale 0 for SVG */
async function save(drawing, bare, scale) {
  const whole = bare ? onGround(drawing) : framed(drawing);
  const source = new XMLSerializer().serializeToString(whole);
  const words = drawing.title.toLowerCase().match(/[a-z0-9]+/g) ?? ["figure"];
  const name = ["vitviz", ...words, ...(bare ? ["bare"] : [])].join("_").slice(0, 80);
  if (!scale) return download(new Blob([source], { type: "image/svg+xml" }), `${name}.svg`);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(scale * Number(whole.getAttribute("width")));
  canvas.height = Math.round(scale * Number(whole.getAttribute("height")));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && download(blob, `${name}${scale > 1 ? `_${scale}x` : ""}.png`));
}

/** @param {Blob} blob @param {string} name */
function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The drawing alone. @param {Drawing} drawing @param {number} [above] @param {number} [below] */
function onGround({ drawn: inner, width, height, words }, above = 0, below = 0) {
  const size = { width: Math.ceil(width), height: Math.ceil(height + above + below) };
  return drawn("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}` },
    drawn("title", {}, words), drawn("g", { transform: `translate(0 ${above})` }, inner));
}

/** The drawing between its title and its provenance line, on white.
 * @param {Drawing} drawing */
function framed(drawing) {
  const { width, height, title, provenance } = drawing;
  const above = linesOf(title, width, 1.15 * TEXT);
  const below = linesOf(provenance, width, TEXT);
  const room = (/** @type {string[]} */ lines) => 1.5 * TEXT * lines.length + EDGE;
  const whole = onGround(drawing, room(above), room(below));
  whole.querySelector("title")?.after(drawn("rect", { width: "100%", height: "100%", fill: "#fff" }));
  /** @param {string[]} lines @param {number} top @param {number} size */
  const write = (lines, top, size) => lines.forEach((line, number) =>
    whole.append(drawn("text", { x: EDGE, y: top + 1.5 * TEXT * (number + 0.8), fill: INK,
      "font-family": "sans-serif", "font-size": size }, line)));
  write(above, EDGE / 2, 1.15 * TEXT);
  write(below, room(above) + height + EDGE / 2, TEXT);
  return whole;
}

/** Break words into lines that fit a width.
 * @param {string} words @param {number} width @param {number} size of the letters
 * @param {(words: string) => string} plain the visible part of the words */
export function linesOf(words, width, size, plain = (words) => words) {
  const context = /** @type {CanvasRenderingContext2D} */ (
    document.createElement("canvas").getContext("2d"));
  context.font = `${size}px sans-serif`;
  const lines = [""];
  for (const word of words.split(/[^\S\u00a0]+/)) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (lines.at(-1) && context.measureText(plain(longer)).width > width - 2 * EDGE) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}
