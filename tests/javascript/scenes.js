// What Anatomy's component shows, for tests/test_anatomy_map.py.

import { strongest } from "../../vitviz/web/anatomy_map/boxes.js";
import { itemsOf } from "../../vitviz/web/anatomy_map/items.js";
import { tensors } from "../../vitviz/web/anatomy_map/tensors.js";
import { Walk } from "../../vitviz/web/anatomy_map/walk.js";
import { speak } from "../../vitviz/web/token_map/strings.js";

/** The items on screen once they have ceased to move, each with its numbers, for each state.
 * @param {any} view the message @param {any[]} stacks of the steps and of the layer
 * @param {any[]} states what is chosen: step, head, query, key, and `dim`, the number worked out */
export function itemsShown(view, stacks, states) {
  speak(view.strings);
  const [steps, layer] = stacks.map(({ stack, exact, half }) =>
    tensors(stack.tensors, Float32Array.from(exact), Uint16Array.from(half)));
  return states.map(({ dim, ...chosen }) => {
    const walk = new Walk(view, { ...view.state, ...chosen });
    view.nameOf = (token) => walk.nameOf(token);
    const about = { ...walk.scene, steps, layer, t: 1, dim };
    const key = chosen.key < 0 ? strongest(about, walk.prefix) : chosen.key;
    return itemsOf({ ...about, key }).map(({ tensor, values, ...item }) => ({
      ...item,
      values: values && [...values],
      rowsOf: tensor && Array.from({ length: tensor.rows }, (_, i) => tensor.row(i) && [...tensor.row(i)]),
    }));
  });
}
