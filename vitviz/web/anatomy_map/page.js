// @ts-check
// Build the elements of Anatomy: cards, equations, buttons of the walk, and the panels beside them.

import { range } from "../token_map/maps.js";
import { element } from "../token_map/parts.js";
import { rich } from "./drawing.js";
import { tr } from "../token_map/strings.js";

/** A button. Its name holds the text on it, by which one says to a computer what to press.
 * @param {string} textContent @param {string} label @param {() => void} onclick */
function button(textContent, label, onclick) {
  return element("button", { type: "button", textContent, onclick, aria: { "aria-label": label } });
}

/** @param {string} label @param {string[]} options @param {(index: number) => void} choose
 * @param {number[]} [open] those that can be chosen, by default all */
function menu(label, options, choose, open) {
  const made = element("select", { aria: { "aria-label": label } },
    ...options.map((textContent, value) => element("option", { textContent, value: `${value}`,
      disabled: open ? !open.includes(value) : false })));
  made.onchange = () => choose(Number(made.value));
  return made;
}

/** A card of a step: number, title, shape of its tensor, and the answer or a small picture.
 * @param {any} card @param {number} index @param {() => void} onclick */
function cardOf(card, index, onclick) {
  return element("button", { type: "button", className: "card", onclick },
    element("b", {}, element("span", { className: "number" }, `${index + 1} `), ...rich(card.title)), " ",
    element("code", { textContent: card.shape }), " ",
    card.answer
      ? element("span", { className: "said", textContent: card.answer })
      : element("canvas", { aria: { "aria-hidden": "true" } }));
}

/** The empty parts of the page by name, and the element that holds them.
 * @param {any} data what the host sent @param {Node | undefined} charts @param {Node} saveMenu
 * @param {number[]} minutes that the whole walk can take
 * @param {{ choose: (card: any) => void, walk: (by: number) => void, play: () => void,
 *   pace: (index: number) => void, change: (part: Record<string, unknown>) => void }} act */
export function pageOf({ cards, equations, shape, depth, layers: open }, charts, saveMenu, minutes, act) {
  /** @type {Record<string, any>} */
  const parts = {};
  /** @template {HTMLElement} Made @param {string} name @param {Made} made */
  const part = (name, made) => {
    made.dataset.part = name;
    parts[name] = made;
    return made;
  };
  const layers = range(depth).map((l) => tr("layer {layer} of {depth}", { layer: l + 1, depth }));
  const heads = range(shape.heads).map((h) => tr("head {head} of {heads}", { head: h + 1, heads: shape.heads }));
  const walk = { role: "group", "aria-label": tr("Walk through the steps") };
  const content = [
    part("columns", element("div", { className: "columns" },
      element("section", { className: "photo" },
        part("photo", element("canvas", { tabIndex: 0, aria: { role: "img" } })),
        part("tokens", element("div", { className: "tokens" })),
        element("div", { className: "under" },
          part("photoTitle", element("h4")),
          part("names", element("p", { className: "names" })),
          part("now", element("p", { className: "names" })),
          saveMenu)),
      element("section", { className: "scene" },
        element("div", { className: "over" },
          part("sceneTitle", element("h4")),
          part("menus", element("div", { className: "menus" },
            part("layerMenu", menu(tr("Layer"), layers, (frame) => act.change({ frame }), open)),
            part("headMenu", menu(tr("Head"), heads, (head) => act.change({ head }))))),
          element("div", { className: "transport", aria: walk },
            part("back", button("◀", tr("One step back"), () => act.walk(-1))),
            part("play", button(tr("▶ Play"), tr("Play the steps"), act.play)),
            part("next", button(tr("Next ▶"), tr("Next: one step forward"), () => act.walk(1))),
            part("minutes", menu(tr("Time for all steps"), minutes.map((count) => tr("{count} min", { count })), act.pace)))),
        part("say", element("p", { className: "say", aria: { "aria-live": "polite" } })),
        part("items", element("div", { className: "items" }))))),
    element("div", { className: "cards" },
      ...cards.map((/** @type {any} */ card, /** @type {number} */ i) =>
        part(`card${i}`, cardOf(card, i, () => act.choose(card))))),
    element("div", { className: "bar" },
      ...equations.map((/** @type {string} */ text, /** @type {number} */ i) =>
        part(`equation${i + 1}`, element("span", { className: "equation" }, ...rich(text))))),
    element("section", { className: "side" },
      part("sideTitle", element("h4")),
      part("side", element("div", { className: "flow" })),
      ...(charts ? [charts] : [])),
  ];
  return { parts, content };
}

/** The layer as a diagram, with a residual line beside each half.
 * @param {any[]} boxes @param {(id: string) => void} go */
export function diagram(boxes, go) {
  /** @type {HTMLElement[]} */
  const nodes = [];
  /** @type {HTMLElement | null} */
  let half = null;
  for (const { id, title, shape, stream } of boxes) {
    const node = element("button", { type: "button", onclick: () => go(id) },
      element("span", {}, ...rich(title)), element("code", { textContent: shape }));
    node.dataset.id = id;
    if (stream) {
      nodes.push(node);
      half = null;
      continue;
    }
    if (!half) {
      const label = nodes.length > 1
        ? tr("MLP, with a residual line around it")
        : tr("Attention, with a residual line around it");
      half = element("div", { className: "half", aria: { role: "group", "aria-label": label } });
      nodes.push(half);
    }
    half.append(node);
  }
  return nodes;
}

/** The tensors of a step by name and shape.
 * @param {[name: string, shape: string][]} shapes */
export function shapeRows(shapes) {
  return shapes.map(([name, shape]) =>
    element("div", { className: "shape" },
      element("span", {}, ...rich(name)), element("code", { textContent: shape })));
}

/** A sentence whose names in braces become elements.
 * @param {string} said @param {(name: string) => HTMLElement} made */
export function sentence(said, made) {
  return said.split(/\{(\w+)\}/).map((part, i) => (i % 2 ? made(part) : part));
}

/** Buttons of the prefix tokens, and of what a click on the picture chooses.
 * @param {string[]} inFront their names @param {number} token the chosen one
 * @param {string | null} choosing "query" or "key" if a click can choose either
 * @param {{ token: (index: number) => void, click: (name: string) => void }} act */
export function tokenButtons(inFront, token, choosing, act) {
  /** @param {string} textContent @param {boolean} on @param {string} title
   * @param {() => void} onclick */
  const press = (textContent, on, title, onclick) =>
    element("button", { type: "button", textContent, title, onclick, aria: { "aria-pressed": String(on) } });
  return [
    ...inFront.map((name, i) =>
      press(name, token === i, tr("{name} as the {role}", { name, role: tr(choosing ?? "token") }),
        () => act.token(i))),
    ...(choosing ? ["query", "key"] : []).map((name) =>
      press(tr("click: {name}", { name: tr(name) }), choosing === name,
        tr("A click and the arrow keys choose the {name}", { name: tr(name) }),
        () => act.click(name))),
  ];
}
