// @ts-check
// Put the items of a scene on the page. A node is kept if the next scene has an item of the same
// kind in its place, so that the element under the pointer does not change.

import { contextOf, element } from "../token_map/parts.js";
import { BOXES, part } from "./boxes.js";
import { boxesAround, drawBars, drawCut, drawMatrix, drawStrip, folded, inCell, pixels, rich, sizeOf } from "./drawing.js";
import { tokens, waiting } from "./scenes.js";
import { STEPS } from "./steps.js";
import { written } from "./tensors.js";
import { percent } from "../token_map/maps.js";
import { tr } from "../token_map/strings.js";

/** @import { Item, Scene } from "./scenes.js" */

/** @param {Scene} scene @returns {Item[]} */
export function itemsOf(scene) {
  const { card, box } = scene;
  if (box) return (BOXES[box] ?? part)(scene) ?? waiting();
  const named = scene.steps.get(card.id);
  return (STEPS[card.name] ?? ((s) => named && tokens(s, named)))(scene) ?? waiting();
}

/** @param {string} kind */
function made(kind) {
  const node = element("div", { className: `item ${kind}` });
  if (kind === "line") return node;
  if (kind === "table") {
    node.append(element("table"));
    return node;
  }
  if (kind === "grid") {
    node.append(element("div", {}, element("span", { className: "label" }), element("span", { className: "note" })),
      element("table"));
    return node;
  }
  const canvas = element("canvas", { aria: { role: "img" } });
  if (kind === "channels") {
    const planes = ["R", "G", "B"].map((textContent) =>
      element("div", {}, element("canvas", { aria: { role: "img" } }), element("span", { textContent })));
    node.append(element("div", { className: "three" }, ...planes));
    return node;
  }
  if (kind === "cut") {
    node.append(canvas, element("div", {}, element("canvas", { aria: { role: "img" } }), element("span")));
    return node;
  }
  node.append(element("span", { className: "label" }),
    element("div", { className: "drawn" }, canvas, element("i", { hidden: true })),
    element("span", { className: "note" }));
  return node;
}

/** @param {HTMLElement} node @param {string} text */
function write(node, text) {
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  node.replaceChildren(...rich(text));
}

/** Show the items of a scene.
 * @param {HTMLElement} place @param {Scene} scene @param {any} look
 * `look`: lut, ink, picture */
export function showScene(place, scene, look) {
  const items = itemsOf(scene);
  items.forEach((item, index) => {
    let node = /** @type {HTMLElement} */ (place.children[index]);
    if (!node || node.dataset.kind !== item.kind) {
      const next = made(item.kind);
      next.dataset.kind = item.kind;
      if (node) node.replaceWith(next);
      else place.append(next);
      node = next;
    }
    SHOW[item.kind](node, item, scene, look);
  });
  while (place.children.length > items.length) place.lastChild?.remove();
  return items;
}

/** @type {Record<string, (node: any, item: any, scene: any, look: any) => void>} */
const SHOW = {
  line(node, { label }) {
    write(node, label);
  },
  strip(node, item, scene, { lut }) {
    const [label, drawn, note] = node.children;
    const canvas = drawn.firstChild;
    write(label, item.label);
    label.className = `label ${item.tone ?? ""}`;
    write(note, item.note ?? "");
    drawStrip(canvas, item.values, item.limit, lut, item.end);
    const few = [...item.values].slice(0, 3).map((value) => written(value)).join(", ");
    canvas.setAttribute("aria-label", tr("{label}: {note}; it begins with {few}",
      { label: item.label.replace(/[_^{}]/g, ""), note: item.note, few }));
    const from = item.part ?? (item.mark >= 0 ? [item.mark, 1] : null);
    const boxes = from ? boxesAround(from[0], from[1], item.values.length) : [];
    while (drawn.children.length <= boxes.length) drawn.append(element("i"));
    [...drawn.children].slice(1).forEach((part, at) => {
      part.hidden = !boxes[at];
      if (part.hidden) return;
      const [left, top, width, height] = boxes[at].map((/** @type {number} */ share) => 100 * share);
      Object.assign(part.style, { left: `${left}%`, width: `${width}%`, top: `calc(${top}% - 2px)`,
        bottom: `calc(${100 - top - height}% - 2px)` });
    });
    listen(canvas, folded(item.values.length), item.values.length, item.pick);
  },
  bars(node, item, scene, { ink }) {
    const [label, { firstChild: canvas }, note] = node.children;
    write(label, item.label);
    write(note, item.note);
    drawBars(canvas, item.values, item.mark, item.grown, ink, scene.data.keyColour);
    canvas.tabIndex = 0;
    canvas.setAttribute("aria-label",
      tr("{label} of all {keys} keys, {note}; the key has {value}", { label: item.label, keys: item.values.length, note: item.note, value: written(item.values[item.mark]) }));
    listen(canvas, [item.values.length, 1], item.values.length, item.pick);
  },
  matrix(node, item, scene, { lut }) {
    const [label, { firstChild: canvas, lastChild: mark }, note] = node.children;
    write(label, item.label);
    const most = 96;
    if (node.drawn !== item.tensor) {
      const limit = drawMatrix(canvas, item.tensor, most, 256, lut);
      node.drawn = item.tensor;
      const all = item.tensor.rows <= most && item.tensor.width <= 256 ? "" : tr(", evenly spaced rows and columns");
      write(note, `${item.tensor.shape.join(" × ")}, ±${written(limit, 2)}${all}`);
      canvas.setAttribute("aria-label", `${item.label}: ${note.textContent}`);
    }
    mark.hidden = !(item.mark >= 0);
    mark.className = "row";
    Object.assign(mark.style, { top: `${(100 * item.mark) / item.tensor.rows}%`,
      height: `${Math.max(2, 100 / item.tensor.rows)}%` });
  },
  grid(node, { label, note, values, cols, mark, key, shares, pick }, scene) {
    const [{ firstChild: name, lastChild: words }, table] = node.children;
    write(name, label);
    write(words, note);
    const limit = sizeOf(values);
    if (node.drawn !== values) {
      node.drawn = values;
      const tokens = Array.from({ length: Math.max(cols, values.length / cols) }, (_, token) => scene.data.nameOf(token));
      const head = (/** @type {number} */ token, /** @type {string} */ scope) =>
        element("th", { scope, textContent: shortName(tokens[token], token, scene), title: tokens[token] });
      const rows = Array.from({ length: values.length / cols }, (_, query) =>
        element("tr", {}, head(query, "row"), ...Array.from({ length: cols }, (_, each) => {
          const value = values[query * cols + each];
          const cell = element("td", { textContent: inCell(value, shares),
            title: `${tokens[query]} → ${tokens[each]}: ${shares ? percent(value) : written(value)}` });
          cell.style.setProperty("--size", `${Math.round((60 * Math.abs(value)) / limit)}%`);
          cell.className = value < 0 ? "below" : "";
          cell.onclick = () => pick(query * cols + each);
          return cell;
        })));
      table.replaceChildren(element("thead", {}, element("tr", {}, element("td"),
        ...Array.from({ length: cols }, (_, each) => head(each, "col")))), element("tbody", {}, ...rows));
      table.setAttribute("aria-label", `${label}: ${note}`);
    }
    table.querySelectorAll("tbody tr").forEach((/** @type {HTMLElement} */ line, /** @type {number} */ query) => {
      line.classList.toggle("query", query === mark);
      [...line.children].forEach((cell, each) => cell.classList.toggle("key", each === key + 1));
    });
  },
  table(node, item) {
    const table = node.firstChild;
    const size = `${item.head.length} ${item.rows.length}`;
    if (node.dataset.size !== size) { // rows stay: one has the focus, or is pressed
      node.dataset.size = size;
      const empty = (/** @type {"td" | "th"} */ tag) =>
        element("tr", {}, ...item.head.map(() => element(tag, {}, element("span"))));
      table.replaceChildren(element("thead", {}, empty("th")), ...item.rows.map(() => empty("td")));
      for (const line of [...table.children].slice(1)) line.lastChild.append(element("i"));
    }
    /** @param {any} line @param {string[]} cells */
    const fill = (line, cells) => cells.forEach((text, c) => write(line.children[c].firstChild, text));
    const [head, ...lines] = table.children;
    fill(head.firstChild, item.head);
    lines.forEach((/** @type {any} */ line, /** @type {number} */ r) => {
      fill(line, item.rows[r]);
      line.className = r === item.mark ? "chosen" : "";
      line.title = item.titles?.[r] ?? "";
      line.lastChild.lastChild.style.width = `${100 * (item.shares?.[r] ?? 0)}%`;
      if (!item.pick) line.removeAttribute("tabindex");
      else line.tabIndex = 0;
      line.onclick = item.pick ? () => item.pick(r) : null;
      line.onkeydown = item.pick ? (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter") item.pick(r);
      } : null;
    });
  },
  channels(node, item, scene, { lut }) {
    if (node.drawn === item.tensor) return;
    node.drawn = item.tensor;
    const { planes } = scene.data.facts;
    const colours = planes.length === 3 ? [tr("red"), tr("green"), tr("blue")] : [tr("first channel")];
    [...node.firstChild.children].forEach((/** @type {HTMLElement} */ plane, /** @type {number} */ c) => {
      const [canvas, letter] = /** @type {any} */ (plane.children);
      plane.hidden = letter.hidden = c >= planes.length;
      if (plane.hidden) return;
      letter.hidden = planes.length === 1;
      copy(canvas, pixels(item.tensor, planes[c], scene.data.facts, lut));
      canvas.setAttribute("aria-label", tr("The picture's {colour} as the model gets it", { colour: colours[c] }));
    });
  },
  cut(node, item, scene, look) {
    const [canvas, { firstChild: one, lastChild: words }] = node.children;
    const { grid } = scene.data.facts;
    const { picture } = look;
    if (!picture) return;
    drawCut(canvas, picture, grid[0], grid[1], 0.14 * item.grown, scene.patch,
      scene.data.queryColour);
    canvas.setAttribute("aria-label", tr("The picture in {rows} × {cols} patches", { rows: grid[0], cols: grid[1] }));
    const [height, width] = [picture.height / grid[0], picture.width / grid[1]];
    [one.width, one.height] = [width, height];
    contextOf(one).drawImage(picture, (scene.patch % grid[1]) * width, Math.floor(scene.patch / grid[1]) * height,
      width, height, 0, 0, width, height);
    one.setAttribute("aria-label", tr("The chosen patch"));
    write(words, tr("one patch: {height} × {width} pixels", { height: Math.round(height), width: Math.round(width) }));
  },
  patch(node, item, scene) {
    const [label, , note] = node.children;
    write(label, "");
    write(note, tr("{grid} cells", { grid: scene.data.facts.grid.join(" × ") }));
  },
};

/** What a token is called at the edge of a grid: its row and column in the picture, else its name.
 * @param {string} name @param {number} token @param {any} scene */
function shortName(name, token, { data: { shape: { prefix, cols } } }) {
  const patch = token - prefix.length;
  return patch < 0 ? name : `${Math.floor(patch / cols) + 1}.${(patch % cols) + 1}`;
}

/** @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} from */
function copy(canvas, from) {
  [canvas.width, canvas.height] = [from.width, from.height];
  contextOf(canvas).drawImage(from, 0, 0);
}

/** @param {HTMLCanvasElement} canvas @param {[width: number, lines: number]} size in numbers
 * @param {number} count @param {((index: number) => void) | undefined} pick */
function listen(canvas, [across, lines], count, pick) {
  canvas.style.cursor = pick ? "pointer" : "";
  canvas.onclick = pick ? (event) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const [column, line] = [((event.clientX - left) / width) * across, ((event.clientY - top) / height) * lines]
      .map((at, axis) => Math.min((axis ? lines : across) - 1, Math.max(0, Math.floor(at))));
    pick(Math.min(count - 1, line * across + column));
  } : null;
}
