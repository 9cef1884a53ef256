// @ts-check
// The position in the walk: its stops, and the tokens and patches of each stop.

import { middleOf } from "../token_map/keys.js";
import { moved, place } from "../token_map/maps.js";

/** @typedef {{ card: any, box: string | null }} Stop a step, or a box of the layer in its place */
/** @typedef {{ rows: number, cols: number }} Size */

/** @param {number} patch @param {Size} from @param {Size} to the patch in the same place */
function inGrid(patch, from, to) {
  const crop = /** @type {[number, number, number, number]} */ ([0, 0, 1, 1]);
  return moved(patch, { ...from, crop }, { ...to, crop });
}

/** Find the token of another layer that is the same prefix token, or a patch in the same place; -1 if
 * there is none. @param {number} token @param {any} from @param {any} to their shapes */
export function inLayer(token, from, to) {
  const patch = token - from.prefix.length;
  if (patch < 0) return to.prefix.indexOf(from.prefix[token]);
  return to.prefix.length + moved(patch, from, to);
}

const LOOKING = 9; // words that could be read while one looks at what has changed

export class Walk {
  /** @param {any} data what the host sent @param {any} state what is chosen */
  constructor(data, state) {
    this.data = data;
    this.state = state;
    this.shape = data.shape;
    this.prefix = data.shape.prefix.length;
    /** @type {Stop[]} */
    this.stops = data.cards.flatMap((/** @type {any} */ card) =>
      this.isOpened(card)
        ? data.boxes.map((/** @type {any} */ { id }) => ({ card, box: id }))
        : [{ card, box: null }]);
    this.at = this.#at();
    this.stop = this.stops[this.at];
  }

  /** Whether a card's layer is the opened one. @param {any} card */
  isOpened({ layers }) {
    return layers && this.state.frame >= layers[0] && this.state.frame <= layers[1];
  }

  #at() {
    const { step } = this.state;
    const index = this.stops.findIndex(({ card, box }) => (box ?? card.id) === step);
    if (index >= 0) return index;
    const known = this.data.cards.some((/** @type {any} */ { id }) => id === step);
    // an opened card, or a box that this layer does not have
    return Math.max(0, this.stops.findIndex(({ card, box }) =>
      (known ? card.id === step : box !== null)));
  }

  /** The card or box of the current stop, with its texts. */
  get said() {
    return this.#saidAt(this.stop);
  }

  /** @param {Stop} stop */
  #saidAt({ card, box }) {
    return box ? this.data.boxes.find((/** @type {any} */ { id }) => id === box) : card;
  }

  /** The share of the whole walk's time for this stop: the more words, the longer. */
  get share() {
    const times = this.stops.map((stop) => LOOKING + this.#saidAt(stop).say.split(" ").length);
    return times[this.at] / times.reduce((sum, time) => sum + time, 0);
  }

  /** Whether this stop has a key. */
  get keyed() {
    return ["scores", "attention", "heads"].includes(this.stop.box ?? "");
  }

  /** Whether this is a token of the layer. @param {number} token */
  isToken(token) {
    return token >= 0 && token < this.prefix + this.shape.rows * this.shape.cols;
  }

  /** The token whose numbers are shown: the query, else the patch in the middle. */
  get token() {
    const { query } = this.state;
    return this.isToken(query) ? query : this.prefix + middleOf(this.shape);
  }

  /** The token of this stop, which may precede the prefix tokens. */
  get followed() {
    const { card, box } = this.stop;
    if (box || card.prefix || !card.grid || this.token >= this.prefix) return this.token;
    return this.prefix + middleOf(this.shape);
  }

  /** The shown patch in another grid: that of the token, else the middle one.
   * @param {[rows: number, cols: number]} grid */
  patchIn([rows, cols]) {
    const patch = this.token - this.prefix;
    return patch < 0 ? middleOf({ rows, cols }) : inGrid(patch, this.shape, { rows, cols });
  }

  /** The token's row in the card's tensor. */
  get row() {
    const { card } = this.stop;
    if (this.token < this.prefix && card.prefix > this.token) return this.token;
    return card.prefix + (card.grid ? this.patchIn(card.grid) : 0);
  }

  /** The choices on which the scene of this stop depends. */
  get scene() {
    const { data, row, shape, state, stop, token } = this;
    const head = Math.min(Math.max(0, state.head), Math.max(0, shape.heads - 1));
    return { ...stop, data, token, row, head, patch: this.patchIn(data.facts.grid) };
  }

  /** @param {number} token */
  nameOf(token) {
    const patch = token - this.prefix;
    return patch < 0 ? this.shape.prefix[token] : place(patch, this.shape.cols);
  }
}
