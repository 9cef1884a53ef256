// Sends a pasted picture to the server: by the button, or by Ctrl+V anywhere on the page.

const LIMIT = 25e6; // bytes, as for uploads

export default function mount({ data, parentElement, setTriggerValue }) {
  const send = (blob, say) => {
    if (blob.size > LIMIT) return say("The picture is larger than 25 MB.");
    say("");
    const reader = new FileReader();
    reader.onload = () => setTriggerValue("picture", reader.result.split(",")[1] ?? "");
    reader.readAsDataURL(blob);
    return undefined;
  };
  if (data.button) {
    drawButton(parentElement, send);
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

function drawButton(parent, send) {
  if (!parent.button) {
    parent.button = document.createElement("button");
    parent.button.type = "button";
    parent.button.textContent = "Paste from the clipboard";
    parent.status = document.createElement("p");
    parent.status.setAttribute("role", "status");
    parent.append(parent.button, parent.status);
  }
  const say = (words) => {
    parent.status.textContent = words;
  };
  parent.button.onclick = async () => {
    if (!navigator.clipboard?.read) return say("This browser gives no access here: press Ctrl+V.");
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((name) => name.startsWith("image/"));
        if (type) return send(await item.getType(type), say);
      }
      return say("There is no picture on the clipboard.");
    } catch {
      return say("The browser does not allow it: press Ctrl+V.");
    }
  };
}
