"""The choice of weights of a model whose training did not begin with the usual random ones."""

import json
from dataclasses import asdict
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pages.driver import SHIPPED, assert_works, opened, prose, provenance, stack
from vitviz import capture, checkpoints, load_model
from vitviz.app.shared import models, pictures, results
from vitviz.training import RECIPES


@pytest.fixture
def began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped model, as if its training had begun with mimetic initialisation."""
    assets = checkpoints.assets()
    for folder in ("curves", "samples"):
        (tmp_path / folder).symlink_to(assets / folder)
    (tmp_path / "weights").mkdir()
    for path in (assets / "weights").glob("*.safetensors"):
        (tmp_path / "weights" / path.name).symlink_to(path)
    file = tmp_path / "weights" / f"{SHIPPED}.safetensors"
    with safe_open(file, framework="pt") as opened:
        about: dict[str, Any] = json.loads(opened.metadata()["vitviz"])
    start = RECIPES["things200"].initialisation
    assert start is not None
    about["initialisation"] = {**asdict(start), "image_size": 32, "seed": 0}
    tensors = load_file(file)
    file.unlink()
    save_file(tensors, file, metadata={"vitviz": json.dumps(about)})
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    models.cache.clear()
    results.captures.clear()


@pytest.mark.usefixtures("began")
def test_both_kinds_of_random_weights_are_offered_by_their_names() -> None:
    at = opened("attention", weights="mimetic", head="1", layer="1")
    assert_works(at)
    assert list(at.segmented_control(key="weights").options) == [
        *("trained", "random: plain", "random: mimetic")
    ]
    (warning,) = at.warning
    assert "**random weights**" in warning.value
    assert "mimetic initialisation" in warning.value
    assert "random weights, mimetic initialisation" in provenance(at)
    model = load_model(SHIPPED, pretrained=False, initialisation="mimetic")
    whole = capture(model, pictures.sample(pictures.DEFAULT).image).attention(0)
    sent, shape = stack(at), (len(model.layers), *whole.shape[:2])
    shown = (sent["codes"].reshape(*shape, -1)[0] / 255) ** 2
    shown *= sent["peaks"].reshape(*shape, 1)[0]
    np.testing.assert_allclose(shown, whole[..., 1:], atol=0.004 * whole.max())
    at.segmented_control(key="weights").set_value("random").run()
    assert_works(at)
    (warning,) = at.warning
    assert "mimetic" not in warning.value
    other = opened("attention", weights="mimetic", model="vitviz_tiny_cifar100")
    assert other.segmented_control(key="weights").value == "random"
    assert list(other.segmented_control(key="weights").options) == ["trained", "random"]


@pytest.mark.usefixtures("began")
def test_two_kinds_of_random_weights_are_compared() -> None:
    at = opened("compare", compare="models", other_model=SHIPPED, other_weights="mimetic")
    assert_works(at)
    assert "random weights, mimetic initialisation" in unescape(prose(at))
