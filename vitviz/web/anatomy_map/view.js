// @ts-check
// The page Anatomy: a row of steps, the equations, the picture, the scene of the chosen step, and
// the opened encoder layer.
//
// The host mounts it three times: two mounts carry numbers (of the steps, and of one layer), the
// third what to show. Only another layer needs the host; all else is answered here.

import { Component, Stacks, mounting } from "../token_map/component.js";
import { MOVES, middleOf, neighbour, pressed } from "../token_map/keys.js";
import { range } from "../token_map/maps.js";
import { drawGrid, element, outline } from "../token_map/parts.js";
import { saveMenu } from "../token_map/saving.js";
import { strongest } from "./boxes.js";
import { residualCharts } from "./charts.js";
import { drawThumbnail, pixels, rich } from "./drawing.js";
import { showScene } from "./items.js";
import { diagram, pageOf, sentence, shapeRows, tokenButtons } from "./page.js";
import { sceneDrawing } from "./pictures.js";
import { tensors } from "./tensors.js";
import { Walk, inLayer } from "./walk.js";
import { tr } from "../token_map/strings.js";

/** @import { Drawing } from "../token_map/saving.js" */
/** @import { Item } from "./scenes.js" */
/** @import { Tensor } from "./tensors.js" */

/** @type {Stacks<Map<string, Tensor>>} */
const stacks = new Stacks(6, ({ stack, exact, half }) => tensors(stack.tensors, exact, half));
const MOVING = 1100; // milliseconds of an animation
const NARROW = 700; // pixels, up to which photo and scene stand under one another, as in style.css
const MINUTES = [1, 2, 4]; // that the whole walk can take

/** @extends {Component<any>} */
class View extends Component {
  /** @type {number | null} */ pointed = null; // key under the pointer
  choosing = "query"; // what a click on the picture chooses
  playing = false;
  minutes = MINUTES[0]; // of the whole walk
  dim = 0; // number of the token that is worked out
  begun = 0; // when the numbers of this stop began to move
  /** @type {Item[]} */ items = []; // on screen

  /** @param {any} root */
  constructor(root) {
    super(root, "anatomy");
    this.box.addEventListener("keydown", (event) => this.#press(event));
    this.pressed = (/** @type {KeyboardEvent} */ event) => {
      if (this.data.alone && event.target === document.body) this.#press(event);
    };
  }

  open() {
    super.open();
    document.addEventListener("keydown", this.pressed);
  }

  close() {
    this.#pause();
    super.close();
    document.removeEventListener("keydown", this.pressed);
  }

  /** Redraw only if the width changes: drawing changes the height.
   * @param {{ width: number, height: number }} room */
  resize(room) {
    if (room.width !== this.room.width) super.resize(room);
  }

  /** @param {any} data @param {any} send */
  receive(data, send) {
    data.nameOf = (/** @type {number} */ token) => this.walk.nameOf(token);
    const before = this.state?.step;
    const { shape } = this.data ?? data;
    super.receive(data, send);
    if (this.state.tokensOf !== data.frame) // chosen while another layer was on screen
      Object.assign(this.state, {
        query: inLayer(this.state.query, shape, data.shape), key: -1, tokensOf: data.frame,
      });
    if (this.state.step !== before && before !== undefined) this.#begin();
  }

  get shape() {
    return this.data.shape;
  }

  get walk() {
    return new Walk(this.data, this.state);
  }

  get steps() {
    return stacks.get(this.data.stepsId)?.numbers ?? new Map();
  }

  get layer() {
    const here = this.state.frame === this.data.frame;
    return (here && stacks.get(this.data.layerId)?.numbers) || new Map();
  }

  // ---- the walk

  /** @param {number} by */
  step(by) {
    const { stops, at } = this.walk;
    const next = stops[at + by];
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
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.begun = still ? -Infinity : performance.now();
    this.pointed = null;
  }

  #play() {
    const { stops, at } = this.walk;
    this.playing = true;
    if (at === stops.length - 1) this.go(stops[0].box ?? stops[0].card.id);
    else this.#begin();
    this.#wait();
    this.redraw();
  }

  #wait() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.step(1), 60_000 * this.minutes * this.walk.share);
  }

  #pause() {
    clearTimeout(this.timer);
    this.playing = false;
    this.redraw();
  }

  // ---- changes

  /** The key under the pointer, else the chosen one, else the patch with the largest share. */
  get key() {
    const { walk } = this;
    if (this.pointed !== null) return this.pointed;
    if (walk.isToken(this.state.key)) return this.state.key;
    return strongest(this.#scene(0), walk.prefix);
  }

  /** @param {Record<string, unknown>} part */
  change(part) {
    if ("query" in part || "head" in part || "frame" in part) this.state.key = -1;
    this.commits.change(part);
    this.redraw();
  }

  /** Apply a choice of the reader, and stop playing. @param {() => void} act */
  #choose(act) {
    this.#pause();
    act();
  }

  /** @param {any} card */
  #open(card) {
    const boxes = this.data.boxes.map((/** @type {any} */ { id }) => id);
    const first = boxes.includes("scores") ? "scores" : boxes[0];
    this.#choose(() => this.go(this.walk.isOpened(card) ? first : card.id));
  }

  /** @param {any} event */
  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName } = event.composedPath?.()[0] ?? event.target;
    if (tagName === "SELECT" || tagName === "INPUT") return;
    const { frame } = this.state;
    const { layers } = this.data;
    const { heads, home } = this.shape;
    const key = pressed(event).toLowerCase();
    const digit = /^[0-9]$/.test(key) ? Number(key) : null;
    if (event.key === " ") this.#choose(() => this.step(event.shiftKey ? -1 : 1));
    else if (event.key in MOVES) this.#move(event.key);
    else if (key === "n" && layers.includes(frame + 1)) this.change({ frame: frame + 1 });
    else if (key === "p" && layers.includes(frame - 1)) this.change({ frame: frame - 1 });
    else if (key === "escape") this.change({ query: home, key: -1 });
    else if (digit !== null && heads && digit <= heads)
      this.change({ head: Math.max(0, digit - 1) });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {string} arrow */
  #move(arrow) {
    const { walk, shape } = this;
    const patch = (this.choosing === "key" ? this.key : walk.token) - walk.prefix;
    const found = neighbour(patch < 0 ? middleOf(shape) : patch, arrow, shape);
    this.change({ [this.choosing]: walk.prefix + found });
  }

  // ---- building

  build() {
    const { data } = this;
    this.charts = residualCharts(data.residual, data.provenance);
    const { parts, content } = pageOf(data, this.charts.node, saveMenu(() => this.drawing()), MINUTES, {
      choose: (card) => this.#open(card),
      walk: (by) => this.#choose(() => this.step(by)),
      play: () => (this.playing ? this.#pause() : this.#play()),
      pace: (index) => {
        this.minutes = MINUTES[index];
        if (this.playing) this.#wait();
      },
      change: (part) => this.change(part),
    });
    this.parts = parts;
    this.box.style.setProperty("--query-mark", data.queryColour);
    this.box.style.setProperty("--key-mark", data.keyColour);
    this.box.replaceChildren(...content);
    this.#listen();
  }

  #listen() {
    const { photo } = this.parts;
    const at = (/** @type {MouseEvent} */ event) => {
      const patch = this.patchUnder(photo, event, this.data.picture, this.shape);
      return patch === null ? null : patch + this.shape.prefix.length;
    };
    const point = (/** @type {number | null} */ key) => {
      if (key === this.pointed) return;
      this.pointed = key;
      this.redraw();
    };
    photo.onpointermove = (/** @type {PointerEvent} */ event) => {
      if (event.pointerType !== "touch") point(this.walk.keyed ? at(event) : null);
    };
    photo.onpointerleave = () => point(null);
    photo.onclick = (/** @type {MouseEvent} */ event) => {
      const token = at(event);
      this.pointed = null;
      this.#pause();
      if (token !== null) this.change({ [this.walk.keyed ? this.choosing : "query"]: token });
    };
  }

  // ---- drawing

  /** How far the numbers of this stop have moved, from 0 to 1. */
  get #moved() {
    const share = Math.min(1, (performance.now() - this.begun) / MOVING);
    return share < 1 ? 1 - (1 - share) ** 2 : 1;
  }

  /** @param {number} t */
  #scene(t) {
    return {
      ...this.walk.scene, steps: this.steps, layer: this.layer, t, key: 0, dim: this.dim,
      pickKey: (/** @type {number} */ key) => this.#choose(() => this.change({ key })),
      pickPair: (/** @type {number} */ query, /** @type {number} */ key) => this.#choose(() => {
        this.change({ query });
        this.change({ key });
      }),
      pickDim: (/** @type {number} */ dim) => this.#choose(() => {
        this.dim = dim;
        this.#begin();
      }),
    };
  }

  draw() {
    const begun = performance.now();
    const moved = this.#moved;
    const { walk } = this;
    const scene = { ...this.#scene(moved), key: this.key };
    this.box.classList.toggle("guided", Boolean(this.data.guided));
    this.#drawCards(walk);
    this.#drawWords(walk);
    this.#drawPhoto(walk, scene.key);
    this.#drawSide(walk, scene.head);
    const ink = getComputedStyle(this.parts.items).fill;
    const look = { lut: this.lut, ink, picture: this.#picture };
    this.items = showScene(this.parts.items, scene, look);
    this.charts?.mark(this.state.frame + 1);
    if (moved < 1) this.redraw();
    performance.measure("anatomy redraw", { start: begun });
  }

  /** The picture and the scene on screen, to be saved, with the animation at its end.
   * @returns {Drawing} */
  drawing() {
    this.begun = -Infinity;
    this.draw();
    const { data, walk, key, shape, parts } = this;
    const [asked, seen] = [walk.followed, key];
    const called = walk.keyed ? "query" : asked < walk.prefix ? "token" : "patch";
    const [query, other] = [[asked, "query", called], [seen, "key", "key"]].map(([token, role, word]) => (
      { patch: token - walk.prefix, grid: shape, role, name: `${tr(word)} ${walk.nameOf(token)}` }));
    const made = sceneDrawing({
      ...{ items: this.items, nodes: [...parts.items.children], picture: data.picture, data },
      photo: stacks.get(data.stepsId)?.photo?.src,
      tokens: /** @type {any} */ (walk.keyed ? [query, other] : [query]),
    });
    const layer = walk.stop.box ? [tr("layer {layer}", { layer: this.state.frame + 1 })] : [];
    const title = [parts.sceneTitle.textContent, ...layer, walk.nameOf(asked)].join(", ");
    return { ...made, title, words: parts.say.textContent, provenance: data.provenance };
  }

  /** The model's input, in colours. */
  get #picture() {
    const tensor = this.steps.get("picture");
    if (!tensor) return null;
    if (this.shown.pixelsOf !== tensor)
      Object.assign(this.shown, {
        pixelsOf: tensor,
        pixels: pixels(tensor, null, this.data.facts, this.lut),
      });
    return this.shown.pixels;
  }

  /** @param {Walk} walk */
  #drawCards({ stop }) {
    const { steps } = this;
    const anew = this.shown.cards !== steps && steps.size;
    if (anew) this.shown.cards = steps;
    this.data.cards.forEach((/** @type {any} */ card, /** @type {number} */ i) => {
      const node = this.parts[`card${i}`];
      node.setAttribute("aria-pressed", String(card === stop.card));
      const canvas = node.querySelector("canvas");
      if (canvas && anew) drawThumbnail(canvas, card, steps.get(card.id), this.#picture, this.data.facts, this.lut);
    });
  }

  /** @param {Walk} walk */
  #drawWords({ stop, stops, at, said }) {
    const { parts, playing } = this;
    parts.play.textContent = playing ? tr("❚❚ Pause") : tr("▶ Play");
    parts.play.setAttribute("aria-label", playing ? tr("Pause") : tr("Play the steps"));
    parts.back.disabled = at === 0;
    parts.next.disabled = at === stops.length - 1;
    const shown = `${said.id}${said.say}${playing}`;
    if (this.shown.said === shown) return;
    this.shown.said = shown;
    const number = this.data.cards.indexOf(stop.card) + 1;
    const title = rich(stop.box ? `${stop.card.title} · ${said.title}` : said.title);
    const keys = element("small", { textContent: tr("Space: next · Shift+Space: back") });
    const equation = this.data.equations[said.equation - 1];
    parts.now.replaceChildren(...(equation
      ? [element("span", { className: "equation now" }, ...rich(equation))] : []));
    parts.say.replaceChildren(
      element("b", {}, element("span", { className: "number" }, tr("Step {number}: ", { number })), ...title), " ",
      ...rich(said.say), ...(at ? [] : [" ", keys]));
    for (const i of range(4)) {
      const chip = parts[`equation${i + 1}`];
      const now = said.equation === i + 1;
      chip.classList.toggle("now", now);
      if (now) chip.setAttribute("aria-current", "step");
      else chip.removeAttribute("aria-current");
    }
    parts.sceneTitle.replaceChildren(...rich(said.title));
    parts.menus.hidden = !stop.card.layers;
  }

  /** @param {Walk} walk @param {number} head */
  #drawSide(walk, head) {
    const { data, parts, state } = this;
    const { card, box } = walk.stop;
    parts.minutes.value = String(MINUTES.indexOf(this.minutes));
    parts.layerMenu.value = String(state.frame);
    if (this.shape.heads) parts.headMenu.value = String(head);
    parts.headMenu.hidden = !box || !this.shape.heads || !this.layer.has("queries");
    const shown = box ? `layer ${state.frame}` : card.id;
    if (this.shown.side !== shown) {
      this.shown.side = shown;
      const opened = element("small", { textContent: data.facts.opened ? tr("opened; pre-norm") : "" });
      const title = box ? [tr("Layer {layer} ", { layer: state.frame + 1 }), opened] : [tr("Shapes now")];
      parts.sideTitle.replaceChildren(...title);
      parts.side.replaceChildren(...(box
        ? diagram(data.boxes, (id) => this.#choose(() => this.go(id)))
        : this.#shapes(walk)));
    }
    for (const node of parts.side.querySelectorAll("button[data-id]"))
      node.setAttribute("aria-pressed", String(node.dataset.id === state.step));
  }

  /** @param {Walk} walk */
  #shapes(walk) {
    const opened = this.data.cards.find((/** @type {any} */ card) => walk.isOpened(card));
    const rows = shapeRows(walk.stop.card.shapes);
    if (!opened || !this.data.boxes.length) return rows;
    const textContent = tr("Open layer {layer}", { layer: this.state.frame + 1 });
    const onclick = () => this.#open(opened);
    return [...rows, element("button", { type: "button", textContent, onclick })];
  }

  /** @param {Walk} walk @param {number} key */
  #drawPhoto(walk, key) {
    const { parts, data } = this;
    const { columns } = parts;
    const { width } = this.room;
    const { width: across, height: down } = data.picture;
    const height = Math.max(300, 0.36 * width);
    const side = Math.min(0.475 * width, (height * across) / down); // the scene gets what is left
    columns.style.setProperty("--photo", `${side}px`);
    const room = { width: width > NARROW ? side : width, height };
    const photo = stacks.get(data.stepsId)?.photo;
    const { context, line, pixel } = this.onPicture(parts.photo, photo, data.picture, room);
    context.strokeStyle = "rgb(255 255 255 / 0.35)";
    context.lineWidth = pixel;
    drawGrid(context, this.shape);
    const [asked, seen] = [walk.followed, key].map((token) => token - walk.prefix);
    if (asked >= 0) outline(context, line, asked, this.shape, data.queryColour, false);
    if (walk.keyed && seen >= 0) outline(context, line, seen, this.shape, data.keyColour, true);
    this.#drawNames(walk, key);
  }

  /** @param {Walk} walk @param {number} key */
  #drawNames(walk, key) {
    const { parts, choosing } = this;
    const { keyed, followed, stop } = walk;
    const { query } = this.state;
    const shown = [keyed, followed, stop.card.prefix, key, choosing, query].join();
    if (this.shown.names === shown) return;
    this.shown.names = shown;
    const word = (/** @type {string} */ className, textContent = tr(className)) =>
      element("b", { className, textContent });
    parts.photoTitle.replaceChildren(...(keyed
      ? sentence(tr("Click a {query}, hover a {key}"), word)
      : sentence(tr("Click {patch}"), () => word("query", tr("a patch")))));
    const inFront = stop.box || stop.card.prefix ? this.shape.prefix : [];
    const [asked, seen] = [walk.nameOf(followed), walk.nameOf(key)];
    const none = followed === query ? "" : tr(" (none chosen)");
    parts.names.replaceChildren(
      word("query", `${keyed ? tr("query") : inFront.length ? tr("token") : tr("patch")} `), `${asked}${none}`,
      ...(keyed ? [element("br"), word("key", `${tr("key")} `), seen] : []));
    parts.photo.setAttribute("aria-label",
      keyed ? tr("Picture; query {asked}, key {seen}", { asked, seen }) : tr("Picture; token {asked}", { asked }));
    const chosen = keyed ? choosing : "query";
    const token = chosen === "key" ? key : walk.token;
    this.refill(parts.tokens, tokenButtons(inFront, token, keyed ? choosing : null, {
      token: (i) => this.change({ [chosen]: i }),
      click: (name) => {
        this.choosing = name;
        this.redraw();
      },
    }));
  }
}

const mount = mounting(View, stacks);
export default mount;
