// Sends a reader's picture to the server, as Streamlit's uploader does: from the clipboard, by the
// button or by Ctrl+V anywhere on the page, or from a phone's own camera. The page then tells the
// server of it; also of a file whose uploader is gone, as its box was closed while it was sent.

/** @import { Host } from "../../web/token_map/component.js" */
/** @typedef {{ name: string | null, problem: "" | "large" | "many" | "broken" }} Sent */
/** @typedef {Record<string, string>} Words */
/** @typedef {(words: Words, parent: any) => string | Promise<string>} Take */

const LIMIT = 25e6; // bytes, as for uploads
/** @type {Record<number, "large" | "many">} */ const PROBLEMS = { 413: "large", 429: "many" };
const PATIENCE = 1500; // milliseconds in which an uploader tells of its file by itself
const UPLOAD = /_stcore\/upload_file\/[^/]+\/([^/?]+)$/;

/** @type {any} */ let page = null; // what listens now; none on pages without the picture's controls
/** @type {Map<string, Sent & { due: number }>} */
const arrived = new Map(); // what the server is to be told, by the file's id

/** @param {Host} host */
export default function mount({ data, parentElement, setTriggerValue }) {
  if (data.kind !== "page") {
    drawButton(parentElement, data.words, data.kind === "camera" ? takePhoto : readClipboard);
    return undefined;
  }
  const mounted = { ...data, tell: (/** @type {any} */ sent) => setTriggerValue("sent", sent) };
  page = mounted;
  document.addEventListener("paste", onPaste); // once, however often it is mounted
  tell();
  return () => {
    if (page === mounted) page = null;
  };
}

function tell() {
  if (!page) return;
  for (const id of page.taken) arrived.delete(id);
  for (const [id, { due, ...sent }] of arrived)
    if (due <= Date.now()) return page.tell({ id, ...sent });
  return undefined;
}

/** @param {string} id of a file @param {Sent} sent */
function note(id, sent, after = 0) {
  arrived.set(id, { ...sent, due: Date.now() + after });
  setTimeout(tell, after);
}

new PerformanceObserver((list) => {
  const entries = /** @type {PerformanceResourceTiming[]} */ (list.getEntries());
  for (const { initiatorType, name, responseStatus = 204 } of entries) { // not in Safari
    const [, id] = (initiatorType === "xmlhttprequest" && name.match(UPLOAD)) || [];
    const open = document.querySelector("[data-testid=stFileUploader]"); // it shows its own errors
    if (id && responseStatus === 204) note(id, { name: null, problem: "" }, PATIENCE);
    else if (id && !open) note(id, { name: null, problem: "broken" });
  }
}).observe({ type: "resource" });

// When the network is back, the page first sends its old menu of pictures. That would undo the choice
// of a file which the server has received, and of which the page has not heard.
document.addEventListener("vitviz:reconnected", () => {
  for (const sent of arrived.values()) sent.due = 0;
  tell();
});

/** @param {Blob} file @param {string} name */
async function send(file, name) {
  const id = `${Date.now()}-${Math.random().toString(36).slice(2)}`;
  if (file.size > LIMIT) {
    note(id, { name, problem: "large" });
    return;
  }
  const body = new FormData();
  body.append("file", file, name);
  const token = document.cookie.match(/\b_streamlit_xsrf=([^;]*)/)?.[1];
  /** @type {Record<string, string>} */ const headers = token ? { "X-Xsrftoken": token } : {};
  const place = `_stcore/upload_file/${page?.session}/${id}`; // beside the page, behind a proxy too
  const answer = await fetch(place, { method: "PUT", body, headers }).catch(() => null);
  note(id, { name, problem: answer?.ok ? "" : PROBLEMS[answer?.status ?? 0] ?? "broken" });
}

/** @param {ClipboardEvent} event */
function onPaste({ clipboardData }) {
  const files = [...(clipboardData?.files ?? [])];
  // One whose kind the browser does not know is sent too: the server says what it is.
  const picture = files.find((file) => file.type.startsWith("image/")) ?? files[0];
  if (page && picture) send(picture, page.words.clipboard);
}

/** @param {any} parent @param {Words} words @param {Take} take */
function drawButton(parent, words, take) {
  if (!parent.button) {
    parent.button = Object.assign(document.createElement("button"), { type: "button" });
    parent.status = document.createElement("p");
    parent.status.setAttribute("role", "status");
    const photo = { type: "file", accept: "image/*", hidden: true };
    parent.input = Object.assign(document.createElement("input"), photo);
    parent.input.setAttribute("capture", "environment"); // no property in browsers of desktops
    parent.append(parent.button, parent.status, ...(take === takePhoto ? [parent.input] : []));
  }
  parent.button.textContent = words.button;
  parent.input.onchange = () => {
    for (const photo of parent.input.files) send(photo, photo.name);
  };
  parent.button.onclick = async () => {
    parent.status.textContent = await take(words, parent);
  };
}

/** @type {Take} */
async function readClipboard(words) {
  if (!navigator.clipboard?.read) return words.closed;
  try {
    for (const item of await navigator.clipboard.read()) {
      const type = item.types.find((name) => name.startsWith("image/"));
      if (type) {
        send(await item.getType(type), words.clipboard);
        return "";
      }
    }
    return words.empty;
  } catch {
    return words.denied;
  }
}

/** @type {Take} */
function takePhoto(_, { input }) {
  input.click();
  return "";
}
