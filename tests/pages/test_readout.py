"""A model that has CLS, and whose head pools the patches: its answer is not read at CLS."""

from typing import Any

import numpy as np
import pytest
import timm
from examples import randomise, watched
from numpy.testing import assert_allclose

from pages.driver import address, assert_works, commit, of_sample, opened, prose, stack, token_map
from vitviz import Model, inspection, intervention
from vitviz.app.screens import explain_curves
from vitviz.app.shared import models


@pytest.fixture
def beit(monkeypatch: pytest.MonkeyPatch) -> Model:
    size: dict[str, Any] = dict(img_size=(64, 96), embed_dim=48, depth=3, num_heads=3)
    module = timm.create_model("beit_base_patch16_224", **size, num_classes=5).eval()
    randomise(module)
    model = watched(module, (64, 96), name="a little BEiT")
    monkeypatch.setattr(models, "load_by_name", lambda name, weights="trained": model)
    return model


def rollouts(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """The rollout of CLS, and of the mean of the patches: (rows, columns)."""
    *_, every = inspection.rollout_steps(of_sample(model))
    return every[0, 1:].reshape(4, 6), every[1:, 1:].mean(axis=0).reshape(4, 6)


def test_the_rollout_begins_where_the_head_reads(beit: Model) -> None:
    at = opened("rollout")
    assert_works(at)
    shown = token_map(at)
    assert shown["prefix"] == ["CLS"]
    assert shown["state"]["query"] == shown["home"] == -1
    assert (
        "While no token is chosen, the map is read at the mean of the patches (the head does not "
        "read CLS)." in prose(at)
    )
    assert address(at) == {}
    commit(at, query=0)  # CLS can still be asked
    assert_works(at)
    assert address(at) == {"query": "cls"}
    assert token_map(at)["state"]["query"] == 0
    assert token_map(opened("rollout", query="cls"))["state"]["query"] == 0
    back = commit(at, query=-1)
    assert_works(back)
    assert address(back) == {}
    assert stack(back)["codes"].size


def test_a_head_that_pools_by_attention_does_not_read_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The map alone is that of the mean."""
    size: Any = dict(img_size=(64, 96), embed_dim=48, depth=1, num_heads=3, num_classes=5)
    module = timm.create_model("vit_base_patch16_siglip_224", **size).eval()
    model = watched(module, (64, 96), name="a little SigLIP")
    monkeypatch.setattr(models, "load_by_name", lambda name, weights="trained": model)
    words = prose(opened("rollout"))
    assert "While no token is chosen, the map is read at the mean of the patches." in words
    assert "answer is read" not in words


def test_the_map_of_a_class_says_where_it_is_read(beit: Model) -> None:
    words = prose(opened("explain"))
    where = "read at the mean of the patches (the head does not read CLS)."
    assert f"combined over all layers, {where}" in words
    assert f"r = 0.5, {where}" in words


def test_the_curves_are_of_maps_read_where_the_head_reads(
    beit: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked: list[np.ndarray] = []
    real = intervention.deletion_curve

    def curve(model: Model, image: Any, importance: np.ndarray, target: Any, **options: Any) -> Any:
        ranked.append(importance)
        return real(model, image, importance, target, **options)

    monkeypatch.setattr(intervention, "deletion_curve", curve)
    monkeypatch.setattr(explain_curves, "CURVE_STEPS", 2)
    at = opened("explain", maps="rollout last")
    at.button(key="run curves").click().run()
    assert_works(at)
    cls, pooled = rollouts(beit)
    assert_allclose(ranked[0], pooled, atol=1e-6)
    assert np.abs(cls - pooled).max() > 1e-3
    last = of_sample(beit).attention(2)
    assert_allclose(ranked[1], last[:, 1:, 1:].mean(axis=(0, 1)).reshape(4, 6), atol=1e-6)
