import assert from "node:assert/strict";
import test from "node:test";
import { asText } from "../../vitviz/web/token_map/maps.js";

test("a cosine keeps its sign and two digits, and zero has no sign", () => {
  assert.deepEqual(
    [-1, -0.006, -0.004, 0, 0.004, 0.5].map((value) => asText("cosine", value)),
    ["-1.00", "-0.01", "0.00", "0.00", "0.00", "0.50"],
  );
});
