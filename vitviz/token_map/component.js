// @ts-check
// What the components share: they are mounted in parts, keep the numbers that a host sends once,
// show a change at once, and draw it once for each frame of the screen.

import { Commits } from "./commits.js";
import { patchAt } from "./maps.js";
import { backdrop, contextOf, element, fit } from "./parts.js";
import { speak } from "./strings.js";

/** @import { Grid } from "./maps.js" */
/** @import { ViewMessage } from "./message.js" */
/** @typedef {ViewMessage["picture"]} Picture */
/** @typedef {(event: string, commit: any) => void} Send */
/** @typedef {{ data: any, parentElement: any, setTriggerValue: Send }} Host */

/** @type {Set<Component<any>>} */
export const views = new Set(); // those on the page

/** What was sent once, by its id: numbers, and the photo that they are of.
 * @template Numbers */
export class Stacks {
  /** @type {Map<string, { numbers: Numbers, photo: HTMLImageElement | null }>} */
  #kept = new Map();

  /** @param {number} most that are kept @param {(message: any) => Numbers} read */
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
    if (this.#kept.size > this.most) this.#kept.delete([...this.#kept.keys()][0]);
    redrawAll();
  }
}

function redrawAll() {
  for (const view of views) view.redraw();
}

/** What mounts one part of the message, or its next version, in an element. What that returns ends
 * it.
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

/** A view of what is kept: `build` makes its elements anew, `draw` draws what is chosen.
 * @template Data of the message */
export class Component {
  commits = new Commits();
  /** @type {Data} */ data = /** @type {any} */ (null);
  /** @type {Uint8Array} */ lut = new Uint8Array();
  /** @type {Record<string, any>} */ parts = {};
  /** @type {Record<string, any>} */ shown = {}; // what parts were last built or drawn of
  /** @type {number | undefined} */ scheduled; // the next redraw
  /** @type {HTMLElement} */ box;
  /** @type {HTMLElement} */ measured;
  room = { width: 0, height: 0 }; // of what is measured

  /** @param {any} root a shadow root in Streamlit @param {string} name of the class in the style
   * @param {HTMLElement} [measured] what gives the room, where that is not the whole */
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

  /** Streamlit may mount the same element again afterwards: the next `receive` opens it. */
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
    const { session, version, state, stackId, ...layout } = data;
    const built = JSON.stringify(layout);
    if (this.shown.layout !== built) { // an answer must not end the drag of a slider
      const focused = this.root.activeElement?.dataset.part;
      const colours = data.lut.match(/../g) ?? [];
      this.lut = Uint8Array.from(colours, (/** @type {string} */ pair) => parseInt(pair, 16));
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

  /** Draw in the next frame of the screen, however many changes there are until then. */
  redraw() {
    this.scheduled ??= requestAnimationFrame(() => {
      this.scheduled = undefined;
      if (this.room.width && this.box.isConnected) this.draw();
    });
  }

  /** Replace what a part holds; the focus stays where it is among its controls.
   * @param {HTMLElement} part @param {(Node | string)[]} children */
  refill(part, children) {
    const controls = () => [...part.querySelectorAll("button, input")];
    const focused = controls().indexOf(this.root.activeElement);
    part.replaceChildren(...children);
    /** @type {HTMLElement | undefined} */ (controls()[focused])?.focus();
  }

  /** The patch under the pointer, null outside of what the model saw.
   * @param {HTMLCanvasElement} canvas of the picture @param {MouseEvent} event
   * @param {{ width: number, height: number }} picture @param {Grid} grid */
  patchUnder(canvas, { clientX, clientY }, picture, grid) {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const x = ((clientX - left) / width) * picture.width;
    return patchAt(x, ((clientY - top) / height) * picture.height, grid);
  }

  /** Put the picture on a canvas; its drawing context, in pixels of the picture.
   * @param {HTMLCanvasElement} canvas @param {HTMLImageElement | null | undefined} photo
   * @param {Picture} picture @param {{ width: number, height: number }} room */
  onPicture(canvas, photo, picture, room) {
    const { line, pixel } = fit(canvas, picture, room);
    const size = `${canvas.width}x${canvas.height}`;
    const shown = `${photo?.naturalWidth} ${size} ${picture.crop}`;
    if (this.shown.photo !== photo || this.shown.picture !== shown)
      this.backdrop = backdrop(canvas, photo, picture); // scaled once
    Object.assign(this.shown, { photo, picture: shown });
    const context = contextOf(canvas);
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (this.backdrop) context.drawImage(this.backdrop, 0, 0);
    context.setTransform(1 / pixel, 0, 0, canvas.height / picture.height, 0, 0);
    return { context, line, pixel };
  }
}
