"""Pages of models whose layers differ: in their number of heads, or in whether they are shown."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from examples import randomise, timm_module, watched
from numpy.testing import assert_allclose
from timm.layers import Attention
from torch import Tensor

from pages.driver import (
    alts,
    assert_works,
    charts,
    complaints,
    forget,
    of_sample,
    opened,
    opened_with_data,
    prose,
    token_map,
)
from vitviz import Model, inspection
from vitviz.app.shared import models

HEADS = (4, 8, 3)


def three_layers(name: str, attentions: dict[int, Attention]) -> Model:
    module = timm_module("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=5)
    for layer, attention in attentions.items():
        module.blocks[layer].attn = attention
    randomise(module)
    return watched(module.eval(), (64, 64), name=name)


@cache
def uneven() -> Model:
    """A model as pruning leaves it."""
    attentions = {at: Attention(192, num_heads=heads) for at, heads in enumerate(HEADS)}
    return three_layers("uneven", attentions)


class Gated(Attention):
    """Each head is multiplied by a gate, so A alone does not give its output."""

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        sizes = (*x.shape[:2], 3, self.num_heads, self.head_dim)
        q, k, v = self.qkv(x).reshape(sizes).permute(2, 0, 3, 1, 4)
        weights = (self.scale * q @ k.transpose(-2, -1)).softmax(dim=-1)
        y: Tensor = self.proj((weights @ v * q.sigmoid()).transpose(1, 2).reshape(x.shape))
        return y


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[[Model], None]:
    def show(model: Model) -> None:
        forget()
        monkeypatch.setattr(models, "load_by_name", lambda *_, **__: model)

    return show


def test_a_layer_that_is_not_shown_hides_no_other(show: Callable[[Model], None]) -> None:
    show(three_layers("gated", {1: Gated(192, num_heads=3)}))
    at = opened("attention", layer="3")
    assert not complaints(at)
    assert token_map(at)["state"]["frame"] == 2
    assert "layer 3" in prose(at).lower()
    at.slider(key="layer").set_value(2).run()
    assert "does more to its heads than join them" in at.warning[-1].value
    assert not token_map(at)


def test_layers_may_have_different_numbers_of_heads(show: Callable[[Model], None]) -> None:
    show(uneven())
    for shown_layer in "123":
        for page in ("attention", "distance", "rollout", "classify", "tokens"):
            at = opened(page, layer=shown_layer)
            assert_works(at)
            assert "nan" not in prose(at).lower().split()
    acts = of_sample(uneven())
    at = opened_with_data("distance", layer="3", head="3")
    table = at.dataframe[0].value
    assert table.groupby("layer")["head"].max().to_list() == list(HEADS)
    for layer, heads in enumerate(HEADS, start=1):
        of_layer = inspection.attention_distance(
            [acts.attention(layer - 1)], patch_size=16, grid=(4, 4), num_prefix_tokens=1
        )[0]
        found = table.loc[table["layer"] == layer, "distance, px"]
        assert_allclose(found, of_layer[:heads], rtol=1e-5)
    assert "nan" not in " ".join(alts(at)).lower()
    assert charts(at)


def test_the_map_of_the_last_layer_is_the_mean_of_its_own_heads(
    show: Callable[[Model], None],
) -> None:
    show(uneven())
    table = opened_with_data("explain", maps="last").dataframe[0].value
    expected = of_sample(uneven()).attention(2)[:, 0, 1:].mean(axis=0)
    assert expected.shape == (16,)
    assert np.isfinite(expected).all()
    assert_allclose(table["attention of the last layer"], expected, rtol=1e-5)


@pytest.mark.parametrize("instead", ["zero", "mean"])
def test_heads_that_were_muted_in_another_model_hide_no_answer(
    instead: str, show: Callable[[Model], None]
) -> None:
    show(three_layers("gated", {1: Gated(192, num_heads=3)}))
    at = opened("classify", muted="2.1", mute_to=instead)
    (refusal,) = {warning.value for warning in at.warning[1:]}
    assert "does more to its heads than join them" in refusal
    assert complaints(at) == ([refusal] if instead == "mean" else [])
    assert charts(at)
