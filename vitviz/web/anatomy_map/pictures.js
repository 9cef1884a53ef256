// @ts-check
// Draw what is on screen as SVG, to be saved: the picture with the scene beside it, or a chart.
//
// Numbers drawn as pixels stay pixels, one per number; all else becomes lines and text.

import { background, boxed } from "../token_map/placed.js";
import { boxesAround, inCell, sizeOf } from "./drawing.js";
import { INK, drawn, linesOf } from "../token_map/saving.js";

/** @import { Grid } from "../token_map/maps.js" */
/** @import { Item } from "./scenes.js" */
/** @typedef {{ node: SVGElement, height: number }} Row of a drawing */

const [PHOTO, SCENE, LABEL, NOTE, GAP] = [300, 640, 120, 150, 10]; // pixels
const [LETTERS, LINE] = [13, 19];
const [BELOW, ABOVE] = ["#2166ac", "#b2182b"]; // of a grid, as in the style
const MARKED = /([_^]\{[^}]*\}|\*\*[^*]+\*\*)/;

/** @param {string} text */
function plain(text) {
  return text.replace(/[_^]\{([^}]*)\}|\*\*([^*]+)\*\*/g, "$1$2");
}

/** Text with indices and exponents, as `rich` sets it on the page, and its height.
 * @param {string} text @param {number} x @param {number} width @param {Record<string, string>} [style]
 * @returns {Row} */
function words(text, x, width, style = {}) {
  const together = text.replace(/\*\*[^*]+\*\*/g, (bold) => bold.replaceAll(" ", "\u00a0"));
  const lines = linesOf(together, width, LETTERS, plain);
  const node = drawn("g", {}, ...lines.map((line, number) => drawn("text", { x, y: LINE * (number + 0.75),
    fill: "currentColor", "font-family": "sans-serif", "font-size": LETTERS, ...style }, ...spans(line))));
  return { node, height: LINE * lines.length };
}

/** @param {string} line */
function spans(line) {
  let before = 0; // of the letters below or above the line
  return line.split(MARKED).filter(Boolean).map((part) => {
    const shift = part.startsWith("_{") ? 4 : part.startsWith("^{") ? -5 : 0;
    const strong = part.startsWith("**");
    const made = drawn("tspan", { dy: shift - before, ...(shift ? { "font-size": 10 } : {}),
      ...(strong ? { "font-weight": 600 } : {}) }, strong || shift ? plain(part) : part);
    before = shift;
    return made;
  });
}

/** @param {HTMLCanvasElement} canvas @param {number} x @param {number} y
 * @param {number} width @param {number} height */
function pixelsOf(canvas, x, y, width, height) {
  return drawn("image", { href: canvas.toDataURL(), x, y, width, height,
    preserveAspectRatio: "none", style: "image-rendering: pixelated" });
}

/** A row of a label, its drawing and a note.
 * @param {Item} item @param {number} height @param {SVGElement[]} inner
 * @param {Record<string, string>} colours @returns {Row} */
function labelled({ label = "", note = "", tone = "" }, height, inner, colours) {
  const left = words(label, 0, LABEL, { "font-weight": "600", ...(tone ? { fill: colours[tone] } : {}) });
  const right = words(note, SCENE - NOTE + GAP, NOTE - GAP);
  const whole = Math.max(height, left.height, right.height);
  for (const { node, height: high } of [left, right])
    node.setAttribute("transform", `translate(0 ${(whole - high) / 2})`);
  const middle = drawn("g", { transform: `translate(${LABEL} ${(whole - height) / 2})` }, ...inner);
  return { node: drawn("g", {}, left.node, middle, right.node), height: whole };
}

const WIDE = SCENE - LABEL - NOTE;
/** @param {number} x @param {number} y @param {number} width @param {number} height @param {object} [style] */
const frame = (x, y, width, height, style = {}) =>
  drawn("rect", { x, y, width, height, fill: "none", stroke: "currentColor", "stroke-width": 2, ...style });

/** @type {Record<string, (item: any, canvases: HTMLCanvasElement[], look: any, note: string) => Row>} */
const ROWS = {
  line: ({ label }) => words(label, 0, SCENE),
  strip(item, [canvas], { colours }) {
    const from = item.part ?? (item.mark >= 0 ? [item.mark, 1] : null);
    const boxes = from ? boxesAround(from[0], from[1], item.values.length) : [];
    const marks = boxes.map(([left, top, width, height]) =>
      frame(left * WIDE, 23 * top - 1, Math.max(3, width * WIDE), 23 * height + 2));
    const edge = frame(0, 0, WIDE, 23, { "stroke-width": 0.5 });
    return labelled(item, 23, [pixelsOf(canvas, 0, 0, WIDE, 23), edge, ...marks], colours);
  },
  matrix(item, [canvas], { colours }, note) {
    const each = 84 / item.tensor.rows;
    const marks = item.mark >= 0
      ? [frame(-2, item.mark * each, WIDE + 4, Math.max(2, each), { stroke: colours.query })] : [];
    return labelled({ ...item, note }, 84, [pixelsOf(canvas, 0, 0, WIDE, 84), ...marks], colours);
  },
  bars(item, _, { colours, keyColour }) {
    const { values, mark } = item;
    const [most, least] = [Math.max(0, ...values), Math.min(0, ...values)];
    const y = (/** @type {number} */ value) => (66 * (most - value)) / (most - least || 1);
    const wide = WIDE / values.length;
    /** @param {number} i @param {string} fill @param {number} width */
    const bar = (i, fill, width) => drawn("rect", { class: "bar", x: (i + 0.5) * wide - 0.45 * width,
      y: Math.min(y(0), y(values[i])), width: 0.9 * width, height: Math.abs(y(values[i]) - y(0)), fill });
    const bars = [...values.keys()].map((i) => bar(i, "#7d8794", wide));
    if (mark >= 0) bars.push(bar(mark, keyColour, Math.max(wide, WIDE / 90)));
    return labelled(item, 66, [...bars, drawn("rect", { x: 0, y: y(0), width: WIDE, height: 1,
      fill: "#7d8794" })], colours);
  },
  grid({ label, note, values, cols, mark, key, shares }, _, { colours }) {
    const title = words(`${label} (${note})`, 0, SCENE, { "font-weight": "600" });
    const [wide, high, limit] = [SCENE / cols, LINE + 1, sizeOf(values)];
    const cells = [...values].flatMap((value, i) => {
      const [x, y] = [(i % cols) * wide, Math.floor(i / cols) * high + title.height];
      return [
        drawn("rect", { x, y, width: wide, height: high, fill: value < 0 ? BELOW : ABOVE, "fill-opacity": (0.6 * Math.abs(value)) / limit }),
        drawn("text", { x: x + wide / 2, y: y + 0.75 * high, fill: "currentColor", "text-anchor": "middle",
          "font-family": "sans-serif", "font-size": 11 }, inCell(value, shares)),
      ];
    });
    const rows = values.length / cols;
    const marks = [
      frame(0, title.height + mark * high, SCENE, high, { stroke: colours.query }),
      frame(key * wide, title.height, wide, rows * high, { stroke: colours.key }),
    ];
    return { node: drawn("g", {}, title.node, ...cells, ...marks), height: title.height + rows * high + GAP };
  },
  table({ head, rows, mark, shares }) {
    const wide = SCENE / head.length;
    /** @param {string[]} cells @param {boolean} strong */
    const row = (cells, strong) => {
      const all = cells.map((text, c) => words(text, c * wide, wide, strong ? { "font-weight": "600" } : {}));
      return { node: drawn("g", {}, ...all.map(({ node }) => node)),
        height: Math.max(...all.map(({ height }) => height)) };
    };
    return stacked([row(head, true), ...rows.map((/** @type {string[]} */ cells, /** @type {number} */ r) => {
      const { node, height } = row(cells, r === mark);
      node.append(drawn("rect", { class: "bar", x: (head.length - 1) * wide, y: height,
        width: (shares?.[r] ?? 0) * wide, height: 7, fill: "#7d8794" }));
      return { node, height };
    })]);
  },
  channels(_, all, { planes }) {
    const canvases = all.slice(0, planes);
    const wide = (SCENE - 2 * GAP) / 3;
    const height = (wide * canvases[0].height) / canvases[0].width;
    const drawings = canvases.map((canvas, c) => pixelsOf(canvas, c * (wide + GAP), 0, wide, height));
    const letters = (planes === 3 ? ["R", "G", "B"] : []).map((letter, c) => {
      const { node } = words(letter, c * (wide + GAP) + wide / 2, wide);
      node.setAttribute("transform", `translate(0 ${height})`);
      return node;
    });
    return { node: drawn("g", {}, ...drawings, ...letters), height: height + LINE };
  },
  cut(_, [canvas, one], __, note) {
    const wide = (200 * canvas.width) / canvas.height;
    const { node } = words(note, wide + 2 * GAP, SCENE - wide);
    node.setAttribute("transform", "translate(0 110)");
    return { height: 200, node: drawn("g", {}, pixelsOf(canvas, 0, 0, wide, 200),
      pixelsOf(one, wide + 2 * GAP, 0, (100 * one.width) / one.height, 100), node) };
  },
  patch: (item, _, { colours }, note) => labelled({ ...item, label: "", note }, 23, [], colours),
};

/** The picture with the shown tokens, and the scene beside it.
 * @param {object} given
 * @param {Item[]} given.items of the scene @param {Element[]} given.nodes of these items on the page
 * @param {any} given.picture @param {string | undefined} given.photo its address
 * @param {{ patch: number, grid: Grid, name: string, role: "query" | "key" }[]} given.tokens
 * @param {any} given.data what the host sent */
export function sceneDrawing({ items, nodes, picture, photo, tokens, data }) {
  const colours = { query: "#006b80", key: "#b4005f" }; // of words
  const factor = PHOTO / picture.width;
  const inPicture = drawn("g", { transform: `scale(${factor})` },
    ...(photo ? background(picture, photo) : []),
    ...tokens.flatMap(({ patch, grid, role }) =>
      (patch < 0 ? [] : boxed(patch, grid, data[`${role}Colour`], role === "key", factor))));
  const left = [{ node: inPicture, height: picture.height * factor },
    ...tokens.map(({ role, name }) => words(name, 0, PHOTO, { fill: colours[role] }))];
  const right = items.map((item, i) => ROWS[item.kind](item, [...nodes[i].querySelectorAll("canvas")],
    { colours, keyColour: data.keyColour, planes: data.facts.planes.length }, nodes[i].querySelector(".note, .cut span")?.textContent ?? ""));
  const [one, two] = [stacked(left), stacked(right)];
  two.node.setAttribute("transform", `translate(${PHOTO + 2 * GAP} 0)`);
  return { drawn: drawn("g", {}, one.node, two.node), width: PHOTO + 2 * GAP + SCENE,
    height: Math.max(one.height, two.height) };
}

/** @param {Row[]} rows @returns {Row} */
function stacked(rows) {
  let top = 0;
  const placed = rows.map(({ node, height }) => {
    const made = drawn("g", { transform: `translate(0 ${top})` }, node);
    top += height + GAP;
    return made;
  });
  return { node: drawn("g", {}, ...placed), height: top };
}

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "text-anchor"];

/** A chart beside the scene, with its legend, at twice its size.
 * @param {Element} figure @param {boolean} bare */
export function chartDrawing(figure, bare) {
  const ground = getComputedStyle(figure).color;
  /** @param {Element} from @param {Element} to */
  const dress = (from, to) => {
    const style = getComputedStyle(from);
    for (const name of STYLES) {
      const value = style.getPropertyValue(name);
      to.setAttribute(name, !bare && value === ground ? INK : value); // on white
    }
    to.setAttribute("font-family", "sans-serif");
    return to;
  };
  const svg = /** @type {SVGSVGElement} */ (figure.querySelector("svg"));
  const { width, height } = svg.viewBox.baseVal;
  const inner = drawn("g", { transform: "scale(2)" },
    ...[...svg.children].map((part) => dress(part, /** @type {Element} */ (part.cloneNode(true)))));
  [...figure.querySelectorAll(".legend span")].forEach((name, i) => {
    const [line] = svg.getElementsByClassName(name.className);
    const [x, y] = [20 + (i * width) / 2, height + 12];
    inner.append(dress(line, drawn("path", { d: `M${x - 16},${y}h20` })),
      drawn("text", { x: x + 10, y: y + 4, fill: bare ? ground : INK, "font-size": 12,
        "font-family": "sans-serif" }, name.textContent ?? ""));
  });
  return { drawn: inner, width: 2 * width, height: 2 * (height + 20) };
}
