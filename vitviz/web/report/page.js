
// Show the components and figures of a report. Each script of the file is a component followed by a
// call of a function here; figures are drawn by Plotly. All numbers are compressed.

import { allUnpacked, unpacked } from "./unpacked.js";

/** @import { Host } from "../token_map/component.js" */

const idOf = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const dataOf = (/** @type {string} */ part) => JSON.parse(idOf(`data-${part}`).textContent ?? "");

/** @param {string} part @param {(host: Host) => void} mountIn */
export async function showAll(part, mountIn) {
  const [{ components, style }, photos] = [dataOf(part), dataOf("photos")];
  const setTriggerValue = () => {}; // there is no host to inform
  for (const [id, { stacks, view }] of Object.entries(components)) {
    const root = idOf(id).attachShadow({ mode: "open" });
    root.append(Object.assign(document.createElement("style"), { textContent: style }));
    for (const { stack, columns } of stacks) {
      const numbers = await allUnpacked(columns);
      const picture = stack.picture === undefined ? {} : { picture: photos[stack.picture] };
      mountIn({ data: { stack: { ...stack, ...picture }, ...numbers }, parentElement: root, setTriggerValue });
    }
    mountIn({ data: view, parentElement: root, setTriggerValue });
  }
  done(part);
}

/** @param {string} part */
export async function showFigures(part) {
  const { figures, plotly } = dataOf(part);
  const source = new TextDecoder().decode(await unpacked(plotly));
  document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
  for (const [id, { data, layout }] of Object.entries(figures))
    await /** @type {any} */ (globalThis).Plotly.newPlot(id, data, layout, { displayModeBar: false, responsive: true });
  done(part);
}

/** @param {string} part */
function done(part) {
  const { dataset } = document.body;
  dataset.waiting = dataset.waiting?.split(" ").filter((other) => other !== part).join(" ");
  if (!dataset.waiting) dataset.ready = "";
}

