import assert from "node:assert/strict";
import test from "node:test";
import { Stacks, views } from "../../vitviz/web/token_map/component.js";

/** @param {Record<string, string>} data what a view shows, by the names in its message */
function shows(data) {
  views.add(/** @type {any} */ ({ data, redraw() {} }));
}

test("the last numbers are kept, and all that is on the page", () => {
  const stacks = new Stacks(2, ({ numbers }) => [...numbers]);
  const keep = (id) => stacks.keep({ stack: { id }, numbers: Uint8Array.of(id.length) });
  const kept = (...ids) => ids.filter((id) => stacks.get(id));
  for (const id of ["a", "b", "c"]) keep(id);
  assert.deepEqual(kept("a", "b", "c"), ["b", "c"]);
  shows({ stackId: "c" }); // each component of a report is shown before the numbers of the next arrive
  keep("steps");
  keep("layer");
  shows({ stepsId: "steps", layerId: "layer" });
  for (const id of ["d", "e", "f"]) keep(id);
  assert.deepEqual(kept("c", "steps", "layer", "d", "e", "f"), ["c", "steps", "layer", "e", "f"]);
  views.clear();
  keep("g");
  assert.deepEqual(kept("c", "steps", "layer", "e", "f", "g"), ["f", "g"]);
});
