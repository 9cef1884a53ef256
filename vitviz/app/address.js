// What the address asks of the browser: its history holds one entry for each view, and a page that
// has found its server again shows what the address says.

/** @import { Host } from "../web/token_map/component.js" */

let reconnected = () => {};

/** @param {Host} host */
export default function mount({ data, setTriggerValue }) {
  document.documentElement.lang = data.lang;
  reconnected = () => {
    setTriggerValue("reconnected", true);
    document.dispatchEvent(new Event("vitviz:reconnected")); // components tell what was lost
  };
  if (!Object.hasOwn(history, "pushState")) begin();
}

function begin() {
  // Streamlit turns a page in two steps: it drops the settings from the address, and the server
  // writes them again. Each would be an entry, and Back would lead to a page without its settings.
  const push = history.pushState;
  history.pushState = (state, title, url) => {
    const to = new URL(url ?? location.href, location.href);
    if (to.pathname !== location.pathname && !to.search) to.search = location.search;
    push.call(history, state, title, to.href);
  };
  // A server that was started anew knows nothing of this page, and Streamlit asks it for nothing
  // before the reader changes a setting: that change would be lost.
  const app = document.querySelector("[data-test-connection-state]");
  const connection = () => app?.getAttribute("data-test-connection-state");
  let before = connection();
  const changed = () => {
    const now = connection();
    if (now === "CONNECTED" && before !== now) reconnected();
    before = now;
  };
  if (app) new MutationObserver(changed).observe(app, { attributes: true });
}
