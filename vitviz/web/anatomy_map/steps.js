// @ts-check
// The scene of each step of the picture.

import { percent } from "../token_map/maps.js";
import { between, line, norm, statistics, strip } from "./scenes.js";
import { length, limitOf, products, sum, written } from "./tensors.js";
import { tr } from "../token_map/strings.js";

/** @import { Item, Maker, Scene } from "./scenes.js" */

/** @type {Record<string, Maker>} */
export const STEPS = {
  picture(scene) {
    const picture = scene.steps.get("picture");
    if (!picture) return undefined;
    const [height, width] = picture.shape;
    const { mean, std, grid, planes } = scene.data.facts;
    const [row, col] = [Math.floor(scene.patch / grid[1]), scene.patch % grid[1]];
    const [y, x] = [Math.floor(((row + 0.5) / grid[0]) * height), Math.floor(((col + 0.5) / grid[1]) * width)];
    const [first] = planes; // red, where there are colours
    const value = picture.at(y * width + x, first);
    const raw = value * std[first] + mean[first];
    const place = { row: y + 1, column: x + 1 };
    const pixel = planes.length === 3 ? tr("The red of the pixel at row {row}, column {column}:", place)
      : tr("The first channel of the pixel at row {row}, column {column}:", place);
    return [
      { kind: "channels", tensor: picture, label: tr("red, green, blue") },
      line(`${pixel} (${written(raw)} − ${written(mean[first])}) / ${written(std[first])} = **${written(value)}**`),
      ...(planes.length === 3
        ? [line(tr("where 0 is black and 1 is full red. Blue in the maps is below 0, red is above."))] : []),
    ];
  },
  patches(scene) {
    const { costs } = scene.data;
    const picture = scene.steps.get("picture");
    if (!picture) return undefined;
    return [
      { kind: scene.data.facts.stem ? "patch" : "cut", tensor: picture, grown: scene.t },
      { kind: "table", head: [tr("patch side P"), tr("tokens N"), tr("pairs N²"), tr("against here")],
        rows: costs.rows, mark: costs.here, shares: costs.shares },
    ];
  },
  flatten(scene) {
    const flat = scene.steps.get("flatten");
    const row = flat?.row(scene.patch);
    if (!flat || !row) return undefined;
    const { channels, planes } = scene.data.facts;
    const each = row.length / channels;
    const names = channels === 3 ? [tr("red"), tr("green"), tr("blue")] : [];
    const limit = limitOf(row);
    return [
      { kind: "matrix", label: tr("all patches"), tensor: flat, mark: scene.patch },
      strip(tr("one patch"), row, { tone: "query", limit, end: Math.ceil(scene.t * row.length) }),
      ...names.map((name, c) =>
        strip(name, row.subarray(planes[c] * each, (planes[c] + 1) * each), {
          limit, end: Math.max(0, Math.ceil((scene.t * channels - planes[c]) * each)) })),
    ];
  },
  project(scene) {
    const [flat, kernel, made] = ["flatten", "project.kernel", "project"].map((name) => scene.steps.get(name));
    const patch = flat?.row(scene.patch);
    const out = made?.row(scene.patch);
    if (!kernel || !patch || !out) return undefined;
    const dim = scene.dim % kernel.rows;
    const filter = kernel.row(dim);
    if (!filter)
      return [strip("x_{p}", patch, { tone: "query" }),
        line(tr("Of E this file holds column {column} alone. Click it:", { column: (kernel.only ?? 0) + 1 })),
        strip("x_{p} E", out, { mark: kernel.only ?? 0, pick: scene.pickDim })];
    const bias = scene.steps.get("project.bias")?.row(0)?.[dim] ?? 0;
    const product = products(patch, filter);
    const end = Math.ceil(scene.t * product.length);
    const total = sum(product, end);
    return [
      strip("x_{p}", patch, { tone: "query" }),
      strip(tr("column {column} of E", { column: dim + 1 }), filter),
      strip(tr("product"), product, { end }),
      line(tr("Σ = {sum} + b {bias} = **{total}**, number {number} of this patch's {count}. Click another one:", {
        sum: written(total), bias: written(bias), total: written(total + bias), number: dim + 1, count: out.length })),
      strip("x_{p} E", out, { mark: dim, pick: scene.pickDim }),
    ];
  },
  prefix(scene) {
    const made = scene.steps.get(scene.card.id);
    const own = scene.steps.get("prefix.tokens");
    if (!made || !own) return undefined;
    const names = scene.data.shape.prefix;
    const rows = names.slice(0, 6).map((/** @type {string} */ name, /** @type {number} */ i) => {
      const row = /** @type {Float32Array} */ (own.row(i));
      return strip(`[${name}]`, row, { end: Math.ceil(scene.t * row.length) });
    });
    const patch = made.row(names.length + scene.patch);
    return [
      { kind: "matrix", label: tr("all tokens"), tensor: made, mark: 0 },
      ...rows,
      ...(patch ? [strip(tr("a patch"), patch, { tone: "query" })] : []),
      line(names.length === 1
        ? tr("The first row is learned and the same for every picture; the others are the patches: {tokens} tokens.",
          { tokens: made.rows })
        : tr("The first {rows} rows are learned and the same for every picture; the others are the patches: {tokens} tokens.",
          { rows: names.length, tokens: made.rows })),
    ];
  },
  positions(scene) {
    const made = scene.steps.get(scene.card.id);
    const table = scene.steps.get("positions.table");
    if (!made || !table) return undefined;
    const row = scene.row - (made.rows - table.rows);
    const place = table.row(Math.max(0, row));
    const after = made.row(scene.row);
    if (!place || !after) return undefined;
    const token = Float64Array.from(after, (value, i) => value - place[i]);
    const limit = Math.max(limitOf(after), limitOf(place));
    return [
      strip(tr("token"), token, { tone: "query", limit }),
      strip("+ E_{pos}", place, { limit }),
      strip("= z_{0}", between(token, after, scene.t), { limit }),
      line(tr("Lengths: ‖token‖ = {token}, ‖E_{pos}‖ = {place}, ‖z_{0}‖ = **{after}**",
        { token: written(length(token)), place: written(length(place)), after: written(length(after)) })),
      { kind: "matrix", label: tr("z_{0}, all tokens"), tensor: made, mark: scene.row },
    ];
  },
  output: answer,
  output_distilled: answer,
  output_mean_norm: answer,
  head(scene) {
    const read = scene.steps.get("head.read");
    const [weight, bias] = ["head.weight", "head.bias"].map((name) => scene.steps.get(name));
    const { answers, classes, sigmoid } = scene.data;
    const mark = Math.min(scene.dim, answers.length - 1);
    const y = read?.row(0);
    if (!y) return undefined;
    /** @type {Item[]} */
    const items = [];
    if (weight && bias) {
      const heads = read?.rows ?? 1;
      const row = /** @type {Float32Array} */ (weight.row(mark * heads));
      const product = products(y, row);
      const end = Math.ceil(scene.t * product.length);
      const b = /** @type {Float32Array} */ (bias.row(mark));
      const total = sum(product, end) + b[0];
      items.push(
        strip(scene.steps.has("head_hidden") ? tr("hidden units") : heads > 1 ? tr("y of CLS") : "y", y, { tone: "query" }),
        strip(tr("weights of {label}", { label: answers[mark].label }), row),
        strip(tr("product"), product, { end }),
        line(`Σ = ${written(sum(product, end))} + b ${written(b[0])} = **${written(total)}**` +
          (heads > 1
            ? tr("; DIST's head says {logit}, and the mean of both counts", { logit: written(2 * answers[mark].logit - total) })
            : tr(": the logit of {label}", { label: answers[mark].label }))));
    }
    const shares = sigmoid ? `${tr("sigmoid")}: 1 / (1 + e^{−logit})`
      : `${tr("softmax")}: ${tr("e^{logit} / Σ e^{logits}, over all {classes}", { classes })}`;
    items.push({ kind: "table", head: [sigmoid ? tr("label") : tr("class"), tr("logit"), shares], mark,
      rows: answers.map((/** @type {any} */ one) => [one.label, written(one.logit), percent(one.share * scene.t)]),
      titles: answers.map((/** @type {any} */ one) => one.full),
      shares: answers.map((/** @type {any} */ one) => one.share * scene.t), pick: scene.pickDim });
    return items;
  },
  no_head: ended,
  embedding_head: ended,
  value_head: ended,
};

/** The last vector of a model without classes. @param {Scene} scene */
function ended(scene) {
  const y = [...scene.steps].find(([name]) => /^output(?!\.)/.test(name))?.[1].row(0);
  return y ? [strip("y", y, { end: Math.ceil(scene.t * y.length) }), line(`‖y‖ = **${written(length(y))}**`)] : undefined;
}

/** @type {Maker} */
function answer(scene) {
  const { name } = scene.card;
  const y = scene.steps.get(name)?.row(0);
  const last = scene.steps.get("output.read")?.row(0);
  if (!y) return undefined;
  if (!last) return [strip("y", y)];
  const before = name === "output_mean_norm" ? tr("mean of z_{L}") : "z_{L}^{0}, CLS";
  return [
    ...norm(scene, before, last, "y", y, statistics(scene.steps, name, 0)),
    ...(name === "output_distilled" ? [strip(tr("y of DIST"), scene.steps.get(name)?.row(1) ?? [])] : []),
  ];
}
