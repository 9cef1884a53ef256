"""Patches shuffled, repeated and moved, with E_pos and without it."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    OWN,
    example,
    own_model,
    picture,
    randomise,
    timm_model,
    vit_of_transformers,
    watched,
)

from vitviz import Model, ModelError
from vitviz.intervention.equivariance import (
    rearrange_patches,
    repeat_patch,
    shuffle_patches,
    translate,
)
from vitviz.vit import VisionTransformer

EMBEDDED = ("plain", "no class token", "distilled", "registers", "sincos2d", "no head")


def bare(model: Model, **options: Any) -> VisionTransformer:
    """The same network built without positions, as the oracle."""
    module = VisionTransformer(
        **{
            **dict(image_size=(16, 24), patch_size=4, embed_dim=32, depth=3, num_heads=4),
            **dict(mlp_dim=48, num_classes=5, positions="none"),
            **options,
        }
    )
    state = {k: v for k, v in model.module.state_dict().items() if k != "pos_embed"}
    module.load_state_dict(state)
    return module.eval()


def outputs(module: Any, x: torch.Tensor, *, classes: bool) -> np.ndarray:
    with torch.inference_mode():
        found = module(x[None])[0]
    values: np.ndarray = (found.softmax(-1) if classes else found).numpy()
    return values


@pytest.mark.parametrize("kind", EMBEDDED)
def test_the_four_outputs_are_those_of_networks_with_and_without_positions(kind: str) -> None:
    model, image = example(kind), picture(60, 40)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    found = shuffle_patches(model, image, seed=3)
    after = model.module.state_dict()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    x = model.preprocess(image)
    shuffled = x.clone()
    for at, patch in enumerate(found.order):
        (row, col), (was_row, was_col) = divmod(at, 6), divmod(int(patch), 6)
        shuffled[:, 4 * row : 4 * row + 4, 4 * col : 4 * col + 4] = x[
            :, 4 * was_row : 4 * was_row + 4, 4 * was_col : 4 * was_col + 4
        ]
    plain = bare(model, **{k: v for k, v in OWN[kind].items() if k != "positions"})
    for row, module in enumerate((model.module, plain)):
        for col, one in enumerate((x, shuffled)):
            expected = outputs(module, one, classes=kind != "no head")
            np.testing.assert_allclose(found.outputs[row, col], expected, atol=1e-6)
    with_positions, without = found.changes
    assert without < 1e-4
    assert with_positions > 100 * without


def test_the_permutation_is_that_of_its_seed_and_complete() -> None:
    model, image = example("plain"), picture(60, 40)
    one, again, other = (shuffle_patches(model, image, seed=seed).order for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert sorted(one) == list(range(24))
    assert (one != other).any()


def padding_model() -> Model:
    options: Any = dict(
        img_size=72, dynamic_img_pad=True, dynamic_img_size=True, depth=1, num_classes=5
    )
    return watched(timm.create_model("vit_tiny_patch16_224", **options).eval(), (72, 72))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: example("no positions"), "it has no position"),
        (lambda: example("stem"), "from convolutions"),
        (lambda: timm_model("beit_base_patch16_224", depth=1), "relative bias"),
        (lambda: padding_model(), "pads its input"),
    ],
)
def test_what_knows_places_otherwise_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        shuffle_patches(make(), picture(60, 40))


@pytest.mark.parametrize("kind", ["plain", "distilled", "no class token"])
def test_equal_patches_differ_by_their_positions_alone(kind: str) -> None:
    found = repeat_patch(example(kind), picture(60, 40), (0, 1), (3, 4))
    assert found.embedded == 0
    assert found.last > 0.001
    assert found.last_without < 1e-6


@pytest.mark.parametrize("size", [(46, 44), (40, 47)])
def test_pixels_beyond_the_last_whole_patch_stay_in_their_place(size: tuple[int, int]) -> None:
    module = vit_of_transformers(image_size=40, patch_size=8, num_labels=5)
    randomise(module)
    model = watched(module, size)
    assert model.layers[0].query_grid == (5, 5)
    with_positions, without = shuffle_patches(model, picture(60, 60)).changes
    assert without < 1e-5 < with_positions
    equal = repeat_patch(model, picture(60, 60), (0, 1), (3, 4))
    assert equal.embedded == 0
    assert equal.last_without < 1e-5 < equal.last


@pytest.mark.parametrize("patch", [(0, 6), (-1, 0), (4, 0)])
def test_a_patch_outside_of_the_grid_is_refused(patch: tuple[int, int]) -> None:
    for first, second in ((patch, (1, 1)), ((1, 1), patch)):
        with pytest.raises(ValueError, match=r"a patch \(row, column\) of 4 x 6, got"):
            repeat_patch(example("plain"), picture(60, 40), first, second)


def test_a_move_by_a_patch_moves_the_embeddings_alone() -> None:
    whole, half = (translate(example("plain"), picture(60, 40), pixels) for pixels in (4, 2))
    assert whole.embedded == 0
    assert half.embedded > 0.05
    assert whole.last > 0.01  # E_pos stays where it was


def test_a_move_is_measured_at_the_nearest_place() -> None:
    """Against the definition, patch by patch."""
    model, image, pixels = example("plain"), picture(60, 40), 3
    embed: Any = model.module.patch_embed
    x = model.preprocess(image)
    moved = torch.zeros_like(x)
    moved[..., pixels:] = x[..., :-pixels]
    moved[..., :pixels] = x[..., 1 : pixels + 1].flip(-1)
    with torch.inference_mode():
        a, b = (embed(one[None])[0].reshape(4, 6, -1) for one in (x, moved))
    changes = []
    for row in range(4):
        for col in range(1, 6):
            near = min((a[row, col - 1], a[row, col]), key=lambda was: (b[row, col] - was).norm())
            changes.append(float((b[row, col] - near).norm() / near.norm()))
    assert translate(model, image, pixels).embedded == pytest.approx(np.mean(changes), rel=1e-5)


@pytest.mark.parametrize("pixels", [0, 5, 8, -1])
def test_a_move_by_more_than_a_patch_is_refused(pixels: int) -> None:
    with pytest.raises(ValueError, match=f"move by 1 to 4 pixels, got {pixels}"):
        translate(example("plain"), picture(60, 40), pixels)


def test_a_picture_is_put_together_from_its_patches() -> None:
    x = torch.arange(3 * 8 * 12.0).reshape(3, 8, 12)
    assert torch.equal(rearrange_patches(x, (2, 3), np.arange(6)), x)
    swapped = rearrange_patches(x, (2, 3), np.array([5, 1, 2, 3, 4, 0]))
    assert torch.equal(swapped[:, :4, :4], x[:, 4:, 8:])
    assert torch.equal(swapped[:, 4:, 8:], x[:, :4, :4])


@pytest.mark.parametrize("size", [(8, 8), (4, 8), (12, 4)])
def test_few_patches_are_shuffled_too(size: tuple[int, int]) -> None:
    """Every twenty-fourth order of four patches is the one in which they lie."""
    model = own_model(image_size=size)
    for seed in range(10):
        result = shuffle_patches(model, picture(), seed=seed)
        assert sorted(result.order) == [*range(size[0] * size[1] // 16)]
        assert (result.order != np.arange(len(result.order))).any()
        assert result.changes[0] > 1e-3 > 10 * result.changes[1]


def test_one_patch_has_no_other_order() -> None:
    with pytest.raises(ModelError, match="as one patch"):
        shuffle_patches(own_model(image_size=4), picture())
