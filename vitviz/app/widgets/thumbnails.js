// The sample pictures as thumbnails; a click chooses one.

/** @import { Host } from "../../web/token_map/component.js" */
/** @typedef {{ name: string, title: string, source: string }} Sample */

/** @param {Host} host */
export default function mount({ data, parentElement, setTriggerValue }) {
  const shown = JSON.stringify([data.label, data.samples]);
  if (parentElement.shown !== shown) { // else they stay: the one that was pressed has the focus
    parentElement.shown = shown;
    build(parentElement, data);
  }
  data.samples.forEach((/** @type {Sample} */ { name }, /** @type {number} */ at) => {
    const button = parentElement.querySelectorAll("button")[at];
    button.setAttribute("aria-pressed", String(name === data.chosen));
    button.onclick = () => setTriggerValue("picked", name);
  });
}

/** @param {any} parent @param {{ label: string, samples: Sample[] }} data */
function build(parent, { label, samples }) {
  const box = document.createElement("div");
  box.className = "thumbnails";
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", label);
  for (const { title, source } of samples) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = title;
    button.setAttribute("aria-label", title);
    button.style.backgroundImage = `url(${source})`;
    box.append(button);
  }
  parent.querySelector(".thumbnails")?.remove();
  parent.append(box);
}
