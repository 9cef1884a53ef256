// A menu at each figure of the page that saves it as a picture. A figure is drawn by Streamlit; what
// is saved is what stands on the screen, layer on layer, without what belongs to the pointer.

import { INK, drawn, saveMenu } from "../../web/token_map/saving.js";
import { speak, tr } from "../../web/token_map/strings.js";

/** @import { Host } from "../../web/token_map/component.js" */
/** @import { Drawing } from "../../web/token_map/saving.js" */

/** @param {Host} host */
export default function mount({ data }) {
  speak(data.strings);
  offer();
  const observer = new MutationObserver(offer);
  observer.observe(document.querySelector("[data-testid=stMain]") ?? document.body,
    { childList: true, subtree: true });
  return () => observer.disconnect();
}

function offer() {
  for (const figure of document.querySelectorAll(".js-plotly-plot .main-svg:first-of-type")) {
    const place = /** @type {any} */ (figure.closest(".stPlotlyChart"));
    if (!place || place.saveMenu?.isConnected) continue;
    place.saveMenu = saveMenu((/** @type {boolean} */ bare) => drawing(place.querySelector(".js-plotly-plot"), bare));
    place.append(place.saveMenu);
  }
}

/** @param {any} plot @param {boolean} bare @returns {Drawing} */
function drawing(plot, bare) {
  const [first, ...others] = plot.querySelectorAll(".main-svg");
  const { width, height } = first.getBoundingClientRect();
  const inner = drawn("g");
  const colour = bare ? getComputedStyle(plot.querySelector("text") ?? plot).fill : INK; // on white
  for (const layer of [first, ...others])
    for (const part of layer.children) {
      if (part.matches(".hoverlayer, .zoomlayer, .selectionlayer")) continue;
      const copy = part.cloneNode(true);
      if (bare) for (const bar of copy.querySelectorAll(".colorbar")) bar.remove();
      // Words with a shadow stand on a picture or a cell, and have their own colour, as on screen.
      for (const text of copy.querySelectorAll('text:not([style*="text-shadow"])')) text.style.fill = colour;
      inner.append(copy);
    }
  for (const part of inner.querySelectorAll("[clip-path]")) { // named by the page, where it has a base
    const clip = part.getAttribute("clip-path")?.match(/#[^"')]+/);
    if (clip) part.setAttribute("clip-path", `url(${clip[0]})`);
  }
  const words = plot.layout?.meta?.alt ?? "";
  const line = document.querySelector(".st-key-provenance p");
  const title = heading(plot);
  return { drawn: inner, width, height, title, words, provenance: line?.textContent?.trim() ?? "" };
}

/** The last heading above the figure. @param {Node} plot */
function heading(plot) {
  const above = [...document.querySelectorAll("[data-testid=stMain] :is(h1, h2, h3, h4)")]
    .filter((one) => one.compareDocumentPosition(plot) & Node.DOCUMENT_POSITION_FOLLOWING);
  return above.at(-1)?.textContent?.trim() ?? tr("Figure");
}
