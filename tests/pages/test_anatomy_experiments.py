"""Experiments of the page Anatomy: each patch's answer, the order of patches, locality."""

import base64
import io
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import timm
from examples import watched
from PIL import Image

from pages.driver import (
    alts,
    assert_works,
    components,
    figures,
    numbers,
    of_sample,
    open_data,
    opened,
    opened_with_data,
    prose,
    told,
)
from vitviz import Model, capture, intervention
from vitviz.activations import edited_input
from vitviz.app.shared import models, pictures
from vitviz.common.language import as_percent
from vitviz.intervention import patch_lens
from vitviz.intervention.equivariance import repeat_patch, shuffle_patches, translate


def patch_colours(pixels: np.ndarray) -> np.ndarray:
    """Return the mean colour of each patch of a grid of 4 x 6."""
    rows, cols, channels = pixels.shape
    by_patch: np.ndarray = pixels.reshape(4, rows // 4, 6, cols // 6, channels).mean(axis=(1, 3))
    return by_patch.reshape(24, channels)


def test_each_patch_answers_after_the_layer_asked_for(serve: Callable[..., Model]) -> None:
    model, depth = serve("plain"), 2
    acts = of_sample(model)
    assert acts.probabilities is not None
    found, chosen = patch_lens(model, acts, depth), (int(acts.probabilities.argmax()) + 1) % 5
    at = opened_with_data(
        "anatomy", experiment="answers", depth=str(depth), **{"class": str(chosen)}
    )
    assert_works(at)
    right = (found.argmax(axis=-1) == chosen).mean()
    assert f"**{as_percent(right)}** of the patches would answer **output {chosen}**" in prose(at)
    assert f"the model answers with {as_percent(acts.probabilities[chosen])}." in prose(at)
    assert f"Probability of output {chosen} as each patch alone would answer" in " ".join(alts(at))
    table = at.dataframe[-1].value
    for heading, wanted in (
        (f"output {chosen}, %", found[..., chosen]),
        ("its probability, %", found.max(axis=-1)),
    ):
        np.testing.assert_allclose(table[heading], 100 * wanted.ravel(), rtol=1e-4)


def test_the_order_is_told_with_and_without_positions(serve: Callable[..., Model]) -> None:
    model = serve("plain")
    at = opened("anatomy", experiment="order", shuffle="4")
    image = pictures.sample(pictures.DEFAULT).image
    found = shuffle_patches(model, image, seed=4)
    for title, change in zip(("With E_pos", "Without E_pos"), found.changes, strict=True):
        words = f"Largest change of a probability (0 to 1): **{change:.2g}**."
        assert f"**{title}**\n{words}" in prose(at)
    before, after = (
        {bars["name"]: bars["x"] for bars in figure["data"]} for figure in figures(at)[1:]
    )
    for bars, outputs in ((before, found.outputs[0]), (after, found.outputs[1])):
        assert 100 * outputs[0].max() == pytest.approx(max(numbers(bars["in order"])))
        assert 100 * outputs[1].max() == pytest.approx(max(numbers(bars["shuffled"])))
    photo = figures(at)[0]["layout"]["images"][0]["source"]
    with Image.open(io.BytesIO(base64.b64decode(photo.partition(",")[2]))) as drawn:
        shuffled = patch_colours(np.asarray(drawn))
    in_order = patch_colours(edited_input(model, image, [])[..., :3])
    np.testing.assert_allclose(shuffled, in_order[found.order], atol=20)  # of 255: a JPEG
    (*_, table) = (frame.value for frame in open_data(at, "anatomy").dataframe)
    for row, which in enumerate(("with E_pos", "without E_pos")):
        for column, order in enumerate(("in order", "shuffled")):
            wanted = found.outputs[row, column]
            np.testing.assert_allclose(table[f"{which}, {order}"], wanted, rtol=1e-4)


def test_locality_is_told_by_its_numbers(serve: Callable[..., Model]) -> None:
    model, image = serve("plain"), pictures.sample(pictures.DEFAULT).image
    at = opened_with_data("anatomy", experiment="locality", query="2.3")
    assert_works(at)
    whole, half = translate(model, image, 4), translate(model, image, 2)
    twins = repeat_patch(model, image, (1, 2), (2, 3))
    text = prose(at)
    assert f"change by **{100 * whole.embedded:.1f} %**" in text
    assert f"they change by **{100 * half.embedded:.0f} %**" in text
    assert f"move by one patch changes tokens by **{100 * whole.last:.0f} %**" in text
    assert "The patch at row 2, column 3, copied to row 3, column 4," in text
    apart, without = 100 * twins.last, twins.last_without
    assert f"two differ by **{apart:.0f} %** with E_pos, and by {without:.2g} without." in text
    table = at.dataframe[-1].value.drop(columns="experiment")
    np.testing.assert_allclose(table, list(map(astuple, (whole, half, twins))), rtol=1e-4)
    left, _, right, _ = capture(model, image).crop
    shapes = [shape for figure in figures(at) for shape in figure["layout"].get("shapes", [])]
    sides = [shape["x1"] - shape["x0"] for shape in shapes if shape.get("line", {}).get("dash")]
    np.testing.assert_allclose(sides, np.array([7, 5, 3]) * (right - left) / 24)
    assert "sees its own pixels in the embedding" in " ".join(alts(at))


def test_one_patch_of_many_is_not_none(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve("plain", image_size=64)  # 256 patches
    one = np.zeros((16, 16, 5))
    one[..., 1] = 1
    one[3, 4] = [1, 0, 0, 0, 0]
    monkeypatch.setattr(intervention, "patch_lens", lambda *_: one)
    at = opened("anatomy", experiment="answers", **{"class": "0"})
    assert model.num_classes == 5
    assert "**0.39 %** of the patches would answer **output 0**" in prose(at)
    assert "0.39 % of the patches answer output 0." in " ".join(alts(at))


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (dict(image_size=(6, 8), patch_size=1), "is one pixel wide"),
        (dict(image_size=(20, 4), patch_size=4), "lie in one column"),
    ],
)
def test_a_picture_that_cannot_move_is_said(
    serve: Callable[..., Model], sizes: dict[str, Any], reason: str
) -> None:
    serve("plain", **sizes)
    at = opened("anatomy", experiment="locality")
    assert_works(at)
    (said,) = told(at)
    assert reason in said


def test_patches_that_are_no_squares_have_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    module = timm.create_model(
        "vit_tiny_patch16_224", img_size=(32, 48), patch_size=(16, 8), depth=1, embed_dim=24
    )
    model = watched(module.eval(), (32, 48), name="tall patches")
    monkeypatch.setattr(models, "load_by_name", lambda name, weights="trained": model)
    at = opened("anatomy", experiment="locality")
    assert_works(at)
    assert "A token begins with its own 16 x 8 pixels" in prose(at)
    (way,) = (data for data in components(at, "vitviz_anatomy") if "cards" in data)
    (card,) = (card for card in way["cards"] if card["id"] == "patches")
    assert "N = 12 patches of 16 × 8 pixels" in card["say"]


@pytest.mark.parametrize(
    ("kind", "experiment", "words"),
    [
        ("no positions", "order", "cannot run without its position embedding: it has no"),
        ("stem", "locality", "from convolutions"),
        ("no head", "answers", "Experiment: answers is not valid here; order is used."),
    ],
)
def test_what_does_not_apply_is_said(
    kind: str, experiment: str, words: str, serve: Callable[..., Model]
) -> None:
    serve(kind)
    at = opened("anatomy", experiment=experiment)
    assert not at.exception
    assert any(words in info.value for info in at.info)


def test_a_model_without_a_head_shuffles_its_outputs(serve: Callable[..., Model]) -> None:
    serve("no head")
    at = opened("anatomy", experiment="order")
    assert_works(at)
    assert "Largest change of an output" in prose(at)
