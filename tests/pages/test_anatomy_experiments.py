"""Experiments of the page Anatomy: each patch's answer, the order of patches, locality."""

from collections.abc import Callable

import numpy as np
import pytest

from pages.driver import assert_works, charts, open_data, opened, opened_with_data, prose
from vitviz import Model, capture
from vitviz.app.shared import pictures
from vitviz.intervention import patch_lens
from vitviz.intervention.equivariance import repeat_patch, shuffle_patches, translate


def alts(at: object) -> str:
    return " ".join(chart.alt for chart in charts(at))  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [0, 2, 3])
def test_each_patch_answers_after_the_layer_asked_for(
    depth: int, serve: Callable[..., Model]
) -> None:
    model = serve("plain")
    acts = capture(model, pictures.sample(pictures.DEFAULT).image)
    assert acts.probabilities is not None
    found, best = patch_lens(model, acts, depth), int(acts.probabilities.argmax())
    at = opened_with_data("anatomy", experiment="answers", depth=str(depth))
    assert_works(at)
    right = (found.argmax(axis=-1) == best).mean()
    assert f"**{100 * right:.0f} %** of the patches would answer **output {best}**" in prose(at)
    assert f"Probability of output {best} as each patch alone would answer" in alts(at)
    table = at.dataframe[-1].value
    np.testing.assert_allclose(
        table[f"output {best}, %"], 100 * found[..., best].ravel(), rtol=1e-4
    )


def test_the_order_is_told_with_and_without_positions(serve: Callable[..., Model]) -> None:
    model = serve("plain")
    at = opened("anatomy", experiment="order")
    assert_works(at)
    expected = shuffle_patches(model, pictures.sample(pictures.DEFAULT).image, seed=1)
    for change in expected.changes:
        assert f"Largest change of a probability (0 to 1): **{change:.2g}**." in prose(at)
    at.selectbox(key="shuffle").set_value(4)
    open_data(at, "anatomy")
    other = shuffle_patches(model, pictures.sample(pictures.DEFAULT).image, seed=4)
    assert f"**{other.changes[0]:.2g}**" in prose(at)
    np.testing.assert_allclose(
        at.dataframe[-1].value["with E_pos, shuffled"], other.outputs[0, 1], rtol=1e-4
    )


def test_locality_is_told_by_its_numbers(serve: Callable[..., Model]) -> None:
    model, image = serve("plain"), pictures.sample(pictures.DEFAULT).image
    at = opened("anatomy", experiment="locality", query="2.3")
    assert_works(at)
    whole, half = translate(model, image, 4), translate(model, image, 2)
    twins = repeat_patch(model, image, (1, 2), (2, 3))
    text = prose(at)
    assert f"change by **{100 * whole.embedded:.1f} %**" in text
    assert f"they change by **{100 * half.embedded:.0f} %**" in text
    assert f"the two differ by **{100 * twins.last:.0f} %** with E_pos" in text
    assert "sees its own pixels in the embedding" in alts(at)


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
