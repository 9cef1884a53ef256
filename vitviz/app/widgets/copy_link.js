// Copies the address; where the browser does not allow it, as without HTTPS, shows it to be copied.

/** @import { Host } from "../../web/token_map/component.js" */

const SAID_FOR = 4000; // milliseconds

/** @param {Host} host */
export default function mount({ data, parentElement }) {
  if (!parentElement.button) build(parentElement);
  parentElement.button.textContent = data.words.copy;
  parentElement.field.setAttribute("aria-label", data.words.link);
  const { button, field, status } = parentElement;
  button.onclick = async () => {
    clearTimeout(parentElement.timer);
    field.value = location.href;
    field.hidden = true;
    const end = () => {
      status.textContent = "";
      field.hidden = true;
    };
    try {
      await navigator.clipboard.writeText(field.value);
      status.textContent = `${data.words.copied} ${data.note}`;
      parentElement.timer = setTimeout(end, SAID_FOR);
    } catch {
      field.hidden = false;
      field.focus();
      field.select();
      field.onblur = end;
      status.textContent = `${data.words.press} ${data.note}`;
    }
  };
  return () => clearTimeout(parentElement.timer);
}

/** @param {any} parent */
function build(parent) {
  parent.button = Object.assign(document.createElement("button"), { type: "button" });
  parent.field = Object.assign(document.createElement("input"), { readOnly: true, hidden: true });
  parent.status = document.createElement("p");
  parent.status.setAttribute("role", "status");
  parent.append(parent.button, parent.field, parent.status);
}
