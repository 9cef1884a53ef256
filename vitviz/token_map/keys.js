// @ts-check
// The keys. They work wherever the focus is on the page, except where something has its own.

/** @import { Shape, State } from "./message.js" */

const FIELDS = `input:not([type="checkbox"]), select, textarea, [contenteditable],
  [role="slider"], [role="combobox"], [role="radiogroup"], [role="tablist"], [role="grid"]`;
const OPEN = '[role="listbox"], [role="menu"], [role="dialog"]';
/** @type {Record<string, [down: number, right: number]>} */
export const MOVES = {
  ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
};

/** Whether a key is for something else: a shortcut, a field, an open menu, or who has taken it.
 * @param {KeyboardEvent} event */
export function isTaken(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return true;
  if (document.querySelector(OPEN)) return true;
  return event.composedPath().some((node) => node instanceof Element && node.matches(FIELDS));
}

/** What a key changes; null where that is nothing.
 * @param {string} key
 * @param {State} state
 * @param {Shape[]} frames
 * @param {number | null} hover the query under the pointer
 * @returns {Partial<State> | null} */
export function keyed(key, { frame, query, pinned }, frames, hover) {
  const { heads, home, rows, cols, prefix, prefixOnly } = frames[frame];
  const letter = key.toLowerCase();
  if (/^[0-9]$/.test(key))
    return heads > 1 && Number(key) <= heads ? { head: Number(key) - 1 } : null;
  if (letter === "n") return frame + 1 < frames.length ? { frame: frame + 1 } : null;
  if (letter === "p") return frame > 0 ? { frame: frame - 1 } : null;
  if (key === "Escape") return pinned || query !== home ? { query: home, pinned: false } : null;
  if (!(key in MOVES) || prefixOnly) return null;
  const patch = (pinned ? query : hover ?? query) - prefix.length;
  const grid = { rows, cols };
  const found = patch < 0 ? middleOf(grid) : neighbour(patch, key, grid);
  return { query: prefix.length + found, pinned: true };
}

/** The patch in the middle.
 * @param {{ rows: number, cols: number }} grid */
export function middleOf({ rows, cols }) {
  return Math.floor(rows / 2) * cols + Math.floor(cols / 2);
}

/** The patch that an arrow key leads to; at the edge of the grid it is the same.
 * @param {number} patch @param {string} key @param {{ rows: number, cols: number }} grid */
export function neighbour(patch, key, { rows, cols }) {
  const [down, right] = MOVES[key];
  const row = Math.min(rows - 1, Math.max(0, Math.floor(patch / cols) + down));
  return row * cols + Math.min(cols - 1, Math.max(0, (patch % cols) + right));
}
