// Copies the address; where the browser does not allow it, as without HTTPS, shows it to be copied.

const SAID_FOR = 4000; // milliseconds

export default function mount({ data, parentElement }) {
  if (!parentElement.button) build(parentElement);
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
      status.textContent = `Copied. ${data.note}`;
      parentElement.timer = setTimeout(end, SAID_FOR);
    } catch {
      field.hidden = false;
      field.focus();
      field.select();
      field.onblur = end;
      status.textContent = `Press Ctrl+C to copy. ${data.note}`;
    }
  };
  return () => clearTimeout(parentElement.timer);
}

function build(parent) {
  parent.button = Object.assign(document.createElement("button"), {
    type: "button",
    textContent: "Copy link",
  });
  parent.field = Object.assign(document.createElement("input"), { readOnly: true, hidden: true });
  parent.field.setAttribute("aria-label", "Link to what is on screen");
  parent.status = document.createElement("p");
  parent.status.setAttribute("role", "status");
  parent.append(parent.button, parent.field, parent.status);
}
