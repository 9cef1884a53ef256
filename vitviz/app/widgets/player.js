// Plays a sequence of moments: asks the server for the next one a while after each was drawn.
// Where the reader prefers reduced motion, nothing moves by itself and each press is one step.

/** @import { Host } from "../../web/token_map/component.js" */

const WAIT = 1200; // milliseconds between a moment on screen and the next

/** @param {Host} host */
export default function mount({ data, parentElement, setTriggerValue }) {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const last = data.moment === data.count - 1;
  const next = () => setTriggerValue("moment", (data.moment + 1) % data.count);
  const name = () => data.words[still ? "next" : parentElement.playing ? "pause" : "play"];
  if (!parentElement.button) {
    parentElement.button = document.createElement("button");
    parentElement.button.type = "button";
    parentElement.append(parentElement.button);
  }
  if (last) parentElement.playing = false;
  parentElement.button.textContent = name();
  parentElement.button.onclick = () => {
    clearTimeout(parentElement.timer);
    parentElement.playing = !still && !parentElement.playing;
    parentElement.button.textContent = name();
    if (still || parentElement.playing) next();
  };
  clearTimeout(parentElement.timer);
  if (parentElement.playing) parentElement.timer = setTimeout(next, WAIT);
  return () => clearTimeout(parentElement.timer);
}
