// The sample pictures as thumbnails; a click chooses one.

/** @import { Host } from "../../web/token_map/component.js" */

/** @param {Host} host */
export default function mount({ data, parentElement, setTriggerValue }) {
  const box = document.createElement("div");
  box.className = "thumbnails";
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", data.label);
  for (const { name, title, source } of data.samples) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = title;
    button.setAttribute("aria-label", title);
    button.setAttribute("aria-pressed", String(name === data.chosen));
    button.style.backgroundImage = `url(${source})`;
    button.onclick = () => setTriggerValue("picked", name);
    box.append(button);
  }
  parentElement.querySelector(".thumbnails")?.remove();
  parentElement.append(box);
}
