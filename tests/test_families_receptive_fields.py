"""Receptive fields of cells are centred where the model says, also behind overlapping convolutions.

The oracle is a ramp: networks are made linear, and their kernels positive and lopsided, so that
the value of a cell on a picture that grows brighter downwards is its receptive field's centre.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    narrow_stems,
    own_model,
    own_module,
    patch_box,
    picture,
    seeded,
    skip_random_weights,
    watched,
)
from numpy.testing import assert_allclose
from planting import silence
from timm.layers import Conv2dSame, pad_same
from torch import Tensor, nn
from torch.nn import functional as F

from vitviz.activations import FillPatches, capture, edited_input
from vitviz.model import Model
from vitviz.model.families import ModelError

_MAXXVIT: dict[str, Any] = dict(img_size=128, stem_width=16, embed_dim=(32, 32, 32, 32))
#: Architectures whose grids are made by convolutions that overlap, and what keeps them small.
OVERLAPPING: dict[str, dict[str, Any]] = {
    "pvt_v2_b0": dict(depths=(1, 1, 1, 1), embed_dims=(8, 16, 20, 32)),
    "coatnet_0_rw_224": dict(depths=(1, 1, 2, 1), **_MAXXVIT),
    "coatnet_0_224": dict(depths=(1, 1, 2, 1), **_MAXXVIT),
    "maxvit_tiny_tf_224": dict(depths=(1, 1, 1, 1), **_MAXXVIT),
    "maxvit_nano_rw_256": dict(depths=(1, 1, 1, 1), **_MAXXVIT),
    "vit_tiny_r_s16_p8_224": dict(depth=2),
    "vit_small_r26_s32_224": dict(depth=2),
    "vit_small_resnet26d_224": dict(img_size=128, depth=2),
    "vitamin_small_224": dict(img_size=128, depth=2),
}


#: Models of timm whose patch embedding is exchanged for convolutions that overlap.
STEMS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": dict(img_size=(96, 160), embed_dim=24, num_heads=2, depth=2),
    "eva02_tiny_patch14_224": dict(
        img_size=(96, 160), patch_size=16, embed_dim=24, num_heads=2, depth=2
    ),
    "swin_tiny_patch4_window7_224": dict(
        img_size=(56, 84), embed_dim=12, num_heads=(2,), depths=(2,)
    ),
}


def stem(width: int, step: int) -> nn.Module:
    """Halve the picture again and again, in the place of one large patch."""
    widths = [3, *(8 for _ in range(int(math.log2(step)) - 1)), width]
    layers: list[nn.Module] = []
    for one, other in pairwise(widths):
        layers += [nn.Conv2d(one, other, 3, stride=2, padding=1), nn.BatchNorm2d(other), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def size_of(name: str) -> tuple[int, int]:
    side = OVERLAPPING[name].get("img_size", 224)
    return (side, side)


class _Mean(nn.Module):
    """Of what a pooling takes the maximum of."""

    def __init__(self, pooling: Any) -> None:
        super().__init__()
        self.kernel, self.stride = pooling.kernel_size, pooling.stride
        self.same = type(pooling).__name__.endswith("Same")
        self.padding = 0 if self.same else pooling.padding

    def forward(self, x: Tensor) -> Tensor:
        if self.same:
            x = pad_same(x, self.kernel, self.stride)
        return F.avg_pool2d(x, self.kernel, self.stride, self.padding)


def make_linear(module: nn.Module) -> None:
    """Take out norms, activations and gates; a maximum becomes a mean."""
    for name, part in module.named_children():
        kind = type(part).__name__
        if isinstance(part, nn.Conv2d) and kind.startswith("StdConv"):
            plain: Any = Conv2dSame if kind.endswith("Same") else nn.Conv2d
            sizes = dict(stride=part.stride, padding=part.padding, groups=part.groups)
            same = plain(part.in_channels, part.out_channels, part.kernel_size, **sizes)
            setattr(module, name, same)
        elif "MaxPool" in kind:
            setattr(module, name, _Mean(part))
        elif kind.endswith("Head"):  # NormMlpClassifierHead, which pools
            make_linear(part)
        elif "Norm" in kind or kind in ("SEModule", "ReLU", "SiLU", "GELU", "GELUTanh"):
            setattr(module, name, nn.Identity())
        else:
            make_linear(part)


@torch.no_grad()
def make_lopsided(module: nn.Module) -> None:
    """Let kernels that overlap look to one side, twice as much to each pixel as to the next.

    Padding on all sides moves cells up, and padding as TensorFlow's down: so do these kernels.
    """
    same = any(isinstance(part, Conv2dSame) for part in module.modules())
    ratio = torch.tensor(2.0 if same else 0.5)
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            height, width = part.kernel_size
            kernel = torch.outer(ratio ** torch.arange(height), ratio ** torch.arange(width))
            if part.kernel_size == part.stride:  # a patch, whose cell is all of it
                kernel = torch.ones_like(kernel)
            part.weight.copy_((kernel / kernel.sum() / part.weight.shape[1]).expand_as(part.weight))
            if part.bias is not None:
                part.bias.zero_()


@torch.no_grad()
def silence_blocks(model: Model) -> None:
    """Let the blocks add nothing to the stream."""
    for site in model.sites:
        block: Any = site.block
        for part in (block.attn.proj, block.mlp):
            for parameter in part.parameters():
                parameter.zero_()


def lopsided(name: str) -> Model:
    module: Any
    if name == "own hybrid":
        module = own_module(image_size=(96, 160), patch_size=16, stem_width=8, depth=2)
        size = module.patch_embed.image_size
    elif name in STEMS:
        with skip_random_weights(), torch.no_grad():
            module = timm.create_model(name, **STEMS[name])
            embedding = module.patch_embed
            embedding.proj = stem(embedding.proj.out_channels, embedding.patch_size[0])
            silence(module)
        size = embedding.img_size
    else:
        with skip_random_weights(), narrow_stems(), torch.no_grad():
            module = timm.create_model(name, **OVERLAPPING[name])
            silence(module)
        size = size_of(name)
    make_linear(module)
    make_lopsided(module.eval())
    model = watched(module, size)
    silence_blocks(model)
    return model


def streams(model: Model, x: Tensor) -> list[Tensor]:
    """What each picture's channels hold after each layer's block, by a hook of ours.

    (Pictures, rows, columns).
    """
    seen: list[Tensor] = []
    hooks = [
        site.block.register_forward_hook(lambda block, args, output: seen.append(output))
        for site in model.sites
    ]
    with torch.no_grad():
        model.module(x)
    for hook in hooks:
        hook.remove()
    found = []
    for site, z in zip(model.sites, seen, strict=True):
        grid = site.layer.query_grid
        if site.layout == "channels":
            z = z.permute(0, 2, 3, 1)
        elif site.layout == "tokens":
            z = z[:, z.shape[1] - math.prod(grid) :]
        found.append(z.reshape(len(z), *grid, -1).double().sum(dim=3))
    return found


def places(model: Model) -> list[np.ndarray]:
    """Down and right of where the cells in the middle of each layer's grid look, in pixels."""
    height, width = model.preprocess.input_size
    down = (torch.arange(height) + 0.5)[:, None].expand(3, height, width)
    right = (torch.arange(width) + 0.5).expand(3, height, width)
    pictures = [down, right, torch.zeros_like(down), torch.ones_like(down)]
    found = []
    for *ramps, least, most in streams(model, torch.stack(pictures)):
        rows, cols = (slice((count - 1) // 2, count // 2 + 1) for count in least.shape)
        shares = [((seen - least) / (most - least))[rows, cols].mean() for seen in ramps]
        found.append(np.array(shares))
    return found


@pytest.mark.parametrize("name", [*OVERLAPPING, *STEMS, "own hybrid"])
def test_cells_lie_where_they_look(name: str) -> None:
    model = lopsided(name)
    height, width = model.preprocess.input_size
    acts = capture(model, picture(3 * width, 3 * height))  # so large, to the model's input
    tiled = []
    for number, place in enumerate(places(model)):
        layer = acts.layers[number]
        (rows, cols), step = layer.query_grid, layer.patch_size
        tiled.append(place - np.multiply((rows, cols), step) / 2)
        assert_allclose(model.offsets[number], tiled[-1], atol=1, err_msg=layer.name)
        corners = [
            patch_box(acts.crop_of(number), (rows, cols), *cell)
            for cell in (((rows - 1) // 2, (cols - 1) // 2), (rows // 2, cols // 2))
        ]
        left, top, right, bottom = np.mean(corners, axis=0) / 3
        assert_allclose(((top + bottom) / 2, (left + right) / 2), place, atol=1, err_msg=layer.name)
        keys = acts.crop_of(number, keys=True)
        assert_allclose(keys, acts.crop_of(number), atol=1e-3)
    assert np.max(np.abs(tiled)) > 1  # where patches would lie is too far away


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("test_vit", {}),
        ("swin_tiny_patch4_window7_224", dict(embed_dim=24)),
        ("cait_xxs24_224", dict(depth=2)),
    ],
)
def test_patches_that_are_cut_out_lie_where_they_were_cut(
    name: str, options: dict[str, Any]
) -> None:
    with seeded():
        module: Any = timm.create_model(name, **options).eval()
    model = watched(module, module.pretrained_cfg["input_size"][-2:])
    assert set(model.offsets) == {(0.0, 0.0)}


def test_class_attention_lies_where_the_patches_before_it_do() -> None:
    with seeded():
        module: Any = timm.create_model("cait_xxs24_224", embed_dim=24, num_heads=2, depth=1)
        module.patch_embed.proj = stem(24, 16)
    offsets = watched(module.eval(), (224, 224)).offsets
    assert len(set(offsets)) == 1 < len(offsets)
    assert_allclose(offsets[0], (-7.5, -7.5), atol=2)  # random filters weigh their pixels unequally


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_places_are_found_in_the_models_own_precision(dtype: torch.dtype) -> None:
    model = own_model(image_size=(96, 160), patch_size=16, stem_width=8, depth=2)
    single = model.offsets
    model.module.to(dtype)
    assert_allclose(watched(model.module, (96, 160)).offsets, single, atol=0.1)


def test_a_patch_is_filled_where_it_looks() -> None:
    model = watched(timm.create_model("pvt_v2_b0").eval(), (224, 224))
    mask = np.zeros((56, 56), bool)
    mask[10:20, 30:33] = True
    plain, filled = (edited_input(model, picture(), e) for e in ((), [FillPatches(mask, "mean")]))
    assert filled.shape == (224, 224, 4)  # the pixels of the grid
    rows, cols = np.nonzero((plain != filled).any(axis=2))
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (40, 79, 120, 131)


def test_nothing_is_measured_of_a_module_in_training_mode() -> None:
    with seeded():
        module: Any = timm.create_model("coatnet_0_rw_224", **OVERLAPPING["coatnet_0_rw_224"])
    model = watched(module.train(), size_of("coatnet_0_rw_224"))
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with pytest.raises(ModelError, match="training mode"):
        _ = model.offsets
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name])


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_cells_that_look_nowhere_lie_where_patches_would(value: float) -> None:
    model = own_model(image_size=(96, 160), patch_size=16, stem_width=8, depth=2)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.fill_(value)
    assert set(model.offsets) == {(0.0, 0.0)}


def test_a_module_that_was_made_in_inference_mode_is_measured_too() -> None:
    sizes: Any = dict(image_size=(96, 160), patch_size=16, stem_width=8, depth=2)
    with torch.inference_mode():
        module = own_module(**sizes)
    offsets = watched(module, (96, 160)).offsets
    assert offsets == watched(own_module(**sizes), (96, 160)).offsets
    assert any(offsets[0])
    assert all(weight.is_inference() for weight in module.parameters())  # it is left as it is
