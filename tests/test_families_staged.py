"""Windows, their shift, pooled keys and lone class tokens are undone exactly."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    assert_clear_error,
    patch_box,
    picture,
    plain_logits,
    randomise,
    seeded,
    skip_random_weights,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from planting import (
    in_brightness,
    plant_attention,
    plant_embedding,
    plant_stages,
    scene,
    silence,
)
from planting_stages import CELL, assert_found_in_stages, meeting

from vitviz.activations import Activations, DropPatches, SwapTokens, capture, recorder
from vitviz.intervention import head_effects, logit_lens
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.web.anatomy import residual_stream

NOTHING = 1e-30  # what Swin's mask leaves

_TWINS: dict[str, Any] = dict(embed_dims=(16, 32, 32, 64), num_heads=(1, 2, 2, 4))
#: Architectures with stages, and what keeps them small.
STAGED: dict[str, dict[str, Any]] = {
    "swin_tiny_patch4_window7_224": dict(depths=(2, 2, 2, 2), embed_dim=24),
    "swinv2_tiny_window8_256": dict(depths=(2, 2, 2, 2), embed_dim=24),
    "swinv2_cr_tiny_224": dict(depths=(2, 2, 2, 2), embed_dim=24),
    "pvt_v2_b0": dict(depths=(1, 1, 1, 1)),
    "twins_svt_small": _TWINS | dict(depths=(2, 2, 2, 2), wss=(4, 4, 2, 1)),
    "twins_pcpvt_small": _TWINS | dict(depths=(1, 1, 2, 1)),
    "maxvit_tiny_tf_224": dict(depths=(1, 1, 1, 1), stem_width=16, embed_dim=(32,) * 4),
    "coatnet_0_rw_224": dict(depths=(1, 1, 2, 1), stem_width=16, embed_dim=(32,) * 4),
}


def blank_model(name: str, size: tuple[int, int]) -> Model:
    """A model with stages, whose weights are yet to be set."""
    options = dict(STAGED[name])
    if not name.startswith(("pvt", "twins")):
        options["img_size"] = size
    if name.startswith("swin"):
        options["window_size"] = (size[0] // 32, size[1] // 32)
    with skip_random_weights():
        module = timm.create_model(name, **options).eval()
    return watched(module, size)


def staged_model(name: str, size: tuple[int, int]) -> Model:
    model = blank_model(name, size)
    randomise(model.module)
    return model


# --- planted attention --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "cells"), [((3, 5), [(0, 0), (1, 2), (2, 4)]), ((4, 4), [(1, 3), (3, 0)])]
)
@pytest.mark.parametrize("name", STAGED)
def test_what_is_planted_is_found_through_windows_shifts_and_pooling(
    name: str, grid: tuple[int, int], cells: list[tuple[int, int]]
) -> None:
    size = (grid[0] * CELL, grid[1] * CELL)
    model = in_brightness(blank_model(name, size))
    for cell in cells:
        assert_found_in_stages(model, grid, cell)


def test_the_keys_of_pvt_lie_where_they_were_pooled() -> None:
    model = in_brightness(blank_model("pvt_v2_b0", (224, 224)))
    plant_stages(model)
    image, _ = scene(CELL, (7, 7), (5, 2))
    acts = capture(model, image)
    for number, layer in enumerate(acts.layers):
        assert layer.key_grid == (7, 7)
        assert layer.kind == ("global" if layer.stage == 3 else "pooled")
        assert acts.attention_map(number, (0, 0))[:, 5, 2].min() > 0.99
        (window,) = acts.windows(number)
        # A query looks at the first pixel of its patch, and a key at those of its queries.
        step = layer.patch_size
        assert isinstance(step, int)
        expected = np.array([5.5, 2.5]) * CELL - (step - 1) / 2
        assert_allclose(window[2].reshape(7, 7, 2)[5, 2], expected, atol=1)


def test_keys_that_are_pooled_to_one_grid_cover_the_picture() -> None:
    """On a grid that is not square a key is as much higher as the grid is higher than 7 rows."""
    module = timm.create_model("pvt_v2_b0", linear=True, depths=(1, 1, 1, 1)).eval()
    acts = capture(watched(module, (3 * CELL, 5 * CELL)), picture())
    for layer in range(acts.depth):
        assert acts.layers[layer].key_grid == (7, 7)
        assert_allclose(acts.crop_of(layer, keys=True), acts.crop_of(layer))


# --- whatever the weights -----------------------------------------------------------------------


@pytest.fixture(scope="module", params=STAGED)
def random(request: pytest.FixtureRequest) -> tuple[Model, Activations]:
    model = staged_model(request.param, (3 * CELL, 5 * CELL))
    return model, capture(model, picture())


def test_every_layer_proves_itself_and_rows_are_shares(random: tuple[Model, Activations]) -> None:
    model, acts = random
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    for number, layer in enumerate(acts.layers):
        assert layer.refusal is None
        patches = layer.query_grid[0] * layer.query_grid[1]
        assert len(acts.tokens(number + 1)) == patches
        assert len(acts.tokens_after_attention(number)) == patches
        whole = acts.attention(number)
        assert_allclose(whole.sum(axis=2), 1, atol=1e-4)
        meet = meeting(model, number).reshape(whole.shape[1:])
        assert whole[:, ~meet].size == 0 or whole[:, ~meet].max() < NOTHING
        assert (whole[:, meet] > 0).mean() > 0.5
        assert_allclose(
            acts.attention_map(number), whole.mean(axis=1).reshape(-1, *layer.key_grid), atol=1e-5
        )


def test_windows_give_the_same_numbers_with_their_places(
    random: tuple[Model, Activations],
) -> None:
    _, acts = random
    for number, layer in enumerate(acts.layers):
        step = np.atleast_1d(layer.patch_size) * np.ones(2)
        whole = acts.attention(number)
        count = 0
        for attention, queries, keys in acts.windows(number):
            places = np.rint(queries / step - 0.5).astype(int)
            numbers = places[:, 0] * layer.query_grid[1] + places[:, 1]
            assert attention.shape == (layer.num_heads, len(queries), len(keys))
            assert_allclose(attention.max(axis=2), whole[:, numbers].max(axis=2), atol=1e-6)
            count += len(queries)
        assert count == layer.query_grid[0] * layer.query_grid[1]


def test_no_patch_is_left_out_of_a_map(random: tuple[Model, Activations]) -> None:
    model, _ = random
    mask = np.ones(model.layers[0].query_grid, bool)
    with pytest.raises(ModelError, match="cannot be dropped"):
        capture(model, picture(), edits=[DropPatches(mask)])
    with pytest.raises(ModelError, match="as a map") as caught:
        capture(model, picture(), edits=[SwapTokens([(0, 1)])])
    assert_clear_error(caught.value)


def test_queries_and_keys_are_put_in_order() -> None:
    model = staged_model("maxvit_tiny_tf_224", (5 * CELL, 7 * CELL))
    acts = capture(model, picture())
    for number, layer in enumerate(acts.layers):
        q, k = acts.queries(number), acts.keys(number)
        block: Any = model.sites[number].block
        bias = block.attn.rel_pos.get_bias().detach().numpy()
        scores = q @ k.swapaxes(1, 2) * q.shape[2] ** -0.5
        whole = acts.attention(number)
        meet = meeting(model, number).reshape(whole.shape[1:])
        for head in range(layer.num_heads):
            for row in (0, 7, len(meet) - 1):
                logits = scores[head, row, meet[row]]
                ratio = np.log(whole[head, row, meet[row]]) - logits
                inner = ratio - ratio.mean()
                # What is left is the bias of some query of the window.
                rows = bias[head] - bias[head].mean(axis=1, keepdims=True)
                assert np.abs(rows - inner).max(axis=1).min() < 1e-2


def test_a_padded_picture_loses_only_the_share_of_its_padding() -> None:
    options: Any = dict(img_size=(152, 232), **STAGED["swin_tiny_patch4_window7_224"])
    model = watched(timm.create_model("swin_tiny_patch4_window7_224", **options).eval(), (152, 232))
    acts = capture(model, picture())
    assert [layer.query_grid for layer in acts.layers[::2]] == [
        (38, 58),
        (19, 29),
        (10, 15),
        (5, 8),
    ]
    for number, layer in enumerate(acts.layers):
        assert layer.refusal is None
        whole = acts.attention(number).sum(axis=2)
        assert (whole > 0).all()
        assert whole.max() < 1 + 1e-5
        windows = model.sites[number].windows
        assert windows is not None
        padded = (windows.queries < 0).any()
        assert padded == (whole.min() < 1 - 1e-5)
        left, top, right, bottom = acts.crop_of(number)
        step = layer.patch_size
        assert isinstance(step, int)
        first = acts.crop_of(0)
        across, down = (first[2] - first[0]) / 232, (first[3] - first[1]) / 152
        assert right - left == pytest.approx(layer.query_grid[1] * step * across)
        assert bottom - top == pytest.approx(layer.query_grid[0] * step * down)


def test_the_attention_of_twins_is_what_its_weights_compute_by_hand() -> None:
    """Also where windows are padded by vectors of 0, and where keys are pooled."""
    options: Any = dict(_TWINS, depths=(2, 2, 2, 2), wss=(7, 7, 7, 7))
    model = watched(timm.create_model("twins_svt_small", **options).eval(), (96, 160))
    randomise(model.module)
    acts = capture(model, picture())
    given: list[Any] = []
    for site in model.sites:
        site.attn.register_forward_pre_hook(lambda attn, args: given.append(args[0][0]))
    plain_logits(model, picture())
    assert [layer.kind for layer in acts.layers] == [*("window", "pooled") * 3, "window", "global"]
    for number, (layer, x) in enumerate(zip(acts.layers, given, strict=True)):
        (rows, cols), heads, attn = layer.query_grid, layer.num_heads, model.sites[number].attn
        size = x.shape[1] // heads
        expected = np.zeros((heads, rows * cols, layer.key_grid[0] * layer.key_grid[1]))
        with torch.no_grad():
            if layer.kind == "window":
                q, k, _ = attn.qkv(x).chunk(3, dim=1)
                padding = attn.qkv.bias.chunk(3)[1]
            else:
                grid = x.T.reshape(1, -1, rows, cols)
                pooled = x if attn.sr is None else attn.norm(attn.sr(grid)[0].flatten(1).T)
                q, k = attn.q(x), attn.kv(pooled).chunk(2, dim=1)[0]
        for query in range(rows * cols):
            row, col = divmod(query, cols)
            keys, outside = [*range(len(k))], 0
            if layer.kind == "window":
                top, left = row // 7 * 7, col // 7 * 7
                inside = [
                    (r, c)
                    for r in range(top, min(top + 7, rows))
                    for c in range(left, min(left + 7, cols))
                ]
                keys, outside = [r * cols + c for r, c in inside], 49 - len(inside)
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                scores = (k[keys][:, part] @ q[query, part] / size**0.5).double().exp()
                total = scores.sum()
                if outside:
                    total = total + outside * (padding[part] @ q[query, part] / size**0.5).exp()
                expected[head, query, keys] = (scores / total).detach().numpy()
        assert_allclose(acts.attention(number), expected, atol=1e-5)


def test_no_share_is_given_across_the_position_convolution_of_twins() -> None:
    model = staged_model("twins_pcpvt_small", (3 * CELL, 5 * CELL))
    added = residual_stream(capture(model, picture())).attention
    # It stands after the first block of each stage, and only the third stage has a second block.
    assert [layer.name for layer in model.layers][3] == "blocks.2.1"
    assert np.isnan(added[1:]).all()


def test_a_layer_read_at_its_softmax_keeps_no_queries() -> None:
    model = staged_model("swin_tiny_patch4_window7_224", (5 * CELL, 7 * CELL))
    acts = capture(model, picture())
    with pytest.raises(ModelError, match="queries, keys and values are not kept") as caught:
        acts.queries(0)
    assert_clear_error(caught.value)


def test_a_softmax_that_is_not_what_is_multiplied_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = staged_model("swin_tiny_patch4_window7_224", (5 * CELL, 7 * CELL))
    block: Any = model.sites[1].block
    threshold = torch.nn.Threshold(0.05, 0.0)  # something between softmax and values
    block.attn.attn_drop = threshold.eval()
    acts = capture(model, picture())
    assert acts.layers[0].refusal is None
    assert acts.layers[1].refusal is not None
    assert "does not reproduce" in acts.layers[1].refusal
    monkeypatch.setattr(recorder, "_SOFTMAX", set())
    acts = capture(model, picture())
    assert acts.layers[0].refusal is not None
    assert "cannot be read" in acts.layers[0].refusal


# --- CaiT ---------------------------------------------------------------------------------------


def cait() -> Model:
    options: Any = dict(img_size=(160, 224), depth=2)
    with seeded():
        module = timm.create_model("cait_xxs24_224", **options).eval()
    return watched(module, (160, 224))


@pytest.mark.parametrize("target", [(8, 3), (2, 9)])
def test_planted_attention_of_cait_and_of_its_class_token(target: tuple[int, int]) -> None:
    model = in_brightness(cait())
    with torch.no_grad():
        silence(model.module)
        plant_embedding(model.module)
        for site in model.sites:
            plant_attention(site.attn)
    image, box = scene(16, (10, 14), target)
    acts = capture(model, image)
    assert [layer.kind for layer in acts.layers] == ["global", "global", "class", "class"]
    assert [layer.prefix for layer in acts.layers] == [(), (), ("cls",), ("cls",)]
    assert [layer.refusal for layer in acts.layers] == [None] * 4
    for number in range(4):
        for head in acts.attention_map(number):
            assert np.unravel_index(head.argmax(), head.shape) == target
            assert head[target] > 0.999
    assert acts.attention_map(0, (9, 13))[0][target] > 0.999
    assert patch_box(acts.crop, (10, 14), *target) == pytest.approx(box, abs=1)


def test_caits_heads_are_read_before_they_are_mixed() -> None:
    model = cait()
    randomise(model.module)
    acts = capture(model, picture())
    for number in (0, 1):
        assert acts.layers[number].refusal is None
        assert_allclose(acts.attention(number).sum(axis=2), 1, atol=1e-5)
        block: Any = model.sites[number].block
        with torch.inference_mode():
            z = block.norm1(torch.from_numpy(acts.tokens(number).copy())[None])
            q, k, _ = block.attn.qkv(z).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            scores = (q * block.attn.scale) @ k.transpose(-2, -1)
            mixed = block.attn.proj_l(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            expected = mixed.softmax(dim=-1)[0]
        assert_allclose(acts.attention(number), expected, atol=1e-5)
    model.reading.sites = tuple(replace(site, mixing=None) for site in model.sites)
    assert "does not reproduce" in str(capture(model, picture()).layers[0].refusal)


def test_only_the_class_token_looks_in_the_class_layers() -> None:
    acts = capture(cait(), picture())
    assert acts.attention(3).shape == (4, 1, 141)
    assert_array_equal(acts.attention_map(3), acts.attention(3)[:, 0, 1:].reshape(4, 10, 14))
    with pytest.raises(ModelError, match="Only the class token attends") as caught:
        acts.attention_map(3, (0, 0))
    assert_clear_error(caught.value)
    with pytest.raises(ModelError, match="no chain of matrices"):
        acts.attention_layers()


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "coatnet_0_rw_224", "cait"])
def test_layers_that_differ_in_their_tokens_have_no_lens(name: str) -> None:
    """In CaiT the class token comes late."""
    model = cait() if name == "cait" else staged_model(name, (64, 64))
    with pytest.raises(ModelError, match="they have no common grid") as caught:
        logit_lens(model, capture(model, picture()))
    assert_clear_error(caught.value)


def test_patches_can_be_left_out_of_cait() -> None:
    mask = np.zeros((10, 14), bool)
    mask[3, 4:9] = True
    acts = capture(cait(), picture(), edits=[DropPatches(mask)])
    assert [layer.refusal for layer in acts.layers] == [None] * 4
    assert not acts.attention_map(3)[:, mask].any()
    assert acts.attention(3).shape == (4, 1, 136)


# --- mixers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("mixer_s32_224", "mlp_tokens.fc1"),
        ("resmlp_12_224", "linear_tokens"),
        ("gmlp_ti16_224", "mlp_channels.gate.proj"),
    ],
)
def test_a_mixers_weights_are_shown_as_weights(name: str, path: str) -> None:
    options: Any = dict(img_size=(96, 160))
    with skip_random_weights():
        model = watched(timm.create_model(name, **options).eval(), (96, 160))
    randomise(model.module)
    rows, cols = model.layers[0].query_grid
    assert rows / cols == 96 / 160
    weights = model.module.get_submodule(f"blocks.1.{path}").state_dict()["weight"]
    maps = model.token_mixing(1)
    assert maps.shape == (len(weights), rows, cols)
    assert_array_equal(maps[3, 1, 2], weights[3, cols + 2])
    acts = capture(model, picture())
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    assert acts.tokens(2).shape[0] == rows * cols
    for layer in acts.layers:
        assert layer.kind == "mixing"
        assert layer.refusal is not None
        assert "same for every picture" in layer.refusal
        assert_clear_error(layer.refusal)
    with pytest.raises(ModelError, match="has no attention"):
        acts.attention_map(0, (0, 0))
    with pytest.raises(ModelError, match="no heads to mute"):
        head_effects(model, picture())


def test_a_model_with_attention_has_no_weights_that_mix_tokens() -> None:
    with pytest.raises(ModelError, match="attends to tokens") as caught:
        cait().token_mixing(0)
    assert_clear_error(caught.value)
    with pytest.raises(ValueError, match="Expected a layer"):
        cait().token_mixing(9)
