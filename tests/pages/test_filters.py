"""The Filters page: components and raw filters, the chosen one, and what the picture answers."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from examples import assert_clear_error
from streamlit.testing.v1 import AppTest

from pages import driver
from pages.driver import (
    SHIPPED,
    alts,
    assert_works,
    charts,
    click,
    figures,
    opened,
    prose,
    shown,
    token_map,
)
from vitviz import Model, ModelError
from vitviz.app.shared import models, pictures, results
from vitviz.inspection import filter_components
from vitviz.training import RECIPES, build
from vitviz.zoo.checkpoints import shipped_names

MOSAIC, RESPONSE, PRODUCT, RANDOM = range(4)


def numbers(at: AppTest, chart: int, trace: int = 0) -> np.ndarray:
    """`z` of one of the chart's traces as the browser gets it."""
    return driver.numbers(figures(at)[chart]["data"][trace]["z"])


def titles(at: AppTest) -> list[str]:
    return [heading.value for heading in at.subheader]


@pytest.fixture
def shipped() -> Model:
    return models.load_by_name(SHIPPED)


def test_it_opens_on_the_components_of_the_paper_beside_random_ones() -> None:
    at = shown("filters")
    assert_works(at)
    assert len(charts(at)) == 4
    assert not token_map(at)
    assert titles(at) == [
        "Trained",
        "Response of each patch to component 1",
        "Row 9, column 7",
        "Before training: random weights",
    ]
    for chart in (MOSAIC, RANDOM):
        assert "28 principal components" in alts(at)[chart]
    assert numbers(at, MOSAIC).tolist() != numbers(at, RANDOM).tolist()
    assert prose(at).count("28 of the 48 principal components explain") == 2


def test_the_share_that_is_explained_is_that_of_each_model(shipped: Model) -> None:
    text = prose(shown("filters"))
    for kernel in (shipped.patch_kernel, models.initial_kernel(shipped)):
        assert kernel is not None
        _, explained = filter_components(kernel)
        assert f"{100 * explained.sum():.0f} % of the variance of 192 filters" in text


def test_a_model_with_fewer_numbers_in_a_patch_has_fewer_components(
    serve: Callable[..., Model],
) -> None:
    serve("plain", patch_size=2)
    at = opened("filters")
    assert not at.exception
    assert "12 of the 12 principal components explain 100 %" in prose(at)
    assert at.number_input(key="filter").max == 12


@pytest.mark.parametrize("weights", ["mimetic", "random"])
def test_the_random_side_is_what_random_weights_show_and_needs_no_second_model(
    weights: str, put: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = SHIPPED if weights == "mimetic" else put()
    made: list[tuple[str, str]] = []
    load = models._load

    def counted(name: str, weights: str, wanted: models.Input) -> Model:
        made.append((name, weights))
        return load(name, weights, wanted)

    monkeypatch.setattr(models, "_load", counted)
    models.cache.clear()
    results.capture_cache.clear()
    at = opened("filters", model=name)
    assert_works(at)
    began = "Before training: random weights" if weights == "mimetic" else "With random weights"
    assert titles(at)[RANDOM] == began
    beside = {"components": numbers(at, RANDOM)}
    at.segmented_control(key="filters").set_value("raw filters").run()
    beside["raw filters"] = numbers(at, RANDOM)
    assert made == [(name, "trained")]
    at.segmented_control(key="weights").set_value(weights).run()
    found = {"raw filters": numbers(at, 0)}
    at.segmented_control(key="filters").set_value("components").run()
    found["components"] = numbers(at, 0)
    assert not at.exception
    assert titles(at)[0] == "Random weights"
    assert len(charts(at)) == 3  # nothing to compare it with
    saved = "trained" if weights == "mimetic" else "as saved"
    assert f"Choose *{saved}* as weights" in prose(at)
    assert titles(at)[RANDOM] == saved.capitalize()
    # A record keeps half precision: raw filters of almost the same length may change places, and
    # components of almost the same variance mix a little.
    first, second = (np.sort(one["raw filters"], axis=None) for one in (found, beside))
    np.testing.assert_allclose(first, second, atol=1)
    np.testing.assert_allclose(found["components"], beside["components"], atol=2)


def test_random_filters_that_cannot_be_had_cost_their_figure_alone(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve("plain"), "trained", True)
    whole = opened("filters")

    def refuse(model: Model) -> np.ndarray:
        raise ModelError(f"{model.name} needs 9.9 GB of memory, and 0.1 GB are free.")

    monkeypatch.setattr(models, "cached_random_kernel", refuse)
    at = opened("filters")
    (message,) = at.info
    assert message.value.endswith("needs 9.9 GB of memory, and 0.1 GB are free.")
    assert not at.exception
    assert not at.error
    assert titles(at) == titles(whole)
    assert alts(at) == [*alts(whole)[:RANDOM], *alts(whole)[RANDOM + 1 :]]


def test_raw_filters_come_by_norm_or_in_their_own_order_and_a_link_holds_them(
    shipped: Model,
) -> None:
    assert shipped.patch_kernel is not None
    norms = np.linalg.norm(shipped.patch_kernel.reshape(192, -1), axis=1)
    at = opened("filters", filter="20")
    assert at.number_input(key="filter").value == 20
    at.segmented_control(key="filters").set_value("raw filters").run()
    assert_works(at)
    assert at.number_input(key="filter").value == 1  # another set begins at its first tile
    assert not at.info
    assert "192 raw filters" in alts(at)[MOSAIC]
    assert titles(at)[1] == f"Response of each patch to filter {norms.argmax() + 1}"
    assert f"192 filters, norms from {norms.max():.2f} to {norms.min():.2f}" in prose(at)
    names = figures(at)[MOSAIC]["data"][1]["text"]
    for name, number in zip((names[0], names[-1]), (norms.argmax(), norms.argmin()), strict=True):
        assert name == f"Filter {number + 1}, norm {norms[number]:.2f}"
    at.number_input(key="filter").set_value(192).run()
    assert titles(at)[1] == f"Response of each patch to filter {norms.argmin() + 1}"
    by_norm = numbers(at, MOSAIC)
    at.segmented_control(key="order").set_value("as in the model").run()
    assert_works(at)
    assert titles(at)[1] == "Response of each patch to filter 1"
    assert numbers(at, MOSAIC).tolist() != by_norm.tolist()
    assert sorted(numbers(at, MOSAIC).ravel()) == sorted(by_norm.ravel())

    at.number_input(key="filter").set_value(9)
    at.select_slider(key="gain").set_value(2.0).run()
    link = {key: at.query_params[key] for key in ("filters", "order", "filter", "gain")}
    assert link == {
        "filters": "raw filters",
        "order": "as in the model",
        "filter": "9",
        "gain": "2.0",
    }
    other = opened("filters", **link)
    assert_works(other)
    assert titles(other)[1] == "Response of each patch to filter 9"
    assert numbers(other, MOSAIC).tolist() == numbers(at, MOSAIC).tolist()


def test_no_more_than_256_filters_are_drawn_and_that_is_said(serve: Callable[..., Model]) -> None:
    serve("plain", embed_dim=320)
    at = opened("filters", filters="raw filters")
    assert not at.exception
    assert "256 of 320 filters" in prose(at)
    assert "256 raw filters" in alts(at)[0]
    assert at.number_input(key="filter").max == 256


@pytest.mark.parametrize(("what", "tile"), [("components", 28), ("raw filters", 7)])
def test_the_response_is_each_patchs_inner_product_with_the_chosen_tile(
    what: str, tile: int, shipped: Model
) -> None:
    at = opened("filters", filters=what, filter=str(tile))
    assert_works(at)
    kernel = shipped.patch_kernel
    assert kernel is not None
    if what == "components":
        chosen, name = filter_components(kernel)[0][tile - 1], f"component {tile}"
    else:
        norms = np.linalg.norm(kernel.reshape(192, -1), axis=1)
        number = np.argsort(-norms, kind="stable")[tile - 1]
        chosen, name = kernel[number], f"filter {number + 1}"
    pixels = shipped.preprocess(pictures.sample(pictures.DEFAULT).image)
    own = torch.nn.functional.conv2d(
        pixels[None], torch.tensor(chosen, dtype=torch.float32)[None], stride=4
    )[0, 0].numpy()
    np.testing.assert_allclose(numbers(at, RESPONSE), own, atol=1e-5)
    assert titles(at)[1] == f"Response of each patch to {name}"
    assert f"From {own.min():+.2f} to {own.max():+.2f}" in prose(at)
    assert f"Response of each patch to {name}: from {own.min():+.2f} at" in alts(at)[RESPONSE]


@pytest.mark.parametrize(
    ("name", "link"),
    [
        (SHIPPED, dict(query="3.14")),
        (SHIPPED, dict(filters="raw filters", filter="5")),
        ("vitviz_tiny_cifar10", {}),
    ],
)
def test_the_products_add_up_to_the_response_of_the_patch(name: str, link: dict[str, str]) -> None:
    at = opened("filters", model=name, **link)
    assert_works(at)
    response, found = numbers(at, RESPONSE), re.search(r"Row (\d+), column (\d+)", titles(at)[2])
    assert found
    row, col = (int(one) - 1 for one in found.groups())
    if "query" in link:
        assert (row, col) == (2, 13)
    else:  # CLS is no patch of the picture
        assert abs(response[row, col]) == np.abs(response).max()
    patch, _, product, *_ = figures(at)[PRODUCT]["data"]
    total = numbers(at, PRODUCT, 2).sum()
    assert total == pytest.approx(response[row, col], abs=1e-4)
    assert f"**{response[row, col]:+.2f}**, the response of this patch" in prose(at)
    products, count, positive, negative = map(
        float,
        re.findall(
            r"The (\d+) products of (\d+) pixels .*? up to (.+?), the negative ones to (.+?)\. ",
            prose(at),
        )[0],
    )
    assert products == 3 * count == 3 * numbers(at, PRODUCT, 2).size
    assert positive > 0 > negative
    assert positive + negative == pytest.approx(total, abs=0.011)
    # Each pixel's number is the sum of the three products that are read on it.
    for texts, one in zip(product["text"], numbers(at, PRODUCT, 2), strict=True):
        for text, number in zip(texts, one, strict=True):
            parts = [float(part) for part in re.findall(r"[+-]\d+\.\d+", text)]
            assert sum(parts) == pytest.approx(number, abs=2e-3)
    model = models.load_by_name(name)
    pixels = model.preprocess(pictures.sample(pictures.DEFAULT).image).numpy()
    high, wide = model.layers[0].patch_side
    corner = pixels[:, row * high, col * wide]
    assert patch["text"][0][0] == "row 1, column 1: " + ", ".join(
        f"{colour} {value:+.3f}"
        for colour, value in zip(("red", "green", "blue"), corner, strict=True)
    )


def test_filters_that_read_blue_first_are_drawn_in_the_colours_of_the_picture(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve("plain")
    changed = replace(model.preprocess, channel_order="BGR")
    monkeypatch.setattr(model, "preprocess", changed)
    at = opened("filters", filters="raw filters", order="as in the model", filter="2")
    assert model.patch_kernel is not None
    kernel, x = model.patch_kernel[1], model.preprocess(pictures.sample(pictures.DEFAULT).image)
    own = torch.nn.functional.conv2d(x[None], torch.tensor(kernel)[None], stride=4)[0, 0].numpy()
    np.testing.assert_allclose(numbers(at, RESPONSE), own, atol=1e-5)
    row, col = np.unravel_index(np.abs(own).argmax(), own.shape)
    patch, tile, *_ = figures(at)[PRODUCT]["data"]
    for drawn, blue_first in ((patch, x.numpy()[:, 4 * row, 4 * col]), (tile, kernel[:, 0, 0])):
        parts = [float(part) for part in re.findall(r"[+-]\d+\.\d+", drawn["text"][0][0])]
        assert re.findall("red|green|blue", drawn["text"][0][0]) == ["red", "green", "blue"]
        assert parts == pytest.approx(blue_first[::-1].tolist(), abs=1e-3)


def test_a_click_on_the_response_selects_its_patch() -> None:
    at = opened("filters")
    click(at, "response", {"point_index": 4 * 16 + 11, "curve_number": 1})
    assert_works(at)
    assert titles(at)[2] == "Row 5, column 12"
    assert at.query_params["query"] == "5.12"


def test_the_picture_changes_the_answer_and_no_tile() -> None:
    first = [numbers(shown("filters"), chart) for chart in (MOSAIC, RANDOM, RESPONSE)]
    at = opened("filters", picture="moose")
    assert_works(at)
    for before, chart in zip(first[:2], (MOSAIC, RANDOM), strict=True):
        np.testing.assert_array_equal(numbers(at, chart), before)
    assert not np.allclose(numbers(at, RESPONSE), first[2])


def test_a_click_on_a_tile_chooses_it() -> None:
    at = opened("filters")
    click(at, "mosaic", {"point_index": 5, "curve_number": 1})
    assert_works(at)
    assert at.number_input(key="filter").value == 6
    assert titles(at)[1] == "Response of each patch to component 6"
    assert alts(at)[PRODUCT].startswith("Pixel by pixel, patch times component 6: ")


def test_a_tile_that_is_not_there_is_said() -> None:
    at = opened("filters", filter="29")
    assert at.number_input(key="filter").value == 1
    (message,) = at.info
    assert "29 is not valid here; 1 is used" in message.value


@pytest.mark.parametrize(
    ("kind", "channels", "reason"),
    [("stem", 3, "feature map of a CNN"), ("plain", 1, "red, green and blue, and those of")],
)
def test_filters_that_are_no_pictures_in_colour_are_not_drawn(
    kind: str, channels: int, reason: str, serve: Callable[..., Model]
) -> None:
    serve(kind, in_channels=channels)
    at = opened("filters")
    assert not at.exception
    assert not charts(at)
    (message,) = at.info
    assert_clear_error(message.value)
    assert reason in message.value
    assert SHIPPED in message.value


def test_what_training_changed_is_the_difference_from_the_initialisation(shipped: Model) -> None:
    at = opened("filters", filters="what training changed")
    assert_works(at)
    assert titles(at)[::RANDOM] == ["Trained minus initial", "Before training: random weights"]
    initial = models.initial_kernel(shipped)
    assert initial is not None
    assert shipped.patch_kernel is not None
    expected = filter_components(shipped.patch_kernel - initial, n_components=28)[1]
    assert f"{100 * expected.sum():.0f} % of the variance of 192 filters" in prose(at)


@pytest.mark.parametrize("name", shipped_names())
def test_filters_that_are_still_their_initialisation_are_said_to_be(name: str) -> None:
    model = models.load_by_name(name)
    initial, kernel = models.initial_kernel(model), model.patch_kernel
    assert initial is not None
    assert kernel is not None
    cosine = (kernel * initial).sum() / np.linalg.norm(kernel) / np.linalg.norm(initial)
    text = prose(opened("filters", model=name))
    assert f"with their own initialisation: **{cosine:.2f}**" in text
    assert ("the random noise with which they began" in text) == (cosine > 0.5)


def test_the_recorded_initialisation_is_that_of_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where attention begins takes most of the time to work out, and no random number.
    monkeypatch.setattr(
        "vitviz.model.initialisation._factorise", lambda whole, d: (whole[:, :d], whole[:d])
    )
    for name in shipped_names():
        recipe = next(recipe for recipe in RECIPES.values() if recipe.model == name)
        start = build(recipe, recipe.stages[0]).patch_embed.proj.weight.detach().numpy()
        found = models.initial_kernel(models.load_by_name(name))
        assert found is not None
        np.testing.assert_allclose(found, start, atol=1e-3 * np.abs(start).max())


def test_another_model_has_no_known_initialisation(serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("filters")
    assert titles(at)[0] == "Random weights"
    assert "initialisation" not in prose(at)
    assert list(at.segmented_control(key="filters").options) == ["components", "raw filters"]
