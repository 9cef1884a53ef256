"""Each edit is what the same change made by hand is, and is gone after its pass."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    assert_clear_error,
    equal_captures,
    example,
    narrow_stages,
    own_model,
    picture,
    plain_logits,
    randomise,
    skip_random_weights,
    timm_module,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from timm.models.vision_transformer import ParallelScalingBlock
from torch import Tensor, nn
from torch.nn import functional as F

from vitviz.activations import (
    DropPatches,
    Edit,
    FillPatches,
    MuteHeads,
    SwapTokens,
    capture,
    load_activations,
)
from vitviz.activations.edits import fill_patches
from vitviz.intervention import head_effects, head_outputs
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.model.model import RECORDER
from vitviz.plots import attention_map
from vitviz.vit import VisionTransformer

# --- edits: muting heads ------------------------------------------------------------------------


SMALL: dict[str, Any] = dict(img_size=64, embed_dim=32, num_heads=4, depth=2)
NARROW_SWIN: dict[str, Any] = dict(depths=(2, 1, 1, 1), embed_dim=24)
#: Where a norm, a gate or nothing at all stands between the heads and the module that mixes them.
PROJECTED: dict[str, dict[str, Any]] = {
    "beit3_base_patch16_224": SMALL,
    "eva02_base_patch16_clip_224": SMALL,
    "eva02_tiny_patch14_224": dict(SMALL, img_size=56, scale_attn_inner=True, qkv_fused=False),
    "vit_small_patch16_dinov3": SMALL,
    "vit_tiny_patch16_224": dict(SMALL, scale_attn_norm=True),
    "vit_small_patch16_224": dict(SMALL, block_fn=ParallelScalingBlock),
    "vit_base_patch16_224": dict(SMALL, block_fn=partial(ParallelScalingBlock, fuse_out_proj=True)),
    "beit_base_patch16_224": SMALL,
    "test_vit_relpos": dict(img_size=64),
    "pvt_v2_b0": dict(depths=(1, 1, 1, 1)),
    "swin_tiny_patch4_window7_224": dict(img_size=64, **NARROW_SWIN),
    "swinv2_cr_tiny_224": dict(img_size=(64, 96), **NARROW_SWIN),
    "maxvit_tiny_tf_224": dict(img_size=64, **narrow_stages()),
    "coatnet_nano_rw_224": dict(img_size=64, **narrow_stages()),
}


@pytest.mark.parametrize("name", PROJECTED)
def test_a_head_is_muted_where_all_heads_enter_the_projection(name: str) -> None:
    options = dict(PROJECTED[name], num_classes=5)
    with skip_random_weights():
        module: Any = timm.create_model(name, **options).eval()
    randomise(module)
    size = options.get("img_size", 64)  # PVT is not told it
    model = watched(module, size if isinstance(size, tuple) else (size, size))
    x = model.preprocess(picture())[None]
    plain = plain_logits(model, picture()).numpy()
    pairs = [(0, 0), (len(model.layers) - 1, model.layers[-1].num_heads - 1)]
    for layer, head in pairs:
        muted = capture(model, picture(), edits=[MuteHeads([(layer, head)])])
        changed: Any = copy.deepcopy(module).requires_grad_(False)
        block = changed.get_submodule(model.layers[layer].name)
        attn = getattr(block, "attn", block)
        named = (getattr(attn, part, None) for part in ("proj", "attn_out_proj", "out_proj"))
        projection = next(part for part in named if part is not None)
        # Where the MLP runs beside attention, one projection may take both.
        width = (projection.weight.shape[1] if attn is not block else 32) // attn.num_heads
        projection.weight[:, head * width : (head + 1) * width] = 0
        with torch.inference_mode():
            expected = changed(x)[0]
        assert muted.logits is not None
        assert_allclose(muted.logits, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))
        assert np.abs(muted.logits - plain).max() > 1e-3 * np.abs(plain).max()
        assert muted.layers[layer].refusal is None
    assert_array_equal(capture(model, picture()).logits, plain)


class Adapted(nn.Module):
    """A linear layer with a narrow one beside it, as low-rank adaptation has them."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, 4)
        self.up = nn.Linear(4, inner.out_features)

    def forward(self, z: Tensor) -> Tensor:
        adapted: Tensor = self.inner(z) + self.up(self.down(z))
        return adapted


def test_a_head_is_muted_before_whatever_projects_it() -> None:
    module: Any = own_model().module
    for block in module.blocks:
        block.attn.qkv, block.attn.proj = Adapted(block.attn.qkv), Adapted(block.attn.proj)
    randomise(module.eval())
    model = watched(module, (16, 24))
    plain = plain_logits(model, picture())
    assert_array_equal(capture(model, picture()).logits, plain.numpy())
    muted = capture(model, picture(), edits=[MuteHeads([(1, 2)])])
    changed: Any = copy.deepcopy(module).requires_grad_(False)
    for part in (changed.blocks[1].attn.proj.inner, changed.blocks[1].attn.proj.down):
        part.weight[:, 16:24] = 0
    with torch.inference_mode():
        expected = changed(model.preprocess(picture())[None])[0]
    assert muted.logits is not None
    assert_allclose(muted.logits, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))
    assert np.abs(muted.logits - plain.numpy()).max() > 1e-3


def test_heads_that_cannot_be_told_apart_are_not_muted() -> None:
    model = own_model()
    block: Any = model.module.get_submodule("blocks.1")
    block.attn.forward = lambda z: block.attn.proj(z)
    assert "cannot be read" in str(capture(model, picture()).layers[1].refusal)
    capture(model, picture(), edits=[MuteHeads([(0, 0)])])
    for ask in (
        lambda: capture(model, picture(), edits=[MuteHeads([(1, 0)])]),
        lambda: head_effects(model, picture()),
    ):
        with pytest.raises(ModelError, match=r"blocks\.1 cannot be muted: it called") as caught:
            ask()
        assert_clear_error(caught.value)


def test_heads_that_are_mixed_are_not_muted() -> None:
    options: Any = dict(img_size=64, depth=1)
    model = watched(timm.create_model("cait_xxs24_224", **options).eval(), (64, 64))
    for ask in (
        lambda: capture(model, picture(), edits=[MuteHeads([(0, 0)])]),
        lambda: head_effects(model, picture()),
    ):
        with pytest.raises(ModelError, match=r"of blocks\.0 cannot be muted: it mixes") as caught:
            ask()
        assert_clear_error(caught.value)
    plain = capture(model, picture())
    muted = capture(model, picture(), edits=[MuteHeads([(1, 0)])])  # the class token's first layer
    assert np.abs(muted.tokens(2) - plain.tokens(2)).max() > 0
    assert_array_equal(muted.attention(1), plain.attention(1))


def test_the_provenance_says_what_was_edited(tmp_path: Path) -> None:
    model, image = example("plain"), picture()
    plain = capture(model, image)
    assert plain.provenance == model.provenance
    mask = np.eye(4, 6, dtype=bool)
    edits: list[Edit] = [MuteHeads([(0, 1)]), FillPatches(mask), MuteHeads([(1, 0)])]
    edited = capture(model, image, edits=edits)
    assert edited.provenance == f"{model.provenance}, edited by MuteHeads, FillPatches"
    assert edited.provenance in attention_map(edited, 0).layout.meta["provenance"]
    assert (plain.record["edits"], edited.record["edits"]) == ([], ["MuteHeads", "FillPatches"])
    edited.save(tmp_path / "edited.npz")
    loaded = load_activations(tmp_path / "edited.npz")
    assert (loaded.provenance, loaded.record) == (edited.provenance, edited.record)


def test_a_muted_head_still_shows_where_it_looks() -> None:
    model = example("plain")
    plain = capture(model, picture())
    muted = capture(model, picture(), edits=[MuteHeads([(0, 2)])])
    assert_array_equal(muted.attention(0), plain.attention(0))
    assert np.abs(muted.attention(1) - plain.attention(1)).max() > 1e-3


def test_edits_and_their_heads_may_come_from_iterators() -> None:
    once, edits = MuteHeads(head for head in [(0, 0)]), [MuteHeads([(0, 0)])]
    expected = capture(example("plain"), picture(), edits=edits)
    given: Any
    for given in ([once], [once], iter(edits)):
        assert equal_captures(capture(example("plain"), picture(), edits=given), expected)


# --- edits: dropping patches --------------------------------------------------------------------


def some_patches() -> np.ndarray:
    mask = np.zeros((4, 6), bool)
    mask[0, 0] = mask[1, 2:5] = mask[3, 5] = True
    return mask


@pytest.mark.parametrize(
    "name", ["plain", "no class token", "distilled", "registers", "registers alone", "stem"]
)
def test_dropped_patches_are_not_in_the_pass(name: str) -> None:
    model = example(name)
    module = model.module
    assert isinstance(module, VisionTransformer)
    mask = some_patches()
    acts = capture(model, picture(), edits=[DropPatches(mask)])

    prefix = module.num_prefix_tokens
    kept = [*range(prefix), *(prefix + np.flatnonzero(~mask))]
    with torch.inference_mode():
        z = module.embed(model.preprocess(picture())[None])[:, kept]
        embedded = z
        for block in module.blocks:
            z = block(z)
        logits = module.forward_head(module.norm(z))[0]
    assert_array_equal(acts.tokens(0), embedded[0].numpy())
    assert_array_equal(acts.tokens(3), z[0].numpy())
    assert_array_equal(acts.logits, logits.numpy())

    tokens = prefix + 24 - mask.sum()
    assert acts.tokens(2).shape == (tokens, 32)
    assert acts.attention(1).shape == (4, tokens, tokens)
    assert_array_equal(acts.patches, np.flatnonzero(~mask))
    assert [layer.refusal for layer in acts.layers] == [None] * 3


def test_timms_dropped_patches_are_not_in_the_pass() -> None:
    model = example("test_vit")  # a grid of 10 x 10
    mask = np.random.default_rng(0).random((10, 10)) < 0.4
    acts = capture(model, picture(), edits=[DropPatches(mask)])
    module: Any = model.module
    with torch.inference_mode():
        z = module._pos_embed(module.patch_embed(model.preprocess(picture())[None]))
        z = z[:, [0, *(1 + np.flatnonzero(~mask))]]
        logits = module.forward_head(module.norm(module.blocks(z)))[0]
    assert_array_equal(acts.logits, logits.numpy())


def test_maps_keep_their_places_when_patches_are_dropped() -> None:
    mask = some_patches()
    acts = capture(example("registers"), picture(), edits=[DropPatches(mask)])
    attention = acts.attention(1)
    kept = np.flatnonzero(~mask).tolist()
    queries: list[tuple[Any, int]] = [
        (0, 0),
        ((2, 4), 5 + kept.index(2 * 6 + 4)),
        (5 + 22, 5 + kept.index(22)),
    ]
    directions: list[Any] = ["row", "column"]
    for direction in directions:
        for query, token in queries:
            seen = acts.attention_map(1, query, direction=direction)
            assert seen.shape == (4, 4, 6)
            assert (seen[:, mask] == 0).all()
            line = attention[:, token] if direction == "row" else attention[:, :, token]
            assert_array_equal(seen[:, ~mask], line[:, 5:])


@pytest.mark.parametrize("query", [(1, 3), 5 + 9])
def test_a_dropped_patch_cannot_be_the_query(query: int | tuple[int, int]) -> None:
    acts = capture(example("registers"), picture(), edits=[DropPatches(some_patches())])
    with pytest.raises(ModelError, match="Patch 9 was dropped") as caught:
        acts.attention_map(0, query)
    assert_clear_error(caught.value)


def test_two_masks_drop_what_either_drops() -> None:
    first, second = np.zeros((4, 6), bool), np.zeros((4, 6), bool)
    first[:2], second[:, 0] = True, True
    model = example("plain")
    twice = capture(model, picture(), edits=[DropPatches(first), DropPatches(second)])
    once = capture(model, picture(), edits=[DropPatches(first | second)])
    assert equal_captures(twice, once)


def test_dropping_every_patch_leaves_the_class_token() -> None:
    everything = DropPatches(np.ones((4, 6), bool))
    acts = capture(example("plain"), picture(), edits=[everything])
    assert_array_equal(acts.attention(2), np.ones((4, 1, 1), np.float32))
    assert not acts.attention_map(2, 0).any()
    assert acts.logits is not None
    assert np.isfinite(acts.logits).all()


@pytest.mark.parametrize("name", ["no class token", "registers alone", "pooled patches"])
def test_dropping_every_patch_is_refused_where_nothing_is_left_to_read(name: str) -> None:
    """The mean of no patch is no number."""
    if name == "pooled patches":  # although there is a class token
        module = timm_module("test_vit", global_pool="avg", class_token=True)
        model = watched(module, module.patch_embed.img_size)
    else:
        model = example(name)
    everything = DropPatches(np.ones(model.layers[0].query_grid, bool))
    with pytest.raises(ModelError, match="reads its output from the patches") as caught:
        capture(model, picture(), edits=[everything])
    assert_clear_error(caught.value)


# --- edits: filling patches ---------------------------------------------------------------------


def input_seen(model: Model, image: Image.Image, *edits: FillPatches) -> Tensor:
    """The picture that reaches the module, (3, H, W)."""
    seen: list[Tensor] = []

    def read(_: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.append(inputs[0][0].clone())

    _ = model.read_tokens, model.outputs  # each is found once, by passes of its own
    handle = model.module.register_forward_pre_hook(read)
    try:
        capture(model, image, edits=edits)
    finally:
        handle.remove()
    return seen[0]


def pixels_of(mask: np.ndarray, side: int) -> Tensor:
    return torch.from_numpy(np.kron(mask, np.ones((side, side), bool)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_input_in_half_precision_is_blurred(dtype: torch.dtype) -> None:
    model = own_model()
    x, mask = model.preprocess(picture()).to(dtype), np.eye(4, 6, dtype=bool)
    painted = fill_patches(model, x, [FillPatches(mask, "blur")])
    assert painted.dtype == dtype
    expected = fill_patches(model, x.float(), [FillPatches(mask, "blur")])
    assert_array_equal(painted.float(), expected.to(dtype).float())


@pytest.mark.parametrize("fill", ["mean", "blur"])
@pytest.mark.parametrize("name", ["plain", "stem"])
def test_filling_changes_the_masked_pixels_alone(name: str, fill: Any) -> None:
    model = example(name)
    x = model.preprocess(picture())
    seen = input_seen(model, picture(), FillPatches(some_patches(), fill))
    pixels = pixels_of(some_patches(), 4)
    down, right = map(round, model.offsets[0])
    assert ((down, right) == (0, 0)) == (name == "plain")
    pixels = F.pad(pixels, (right, -right, down, -down))
    assert torch.equal(seen[:, ~pixels], x[:, ~pixels])
    changed = (seen != x).all(dim=0)[pixels].float().mean()
    assert changed > 0.95


def test_mean_is_the_mean_colour_of_the_input() -> None:
    model = example("plain")
    x = model.preprocess(picture())
    seen = input_seen(model, picture(), FillPatches(some_patches()))
    masked = seen[:, pixels_of(some_patches(), 4)]
    assert_allclose(masked, x.mean(dim=(1, 2))[:, None].expand_as(masked), atol=1e-6)


@pytest.mark.parametrize("fill", ["mean", "blur"])
def test_every_fill_is_taken_from_the_input_as_it_was(fill: Any) -> None:
    """Two masks filled one after the other are one filled at once; where they overlap, the last
    fill is seen.
    """
    model = example("plain")
    first, second = some_patches(), np.zeros((4, 6), bool)
    second[2, 1:5] = True
    expected = input_seen(model, picture(), FillPatches(first | second, fill))
    for masks in ((first, second), (second, first)):
        edits = [FillPatches(mask, fill) for mask in masks]
        assert torch.equal(input_seen(model, picture(), *edits), expected)
    other: Any = "blur" if fill == "mean" else "mean"
    over = [FillPatches(some_patches(), each) for each in (other, fill)]
    assert torch.equal(input_seen(model, picture(), *over), input_seen(model, picture(), over[-1]))


@pytest.mark.parametrize("fill", ["mean", "blur"])
def test_filling_a_picture_of_one_colour_changes_nothing(fill: Any) -> None:
    model = example("plain")
    plain = Image.new("RGB", (24, 16), (10, 200, 90))
    seen = input_seen(model, plain, FillPatches(some_patches(), fill))
    assert_allclose(seen, model.preprocess(plain), atol=1e-5)


@pytest.mark.parametrize("fill", ["mean", "blur"])
def test_filling_where_patches_do_not_fill_the_picture(fill: Any) -> None:
    # 2 x 2 patches of 16, and 6 pixels over
    module = timm_module("vit_tiny_patch16_224", depth=1, img_size=38)
    model = watched(module, (38, 38))
    mask = np.array([[False, True], [False, False]])
    x = model.preprocess(picture())
    seen = input_seen(model, picture(), FillPatches(mask, fill))
    inside = torch.zeros(38, 38, dtype=torch.bool)
    inside[:16, 16:32] = True
    assert torch.equal(seen[:, ~inside], x[:, ~inside])
    assert (seen != x).all(dim=0)[inside].float().mean() > 0.95


def test_an_unknown_fill_is_refused() -> None:
    red: Any = "red"
    with pytest.raises(ModelError, match="'red'") as caught:
        capture(example("plain"), picture(), edits=[FillPatches(some_patches(), red)])
    assert_clear_error(caught.value)


@pytest.mark.parametrize("kind", [DropPatches, FillPatches])
@pytest.mark.parametrize("shape", [(6, 4), (24,)])
def test_a_mask_of_another_shape_is_refused(kind: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"mask of shape \(4, 6\), got") as caught:
        capture(example("plain"), picture(), edits=[kind(np.zeros(shape, bool))])
    assert_clear_error(caught.value)


# --- edits: swapping tokens ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "registers", "stem", "test_vit"])
def test_swapping_moves_the_patches_and_leaves_the_positions(name: str) -> None:
    model = example(name)
    module: Any = model.module
    acts = capture(model, picture(), edits=[SwapTokens([(1, 20)])])
    with torch.inference_mode():
        patches = module.patch_embed(model.preprocess(picture())[None]).flatten(1, -2)
        plain = torch.from_numpy(capture(model, picture()).tokens(0).copy())
        expected = plain.clone()
        first, second = len(plain) - patches.shape[1] + torch.tensor([1, 20])
        expected[first] += patches[0, 20] - patches[0, 1]
        expected[second] += patches[0, 1] - patches[0, 20]
    assert_allclose(acts.tokens(0), expected, rtol=0, atol=1e-5)
    assert np.abs(acts.tokens(0) - plain.numpy()).max() > 0.1


def test_swapping_where_timm_keeps_the_patches_in_a_grid() -> None:
    module = timm_module("test_vit", dynamic_img_size=True)
    model = watched(module, (48, 80))  # 3 x 5 patches
    swapped = capture(model, picture(), edits=[SwapTokens([(1, 7)])])
    x = model.preprocess(picture())
    expected = x.clone()  # patches 1 and 7 lie in rows 0 and 1, columns 1 and 2
    expected[:, :16, 16:32] = x[:, 16:32, 32:48]
    expected[:, 16:32, 32:48] = x[:, :16, 16:32]
    with torch.inference_mode():
        logits = module(expected[None])[0]
    assert swapped.logits is not None
    assert_allclose(swapped.logits, logits, rtol=0, atol=1e-5)


def test_swaps_that_share_a_patch_happen_one_after_another() -> None:
    model = own_model(positions="none")
    plain = capture(model, picture()).tokens(0)[1:]
    swapped = capture(model, picture(), edits=[SwapTokens([(0, 1), (1, 2)])]).tokens(0)[1:]
    assert_array_equal(swapped[:3], plain[[1, 2, 0]])
    assert_array_equal(swapped[3:], plain[3:])


# --- edits: together, and wrong -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "test_vit"])
def test_an_edit_of_nothing_is_bit_equal_to_no_edit(name: str) -> None:
    model = example(name)
    nothing = np.zeros(model.layers[0].query_grid, bool)
    edits = MuteHeads([]), DropPatches(nothing), FillPatches(nothing), FillPatches(nothing, "blur")
    for edit in edits:
        acts = capture(model, picture(), edits=[edit])
        assert equal_captures(acts, capture(model, picture()))


def test_edits_work_together() -> None:
    model = example("registers")
    mask = some_patches()
    heads = [(1, 2), (1, 3), (2, 0)]
    edits: list[Edit] = [MuteHeads(heads), DropPatches(mask), SwapTokens([(0, 7)])]
    acts = capture(model, picture(), edits=edits)
    module: Any = copy.deepcopy(model.module)
    with torch.inference_mode():
        module.blocks[1].attn.proj.weight[:, 16:] = 0
        module.blocks[2].attn.proj.weight[:, :8] = 0
        order = torch.arange(24)
        order[[0, 7]] = order[[7, 0]]
        patches = module.patch_embed(model.preprocess(picture())[None])[:, order]
        prefix = torch.cat([module.cls_token, module.reg_token], dim=1)
        z = torch.cat([prefix, patches], dim=1) + module.pos_embed
        z = z[:, [*range(5), *(5 + np.flatnonzero(~mask))]]
        for block in module.blocks:
            z = block(z)
        logits = module.forward_head(module.norm(z))[0]
    assert acts.logits is not None
    assert_allclose(acts.logits, logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (MuteHeads([(3, 0)]), r"layer in 0\.\.2, got 3"),
        (MuteHeads([(-1, 0)]), r"layer in 0\.\.2, got -1"),
        (MuteHeads([(0, 0), (0, 4)]), r"head in 0\.\.3, got 4"),
        (MuteHeads([(0, -1)]), r"head in 0\.\.3, got -1"),
        (SwapTokens([(0, 24)]), r"patch in 0\.\.23, got 24"),
        (SwapTokens([(-1, 3)]), r"patch in 0\.\.23, got -1"),
        ("mute", "Unknown edit str"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_in_one_sentence(edit: Any, message: str) -> None:
    model = example("plain")
    with pytest.raises(ModelError, match=message) as caught:
        capture(model, picture(), edits=[edit])
    assert_clear_error(caught.value)
    assert RECORDER.get() is None


# --- families whose attention knows the places --------------------------------------------------


@pytest.mark.parametrize(
    "name", ["eva02_tiny_patch14_224", "beit_base_patch16_224", "test_vit_relpos"]
)
def test_no_patch_is_left_out_where_attention_knows_every_place(name: str) -> None:
    size = 56 if name.startswith("eva") else 64
    options: Any = dict(img_size=size, embed_dim=32, num_heads=2, depth=1)
    model = watched(timm.create_model(name, **options).eval(), (size, size))
    mask = np.zeros((4, 4), bool)
    assert not capture(model, picture(), edits=[DropPatches(mask)]).layers[0].refusal
    mask[1, 2] = True
    with pytest.raises(ModelError, match="cannot be dropped") as caught:
        capture(model, picture(), edits=[DropPatches(mask)])
    assert_clear_error(caught.value)
    painted = capture(model, picture(), edits=[FillPatches(mask)])
    assert np.abs(painted.attention(0) - capture(model, picture()).attention(0)).max() > 0


@pytest.mark.parametrize("name", ["plain", "distilled", "no class token", "vit_tiny_patch16_224"])
def test_a_head_that_gives_what_it_gives_anyway_changes_nothing(name: str) -> None:
    model = example(name)
    acts = capture(model, picture())
    values = head_outputs(acts)
    pairs = [(0, 1), (acts.depth - 1, 0)]
    again = capture(model, picture(), edits=[MuteHeads(pairs, values)])
    muted = capture(model, picture(), edits=[MuteHeads(pairs)])
    assert acts.logits is not None
    assert again.logits is not None
    assert muted.logits is not None
    assert_allclose(again.logits, acts.logits, atol=2e-5 * float(np.abs(acts.logits).max()))
    assert np.abs(muted.logits - acts.logits).max() > 1e-3


def test_a_head_gives_what_it_gave_on_another_picture() -> None:
    """Against the projection of concatenated heads, written out."""
    model, other = example("plain"), picture(seed=4)
    values = head_outputs(capture(model, other))
    acts = capture(model, picture(), edits=[MuteHeads([(1, 2)], values)])
    own = head_outputs(acts)
    block: Any = model.module.get_submodule("blocks.1")
    heads = np.concatenate([(values if h == 2 else own)[1, h] for h in range(4)], axis=1)
    with torch.inference_mode():
        added = block.attn.proj(torch.from_numpy(heads)).numpy()
    assert_allclose(acts.tokens_after_attention(1), acts.tokens(1) + added, rtol=0, atol=1e-4)


def test_values_of_a_head_lose_the_patches_that_are_dropped() -> None:
    model = example("plain")
    mask = np.zeros((4, 6), bool)
    mask[1, 2:4] = True
    values = head_outputs(capture(model, picture(seed=4)))
    left = np.delete(values[0, 1], [1 + 8, 1 + 9], axis=0)
    one, other = (
        capture(model, picture(), edits=[DropPatches(mask), MuteHeads([(0, 1)], {(0, 1): given})])
        for given in (values[0, 1], left)
    )
    assert_array_equal(one.logits, other.logits)


def test_values_of_another_shape_are_refused() -> None:
    model = example("plain")
    with pytest.raises(
        ModelError, match=r"\(25, 8\) for a head of blocks.0, got \(3, 8\)"
    ) as caught:
        capture(model, picture(), edits=[MuteHeads([(0, 1)], {(0, 1): np.zeros((3, 8))})])
    assert_clear_error(caught.value)
