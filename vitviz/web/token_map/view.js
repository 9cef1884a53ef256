// @ts-check
// The token map on the page: a picture with its patches, the map of one query token, and a strip
// of maps.
//
// Hover, keys and clicks are answered here. The host gets clicks and keys afterwards, in one message.
// The map is drawn at most once per frame of the screen.

import { Component, Stacks, mounting, views } from "./component.js";
import { DistanceChart } from "./distance.js";
import { mapDrawing } from "./drawing.js";
import { isTaken, keyed, pressed } from "./keys.js";
import {
  MEAN, Scale, Stack, cellAt, fitted, largest, matched, place, reading, selected, smallest, tilesOf,
  tokenAt,
} from "./maps.js";
import {
  contextOf, drawBar, drawCells, drawGrid, drawPixels, drawTile, element, fillStrip, fit, layout, outline,
  toolbar,
} from "./parts.js";
import { saveMenu } from "./saving.js";
import { tr } from "./strings.js";

/** @import { Grid, Matrix, Role, Selected, Tile } from "./maps.js" */
/** @import { Beside, Box, State, ViewMessage } from "./message.js" */
/** @import { Paint } from "./parts.js" */
/** @import { Drawing } from "./saving.js" */

const GUESS = "#fff";
const GAP = 8; // pixels between the columns
/** @type {Stacks<Stack>} */
const stacks = new Stacks(4, (message) => new Stack(message));

/** One mounted view answers a key: the one with the focus, else the last that takes the page's keys.
 * @param {KeyboardEvent} event */
function press(event) {
  if (isTaken(event)) return;
  const [path, all] = [event.composedPath(), /** @type {any[]} */ ([...views])];
  (all.find((view) => path.includes(view.box)) ?? all.findLast((view) => view.data.alone))?.press(event);
}

/** The tokens of a frame, by which it is compared with another.
 * @param {ViewMessage["frames"][number]} shape */
function tokensOf({ rows, cols, prefix }) {
  return JSON.stringify([rows, cols, prefix]);
}

/** @extends {Component<ViewMessage>} */
class View extends Component {
  /** @type {number | null} */ hover = null; // query under the pointer
  /** @type {number | null} */ pointed = null; // patch under the pointer on the map
  /** @type {{ view: View, patch: number } | null} */ asked = null; // where the pointer is on the picture of the keys
  small = element("canvas"); // the map, one pixel a patch
  cells = element("canvas"); // the matrix, one pixel a cell
  rooms = { photo: this.room, picture: this.room, matrix: this.room }; // sizes at the last drawing
  /** @type {{ selection: Selected, paint: Paint } | null} */ map = null; // as it was last drawn
  saveMenu = element("span"); // made with the rest, in its language

  /** @param {HTMLElement} root */
  constructor(root) {
    // The style sets the room; reading it in each redraw would force a layout of the page.
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
    const before = this.data && tokensOf(this.shape);
    super.receive(data, send);
    if (before !== tokensOf(this.shape)) this.hover = null; // it was a token of another grid
    this.asked = null;
    for (const view of this.linked) view.redraw(); // their scale may have changed
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

  /** Show a change at once; send it to the host when no other follows.
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

  /** Choose the same place as a linked view, in this view's grid.
   * @param {View} view @param {boolean} chosen whether it was chosen there, not only pointed at */
  follow(view, chosen) {
    const there = { ...view.state, query: view.hover ?? view.state.query };
    const { head, query } = fitted(there, view.shape, this.shape, this.data.strip);
    if (chosen) this.commits.follow(view.commits, { head, query, pinned: there.pinned });
    this.hover = view.hover === null ? null : query;
    this.redraw();
  }

  /** Show the patches most similar to a patch of the other picture.
   * @param {View["asked"]} asked */
  ask(asked) {
    this.asked = asked?.view.here ? asked : null;
    this.redraw();
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const change = keyed(pressed(event), this.state, this.data.frames, this.hover);
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
    this.box.classList.toggle("in-row", this.inRow);
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
      if (this.here) point(this.patchUnder(canvas, event, this.data.picture, this.selection.mapGrid, this.#area));
    };
    photo.onpointermove = (/** @type {PointerEvent} */ event) => {
      if (this.across) return pointAt(photo, event);
      const { pinned, query } = this.state;
      const found = this.#queryAt(photo, event);
      hover(pinned && found === query ? null : found);
    };
    photo.onpointerleave = () => (this.across ? point(null) : hover(null));
    const beside = (this.data.beside ?? []).map((_, index) => this.parts[`beside${index}`]);
    for (const canvas of [photo, map, ...beside])
      canvas.onclick = (/** @type {MouseEvent} */ event) => {
        const query = this.#queryAt(canvas, event);
        if (query !== null) this.change({ query, pinned: true });
      };
    for (const canvas of [map, ...beside]) {
      canvas.onpointermove = (/** @type {PointerEvent} */ event) => pointAt(canvas, event);
      canvas.onpointerleave = () => point(null);
    }
    const { matrix } = this.parts;
    matrix.onclick = (/** @type {MouseEvent} */ event) => {
      const under = this.#tokensUnder(event);
      if (under) this.change({ query: under.chosen, pinned: under.chosen >= this.shape.prefix.length });
    };
    matrix.onpointermove = (/** @type {PointerEvent} */ event) => {
      const under = this.#tokensUnder(event);
      const patch = under ? under.other - this.shape.prefix.length : -1;
      hover(under && under.chosen !== this.state.query ? under.chosen : null);
      point(patch >= 0 ? patch : null);
    };
    matrix.onpointerleave = () => (hover(null), point(null));
  }

  /** The token whose row or column of A lies under the pointer on the matrix, and the other one.
   * @param {MouseEvent} event */
  #tokensUnder({ clientX, clientY }) {
    const matrix = this.#matrix;
    if (!matrix) return null;
    const { left, top, width, height } = this.parts.matrix.getBoundingClientRect();
    const [row, column] = [(clientY - top) / height, (clientX - left) / width].map((share) =>
      tokenAt(Math.min(matrix.side - 1, Math.max(0, Math.floor(share * matrix.side))), matrix));
    return this.selection.direction === "column" ? { chosen: column, other: row }
      : { chosen: row, other: column };
  }

  /** A of the layer and head on screen, where it is drawn.
   * @returns {Matrix | null} */
  get #matrix() {
    const { state, shape } = this;
    if (!this.data.matrix || !this.here || shape.prefixOnly) return null;
    return /** @type {Stack} */ (this.stack).matrix(state.frame, shape.heads === 1 ? 0 : state.head);
  }

  /** Whether more stands in a row than photo and map. */
  get inRow() {
    return Boolean(this.data.matrix || this.data.beside?.length);
  }

  /** What of the picture is drawn: what the host asks for; of a wide one in a row what the model saw.
   * @returns {Box} */
  get #area() {
    const { width, height, crop, area } = this.data.picture;
    return area ?? (this.inRow && width > height ? crop : [0, 0, width, height]);
  }

  /** The room of photo, map and matrix: in a row they are equally high. */
  #rooms() {
    const { room, parts, data } = this;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const isNarrow = room.width < 40 * rem; // one column
    const [left, top, right, bottom] = this.#area;
    const shape = (right - left) / (bottom - top);
    const count = data.beside?.length ?? 0;
    const shapes = data.matrix ? [shape, shape, 1] : Array(2 + count).fill(shape);
    const space = room.width - GAP * (shapes.length - 1);
    const height = Math.min(room.height, space / shapes.reduce((sum, one) => sum + one));
    const columns = shapes.map((one) => `${one * height}px`).join(" ");
    if (this.inRow) parts.sections.style.gridTemplateColumns = isNarrow ? "" : columns;
    if (!this.inRow || isNarrow) return { photo: room, picture: room, matrix: room };
    const picture = { width: shape * height, height };
    return { photo: picture, picture, matrix: { width: height, height } };
  }

  /** The token under the pointer, counted as the queries are.
   * @param {HTMLCanvasElement} canvas @param {MouseEvent} event */
  #queryAt(canvas, event) {
    if (this.shape.prefixOnly || this.across) return null;
    const patch = this.patchUnder(canvas, event, this.data.picture, this.shape, this.#area);
    return patch === null ? null : patch + this.shape.prefix.length;
  }

  // ---- drawing

  draw() {
    const begun = performance.now();
    const { selection } = this;
    const { rows, cols } = selection.mapGrid;
    const before = this.map?.selection.mapGrid;
    if (before && (before.rows !== rows || before.cols !== cols)) this.pointed = null; // of another map
    this.box.dataset.role = selection.role;
    this.rooms = this.#rooms();
    this.saveMenu.style.visibility = this.here ? "" : "hidden"; // what is not here cannot be saved
    this.#drawTools();
    this.#drawPhoto(selection);
    if (this.here) this.#drawMaps(selection);
    else this.#wait();
    this.chart?.mark(this.state.frame, this.state.head);
    if (this.parts.slider) this.parts.slider.value = this.state.frame;
    performance.measure("token map redraw", { start: begun });
  }

  /** Clear the screen until the maps of the frame arrive. */
  #wait() {
    const { photo, map, mapTitle, matrix, matrixTitle, matrixBar, bar, prefix, strip, reading } = this.parts;
    this.#onPicture(map);
    contextOf(matrix).clearRect(0, 0, matrix.width, matrix.height);
    for (const canvas of [photo, map, matrix]) canvas.removeAttribute("aria-label");
    for (const part of [mapTitle, matrixTitle, matrixBar, bar, prefix, strip]) part.replaceChildren();
    delete matrixBar.dataset.spotlight;
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
    const room = canvas === this.parts.photo ? this.rooms.photo : this.rooms.picture;
    return this.onPicture(canvas, stacks.get(stackId)?.photo, picture, room, this.#area);
  }

  /** Outline the chosen token, its pin while the pointer shows another, and the patch under the
   * pointer on the map: queries solid, keys dashed.
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
    const isNarrow = this.data.link && selection.patch >= 0; // its colour says its role
    const before = isNarrow ? "" : tr("The {role}: ", { role: tr(role) });
    this.parts.photoTitle.replaceChildren(before, token, pinned);
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
    const { kind, low } = /** @type {ViewMessage & { low?: number }} */ (data);
    const byHead = data.strip === "heads";
    const { tiles, chosen } = this.tiles(selection);
    const others = this.linked.filter((view) => view.here);
    const all = data.link ? [chosen, ...others.map((view) => view.tiles(view.selection).chosen)] : tiles;
    /** @param {Tile} tile @param {boolean} spotlight */
    const paint = (tile, spotlight) => {
      const scale = new Scale(kind, state.scale, state.scale === "map" ? [tile] : all, low);
      return { kind, scale, lut, spotlight };
    };
    this.#drawMap(selection, chosen, paint(chosen, state.view === "spotlight" && kind === "share"));
    if (data.matrix) this.#drawMatrix(selection, chosen.name);
    data.beside?.forEach((one, index) => this.#drawBeside(selection, one, index));
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

  /** All rows of A, with the row and the column of the token that is chosen.
   * @param {Selected} selection @param {string} head */
  #drawMatrix({ role, other, query }, head) {
    const { data, lut, parts, shape, state } = this;
    const { matrix: canvas, matrixTitle: title, matrixBar: bar } = parts;
    const matrix = this.#matrix;
    canvas.closest("section").hidden = !matrix;
    if (!matrix) return;
    const { cells, side, run, prefix } = matrix;
    const logarithmic = state.scale === "log";
    const least = logarithmic ? smallest(cells, -1) : 0;
    const scale = new Scale("share", logarithmic ? "log" : "map", [{ strongest: largest(cells, -1), least }]);
    const paint = /** @type {Paint} */ ({ kind: "share", scale, lut, spotlight: false });
    drawPixels(this.cells, cells, { rows: side, cols: side, crop: [0, 0, side, side] }, paint);
    const { line } = fit(canvas, { width: side, height: side }, this.rooms.matrix);
    const context = contextOf(canvas);
    context.setTransform(canvas.width / side, 0, 0, canvas.height / side, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.cells, 0, 0);
    /** @param {Role} role @param {number} token @param {number} alpha */
    const mark = (role, token, alpha) => {
      const lines = role === "query" ? { rows: side, cols: 1 } : { rows: 1, cols: side };
      context.globalAlpha = alpha;
      outline(context, line, cellAt(token, prefix, run), { ...lines, crop: [0, 0, side, side] },
        data[`${role}Colour`], role === "key");
      context.globalAlpha = 1;
    };
    const pointed = this.pointed === null ? query : prefix + this.pointed;
    if (pointed !== MEAN) mark(other, pointed, this.pointed === null ? 0.5 : 1);
    if (query !== MEAN) mark(role, query, 1);
    const what = tr("row: query, column: key");
    const cell = run > 1 ? tr("Each cell: mean of {run} × {run} patches", { run }) : "";
    title.replaceChildren(tr("All of A"), element("small", { textContent: ` ${what}` }));
    parts.matrixNote.textContent = cell;
    canvas.setAttribute("aria-label",
      [tr("All of A"), shape.name, head, what, cell].filter(Boolean).join(", "));
    drawBar(bar, paint, shape.equalShare);
    bar.style.width = canvas.style.width;
  }

  /** A map beside the map; pale where it is of another layer or token than is on screen by now.
   * @param {Selected} selection @param {Beside} one @param {number} index */
  #drawBeside(selection, one, index) {
    const { data, parts, shape, state } = this;
    const [canvas, title, bar, note] = ["", "Title", "Bar", "Note"].map((name) => parts[`beside${name}${index}`]);
    const names = /** @type {const} */ (["frame", "query", "direction"]);
    const isLate = this.hover !== null || names.some((name) => state[name] !== data.state[name]);
    const values = Float64Array.from(one.values);
    const logarithmic = state.scale === "log";
    const least = logarithmic ? smallest(values, -1) : 0;
    const scale = new Scale("share", logarithmic ? "log" : "map", [{ strongest: largest(values, -1), least }]);
    const paint = /** @type {Paint} */ ({ kind: "share", scale, lut: this.lut, spotlight: false });
    const { context, line } = this.#onPicture(canvas);
    drawPixels(this.cells, values, selection.mapGrid, paint);
    const [left, top, right, bottom] = selection.mapGrid.crop;
    context.imageSmoothingEnabled = state.smooth;
    context.globalAlpha = isLate ? 0.25 : 1;
    context.drawImage(this.cells, left, top, right - left, bottom - top);
    context.globalAlpha = 1;
    this.#markPatches(context, line, selection);
    title.textContent = one.title;
    note.textContent = isLate ? "…" : one.note;
    canvas.setAttribute("aria-label", [one.words, one.note].join(" "));
    drawBar(bar, paint, shape.equalShare);
    bar.style.width = canvas.style.width;
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
