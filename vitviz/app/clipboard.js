// Sends a pasted picture to the server: by the button, or by Ctrl+V anywhere on the page.

const LIMIT = 25e6; // bytes, as for uploads

export default function mount({ parentElement, setTriggerValue }) {
  const button = parentElement.querySelector("button");
  const status = parentElement.querySelector("p");
  const say = (words) => (status.textContent = words);

  const send = (blob) => {
    if (blob.size > LIMIT) return say("The picture is larger than 25 MB.");
    say("");
    const reader = new FileReader();
    reader.onload = () => setTriggerValue("picture", reader.result.split(",")[1] ?? "");
    reader.readAsDataURL(blob);
  };

  button.onclick = async () => {
    if (!navigator.clipboard?.read) return say("This browser gives no access here: press Ctrl+V.");
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((name) => name.startsWith("image/"));
        if (type) return send(await item.getType(type));
      }
      say("There is no picture on the clipboard.");
    } catch {
      say("The browser does not allow it: press Ctrl+V.");
    }
  };

  const onPaste = (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
    if (file) send(file);
  };
  if (parentElement.onPaste) document.removeEventListener("paste", parentElement.onPaste);
  parentElement.onPaste = onPaste;
  document.addEventListener("paste", onPaste);
  return () => document.removeEventListener("paste", onPaste);
}
