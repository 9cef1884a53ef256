"""Swin and PVT v2 of transformers: what is planted is found through windows and pooling."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from examples import assert_clear_error, picture, randomise, seeded, watched
from numpy.testing import assert_allclose, assert_array_equal
from planting import in_brightness
from planting_stages import CELL, assert_found_in_stages

import vitviz
from vitviz import ModelError
from vitviz.activations import Activations
from vitviz.model import Model
from vitviz.model.families import position_encodings

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

SWIN: dict[str, Any] = dict(
    embed_dim=16, depths=[2, 2, 2, 2], num_heads=[1, 2, 2, 4], window_size=3, image_size=192
)
PVT: dict[str, Any] = dict(hidden_sizes=[16, 16, 32, 32], num_attention_heads=[1, 2, 2, 4])
#: Each class with a head, and its configuration.
STAGED: dict[str, tuple[str, dict[str, Any]]] = {
    "swin, sdpa": ("SwinForImageClassification", dict(SWIN, attn_implementation="sdpa")),
    "swin, eager": ("SwinForImageClassification", dict(SWIN, attn_implementation="eager")),
    "swin v2": ("Swinv2ForImageClassification", SWIN),
    "pvt v2": ("PvtV2ForImageClassification", PVT),
    "pvt v2, linear": ("PvtV2ForImageClassification", dict(PVT, linear_attention=True)),
}


def module_of(name: str, **options: Any) -> Any:
    kind, settings = STAGED[name]
    own = {**settings, "num_labels": 5, **options}
    attention = own.pop("attn_implementation", None)
    with seeded():
        module = getattr(transformers, kind)(getattr(transformers, kind).config_class(**own)).eval()
    if attention:
        module.set_attn_implementation(attention)
    return module


@pytest.mark.parametrize(("grid", "cell"), [((6, 9), (4, 7)), ((6, 6), (0, 0))])
@pytest.mark.parametrize("name", [name for name in STAGED if name != "pvt v2, linear"])
def test_what_is_planted_is_found_through_windows_shifts_and_pooling(
    name: str, grid: tuple[int, int], cell: tuple[int, int]
) -> None:
    model = watched(module_of(name), (CELL * grid[0], CELL * grid[1]))
    assert_found_in_stages(in_brightness(model), grid, cell)


@pytest.fixture(scope="module", params=STAGED)
def random(request: pytest.FixtureRequest) -> tuple[Model, Activations]:
    """At a size that fills neither patches nor windows."""
    model = watched(module_of(request.param), (90, 130))
    randomise(model.module)
    return model, vitviz.capture(model, picture())


def test_watching_changes_nothing(random: tuple[Model, Activations]) -> None:
    model, acts = random
    assert acts.logits is not None
    with torch.inference_mode():
        expected = model.module(model.preprocess(picture())[None]).logits[0].numpy()
    assert_array_equal(acts.logits, expected)
    assert [layer.refusal for layer in acts.layers] == [None] * 8
    for layer in range(acts.depth):
        acts.attention(layer)


def test_what_tells_the_place_of_a_patch_is_named(random: tuple[Model, Activations]) -> None:
    model, _ = random
    is_swin = type(model.module).__name__.startswith("Swin")
    wanted = ("relative bias",) if is_swin else ("convolutions",)
    assert position_encodings(model.module, model.layers) == wanted


def test_attention_is_what_transformers_returns(random: tuple[Model, Activations]) -> None:
    model, acts = random
    module: Any = model.module
    if module.config._attn_implementation == "sdpa" and "Swin" in type(module).__name__:
        pytest.skip("transformers returns none where it calls the fused kernel")
    with torch.inference_mode():
        own = module(model.preprocess(picture())[None], output_attentions=True).attentions
    flat = [each for stage in own for each in (stage if isinstance(stage, tuple) else [stage])]
    layers = range(1, 8, 2) if len(flat) == 4 else range(8)  # Swin gives the last of each stage
    for layer, attention in zip(layers, flat, strict=True):
        assert_allclose(acts.attention_by_window(layer), attention.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["swin, sdpa", "swin, eager", "swin v2"])
def test_a_token_is_in_the_window_that_is_named(name: str) -> None:
    """Where a token changes, the attention of its own window does, and that of no other."""
    model = watched(module_of(name, window_size=4), (132, 148))  # 33 x 37 patches, padded by 3
    randomise(model.module)
    acts = vitviz.capture(model, picture())
    (rows, cols), plain = model.layers[1].query_grid, acts.attention_by_window(1)
    for patch in (1, cols, 2 * cols - 1, (rows - 1) * cols + 1, rows * cols - 1):

        def change(block: Any, inputs: Any, patch: int = patch) -> Any:
            tokens = inputs[0].clone()
            tokens[:, patch] = -2 * tokens[:, patch] + torch.arange(tokens.shape[-1])
            return (tokens, *inputs[1:])

        handle = model.sites[1].block.register_forward_pre_hook(change)
        other = vitviz.capture(model, picture()).attention_by_window(1)
        handle.remove()
        changed = np.abs(other - plain).max(axis=(1, 2, 3)) > 1e-6
        assert_array_equal(changed, (acts.layout(1).queries == patch).any(axis=1))


def test_a_shift_that_a_pass_sets_is_put_back_and_is_not_felt_in_another_thread() -> None:
    """A block whose grid is one window sets its shift to 0 and reads it after its first norm."""
    model = watched(module_of("swin, sdpa"), (3 * CELL, 3 * CELL))
    randomise(model.module)
    last: Any = model.sites[-1].block
    alone = vitviz.capture(model, picture())
    assert int(last.shift_size) == 1
    last.layernorm_before.register_forward_hook(lambda *_: time.sleep(0.02))
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda _: vitviz.capture(model, picture()).logits, range(9))]
    for logits in found:
        assert_array_equal(logits, alone.logits)
    assert int(last.shift_size) == 1


def test_a_grid_smaller_than_a_window_of_swin_is_refused() -> None:
    """Its table of relative positions fits whole windows alone; Swin V2 makes smaller ones."""
    at_least = 3 * CELL  # 3 x 3 patches in the last stage
    for size in ((at_least - CELL, 2 * at_least), (2 * at_least, at_least - CELL)):
        with pytest.raises(ModelError, match="windows of 3 x 3 patches") as caught:
            watched(module_of("swin, sdpa"), size)
        assert_clear_error(caught.value)
        acts = vitviz.capture(watched(module_of("swin v2"), size), picture())
        assert [layer.refusal for layer in acts.layers] == [None] * 8
    acts = vitviz.capture(watched(module_of("swin, sdpa"), (at_least, 2 * at_least)), picture())
    assert [layer.refusal for layer in acts.layers] == [None] * 8


@pytest.mark.parametrize("side", [3, 2])
def test_queries_and_keys_of_a_single_window_are_put_in_order(side: int) -> None:
    """A backbone shifts a window that is as large as the grid, and pads a smaller grid to it."""
    config = transformers.SwinConfig(**{**SWIN, "depths": [2], "num_heads": [2], "image_size": 12})
    with seeded():
        module = transformers.SwinBackbone(config).eval()
    randomise(module)
    acts = vitviz.capture(watched(module, (4 * side, 4 * side)), picture())
    assert acts.layout(1).queries.shape == (1, 9)
    scale, bias = acts.score_terms(1)
    assert bias is not None
    scores = scale * acts.queries(1) @ acts.keys(1).swapaxes(1, 2) + bias
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    whole = acts.attention(1)
    assert whole.shape == (2, side**2, side**2)
    shares *= whole.sum(axis=2, keepdims=True) / shares.sum(axis=2, keepdims=True)
    assert_allclose(shares, whole, atol=1e-5)
    assert acts.values(1).shape == (2, side**2, 8)
