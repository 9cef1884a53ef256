// @ts-check
// The numbers of the token map: stacks of maps, scales, words, and the geometry of the patches.
// Nothing here touches the page, so it can be tested without a browser.

import { tr } from "./strings.js";

/** @import { Box, Direction, FrameInfo, Kind, Matches, Shape } from "./message.js" */
/** @import { StackMessage, State, ViewMessage } from "./message.js" */
/**
 * @typedef {{ rows: number, cols: number, crop: Box }} Grid
 * @typedef {{ patches: Float64Array, prefix: Float64Array }} TokenMap of one token
 * @typedef {{ value: number, at: number }} Strongest
 * @typedef {{ head: number, frame: number, name: string }} Choice what a click on a tile chooses
 * @typedef {Choice & { map: TokenMap, strongest: Strongest, least: number }} Tile a small map of
 *   the strip; its least positive value where the scale begins there
 * @typedef {{ cells: Float64Array, side: number, run: number, prefix: number }} Matrix A, row by
 *   row, patches averaged in runs; the number of prefix tokens
 * @typedef {"query" | "key"} Role of a token: its row of A, or its column
 */

export const MEAN = -1; // as a head: the mean of heads; as a query: the mean of the patches
const LOG_RANGE = 1e6; // the most that a logarithmic scale spans

/** Maps of every frame, head and query. A share is stored as the square root of its ratio to the
 * query's largest share, in 255 steps; cosines from -1 to 1 in 254 steps. In windows, only the
 * patches that a query meets are stored. */
export class Stack {
  /** @param {StackMessage} message */
  constructor({ stack, codes, peaks, prefix, places }) {
    this.frames = new Map(stack.frames.map((frame) => [frame.index, frame]));
    this.codes = codes;
    this.peaks = peaks;
    this.prefix = prefix;
    this.places = places;
    this.decode = Float64Array.from({ length: 256 }, (_, code) =>
      stack.kind === "share" ? (code / 255) ** 2 : (code - 127) / 127,
    );
    /** @type {Map<string, Record<Direction, TokenMap>>} */
    this.means = new Map(); // over the patches, by frame and head, computed when needed
    /** @type {Map<string, Matrix>} */
    this.matrices = new Map(); // by frame and head, computed when needed
  }

  /** The row or the column of A of one token. A row lies in the grid of the keys, a column in the
   * grid of the queries.
   * @param {number} index of the frame
   * @param {number} head
   * @param {number} token
   * @param {Direction} direction
   * @returns {TokenMap} */
  map(index, head, token, direction) {
    const frame = /** @type {FrameInfo} */ (this.frames.get(index));
    if (head === MEAN)
      return average(range(frame.heads).map((one) => this.map(index, one, token, direction)));
    if (token === MEAN) return this.#means(frame, head)[direction];
    return direction === "row" ? this.#row(frame, head, token) : this.#column(frame, head, token);
  }

  /** @param {FrameInfo} frame @param {number} query */
  #window(frame, query) {
    return this.places[frame.firstPlace + query - frame.prefixTokens];
  }

  /** The patches of a window, -1 for padding; null if every query meets every patch.
   * @param {FrameInfo} frame @param {number} window */
  #keys(frame, window) {
    if (!frame.windows) return null;
    const first = frame.firstPlace + frame.rows * frame.cols + window * frame.keys;
    return this.places.subarray(first, first + frame.keys);
  }

  /** All rows of A. With more than `most` patches, each cell is the mean over a run of
   * neighbouring queries and a run of neighbouring keys; prefix tokens keep cells of their own.
   * @param {number} index of the frame @param {number} head @param {number} most
   * @returns {Matrix | null} null unless every token meets every token */
  matrix(index, head, most = 64) {
    const frame = /** @type {FrameInfo} */ (this.frames.get(index));
    const { cols, keys, queries, prefixTokens } = frame;
    if (frame.windows || queries !== prefixTokens + keys) return null;
    const known = this.matrices.get(`${index} ${head}`);
    if (known) return known;
    const run = range(keys + 1).find((length) => length && keys % length === 0 &&
      keys / length <= most && (cols % length === 0 || length % cols === 0)) ?? keys;
    const side = prefixTokens + keys / run;
    const cells = new Float64Array(side * side);
    const sizes = range(side).map((cell) => (cell < prefixTokens ? 1 : run));
    const heads = head === MEAN ? range(frame.heads) : [head];
    const cellOf = range(queries).map((token) => cellAt(token, prefixTokens, run));
    for (const one of heads)
      for (let query = 0; query < queries; query++) {
        const first = cellOf[query] * side;
        const row = one * queries + query;
        const peak = this.peaks[frame.firstRow + row];
        for (let k = 0; k < prefixTokens; k++)
          cells[first + k] += this.prefix[frame.firstPrefix + row * prefixTokens + k];
        for (let k = 0; k < keys; k++)
          cells[first + cellOf[prefixTokens + k]] +=
            this.decode[this.codes[frame.firstCode + row * keys + k]] * peak;
      }
    cells.forEach((sum, cell) => {
      cells[cell] = sum / (heads.length * sizes[Math.floor(cell / side)] * sizes[cell % side]);
    });
    const matrix = { cells, side, run, prefix: prefixTokens };
    this.matrices.set(`${index} ${head}`, matrix);
    return matrix;
  }

  /** @param {FrameInfo} frame @param {number} head @param {number} query */
  #row(frame, head, query) {
    const row = head * frame.queries + query;
    const peak = this.peaks[frame.firstRow + row];
    const first = frame.firstCode + row * frame.keys;
    const met = this.#keys(frame, this.#window(frame, query));
    const map = emptyMap(frame.keyRows * frame.keyCols, frame.prefixTokens);
    for (let k = 0; k < frame.keys; k++) {
      const patch = met ? met[k] : k;
      if (patch >= 0) map.patches[patch] = this.decode[this.codes[first + k]] * peak;
    }
    const share = frame.firstPrefix + row * frame.prefixTokens;
    map.prefix.set(this.prefix.subarray(share, share + frame.prefixTokens));
    return map;
  }

  /** @param {FrameInfo} frame @param {number} head @param {number} key */
  #column(frame, head, key) {
    const { prefixTokens, keys } = frame;
    const patch = key - prefixTokens;
    const within = range(frame.windows).map((one) => this.#keys(frame, one)?.indexOf(patch) ?? -1);
    return this.#byQuery(frame, (query) => {
      const row = head * frame.queries + query;
      if (patch < 0) return this.prefix[frame.firstPrefix + row * prefixTokens + key];
      const at = frame.windows ? within[this.#window(frame, query)] : patch;
      if (at < 0) return 0;
      const code = this.codes[frame.firstCode + row * keys + at];
      return this.decode[code] * this.peaks[frame.firstRow + row];
    });
  }

  /** A map of one value for each query.
   * @param {FrameInfo} frame
   * @param {(query: number) => number} value */
  #byQuery({ rows, cols, queries, prefixTokens }, value) {
    const map = emptyMap(rows * cols, prefixTokens);
    for (let q = 0; q < queries; q++)
      if (q < prefixTokens) map.prefix[q] = value(q);
      else map.patches[q - prefixTokens] = value(q);
    return map;
  }

  /** The mean row and the mean column of all patches, in one pass over every number of a head.
   * @param {FrameInfo} frame
   * @param {number} head */
  #means(frame, head) {
    const kept = this.means.get(`${frame.index} ${head}`);
    if (kept) return kept;
    const { rows, cols, keyRows, keyCols, keys, queries, prefixTokens } = frame;
    const { decode } = this;
    const mean = emptyMap(keyRows * keyCols, prefixTokens);
    const { patches, prefix } = mean;
    const start = head * queries; // the number of the first row
    const sums = new Float64Array(queries);
    const weights = sums.map((_, query) => (query < prefixTokens ? 0 : 1 / (rows * cols)));
    const scaled = weights.map((one, query) => one * this.peaks[frame.firstRow + start + query]);
    const row = (/** @type {number} */ query) => {
      const first = frame.firstCode + (start + query) * keys;
      return this.codes.subarray(first, first + keys);
    };
    weights.forEach((weight, query) => {
      const share = frame.firstPrefix + (start + query) * prefixTokens;
      for (let k = 0; k < prefixTokens; k++) prefix[k] += weight * this.prefix[share + k];
    });
    let query = 0;
    // Four rows at a time, so that each number of the mean is read and written once for all four.
    for (; !frame.windows && query + 4 <= queries; query += 4) {
      const [a, b, c, d] = [row(query), row(query + 1), row(query + 2), row(query + 3)];
      const [ofA, ofB, ofC, ofD] = scaled.subarray(query, query + 4);
      let sumA = 0;
      let sumB = 0;
      let sumC = 0;
      let sumD = 0;
      for (let k = 0; k < keys; k++) {
        const inA = decode[a[k]];
        const inB = decode[b[k]];
        const inC = decode[c[k]];
        const inD = decode[d[k]];
        patches[k] += inA * ofA + inB * ofB + inC * ofC + inD * ofD;
        sumA += inA;
        sumB += inB;
        sumC += inC;
        sumD += inD;
      }
      sums.set([sumA, sumB, sumC, sumD], query);
    }
    for (; query < queries; query++) {
      const codes = row(query);
      const met = this.#keys(frame, this.#window(frame, query));
      for (let k = 0; k < keys; k++) {
        const patch = met ? met[k] : k;
        if (patch < 0) continue;
        patches[patch] += decode[codes[k]] * scaled[query];
        sums[query] += decode[codes[k]];
      }
    }
    const column = this.#byQuery(frame, (query) =>
      (sums[query] * this.peaks[frame.firstRow + start + query]) / patches.length);
    const means = { row: mean, column };
    this.means.set(`${frame.index} ${head}`, means);
    return means;
  }
}

/** The row or column of a matrix in which a token stands.
 * @param {number} token @param {number} prefix @param {number} run */
export function cellAt(token, prefix, run) {
  return token < prefix ? token : prefix + Math.floor((token - prefix) / run);
}

/** The token in the middle of a row or column of a matrix.
 * @param {number} cell @param {Matrix} matrix */
export function tokenAt(cell, { prefix, run }) {
  return cell < prefix ? cell : prefix + (cell - prefix) * run + Math.floor(run / 2);
}

/** @param {number} patches @param {number} prefixTokens @returns {TokenMap} */
function emptyMap(patches, prefixTokens) {
  return { patches: new Float64Array(patches), prefix: new Float64Array(prefixTokens) };
}

/** @param {TokenMap[]} maps of one shape */
function average(maps) {
  const mean = emptyMap(maps[0].patches.length, maps[0].prefix.length);
  for (const part of /** @type {const} */ (["patches", "prefix"]))
    for (const map of maps)
      map[part].forEach((value, i) => (mean[part][i] += value / maps.length));
  return mean;
}

/** @param {number} count */
export function range(count) {
  return Array.from({ length: count }, (_, i) => i);
}

/** Maps values to positions 0..1 on the colour bar. A logarithmic scale begins at the least positive
 * value of the maps. */
export class Scale {
  /** @param {Kind} kind @param {State["scale"]} name
   * @param {Pick<Tile, "strongest" | "least">[]} maps that have the scale
   * @param {number} [low] where a scale of cosines begins */
  constructor(kind, name, maps, low = -1) {
    const signed = kind === "cosine";
    this.log = name === "log" && !signed;
    this.max = signed ? 1 : Math.max(...maps.map(({ strongest }) => strongest.value), 1e-30);
    const least = Math.min(...maps.map(({ least }) => least), this.max);
    this.min = signed ? low : this.log ? Math.max(least, this.max / LOG_RANGE) : 0;
  }

  /** @param {number} value */
  position(value) {
    if (this.min === this.max) return value < this.max ? 0 : 1;
    const position = this.log
      ? Math.log(Math.max(value, this.min) / this.min) / Math.log(this.max / this.min)
      : (value - this.min) / (this.max - this.min);
    return Math.min(1, Math.max(0, position));
  }
}

/** @param {Float64Array} patches @param {number} except a patch to leave out; -1 for none
 * @returns {Strongest} */
export function largest(patches, except) {
  let best = -Infinity;
  let at = 0;
  for (let i = 0; i < patches.length; i++)
    if (i !== except && patches[i] > best) {
      best = patches[i];
      at = i;
    }
  return { value: best === -Infinity ? 0 : best, at };
}

/** The smallest positive value; infinite if there is none.
 * @param {Float64Array} patches @param {number} except */
export function smallest(patches, except) {
  let least = Infinity;
  for (let i = 0; i < patches.length; i++)
    if (i !== except && patches[i] > 0 && patches[i] < least) least = patches[i];
  return least;
}

// ------------------------------------------------------------------------------ the geometry

/** The patch of another grid of the same picture that holds the middle of a patch; on a border, the
 * one below or to the right. (`matching_patch` in frames.py does the same.)
 * @param {number} patch @param {Grid} from @param {Grid} to */
export function moved(patch, from, to) {
  /** @param {number} index @param {0 | 1} axis 0 across, 1 down
   * @param {number} count @param {number} others */
  const along = (index, axis, count, others) => {
    const [first, last] = [from.crop[axis], from.crop[axis + 2]];
    const [start, end] = [to.crop[axis], to.crop[axis + 2]];
    const middle = first + ((index + 0.5) / count) * (last - first);
    const found = Math.floor(((middle - start) / (end - start)) * others + 1e-9);
    return Math.min(others - 1, Math.max(0, found));
  };
  const row = along(Math.floor(patch / from.cols), 1, from.rows, to.rows);
  return row * to.cols + along(patch % from.cols, 0, from.cols, to.cols);
}

/** The patch at a point of the picture; null outside of the grid.
 * @param {number} x @param {number} y @param {Grid} grid */
export function patchAt(x, y, { rows, cols, crop: [left, top, right, bottom] }) {
  const row = Math.floor(((y - top) / (bottom - top)) * rows);
  const col = Math.floor(((x - left) / (right - left)) * cols);
  return row < 0 || col < 0 || row >= rows || col >= cols ? null : row * cols + col;
}

/** @param {number} index @param {Grid} grid
 * @returns {[x: number, y: number, width: number, height: number]} in pixels of the picture */
export function patchBox(index, { rows, cols, crop: [left, top, right, bottom] }) {
  const [width, height] = [(right - left) / cols, (bottom - top) / rows];
  return [left + (index % cols) * width, top + Math.floor(index / cols) * height, width, height];
}

/** The shown token of a frame, its role, and the grids of the token and of its map.
 * @param {Shape} shape
 * @param {State} state
 * @param {number | null} hover the token under the pointer
 * @param {boolean} across whether the keys lie in another picture
 * @typedef {ReturnType<typeof selected>} Selected */
export function selected(shape, state, hover, across = false) {
  const { rows, cols, crop, keyRows, keyCols, keyCrop, prefix, prefixOnly } = shape;
  const direction = prefixOnly ? "row" : state.direction;
  const query = prefixOnly ? 0 : hover ?? state.query;
  const queries = { rows, cols, crop };
  const keys = { rows: keyRows, cols: keyCols, crop: keyCrop };
  const column = direction === "column";
  const [grid, mapGrid] = column ? [keys, queries] : [queries, keys];
  const [role, other] = /** @type {Role[]} */ (column ? ["key", "query"] : ["query", "key"]);
  const isPatch = query !== MEAN && query >= prefix.length;
  const patch = isPatch ? moved(query - prefix.length, queries, grid) : -1;
  const token = query === MEAN ? tr("mean of the patches") : prefix[query];
  const same = grid.rows === mapGrid.rows && grid.cols === mapGrid.cols;
  return {
    direction,
    role, // of the token
    other, // what the tokens on its map are
    query, // the token, counted as the queries are
    across,
    grid, // that the token is chosen in
    patch, // its number there, -1 where it is no patch
    token: isPatch ? patch + prefix.length : query,
    mapGrid, // that its map lies in
    itself: isPatch && same && !across ? query - prefix.length : -1, // the same patch on the map
    name: isPatch ? place(patch, grid.cols) : token,
  };
}

/** The maps of the strip: of the heads, or of the frames that are here.
 * @param {Stack} stack @param {ViewMessage} data @param {State} state @param {Selected} selection
 * @returns {Tile[]} */
export function tilesOf(stack, { kind, strip, frames }, state, { token, direction, itself }) {
  const { heads } = frames[state.frame];
  const tiles = strip === "heads"
    ? (heads === 1 ? [0] : [MEAN, ...range(heads)]).map((head) =>
      ({ head, frame: state.frame, name: head === MEAN ? tr("mean") : tr("head {head}", { head: head + 1 }) }))
    : frames.map(({ name }, frame) => ({ head: 0, frame, name }));
  const except = state.leaveOut || kind === "cosine" ? itself : -1;
  return tiles.filter((tile) => stack.frames.has(tile.frame)).map((tile) => {
    const map = stack.map(tile.frame, tile.head, token, direction);
    const least = state.scale === "log" ? smallest(map.patches, except) : 0;
    return { ...tile, map, strongest: largest(map.patches, except), least };
  });
}

/** A tile across two pictures with the match that was found in all digits.
 * @param {Tile} tile @param {Matches} matches @param {number} query @returns {Tile} */
export function matched(tile, { nearest }, query) {
  const [at] = nearest[query];
  return { ...tile, strongest: { at, value: tile.map.patches[at] } };
}

/** Head and query for a frame of another shape; the query keeps its place in the picture.
 * @param {State} state @param {Shape} before @param {Shape} shape @param {"heads" | "frames"} strip
 * @returns {{ head: number, query: number }} */
export function fitted({ head, query }, before, shape, strip) {
  const patch = query - before.prefix.length;
  if (query !== MEAN && patch >= 0) query = moved(patch, before, shape) + shape.prefix.length;
  else if (query !== MEAN) query = shape.prefix.indexOf(before.prefix[query]); // or MEAN
  if (query === MEAN && shape.prefix.length && !before.prefix.length) query = shape.home;
  return { head: head >= shape.heads && strip === "heads" ? MEAN : head, query };
}

// --------------------------------------------------------------------------------- the words

/** Two significant digits, so that shares of very different size can be read. (`as_percent` in
 * language.py does the same.)
 * @param {number} share */
export function percent(share) {
  const value = 100 * share;
  const size = Math.abs(value);
  if (size >= 9.95 || size === 0) return `${value.toFixed(0)} %`;
  if (size < 1e-6) return "< 0.000001 %"; // and not 0.000000
  return `${value.toFixed(1 - Math.floor(Math.log10(size)))} %`;
}

/** @param {Kind} kind @param {number} value */
export function asText(kind, value) {
  return kind === "share" ? percent(value) : value.toFixed(2).replace(/^-(?=0\.00$)/, "");
}

/** @param {number} index @param {number} cols */
export function place(index, cols) {
  return tr("row {row} column {column}", { row: Math.floor(index / cols) + 1, column: (index % cols) + 1 });
}

/** What a map says: in one line, and in the sentences below it.
 * @param {Kind} kind @param {Shape} shape @param {Selected} selection @param {Tile} tile
 * @param {number | null} pointed the patch of the map under the pointer */
export function reading(kind, shape, selection, tile, pointed) {
  const { patches, prefix } = tile.map;
  const { cols } = selection.mapGrid;
  const { value, at } = tile.strongest;
  const cosine = kind === "cosine"; // the query, the same as itself, is left out
  const { role, other } = selection;
  const alike = selection.across ? tr("most similar") : tr("most similar other");
  const best = cosine ? alike : tr("strongest {other}", { other: tr(other) });
  const unit = cosine ? `${tr("cosine")} ` : "";
  const said = (/** @type {number} */ number) => `${unit}${asText(kind, number)}`;
  const of = `${tr(role)} ${selection.name}, ${tile.name}`;
  const line = `${of}: ${best} ${place(at, cols)}, ${said(value)}`;
  let words = `${best[0].toUpperCase()}${best.slice(1)}: ${place(at, cols)}, ${said(value)}.`;
  if (pointed !== null) {
    const pointedAt = cosine ? tr("Patch") : other === "key" ? tr("Key") : tr("Query");
    words = `${pointedAt} ${place(pointed, cols)}: ${said(patches[pointed])}.`;
  }
  if (cosine) return { line, words };
  const equal = percent(shape.equalShare ?? 0);
  words += shape.within
    ? tr(" ▲ equal sharing in a whole window, {share}.", { share: equal })
    : tr(" ▲ equal sharing, {share}.", { share: equal });
  if (role === "key") return { line, words: words + tr(" A column need not add up to 100 %.") };
  const sum = (/** @type {Float64Array} */ values) => values.reduce((a, b) => a + b, 0);
  if (patches.length > 10) {
    const most = percent(sum(patches.slice().sort().slice(-10)));
    words += tr(" The 10 strongest of {count} patches take {most};", { count: patches.length, most });
  }
  return { line, words: words + tr(" all tokens together {share}.", { share: percent(sum(patches) + sum(prefix)) }) };
}
