"""The choice of weights of a model whose training did not begin with the usual random ones."""

import numpy as np
import pytest

from pages.driver import SHIPPED, assert_works, of_sample, opened, provenance, stack, token_maps
from vitviz import load_model


@pytest.mark.usefixtures("narrow")
def test_both_kinds_of_random_weights_are_offered_by_their_names() -> None:
    at = opened("attention", weights="mimetic", head="1", layer="1")
    assert_works(at)
    control = at.segmented_control(key="weights")
    assert control.label == "Weights: trained or random"
    assert list(control.options) == ["trained", "plain", "mimetic"]
    (warning,) = at.warning
    assert "**random weights**" in warning.value
    assert "mimetic initialisation" in warning.value
    assert "random weights, mimetic initialisation" in provenance(at)
    model = load_model(SHIPPED, pretrained=False, initialisation="mimetic")
    whole = of_sample(model).attention(0)
    sent, shape = stack(at), (len(model.layers), *whole.shape[:2])
    shown = (sent["codes"].reshape(*shape, -1)[0] / 255) ** 2
    shown *= sent["peaks"].reshape(*shape, 1)[0]
    np.testing.assert_allclose(shown, whole[..., 1:], atol=0.004 * whole.max())
    at.segmented_control(key="weights").set_value("random").run()
    assert_works(at)
    (warning,) = at.warning
    assert "mimetic" not in warning.value
    other = opened("attention", weights="mimetic", model="vit_tiny_patch16_224")
    assert other.segmented_control(key="weights").value == "random"
    assert list(other.segmented_control(key="weights").options) == ["trained", "random"]


def test_two_kinds_of_random_weights_are_compared() -> None:
    at = opened("compare", compare="models", other_model=SHIPPED, other_weights="mimetic")
    assert_works(at)
    assert "random weights, mimetic initialisation" in token_maps(at)[1]["titles"]["caption"]
