"""In every family, what is planted is found where it lies: exactly, in the picture's own pixels."""

from typing import Any

import pytest
import timm
from examples import narrow_stems, patch_box, skip_random_weights
from planting import assert_found, planted, scene

from vitviz.activations import capture
from vitviz.model import Model

#: Families in which all tokens attend to all, each of other code: its patch, and its prefix.
GLOBAL: dict[str, tuple[int, tuple[str, ...]]] = {
    "vit_tiny_patch16_224": (16, ("cls",)),
    "vit_huge_patch14_224": (14, ("cls",)),
    "deit_tiny_distilled_patch16_224": (16, ("cls", "dist")),
    "deit3_small_patch16_224": (16, ("cls",)),
    "flexivit_small": (16, ("cls",)),
    "vit_base_patch16_clip_224": (16, ("cls",)),
    "vit_base_patch16_siglip_224": (16, ()),
    "vit_small_patch14_dinov2": (14, ("cls",)),
    "vit_small_patch14_reg4_dinov2": (14, ("cls", "reg1", "reg2", "reg3", "reg4")),
    "vit_base_patch16_rpn_224": (16, ()),
    "vit_base_patch16_xp_224": (16, ("cls",)),
    "aimv2_large_patch14_224": (14, ()),
    "vit_small_patch16_dinov3": (16, ("cls", "reg1", "reg2", "reg3", "reg4")),
    "vit_small_patch16_rope_224": (16, ("cls",)),
    "vit_small_patch16_rope_mixed_224": (16, ("cls",)),
    "eva02_tiny_patch14_224": (14, ("cls",)),
    "eva02_enormous_patch14_clip_224": (14, ("cls",)),
    "beit_base_patch16_224": (16, ("cls",)),
    "vit_relpos_small_patch16_224": (16, ()),
    "vit_relpos_base_patch16_clsgap_224": (16, ("cls",)),
    "vit_relpos_small_patch16_rpn_224": (16, ()),
    "vit_small_r26_s32_224": (32, ("cls",)),
    "vit_base_r50_s16_224": (16, ("cls",)),
}
SMALL: dict[str, Any] = dict(embed_dim=64, num_heads=2, depth=2)


def model_of(name: str, grid: tuple[int, int]) -> Model:
    side = GLOBAL[name][0]
    size = (grid[0] * side, grid[1] * side)
    with skip_random_weights(), narrow_stems():
        module = timm.create_model(name, img_size=size, **SMALL).eval()
    return planted(module, size)


@pytest.mark.parametrize(
    ("grid", "targets"),
    [
        ((5, 7), [(4, 1), (1, 5)]),
        ((7, 4), [(2, 3)]),
        ((5, 5), [(0, 4)]),
    ],
)
@pytest.mark.parametrize("name", GLOBAL)
def test_every_head_is_found_to_look_at_the_planted_patch(
    name: str, grid: tuple[int, int], targets: list[tuple[int, int]]
) -> None:
    model = model_of(name, grid)
    for target in targets:
        assert_planted_is_found(model, *GLOBAL[name], grid, target)


def assert_planted_is_found(
    model: Model, side: int, prefix: tuple[str, ...], grid: tuple[int, int], target: tuple[int, int]
) -> None:
    image, box = scene(side, grid, target)
    acts = capture(model, image)
    assert [layer.refusal for layer in acts.layers] == [None, None]
    assert acts.layers[0].prefix == prefix
    assert acts.grid == grid
    assert acts.patch_size == side
    assert_found(acts, target, side)
    found = patch_box(acts.crop, acts.grid, *target)
    if not model.sites[0].steps:
        assert found == pytest.approx(box, abs=1)
    else:  # a hybrid: what its CNN hands on lies in the box
        left, top, right, bottom = found
        assert box[0] - 1 <= (left + right) / 2 <= box[2] + 1
        assert box[1] - 1 <= (top + bottom) / 2 <= box[3] + 1
