// @ts-check
// The chart of mean attention distance, with a dot for every head; a click on it chooses the head.

import { element } from "./parts.js";
import { tr } from "./strings.js";

/** @import { Distance } from "./message.js" */

const [HEIGHT, TOP, BOTTOM] = [118, 8, 22];
/** @type {Record<string, number>} */
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {string} [text] */
function svg(name, attributes, text) {
  const made = /** @type {SVGElement} */ (
    document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text) made.textContent = text;
  return made;
}

/** The Tab key reaches one dot, at first the chosen one; arrow keys go to its neighbours. */
export class DistanceChart {
  shown = ""; // which dot is marked

  /** @param {Distance} distance @param {(layer: number, head: number) => void} choose */
  constructor({ values, equal, side }, choose) {
    const max = 1.05 * Math.max(...[...equal, ...values.flat()].map((value) => value ?? 0));
    const wide = 100 / values.length; // of a layer, per cent: the chart is as wide as its place
    const y = (/** @type {number} */ value) =>
      TOP + (1 - value / max) * (HEIGHT - TOP - BOTTOM);
    const chart = svg("svg", { height: HEIGHT, role: "group",
      "aria-label": tr("Mean attention distance of every head, in pixels of {side}", { side }) });
    equal.forEach((value, layer) => {
      if (value === null) return;
      const [x1, x2] = [`${layer * wide}%`, `${(layer + 1) * wide}%`];
      chart.append(svg("line", { x1, x2, y1: y(value), y2: y(value), class: "equal" }));
    });
    const most = Math.max(...equal.map((value) => value ?? 0));
    const same = equal.every((value) => value === null || value === most);
    chart.append(
      svg("text", { x: "100%", y: y(0) - 7, "text-anchor": "end" }, // deep heads rarely attend near
        tr("dashed: equal sharing") + (same ? ` ${most.toFixed(1)} px` : "")),
      svg("text", { x: -6, y: y(0) + 4, "text-anchor": "end" }, "0"),
      svg("text", { x: -6, y: y(most) + 5, "text-anchor": "end" }, most.toFixed(0)),
      svg("line", { x1: 0, x2: "100%", y1: y(0), y2: y(0), class: "axis" }));
    const step = Math.ceil(values.length / 16);
    /** @type {{ layer: number, head: number, node: SVGElement }[]} */
    this.dots = [];
    values.forEach((heads, layer) => {
      const middle = (layer + 0.5) * wide;
      if (layer % step === 0)
        chart.append(
          svg("text", { x: `${middle}%`, y: HEIGHT - 4, "text-anchor": "middle" }, `${layer + 1}`));
      heads.forEach((value, head) => {
        if (value === null) return;
        const said = tr("layer {layer}, head {head}: {pixels} px", { layer: layer + 1, head: head + 1, pixels: value.toFixed(1) });
        const cx = `${middle + 0.5 * ((head + 0.5) / heads.length - 0.5) * wide}%`;
        const node = svg("circle", { cx, cy: y(value), role: "button", "aria-label": said });
        node.append(svg("title", {}, said));
        node.addEventListener("click", () => choose(layer, head));
        chart.append(node);
        this.dots.push({ layer, head, node });
      });
    });
    chart.addEventListener("keydown", (event) => this.#press(event, choose));
    const title = element("h4", { textContent: tr("Mean attention distance") },
      element("small", { textContent: tr(" by layer, px; click a dot") }));
    this.node = element("div", { className: "distance" }, title, chart);
    // Not on the chart: in Chromium the Tab key would stop at SVG that listens for focus.
    this.node.addEventListener("focusin", ({ target }) => this.#stopAt(target));
  }

  /** @param {KeyboardEvent} event @param {(layer: number, head: number) => void} choose */
  #press(event, choose) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.dots.findIndex(({ node }) => node === event.target);
    if (event.key === "Enter" || event.key === " ") choose(this.dots[at].layer, this.dots[at].head);
    else if (event.key in STEPS) this.dots[at + STEPS[event.key]]?.node.focus();
    else return;
    event.preventDefault();
    event.stopPropagation(); // arrows move the query elsewhere
  }

  /** Set the dot that the Tab key reaches.
   * @param {EventTarget | null} chosen */
  #stopAt(chosen) {
    for (const { node } of this.dots) node.setAttribute("tabindex", node === chosen ? "0" : "-1");
  }

  /** @param {number} layer @param {number} head */
  mark(layer, head) {
    const shown = `${layer} ${head}`;
    if (this.shown === shown) return;
    this.shown = shown;
    for (const dot of this.dots) {
      const here = dot.layer === layer && dot.head === head;
      dot.node.setAttribute("class", here ? "head" : dot.layer === layer ? "layer" : "");
      dot.node.setAttribute("r", here ? "7" : "4.5");
      dot.node.setAttribute("aria-pressed", String(here));
    }
    const ofLayer = this.dots.filter((dot) => dot.layer === layer);
    this.#stopAt((ofLayer.find((dot) => dot.head === head) ?? ofLayer[0] ?? this.dots[0])?.node);
  }
}
