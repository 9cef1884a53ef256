// @ts-check
// Keyboard control. In the app it works anywhere on the page, except in elements with keys of their
// own; in reports and notebooks, where arrows scroll, only in the component that has the focus.

/** @import { Shape, State } from "./message.js" */

const FIELDS = `input:not([type="checkbox"]), select, textarea, [contenteditable],
  [role="slider"], [role="combobox"], [role="radiogroup"], [role="tablist"], [role="grid"]`;
const OPEN = '[role="listbox"], [role="menu"], [role="dialog"]';
/** @type {Record<string, [down: number, right: number]>} */
export const MOVES = {
  ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
};

/** Whether a key belongs to something else: a shortcut, a field, an open menu, another component.
 * @param {KeyboardEvent} event */
export function isTaken(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return true;
  if (document.querySelector(OPEN)) return true;
  return event.composedPath().some((node) => node instanceof Element && node.matches(FIELDS));
}

/** The pressed key; by its place if the keyboard gives no Latin letter or digit there.
 * On Hangul and Cyrillic keyboards N is another letter; on French ones a digit needs Shift.
 * @param {KeyboardEvent} event */
export function pressed({ key, code = "" }) {
  const [, letter, digit] = code.match(/^(?:Key([A-Z])|(?:Digit|Numpad)([0-9]))$/) ?? [];
  if (letter && !/^[a-z]$/i.test(key)) return letter.toLowerCase();
  return digit && !/^[a-z0-9]$/i.test(key) ? digit : key;
}

/** The change that a key makes to the state, or null.
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

/** The neighbouring patch in the direction of an arrow key; the same patch at the edge.
 * @param {number} patch @param {string} key @param {{ rows: number, cols: number }} grid */
export function neighbour(patch, key, { rows, cols }) {
  const [down, right] = MOVES[key];
  const row = Math.min(rows - 1, Math.max(0, Math.floor(patch / cols) + down));
  return row * cols + Math.min(cols - 1, Math.max(0, (patch % cols) + right));
}
