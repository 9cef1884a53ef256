// @ts-check
// The board on which a reader guesses a patch before a map is shown: the photo with its patches.
// A click or the arrow keys mark one; the button or Enter sends it.

import { Component, Stacks, mounting } from "../../web/token_map/component.js";
import { MOVES, middleOf, neighbour } from "../../web/token_map/keys.js";
import { place } from "../../web/token_map/maps.js";
import { drawGrid, element, outline } from "../../web/token_map/parts.js";

const GUESS = "#fff";
/** @type {Stacks<null>} */
const stacks = new Stacks(2, () => null);

/** @extends {Component<any>} */
class Board extends Component {
  marked = -1; // the patch, -1 for none

  /** @param {HTMLElement} root */
  constructor(root) {
    super(root, "guess-board", element("i"));
  }

  build() {
    const { words } = this.data;
    this.marked = -1;
    const photo = element("canvas", { tabIndex: 0,
      aria: { role: "application", "aria-label": words.how } });
    const button = element("button", { type: "button", textContent: words.send, disabled: true });
    const said = element("span", { aria: { "aria-live": "polite" } });
    const row = element("div", { className: "row" }, button, said);
    Object.assign(this.parts, { photo, button, said });
    this.box.replaceChildren(photo, row, element("div", { className: "room" }, this.measured));
    photo.onclick = (event) => {
      const patch = this.patchUnder(photo, event, this.data.picture, this.data.grid);
      if (patch !== null) this.mark(patch);
    };
    photo.onkeydown = (event) => this.press(event);
    button.onclick = () => this.send();
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const { grid } = this.data;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in MOVES)
      this.mark(this.marked < 0 ? middleOf(grid) : neighbour(this.marked, event.key, grid));
    else if (event.key === "Enter" && this.marked >= 0) this.send();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} patch */
  mark(patch) {
    this.marked = patch;
    this.parts.button.disabled = false;
    this.parts.said.textContent = place(patch, this.data.grid.cols);
    this.redraw();
  }

  send() {
    this.parts.button.disabled = true;
    this.commits.change({ patch: this.marked });
  }

  draw() {
    const { picture, grid, stackId } = this.data;
    const photo = stacks.get(stackId)?.photo;
    const { context, pixel, line } = this.onPicture(this.parts.photo, photo, picture, this.room);
    context.strokeStyle = "rgb(255 255 255 / 0.35)";
    context.lineWidth = pixel;
    drawGrid(context, grid);
    if (this.marked >= 0) outline(context, line, this.marked, grid, GUESS, false);
  }
}

const mount = mounting(Board, stacks);
export default mount;
