// @ts-check
// Small charts: the residual stream by depth, and the shares that attention and MLP add.

import { element } from "../token_map/parts.js";
import { saveMenu } from "../token_map/saving.js";
import { chartDrawing } from "./pictures.js";
import { written } from "./tensors.js";
import { tr } from "../token_map/strings.js";

/** @param {string} name @param {Record<string, string | number>} attributes @param {string} [text] */
function make(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  if (text) node.textContent = text;
  return node;
}

const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [284, 120, 52, 16, 22];

/** A chart of lines over the layers; null is a gap.
 * @param {string} title @param {string} about
 * @param {{ name: string, values: (number | null)[], style: string }[]} lines
 * @param {number} first layer of the first value @param {boolean} percent
 * @param {string} provenance */
function chart(title, about, lines, first, percent, provenance) {
  const depth = lines[0].values.length - 1;
  const all = lines.flatMap(({ values }) => values.filter((value) => value !== null));
  const most = Math.max(...all, 1e-30);
  const x = (/** @type {number} */ i) => LEFT + 8 + (i / Math.max(1, depth)) * (WIDTH - LEFT - 16);
  const y = (/** @type {number} */ value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const text = (/** @type {number} */ value) => (percent ? `${written(100 * value, 2)} %` : written(value, 2));
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": about });
  const here = make("line", { x1: 0, x2: 0, y1: TOP, y2: HEIGHT - BOTTOM, class: "here" });
  svg.append(
    here,
    make("line", { x1: LEFT, x2: WIDTH, y1: y(0), y2: y(0), class: "axis" }),
    make("text", { x: LEFT - 5, y: y(0) + 4, "text-anchor": "end" }, "0"),
    make("text", { x: LEFT - 5, y: TOP + 5, "text-anchor": "end" }, text(most)));
  const step = Math.ceil((depth + 1) / 8);
  for (let i = 0; i <= depth; i++)
    if (i % step === 0)
      svg.append(make("text", { x: x(i), y: HEIGHT - 5, "text-anchor": "middle" }, String(i + first)));
  for (const { values, style } of lines) {
    /** @type {string[][]} */
    const runs = [[]]; // of layers, between the gaps
    values.forEach((value, i) => {
      if (value === null) runs.push([]);
      else runs[runs.length - 1].push(`${x(i)},${y(value)}`);
    });
    for (const run of runs.filter(({ length }) => length))
      svg.append(make("polyline", { points: run.join(" "), class: style }));
    values.forEach((value, i) => {
      if (value === null) return;
      const dot = make("circle", { cx: x(i), cy: y(value), r: 3, class: style });
      svg.append(dot);
    });
  }
  const legend = element("div", { className: "legend" },
    ...lines.map(({ name, style }) => element("span", { className: style, textContent: name })));
  const mark = (/** @type {number} */ layer) => {
    here.setAttribute("x1", String(x(layer - first)));
    here.setAttribute("x2", String(x(layer - first)));
  };
  const figure = element("figure", {});
  const menu = saveMenu((bare) => ({ ...chartDrawing(figure, bare), title, words: about, provenance }));
  figure.append(element("div", { className: "over" }, element("h4", { textContent: title }), menu),
    svg, legend);
  return { node: figure, mark };
}

/** @param {{ cls: (number | null)[], patches: (number | null)[], attention: (number | null)[],
 *   mlp: (number | null)[] }} residual @param {string} provenance */
export function residualCharts({ cls, patches, attention, mlp }, provenance) {
  const last = (/** @type {(number | null)[]} */ values) => values.filter((value) => value !== null).slice(-1)[0];
  const some = (/** @type {(number | null)[]} */ values) => values.some((value) => value !== null);
  const lines = [
    { name: tr("mean of patches"), values: patches, style: "patches" },
    { name: "CLS", values: cls, style: "cls" },
  ].filter(({ values }) => some(values));
  const shares = [
    { name: tr("attention"), values: attention, style: "attn" },
    { name: "MLP", values: mlp, style: "mlp" },
  ].filter(({ values }) => some(values));
  const charts = [chart(tr("Residual stream: ‖z‖ by layer"),
    tr("Length of the tokens by layer: {ends}.", { ends: lines.map(({ name, values }) =>
      tr("{name} ends at {length}", { name, length: written(last(values) ?? 0) })).join(", ") }),
    lines, 0, false, provenance)];
  if (shares.length)
    charts.push(chart(tr("Added by each layer, share of ‖z‖"),
      tr("Share of a token's length that each layer adds: {shares}.", { shares: shares.map(({ name, values }) =>
        tr("{name} of the last layer {share} %", { name, share: written(100 * (last(values) ?? 0)) })).join(", ") }),
      shares, 1, true, provenance));
  return {
    node: element("div", { className: "charts" }, ...charts.map(({ node }) => node)),
    /** @param {number} layer counted from 1 */
    mark(layer) {
      charts[0].mark(layer);
      charts[1]?.mark(layer);
    },
  };
}
