// The token map as a widget of a notebook: the same module as in the app, which is given its numbers
// once, and what Python chooses; what is chosen in it is told to Python.

async function unpacked([type, text]) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new globalThis[type](await new Response(stream).arrayBuffer());
}

async function render({ model, el }) {
  const address = URL.createObjectURL(new Blob([model.get("_source")], { type: "text/javascript" }));
  const { default: mount } = await import(address);
  URL.revokeObjectURL(address);
  const host = document.createElement("div");
  const root = host.attachShadow({ mode: "open" });
  const colours = ":host { --st-text-color: var(--jp-ui-font-color1, CanvasText); " +
    "--st-background-color: var(--jp-layout-color0, Canvas); --st-primary-color: #0b57d0; " +
    "--st-font: var(--jp-ui-font-family, sans-serif); display: block; }";
  root.append(Object.assign(document.createElement("style"),
    { textContent: colours + model.get("_style") }));
  el.append(host);
  const { stack, columns, view } = model.get("_data");
  const numbers = {};
  for (const [name, column] of Object.entries(columns)) numbers[name] = await unpacked(column);
  const chosen = () => {
    const [frame, head, query] = [model.get("layer"), model.get("head"), model.get("query")];
    const { home, prefix } = view.frames[frame];
    const asked = query ?? home;
    return { frame, head: head ?? -1, query: asked, pinned: asked >= prefix.length };
  };
  const told = (_, { frame, head, query }) => {
    model.set("layer", frame);
    model.set("head", head < 0 ? null : head);
    model.set("query", query < 0 ? null : query);
    model.save_changes();
  };
  const show = () => {
    const { commits } = root.view ?? {};
    const state = { ...(commits?.state ?? view.state), ...chosen() };
    const data = { ...view, version: commits?.version ?? 0, state };
    mount({ data, parentElement: root, setTriggerValue: told });
  };
  mount({ data: { stack, ...numbers }, parentElement: root, setTriggerValue: told });
  const changes = ["layer", "head", "query"].map((name) => `change:${name}`);
  for (const change of changes) model.on(change, show);
  show();
  return () => {
    for (const change of changes) model.off(change, show);
    root.view.close();
  };
}

export default { render };
