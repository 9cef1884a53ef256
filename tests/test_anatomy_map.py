"""What Anatomy's component shows is what the library computes: every number, in node."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import own_model, own_module, picture, watched
from node import TESTS, evaluate
from numpy.testing import assert_allclose
from scipy.special import softmax
from test_anatomy import MAKES, seen

from vitviz import Activations, capture
from vitviz.common.language import use_language
from vitviz.model import Model, Preprocessing
from vitviz.text.encoder_layer import NAMES
from vitviz.web import anatomy
from vitviz.web.anatomy_map import (
    Anatomy,
    compute_anatomy,
    layer_message,
    pack_numbers,
    steps_message,
    token_name,
)
from vitviz.web.anatomy_map.message import build_boxes, build_cards
from vitviz.web.report.components import anatomy_view
from vitviz.zoo import toy_model

SCENES = str(TESTS / "scenes")
MODELS = ("own, distilled", "relative positions", "BEiT", "EVA", "timm, DINOv2")
LAYER = 1
READABLE = 24  # tokens
HALF = 2.0**-11  # of a number in half precision, relative


@dataclass
class Shown:
    """What the component shows of one stop: its items, in order."""

    items: list[dict[str, Any]]

    def of(self, kind: str) -> "list[dict[str, Any]]":
        return [item for item in self.items if item["kind"] == kind]

    def strips(self, *wanted: np.ndarray, kind: str = "strip") -> None:
        """Every strip has these numbers, as near as half precision is."""
        found = self.of(kind)
        assert len(found) == len(wanted), [item["label"] for item in found]
        for item, values in zip(found, wanted, strict=True):
            bound = 3 * HALF * float(np.abs(values).max()) + 1e-7
            assert_allclose(item["values"], values, atol=bound, err_msg=item["label"])

    def matrix(self, wanted: np.ndarray) -> None:
        (found,) = self.of("matrix")
        rows = wanted.reshape(-1, wanted.shape[-1])
        bound = HALF * float(np.abs(rows).max()) + 1e-7
        assert_allclose(found["rowsOf"], rows, atol=bound)

    def says(self, line: int, *wanted: float) -> None:
        assert_written(self.of("line")[line]["label"], *wanted)


def assert_written(text: str, *wanted: float) -> None:
    """The numbers of a text, per cent as such, are these in their last digit."""
    plain = re.sub(r"[_^]\{[^}]*\}", "", text).replace("−", "-")
    found = re.findall(r"(?<![\w.])(-?\d+(?:\.(\d+))?)", plain)
    assert len(found) == len(wanted), text
    for (number, decimals), value in zip(found, wanted, strict=True):
        bound = 0.501 * 10 ** -len(decimals) + 3 * HALF * abs(value)
        assert abs(float(number) - value) <= bound, f"{number} is not {value}: {text}"


@dataclass(frozen=True)
class Case:
    of: Anatomy

    @property
    def acts(self) -> Activations:
        return self.of.acts

    def box(self, name: str) -> np.ndarray:
        (found,) = [box for box in self.of.boxes if box.name == name]
        assert found.values is not None
        return found.values

    def step(self, name: str) -> np.ndarray:
        (found,) = [box for box in self.of.steps if box.name == name]
        assert found.values is not None
        return found.values

    def show(self, *states: dict[str, Any], max_bytes: int = 10**9) -> list[Shown]:
        """What the browser shows of each of the states, of the numbers that it is sent."""
        sent = [
            steps_message(self.of, "steps", "", max_bytes),
            layer_message(self.of, "layer", max_bytes),
        ]
        stacks = [
            {name: part if name == "stack" else part.tolist() for name, part in one.items()}
            for one in sent
        ]
        view = anatomy_view(self.of, "x", 0, sent[1], layers=[LAYER], partial="not here")
        chosen = {"head": 0, "query": -1, "key": -1, "dim": 0}
        found = evaluate(
            "itemsShown(view, stacks, states)",
            [SCENES],
            view=view,
            stacks=stacks,
            states=[chosen | state for state in states],
        )
        return [Shown(items) for items in found]


@cache
def case(name: str) -> Case:
    """A picture that is not square, in layer 2 of a model."""
    model, acts, *_ = seen(name)
    return Case(compute_anatomy(model, picture(), acts, LAYER, None))


def each_choice(one: Case) -> Iterator[dict[str, int]]:
    """A patch and the first token, each under the first and the last head."""
    prefix, (_, cols) = len(one.of.layer_info.prefix), one.of.layer_info.query_grid
    for query, key in ((prefix + 2 * cols + 4, prefix + 3), (0, prefix + cols + 2)):
        for head in (0, one.of.layer_info.num_heads - 1):
            yield {"query": query, "key": key, "head": head, "dim": 7}


def shown_at(step: str, name: str) -> "Iterator[tuple[Case, dict[str, int], Shown]]":
    one = case(name)
    states = [*each_choice(one)]
    for state, found in zip(
        states, one.show(*({**state, "step": step} for state in states)), strict=True
    ):
        yield one, state, found


def norm(values: np.ndarray) -> float:
    return float(np.sqrt((values.astype(float) ** 2).sum()))


# --- the layer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_stream_before_a_layer_and_its_length(name: str) -> None:
    for one, state, shown in shown_at("before", name):
        tokens = one.acts.tokens(LAYER)
        shown.matrix(tokens)
        shown.strips(tokens[state["query"]])
        shown.says(0, norm(tokens[state["query"]]))


@pytest.mark.parametrize(("box", "before"), [("norm1", "before"), ("norm2", "after_attention")])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_norm_is_worked_out_with_the_deviation_of_the_population(
    name: str, box: str, before: str
) -> None:
    block: Any = case(name).of.model.sites[LAYER].block
    module = getattr(block, box)
    gamma, beta = (values.detach().numpy() for values in (module.weight, module.bias))
    for one, state, shown in shown_at(box, name):
        z, made, i = one.box(before)[state["query"]], one.box(box)[state["query"]], state["dim"]
        mean, deviation = z.mean(), np.sqrt(z.var(ddof=0) + module.eps)
        assert_allclose(made, gamma * (z - mean) / deviation + beta, rtol=1e-3, atol=1e-4)
        shown.strips(z, made, gamma - 1, beta)
        shown.says(0, mean, deviation)
        shown.says(1, i + 1, gamma[i], z[i], mean, deviation, beta[i], made[i])


@pytest.mark.parametrize("name", MODELS)
def test_queries_keys_and_values_are_those_of_the_chosen_head(name: str) -> None:
    for one, state, shown in shown_at("qkv", name):
        token, head = state["query"], state["head"]
        rotated = any(box.name == "unrotated_keys" for box in one.of.boxes)
        names = ["unrotated_queries", "unrotated_keys"] if rotated else ["queries", "keys"]
        three = [one.box(called)[head, token] for called in (*names, "values")]
        shown.strips(one.box("norm1")[token], *three)
        labels = [item["label"] for item in shown.of("strip")[1:]]
        assert labels == [f"{letter}, head {head + 1}" for letter in "qkv"]
        heads, width = one.of.layer_info.num_heads, len(three[0])
        shown.says(0, head + 1, heads, width, heads * width)


def test_a_rotation_is_shown_with_both_lengths() -> None:
    for one, state, shown in shown_at("rotated", "EVA"):
        at = state["head"], state["query"]
        wanted = [
            f"{turned}{name}" for name in ("queries", "keys") for turned in ("unrotated_", "")
        ]
        shown.strips(*(one.box(called)[at] for called in wanted))
        for item, called in zip(shown.of("strip")[1::2], ("queries", "keys"), strict=True):
            assert_written(item["note"], norm(one.box(called)[at]))


@pytest.mark.parametrize("box", ["scores", "attention"])
@pytest.mark.parametrize("name", MODELS)
def test_scores_have_their_scale_and_bias_and_their_softmax_is_the_attention(
    name: str, box: str
) -> None:
    for one, state, shown in shown_at(box, name):
        head, query, key = state["head"], state["query"], state["key"]
        products, scores = (both[query] for both in anatomy.head_scores(one.acts, LAYER, head))
        shares = one.acts.attention(LAYER)[head, query]
        scale, bias = one.acts.score_terms(LAYER)
        q, k = one.acts.queries(LAYER)[head, query], one.acts.keys(LAYER)[head, key]
        shown.strips(q, k, q * k)
        if max(one.acts.attention(LAYER).shape[1:]) <= READABLE:  # the whole matrix in numbers
            (grid,) = shown.of("grid")
            whole = one.acts.attention(LAYER)[head]
            if box == "scores":
                whole = anatomy.head_scores(one.acts, LAYER, head)[1]
            cells = np.reshape(grid["values"], (-1, grid["cols"]))
            assert_allclose(cells, whole, atol=6 * HALF * float(np.abs(whole).max()) + 1e-7)
            assert (grid["mark"], grid["key"]) == (query, key)
        else:
            shown.strips(scores, shares, kind="bars")
            assert [item["mark"] for item in shown.of("bars")] == [key, key]
            for item, values in zip(shown.of("bars"), (scores, 100 * shares), strict=True):
                assert_written(item["note"], values.min(), values.max())
        plain = np.isclose(scale, len(q) ** -0.5)
        added = [] if bias is None else [bias[head, query, key]]
        assert (bias is not None) == (name in ("BEiT", "relative positions"))
        shown.says(
            0,
            products[key],
            len(q) if plain else scale,
            *added,
            scores[key],
            len(shares),
            100 * shares[key],
        )
        undivided = softmax(products + (0 if bias is None else bias[head, query]))
        spreads = products.std(ddof=0), scores.std(ddof=0)
        shown.says(1, len(shares), *spreads, 100 * undivided.max(), 100 * shares.max())


def test_without_a_key_the_patch_with_the_largest_share_is_one() -> None:
    one = case("own, distilled")
    (shown,) = one.show({"step": "scores", "query": 5, "head": 3})
    shares = one.acts.attention(LAYER)[3, 5]
    assert shown.of("bars")[0]["mark"] == 2 + int(shares[2:].argmax())


@pytest.mark.parametrize("name", MODELS)
def test_a_head_gives_the_sum_of_the_values_by_their_shares(name: str) -> None:
    for one, state, shown in shown_at("heads", name):
        head, query = state["head"], state["query"]
        shares, v = one.acts.attention(LAYER)[head, query], one.acts.values(LAYER)[head]
        top = np.argsort(-shares, kind="stable")[:5]
        shown.strips(*v[top], one.box("heads")[head, query])
        for item, key in zip(shown.of("strip"), top, strict=False):
            assert_written(item["note"], 100 * shares[key])
        shown.says(0, 5, 100 * shares[top].sum(), len(shares))


def test_of_fewer_than_five_keys_all_are_counted() -> None:
    model = own_model(class_token=False, image_size=8)  # 2 x 2 patches
    acts = capture(model, picture())
    one = Case(compute_anatomy(model, picture(), acts, LAYER, None))
    (shown,) = one.show({"query": 1, "key": 0, "head": 0, "dim": 7, "step": "heads"})
    shown.says(0, 4, 100, 4)


@pytest.mark.parametrize("name", MODELS)
def test_the_other_boxes_are_the_token_before_and_after(name: str) -> None:
    boxes = {box.name for box in case(name).of.boxes}
    for one, state, shown in shown_at("concatenated", name):
        shown.strips(one.box("concatenated")[state["query"]])
        width = one.box("queries").shape[-1]
        assert shown.items[0]["part"] == [state["head"] * width, width]
    ways = {
        "projected": ("concatenated", "projected"),
        "hidden": ("norm2", "hidden"),
        "activated": ("hidden", "activated"),
        "mlp": ("activated", "mlp"),
        "heads_norm": ("concatenated", "heads_norm"),
    }
    for box in ways.keys() & boxes:
        for one, state, shown in shown_at(box, name):
            before, after = (one.box(called)[state["query"]] for called in ways[box])
            shown.strips(before, after)
            if box == "activated":
                shown.says(0, len(before), 100 * (before < 0).mean())
    for number, box in (("1", "projected"), ("2", "mlp")):
        if f"layer_scale{number}" in boxes:
            for one, state, shown in shown_at(f"layer_scale{number}", name):
                before, after = (
                    one.box(called)[state["query"]] for called in (box, f"layer_scale{number}")
                )
                (gamma,) = [
                    b.parts["gamma"] for b in one.of.boxes if b.name == f"layer_scale{number}"
                ]
                shown.strips(before, gamma, after)


@pytest.mark.parametrize(
    ("box", "before"), [("after_attention", "before"), ("after", "after_attention")]
)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_added_and_the_lengths_of_the_token(name: str, box: str, before: str) -> None:
    for one, state, shown in shown_at(box, name):
        start, end = (one.box(called)[state["query"]] for called in (before, box))
        shown.strips(start, end - start, end)
        shown.says(0, norm(start), norm(end - start), norm(end))


# --- the steps -----------------------------------------------------------------------------------


def patch_of(one: Case, state: dict[str, int]) -> int:
    """The patch that is followed; that in the middle of the grid stands for a prefix token."""
    rows, cols = one.acts.grid
    patch = state["query"] - len(one.of.layer_info.prefix)
    return patch if patch >= 0 else rows // 2 * cols + cols // 2


@pytest.mark.parametrize("name", MODELS)
def test_a_pixel_of_the_picture_is_the_one_in_the_middle_of_the_patch(name: str) -> None:
    for one, state, shown in shown_at("picture", name):
        values, (rows, cols) = one.step("picture"), one.acts.grid
        row, col = divmod(patch_of(one, state), cols)
        height, width = values.shape[0] // rows, values.shape[1] // cols
        y, x = row * height + height // 2, col * width + width // 2
        mean, std = one.of.model.preprocess.mean[0], one.of.model.preprocess.std[0]
        value = values[y, x, 0]
        shown.says(0, y + 1, x + 1, value * std + mean, mean, std, value)
        (channels,) = shown.of("channels")
        assert_allclose(channels["rowsOf"], values.reshape(-1, 3), atol=2 * HALF)


def blue_first_or_grey(kind: str) -> Model:
    """A model whose first channel is blue, or the only one; the input is 64 x 96."""
    module = timm.create_model("test_vit", in_chans=1 if kind == "grey" else 3, img_size=(64, 96))
    rule = Preprocessing(
        input_size=(64, 96),
        mean=(0.4,) if kind == "grey" else (0.3, 0.4, 0.5),
        std=(0.2,) if kind == "grey" else (0.3, 0.2, 0.25),
        channel_order="RGB" if kind == "grey" else "BGR",
    )
    return watched(module.eval(), (64, 96), preprocessing=rule)


@pytest.mark.parametrize("kind", ["blue first", "grey"])
def test_colours_of_other_inputs_are_those_of_the_picture(kind: str) -> None:
    model = blue_first_or_grey(kind)
    rule, red = model.preprocess, 0 if kind == "grey" else 2
    one = Case(compute_anatomy(model, picture(), capture(model, picture()), LAYER, None))
    values = one.step("picture")
    shown, flat = one.show({"step": "picture"}, {"step": "flatten"})
    rows, cols = values.shape[0] // 4, values.shape[1] // 6
    y, x = 2 * rows + rows // 2, 3 * cols + cols // 2
    mean, std, value = rule.mean[red], rule.std[red], values[y, x, red]
    shown.says(0, y + 1, x + 1, value * std + mean, mean, std, value)
    patch = one.step("flatten")[2 * 6 + 3]
    colours = [] if kind == "grey" else np.split(patch, 3)[::-1]
    flat.strips(patch, *colours)


@pytest.mark.parametrize("name", MODELS)
def test_a_patch_is_flattened_and_projected(name: str) -> None:
    flat, made = case(name).step("flatten"), case(name).step("project")
    (parts,) = [box.parts for box in case(name).of.steps if box.name == "project"]
    for one, state, shown in shown_at("flatten", name):
        patch = patch_of(one, state)
        assert shown.of("matrix")[0]["mark"] == patch
        shown.matrix(flat)
        shown.strips(flat[patch], *np.split(flat[patch], 3))
    for one, state, shown in shown_at("project", name):
        patch, i = patch_of(one, state), state["dim"]
        column = parts["kernel"][i]
        shown.strips(flat[patch], column, flat[patch] * column, made[patch])
        product, bias = flat[patch] @ column, parts["bias"][i]
        shown.says(0, product, bias, made[patch, i], i + 1, made.shape[1])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "relative positions"])
def test_tokens_are_put_in_front_and_positions_added(name: str) -> None:
    steps = {box.name: box for box in case(name).of.steps}
    for one, state, shown in shown_at("prefix", name):
        after, own = one.step("prefix"), steps["prefix"].parts["tokens"]
        shown.matrix(after)
        shown.strips(*own, after[len(own) + patch_of(one, state)])
    for one, state, shown in shown_at("positions", name) if "positions" in steps else ():
        after, table = one.step("positions"), steps["positions"].parts["table"]
        in_front = len(after) - math.prod(one.acts.grid)  # of this step
        row = state["query"] if state["query"] < in_front else in_front + patch_of(one, state)
        token, place = after[row] - table[row], table[row]
        shown.matrix(after)
        shown.strips(token, place, after[row])
        shown.says(0, norm(token), norm(place), norm(after[row]))


@pytest.mark.parametrize("name", MODELS)
def test_the_encoder_ends_in_the_last_tokens(name: str) -> None:
    one = case(name)
    acts = one.acts
    for state in each_choice(one):
        (shown,) = one.show({**state, "frame": -1, "step": "encoder"})  # with no layer opened
        shown.matrix(acts.tokens(acts.depth))
        shown.strips(acts.tokens(acts.depth)[state["query"]])


@pytest.mark.parametrize("name", MODELS)
def test_the_answer_is_worked_out(name: str) -> None:
    one, i = case(name), 3
    acts, (output, head) = one.acts, one.of.steps[-2:]
    logits, probabilities = acts.logits, acts.probabilities
    assert logits is not None
    assert probabilities is not None
    y = np.atleast_2d(one.step(output.name))
    last, prefix = acts.tokens(acts.depth), len(one.of.layer_info.prefix)
    before = last[prefix:].mean(axis=0) if output.name == "output_mean_norm" else last[0]
    ended, answered = one.show({"step": output.name, "dim": i}, {"step": "head", "dim": i})
    mean, deviation = before.mean(), np.sqrt(before.var(ddof=0) + 1e-6)
    gamma, beta = output.parts["gamma"], output.parts["beta"]
    ended.strips(before, y[0], gamma - 1, beta, *y[1:])
    ended.says(0, mean, deviation)
    ended.says(1, i + 1, gamma[i], before[i], mean, deviation, beta[i], y[0, i])

    best = np.argsort(-probabilities, kind="stable")[:5]
    weight, bias = (head.parts[part][best[i]] for part in ("weight", "bias"))
    answered.strips(y[0], weight[0], y[0] * weight[0])
    product = float(y[0] @ weight[0])
    other = [] if len(y) == 1 else [2 * logits[best[i]] - product - bias[0]]
    said = answered.of("line")[0]["label"].partition(": the logit of")[0]
    assert_written(said, product, bias[0], product + bias[0], *other)
    (table,) = answered.of("table")
    assert table["mark"] == i
    for row, index in zip(table["rows"], best, strict=True):
        assert row[0] == acts.output_names[index]
        assert_written(row[1], logits[index])
        assert_written(row[2], 100 * probabilities[index])
    assert_allclose(table["shares"], probabilities[best], rtol=1e-6)


@pytest.mark.parametrize(
    ("answers", "head"),
    [("classes", ["class", "logit", "softmax"]), ("labels", ["label", "logit", "sigmoid"])],
)
def test_probabilities_are_named_after_the_function_that_gave_them(
    answers: Any, head: list[str]
) -> None:
    model = own_model()
    model.answers = answers
    acts = capture(model, picture())
    assert acts.probabilities is not None
    one = Case(compute_anatomy(model, picture(), acts, LAYER, None))
    (shown,) = one.show({"step": "head"})
    (table,) = shown.of("table")
    assert [words.partition(":")[0] for words in table["head"]] == head
    assert_allclose(table["shares"], np.sort(acts.probabilities)[::-1][:5], rtol=1e-6)


# --- the numbers in the sentences ---------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_sentences_of_a_layer_hold_its_numbers(name: str) -> None:
    one = case(name)
    info, residual = one.of.layer_info, anatomy.residual_stream(one.acts)
    (tokens, width), (_, units) = one.box("before").shape, one.box("hidden").shape
    heads, _, own = one.box("queries").shape
    goes_to = [LAYER + 2] if one.acts.depth > LAYER + 1 else []
    wanted = {
        "before": [LAYER + 1, tokens, width],
        "qkv": [heads, own],
        "scores": [math.sqrt(own)],
        "attention": [tokens, 100, 100 / tokens],
        "concatenated": [heads, own],
        "projected": [width],
        "after_attention": [100 * residual.attention[LAYER]],
        "hidden": [width, units],
        "mlp": [width],
        "after": [100 * residual.mlp[LAYER], *goes_to],
    }
    assert info.num_heads == heads
    said = {box["id"]: box["say"] for box in build_boxes(one.of)}
    for box, numbers in wanted.items():
        assert_written(re.sub(r"\(.*?\)", "", said[box]), *numbers)


@pytest.mark.parametrize("name", ["own, distilled", "EVA", "Swin"])
def test_the_cards_hold_the_numbers_of_the_steps(name: str) -> None:
    one = case(name)
    cards = {card["id"]: card for card in build_cards(one.of)}
    height, width, channels = one.step("picture").shape
    assert_written(cards["picture"]["say"].split("normalised")[0], height, width, channels)
    rows, cols = one.acts.layers[0].query_grid
    assert_written(cards["patches"]["say"], rows * cols, height // rows, width // cols)
    each = height // rows * width // cols * channels
    assert_written(cards["flatten"]["say"], each)
    assert_written(cards["project"]["say"], each, one.acts.tokens(0).shape[1])
    for card in cards.values():
        if card["layers"] and card["name"] == "stage":
            first, last = card["layers"]
            grid, tokens = one.acts.layers[last].query_grid, one.acts.tokens(last + 1)
            assert_written(card["say"], first + 1, last + 1, *grid, tokens.shape[1])
            assert card["grid"] == list(grid)
    assert one.acts.probabilities is not None
    head, answer = cards["head"], int(one.acts.probabilities.argmax())
    classes = len(one.acts.output_names)
    assert_written(head["shape"], one.step([*cards][-2]).shape[-1], classes)
    called, _, share = head["answer"].partition(": ")
    assert called == one.acts.output_names[answer]
    assert_written(share, 100 * one.acts.probabilities[answer])


@pytest.mark.parametrize("name", ["own, no head", "Mixer", "Swin", "PVT"])
def test_the_numbers_that_the_head_receives_are_counted(name: str) -> None:
    """Of stages the last one is wider than the first."""
    one = case(name)
    (card,) = (card for card in build_cards(one.of) if card["name"].startswith("output"))
    assert f"These {one.step(card['name']).shape[-1]} numbers are all" in card["say"]


@pytest.mark.parametrize(
    ("size", "cut"), [((48, 64), "picture patches flatten project first_tokens"), ((40, 56), "")]
)
def test_patches_are_not_said_to_be_convolutions_that_overlap(
    size: tuple[int, int], cut: str
) -> None:
    """Where positions are resampled, and where the input is padded, the way is not opened."""
    sizes = dict(depth=1, embed_dim=32, num_heads=2, num_classes=5)
    options: dict[str, Any] = dict(dynamic_img_size=True, dynamic_img_pad=True, **sizes)
    model = watched(timm.create_model("vit_tiny_patch16_224", **options).eval(), size)
    acts = capture(model, picture())
    cards = build_cards(compute_anatomy(model, picture(), acts, 0, None))
    names = " ".join(card["name"] for card in cards)
    assert names == f"{cut or 'picture first_tokens'} encoder output head"
    (said,) = (card["say"] for card in cards if card["name"] == "first_tokens")
    assert "That layer gets 13×32 numbers" in said


def test_the_norms_of_clip_in_transformers_are_steps() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.CLIPVisionConfig(**sizes, image_size=32, patch_size=8)
    module = transformers.CLIPVisionModelWithProjection(config).eval()
    with torch.no_grad():
        module.vision_model.post_layernorm.bias.fill_(0.5)
    model = watched(module, (32, 32))
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    assert " ".join(card["name"] for card in build_cards(of)) == (
        "picture patches flatten project prefix positions pre_norm encoder output embedding_head"
    )
    last = torch.from_numpy(of.acts.tokens(1)[:1].copy())
    with torch.inference_mode():
        y = module.vision_model.post_layernorm(last)[0]
    output = of.steps[-2].values
    assert output is not None
    assert_allclose(output, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "name", "said"),
    [
        ({}, "output_cls", "only CLS is kept. These 32"),
        ({"global_pool": "avg"}, "output_features", "are combined"),
    ],
)
def test_what_is_not_normalised_is_not_said_to_be(
    options: dict[str, Any], name: str, said: str
) -> None:
    """As of InternViT and RADIO, which have no final norm."""
    sizes: dict[str, Any] = dict(img_size=32, depth=1, embed_dim=32, num_heads=2, num_classes=5)
    module = timm.create_model("vit_tiny_patch16_224", final_norm=False, **sizes, **options)
    model = watched(module.eval(), (32, 32))
    cards = build_cards(compute_anatomy(model, picture(), capture(model, picture()), 0, None))
    assert cards[-2]["name"] == name
    assert said in cards[-2]["say"]


@pytest.mark.parametrize(
    ("family", "times"), [("ViT", True), ("CaiT", True), ("Swin", False), ("MLP-Mixer", False)]
)
def test_smaller_patches_are_more_pairs_where_all_attend_to_all(family: str, times: bool) -> None:
    """Within windows there are four times as many, and a Mixer compares none."""
    model = toy_model(family)
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    (card,) = (card for card in build_cards(of) if card["id"] == "patches")
    assert ("sixteen times as many pairs" in card["say"]) == times


@pytest.mark.parametrize(
    ("act", "title"), [("quick_gelu", "QuickGELU"), ("gelu", "GELU"), ("silu", "SiLU")]
)
def test_the_function_of_the_mlp_has_its_name(act: str, title: str) -> None:
    """That of OpenAI's CLIP is no GELU."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.CLIPVisionConfig(**sizes, image_size=32, patch_size=8, hidden_act=act)
    model = watched(transformers.CLIPVisionModelWithProjection(config).eval(), (32, 32))
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    (box,) = (box for box in build_boxes(of) if box["id"] == "activated")
    assert box["title"] == title
    assert box["say"].startswith(f"{title} lets large positive numbers pass")


@pytest.mark.parametrize(("outputs", "said"), [(1, "into one number."), (3, "into 3 numbers.")])
def test_a_regression_of_one_value_has_one(outputs: int, said: str) -> None:
    model = watched(own_module(num_classes=outputs), (16, 24), answers="values")
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    assert said in build_cards(of)[-1]["say"]


@pytest.mark.parametrize(("mean", "said"), [(0.0, "between 0 and 1"), (0.5, "lie around 0")])
def test_pixels_that_are_not_normalised_are_not_said_to_be(mean: float, said: str) -> None:
    preprocessing = Preprocessing(input_size=(16, 24), mean=3 * (mean,), std=3 * (1.0,))
    model = watched(own_module(), (16, 24), preprocessing=preprocessing)
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    assert said in build_cards(of)[0]["say"]


@pytest.mark.parametrize(("registers", "title"), [(1, "+ 1 register"), (4, "+ 4 registers")])
def test_one_register_is_one(registers: int, title: str) -> None:
    """As of vit_medium_patch16_reg1_gap_256 of timm."""
    model = own_model(class_token=False, registers=registers)
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    (card,) = (card for card in build_cards(of) if card["id"] == "prefix")
    assert card["title"] == title


# --- what the component is sent ------------------------------------------------------------------


def test_numbers_in_half_precision_are_those_that_were_sent_the_smallest_too() -> None:
    values = np.array([[6e-8, -5.9e-6, 1e-5, 6.2e-5, 1.5, -65504.0, 1e4, 0.0]], np.float32)
    huge = -16 * values  # beyond half precision
    sent = pack_numbers("x", {"exact": values}, {"before": values, "huge": huge, "half": values})
    stack, numbers = sent.pop("stack"), {name: part.tolist() for name, part in sent.items()}
    found = evaluate(
        "((all) => ['exact', 'half', 'huge'].map((name) => [...all.get(name).row(0)]))"
        "(tensors(stack.tensors, Float32Array.from(exact), Uint16Array.from(half)))",
        ["anatomy_map/tensors"],
        stack=stack,
        **numbers,
    )
    np.testing.assert_array_equal(np.float32(found[0]), values[0])
    np.testing.assert_array_equal(found[1], np.float16(values[0]))
    np.testing.assert_array_equal(np.float32(found[2]), huge[0])
    assert found[1][0] > 0


@pytest.mark.parametrize("size", [(16, 24), (24, 16), (32, 80)])
def test_costs_and_the_token_in_the_middle_of_an_input_that_is_not_square(
    size: tuple[int, int],
) -> None:
    model = own_model(image_size=size, patch_size=8)
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    rows, cols = size[0] // 8, size[1] // 8
    middle = 1 + rows // 2 * cols + cols // 2
    assert of.token == middle
    one = Case(of)
    cut, first = one.show({"step": "patches"}, {"step": "before"})
    first.strips(of.acts.tokens(0)[middle])
    (table,) = cut.of("table")
    sides = [side for side in (8, 14, 16, 32) if side <= min(size)]
    counts = [(size[0] // side) * (size[1] // side) for side in sides]
    assert table["mark"] == 0
    for row, side, count in zip(table["rows"], sides, counts, strict=True):
        times = count**2 / counts[0] ** 2
        assert row[:3] == [str(side), f"{count:,}", f"{count**2:,}"]
        assert row[3] == ("1 times" if side == 8 else f"1/{1 / times:.3g}")
    assert_allclose(table["shares"], [(count / max(counts)) ** 2 for count in counts])


def test_where_one_token_alone_is_sent_it_is_the_one_that_is_followed() -> None:
    name, query = "own, distilled", 2 + 7
    one = Case(case(name).of.at(LAYER, query))
    states = [{"step": step, "query": token} for step in ("mlp", "scores") for token in (query, 3)]
    here, elsewhere, scores, others = one.show(*states, max_bytes=1000)
    here.strips(one.box("activated")[query], one.box("mlp")[query])
    assert [item["label"] for item in elsewhere.items] == ["not here"]
    names = [token_name(one.of.layer_info, token) for token in (1, query)]
    assert names == ["DIST", "row 2 column 2"]
    for shown, token in ((scores, query), (others, 3)):  # queries and keys are whole
        assert_allclose(
            shown.of("bars")[1]["values"], one.acts.attention(LAYER)[0, token], atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "step", "said"),
    [
        ("CaiT", "output", "CLS is the only token that leaves the last layer"),
        ("own, distilled", "head", "turns y into 5 numbers"),
        ("own, pre-training head", "head", "turns the hidden layer into 5 numbers"),
    ],
)
def test_what_the_head_reads_is_said_of_each_model(name: str, step: str, said: str) -> None:
    (card,) = [card for card in build_cards(case(name).of) if card["name"] == step]
    assert said in card["say"]
    assert "head for fine-tuning" not in card["say"] or name != "own, pre-training head"


@pytest.mark.parametrize("name", MAKES)
def test_every_step_and_box_has_a_name_in_the_table(name: str) -> None:
    of = case(name).of
    assert {box.name for box in (*of.steps, *of.boxes)} <= NAMES.keys()


@pytest.mark.parametrize("name", ["own, distilled", "EVA"])
def test_what_is_said_in_another_language_is_not_in_english(name: str) -> None:
    """All words come from the catalogue of the host; names and formulas are the same everywhere."""
    one = case(name)
    steps = [box.name for box in one.of.steps if not box.layers]
    boxes = [*({box.name for box in one.of.boxes} - {"queries", "keys", "values"}), "qkv"]
    with use_language("ko"):
        shown = one.show(*({"step": step} for step in (*steps, *boxes)))
    words = [
        text
        for items in (each.items for each in shown)
        for item in items
        for text in (item.get("label"), item.get("note"), *item.get("head", ()))
        if text
    ]
    assert len(words) > 60
    same = {"CLS", "DIST", "MSA", "msa", "MLP", "LN", "RoPE", "softmax", "logit", "logits", "pos"}
    for text in words:
        assert set(re.findall("[A-Za-z]{2,}", text)) <= same, text
