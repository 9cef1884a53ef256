"""Toys of the families allow the pairs that they should, and sizes are those of a formula."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
from examples import narrow_stems, picture
from numpy.testing import assert_array_equal

from vitviz.activations import capture
from vitviz.inspection import allowed_pairs
from vitviz.model.families import family_of
from vitviz.zoo import (
    FIRST_LAYERS,
    PAPER_SIZES,
    TOYS,
    PaperSize,
    catalogue,
    count_architecture,
    narrow_model,
    size_of,
    toy_model,
)
from vitviz.zoo.architectures import build_outline, preprocessing_of

every_family = pytest.mark.parametrize("family", TOYS)


@every_family
def test_the_first_layer_of_a_family_allows_the_keys_that_are_on_record(family: str) -> None:
    """The table holds what the architecture does at its own size."""
    first = FIRST_LAYERS[family]
    with narrow_stems():
        model = narrow_model(family)
        acts = capture(model, picture())
    layer = acts.layers[0]
    assert (layer.kind, *layer.query_grid) == (first.kind, first.queries, first.queries)
    assert layer.key_grid == (first.keys, first.keys)
    for query in ((0, 0), (first.queries // 2, first.queries - 1)):
        allowed = (
            allowed_pairs(np.abs(model.token_mixing(0)))
            if layer.kind == "mixing"
            else allowed_pairs(acts.attention_map(0, query))
        )
        assert_array_equal(allowed, first.allowed_keys(query))


def meeting(side: int, *groups: list[int]) -> np.ndarray:
    """The pairs of a square grid whose rows are in one group and whose columns are in one."""
    group_of = {place: number for number, group in enumerate(groups) for place in group}
    tokens = [(row, col) for row in range(side) for col in range(side)]
    return np.array(
        [
            [group_of[i[0]] == group_of[j[0]] and group_of[i[1]] == group_of[j[1]] for j in tokens]
            for i in tokens
        ]
    )


NEIGHBOURS = meeting(8, [0, 1, 2, 3], [4, 5, 6, 7])


@pytest.mark.parametrize(
    ("family", "masks"),
    [
        ("ViT", [np.ones((10, 10), bool)]),
        ("DeiT", [np.ones((11, 11), bool)]),
        ("Hybrid", [np.ones((10, 10), bool)]),
        ("Swin", [NEIGHBOURS, meeting(8, [0, 1], [2, 3, 4, 5], [6, 7])]),  # which are shifted
        ("MaxViT", [NEIGHBOURS, meeting(8, [0, 2, 4, 6], [1, 3, 5, 7])]),  # and then a grid
        ("PVT", [np.ones((64, 16), bool), np.ones((16, 16), bool)]),  # keys are pooled by 2 x 2
        ("CoAtNet", [np.ones((16, 16), bool), np.ones((4, 4), bool)]),
        ("CaiT", [np.ones((9, 9), bool), np.ones((1, 10), bool)]),
    ],
)
def test_a_toy_allows_these_pairs(family: str, masks: list[np.ndarray]) -> None:
    with narrow_stems():
        acts = capture(toy_model(family), picture())
    assert [layer.refusal for layer in acts.layers] == [None] * acts.depth
    for layer, mask in zip(range(acts.depth), masks, strict=True):
        assert_array_equal(allowed_pairs(acts.attention(layer)), mask)


def test_coatnet_begins_with_convolutions() -> None:
    assert [layer.stage for layer in toy_model("CoAtNet").layers] == [2, 3]


def test_a_mixer_has_weights_between_all_patches_and_no_attention() -> None:
    model = toy_model("MLP-Mixer")
    assert [layer.kind for layer in model.layers] == ["mixing"]
    weights = model.token_mixing(0)
    assert weights.shape == (8, 3, 3)
    assert weights.all()


@every_family
def test_a_narrow_copy_has_the_grids_and_layers_of_its_architecture(family: str) -> None:
    outline = build_outline(TOYS[family].architecture, {})
    preprocessing = preprocessing_of(outline, None)
    wanted = family_of(outline).layers(outline, preprocessing.input_size)
    with narrow_stems():
        model = narrow_model(family)
    assert [replace(layer, num_heads=0) for layer in model.layers] == [
        replace(layer, num_heads=0) for layer in wanted
    ]
    image = picture(90, 60)
    assert model.preprocess.place(image) == preprocessing.place(image)
    acts = capture(model, image)
    mixing = family == "MLP-Mixer"
    assert all((layer.refusal is not None) == mixing for layer in acts.layers)


def test_every_architecture_is_in_the_menu_under_its_family() -> None:
    menu = {entry.name: entry.family for entry in catalogue()}
    assert {family: menu[toy.architecture] for family, toy in TOYS.items()} == {
        family: family for family in TOYS
    }


# --- sizes --------------------------------------------------------------------------------------


def expected_parameters(size: PaperSize, patch: int) -> int:
    """Of a ViT without its head, from the equations of the paper."""
    wide, mlp = size.embed_dim, size.mlp_dim
    tokens = (224 // patch) ** 2 + 1
    embedding = 3 * patch**2 * wide + wide + wide + tokens * wide  # E and bias, CLS, E_pos
    attention = 4 * (wide**2 + wide)
    layer = attention + (wide * mlp + mlp) + (mlp * wide + wide) + 2 * (2 * wide)
    return embedding + size.layers * layer + 2 * wide


@pytest.mark.parametrize(
    ("paper", "patch"),
    list(zip(PAPER_SIZES, (16, 16, 14, 14), strict=True)),
    ids=[paper.name for paper in PAPER_SIZES],
)
def test_sizes_are_those_of_the_papers(paper: PaperSize, patch: int) -> None:
    size = count_architecture(paper.architecture)
    assert size.layers == paper.layers
    assert (size.embed_dims, size.mlp_dims) == ((paper.embed_dim,), (paper.mlp_dim,))
    assert size.heads == (paper.heads,)
    assert size.head_parameters == 1000 * (paper.embed_dim + 1)
    body = size.parameters - size.head_parameters
    assert body == expected_parameters(paper, patch)
    assert body / 1e6 == pytest.approx(paper.parameters, rel=0.0125)


def test_a_size_names_every_width_of_the_stages() -> None:
    model = narrow_model("Swin")
    size = size_of(model.module, model.sites)
    assert size.embed_dims == (16, 32, 64, 128)
    assert size.mlp_dims == (64, 128, 256, 512)
    assert size.heads == (1,)
    assert size.layers == 12
    assert size.head_parameters == 1000 * 129


@pytest.mark.parametrize(
    ("architecture", "patch", "width"),
    [
        ("vit_giant_patch14_dinov2", 14, 128),  # both halves of the gate in one matrix
        ("eva02_base_patch14_224", 14, 128),  # in two
        ("vit_base_patch16_224", 16, 192),
    ],
)
def test_the_width_of_a_gated_mlp_is_that_behind_the_gate(
    architecture: str, patch: int, width: int
) -> None:
    options: dict[str, Any] = dict(embed_dim=48, depth=1, num_heads=3, img_size=2 * patch)
    module = timm.create_model(architecture, **options)
    size = size_of(module, family_of(module).sites(module, (2 * patch, 2 * patch)))
    assert (size.embed_dims, size.mlp_dims) == ((48,), (width,))


def test_a_mixer_has_a_size_without_heads() -> None:
    model = toy_model("MLP-Mixer")
    size = size_of(model.module, model.sites)
    assert (size.embed_dims, size.mlp_dims, size.heads) == ((16,), (64,), ())


def test_both_heads_of_a_distilled_model_are_heads() -> None:
    model = toy_model("DeiT")
    assert size_of(model.module, model.sites).head_parameters == 2 * 1000 * 17
