import assert from "node:assert/strict";
import test from "node:test";
import { speak, tr } from "../../vitviz/web/token_map/strings.js";

test("a string is the host's, with its values; what has no value and formulas stay", () => {
  assert.equal(tr("head {head} of x_{p}", { head: 2 }), "head 2 of x_{p}");
  assert.equal(tr("{what}"), "{what}");
  speak({ "head {head}": "{head}번 헤드" });
  assert.equal(tr("head {head}", { head: 2 }), "2번 헤드");
  speak(undefined);
  assert.equal(tr("head {head}", { head: 2 }), "head 2");
});
