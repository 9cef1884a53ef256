// @ts-check
// The tensors of Anatomy, and what is computed from them. Nothing here touches the page.

/** @typedef {{ name: string, shape: number[], exact: boolean, first: number, only: number | null }} Info
 * `only`: the one token whose row was sent, if all rows would be too large */

/** @param {number} bits of a number in half precision */
function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => fromHalf(bits));

/** An array of any shape, seen as rows of its last axis. */
export class Tensor {
  /** @param {Info} info @param {Float32Array | Uint16Array} numbers */
  constructor({ name, shape, exact, first, only }, numbers) {
    this.name = name;
    this.shape = shape;
    this.only = only;
    this.width = shape[shape.length - 1] ?? 1;
    this.rows = shape.slice(0, -1).reduce((a, b) => a * b, 1);
    const count = only === null ? this.rows * this.width : this.width;
    this.numbers = numbers.subarray(first, first + count);
    this.exact = exact;
  }

  /** @param {number} index @returns {Float32Array | null} null if this row was not sent */
  row(index) {
    if (this.only !== null && index !== this.only) return null;
    const first = this.only === null ? index * this.width : 0;
    const numbers = this.numbers.subarray(first, first + this.width);
    return this.exact
      ? /** @type {Float32Array} */ (numbers)
      : Float32Array.from(numbers, (bits) => HALVES[bits]);
  }

  /** @param {number} row @param {number} col */
  at(row, col) {
    const value = this.numbers[row * this.width + col];
    return this.exact ? value : HALVES[value];
  }
}

/** Tensors by their names.
 * @param {Info[]} list @param {Float32Array} exact @param {Uint16Array} half
 * @returns {Map<string, Tensor>} */
export function tensors(list, exact, half) {
  return new Map(list.map((info) => [info.name, new Tensor(info, info.exact ? exact : half)]));
}

/** @param {ArrayLike<number>} a @param {ArrayLike<number>} b */
export function products(a, b) {
  return Float64Array.from({ length: a.length }, (_, i) => a[i] * b[i]);
}

/** @param {ArrayLike<number>} values @param {number} [end] */
export function sum(values, end = values.length) {
  let total = 0;
  for (let i = 0; i < end; i++) total += values[i];
  return total;
}

/** @param {ArrayLike<number>} values */
export function length(values) {
  let total = 0;
  for (let i = 0; i < values.length; i++) total += values[i] * values[i];
  return Math.sqrt(total);
}

/** Mean and standard deviation. @param {ArrayLike<number>} values */
export function spread(values) {
  const mean = sum(values) / values.length;
  let total = 0;
  for (let i = 0; i < values.length; i++) total += (values[i] - mean) ** 2;
  return { mean, deviation: Math.sqrt(total / values.length) };
}

/** @param {Float64Array} scores */
export function softmax(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = scores.map((score) => Math.exp(score - most));
  const total = sum(powers);
  return powers.map((power) => power / total);
}

/** q k^T of one query with every key, the scaled scores with their bias, and their softmax.
 * @param {Tensor} q @param {Tensor} k @param {Tensor | undefined} bias each (heads, tokens, …)
 * @param {number} scale @param {number} head @param {number} query */
export function attend(q, k, bias, scale, head, query) {
  const [, queries] = q.shape;
  const [, keys] = k.shape;
  const asked = /** @type {Float32Array} */ (q.row(head * queries + query));
  const dots = new Float64Array(keys);
  const added = bias?.row(head * queries + query);
  for (let j = 0; j < keys; j++) {
    const key = /** @type {Float32Array} */ (k.row(head * keys + j));
    for (let c = 0; c < key.length; c++) dots[j] += asked[c] * key[c];
  }
  const scores = dots.map((dot, j) => dot * scale + (added ? added[j] : 0));
  return { dots, scores, shares: softmax(scores) };
}

/** The sum of the rows of v, each times its share; only of the first rows if an order and an end are given.
 * @param {Tensor} v @param {number} head @param {Float64Array} shares
 * @param {number[]} order @param {number} end */
export function weighted(v, head, shares, order, end) {
  const [, keys, width] = v.shape;
  const total = new Float64Array(width);
  for (const j of order.slice(0, end)) {
    const row = /** @type {Float32Array} */ (v.row(head * keys + j));
    for (let c = 0; c < width; c++) total[c] += shares[j] * row[c];
  }
  return total;
}

/** A limit for nearly all values, so that a few huge ones do not hide the rest.
 * @param {ArrayLike<number>} values */
export function limitOf(values) {
  const sizes = Float64Array.from(values, Math.abs).sort();
  return sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
}

/** @param {number} value @param {number} [digits] significant ones */
export function written(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const places = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
  return value.toFixed(Math.min(6, Math.max(0, places))).replace("-", "−");
}
