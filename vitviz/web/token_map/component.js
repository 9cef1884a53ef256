// @ts-check
// Shared by the components: they are mounted in parts, keep the numbers that a host sends once,
// show a change at once, and draw at most once per frame of the screen.

import { Commits } from "./commits.js";
import { patchAt } from "./maps.js";
import { backdrop, contextOf, element, fit } from "./parts.js";
import { speak } from "./strings.js";

/** @import { Grid } from "./maps.js" */
/** @import { Box, ViewMessage } from "./message.js" */
/** @typedef {ViewMessage["picture"]} Picture */
/** @typedef {(event: string, commit: any) => void} Send */
/** @typedef {{ data: any, parentElement: any, setTriggerValue: Send }} Host */

/** @type {Set<Component<any>>} */
export const views = new Set(); // those on the page

/** Numbers that were sent once, by their id, with the photo that they belong to: the last ones, and
 * all that a view shows.
 * @template Numbers */
export class Stacks {
  /** @type {Map<string, { numbers: Numbers, photo: HTMLImageElement | null }>} */
  #kept = new Map();

  /** @param {number} most stacks to keep beside those that are shown @param {(message: any) => Numbers} read */
  constructor(most, read) {
    this.most = most;
    this.read = read;
  }

  /** @param {string} id */
  get(id) {
    return this.#kept.get(id);
  }

  /** @param {any} message its columns may be Arrow tables */
  keep({ stack, ...columns }) {
    for (const [name, numbers] of Object.entries(columns))
      columns[name] = ArrayBuffer.isView(numbers) ? numbers : numbers.getChildAt(0).toArray();
    const photo = stack.picture ? element("img", { onload: redrawAll, src: stack.picture }) : null;
    this.#kept.delete(stack.id); // so that it becomes the last of all
    this.#kept.set(stack.id, { numbers: this.read({ stack, ...columns }), photo });
    // A report has all its components on one page, and nobody sends their numbers again.
    const shown = [...views].flatMap(({ data }) => [data.stackId, data.stepsId, data.layerId]);
    for (const id of [...this.#kept.keys()].slice(0, -this.most))
      if (!shown.includes(id)) this.#kept.delete(id);
    redrawAll();
  }
}

function redrawAll() {
  for (const view of views) view.redraw();
}

/** @param {{ width: number, height: number }} picture @returns {Box} */
function whole({ width, height }) {
  return [0, 0, width, height];
}

/** The bytes of a colour table.
 * @param {string} lut */
function coloursOf(lut) {
  return Uint8Array.from(lut.match(/../g) ?? [], (/** @type {string} */ pair) => parseInt(pair, 16));
}

/** Return a function that mounts one part of the message, or its next version, in an element, and
 * returns a function that unmounts it.
 * @param {new (root: any) => Component<any>} View @param {Stacks<any>} stacks */
export function mounting(View, stacks) {
  return (/** @type {Host} */ { data, parentElement, setTriggerValue }) => {
    if (data.stack) {
      stacks.keep(data);
      return undefined;
    }
    parentElement.view ??= new View(parentElement);
    parentElement.view.receive(data, setTriggerValue);
    return () => parentElement.view.close();
  };
}

/** A view of kept numbers: `build` creates its elements, `draw` draws the current choice.
 * @template Data of the message */
export class Component {
  commits = new Commits();
  /** @type {Data} */ data = /** @type {any} */ (null);
  /** @type {Uint8Array} */ lut = new Uint8Array();
  /** @type {Record<string, any>} */ parts = {};
  /** @type {Record<string, any>} */ shown = {}; // the data from which parts were last built or drawn
  /** @type {number | undefined} */ scheduled; // the next redraw
  /** @type {HTMLElement} */ box;
  /** @type {HTMLElement} */ measured;
  room = { width: 0, height: 0 }; // of what is measured
  /** @type {WeakMap<HTMLCanvasElement, { photo: any, shown: string, drawn: HTMLCanvasElement }>} */
  backdrops = new WeakMap();

  /** @param {any} root a shadow root in Streamlit @param {string} name of the class in the style
   * @param {HTMLElement} [measured] the element whose size is the room, by default the whole */
  constructor(root, name, measured) {
    this.root = root;
    this.box = element("div", { className: name });
    this.measured = measured ?? this.box;
    root.append(this.box);
    this.observer = new ResizeObserver(([{ contentRect }]) => this.resize(contentRect));
  }

  build() {}

  draw() {}

  /** @param {{ width: number, height: number }} room */
  resize(room) {
    this.room = room;
    this.redraw();
  }

  open() {
    views.add(this);
    this.observer.observe(this.measured);
  }

  /** Streamlit may mount the same element again later; the next `receive` opens it. */
  close() {
    this.commits.close();
    this.observer.disconnect();
    views.delete(this);
  }

  /** @param {any} data @param {Send} send */
  receive(data, send) {
    this.data = data;
    speak(data.strings);
    this.commits.receive(data, send);
    const changing = { session: null, version: null, state: null, stackId: null,
      beside: data.beside?.length };
    const built = JSON.stringify({ ...data, ...changing });
    if (this.shown.layout !== built) { // an answer must not end the drag of a slider
      const focused = this.root.activeElement?.dataset.part;
      this.lut = coloursOf(data.lut);
      this.parts = {};
      this.shown = { layout: built };
      this.build();
      if (focused) this.parts[focused]?.focus();
    }
    if (!views.has(this)) this.open();
    this.redraw();
  }

  get state() {
    return this.commits.state;
  }

  /** Draw once in the next frame of the screen, for all changes until then. */
  redraw() {
    this.scheduled ??= requestAnimationFrame(() => {
      this.scheduled = undefined;
      if (this.room.width && this.box.isConnected) this.draw();
    });
  }

  /** Replace the content of a part, and keep the focus on the same control.
   * @param {HTMLElement} part @param {(Node | string)[]} children */
  refill(part, children) {
    const controls = () => [...part.querySelectorAll("button, input")];
    const focused = controls().indexOf(this.root.activeElement);
    part.replaceChildren(...children);
    /** @type {HTMLElement | undefined} */ (controls()[focused])?.focus();
  }

  /** The patch under the pointer; null outside of the model's input.
   * @param {HTMLCanvasElement} canvas of the picture @param {MouseEvent} event
   * @param {{ width: number, height: number }} picture @param {Grid} grid
   * @param {Box} [area] of the picture that is on the canvas; all of it where left out */
  patchUnder(canvas, { clientX, clientY }, picture, grid, area = whole(picture)) {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const [first, upper, last, lower] = area;
    const x = first + ((clientX - left) / width) * (last - first);
    return patchAt(x, upper + ((clientY - top) / height) * (lower - upper), grid);
  }

  /** Draw the picture on a canvas; return its context, in pixels of the picture.
   * @param {HTMLCanvasElement} canvas @param {HTMLImageElement | null | undefined} photo
   * @param {Picture} picture @param {{ width: number, height: number }} room
   * @param {Box} [area] of the picture that is drawn; all of it where left out */
  onPicture(canvas, photo, picture, room, area = whole(picture)) {
    const [left, top, right, bottom] = area;
    const { line, pixel } = fit(canvas, { width: right - left, height: bottom - top }, room);
    const context = contextOf(canvas);
    const across = 1 / pixel;
    const down = canvas.height / (bottom - top);
    const size = `${canvas.width}x${canvas.height}`;
    const shown = `${photo?.naturalWidth} ${size} ${picture.crop} ${area}`;
    const kept = this.backdrops.get(canvas);
    const drawn = kept?.photo === photo && kept?.shown === shown ? kept.drawn // scaled once
      : backdrop(canvas, photo, picture, [across, 0, 0, down, -left * across, -top * down]);
    this.backdrops.set(canvas, { photo, shown, drawn });
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(drawn, 0, 0);
    context.setTransform(across, 0, 0, down, -left * across, -top * down);
    return { context, line, pixel };
  }
}
