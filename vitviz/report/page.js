
// The file: what stands above is a component as every host has it, or nothing for the figures, which
// are drawn by Plotly. All numbers come compressed.

const dataOf = (part) => JSON.parse(document.getElementById(`data-${part}`).textContent);

async function showAll(part, mountIn) {
  const [{ components, style }, photos] = [dataOf(part), dataOf("photos")];
  const setTriggerValue = () => {}; // nobody else is told
  for (const [id, { stacks, view }] of Object.entries(components)) {
    const root = document.getElementById(id).attachShadow({ mode: "open" });
    root.append(Object.assign(document.createElement("style"), { textContent: style }));
    for (const { stack, columns } of stacks) {
      const numbers = {};
      for (const [name, column] of Object.entries(columns)) numbers[name] = await unpacked(column);
      const picture = stack.picture === undefined ? {} : { picture: photos[stack.picture] };
      mountIn({ data: { stack: { ...stack, ...picture }, ...numbers }, parentElement: root, setTriggerValue });
    }
    mountIn({ data: view, parentElement: root, setTriggerValue });
  }
  done(part);
}

async function showFigures(part) {
  const { figures, plotly } = dataOf(part);
  const source = new TextDecoder().decode(await unpacked(plotly));
  document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
  for (const [id, { data, layout }] of Object.entries(figures))
    await Plotly.newPlot(id, data, layout, { displayModeBar: false, responsive: true });
  done(part);
}

function done(part) {
  const { dataset } = document.body;
  dataset.waiting = dataset.waiting.split(" ").filter((other) => other !== part).join(" ");
  if (!dataset.waiting) dataset.ready = "";
}

