// @ts-check
// What is drawn of each step: lists of items, which view.js puts on the page.

import { percent } from "../token_map/maps.js";
import { countOf } from "./drawing.js";
import { attend, length, limitOf, products, softmax, spread, sum, weighted, written } from "./tensors.js";

/** @import { Tensor } from "./tensors.js" */

/**
 * @typedef {object} Item one line of a scene
 * @property {"strip" | "line" | "bars" | "matrix" | "table" | "cut" | "channels" | "patch"} kind
 * @property {string} [label]
 * @property {string} [tone] "query" or "key"
 * @property {ArrayLike<number>} [values]
 * @property {number} [limit]
 * @property {number} [end] how many of the values are drawn yet
 * @property {string} [note]
 * @property {Tensor} [tensor]
 * @property {number} [mark]
 * @property {number} [grown]
 * @property {string[]} [head]
 * @property {string[][]} [rows]
 * @property {number[]} [shares] of the rows of a table, as bars
 * @property {(index: number) => void} [pick]
 * @property {[from: number, count: number]} [part] the head's part of a strip
 *
 * @typedef {object} Scene
 * @property {any} data
 * @property {Map<string, Tensor>} steps
 * @property {Map<string, Tensor>} layer
 * @property {any} card
 * @property {string | null} box
 * @property {number} token @property {number} key @property {number} head
 * @property {number} row of the card's tensor that belongs to the token
 * @property {number} patch in the first grid
 * @property {number} dim the number of a token that is worked out
 * @property {number} t from 0 to 1 while the numbers move
 * @property {(key: number) => void} pickKey
 * @property {(dim: number) => void} pickDim
 */

const WAITING = [{ kind: "line", label: "Loading …" }];
const PARTIAL = [{ kind: "line", label: "This layer is large: click the token, and its numbers are sent." }];

/** @param {string} label @param {ArrayLike<number>} values @param {Partial<Item>} [rest] @returns {Item} */
function strip(label, values, rest = {}) {
  const limit = rest.limit ?? limitOf(values);
  return { kind: "strip", label, values, limit, note: countOf(values, limit), ...rest };
}

/** @param {ArrayLike<number>} from @param {ArrayLike<number>} to @param {number} t */
function between(from, to, t) {
  return Float64Array.from(from, (value, i) => value + t * (to[i] - value));
}

/** @param {string} text @returns {Item} */
function line(text) {
  return { kind: "line", label: text };
}

/** @param {Scene} scene @returns {Item[]} */
export function itemsOf(scene) {
  const { card, box } = scene;
  if (box) return (BOXES[box] ?? PARTS)(scene) ?? WAITING;
  const named = scene.steps.get(card.id);
  return (STEPS[card.name] ?? ((s) => named && tokens(s, named)))(scene) ?? WAITING;
}

/** A whole tensor, and the row of it that belongs to the token.
 * @param {Scene} scene @param {Tensor} tensor @param {string} [label] @returns {Item[]} */
function tokens(scene, tensor, label = "the token") {
  const row = scene.row >= 0 && scene.row < tensor.rows ? tensor.row(scene.row) : null;
  return [
    { kind: "matrix", label: "all tokens", tensor, mark: scene.row },
    ...(row ? [strip(label, row, { tone: "query" })] : []),
  ];
}

/** LayerNorm of one token.
 * @param {Scene} scene @param {string} before @param {ArrayLike<number>} z @param {string} after
 * @param {ArrayLike<number>} normed @param {Record<string, number | ArrayLike<number> | undefined>} parts
 * @returns {Item[]} */
function norm(scene, before, z, after, normed, { mean, deviation, gamma, beta }) {
  const both = Math.max(limitOf(z), limitOf(normed));
  const items = [
    strip(before, z, { tone: "query", limit: both }),
    strip(after, between(z, normed, scene.t), { limit: both, mark: scene.dim % z.length, pick: scene.pickDim }),
  ];
  if (typeof mean !== "number") return items;
  items.push(line(`μ = **${written(mean)}**, σ = **${written(Number(deviation))}**: each z becomes γ (z − μ) / σ + β`));
  if (gamma) items.push(strip("γ − 1", Float64Array.from(/** @type {ArrayLike<number>} */ (gamma), (value) => value - 1)));
  if (beta) items.push(strip("β", /** @type {ArrayLike<number>} */ (beta)));
  const i = scene.dim % z.length;
  const [g, b] = [gamma, beta].map((values) => Number(/** @type {any} */ (values)?.[i]));
  if (gamma && beta)
    items.push(line(`Number ${i + 1}: ${written(g)} · (${written(z[i])} − ${written(mean)}) / ` +
      `${written(Number(deviation))} + ${written(b)} = **${written(normed[i])}**`));
  return items;
}

/** The statistics of a norm for one token. @param {Map<string, Tensor>} of
 * @param {string} name @param {number} row */
function statistics(of, name, row) {
  const at = (/** @type {string} */ part) => of.get(`${name}.${part}`)?.row(0);
  return {
    mean: at("mean")?.[row], deviation: at("deviation")?.[row],
    gamma: at("gamma") ?? undefined, beta: at("beta") ?? undefined,
  };
}

/** @type {Record<string, (scene: Scene) => Item[] | undefined>} */
const STEPS = {
  picture(scene) {
    const picture = scene.steps.get("picture");
    if (!picture) return undefined;
    const [height, width] = picture.shape;
    const { mean, std, grid } = scene.data.facts;
    const [row, col] = [Math.floor(scene.patch / grid[1]), scene.patch % grid[1]];
    const [y, x] = [Math.floor(((row + 0.5) / grid[0]) * height), Math.floor(((col + 0.5) / grid[1]) * width)];
    const value = picture.at(y * width + x, 0);
    const raw = value * std[0] + mean[0];
    return [
      { kind: "channels", tensor: picture, label: "red, green, blue" },
      line(`The red of the pixel at row ${y + 1}, column ${x + 1}: (${written(raw)} − ${written(mean[0])}) / ` +
        `${written(std[0])} = **${written(value)}**`),
      line(`where 0 is black and 1 is full red. Blue in the maps is below 0, red is above.`),
    ];
  },
  patches(scene) {
    const { costs } = scene.data;
    const picture = scene.steps.get("picture");
    if (!picture) return undefined;
    return [
      { kind: scene.data.facts.stem ? "patch" : "cut", tensor: picture, grown: scene.t },
      { kind: "table", head: ["patch side P", "tokens N", "pairs N²", "against here"],
        rows: costs.rows, mark: costs.here, shares: costs.shares },
    ];
  },
  flatten(scene) {
    const flat = scene.steps.get("flatten");
    const row = flat?.row(scene.patch);
    if (!flat || !row) return undefined;
    const { channels } = scene.data.facts;
    const each = row.length / channels;
    const names = channels === 3 ? ["red", "green", "blue"] : [];
    const limit = limitOf(row);
    return [
      { kind: "matrix", label: "all patches", tensor: flat, mark: scene.patch },
      strip("one patch", row, { tone: "query", limit, end: Math.ceil(scene.t * row.length) }),
      ...names.map((name, c) =>
        strip(name, row.subarray(c * each, (c + 1) * each), {
          limit, end: Math.max(0, Math.ceil((scene.t * channels - c) * each)) })),
    ];
  },
  project(scene) {
    const [flat, kernel, made] = ["flatten", "project.kernel", "project"].map((name) => scene.steps.get(name));
    const patch = flat?.row(scene.patch);
    const out = made?.row(scene.patch);
    if (!kernel || !patch || !out) return undefined;
    const dim = scene.dim % kernel.rows;
    const filter = /** @type {Float32Array} */ (kernel.row(dim));
    const bias = scene.steps.get("project.bias")?.row(0)?.[dim] ?? 0;
    const product = products(patch, filter);
    const end = Math.ceil(scene.t * product.length);
    const total = sum(product, end);
    return [
      strip("x_{p}", patch, { tone: "query" }),
      strip(`column ${dim + 1} of E`, filter),
      strip("product", product, { end }),
      line(`Σ = ${written(total)} + b ${written(bias)} = **${written(total + bias)}**, number ${dim + 1} of ` +
        `this patch's ${out.length}. Click another one:`),
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
      { kind: "matrix", label: "all tokens", tensor: made, mark: 0 },
      ...rows,
      ...(patch ? [strip("a patch", patch, { tone: "query" })] : []),
      line(`The first ${names.length === 1 ? "row is" : `${names.length} rows are`} learned and the same for every ` +
        `picture; the others are the patches: ${made.rows} tokens.`),
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
      strip("token", token, { tone: "query", limit }),
      strip("+ E_{pos}", place, { limit }),
      strip("= z_{0}", between(token, after, scene.t), { limit }),
      line(`Lengths: ‖token‖ = ${written(length(token))}, ‖E_{pos}‖ = ${written(length(place))}, ` +
        `‖z_{0}‖ = **${written(length(after))}**`),
      { kind: "matrix", label: "z_{0}, all tokens", tensor: made, mark: scene.row },
    ];
  },
  output(scene) {
    return answer(scene, "output");
  },
  output_distilled(scene) {
    return answer(scene, "output_distilled");
  },
  output_mean_norm(scene) {
    return answer(scene, "output_mean_norm");
  },
  head(scene) {
    const read = scene.steps.get("head.read");
    const [weight, bias] = ["head.weight", "head.bias"].map((name) => scene.steps.get(name));
    const { answers, classes } = scene.data;
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
        strip(heads > 1 ? "y of CLS" : "y", y, { tone: "query" }),
        strip(`weights of ${answers[mark].label}`, row),
        strip("product", product, { end }),
        line(`Σ = ${written(sum(product, end))} + b ${written(b[0])} = **${written(total)}**` +
          (heads > 1 ? `; DIST's head says ${written(2 * answers[mark].logit - total)}, and the mean of both counts`
            : `: the logit of ${answers[mark].label}`)));
    }
    const temperature = `e^{logit} / Σ e^{logits}, over all ${classes}`;
    items.push({ kind: "table", head: ["class", "logit", `softmax: ${temperature}`], mark,
      rows: answers.map((/** @type {any} */ one) => [one.label, written(one.logit), percent(one.share * scene.t)]),
      shares: answers.map((/** @type {any} */ one) => one.share * scene.t), pick: scene.pickDim });
    return items;
  },
  no_head: ended,
  embedding_head: ended,
};

/** Where there are no classes: what the model ends with. @param {Scene} scene */
function ended(scene) {
  const y = [...scene.steps].find(([name]) => /^output(?!\.)/.test(name))?.[1].row(0);
  return y ? [strip("y", y, { end: Math.ceil(scene.t * y.length) }), line(`‖y‖ = **${written(length(y))}**`)] : undefined;
}

/** @param {Scene} scene @param {string} name */
function answer(scene, name) {
  const y = scene.steps.get(name)?.row(0);
  const last = scene.steps.get("output.read")?.row(0);
  if (!y) return undefined;
  if (!last) return [strip("y", y)];
  const before = name === "output_mean_norm" ? "mean of z_{L}" : "z_{L}^{0}, CLS";
  return [
    ...norm(scene, before, last, "y", y, statistics(scene.steps, name, 0)),
    ...(name === "output_distilled" ? [strip("y of DIST", scene.steps.get(name)?.row(1) ?? [])] : []),
  ];
}

/** The row of the token in a tensor of the layer. @param {Scene} scene @param {string} name */
function row(scene, name) {
  return scene.layer.get(name)?.row(scene.token) ?? undefined;
}

/** A plain box: what goes in, what comes out. @param {Scene} scene @param {[string, string][]} named
 * @returns {Item[] | undefined} */
function shown(scene, named) {
  if (!scene.layer.size) return undefined;
  const rows = named.map(([label, name]) => ({ label, values: row(scene, name) }));
  if (rows.some(({ values }) => !values)) return /** @type {Item[]} */ (PARTIAL);
  return rows.map(({ label, values = new Float32Array() }, i) =>
    strip(label, values, i ? { end: Math.ceil(scene.t * values.length) } : { tone: "query" }));
}

/** z + what was made = the stream after. @param {Scene} scene @param {string} before
 * @param {string} after @param {[string, string, string]} labels @returns {Item[] | undefined} */
function added(scene, before, after, labels) {
  if (!scene.layer.size) return undefined;
  const [z, end] = [row(scene, before), row(scene, after)];
  if (!z || !end) return /** @type {Item[]} */ (PARTIAL);
  const made = Float64Array.from(end, (value, i) => value - z[i]);
  const limit = Math.max(limitOf(z), limitOf(end));
  return [
    strip(labels[0], z, { tone: "query", limit }),
    strip(scene.data.facts.opened ? labels[1] : "+ what was made", made, { limit }),
    strip(labels[2], between(z, end, scene.t), { limit }),
    line(`Lengths of this token: ${written(length(z))} before, **${written(length(made))}** is added, ` +
      `${written(length(end))} after.`),
  ];
}

/** @type {Map<string, { of: Tensor, key: string, value: any }>} */
const known = new Map(); // what was worked out last, by what it is: a pointer asks for it again

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
export function attention(scene) {
  const [q, k, bias] = ["queries", "keys", "bias"].map((name) => scene.layer.get(name));
  if (!q || !k) return null;
  const { head, token } = scene;
  return once("shares", q, [head, token], () => attend(q, k, bias, scene.data.facts.scale, head, token));
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
  const biased = scene.layer.has("bias") ? ` + bias ${written(moved)}` : "";
  return [
    strip("q_{i}", asked, { tone: "query", limit }),
    strip("k_{j}", seen, { tone: "key", limit }),
    strip("q_{i} ⊙ k_{j}", product, { end, note: `Σ = ${written(dot)}` }),
    line(`q_{i} · k_{j} = ${written(dot)} → ${scene.data.facts.divide}${biased} = ` +
      `**${written(end < product.length ? dot * scene.data.facts.scale + moved : scores[scene.key], 4)}** → ` +
      `softmax over ${keys} keys = **${percent(shares[scene.key])}**`),
    { kind: "bars", label: "scores", values: scores, mark: scene.key, pick: scene.pickKey, grown: whole ? 1 : scene.t,
      note: `${written(Math.min(...scores))} … ${written(Math.max(...scores))}` },
    { kind: "bars", label: "softmax", values: shares, mark: scene.key, pick: scene.pickKey, grown: whole ? scene.t : 1,
      note: `${percent(Math.min(...shares))} … ${percent(Math.max(...shares))}` },
    line(`The ${keys} scores spread by ${written(wide)} before the division and by ${written(narrow)} after it. Without ` +
      `it the strongest key would take ${percent(without)}, not ${percent(Math.max(...shares))}.`),
  ];
}

/** What stands for boxes without a scene of their own. @param {Scene} scene */
function PARTS(scene) {
  const inside = scene.layer.get(/** @type {string} */ (scene.box));
  return inside ? tokens({ ...scene, row: scene.token }, inside) : undefined;
}

/** @type {Record<string, (scene: Scene) => Item[] | undefined>} */
const BOXES = {
  before(scene) {
    const z = scene.layer.get("before");
    const values = row(scene, "before");
    if (!z || !values) return z ? /** @type {Item[]} */ (PARTIAL) : undefined;
    return [
      { kind: "matrix", label: "all tokens", tensor: z, mark: scene.token },
      strip("this token", values, { tone: "query" }),
      line(`Its length is ‖z‖ = **${written(length(values))}**.`),
    ];
  },
  norm1: (scene) => normed(scene, "before", "z_{ℓ−1}", "norm1", "LN(z_{ℓ−1})"),
  norm2: (scene) => normed(scene, "after_attention", "z′_{ℓ}", "norm2", "LN(z′_{ℓ})"),
  qkv(scene) {
    const three = ["queries", "keys", "values"].map((name) => scene.layer.get(name));
    if (three.some((one) => !one)) return undefined;
    const rows = three.map((one) => /** @type {Tensor} */ (one).row(
      scene.head * /** @type {Tensor} */ (one).shape[1] + scene.token) ?? new Float32Array());
    const input = row(scene, "norm1");
    return [
      ...(input ? [strip("LN(z_{ℓ−1})", input, { tone: "query" })] : []),
      ...["q", "k", "v"].map((name, i) =>
        strip(`${name}, head ${scene.head + 1}`, rows[i], { end: Math.ceil(scene.t * rows[i].length) })),
      line(`Head ${scene.head + 1} of ${scene.data.shape.heads}: ${rows[0].length} of the ` +
        `${rows[0].length * scene.data.shape.heads} numbers of each, all of this one token.`),
    ];
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
    const five = top.reduce((all, j) => all + shares[j], 0);
    return [
      ...top.map((j) => strip(`v of ${scene.data.nameOf(j)}`, v.row(scene.head * v.shape[1] + j) ?? [], {
        limit, tone: j === scene.key ? "key" : undefined, note: `× ${percent(shares[j])}` })),
      line(`These five keys give ${percent(five)}; ${end < order.length ? `${end} of ` : "all "}${order.length} keys together:`),
      strip("A v", total, { tone: "query" }),
    ];
  },
  concatenated(scene) {
    const items = shown(scene, [["heads side by side", "concatenated"]]);
    const width = scene.layer.get("queries")?.width ?? 1;
    return items?.map((item) => (item.kind === "strip" ? { ...item, part: [scene.head * width, width] } : item));
  },
  heads_norm: (scene) => shown(scene, [["side by side", "concatenated"], ["normalised", "heads_norm"]]),
  projected: (scene) => shown(scene, [["heads side by side", "concatenated"], ["times U_{msa}", "projected"]]),
  layer_scale1: (scene) => scaled(scene, "projected", "layer_scale1"),
  layer_scale2: (scene) => scaled(scene, "mlp", "layer_scale2"),
  after_attention: (scene) =>
    added(scene, "before", "after_attention", ["z_{ℓ−1}", "+ MSA", "= z′_{ℓ}"]),
  hidden: (scene) => shown(scene, [["LN(z′_{ℓ})", "norm2"], ["hidden units", "hidden"]]),
  activated(scene) {
    const [before, after] = [row(scene, "hidden"), row(scene, "activated")];
    if (!scene.layer.size) return undefined;
    if (!before || !after) return /** @type {Item[]} */ (PARTIAL);
    const alike = before.length === after.length;
    const limit = limitOf(before);
    const low = before.filter((value) => value < 0).length / before.length;
    return [
      strip("before", before, { tone: "query", limit }),
      strip("after", alike ? between(before, after, scene.t) : after, alike ? { limit } : {}),
      line(`Of the ${before.length} numbers ${percent(low)} are negative before it.`),
    ];
  },
  mlp: (scene) => shown(scene, [["hidden units", "activated"], ["MLP: out", "mlp"]]),
  after: (scene) => added(scene, "after_attention", "after", ["z′_{ℓ}", "+ MLP", "= z_{ℓ}"]),
};

/** @param {Scene} scene @param {string} before @param {string} label @param {string} name
 * @param {string} after */
function normed(scene, before, label, name, after) {
  if (!scene.layer.size) return undefined;
  const [z, made] = [row(scene, before), row(scene, name)];
  if (!z || !made) return /** @type {Item[]} */ (PARTIAL);
  return norm(scene, label, z, after, made, statistics(scene.layer, name, scene.token));
}

/** @param {Scene} scene @param {string} before @param {string} name */
function scaled(scene, before, name) {
  const items = shown(scene, [["before", before], ["times γ", name]]);
  const gamma = scene.layer.get(`${name}.gamma`)?.row(0);
  return items && gamma ? [items[0], strip("γ", gamma), ...items.slice(1)] : items;
}
