import assert from "node:assert/strict";
import test from "node:test";
import {
  Tensor, attend, length, limitOf, products, softmax, spread, sum, weighted, written,
} from "../../vitviz/web/anatomy_map/tensors.js";

const near = (found, expected, tolerance = 1e-12) =>
  [...found].forEach((value, i) => assert.ok(Math.abs(value - expected[i]) <= tolerance, `${value} is not ${expected[i]}`));
const exact = (shape, numbers) =>
  new Tensor({ name: "x", shape, exact: true, first: 0, only: null }, Float32Array.from(numbers));
const half = (bits) =>
  new Tensor({ name: "x", shape: [1, bits.length], exact: false, first: 0, only: null }, Uint16Array.from(bits));

test("numbers in half precision, the smallest among them", () => {
  const bits = [0x3c00, 0xc000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0x3555, 0x8000];
  const values = [1, -2, 2 ** -24, -1023 * 2 ** -24, 2 ** -14, 65504, 1365 / 4096, -0];
  assert.deepEqual([...half(bits).row(0)], values);
  assert.deepEqual(values.map((_, i) => half(bits).at(0, i)), values);
  assert.deepEqual([...half([0x7c00, 0xfc00, 0x7e00]).row(0)], [Infinity, -Infinity, NaN]);
});

test("a row of a tensor begins behind the tensors before it", () => {
  const numbers = Float32Array.from({ length: 20 }, (_, i) => i);
  const tensor = new Tensor({ name: "x", shape: [2, 3, 2], exact: true, first: 5, only: null }, numbers);
  assert.deepEqual([tensor.rows, tensor.width], [6, 2]);
  assert.deepEqual([...tensor.row(4)], [13, 14]);
  assert.equal(tensor.at(4, 1), 14);
});

test("of a tensor of which one row was sent there is no other", () => {
  const tensor = new Tensor({ name: "x", shape: [3, 2], exact: true, first: 1, only: 2 }, Float32Array.of(0, 7, 8));
  assert.deepEqual([...tensor.row(2)], [7, 8]);
  assert.equal(tensor.row(0), null);
});

test("a length is the root of the sum of squares", () => assert.equal(length([3, -4]), 5));

test("a deviation is the population's", () => {
  assert.deepEqual(spread([1, 2, 3, 6]), { mean: 3, deviation: Math.sqrt(14 / 4) });
});

test("sums up to an end, and products", () => {
  assert.equal(sum([1, 2, 4], 2), 3);
  assert.deepEqual([...products([1, 2], [3, -4])], [3, -8]);
});

test("a softmax of large scores adds up to 1", () => {
  near(softmax(Float64Array.of(1000, 1000 + Math.log(3))), [0.25, 0.75]);
});

test("scores are of one head, scaled, and with the bias of this query", () => {
  const q = exact([2, 2, 2], [9, 9, 9, 9, 9, 9, 1, 2]); // head 2, query 2: (1, 2)
  const k = exact([2, 3, 2], [9, 9, 9, 9, 9, 9, 1, 0, 0, 1, 2, 2]);
  const bias = exact([2, 2, 3], [9, 9, 9, 9, 9, 9, 9, 9, 9, 0.5, 0, -1]);
  const { dots, scores, shares } = attend(q, k, bias, 0.5, 1, 1);
  near(dots, [1, 2, 6]);
  near(scores, [1, 1, 2]);
  near(shares, softmax(Float64Array.of(1, 1, 2)));
  near(attend(q, k, undefined, 0.5, 1, 1).scores, [0.5, 1, 3]);
});

test("values are added up by their shares, those of one head", () => {
  const v = exact([2, 2, 2], [9, 9, 9, 9, 1, 2, 3, 4]);
  const shares = Float64Array.of(0.25, 0.75);
  near(weighted(v, 1, shares, [1, 0], 2), [2.5, 3.5]);
  near(weighted(v, 1, shares, [1, 0], 1), [2.25, 3]);
});

test("a few huge numbers do not set the limit", () => {
  const values = Array.from({ length: 100 }, (_, i) => (i === 50 ? -1e6 : (i % 10) - 5));
  assert.equal(limitOf(values), 5);
  assert.equal(limitOf([0, 0]), 1);
});

test("numbers are written with significant digits and a true minus", () => {
  const found = [0, 1234.5, 12.34, -0.01234, 1e-9, NaN].map((value) => written(value));
  assert.deepEqual(found, ["0", "1235", "12.3", "−0.0123", "0.000000", "–"]);
});
