// @ts-check
// The items of which scenes consist; items.js puts them on the page.

import { countOf } from "./drawing.js";
import { limitOf, written } from "./tensors.js";
import { tr } from "../token_map/strings.js";

/** @import { Tensor } from "./tensors.js" */

/**
 * @typedef {object} Item one line of a scene
 * @property {"strip" | "line" | "bars" | "matrix" | "grid" | "table" | "cut" | "channels" | "patch"} kind
 * @property {string} [label]
 * @property {string} [tone] "query" or "key"
 * @property {ArrayLike<number>} [values]
 * @property {number} [limit]
 * @property {number} [end] number of values that are drawn so far
 * @property {string} [note]
 * @property {Tensor} [tensor]
 * @property {number} [mark]
 * @property {number} [grown]
 * @property {string[]} [head]
 * @property {string[][]} [rows]
 * @property {string[]} [titles] of the rows of a table, under the pointer
 * @property {number[] | boolean} [shares] of the rows of a table, as bars; whether a grid holds shares
 * @property {number} [cols] of a grid
 * @property {number} [key] the marked column of a grid
 * @property {(index: number) => void} [pick]
 * @property {[from: number, count: number]} [part] the head's part of a strip
 *
 * @typedef {object} Scene
 * @property {any} data
 * @property {Map<string, Tensor>} steps
 * @property {Map<string, Tensor>} layer
 * @property {any} card
 * @property {string | null} box
 * @property {number} token @property {number} key @property {number} head
 * @property {number} row of the card's tensor that belongs to the token
 * @property {number} patch in the first grid
 * @property {number} dim the number of the token that is worked out
 * @property {number} t from 0 to 1 while the numbers move
 * @property {(key: number) => void} pickKey
 * @property {(query: number, key: number) => void} pickPair
 * @property {(dim: number) => void} pickDim
 */

/** @typedef {(scene: Scene) => Item[] | undefined} Maker undefined until the numbers arrive */

/** @returns {Item[]} */
export const waiting = () => [line(tr("Loading …"))];

/** The sentence shown if the token's numbers are missing. @param {Scene} scene @returns {Item[]} */
export function partial({ data }) {
  return [line(data.partial)];
}

/** @param {string} label @param {ArrayLike<number>} values @param {Partial<Item>} [rest] @returns {Item} */
export function strip(label, values, rest = {}) {
  const limit = rest.limit ?? limitOf(values);
  return { kind: "strip", label, values, limit, note: countOf(values, limit), ...rest };
}

/** @param {ArrayLike<number>} from @param {ArrayLike<number>} to @param {number} t */
export function between(from, to, t) {
  return Float64Array.from(from, (value, i) => value + t * (to[i] - value));
}

/** @param {string} text @returns {Item} */
export function line(text) {
  return { kind: "line", label: text };
}

/** A tensor as a heat map, if all of it has arrived.
 * @param {string} label @param {Tensor} tensor @param {number} mark @returns {Item[]} */
export function matrix(label, tensor, mark) {
  return tensor.only === null ? [{ kind: "matrix", label, tensor, mark }] : [];
}

/** A whole tensor, and the row of the token.
 * @param {Scene} scene @param {Tensor} tensor @param {string} [label] @returns {Item[]} */
export function tokens(scene, tensor, label = tr("the token")) {
  const row = scene.row >= 0 && scene.row < tensor.rows ? tensor.row(scene.row) : null;
  return [
    ...matrix(tr("all tokens"), tensor, scene.row),
    ...(row ? [strip(label, row, { tone: "query" })] : []),
  ];
}

/** LayerNorm of one token.
 * @param {Scene} scene @param {string} before @param {ArrayLike<number>} z @param {string} after
 * @param {ArrayLike<number>} normed @param {Record<string, number | ArrayLike<number> | undefined>} parts
 * @returns {Item[]} */
export function norm(scene, before, z, after, normed, { mean, deviation, gamma, beta }) {
  const both = Math.max(limitOf(z), limitOf(normed));
  const items = [
    strip(before, z, { tone: "query", limit: both }),
    strip(after, between(z, normed, scene.t), { limit: both, mark: scene.dim % z.length, pick: scene.pickDim }),
  ];
  if (typeof mean !== "number") return items;
  items.push(line(tr("μ = **{mean}**, σ = **{deviation}**: each z becomes γ (z − μ) / σ + β",
    { mean: written(mean), deviation: written(Number(deviation)) })));
  if (gamma) items.push(strip("γ − 1", Float64Array.from(/** @type {ArrayLike<number>} */ (gamma), (value) => value - 1)));
  if (beta) items.push(strip("β", /** @type {ArrayLike<number>} */ (beta)));
  const i = scene.dim % z.length;
  const [g, b] = [gamma, beta].map((values) => Number(/** @type {any} */ (values)?.[i]));
  if (gamma && beta)
    items.push(line(`${tr("Number {number}", { number: i + 1 })}: ${written(g)} · (${written(z[i])} − ${written(mean)}) / ` +
      `${written(Number(deviation))} + ${written(b)} = **${written(normed[i])}**`));
  return items;
}

/** The statistics of a norm for one token. @param {Map<string, Tensor>} of
 * @param {string} name @param {number} row */
export function statistics(of, name, row) {
  const at = (/** @type {string} */ part) => of.get(`${name}.${part}`)?.row(0);
  return {
    mean: at("mean")?.[row], deviation: at("deviation")?.[row],
    gamma: at("gamma") ?? undefined, beta: at("beta") ?? undefined,
  };
}
