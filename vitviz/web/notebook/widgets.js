// A component as a notebook widget: the same module as in the app. It gets its numbers once, follows
// the choice in Python, and sends the choices made in it to Python.

import { allUnpacked } from "../report/unpacked.js";

// JupyterLab and VS Code set their colours, but not the scheme by which light-dark() chooses.
const DARK = '[data-jp-theme-light="false"] .vitviz-live, .vscode-dark .vitviz-live { color-scheme: dark; }';

/** @param {{ model: any, el: HTMLElement }} host */
async function render({ model, el }) {
  const address = URL.createObjectURL(new Blob([model.get("_source")], { type: "text/javascript" }));
  const { default: mount } = await import(address);
  URL.revokeObjectURL(address);
  const host = Object.assign(document.createElement("div"), { className: "vitviz-live" });
  const root = /** @type {any} */ (host.attachShadow({ mode: "open" }));
  const colours = ":host { --st-text-color: var(--jp-ui-font-color1, CanvasText); " +
    "--st-background-color: var(--jp-layout-color0, Canvas); --st-primary-color: light-dark(#0b57d0, #8ab4f8); " +
    "--st-secondary-background-color: var(--jp-layout-color2, ButtonFace); " +
    "--st-code-font: var(--jp-code-font-family, monospace); " +
    "--st-font: var(--jp-ui-font-family, sans-serif); display: block; }";
  root.append(Object.assign(document.createElement("style"),
    { textContent: colours + model.get("_style") }));
  el.append(Object.assign(document.createElement("style"), { textContent: DARK }), host);
  const named = ["layer", "head", "query", ...(model.get("step") === undefined ? [] : ["step"])];
  const chosen = (/** @type {any} */ view) => {
    const [frame, head, query] = [model.get("layer"), model.get("head"), model.get("query")];
    const { home, prefix } = view.shape ?? view.frames[frame];
    const asked = query ?? home;
    const step = named.includes("step") ? { step: model.get("step") } : {};
    return { frame, head: head ?? -1, query: asked, pinned: asked >= prefix.length, ...step };
  };
  const report = (/** @type {string} */ _, /** @type {any} */ { frame, head, query, step }) => {
    model.set("layer", frame);
    model.set("head", head < 0 ? null : head);
    model.set("query", query < 0 ? null : query);
    if (named.includes("step")) model.set("step", step);
    model.save_changes();
  };
  const keep = async (/** @type {any[]} */ stacks) => {
    for (const { stack, columns } of stacks) {
      const numbers = await allUnpacked(columns);
      mount({ data: { stack, ...numbers }, parentElement: root, setTriggerValue: report });
    }
  };
  const show = () => {
    const { commits } = root.view ?? {};
    const view = model.get("_view");
    // What was chosen a moment ago is newer than what Python answers to the choice before.
    const known = commits?.waiting ? {} : chosen(view);
    const state = { ...(commits?.state ?? view.state), ...known };
    const data = { ...view, version: commits?.version ?? 0, state };
    mount({ data, parentElement: root, setTriggerValue: report });
  };
  const other = async () => { // numbers of another layer
    await keep(model.get("_layer"));
    show();
  };
  const changes = named.map((name) => `change:${name}`);
  await keep([...model.get("_stacks"), ...model.get("_layer")]);
  for (const change of changes) model.on(change, show);
  model.on("change:_layer", other);
  show();
  return () => {
    for (const change of changes) model.off(change, show);
    model.off("change:_layer", other);
    root.view.close();
  };
}

export default { render };
