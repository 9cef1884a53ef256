// The search of the pages, which works without a server: lists the sections that have every word.
// SECTIONS is in sections.js.

const box = document.getElementById("search");
const list = document.getElementById("results");

box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => words.every((word) => text.toLowerCase().includes(word));
  const named = ({ page, name }) => has(`${page} ${name}`);
  const found = words.length
    ? SECTIONS.filter((each) => has(`${each.page} ${each.name} ${each.text}`)) : [];
  found.sort((one, other) => named(other) - named(one));
  list.replaceChildren(...found.map(({ page, name, place }) => {
    const item = document.createElement("li");
    const link = item.appendChild(document.createElement("a"));
    link.href = place;
    link.textContent = page === name ? page : `${page}: ${name}`;
    return item;
  }));
  if (words.length && !found.length) list.textContent = "No section has all of these words.";
});
