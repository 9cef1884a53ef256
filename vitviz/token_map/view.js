// @ts-check
// The token map on the page: a picture with its patches, the map of one query token, and a strip
// of maps.
//
// Hover, keys and clicks are answered here; a click or a key is told to the host afterwards, in one
// message. However much changes, the map is drawn once for each frame of the screen.

import { Component, Stacks, mounting, views } from "./component.js";
import { DistanceChart } from "./distance.js";
import { mapDrawing } from "./drawing.js";
import { isTaken, keyed } from "./keys.js";
import { MEAN, Scale, Stack, fitted, matched, place, reading, selected, tilesOf } from "./maps.js";
import {
  drawBar, drawCells, drawGrid, drawPixels, drawTile, element, fillStrip, layout, outline, toolbar,
} from "./parts.js";
import { saveMenu } from "./saving.js";
import { tr } from "./strings.js";

/** @import { Grid, Role, Selected, Tile } from "./maps.js" */
/** @import { State, ViewMessage } from "./message.js" */
/** @import { Paint } from "./parts.js" */
/** @import { Drawing } from "./saving.js" */

const GUESS = "#fff";
/** @type {Stacks<Stack>} */
const stacks = new Stacks(4, (message) => new Stack(message));

/** A key is answered by one of those mounted: the one with the focus, else the last.
 * @param {KeyboardEvent} event */
function press(event) {
  if (isTaken(event)) return;
  const [path, all] = [event.composedPath(), /** @type {any[]} */ ([...views])];
  (all.find((view) => path.includes(view.box)) ?? all.at(-1))?.press(event);
}

/** @extends {Component<ViewMessage>} */
class View extends Component {
  /** @type {number | null} */ hover = null; // query under the pointer
  /** @type {number | null} */ pointed = null; // patch under the pointer on the map
  /** @type {{ view: View, patch: number } | null} */ asked = null; // where the keys' picture is pointed at
  small = element("canvas"); // the map, one pixel a patch
  /** @type {{ selection: Selected, paint: Paint } | null} */ map = null; // as it was last drawn
  saveMenu = element("span"); // made with the rest, in its language

  /** @param {HTMLElement} root */
  constructor(root) {
    // The style gives the room; asking for it in each redraw would lay the page out.
    super(root, "token-map", element("i"));
  }

  open() {
    super.open();
    document.addEventListener("keydown", press);
  }

  close() {
    super.close();
    if (!views.size) document.removeEventListener("keydown", press);
  }

  /** @param {ViewMessage} data @param {any} send */
  receive(data, send) {
    super.receive(data, send);
    this.asked = null;
    for (const view of this.linked) view.redraw(); // their scale may be another now
  }

  /** The other views that show the same place.
   * @returns {View[]} */
  get linked() {
    const { link } = this.data;
    const all = /** @type {View[]} */ ([...views]);
    return link ? all.filter((view) => view !== this && view.data.link === link) : [];
  }

  /** Whether the keys lie in another picture. */
  get across() {
    return Boolean(this.data.matches);
  }

  get selection() {
    const { asked, shape, state } = this;
    if (!asked) return selected(shape, state, this.hover, this.across);
    const { keyRows: rows, keyCols: cols, keyCrop: crop } = asked.view.shape;
    const grid = { rows, cols, crop };
    const name = tr("{place} of the other picture", { place: place(asked.patch, cols) });
    return { ...selected(shape, state, MEAN, true), grid, name };
  }

  get stack() {
    return stacks.get(this.data.stackId)?.numbers;
  }

  /** Whether the maps of the frame on screen are here. */
  get here() {
    return Boolean(this.stack?.frames.has(this.state.frame));
  }

  /** Whether the pointer shows another token than the one that is pinned. */
  get previewed() {
    return this.state.pinned && this.hover !== null;
  }

  /** Where the tokens of the frame on screen lie. */
  get shape() {
    return this.data.frames[this.state.frame];
  }

  // ---- changes

  /** Show a change at once; tell the host when no other follows.
   * @param {Partial<State>} part */
  change(part) {
    this.hover = null;
    const before = this.shape;
    const state = { ...this.state, ...part };
    const shape = this.data.frames[state.frame];
    const kept = shape === before ? {} : fitted(state, before, shape, this.data.strip);
    this.commits.change({ ...part, ...kept });
    for (const view of this.linked) view.follow(this, true);
    this.redraw();
  }

  /** Look where a linked view looks; in its own grid.
   * @param {View} view @param {boolean} chosen whether it was chosen there, not pointed at alone */
  follow(view, chosen) {
    const there = { ...view.state, query: view.hover ?? view.state.query };
    const { head, query } = fitted(there, view.shape, this.shape, this.data.strip);
    if (chosen) this.commits.follow(view.commits, { head, query, pinned: there.pinned });
    this.hover = view.hover === null ? null : query;
    this.redraw();
  }

  /** Show what is most similar to a patch of the other picture.
   * @param {View["asked"]} asked */
  ask(asked) {
    this.asked = asked?.view.here ? asked : null;
    this.redraw();
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const change = keyed(event.key, this.state, this.data.frames, this.hover);
    if (!change) return;
    this.change(change);
    event.preventDefault();
  }

  /** The map on screen, to be saved.
   * @param {boolean} bare @returns {Drawing} */
  drawing(bare) {
    const { data, parts, small, shape, state } = this;
    const { selection, paint } = /** @type {NonNullable<View["map"]>} */ (this.map);
    const { mapGrid: grid } = selection;
    const [match] = data.matches?.nearest[selection.query] ?? [];
    const { role, grid: asked, patch } = data.matches
      ? { role: "key", grid, patch: match } : selection;
    const made = mapDrawing({
      ...{ picture: data.picture, small, grid, asked, patch, paint, bare, smooth: state.smooth },
      photo: stacks.get(data.stackId)?.photo?.src,
      colour: role === "key" ? data.keyColour : data.queryColour,
      dashed: role === "key",
      equalShare: shape.equalShare,
    });
    const title = `${parts.mapTitle.textContent}, ${selection.name}`;
    return { ...made, title, words: parts.map.getAttribute("aria-label"),
      provenance: data.provenance };
  }

  // ---- building

  build() {
    const { data } = this;
    this.saveMenu = saveMenu((bare) => this.drawing(bare));
    const { parts, content } = layout(data);
    this.parts = parts;
    this.chart = data.distance &&
      new DistanceChart(data.distance, (frame, head) => this.change({ frame, head }));
    if (this.chart) parts.strip.parentElement.append(this.chart.node);
    this.box.classList.toggle("compact", Boolean(data.link));
    this.box.style.setProperty("--query", data.queryColour);
    this.box.style.setProperty("--key", data.keyColour);
    this.box.replaceChildren(...content, element("div", { className: "room" }, this.measured));
    this.#listen();
  }

  #listen() {
    const { photo, map, slider } = this.parts;
    if (slider) slider.oninput = () => this.change({ frame: Number(slider.value) });
    /** @param {number | null} query */
    const hover = (query) => {
      if (query === this.hover) return;
      this.hover = query;
      this.redraw();
      for (const view of this.linked) view.follow(this, false);
    };
    /** @param {number | null} patch */
    const point = (patch) => {
      if (patch === this.pointed) return;
      this.pointed = patch;
      this.redraw();
      if (this.across)
        for (const view of this.linked) view.ask(patch === null ? null : { view: this, patch });
    };
    /** @param {HTMLCanvasElement} canvas @param {PointerEvent} event */
    const pointAt = (canvas, event) => {
      if (this.here) point(this.patchUnder(canvas, event, this.data.picture, this.selection.mapGrid));
    };
    photo.onpointermove = (/** @type {PointerEvent} */ event) => {
      if (this.across) return pointAt(photo, event);
      const { pinned, query } = this.state;
      const found = this.#queryAt(photo, event);
      hover(pinned && found === query ? null : found);
    };
    photo.onpointerleave = () => (this.across ? point(null) : hover(null));
    for (const canvas of [photo, map])
      canvas.onclick = (/** @type {MouseEvent} */ event) => {
        const query = this.#queryAt(canvas, event);
        if (query !== null) this.change({ query, pinned: true });
      };
    map.onpointermove = (/** @type {PointerEvent} */ event) => pointAt(map, event);
    map.onpointerleave = () => point(null);
  }

  /** The token that is chosen under the pointer, counted as the queries are.
   * @param {HTMLCanvasElement} canvas @param {MouseEvent} event */
  #queryAt(canvas, event) {
    if (this.shape.prefixOnly || this.across) return null;
    const patch = this.patchUnder(canvas, event, this.data.picture, this.shape);
    return patch === null ? null : patch + this.shape.prefix.length;
  }

  // ---- drawing

  draw() {
    const begun = performance.now();
    const { selection } = this;
    const { rows, cols } = selection.mapGrid;
    if (this.pointed !== null && this.pointed >= rows * cols) this.pointed = null; // of another map
    this.box.dataset.role = selection.role;
    this.#drawTools();
    this.#drawPhoto(selection);
    if (this.here) this.#drawMaps(selection);
    else this.#wait();
    this.chart?.mark(this.state.frame, this.state.head);
    if (this.parts.slider) this.parts.slider.value = this.state.frame;
    performance.measure("token map redraw", { start: begun });
  }

  /** Nothing of another frame stays on screen until the maps are here. */
  #wait() {
    const { photo, map, mapTitle, bar, prefix, strip, reading } = this.parts;
    this.#onPicture(map);
    for (const canvas of [photo, map]) canvas.removeAttribute("aria-label");
    for (const part of [mapTitle, bar, prefix, strip]) part.replaceChildren();
    delete bar.dataset.spotlight;
    reading.textContent = tr("Loading …");
  }

  #drawTools() {
    const { data, state, parts } = this;
    const columns = Boolean(data.titles.column) && !this.shape.prefixOnly;
    const { direction, view, scale, leaveOut, smooth } = state;
    const shown = JSON.stringify([columns, direction, view, scale, leaveOut, smooth]);
    if (this.shown.tools === shown) return;
    this.shown.tools = shown;
    const change = (/** @type {Partial<State>} */ part) => this.change(part);
    const tools = data.link ? [] : toolbar(data.kind === "share", columns, data.tools, state, change);
    this.refill(parts.tools, [...tools, this.saveMenu]);
  }

  /** @param {HTMLCanvasElement} canvas */
  #onPicture(canvas) {
    const { picture, stackId } = this.data;
    return this.onPicture(canvas, stacks.get(stackId)?.photo, picture, this.room);
  }

  /** Outline the token chosen, its pin while another is looked at, and the patch under the pointer
   * on the map: queries solid, keys dashed.
   * @param {CanvasRenderingContext2D} context @param {number} line @param {Selected} selection */
  #markPatches(context, line, { role, other, patch, grid, mapGrid }) {
    const box = (/** @type {number} */ patch, /** @type {Grid} */ grid, /** @type {Role} */ role) =>
      outline(context, line, patch, grid, this.data[`${role}Colour`], role === "key");
    if (this.asked) {
      const { view, patch: there } = this.asked;
      for (const one of view.data.matches?.back[there] ?? []) box(one, mapGrid, "key");
      return;
    }
    if (this.across) {
      for (const one of this.data.matches?.nearest[patch] ?? []) box(one, mapGrid, "key");
      if (this.pointed !== null) box(this.pointed, mapGrid, "query");
      return;
    }
    if (this.previewed) {
      context.globalAlpha = 0.5;
      box(selected(this.shape, this.state, null).patch, grid, role);
      context.globalAlpha = 1;
    }
    if (patch >= 0) box(patch, grid, role);
    if (this.pointed !== null && this.here) box(this.pointed, mapGrid, other);
  }

  /** @param {Selected} selection */
  #drawPhoto(selection) {
    const { context, pixel, line } = this.#onPicture(this.parts.photo);
    context.strokeStyle = "rgb(255 255 255 / 0.35)";
    context.lineWidth = pixel;
    const away = this.across || this.asked; // the query is in the other picture
    drawGrid(context, away ? selection.mapGrid : selection.grid);
    this.#markPatches(context, line, selection);
    if (away) return this.parts.photoTitle.replaceChildren(this.data.titles.photo ?? "");
    const { role, name, query } = selection;
    const pinned = this.previewed ? tr(" · preview") : this.state.pinned ? tr(" · pinned") : "";
    const token = element("em", { textContent: name });
    this.parts.photoTitle.replaceChildren(tr("The {role}: ", { role: tr(role) }), token, pinned);
    this.#drawTokenButtons(query, role);
  }

  /** @param {number} query @param {Role} role */
  #drawTokenButtons(query, role) {
    const { home, prefix } = this.shape;
    const names = [...(home === MEAN ? [tr("mean of the patches")] : []), ...prefix];
    if (!names.length) names.push(tr("the middle"));
    const shown = `${names.join()} ${query} ${role}`;
    if (this.shown.tokens === shown) return;
    this.shown.tokens = shown;
    this.refill(this.parts.tokens, names.map((name, index) =>
      element("button", {
        type: "button",
        textContent: name,
        onclick: () => this.change({ query: home + index, pinned: false }),
        aria: { "aria-pressed": String(query === home + index),
                "aria-label": tr("{name} as the {role}", { name, role: tr(role) }) },
      })));
  }

  /** The maps of the strip, and which of them is the large one.
   * @param {Selected} selection */
  tiles(selection) {
    const { asked, data, shape, state } = this;
    if (asked) { // the other way round: the column of the patch there
      const { view, patch } = asked;
      const map = /** @type {Stack} */ (view.stack).map(0, 0, patch, "column");
      const at = view.data.matches?.back[patch][0] ?? 0;
      const [tile] = data.frames;
      const chosen = { head: 0, frame: 0, name: tile.name, map, least: 0,
        strongest: { at, value: map.patches[at] } };
      return { tiles: [chosen], chosen };
    }
    const byHead = data.strip === "heads";
    const tiles = tilesOf(/** @type {Stack} */ (this.stack), data, state, selection);
    const head = shape.heads === 1 ? 0 : state.head;
    const chosen = tiles.find((tile) =>
      byHead ? tile.head === head : tile.frame === state.frame) ?? tiles[0];
    const { matches } = data;
    return { tiles, chosen: matches ? matched(chosen, matches, selection.query) : chosen };
  }

  /** @param {Selected} selection */
  #drawMaps(selection) {
    const { data, lut, parts, shape, state } = this;
    const { kind } = data;
    const byHead = data.strip === "heads";
    const { tiles, chosen } = this.tiles(selection);
    const others = this.linked.filter((view) => view.here);
    const all = data.link ? [chosen, ...others.map((view) => view.tiles(view.selection).chosen)] : tiles;
    /** @param {Tile} tile @param {boolean} spotlight */
    const paint = (tile, spotlight) => {
      const scale = new Scale(kind, state.scale, state.scale === "map" ? [tile] : all);
      return { kind, scale, lut, spotlight };
    };
    this.#drawMap(selection, chosen, paint(chosen, state.view === "spotlight" && kind === "share"));
    fillStrip(parts.strip, tiles.length, byHead ? 2 : 4);
    parts.stripTitle.replaceChildren(data.titles.strip,
      element("small", { textContent: byHead ? ` ${shape.name}` : "" }));
    tiles.forEach((tile, index) => {
      const button = parts.strip.children[index];
      button.onclick = () => this.change(byHead ? { head: tile.head } : { frame: tile.frame });
      button.setAttribute("aria-pressed", String(tile.head === chosen.head && tile.frame === chosen.frame));
      drawTile(button, tile, selection, paint(tile, false), state.smooth);
    });
  }

  /** @param {Selected} selection @param {Tile} tile @param {Paint} paint */
  #drawMap(selection, tile, paint) {
    const { parts, data, state, shape } = this;
    const [left, top, right, bottom] = selection.mapGrid.crop;
    const { context, line } = this.#onPicture(parts.map);
    drawPixels(this.small, tile.map.patches, selection.mapGrid, paint);
    this.map = { selection, paint };
    context.imageSmoothingEnabled = state.smooth;
    context.drawImage(this.small, left, top, right - left, bottom - top);
    this.#markPatches(context, line, selection);
    const { guess } = data;
    const { rows, cols } = selection.mapGrid;
    if (guess?.rows === rows && guess.cols === cols)
      outline(context, line, guess.patch, selection.mapGrid, GUESS, false);

    const column = selection.direction === "column";
    const details = [shape.name, data.strip === "heads" && tile.name, state.smooth && tr("smoothed")];
    const small = element("small", { textContent: ` ${details.filter(Boolean).join(", ")}` });
    parts.mapTitle.replaceChildren((column && data.titles.column) || data.titles.row, small);
    drawBar(parts.bar, paint, shape.equalShare);
    parts.bar.style.width = parts.map.style.width;
    const names = shape.prefix.map((name) =>
      data.kind === "cosine" ? name : column ? tr("by {name}", { name }) : tr("to {name}", { name }));
    drawCells(parts.prefix, names, tile.map.prefix, selection.query, paint);

    const said = reading(data.kind, shape, selection, tile, this.pointed);
    parts.photo.setAttribute("aria-label", said.line);
    parts.map.setAttribute("aria-label", said.line);
    if (this.hover === null) parts.live.textContent = said.line;
    const mutual = data.matches?.mutual[selection.query] && this.pointed === null;
    parts.reading.textContent = said.words + (mutual ? tr(" Each is the other's most similar.") : "");
  }
}

const mount = mounting(View, stacks);
export default mount;
