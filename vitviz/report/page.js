
// The report: what stands above is the token map as every host has it. The numbers of the maps come
// compressed; the figures are drawn by Plotly.

const { maps, figures, mapStyle, plotly } = JSON.parse(document.querySelector("#data").textContent);

async function unpacked([type, text]) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new globalThis[type](await new Response(stream).arrayBuffer());
}

async function showMap(id, { stack, columns, view }) {
  const root = document.getElementById(id).attachShadow({ mode: "open" });
  root.append(Object.assign(document.createElement("style"), { textContent: mapStyle }));
  const numbers = {};
  for (const [name, column] of Object.entries(columns)) numbers[name] = await unpacked(column);
  const setTriggerValue = () => {}; // nobody else is told
  mount({ data: { stack, ...numbers }, parentElement: root, setTriggerValue });
  mount({ data: view, parentElement: root, setTriggerValue });
}

if (plotly) { // known to the policy by its hash
  const source = new TextDecoder().decode(await unpacked(plotly));
  document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
}
for (const [id, each] of Object.entries(maps)) await showMap(id, each);
for (const [id, { data, layout }] of Object.entries(figures))
  await Plotly.newPlot(id, data, layout, { displayModeBar: false, responsive: true });
document.body.dataset.ready = "";
