// Sends a pasted picture to the server: by the button, or by Ctrl+V anywhere on the page.

const LIMIT = 25e6; // bytes, as for uploads

export default function mount({ data, parentElement, setTriggerValue }) {
  const send = (blob, say) => {
    if (blob.size > LIMIT) return say(data.words.large);
    say("");
    const reader = new FileReader();
    reader.onload = () => setTriggerValue("picture", reader.result.split(",")[1] ?? "");
    reader.readAsDataURL(blob);
    return undefined;
  };
  if (data.button) {
    drawButton(parentElement, send, data.words);
    return undefined;
  }
  const onPaste = (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const picture = files.find((file) => file.type.startsWith("image/"));
    if (picture) send(picture, (words) => words && setTriggerValue("too_large", true));
  };
  document.removeEventListener("paste", parentElement.onPaste);
  parentElement.onPaste = onPaste;
  document.addEventListener("paste", onPaste);
  return () => document.removeEventListener("paste", onPaste);
}

function drawButton(parent, send, said) {
  if (!parent.button) {
    parent.button = document.createElement("button");
    parent.button.type = "button";
    parent.status = document.createElement("p");
    parent.status.setAttribute("role", "status");
    parent.append(parent.button, parent.status);
  }
  parent.button.textContent = said.paste;
  const say = (words) => {
    parent.status.textContent = words;
  };
  parent.button.onclick = async () => {
    if (!navigator.clipboard?.read) return say(said.closed);
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((name) => name.startsWith("image/"));
        if (type) return send(await item.getType(type), say);
      }
      return say(said.empty);
    } catch {
      return say(said.denied);
    }
  };
}
