// @ts-check
// The page Anatomy: a row of steps, the equations, the picture, what happens in the chosen step,
// and the encoder layer opened.
//
// The host mounts it three times: two mounts carry numbers (of the picture's steps, and of one
// layer), the third what to show. Everything but another layer is answered here.

import { Commits } from "../token_map/commits.js";
import { patchAt, place, range } from "../token_map/maps.js";
import { backdrop, contextOf, drawGrid, element, outline } from "../token_map/parts.js";
import { residualCharts } from "./charts.js";
import { drawCut, drawMatrix, drawStrip, pixels, rich } from "./drawing.js";
import { showItems } from "./items.js";
import { attention, itemsOf } from "./scenes.js";
import { limitOf, tensors } from "./tensors.js";

/** @type {Map<string, { numbers: Map<string, any>, photo: HTMLImageElement | null }>} */
const kept = new Map(); // stacks of numbers by their id
const KEPT = 6;
/** @type {Set<View>} */
const views = new Set();
const MOVES = 1100; // milliseconds of an animation

/** @param {{ data: any, parentElement: any, setTriggerValue: any }} host */
export default function mount({ data, parentElement, setTriggerValue }) {
  if (data.stack) {
    keep(data);
    return undefined;
  }
  parentElement.view ??= new View(parentElement);
  parentElement.view.receive(data, setTriggerValue);
  return () => parentElement.view.close();
}

/** @param {any} data */
function keep({ stack, exact, half }) {
  const numbers = (/** @type {any} */ table) =>
    ArrayBuffer.isView(table) ? table : table.getChildAt(0).toArray();
  const photo = stack.picture ? element("img", { onload: redrawAll, src: stack.picture }) : null;
  kept.delete(stack.id);
  kept.set(stack.id, { numbers: tensors(stack.tensors, numbers(exact), numbers(half)), photo });
  if (kept.size > KEPT) kept.delete([...kept.keys()][0]);
  redrawAll();
}

function redrawAll() {
  for (const view of views) view.redraw();
}

class View {
  commits = new Commits();
  /** @type {any} */ data = null;
  /** @type {Record<string, any>} */ parts = {};
  /** @type {number | null} */ pointed = null; // key under the pointer
  /** @type {number | undefined} */ frame;
  choosing = "query"; // what a click on the picture chooses
  playing = false;
  dim = 0;
  begun = 0; // when the numbers of this stop began to move
  width = 0;
  /** @type {Record<string, any>} */ drawn = {}; // what parts were last built or drawn of

  /** @param {any} root */
  constructor(root) {
    this.root = root;
    this.box = element("div", { className: "anatomy" });
    this.box.addEventListener("keydown", (event) => this.#press(event));
    root.append(this.box);
    this.resized = new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === this.width) return;
      this.width = contentRect.width;
      this.redraw();
    });
    this.pressed = (/** @type {KeyboardEvent} */ event) => {
      if (event.target === document.body) this.#press(event);
    };
  }

  close() {
    this.#pause();
    this.commits.close();
    this.resized.disconnect();
    document.removeEventListener("keydown", this.pressed);
    views.delete(this);
  }

  /** @param {any} data @param {any} send */
  receive(data, send) {
    this.data = data;
    this.data.nameOf = (/** @type {number} */ token) => this.#name(token);
    const before = this.state?.step;
    this.commits.receive(data, send);
    if (this.state.step !== before && before !== undefined) this.#begin();
    const { session, version, state, ...layout } = data;
    const built = JSON.stringify(layout);
    if (this.drawn.layout !== built) this.#build();
    this.drawn.layout = built;
    if (!views.has(this)) {
      views.add(this);
      this.resized.observe(this.box);
      document.addEventListener("keydown", this.pressed);
    }
    this.redraw();
  }

  get state() {
    return this.commits.state;
  }

  get shape() {
    return this.data.shape;
  }

  get steps() {
    return kept.get(this.data.stepsId)?.numbers ?? new Map();
  }

  get layer() {
    return this.state.frame === this.data.frame ? kept.get(this.data.layerId)?.numbers ?? new Map() : new Map();
  }

  // ---- where the walk is

  /** The stops of the walk, in order: cards, and in place of the encoder's the boxes of the layer. */
  get stops() {
    return this.data.cards.flatMap((/** @type {any} */ card) =>
      this.#opened(card) ? this.data.boxes.map((/** @type {any} */ { id }) => ({ card, box: id })) : [{ card, box: null }]);
  }

  /** Whether a card's layer is the one that is opened. @param {any} card */
  #opened(card) {
    return card.layers && this.state.frame >= card.layers[0] && this.state.frame <= card.layers[1];
  }

  get at() {
    const { step } = this.state;
    const index = this.stops.findIndex(({ card, box }) => (box ?? card.id) === step);
    if (index >= 0) return index;
    const known = this.data.cards.some((/** @type {any} */ { id }) => id === step);
    // a card that is opened, or a box that this layer does not have
    return Math.max(0, this.stops.findIndex(({ card, box }) => (known ? card.id === step : box !== null)));
  }

  get stop() {
    return this.stops[this.at];
  }

  /** @param {number} by */
  step(by) {
    const next = this.stops[this.at + by];
    if (!next) return this.#pause();
    this.go(next.box ?? next.card.id);
    if (this.playing) this.#wait();
    return undefined;
  }

  /** @param {string} step */
  go(step) {
    this.#begin();
    this.change({ step });
  }

  #begin() {
    this.begun = matchMedia("(prefers-reduced-motion: reduce)").matches ? -Infinity : performance.now();
    this.pointed = null;
  }

  #play() {
    this.playing = true;
    if (this.at === this.stops.length - 1) this.go(this.stops[0].box ?? this.stops[0].card.id);
    else this.#begin();
    this.#wait();
    this.redraw();
  }

  /** Go on when what is said has been read. */
  #wait() {
    clearTimeout(this.timer);
    const words = this.#said().say.split(" ").length;
    this.timer = setTimeout(() => this.step(1), 2500 + 270 * words);
  }

  #pause() {
    clearTimeout(this.timer);
    this.playing = false;
    this.redraw();
  }

  #said() {
    const { card, box } = this.stop;
    return box ? this.data.boxes.find((/** @type {any} */ { id }) => id === box) : card;
  }

  // ---- tokens

  /** The token that is followed; where none is the query, the patch in the middle. */
  get token() {
    const { prefix, rows, cols } = this.shape;
    const { query } = this.state;
    const count = prefix.length + rows * cols;
    return query >= 0 && query < count ? query : prefix.length + Math.floor(rows / 2) * cols + Math.floor(cols / 2);
  }

  /** The patch that is followed in the first grid: that of the token, else the middle one. */
  get patch() {
    const { prefix, rows, cols } = this.shape;
    const [down, over] = this.data.facts.grid;
    const patch = this.token - prefix.length;
    if (patch < 0) return Math.floor(down / 2) * over + Math.floor(over / 2);
    const [row, col] = [Math.floor(patch / cols), patch % cols];
    return Math.floor(((row + 0.5) * down) / rows) * over + Math.floor(((col + 0.5) * over) / cols);
  }

  /** The token that the stop is about: in front of the patches there may be none yet. */
  get followed() {
    const { card, box } = this.stop;
    if (box || card.prefix || !card.grid) return this.token;
    const { prefix } = this.shape;
    return this.token < prefix.length ? prefix.length + this.#middle([this.shape.rows, this.shape.cols]) : this.token;
  }

  /** The key: under the pointer, else the one chosen, else the patch with the largest share. */
  get key() {
    if (this.pointed !== null) return this.pointed;
    const { key } = this.state;
    const { prefix, rows, cols } = this.shape;
    if (key >= 0 && key < prefix.length + rows * cols) return key;
    const found = attention(this.#scene(0));
    if (!found) return prefix.length;
    let best = prefix.length;
    found.shares.forEach((share, j) => {
      if (j >= prefix.length && share > found.shares[best]) best = j;
    });
    return best;
  }

  /** The row of a card's tensor that belongs to the token. @param {any} card */
  #row(card) {
    const { prefix, rows, cols } = this.shape;
    const [down, over] = card.grid ?? [0, 0];
    const patch = this.token - prefix.length;
    if (patch < 0) return card.prefix > this.token ? this.token : card.prefix + this.#middle(card.grid);
    const [row, col] = [Math.floor(patch / cols), patch % cols];
    return card.prefix + Math.floor(((row + 0.5) * down) / rows) * over + Math.floor(((col + 0.5) * over) / cols);
  }

  /** @param {[number, number] | null} grid */
  #middle(grid) {
    return grid ? Math.floor(grid[0] / 2) * grid[1] + Math.floor(grid[1] / 2) : 0;
  }

  /** @param {number} token */
  #name(token) {
    const { prefix, cols } = this.shape;
    return token < prefix.length ? prefix[token] : place(token - prefix.length, cols);
  }

  /** @param {Record<string, unknown>} part */
  change(part) {
    if ("query" in part || "head" in part || "frame" in part) this.commits.state.key = -1;
    this.commits.change(part);
    this.redraw();
  }

  /** @param {any} event */
  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName } = event.composedPath?.()[0] ?? event.target;
    if (tagName === "SELECT" || tagName === "INPUT") return;
    const { frame } = this.state;
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const digit = /^[0-9]$/.test(event.key) ? Number(event.key) : null;
    const key = event.key.toLowerCase();
    if (event.key === " ") {
      this.#pause();
      this.step(event.shiftKey ? -1 : 1);
    } else if (moves[event.key]) this.#move(...moves[event.key]);
    else if (key === "n" && frame + 1 < this.data.depth) this.change({ frame: frame + 1 });
    else if (key === "p" && frame > 0) this.change({ frame: frame - 1 });
    else if (key === "escape") this.change({ query: this.shape.home, key: -1 });
    else if (digit !== null && digit <= this.shape.heads && this.shape.heads)
      this.change({ head: Math.max(0, digit - 1) });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} down @param {number} right */
  #move(down, right) {
    const { prefix, rows, cols } = this.shape;
    const now = this.choosing === "key" ? this.key : this.token;
    const patch = now < prefix.length ? this.#middle([rows, cols]) : now - prefix.length;
    const row = Math.min(rows - 1, Math.max(0, Math.floor(patch / cols) + down));
    const col = Math.min(cols - 1, Math.max(0, (patch % cols) + right));
    this.change({ [this.choosing]: prefix.length + row * cols + col });
  }

  // ---- building

  #build() {
    const { data } = this;
    const focused = this.root.activeElement?.dataset.part;
    this.lut = Uint8Array.from(data.lut.match(/../g), (/** @type {string} */ pair) => parseInt(pair, 16));
    this.parts = {};
    this.drawn = {};
    /** @template {HTMLElement} T @param {string} name @param {T} node */
    const part = (name, node) => {
      node.dataset.part = name;
      this.parts[name] = node;
      return node;
    };
    const cards = data.cards.map((/** @type {any} */ card, /** @type {number} */ i) => {
      const label = `Step ${i + 1} of ${data.cards.length}: ${card.title.replace(/[_^{}]/g, "")}, ${card.shape}`;
      return part(`card${i}`, element("button", { type: "button", className: "card", onclick: () => this.#choose(card),
        aria: { "aria-label": label } },
        element("b", {}, `${i + 1} `, ...rich(card.title)),
        element("code", { textContent: card.shape }),
        card.answer ? element("span", { className: "said", textContent: card.answer })
          : element("canvas", { aria: { "aria-hidden": "true" } })));
    });
    const button = (/** @type {string} */ name, /** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) =>
      part(name, element("button", { type: "button", textContent: text, onclick: act, aria: { "aria-label": label } }));
    const controls = element("div", { className: "transport", aria: { role: "group", "aria-label": "Walk through the steps" } },
      button("back", "◀", "One step back", () => { this.#pause(); this.step(-1); }),
      button("play", "▶ Play", "Play the steps", () => (this.playing ? this.#pause() : this.#play())),
      button("next", "Next ▶", "One step forward", () => { this.#pause(); this.step(1); }));
    const equations = data.equations.map((/** @type {string} */ text, /** @type {number} */ i) =>
      part(`equation${i + 1}`, element("span", { className: "equation" }, ...rich(text))));
    const select = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string[]} */ options, /** @type {(index: number) => void} */ choose) => {
      const menu = part(name, element("select", { aria: { "aria-label": label } },
        ...options.map((textContent, value) => element("option", { textContent, value: String(value) }))));
      menu.onchange = () => choose(Number(menu.value));
      return menu;
    };
    const photo = element("section", { className: "photo" },
      part("photoTitle", element("h4")),
      part("photo", element("canvas", { tabIndex: 0, aria: { role: "img" } })),
      part("tokens", element("div", { className: "tokens" })),
      part("names", element("p", { className: "names" })));
    const scene = element("section", { className: "scene" },
      element("div", { className: "over" }, part("sceneTitle", element("h4")),
        part("menus", element("div", { className: "menus" },
          select("layerMenu", "Layer", range(data.depth).map((l) => `layer ${l + 1} of ${data.depth}`), (frame) => this.change({ frame })),
          select("headMenu", "Head", range(this.shape.heads).map((h) => `head ${h + 1} of ${this.shape.heads}`), (head) => this.change({ head }))))),
      part("items", element("div", { className: "items" })));
    this.box.style.setProperty("--query-mark", data.queryColour);
    this.charts = residualCharts(data.residual);
    const side = element("section", { className: "side" },
      part("sideTitle", element("h4")),
      part("side", element("div", { className: "flow" })),
      this.charts.node);
    this.box.replaceChildren(
      element("div", { className: "cards" }, ...cards),
      element("div", { className: "bar" }, ...equations, controls),
      part("say", element("p", { className: "say", aria: { "aria-live": "polite" } })),
      element("div", { className: "columns" }, photo, scene, side));
    this.#listen();
    if (focused) this.parts[focused]?.focus();
  }

  /** @param {any} card */
  #choose(card) {
    this.#pause();
    const boxes = this.data.boxes.map((/** @type {any} */ { id }) => id);
    this.go(this.#opened(card) ? (boxes.includes("scores") ? "scores" : boxes[0]) : card.id);
  }

  #listen() {
    const { photo } = this.parts;
    const at = (/** @type {MouseEvent} */ { clientX, clientY }) => {
      const { left, top, width, height } = photo.getBoundingClientRect();
      const { picture } = this.data;
      const patch = patchAt(((clientX - left) / width) * picture.width, ((clientY - top) / height) * picture.height, this.shape);
      return patch === null ? null : patch + this.shape.prefix.length;
    };
    photo.onpointermove = (/** @type {PointerEvent} */ event) => {
      if (event.pointerType === "touch") return;
      const key = this.#keyed ? at(event) : null;
      if (key === this.pointed) return;
      this.pointed = key;
      this.redraw();
    };
    photo.onpointerleave = () => {
      this.pointed = null;
      this.redraw();
    };
    photo.onclick = (/** @type {MouseEvent} */ event) => {
      const token = at(event);
      this.pointed = null;
      this.#pause();
      if (token !== null) this.change({ [this.#keyed ? this.choosing : "query"]: token });
    };
  }

  /** Whether this stop has a key. */
  get #keyed() {
    return ["scores", "attention", "heads"].includes(this.stop.box ?? "");
  }

  // ---- drawing

  redraw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      if (this.width && this.data && this.box.isConnected) this.#draw();
    });
  }

  /** How far the numbers of this stop have moved, from 0 to 1. */
  get #moved() {
    const share = Math.min(1, (performance.now() - this.begun) / MOVES);
    return share < 1 ? 1 - (1 - share) ** 2 : 1;
  }

  /** @param {number} t */
  #scene(t) {
    const { card, box } = this.stop;
    return {
      data: this.data, steps: this.steps, layer: this.layer, card, box, t,
      token: this.token, key: 0, row: this.#row(card), patch: this.patch, dim: this.dim,
      head: Math.min(Math.max(0, this.state.head), Math.max(0, this.shape.heads - 1)),
      pickKey: (/** @type {number} */ key) => { this.#pause(); this.change({ key }); },
      pickDim: (/** @type {number} */ dim) => { this.#pause(); this.dim = dim; this.#begin(); this.redraw(); },
    };
  }

  #draw() {
    const begun = performance.now();
    const moved = this.#moved;
    this.#drawCards();
    this.#drawWords();
    const scene = { ...this.#scene(moved), key: this.key };
    this.#drawPhoto(scene);
    this.#drawSide();
    const ink = getComputedStyle(this.parts.items).fill;
    showItems(this.parts.items, itemsOf(scene), scene, { lut: this.lut, ink, picture: this.#picture });
    this.charts?.mark(this.state.frame + 1);
    if (moved < 1) this.redraw();
    performance.measure("anatomy redraw", { start: begun });
  }

  /** The picture as the model gets it, in its colours. */
  get #picture() {
    const tensor = this.steps.get("picture");
    if (!tensor) return null;
    if (this.drawn.pictureOf !== tensor)
      Object.assign(this.drawn, { pictureOf: tensor, picture: pixels(tensor, null, this.data.facts, this.lut) });
    return this.drawn.picture;
  }

  #drawCards() {
    const { cards } = this.data;
    const here = cards.indexOf(this.stop.card);
    cards.forEach((/** @type {any} */ card, /** @type {number} */ i) => {
      this.parts[`card${i}`].setAttribute("aria-pressed", String(i === here));
    });
    const stack = this.steps;
    if (this.drawn.cards === stack || !stack.size) return;
    this.drawn.cards = stack;
    cards.forEach((/** @type {any} */ card, /** @type {number} */ i) => {
      const canvas = this.parts[`card${i}`].querySelector("canvas");
      if (canvas) this.#thumbnail(canvas, card);
    });
  }

  /** @param {HTMLCanvasElement} canvas @param {any} card */
  #thumbnail(canvas, card) {
    const [down, over] = this.data.facts.grid;
    const tensor = this.steps.get(card.id);
    canvas.className = "";
    if (card.name === "picture" || (card.name === "patches" && !this.data.facts.stem)) {
      canvas.className = "picture";
      const few = (/** @type {number} */ count) => Math.min(4, count);
      if (this.#picture)
        drawCut(canvas, this.#picture, card.name === "picture" ? 1 : few(down), card.name === "picture" ? 1 : few(over),
          card.name === "picture" ? 0 : 0.12);
    } else if (!tensor) canvas.hidden = true;
    else if (tensor.rows === 1) {
      const values = tensor.row(0);
      if (values) drawStrip(canvas, values, limitOf(values), this.lut);
      canvas.className = "one";
    } else drawMatrix(canvas, tensor, 24, 48, this.lut);
  }

  #drawWords() {
    const { stop, stops, at } = this;
    const said = this.#said();
    const { cards } = this.data;
    const shown = `${said.id}${said.say}${this.playing}`;
    this.parts.play.textContent = this.playing ? "❚❚ Pause" : "▶ Play";
    this.parts.play.setAttribute("aria-label", this.playing ? "Pause" : "Play the steps");
    this.parts.back.disabled = at === 0;
    this.parts.next.disabled = at === stops.length - 1;
    if (this.drawn.said === shown) return;
    this.drawn.said = shown;
    const number = cards.indexOf(stop.card) + 1;
    this.parts.say.replaceChildren(
      element("b", {}, `Step ${number}: `, ...rich(stop.box ? `${stop.card.title} · ${said.title}` : said.title)), " ",
      ...rich(said.say), ...(at ? [] : [" ", element("small", { textContent: "Space: next · Shift+Space: back" })]));
    for (const i of range(4)) {
      const chip = this.parts[`equation${i + 1}`];
      chip.classList.toggle("now", said.equation === i + 1);
      if (said.equation === i + 1) chip.setAttribute("aria-current", "step");
      else chip.removeAttribute("aria-current");
    }
    this.parts.sceneTitle.replaceChildren(...rich(said.title));
    this.parts.menus.hidden = !stop.box;
  }

  #drawSide() {
    const { stop } = this;
    const { cards, boxes } = this.data;
    const opened = cards.find((/** @type {any} */ card) => this.#opened(card));
    const inside = Boolean(stop.box);
    this.parts.layerMenu.value = String(this.state.frame);
    if (this.shape.heads) this.parts.headMenu.value = String(this.#scene(1).head);
    this.parts.headMenu.hidden = !this.shape.heads || !this.layer.has("queries");
    const key = inside ? `layer ${this.state.frame}` : stop.card.id;
    if (this.drawn.side !== key) {
      this.drawn.side = key;
      this.parts.sideTitle.replaceChildren(...(inside
        ? [`Layer ${this.state.frame + 1} `, element("small", { textContent: this.data.facts.opened ? "opened; pre-norm" : "" })] : ["Shapes now"]));
      this.parts.side.replaceChildren(...(inside ? this.#diagram(boxes) : this.#shapes(stop.card, opened)));
    }
    for (const node of this.parts.side.querySelectorAll("button[data-id]"))
      node.setAttribute("aria-pressed", String(node.dataset.id === this.state.step));
  }

  /** The layer as a diagram; each half has its residual line beside it. @param {any[]} boxes */
  #diagram(boxes) {
    const button = (/** @type {any} */ { id, title, shape }) => {
      const node = element("button", { type: "button", onclick: () => { this.#pause(); this.go(id); } },
        element("span", {}, ...rich(title)), element("code", { textContent: shape }));
      node.dataset.id = id;
      return node;
    };
    /** @type {HTMLElement[]} */
    const nodes = [];
    let half = null;
    for (const box of boxes) {
      if (box.stream) {
        nodes.push(button(box));
        half = null;
      } else {
        if (!half) {
          half = element("div", { className: "half", aria: { role: "group", "aria-label": nodes.length > 1 ? "MLP, with a residual line around it" : "Attention, with a residual line around it" } });
          nodes.push(half);
        }
        half.append(button(box));
      }
    }
    return nodes;
  }

  /** @param {any} card @param {any} opened */
  #shapes(card, opened) {
    const rows = card.shapes.map((/** @type {[string, string]} */ [name, shape]) =>
      element("div", { className: "shape" }, element("span", {}, ...rich(name)), element("code", { textContent: shape })));
    if (!opened || !this.data.boxes.length) return rows;
    const open = element("button", { type: "button", onclick: () => this.#choose(opened) }, ...rich(`Open layer ${this.state.frame + 1}`));
    return [...rows, open];
  }

  /** @param {any} scene */
  #drawPhoto(scene) {
    const { parts, data, shape } = this;
    const { picture } = data;
    const canvas = parts.photo;
    const room = canvas.parentElement.clientWidth;
    if (!room) return; // the page is hidden
    const height = Math.min((room * picture.height) / picture.width, Math.max(300, 0.34 * this.width));
    const width = (height * picture.width) / picture.height;
    const dense = devicePixelRatio || 1;
    canvas.style.width = `${width}px`;
    [canvas.width, canvas.height] = [Math.round(width * dense), Math.round(height * dense)];
    const context = contextOf(canvas);
    const photo = kept.get(data.stepsId)?.photo;
    const behind = `${data.stepsId} ${photo?.naturalWidth} ${canvas.width}×${canvas.height}`;
    if (this.drawn.behind !== behind) // scaled once
      Object.assign(this.drawn, { behind, backdrop: backdrop(canvas, photo ?? undefined, picture) });
    context.drawImage(this.drawn.backdrop, 0, 0);
    const pixel = picture.width / canvas.width;
    context.setTransform(1 / pixel, 0, 0, 1 / pixel, 0, 0);
    const grid = { rows: shape.rows, cols: shape.cols, crop: shape.crop };
    context.strokeStyle = "rgb(255 255 255 / 0.35)";
    context.lineWidth = pixel;
    drawGrid(context, grid);
    const line = pixel * dense;
    const [asked, seen] = [this.followed, scene.key].map((token) => token - shape.prefix.length);
    const keyed = this.#keyed;
    if (asked >= 0) outline(context, line, asked, grid, data.queryColour, false);
    if (keyed && seen >= 0) outline(context, line, seen, grid, data.keyColour, true);
    this.#drawNames(scene, keyed);
  }

  /** @param {any} scene @param {boolean} keyed */
  #drawNames(scene, keyed) {
    const { parts, shape } = this;
    const shown = [keyed, this.followed, this.stop.card.prefix, scene.key, this.choosing, this.state.query].join();
    if (this.drawn.names === shown) return;
    this.drawn.names = shown;
    const word = (/** @type {string} */ name, /** @type {string} */ text) => element("b", { className: name, textContent: text });
    parts.photoTitle.replaceChildren(...(keyed
      ? ["Click a ", word("query", "query"), ", hover a ", word("key", "key")] : ["Click ", word("query", "a patch")]));
    const inFront = this.stop.box || this.stop.card.prefix ? shape.prefix : [];
    const [asked, seen] = [this.#name(this.followed), this.#name(scene.key)];
    const middle = this.followed !== this.state.query ? " (none chosen)" : "";
    parts.names.replaceChildren(
      word("query", keyed ? "query " : inFront.length ? "token " : "patch "), `${asked}${middle}`, ...(keyed ? [element("br"), word("key", "key "), seen] : []));
    parts.photo.setAttribute("aria-label", keyed ? `Picture; query ${asked}, key ${seen}` : `Picture; token ${asked}`);
    const hadFocus = [...parts.tokens.children].indexOf(this.root.activeElement);
    const press = (/** @type {string} */ text, /** @type {boolean} */ on, /** @type {() => void} */ act, /** @type {string} */ label) =>
      element("button", { type: "button", textContent: text, onclick: act, aria: { "aria-pressed": String(on), "aria-label": label } });
    const which = this.choosing === "key" && keyed ? scene.key : this.token;
    const tokens = inFront.map((/** @type {string} */ name, /** @type {number} */ i) =>
      press(name, which === i, () => this.change({ [keyed ? this.choosing : "query"]: i }), `${name} as the ${keyed ? this.choosing : "token"}`));
    const choices = !keyed ? [] : ["query", "key"].map((name) =>
      press(`click: ${name}`, this.choosing === name, () => { this.choosing = name; this.drawn.names = ""; this.redraw(); }, `A click and the arrow keys choose the ${name}`));
    parts.tokens.replaceChildren(...tokens, ...choices);
    if (hadFocus >= 0) parts.tokens.children[hadFocus]?.focus();
  }
}
