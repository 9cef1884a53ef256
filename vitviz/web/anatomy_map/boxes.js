// @ts-check
// The scene of each box of the opened encoder layer.

import { percent } from "../token_map/maps.js";
import { between, line, matrix, norm, partial, statistics, strip, tokens } from "./scenes.js";
import { attend, length, limitOf, products, softmax, spread, sum, weighted, written } from "./tensors.js";
import { tr } from "../token_map/strings.js";

/** @import { Item, Maker, Scene } from "./scenes.js" */
/** @import { Tensor } from "./tensors.js" */

/** The row of the token in a tensor of the layer. @param {Scene} scene @param {string} name */
function row(scene, name) {
  return scene.layer.get(name)?.row(scene.token) ?? undefined;
}

/** A plain box: its input and its output. @param {Scene} scene @param {[string, string][]} named
 * @returns {Item[] | undefined} */
function shown(scene, named) {
  if (!scene.layer.size) return undefined;
  const rows = named.map(([label, name]) => ({ label, values: row(scene, name) }));
  if (rows.some(({ values }) => !values)) return partial(scene);
  return rows.map(({ label, values = new Float32Array() }, i) =>
    strip(label, values, i ? { end: Math.ceil(scene.t * values.length) } : { tone: "query" }));
}

/** z + the output of a branch = the stream after it. @param {Scene} scene @param {string} before
 * @param {string[]} branch the boxes that may hold the output
 * @param {string} after @param {[string, string, string]} labels @returns {Item[] | undefined} */
function added(scene, before, branch, after, labels) {
  if (!scene.layer.size) return undefined;
  const [z, end] = [row(scene, before), row(scene, after)];
  if (!z || !end) return partial(scene);
  const [last] = branch.flatMap((name) => row(scene, name) ?? []);
  const made = last ?? Float64Array.from(end, (value, i) => value - z[i]);
  const limit = Math.max(limitOf(z), limitOf(end));
  return [
    strip(labels[0], z, { tone: "query", limit }),
    strip(scene.data.facts.opened ? labels[1] : tr("+ what was made"), made, { limit }),
    strip(labels[2], between(z, end, scene.t), { limit }),
    line(tr("Lengths of this token: {before} before, **{made}** is added, {after} after.",
      { before: written(length(z)), made: written(length(made)), after: written(length(end)) })),
  ];
}

/** @type {Map<string, { of: Tensor, key: string, value: any }>} */
const known = new Map(); // the last results by name: a moving pointer asks for them again

/** @template T @param {string} name @param {Tensor} of @param {unknown[]} asked @param {() => T} make @returns {T} */
function once(name, of, asked, make) {
  const last = known.get(name);
  const key = asked.join();
  if (last?.of === of && last.key === key) return last.value;
  const value = make();
  known.set(name, { of, key, value });
  return value;
}

/** @param {Scene} scene */
function attention(scene) {
  const [q, k, bias] = ["queries", "keys", "bias"].map((name) => scene.layer.get(name));
  if (!q || !k) return null;
  const { head, token } = scene;
  return once("shares", q, [head, token], () => attend(q, k, bias, scene.data.facts.scale, head, token));
}

const READABLE = 24; // tokens whose whole matrix is written in numbers

/** All queries against all keys in numbers, where they are few and have arrived: the scores, or their softmax.
 * @param {Scene} scene @param {"scores" | "shares"} name @returns {Item | null} */
function grid(scene, name) {
  const [q, k, bias] = ["queries", "keys", "bias"].map((box) => scene.layer.get(box));
  if (!q || !k || q.only !== null || k.only !== null || Math.max(q.shape[1], k.shape[1]) > READABLE) return null;
  const { head } = scene;
  const values = once(`grid ${name}`, q, [head], () => Array.from({ length: q.shape[1] },
    (_, query) => [...attend(q, k, bias, scene.data.facts.scale, head, query)[name]]).flat());
  return { kind: "grid", label: name === "shares" ? tr("A, head {head}", { head: head + 1 }) : tr("scores, head {head}", { head: head + 1 }),
    values, cols: k.shape[1], mark: scene.token, key: scene.key, shares: name === "shares",
    note: name === "shares" ? tr("%, rows: queries, columns: keys") : tr("rows: queries, columns: keys"),
    pick: (index) => scene.pickPair(Math.floor(index / k.shape[1]), index % k.shape[1]) };
}

/** The patch that gets the most attention, as a key. @param {Scene} scene @param {number} prefix tokens in front */
export function strongest(scene, prefix) {
  const shares = attention(scene)?.shares.subarray(prefix) ?? [0];
  return prefix + shares.indexOf(Math.max(...shares));
}

/** The scores of a query with every key, and their softmax. @param {Scene} scene @param {boolean} whole
 * @returns {Item[] | undefined} */
function worked(scene, whole) {
  const [q, k] = [scene.layer.get("queries"), scene.layer.get("keys")];
  const found = attention(scene);
  if (!q || !k || !found) return undefined;
  const keys = k.shape[1];
  const asked = /** @type {Float32Array} */ (q.row(scene.head * q.shape[1] + scene.token));
  const seen = /** @type {Float32Array} */ (k.row(scene.head * keys + scene.key));
  const product = products(asked, seen);
  const end = whole ? product.length : Math.ceil(scene.t * product.length);
  const { dots, scores, shares } = found;
  const dot = sum(product, end);
  const limit = Math.max(limitOf(asked), limitOf(seen));
  const moved = scores[scene.key] - dots[scene.key] * scene.data.facts.scale;
  const [wide, narrow] = [spread(dots).deviation, spread(scores).deviation];
  const undivided = dots.map((value, j) => value + scores[j] - value * scene.data.facts.scale);
  const without = Math.max(...softmax(undivided));
  const biased = scene.layer.has("bias") ? tr(" + bias {bias}", { bias: written(moved) }) : "";
  const all = grid(scene, whole ? "shares" : "scores");
  /** @type {Item[]} */
  const bars = [
    { kind: "bars", label: tr("scores"), values: scores, mark: scene.key, pick: scene.pickKey, grown: whole ? 1 : scene.t,
      note: `${written(Math.min(...scores))} … ${written(Math.max(...scores))}` },
    { kind: "bars", label: tr("softmax"), values: shares, mark: scene.key, pick: scene.pickKey, grown: whole ? scene.t : 1,
      note: `${percent(Math.min(...shares))} … ${percent(Math.max(...shares))}` },
  ];
  return [
    ...(all ? [all] : []),
    strip("q_{i}", asked, { tone: "query", limit }),
    strip("k_{j}", seen, { tone: "key", limit }),
    strip("q_{i} ⊙ k_{j}", product, { end, note: `Σ = ${written(dot)}` }),
    line(`q_{i} · k_{j} = ${written(dot)} → ${scene.data.facts.divide}${biased} = ` +
      `**${written(end < product.length ? dot * scene.data.facts.scale + moved : scores[scene.key], 4)}** → ` +
      tr("softmax over {keys} keys = **{share}**", { keys, share: percent(shares[scene.key]) })),
    ...(all ? [] : bars),
    line(tr("The {keys} scores spread by {wide} before the division and by {narrow} after it. Without it the strongest key would take {without}, not {most}.",
      { keys, wide: written(wide), narrow: written(narrow), without: percent(without), most: percent(Math.max(...shares)) })),
  ];
}

/** The scene of boxes without one of their own. @type {Maker} */
export function part(scene) {
  const inside = scene.layer.get(/** @type {string} */ (scene.box));
  return inside ? tokens({ ...scene, row: scene.token }, inside) : undefined;
}

/** @type {Record<string, Maker>} */
export const BOXES = {
  before(scene) {
    const z = scene.layer.get("before");
    const values = row(scene, "before");
    if (!z || !values) return z ? partial(scene) : undefined;
    return [
      ...matrix(tr("all tokens"), z, scene.token),
      strip(tr("this token"), values, { tone: "query" }),
      line(tr("Its length is ‖z‖ = **{length}**.", { length: written(length(values)) })),
    ];
  },
  norm1: (scene) => normed(scene, "before", "z_{ℓ−1}", "norm1"),
  norm2: (scene) => normed(scene, "after_attention", "z′_{ℓ}", "norm2"),
  qkv(scene) {
    const three = ["queries", "keys", "values"].map((name) =>
      scene.layer.get(`unrotated_${name}`) ?? scene.layer.get(name));
    if (three.some((one) => !one)) return undefined;
    const rows = three.map((one) => /** @type {Tensor} */ (one).row(
      scene.head * /** @type {Tensor} */ (one).shape[1] + scene.token) ?? new Float32Array());
    const input = row(scene, "norm1");
    return [
      ...(input ? [strip(after(scene, "norm1", "z_{ℓ−1}"), input, { tone: "query" })] : []),
      ...["q", "k", "v"].map((name, i) =>
        strip(tr("{name}, head {head}", { name, head: scene.head + 1 }), rows[i], { end: Math.ceil(scene.t * rows[i].length) })),
      line(tr("Head {head} of {heads}: {own} of the {all} numbers of each, all of this one token.", {
        head: scene.head + 1, heads: scene.data.shape.heads, own: rows[0].length,
        all: rows[0].length * scene.data.shape.heads })),
    ];
  },
  rotated(scene) {
    const items = ["queries", "keys"].flatMap((name, i) => {
      const [before, after] = [`unrotated_${name}`, name].map((each) => {
        const tensor = scene.layer.get(each);
        return tensor?.row(scene.head * tensor.shape[1] + scene.token);
      });
      if (!before || !after) return [];
      const [letter, limit] = [["q", "k"][i], limitOf(before)];
      return [
        strip(tr("{name} before", { name: letter }), before, { limit, tone: i ? "key" : "query" }),
        strip(tr("{name} rotated", { name: letter }), between(before, after, scene.t), { limit,
          note: `‖${letter}‖ = ${written(length(after))}` }),
      ];
    });
    return items.length ? items : undefined;
  },
  scores: (scene) => worked(scene, false),
  attention: (scene) => worked(scene, true),
  heads(scene) {
    const v = scene.layer.get("values");
    const found = attention(scene);
    if (!v || !found) return undefined;
    const { shares } = found;
    const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]);
    const end = Math.max(1, Math.ceil(scene.t * order.length));
    const top = order.slice(0, 5);
    const limit = limitOf(v.row(scene.head * v.shape[1] + top[0]) ?? []);
    const total = once("sum", v, [scene.head, scene.token, end], () => weighted(v, scene.head, shares, order, end));
    const most = top.reduce((all, j) => all + shares[j], 0);
    return [
      ...top.map((j) => strip(tr("v of {name}", { name: scene.data.nameOf(j) }), v.row(scene.head * v.shape[1] + j) ?? [], {
        limit, tone: j === scene.key ? "key" : undefined, note: `× ${percent(shares[j])}` })),
      line(end < order.length
        ? tr("These {count} keys give {most}; {end} of {keys} keys together:", { count: top.length, most: percent(most), end, keys: order.length })
        : tr("These {count} keys give {most}; all {keys} keys together:", { count: top.length, most: percent(most), keys: order.length })),
      strip("A v", total, { tone: "query" }),
    ];
  },
  concatenated(scene) {
    const items = shown(scene, [[tr("heads side by side"), "concatenated"]]);
    const width = scene.layer.get("queries")?.width ?? 1;
    return items?.map((item) => (item.kind === "strip" ? { ...item, part: [scene.head * width, width] } : item));
  },
  heads_norm: (scene) => shown(scene, [[tr("side by side"), "concatenated"], [tr("normalised"), "heads_norm"]]),
  projected: (scene) => shown(scene, [[tr("heads side by side"), "concatenated"], [tr("times U_{msa}"), "projected"]]),
  layer_scale1: (scene) => scaled(scene, "projected", "layer_scale1"),
  layer_scale2: (scene) => scaled(scene, "mlp", "layer_scale2"),
  after_attention: (scene) =>
    added(scene, "before", ["layer_scale1", "projected"], "after_attention", ["z_{ℓ−1}", "+ MSA", "= z′_{ℓ}"]),
  hidden: (scene) => shown(scene, [[after(scene, "norm2", "z′_{ℓ}"), "norm2"], [tr("hidden units"), "hidden"]]),
  activated(scene) {
    const [before, after] = [row(scene, "hidden"), row(scene, "activated")];
    if (!scene.layer.size) return undefined;
    if (!before || !after) return partial(scene);
    const alike = before.length === after.length;
    const limit = limitOf(before);
    const low = before.filter((value) => value < 0).length / before.length;
    return [
      strip(tr("before"), before, { tone: "query", limit }),
      strip(tr("after"), alike ? between(before, after, scene.t) : after, alike ? { limit } : {}),
      line(tr("Of the {count} numbers {share} are negative before it.", { count: before.length, share: percent(low) })),
    ];
  },
  mlp: (scene) => shown(scene, [[tr("hidden units"), "activated"], [tr("MLP: out"), "mlp"]]),
  after: (scene) => added(scene, "after_attention", ["layer_scale2", "mlp"], "after", ["z′_{ℓ}", "+ MLP", "= z_{ℓ}"]),
};

/** What is written for a normed z: "LN(z)". @param {Scene} scene @param {string} name @param {string} label */
function after(scene, name, label) {
  return `${scene.data.boxes.find((/** @type {{ id: string }} */ { id }) => id === name)?.title}(${label})`;
}

/** @param {Scene} scene @param {string} before @param {string} label @param {string} name */
function normed(scene, before, label, name) {
  if (!scene.layer.size) return undefined;
  const [z, made] = [row(scene, before), row(scene, name)];
  if (!z || !made) return partial(scene);
  return norm(scene, label, z, after(scene, name, label), made, statistics(scene.layer, name, scene.token));
}

/** @param {Scene} scene @param {string} before @param {string} name */
function scaled(scene, before, name) {
  const items = shown(scene, [[tr("before"), before], [tr("times γ"), name]]);
  const gamma = scene.layer.get(`${name}.gamma`)?.row(0);
  return items && gamma ? [items[0], strip("γ", gamma), ...items.slice(1)] : items;
}
