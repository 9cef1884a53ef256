import assert from "node:assert/strict";
import test from "node:test";
import { middleOf, neighbour, pressed } from "../../vitviz/web/token_map/keys.js";
import { Walk, inLayer } from "../../vitviz/web/anatomy_map/walk.js";

const data = {
  shape: { rows: 4, cols: 6, prefix: ["CLS", "DIST"], heads: 2 },
  cards: [
    { id: "picture", layers: null, grid: null, prefix: 0 },
    { id: "flatten", layers: null, grid: [4, 6], prefix: 0 },
    { id: "encoder", layers: [0, 2], grid: [4, 6], prefix: 2 },
    { id: "coarse", layers: [3, 3], grid: [2, 3], prefix: 1 },
  ],
  boxes: [{ id: "before" }, { id: "scores" }, { id: "after" }],
};
const walk = (state) => new Walk(data, { frame: 1, query: 2 + 3 * 6 + 4, step: "flatten", ...state });

test("the stops are the cards, with the boxes of the layer in place of its card", () => {
  const names = (frame) => walk({ frame }).stops.map(({ card, box }) => box ?? card.id);
  assert.deepEqual(names(1), ["picture", "flatten", "before", "scores", "after", "coarse"]);
  assert.deepEqual(names(3), ["picture", "flatten", "encoder", "before", "scores", "after"]);
});

test("the stops share the time of the walk, by their words", () => {
  const say = (count) => Array.from({ length: count }, () => "word").join(" ");
  const cards = data.cards.map((card, i) => ({ ...card, say: say(5 + 10 * i) }));
  const boxes = data.boxes.map((box, i) => ({ ...box, say: say(40 + i) }));
  const shareAt = (step) => new Walk({ ...data, cards, boxes }, { frame: 1, query: 0, step }).share;
  const shares = ["picture", "flatten", "before", "scores", "after", "coarse"].map(shareAt);
  assert.ok(Math.abs(shares.reduce((sum, share) => sum + share, 0) - 1) < 1e-9);
  assert.ok(Math.abs(shares[1] / shares[0] - (9 + 15) / (9 + 5)) < 1e-9);
});

test("a card that is opened, and a box that is not there, lead to the layer's first box", () => {
  assert.equal(walk({ step: "encoder" }).stop.box, "before");
  assert.equal(walk({ step: "rotated" }).stop.box, "before");
  assert.equal(walk({ step: "scores" }).stop.box, "scores");
});

test("the token in the middle of a grid that is not square", () => {
  assert.equal(middleOf({ rows: 4, cols: 6 }), 2 * 6 + 3);
  assert.equal(middleOf({ rows: 5, cols: 2 }), 2 * 2 + 1);
  assert.equal(walk({ query: -1 }).token, 2 + 2 * 6 + 3);
  assert.equal(walk({ query: -1 }).nameOf(2 + 2 * 6 + 3), "row 3 column 4");
});

test("the row of a tensor that belongs to the token, also in a coarser grid", () => {
  assert.equal(walk({}).row, 3 * 6 + 4); // without tokens in front
  assert.equal(walk({ step: "encoder", frame: 3 }).row, 2 + 3 * 6 + 4);
  assert.equal(walk({ step: "coarse" }).row, 1 + 1 * 3 + 2);
  assert.equal(walk({ step: "encoder", frame: 3, query: 1 }).row, 1); // DIST
  assert.equal(walk({}).patchIn([2, 3]), 1 * 3 + 2);
  assert.equal(walk({ query: 0 }).patchIn([4, 6]), 2 * 6 + 3); // CLS has no patch
});

test("a token of one layer in another one", () => {
  const crop = [0, 0, 96, 64];
  const [one, other] = [{ ...data.shape, crop }, { rows: 2, cols: 3, prefix: ["DIST"], crop }];
  assert.equal(inLayer(2 + 3 * 6 + 4, one, other), 1 + 1 * 3 + 2);
  assert.deepEqual([1, 0, -1].map((token) => inLayer(token, one, other)), [0, -1, -1]);
});

test("where no token is in front, the middle stands for CLS", () => {
  assert.equal(walk({ query: 0, step: "flatten" }).followed, 2 + 2 * 6 + 3);
  assert.equal(walk({ query: 0, step: "scores" }).followed, 0);
});

test("an arrow leads to the neighbour and not beyond the edge", () => {
  const grid = { rows: 4, cols: 6 };
  assert.equal(neighbour(7, "ArrowUp", grid), 1);
  assert.equal(neighbour(7, "ArrowRight", grid), 8);
  assert.equal(neighbour(5, "ArrowRight", grid), 5);
  assert.equal(neighbour(20, "ArrowDown", grid), 20);
});

test("a key is its letter or digit, and its place only where the keyboard gives none", () => {
  const keys = [["a", "KeyQ"], ["ㅜ", "KeyN"], ["&", "Digit1"], ["4", "Numpad4"], ["N", "KeyN"], ["Escape", "Escape"]];
  assert.deepEqual(keys.map(([key, code]) => pressed({ key, code })), ["a", "n", "1", "4", "N", "Escape"]);
});
