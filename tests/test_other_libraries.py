"""What is built on a Model works with those of transformers and torchvision too."""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import assert_clear_error, picture, randomise, watched
from numpy.testing import assert_allclose, assert_array_equal
from timm.models.vision_transformer import ResPostBlock
from torch.nn import functional as F

import vitviz
from vitviz import ModelError
from vitviz.activations import Activations
from vitviz.activations.forward import muted_answers
from vitviz.intervention import head_effects
from vitviz.intervention.equivariance import (
    rearrange_patches,
    repeat_patch,
    shuffle_patches,
    translate,
)
from vitviz.model import Model
from vitviz.model.families import position_encodings
from vitviz.web.anatomy import layer_boxes, residual_stream, steps
from vitviz.zoo import size_of

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
from test_torchvision import swin, vit  # noqa: E402
from test_transformers import CLASSES, small  # noqa: E402
from test_transformers_staged import STAGED, module_of  # noqa: E402


@cache
def other(name: str) -> Model:
    """A small model of another library, which no test changes."""
    if name in CLASSES:
        return small(name)
    if name in STAGED:
        return watched(module_of(name), (96, 128))
    return watched(vit() if name == "torchvision's ViT" else swin(name), (32, 32))


@cache
def seen(name: str) -> Activations:
    return vitviz.capture(other(name), picture())


OTHERS = [*CLASSES, *STAGED, "torchvision's ViT", "swin_t", "swin_v2_t"]


@pytest.mark.parametrize("name", OTHERS)
def test_every_step_from_the_picture_to_the_answer_is_there(name: str) -> None:
    model, acts = other(name), seen(name)
    boxes = {box.name: box for box in steps(model, picture(), acts)}
    assert next(iter(boxes)) == "picture"
    if acts.probabilities is None:
        assert {"no_head", "embedding_head"} & set(boxes)
    else:  # the weights of the head, times what it reads, are the answer
        head = boxes["head"]
        (read,) = (box.values for each, box in boxes.items() if each.startswith("output"))
        assert read is not None
        assert acts.logits is not None
        made = np.einsum("khd,hd->kh", head.parts["weight"], np.atleast_2d(read))
        assert_allclose((made + head.parts["bias"]).mean(axis=1), acts.logits, rtol=1e-4, atol=1e-5)
    for layer in range(acts.depth):
        assert layer_boxes(model, acts, layer)[-1].name == "after"
    assert np.isfinite(residual_stream(acts).patches).all()


#: Models of timm whose norms stand after attention and MLP.
SMALL: dict[str, Any] = dict(img_size=64, embed_dim=32, num_heads=4, depth=2)
SMALL_SWIN: dict[str, Any] = dict(img_size=64, depths=(2, 1), num_heads=(2, 2), embed_dim=24)
POST_NORM: dict[str, dict[str, Any]] = {
    "eva02_base_patch16_clip_224": dict(SMALL, use_post_norm=True),
    "vit_base_patch16_224": dict(SMALL, block_fn=ResPostBlock),
    "vit_relpos_base_patch32_plus_rpn_256": SMALL,
    "swinv2_tiny_window8_256": dict(SMALL_SWIN, window_size=4),
    "swinv2_cr_tiny_224": SMALL_SWIN,
}


@pytest.mark.parametrize("name", [*OTHERS, *POST_NORM])
def test_between_attention_and_mlp_is_what_attention_alone_was_added_to(name: str) -> None:
    """Where no head gives anything, it is the same for all tokens: nothing, or a norm's bias."""
    if name in POST_NORM:
        module, size = timm.create_model(name, **POST_NORM[name]).eval(), (64, 64)
    else:
        module, size = copy.deepcopy(other(name).module), other(name).preprocess.input_size
    randomise(module)
    model = watched(module, size)
    with torch.no_grad():
        for site in model.sites:
            for parameter in site.projection.parameters():
                parameter.zero_()
    acts = vitviz.capture(model, picture())
    for layer in range(acts.depth):
        tokens = [acts.tokens(layer), acts.tokens_after_attention(layer), acts.tokens(layer + 1)]
        if len({each.shape for each in tokens}) == 1:
            by_attention, by_mlp = (np.ptp(each, axis=0).max() for each in np.diff(tokens, axis=0))
            assert by_attention < 1e-4 * by_mlp


@pytest.mark.parametrize("name", [*CLASSES, "torchvision's ViT"])
def test_a_layer_opens_into_its_boxes(name: str) -> None:
    model = other(name)
    block: Any = model.sites[1].block
    seen: list[torch.Tensor] = []
    handle = block.mlp.register_forward_hook(lambda *args: seen.append(args[-1][0]))
    acts = vitviz.capture(model, picture())
    handle.remove()
    boxes = {box.name: box for box in layer_boxes(model, acts, 1)}
    wanted = ("before", "norm1", "queries", "attention", "concatenated", "projected", "hidden")
    assert {*wanted, "after_attention", "norm2", "activated", "mlp", "after"} <= set(boxes)
    mlp = boxes["mlp"].values
    assert mlp is not None
    assert_allclose(mlp, seen[0].numpy(), atol=1e-4)
    assert boxes["hidden"].shape == (acts.tokens(0).shape[0], boxes["activated"].shape[1])


@pytest.mark.parametrize("name", ["ViTForImageClassification", "torchvision's ViT"])
def test_positions_are_added_and_named(name: str) -> None:
    model, acts = other(name), seen(name)
    boxes = {box.name: box for box in steps(model, picture(), acts)}
    assert [*boxes][:7] == [
        *("picture", "patches", "flatten", "project", "prefix", "positions", "encoder"),
    ]
    made = boxes["positions"].values
    assert made is not None
    assert_allclose(made, acts.tokens(0), atol=1e-5)
    assert boxes["output"].parts["gamma"].shape == (32,)
    assert model.positions_learned
    assert model.position_embedding is not None
    assert model.position_embedding.shape == (17, 32)


@pytest.mark.parametrize("name", OTHERS)
def test_without_positions_the_order_of_patches_is_unknown(name: str) -> None:
    model = other(name)
    if position_encodings(model.module, model.layers) != ("embedding",):
        with pytest.raises(ModelError, match="without its position embedding") as caught:
            shuffle_patches(model, picture())
        assert_clear_error(caught.value)
        return
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    shuffled = shuffle_patches(model, picture())
    assert_allclose(shuffled.outputs[1, 0], shuffled.outputs[1, 1], rtol=1e-3, atol=1e-4)
    assert np.abs(shuffled.outputs[0, 0] - shuffled.outputs[0, 1]).max() > 1e-4
    equal = repeat_patch(model, picture(), (0, 0), (2, 3))
    assert equal.last_without == pytest.approx(0, abs=1e-4)
    assert equal.last > 1e-3
    assert translate(model, picture(), 8).embedded == pytest.approx(0, abs=1e-6)
    assert translate(model, picture(), 4).embedded > 1e-2
    assert all((value == before[key]).all() for key, value in model.module.state_dict().items())


@pytest.mark.parametrize("name", OTHERS)
def test_its_size_is_counted(name: str) -> None:
    model = other(name)
    size = size_of(model.module, model.sites)
    assert size.layers == len(model.layers)
    assert size.mlp_dims
    assert size.embed_dims[-1] == seen(name).tokens(size.layers).shape[1]
    heads = [name for name in ("classifier", "heads", "head") if hasattr(model.module, name)]
    if heads and not model.embeds:
        assert size.head_parameters >= 5 * size.embed_dims[-1]


EDITED = ["ViTForImageClassification", "CLIPForImageClassification", "torchvision's ViT"]


@pytest.mark.parametrize("name", EDITED)
def test_heads_can_be_muted_and_patches_left_out(name: str) -> None:
    model, whole = other(name), seen(name)
    muted = vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(0, 1)])])
    projection: Any = model.sites[0].projection
    kept = torch.tensor(whole.attention(0)[0] @ whole.values(0)[0])  # of head 0 alone
    weight = projection.weight.detach()[:, : kept.shape[1]]
    expected = whole.tokens(0) + F.linear(kept, weight, projection.bias.detach()).numpy()
    assert_allclose(muted.tokens_after_attention(0), expected, atol=1e-5)
    mask = np.zeros(whole.grid, bool)
    mask[1, 2] = True
    without = vitviz.capture(model, picture(), edits=[vitviz.DropPatches(mask)])
    assert without.attention(0).shape == (2, 16, 16)
    assert_allclose(without.tokens(0), np.delete(whole.tokens(0), 1 + 4 + 2, axis=0))
    effects = head_effects(model, picture())
    assert muted.logits is not None
    assert_allclose(effects[0, 1], muted.logits, atol=1e-5)


@pytest.mark.parametrize("name", [*EDITED, "DINOv3ViTModel", "BeitModel", *STAGED])
def test_a_pass_that_begins_at_the_muted_layer_gives_the_bits_of_a_whole_one(name: str) -> None:
    model = other(name)
    heads = [(1, 0), (len(model.layers) - 1, 1)]
    for head, answers in zip(heads, muted_answers(model, [picture()], heads, {}), strict=True):
        whole = vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([head])])
        assert_array_equal(answers, [whole.output])
        assert np.abs(answers[0] - seen(name).output).max() > 0


@pytest.mark.parametrize("name", [*EDITED, "DINOv3ViTModel", "SiglipVisionModel"])
def test_patches_are_exchanged_where_they_are_embedded(name: str) -> None:
    """As if the picture's patches had been exchanged; where the embedding is a convolution, too."""
    model = other(name)
    swapped = vitviz.capture(model, picture(), edits=[vitviz.SwapTokens([(1, 14)])])
    order = np.arange(16)
    order[[1, 14]] = 14, 1
    x = rearrange_patches(model.preprocess(picture()), (4, 4), order)
    with torch.inference_mode():
        expected = model.run(x[None])[0].numpy()
        plain = model.run(model.preprocess(picture())[None])[0].numpy()
    own = swapped.logits
    if own is None:  # an encoder alone: its CLS
        own = swapped.tokens(swapped.depth, normalised=True)[0]
    assert_allclose(own, expected, atol=1e-5)
    assert np.abs(own - plain).max() > 1e-4
