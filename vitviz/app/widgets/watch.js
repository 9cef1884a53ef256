// Asks the server once a second whether what the class shares has changed since this page was
// drawn, and if so has it drawn again. The answer is a count or two; nothing is asked while the
// page is hidden. The address is relative to the page's own, which may have the prefix of a proxy.

/** @import { Host } from "../../web/token_map/component.js" */

const INTERVAL = 1000; // milliseconds
const PATIENCE = 10000; // milliseconds after which a change that was told is told again

/** @param {Host} host */
export default function mount({ data, parentElement, setTriggerValue }) {
  const told = (parentElement.told ??= { count: data.seen, at: 0 });
  clearInterval(parentElement.timer);
  parentElement.timer = setInterval(async () => {
    if (document.hidden) return;
    const answer = await fetch("class").then((said) => said.json()).catch(() => null);
    const count = answer?.[data.what] ?? data.seen;
    if (count === data.seen) return;
    if (count === told.count && Date.now() - told.at < PATIENCE) return;
    Object.assign(told, { count, at: Date.now() });
    setTriggerValue("changed", count);
  }, INTERVAL);
  return () => clearInterval(parentElement.timer);
}
