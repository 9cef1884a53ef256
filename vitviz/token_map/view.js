// The token map: a picture with its patches, the map of one query token, and a strip of maps.
//
// The server mounts this module twice. One mount carries a stack of maps (numbers only; it is sent
// once and then found in the browser's cache), the other what to show of it. Hover, keys and clicks
// are answered here; a click or a key is told to the server afterwards, in one message.

const stacks = new Map(); // id -> Stack; shared by both mounts, as they run the same module
const views = new Set();
const KEPT_STACKS = 4;
const COMMIT_AFTER = 250; // milliseconds without another change
const ANSWER_WITHIN = 2000; // milliseconds that a link waits for the server
const MEAN = -1; // as a head: the mean of heads; as a query: the mean of the patches
const LOG_RANGE = 1000; // a logarithmic scale runs from the maximum down to a thousandth of it
const FLOOR = 0.25; // brightness of a spotlight where nothing is looked at
const QUERY = "#22d3ee";
const KEY = "#ff4fb0";

export default function mount({ data, parentElement, setTriggerValue }) {
  if (data.stack) {
    stacks.set(data.stack.id, new Stack(data));
    if (stacks.size > KEPT_STACKS) stacks.delete(stacks.keys().next().value);
    redraw();
    return undefined;
  }
  parentElement.view ??= new View(parentElement);
  parentElement.view.receive(data, setTriggerValue);
  return () => parentElement.view.close();
}

function redraw() {
  for (const view of views) view.draw();
}

// ------------------------------------------------------------------------------- the numbers

/** Maps of every frame, head and query. Shares of patches are stored as the square root of their
 * part of the query's largest one, in 255 steps; cosines from -1 to 1 in 254 steps. Where a query
 * meets some patches alone, only those are stored. */
class Stack {
  constructor({ stack, codes, peaks, prefix, places }) {
    this.kind = stack.kind; // "share" or "cosine"
    this.frames = new Map(stack.frames.map((frame) => [frame.index, frame]));
    this.codes = column(codes);
    this.peaks = column(peaks);
    this.prefix = column(prefix);
    this.places = column(places); // of a frame with windows: each query's window, then their keys
    this.photo = new Image();
    this.photo.onload = redraw;
    this.photo.src = stack.picture;
    this.decode = Float32Array.from({ length: 256 }, (_, code) =>
      this.kind === "share" ? (code / 255) ** 2 : (code - 127) / 127,
    );
  }

  /** Values of all patches, row by row, and of the prefix tokens, for one query token. A row lies
   * in the grid of the keys, a column (of which the token is the key) in that of the queries. */
  map(frameIndex, head, token, direction) {
    const frame = this.frames.get(frameIndex);
    const column = direction === "column";
    const patches = new Float32Array(column ? frame.rows * frame.cols : frame.keyRows * frame.keyCols);
    const prefix = new Float32Array(frame.prefixTokens);
    const heads = head === MEAN ? range(frame.heads) : [head];
    const count = column ? frame.keyRows * frame.keyCols : frame.rows * frame.cols;
    const tokens = token === MEAN ? range(count).map((i) => i + prefix.length) : [token];
    const weight = 1 / (heads.length * tokens.length);
    for (const h of heads)
      for (const one of tokens) {
        if (column) this.#addColumn(frame, h, one, weight, patches, prefix);
        else this.#addRow(frame, h, one, weight, patches, prefix);
      }
    return { patches, prefix };
  }

  /** Which window a query is in. */
  #window(frame, query) {
    return this.places[frame.firstPlace + query - frame.prefixTokens];
  }

  /** The patches of a window, -1 where it has none. */
  #keys(frame, window) {
    const first = frame.firstPlace + frame.rows * frame.cols + window * frame.keys;
    return this.places.subarray(first, first + frame.keys);
  }

  #addRow(frame, head, query, weight, patches, prefix) {
    const row = head * frame.queries + query;
    const peak = this.peaks[frame.firstRow + row] * weight;
    const first = frame.firstCode + row * frame.keys;
    const places = frame.windows ? this.#keys(frame, this.#window(frame, query)) : null;
    for (let k = 0; k < frame.keys; k++) {
      const place = places ? places[k] : k;
      if (place >= 0) patches[place] += this.decode[this.codes[first + k]] * peak;
    }
    const shares = frame.firstPrefix + row * prefix.length;
    for (let k = 0; k < prefix.length; k++) prefix[k] += this.prefix[shares + k] * weight;
  }

  #addColumn(frame, head, key, weight, patches, prefix) {
    const patch = key - prefix.length;
    const within = frame.windows ? this.#places(frame, patch) : null;
    const value = (query) => {
      const row = head * frame.queries + query;
      if (patch < 0) return this.prefix[frame.firstPrefix + row * prefix.length + key];
      const at = within ? within[this.#window(frame, query)] : patch;
      if (at < 0) return 0;
      const code = this.codes[frame.firstCode + row * frame.keys + at];
      return this.decode[code] * this.peaks[frame.firstRow + row];
    };
    for (let q = 0; q < prefix.length; q++) prefix[q] += value(q) * weight;
    const last = Math.min(patches.length, frame.queries - prefix.length);
    for (let q = 0; q < last; q++) patches[q] += value(q + prefix.length) * weight;
  }

  /** Where a patch stands in each window, -1 where it is not. */
  #places(frame, patch) {
    return range(frame.windows).map((window) => this.#keys(frame, window).indexOf(patch));
  }
}

/** The numbers of an Arrow table's only column. */
function column(table) {
  return table.getChildAt(0).toArray();
}

function range(count) {
  return Array.from({ length: count }, (_, i) => i);
}

/** How values become positions 0..1 on the colour bar. */
class Scale {
  constructor(kind, name, values) {
    this.signed = kind === "cosine";
    this.log = name === "log" && !this.signed;
    this.max = this.signed ? 1 : Math.max(...values, 1e-30);
    this.min = this.signed ? -1 : this.log ? this.max / LOG_RANGE : 0;
  }

  position(value) {
    const place = this.log
      ? Math.log(Math.max(value, this.min) / this.min) / Math.log(LOG_RANGE)
      : (value - this.min) / (this.max - this.min);
    return Math.min(1, Math.max(0, place));
  }
}

function largest(patches, except) {
  let best = -Infinity;
  let at = 0;
  for (let i = 0; i < patches.length; i++)
    if (i !== except && patches[i] > best) {
      best = patches[i];
      at = i;
    }
  return { value: best === -Infinity ? 0 : best, at };
}

// ------------------------------------------------------------------------------- the words

function percent(share) {
  const value = 100 * share;
  if (value === 0) return "0 %";
  const digits = Math.max(0, 1 - Math.floor(Math.log10(Math.abs(value))));
  return `${value.toFixed(Math.min(digits, 6))} %`;
}

function spoken(kind, value) {
  return kind === "share" ? percent(value) : value.toFixed(2);
}

/** The patch of another grid of the same picture in which the middle of a patch lies. */
function moved(patch, from, to) {
  const along = (index, count, start, end, other, first, last) => {
    const middle = start + ((index + 0.5) / count) * (end - start);
    const found = Math.floor(((middle - first) / (last - first)) * other);
    return Math.min(other - 1, Math.max(0, found));
  };
  const [left, top, right, bottom] = from.crop;
  const [x, y, xEnd, yEnd] = to.crop;
  const row = along(Math.floor(patch / from.cols), from.rows, top, bottom, to.rows, y, yEnd);
  return row * to.cols + along(patch % from.cols, from.cols, left, right, to.cols, x, xEnd);
}

function place(index, cols) {
  return `row ${Math.floor(index / cols) + 1} column ${(index % cols) + 1}`;
}

// ------------------------------------------------------------------------------- the screen

function element(name, properties = {}, ...children) {
  const { data, aria, ...rest } = properties;
  const made = Object.assign(document.createElement(name), rest);
  for (const [key, value] of Object.entries(aria ?? {})) made.setAttribute(key, value);
  Object.assign(made.dataset, data ?? {});
  made.append(...children);
  return made;
}

/** A row of buttons of which one is pressed. */
function choice(label, options, pressed, choose) {
  const buttons = Object.entries(options).map(([value, text]) =>
    element("button", {
      type: "button",
      textContent: text,
      onclick: () => choose(value),
      aria: { "aria-pressed": String(value === pressed) },
    }),
  );
  return element("div", { className: "choice", aria: { role: "group", "aria-label": label } },
    element("span", { textContent: label }), ...buttons);
}

function check(label, checked, change) {
  const box = element("input", { type: "checkbox", checked });
  box.onchange = () => change(box.checked);
  return element("label", {}, box, element("span", { textContent: label }));
}

class View {
  constructor(root) {
    this.root = root;
    this.state = null; // frame, head, query, direction, view, scale, leaveOut, smooth, pinned
    this.hover = null; // query under the pointer
    this.key = null; // patch under the pointer on the map
    this.version = 0;
    this.parts = {};
    this.box = element("div", { className: "token-map" });
    this.box.addEventListener("keydown", (event) => this.#press(event));
    this.leaving = (event) => this.#leave(event);
    root.append(this.box);
    this.width = 0;
    this.resized = new ResizeObserver(([entry]) => {
      if (entry.contentRect.width === this.width) return;
      this.width = entry.contentRect.width; // asking for it in each redraw would lay the page out
      this.draw();
    });
  }

  /** Streamlit may mount the same element again afterwards: the next `receive` opens it. */
  close() {
    clearTimeout(this.timer);
    this.resized.disconnect();
    document.removeEventListener("click", this.leaving, true);
    views.delete(this);
  }

  receive(data, send) {
    this.data = data;
    this.send = send;
    // Versions of another session, as after a restart of the server, say nothing of this one's.
    if (!this.state || data.session !== this.session || data.version >= this.version) {
      this.session = data.session;
      this.version = data.version;
      this.state = { ...data.state };
    }
    this.answered = data.version;
    if (this.link && this.answered >= this.version) this.#follow();
    this.lut = Uint8Array.from(data.lut.match(/../g), (pair) => parseInt(pair, 16));
    const { session, version, state, stackId, ...layout } = data;
    const built = JSON.stringify(layout);
    if (this.built !== built) this.#build(); // another answer must not end the drag of a slider
    this.built = built;
    if (!views.has(this)) {
      views.add(this);
      this.resized.observe(this.box);
      document.addEventListener("click", this.leaving, true);
      if (this.version > data.version) this.#commit(); // it was closed before it had told the server
    }
    this.draw();
  }

  get stack() {
    return stacks.get(this.data.stackId);
  }

  /** The picture at the size of a canvas, scaled once; what the model did not see is dimmed. */
  #backdrop(canvas) {
    const photo = this.stack?.photo;
    const { width, height, crop } = this.data.picture;
    const shown = `${this.data.stackId} ${photo?.naturalWidth} ${canvas.width}x${canvas.height} ${crop}`;
    if (this.backdrop?.shown === shown) return this.backdrop;
    const backdrop = element("canvas", { width: canvas.width, height: canvas.height, shown });
    const context = backdrop.getContext("2d");
    context.scale(canvas.width / width, canvas.height / height);
    if (photo?.complete && photo.naturalWidth) context.drawImage(photo, 0, 0, width, height);
    const [left, top, right, bottom] = crop;
    context.fillStyle = "rgb(0 0 0 / 0.6)";
    context.beginPath();
    context.rect(0, 0, width, height);
    context.rect(left, top, right - left, bottom - top);
    context.fill("evenodd");
    this.backdrop = backdrop;
    return backdrop;
  }

  /** The maps of the frame on screen, once they are here. */
  get frame() {
    return this.stack?.frames.get(this.state.frame);
  }

  /** Where the tokens of the frame on screen lie. */
  get shape() {
    return this.data.frames[this.state.frame];
  }

  get direction() {
    return this.shape.prefixOnly ? "row" : this.state.direction;
  }

  get query() {
    return this.shape.prefixOnly ? 0 : this.hover ?? this.state.query;
  }

  /** The query when none was chosen. */
  get home() {
    return this.shape.home;
  }

  /** Index of the query among the patches of the frame's grid; -1 where it is none. */
  get queryPatch() {
    const patch = this.query - this.shape.prefix.length;
    return this.query === MEAN || patch < 0 ? -1 : patch;
  }

  /** The grid that the query is chosen in, and the one that its map lies in. */
  get grids() {
    const { rows, cols, crop, keyRows, keyCols, keyCrop } = this.shape;
    const queries = { rows, cols, crop };
    const keys = { rows: keyRows, cols: keyCols, crop: keyCrop };
    return this.direction === "column" ? { asked: keys, seen: queries } : { asked: queries, seen: keys };
  }

  /** The same place in the grid that the query is chosen in; -1 where the query is no patch. */
  get askedPatch() {
    return this.queryPatch < 0 ? -1 : moved(this.queryPatch, this.shape, this.grids.asked);
  }

  /** The token whose row or column of A is shown. */
  get askedToken() {
    return this.queryPatch < 0 ? this.query : this.askedPatch + this.shape.prefix.length;
  }

  get queryName() {
    if (this.query === MEAN) return "mean of the patches";
    if (this.queryPatch < 0) return this.shape.prefix[this.query];
    return place(this.askedPatch, this.grids.asked.cols);
  }

  // ---- changes

  /** Show a change at once; tell the server when no other follows. */
  change(part) {
    this.hover = null;
    const before = this.shape;
    Object.assign(this.state, part);
    this.#fit(before);
    this.version += 1;
    this.draw();
    this.#commit();
  }

  #commit() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#tell(), COMMIT_AFTER);
  }

  #tell() {
    clearTimeout(this.timer);
    this.send("commit", { ...this.state, version: this.version });
  }

  /** A link is followed once the server has answered to what was chosen here: the next page would
   * not know it. */
  #leave(event) {
    const link = event.target.closest?.("a[href]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (this.answered >= this.version) return;
    event.preventDefault();
    event.stopPropagation();
    this.link = link;
    this.#tell();
    setTimeout(() => this.#follow(), ANSWER_WITHIN);
  }

  #follow() {
    const { link } = this;
    this.link = null;
    this.answered = this.version;
    link?.click();
  }

  /** Keep head and place of the query in a frame of another grid. */
  #fit(before) {
    const { state, shape } = this;
    if (before === shape) return;
    if (state.head >= shape.heads && this.data.strip === "heads") state.head = MEAN;
    const patch = state.query - before.prefix.length;
    if (state.query !== MEAN && patch >= 0) state.query = moved(patch, before, shape) + shape.prefix.length;
    else if (state.query >= shape.prefix.length) state.query = MEAN;
    if (shape.prefix.length && state.query === MEAN && !before.prefix.length) state.query = this.home;
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.tagName === "INPUT" && event.key.startsWith("Arrow")) return;
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const first = this.home;
    const { frames } = this.data;
    const { heads } = this.shape;
    const action = {
      n: () => this.change({ frame: Math.min(this.state.frame + 1, frames.length - 1) }),
      p: () => this.change({ frame: Math.max(this.state.frame - 1, 0) }),
      c: () => this.change({ query: first, pinned: false }),
      escape: () => this.change({ query: first, pinned: false }),
    }[event.key.toLowerCase()];
    const digit = /^[0-9]$/.test(event.key) ? Number(event.key) : null;
    if (moves[event.key]) this.#step(...moves[event.key]);
    else if (digit !== null && heads > 1 && digit <= heads) this.change({ head: digit - 1 });
    else if (action) action();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the page has shortcuts of its own
  }

  #step(down, right) {
    const { rows, cols, prefix, prefixOnly } = this.shape;
    if (prefixOnly) return;
    let [row, col] = [Math.floor(rows / 2), Math.floor(cols / 2)];
    if (this.queryPatch >= 0) {
      row = Math.min(rows - 1, Math.max(0, Math.floor(this.queryPatch / cols) + down));
      col = Math.min(cols - 1, Math.max(0, (this.queryPatch % cols) + right));
    }
    this.change({ query: prefix.length + row * cols + col, pinned: true });
  }

  // ---- building

  #build() {
    const { data, state } = this;
    const focused = this.root.activeElement?.dataset.part;
    const part = (name, node) => {
      node.dataset.part = name;
      this.parts[name] = node;
      return node;
    };
    this.parts = {};
    const canvas = (name) =>
      part(name, element("canvas", { tabIndex: name === "photo" ? 0 : -1, aria: { role: "img" } }));

    this.parts.tools = element("div", { className: "tools" });
    const photo = element("section", {},
      part("photoTitle", element("h4")),
      canvas("photo"),
      part("tokens", element("div", { className: "tokens" })));
    const map = element("section", {},
      part("mapTitle", element("h4")),
      element("div", { className: "beside" },
        element("div", {}, canvas("map"),
          part("bar", element("div", { className: "bar" }))),
        part("prefix", element("div", { className: "prefix" }))),
      part("reading", element("p", { className: "reading" })));
    const strip = element("section", {},
      part("stripTitle", element("h4")),
      part("strip", element("div", { className: "strip" })));
    if (data.slider && data.frames.length > 1) {
      const slider = part("slider", element("input", {
        type: "range", min: 0, max: data.frames.length - 1, step: 1, value: state.frame,
        aria: { "aria-label": data.slider },
      }));
      slider.oninput = () => this.change({ frame: Number(slider.value) });
      strip.append(slider);
    }
    if (data.distance) strip.append(part("distance", element("div", { className: "distance" })));
    part("live", element("p", { className: "live", aria: { "aria-live": "polite" } }));
    this.box.replaceChildren(
      this.parts.tools, element("div", { className: "sections" }, photo, map, strip), this.parts.live);
    this.#listen();
    if (focused) this.parts[focused]?.focus();
  }

  #listen() {
    const { photo, map } = this.parts;
    photo.onpointermove = (event) => {
      if (this.state.pinned || this.shape.prefixOnly) return;
      const patch = this.#patchAt(photo, event, this.shape);
      const query = patch === null ? null : patch + this.shape.prefix.length;
      if (query !== this.hover) {
        this.hover = query;
        this.draw();
      }
    };
    photo.onpointerleave = () => {
      if (this.hover === null) return;
      this.hover = null;
      this.draw();
    };
    photo.onclick = (event) => {
      const patch = this.#patchAt(photo, event, this.shape);
      if (patch !== null && !this.shape.prefixOnly)
        this.change({ query: patch + this.shape.prefix.length, pinned: true });
    };
    map.onpointermove = (event) => {
      if (!this.frame) return;
      this.key = this.#patchAt(map, event, this.grids.seen);
      this.draw();
    };
    map.onpointerleave = () => {
      this.key = null;
      this.draw();
    };
  }

  /** The patch under the pointer, null outside of what the model saw. */
  #patchAt(canvas, event, { rows, cols, crop }) {
    const bounds = canvas.getBoundingClientRect();
    const [left, top, right, bottom] = crop;
    const x = ((event.clientX - bounds.left) / bounds.width) * this.data.picture.width;
    const y = ((event.clientY - bounds.top) / bounds.height) * this.data.picture.height;
    const row = Math.floor(((y - top) / (bottom - top)) * rows);
    const col = Math.floor(((x - left) / (right - left)) * cols);
    return row < 0 || col < 0 || row >= rows || col >= cols ? null : row * cols + col;
  }

  // ---- drawing

  draw() {
    if (!this.data || !this.width) return;
    const begun = performance.now();
    this.#drawTools();
    this.#drawPhoto();
    if (this.frame) this.#drawMaps();
    else this.#wait();
    if (this.data.distance) this.#drawDistance();
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
    reading.textContent = "Loading …";
  }

  #drawTools() {
    const { state, data } = this;
    const share = data.kind === "share";
    const columns = data.columns && !this.shape.prefixOnly;
    const shown = JSON.stringify([columns, state.direction, state.view, state.scale, state.leaveOut, state.smooth]);
    if (this.shownTools === shown && this.parts.tools.childElementCount) return;
    this.shownTools = shown;
    const focused = this.root.activeElement;
    const place = focused && [...this.parts.tools.querySelectorAll("button, input")].indexOf(focused);
    const tools = [];
    if (share && columns)
      tools.push(choice("Read", { row: "row: looks at", column: "column: looked at by" },
        state.direction, (direction) => this.change({ direction })));
    if (share) {
      tools.push(
        choice("View", { heat: "heat map", spotlight: "spotlight" }, state.view, (view) => this.change({ view })),
        choice("Scale", { map: "per map", shared: "shared", log: "log" }, state.scale, (scale) => this.change({ scale })),
        check("leave the query out of the scale", state.leaveOut, (leaveOut) => this.change({ leaveOut })));
    }
    tools.push(check("smoothed", state.smooth, (smooth) => this.change({ smooth })));
    this.parts.tools.replaceChildren(...tools);
    if (place >= 0 && place !== null)
      this.parts.tools.querySelectorAll("button, input")[place]?.focus();
  }

  /** A canvas of the picture's shape, as large as fits, with the picture on it; its drawing
   * context in pixels of the picture. */
  #onPicture(canvas) {
    const { width, height } = this.data.picture;
    const room = Math.min(this.width * 0.3, 372);
    const factor = Math.min(room / width, room / height);
    const ratio = window.devicePixelRatio || 1;
    const size = [width, height].map((side) => Math.max(1, Math.round(side * factor * ratio)));
    if (canvas.width !== size[0] || canvas.height !== size[1]) {
      [canvas.width, canvas.height] = size;
      canvas.style.width = `${width * factor}px`;
      canvas.style.height = `${height * factor}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.#backdrop(canvas), 0, 0);
    context.setTransform(canvas.width / width, 0, 0, canvas.height / height, 0, 0);
    return { context, pixel: width / canvas.width, line: (ratio * width) / canvas.width };
  }

  #patchBox(index, { rows, cols, crop }) {
    const [left, top, right, bottom] = crop;
    const [w, h] = [(right - left) / cols, (bottom - top) / rows];
    return [left + (index % cols) * w, top + Math.floor(index / cols) * h, w, h];
  }

  #mark(context, line, box, colour, dashed) {
    context.setLineDash(dashed ? [4 * line, 3 * line] : []);
    for (const [style, width] of [["#000", 5], [colour, 3]]) {
      context.strokeStyle = style;
      context.lineWidth = width * line;
      context.strokeRect(...box);
    }
    context.setLineDash([]);
  }

  /** The query, and the patch under the pointer on the map. */
  #markPatches(context, line) {
    const { asked, seen } = this.grids;
    if (this.askedPatch >= 0)
      this.#mark(context, line, this.#patchBox(this.askedPatch, asked), QUERY, false);
    if (this.key !== null && this.frame)
      this.#mark(context, line, this.#patchBox(this.key, seen), KEY, true);
  }

  #drawPhoto() {
    const { parts, data } = this;
    const { context, pixel, line } = this.#onPicture(parts.photo);
    const { rows, cols, crop } = this.grids.asked;
    context.strokeStyle = "rgb(255 255 255 / 0.35)";
    context.lineWidth = pixel;
    context.beginPath();
    const [left, top, right, bottom] = crop;
    for (let c = 0; c <= cols; c++) {
      const x = left + (c * (right - left)) / cols;
      context.moveTo(x, top);
      context.lineTo(x, bottom);
    }
    for (let r = 0; r <= rows; r++) {
      const y = top + (r * (bottom - top)) / rows;
      context.moveTo(left, y);
      context.lineTo(right, y);
    }
    context.stroke();
    this.#markPatches(context, line);
    parts.photoTitle.replaceChildren("The query: ", element("em", { textContent: this.queryName }),
      this.state.pinned && this.hover === null ? " · pinned" : "");
    this.#drawTokenButtons();
  }

  #drawTokenButtons() {
    const first = this.home;
    const { prefix } = this.shape;
    const names = [...(first === MEAN ? ["mean of the patches"] : []), ...prefix];
    if (!names.length) names.push("the middle");
    const shown = `${names.join()} ${this.query}`;
    if (this.parts.tokens.title2 === shown) return;
    this.parts.tokens.title2 = shown;
    const hadFocus = this.parts.tokens.contains(this.root.activeElement)
      ? [...this.parts.tokens.children].indexOf(this.root.activeElement) : -1;
    this.parts.tokens.replaceChildren(...names.map((name, index) =>
      element("button", {
        type: "button",
        textContent: name,
        onclick: () => this.change({ query: first + index, pinned: false }),
        aria: { "aria-pressed": String(this.query === first + index),
                "aria-label": `${name} as the query` },
      })));
    if (hadFocus >= 0) this.parts.tokens.children[hadFocus]?.focus();
  }

  #drawMaps() {
    const { state, data, stack, frame } = this;
    const byHead = data.strip === "heads";
    const heads = frame.heads === 1 ? [0] : [MEAN, ...range(frame.heads)];
    const tiles = byHead
      ? heads.map((head) => ({ head, frame: state.frame, name: head === MEAN ? "mean" : `head ${head + 1}` }))
      : data.frames.map(({ name }, index) => ({ head: 0, frame: index, name })).filter((tile) => stack.frames.has(tile.frame));
    for (const tile of tiles) tile.map = stack.map(tile.frame, tile.head, this.askedToken, this.direction);
    const { asked, seen } = this.grids; // where they differ, no patch of the map is the query
    const same = asked.rows === seen.rows && asked.cols === seen.cols;
    const except = same && (state.leaveOut || data.kind === "cosine") ? this.queryPatch : -1;
    for (const tile of tiles) tile.strongest = largest(tile.map.patches, except);
    const head = frame.heads === 1 ? 0 : state.head;
    const chosen = tiles.find((tile) => (byHead ? tile.head === head : tile.frame === state.frame)) ?? tiles[0];
    const peaks = tiles.map((tile) => tile.strongest.value);
    const scaleOf = (tile) =>
      new Scale(data.kind, state.scale, state.scale === "shared" ? peaks : [tile.strongest.value]);
    this.#drawMap(chosen, scaleOf(chosen));
    this.#drawStrip(tiles, chosen, scaleOf);
  }

  /** The map as a small picture, one pixel a patch. */
  #pixels(tile, scale, spotlight, small) {
    const { rows, cols } = this.grids.seen;
    if (small.width !== cols) small.width = cols;
    if (small.height !== rows) small.height = rows;
    const context = small.getContext("2d");
    const image = context.createImageData(cols, rows);
    tile.map.patches.forEach((value, i) => {
      const position = scale.position(value);
      if (spotlight) image.data[4 * i + 3] = Math.round(255 * (1 - FLOOR) * (1 - position));
      else {
        const colour = 3 * Math.round(255 * position);
        for (let c = 0; c < 3; c++) image.data[4 * i + c] = this.lut[colour + c];
        image.data[4 * i + 3] = 255;
      }
    });
    context.putImageData(image, 0, 0);
    return small;
  }

  #drawMap(tile, scale) {
    const { parts, data, state } = this;
    const [left, top, right, bottom] = this.grids.seen.crop;
    const { context, line } = this.#onPicture(parts.map);
    const spotlight = state.view === "spotlight" && data.kind === "share";
    context.imageSmoothingEnabled = state.smooth;
    this.small ??= element("canvas");
    const small = this.#pixels(tile, scale, spotlight, this.small);
    context.drawImage(small, left, top, right - left, bottom - top);
    this.#markPatches(context, line);

    const column = this.direction === "column";
    const title = data.titles[column ? "column" : "row"];
    const details = [this.shape.name, data.strip === "heads" && tile.name, state.smooth && "smoothed"];
    parts.mapTitle.replaceChildren(title,
      element("small", { textContent: ` ${details.filter(Boolean).join(", ")}` }));
    this.#drawBar(scale, spotlight);
    this.#drawPrefix(tile, scale, spotlight);
    this.#read(tile);
  }

  /** The colour bar, its ends and a tick where every token would have the same share. */
  #drawBar(scale, spotlight) {
    const { kind } = this.data;
    const { equalShare } = this.shape;
    const bar = this.parts.bar;
    if (bar.dataset.spotlight !== String(spotlight)) {
      bar.dataset.spotlight = spotlight;
      bar.replaceChildren(
        element("span"),
        element("div", { className: "track" }, this.#gradient(spotlight), element("i")),
        element("span"));
    }
    const [least, track, most] = bar.children;
    least.textContent = spoken(kind, scale.min);
    most.textContent = spoken(kind, scale.max);
    const tick = track.lastChild;
    tick.hidden = !equalShare;
    tick.className = equalShare > scale.max ? "tick beyond" : "tick";
    tick.style.left = `${100 * scale.position(equalShare)}%`;
    bar.style.width = this.parts.map.style.width;
  }

  #gradient(spotlight) {
    const canvas = element("canvas", { width: 256, height: 1, aria: { "aria-hidden": "true" } });
    const context = canvas.getContext("2d");
    const image = context.createImageData(256, 1);
    for (let i = 0; i < 256; i++) {
      const grey = 255 * (FLOOR + ((1 - FLOOR) * i) / 255);
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = spotlight ? grey : this.lut[3 * i + c];
      image.data[4 * i + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  /** One cell for each token that is no part of the picture. */
  #drawPrefix(tile, scale, spotlight) {
    const column = this.direction === "column";
    const verb = this.data.kind === "cosine" ? "" : column ? "by " : "to ";
    const cells = this.parts.prefix;
    if (cells.childElementCount !== tile.map.prefix.length)
      cells.replaceChildren(...Array.from(tile.map.prefix, () =>
        element("div", { className: "cell" }, element("span"), element("b"), element("strong"))));
    tile.map.prefix.forEach((value, index) => {
      const [name, swatch, share] = cells.children[index].children;
      const position = scale.position(value);
      const grey = Math.round(255 * (FLOOR + (1 - FLOOR) * position));
      const first = 3 * Math.round(255 * position);
      const parts = spotlight ? [grey, grey, grey] : this.lut.subarray(first, first + 3);
      name.textContent = `${verb}${this.shape.prefix[index]}`;
      swatch.style.background = `rgb(${parts.join(" ")})`;
      swatch.style.outlineColor = index === this.query ? QUERY : "transparent";
      share.textContent = spoken(this.data.kind, value);
    });
  }

  /** What the map says, in words. */
  #read(tile) {
    const { parts, shape } = this;
    const { patches, prefix } = tile.map;
    const { kind } = this.data;
    const { cols } = this.grids.seen;
    const { value, at } = tile.strongest;
    const noun = this.direction === "column" ? "query" : "key";
    const cosine = kind === "cosine"; // the query, the same as itself, is left out
    const best = cosine ? "most similar other" : `strongest ${noun}`;
    const said = (number) => `${cosine ? "cosine " : ""}${spoken(kind, number)}`;
    const label = `query ${this.queryName}, ${tile.name}: ${best} ${place(at, cols)}, ${said(value)}`;
    parts.photo.setAttribute("aria-label", label);
    parts.map.setAttribute("aria-label", label);
    if (this.hover === null) parts.live.textContent = label;
    let words = `${cosine ? "Most similar other" : "Strongest"}: ${place(at, cols)}, ${said(value)}.`;
    if (this.key !== null)
      words = `${cosine ? "Patch" : noun === "key" ? "Key" : "Query"} ${place(this.key, cols)}: ${said(patches[this.key])}.`;
    if (kind === "share") {
      words += ` ▲ equal sharing${shape.within ? " in a whole window" : ""}, ${percent(shape.equalShare)}.`;
      if (noun === "key") {
        const sorted = [...patches].sort((a, b) => b - a).slice(0, 10);
        const sum = (values) => values.reduce((a, b) => a + b, 0);
        if (patches.length > 10) words += ` The 10 strongest of ${patches.length} patches take ${percent(sum(sorted))};`;
        words += ` all tokens together ${percent(sum([...patches]) + sum([...prefix]))}.`;
      } else words += " A column need not add up to 100 %.";
    }
    parts.reading.textContent = words;
  }

  #drawStrip(tiles, chosen, scaleOf) {
    const { parts, data, state } = this;
    const columns = tiles.length > 20 ? 6 : tiles.length > 8 ? 5 : tiles.length > (data.strip === "heads" ? 2 : 4) ? 4 : 2;
    parts.stripTitle.replaceChildren(data.stripTitle,
      element("small", { textContent: data.strip === "heads" ? ` ${this.shape.name}` : "" }));
    if (parts.strip.childElementCount !== tiles.length) {
      parts.strip.style.setProperty("--columns", columns);
      parts.strip.style.setProperty("--tile", columns === 2 ? "150px" : "110px");
      parts.strip.replaceChildren(...tiles.map(() => {
        const canvas = element("canvas");
        const mark = element("i");
        return element("button", { type: "button" },
          element("span", {}, element("b"), element("br"), element("span")),
          element("div", { className: "tile" }, canvas, mark));
      }));
    }
    const byHead = data.strip === "heads";
    tiles.forEach((tile, index) => {
      const button = parts.strip.children[index];
      const [label, holder] = button.children;
      const [canvas, mark] = holder.children;
      const peak = spoken(data.kind, tile.strongest.value);
      label.firstChild.textContent = tile.name;
      label.lastChild.textContent = peak;
      button.onclick = () => this.change(byHead ? { head: tile.head } : { frame: tile.frame });
      button.setAttribute("aria-pressed", String(tile === chosen));
      button.setAttribute("aria-label", `${tile.name}, maximum ${peak}`);
      this.#pixels(tile, scaleOf(tile), false, canvas);
      canvas.style.imageRendering = state.smooth ? "auto" : "pixelated";
      mark.hidden = this.askedPatch < 0;
      const { rows, cols } = this.grids.asked;
      Object.assign(mark.style, {
        left: `${(100 * (this.askedPatch % cols)) / cols}%`,
        top: `${(100 * Math.floor(this.askedPatch / cols)) / rows}%`,
        width: `${100 / cols}%`,
        height: `${100 / rows}%`,
      });
    });
  }

  /** Mean attention distance of every head: each dot leads to its head. */
  #drawDistance() {
    const { values, equal, side } = this.data.distance;
    const [width, height, left, top, bottom] = [350, 118, 40, 8, 22];
    const depth = values.length;
    const max = 1.05 * Math.max(...equal, ...values.flat().filter((value) => value !== null));
    const x = (layer, head, heads) =>
      left + ((layer + 0.5 + 0.5 * ((head + 0.5) / heads - 0.5)) / depth) * (width - left);
    const y = (value) => top + (1 - value / max) * (height - top - bottom);
    const make = (name, attributes, text) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
      if (text) node.textContent = text;
      return node;
    };
    if (!this.parts.distance.childElementCount) {
      const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "group",
        "aria-label": `Mean attention distance of every head, in pixels of ${side}` });
      const most = Math.max(...equal);
      const same = equal.every((value) => value === null || value === most);
      const wide = (width - left) / depth;
      equal.forEach((value, layer) => {
        const [x1, x2] = [left + layer * wide, left + (layer + 1) * wide];
        if (value !== null) svg.append(make("line", { x1, x2, y1: y(value), y2: y(value), class: "equal" }));
      });
      svg.append(
        make("text", { x: width, y: y(0) - 7, "text-anchor": "end" }, // deep heads rarely look near
          `dashed: equal sharing${same ? ` ${most.toFixed(1)} px` : ""}`),
        make("text", { x: left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"),
        make("text", { x: left - 6, y: y(most) + 5, "text-anchor": "end" }, most.toFixed(0)),
        make("line", { x1: left, x2: width, y1: y(0), y2: y(0), class: "axis" }));
      const step = Math.ceil(depth / 16);
      values.forEach((heads, layer) => {
        if (layer % step === 0)
          svg.append(make("text", { x: x(layer, 0, 1), y: height - 4, "text-anchor": "middle" }, `${layer + 1}`));
        heads.forEach((value, head) => {
          if (value === null) return;
          const dot = make("circle", { cx: x(layer, head, heads.length), cy: y(value), r: 4.5,
            "data-layer": layer, "data-head": head });
          dot.append(make("title", {}, `layer ${layer + 1}, head ${head + 1}: ${value.toFixed(1)} px`));
          dot.addEventListener("click", () => this.change({ frame: layer, head }));
          svg.append(dot);
        });
      });
      this.parts.distance.replaceChildren(
        element("h4", { textContent: "Mean attention distance" },
          element("small", { textContent: " by layer, px; click a dot" })), svg);
    }
    for (const dot of this.parts.distance.querySelectorAll("circle")) {
      const here = Number(dot.dataset.layer) === this.state.frame;
      const head = here && Number(dot.dataset.head) === this.state.head;
      dot.setAttribute("class", head ? "head" : here ? "layer" : "");
      dot.setAttribute("r", head ? 7 : 4.5);
    }
  }
}
