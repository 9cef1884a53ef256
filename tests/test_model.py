"""A Model describes its module, preprocesses as configured, and watching changes nothing."""

import copy
import io
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    OWN,
    assert_clear_error,
    hook_count,
    narrow_stages,
    own_model,
    own_module,
    picture,
    plain_logits,
    timm_model,
    timm_module,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vitviz.activations import MuteHeads, capture
from vitviz.attribution import relevance
from vitviz.common.images import ImageError
from vitviz.inspection import position_table
from vitviz.model import Model, Preprocessing
from vitviz.model.families import ModelError
from vitviz.model.model import RECORDER, Recorder

# --- the module ---------------------------------------------------------------------------------


def test_a_model_tells_what_it_was_made_of() -> None:
    module = own_module()
    model = watched(module, (16, 24), name="mine", weights="by hand", labels=tuple("abcde"))
    assert model.module is module
    assert (model.name, model.family, model.weights) == ("mine", "ViT", "by hand")
    assert model.trained is False
    assert model.labels == tuple("abcde")
    assert model.parameter_count == sum(weight.numel() for weight in module.parameters())
    assert len(model.layers) == 3


def test_the_module_is_left_as_it_is() -> None:
    for module in (own_module().train(), own_module().requires_grad_(False), own_module()):
        module.blocks[1].requires_grad_(False)
        modes = [part.training for part in module.modules()]
        frozen = [weight.requires_grad for weight in module.parameters()]
        model = watched(module, (16, 24))
        assert [part.training for part in model.module.modules()] == modes
        assert [weight.requires_grad for weight in model.module.parameters()] == frozen


def test_a_module_of_no_family_is_refused_and_left_alone() -> None:
    module = nn.Sequential(nn.Linear(2, 2)).train()
    with pytest.raises(ModelError, match="Sequential") as caught:
        watched(module, (16, 24))
    assert_clear_error(caught.value)
    assert module.training
    assert hook_count(module) == 0


# --- hooks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "test_vit", "test_vit_relpos", "coatnet_nano_rw_224"])
def test_watching_leaves_no_trace(name: str) -> None:
    """Before and after a capture the network can be trained, copied and saved, as without one."""
    small: dict[str, Any] = narrow_stages() if name.startswith("coatnet") else dict(depth=2)
    small["img_size"] = 64
    module: Any = own_module() if name == "plain" else timm.create_model(name, **small).eval()
    model = watched(module, (16, 24) if name == "plain" else (64, 64))
    x = model.preprocess(picture())[None]
    for _ in range(2):
        assert hook_count(module) == 0
        module(x).square().sum().backward()
        assert all(weight.grad is not None for weight in module.parameters())
        module.zero_grad()
        saved = io.BytesIO()
        torch.save(module, saved)
        saved.seek(0)
        copies = [pickle.loads(pickle.dumps(module)), torch.load(saved, weights_only=False)]
        for one in (*copies, copy.deepcopy(module)):
            assert torch.equal(one(x), module(x))
            assert hook_count(one) == 0
        capture(model, picture(), edits=[MuteHeads([(0, 0)])])


def test_a_copy_made_while_a_pass_is_watched_hears_nothing() -> None:
    model = own_model()
    copies: list[Any] = []

    def progress(block: int, of: int) -> None:
        if block == 1:
            assert hook_count(model.module) > 0
            with torch.inference_mode(False):
                copies.append(copy.deepcopy(model.module))
                copies.append(pickle.loads(pickle.dumps(model.module)))

    expected = capture(model, picture())
    capture(model, picture(), progress=progress)
    assert hook_count(model.module) == 0
    for module in copies:
        heard = Heard()
        token = RECORDER.set(heard)
        try:
            module(model.preprocess(picture())[None])
        finally:
            RECORDER.reset(token)
        assert not heard.layers
        acts = capture(watched(module, (16, 24)), picture())
        assert_array_equal(acts.tokens(2), expected.tokens(2))
        assert_array_equal(acts.logits, expected.logits)


class Heard(Recorder):
    """Takes down which blocks it was told of."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def before_block(self, layer: int, tokens: Tensor) -> None:
        self.layers.append(layer)


def test_several_models_may_watch_one_module() -> None:
    module = own_module()
    first = watched(module, (16, 24))
    expected = capture(first, picture())
    second = watched(module, (16, 24))
    for model in (first, second):
        told: list[tuple[int, int]] = []
        acts = capture(model, picture(), progress=lambda *block: told.append(block))  # noqa: B023
        assert told == [(0, 3), (1, 3), (2, 3)]
        assert_array_equal(acts.tokens(1), expected.tokens(1))
        assert_array_equal(acts.attention(2), expected.attention(2))


# --- a module that is not ready -----------------------------------------------------------------


def refused(model: Model, *words: str) -> None:
    """Refused in one sentence, before anything of the module has run, and whoever asks."""
    ran: list[nn.Module] = []
    handle = model.module.register_forward_pre_hook(lambda module, _: ran.append(module))
    for ask in (lambda: capture(model, picture()), lambda: relevance(model, picture(), 0)):
        with pytest.raises(ModelError) as caught:
            ask()
        assert_clear_error(caught.value)
        for word in words:
            assert word in str(caught.value)
    assert not ran
    handle.remove()
    assert hook_count(model.module) == 0
    assert RECORDER.get() is None


def test_a_module_in_training_mode_is_refused() -> None:
    model = own_model()
    expected = capture(model, picture())
    model.module.train()
    refused(model, "VisionTransformer is in training mode", "Call eval()")
    model.module.eval()
    assert_array_equal(capture(model, picture()).logits, expected.logits)


def test_a_part_in_training_mode_is_refused_by_its_name() -> None:
    model = timm_model("test_vit", drop_path_rate=0.5)
    model.module.get_submodule("blocks.2.drop_path1").train()
    refused(model, "blocks.2.drop_path1 is in training mode", "Call eval()")


def test_a_new_head_is_no_training_mode() -> None:
    """A layer that is made anew says that it trains, and computes the same."""
    model = timm_model("test_vit")
    module: Any = model.module
    module.head = nn.Linear(module.embed_dim, 7)
    assert module.head.training
    assert_array_equal(
        capture(model, picture()).logits, plain_logits(model, picture()).detach().numpy()
    )


@pytest.mark.parametrize("part", ["", "blocks.1"])
def test_what_was_compiled_later_is_refused(part: str) -> None:
    model = own_model()
    # without a compiler, which takes long to import
    model.module.get_submodule(part).compile(backend="eager")
    refused(model, "was compiled", "ignores hooks")


def test_a_module_without_numbers_is_refused() -> None:
    with torch.device("meta"):
        module = own_module()
    with pytest.raises(ModelError, match="no device meta") as caught:
        capture(watched(module, (16, 24)), picture())
    assert_clear_error(caught.value)


# --- blocks that were moved ---------------------------------------------------------------------


def take_out(blocks: Any) -> None:
    blocks[1] = nn.Identity()


def exchange(blocks: Any) -> None:
    blocks[0], blocks[2] = blocks[2], blocks[0]


def cut_off(blocks: Any) -> None:
    del blocks[2]


def append(blocks: Any) -> None:
    blocks.append(copy.deepcopy(blocks[0]))


SURGERY = [take_out, exchange, cut_off, append]


def hold_by_another(blocks: Any) -> None:
    """Cut blocks off, as `cut_off` does; the test puts them into another container."""
    cut_off(blocks)


@pytest.mark.parametrize("watched_anew", [True, False])
@pytest.mark.parametrize("operate", [*SURGERY, hold_by_another])
@pytest.mark.parametrize("name", ["plain", "test_vit"])
def test_blocks_that_were_moved_are_read_rightly(
    name: str, operate: Any, watched_anew: bool
) -> None:
    old = own_model() if name == "plain" else timm_model(name)
    module: Any = old.module
    before = capture(old, picture())
    operate(module.blocks)
    if operate is hold_by_another:
        kind, blocks = type(module.blocks), [*module.blocks]
        module.blocks = kind(*blocks) if kind is nn.Sequential else kind(blocks)
    model = watched(module, old.preprocess.input_size) if watched_anew else old
    acts = capture(model, picture())
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())

    streams: list[Tensor] = []
    handles = [
        block.register_forward_hook(lambda _, inputs, output: streams.append(output[0]))
        for block in module.blocks
        if not isinstance(block, nn.Identity)
    ]
    plain_logits(model, picture())
    for handle in handles:
        handle.remove()
    assert acts.depth == len(streams)
    for number, (layer, z) in enumerate(zip(acts.layers, streams, strict=True)):
        assert layer.refusal is None
        assert module.get_submodule(layer.name) is model.sites[number].block
        assert_array_equal(acts.tokens(number + 1), z)
        with torch.inference_mode():
            block: Any = model.sites[number].block
            y = block.norm1(torch.from_numpy(acts.tokens(number).copy())[None])
            q, k, _ = block.attn.qkv(y).unflatten(-1, (3, layer.num_heads, -1)).unbind(2)
            q, k = (part.transpose(1, 2)[0] for part in (q, k))
            weights = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(dim=-1)
        assert_allclose(acts.attention(number), weights, atol=1e-5)
    same = np.array_equal(acts.attention(0), before.attention(0))
    assert same == (operate is not exchange)


def test_a_block_that_runs_twice_is_refused() -> None:
    module: Any = own_module()
    module.blocks[2] = module.blocks[1]
    with pytest.raises(ModelError, match="once each in their order") as caught:
        capture(watched(module, (16, 24)), picture())
    assert_clear_error(caught.value)


# --- what the module holds ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [("plain", 25), ("no class token", 24), ("registers", 29), ("no positions", 0), ("stem", 25)],
)
def test_the_kernel_and_the_table_of_a_model_are_copies(name: str, rows: int) -> None:
    model = own_model(**OWN[name])
    state = {key: value.clone() for key, value in model.module.state_dict().items()}
    kernel, table = model.patch_kernel, model.position_embedding
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.zero_()  # what was handed out does not follow
    assert (kernel is None) == (name == "stem")
    assert (table is None) == (name == "no positions")
    if kernel is not None:
        assert_array_equal(kernel, state["patch_embed.proj.weight"])
        assert kernel.dtype == np.float32
        assert not kernel.flags.writeable
    if table is not None:
        assert table.shape == (rows, 32)
        assert_array_equal(table, state["pos_embed"][0])
        assert not table.flags.writeable


def test_positions_may_leave_the_prefix_out() -> None:
    model = watched(timm_module("test_vit2"), (160, 160))  # a register before the patches
    assert model.layers[0].prefix == ("reg1",)
    assert model.position_embedding is not None
    assert len(model.position_embedding) in (100, 101)


def test_sines_and_cosines_in_a_parameter_are_not_learned() -> None:
    module = timm_module("test_vit")  # as of MAE, whose training leaves them as they are
    model = watched(module, (160, 160), trained=True, weights="mine")
    assert model.positions_learned
    table = position_table("sincos2d", grid=model.layers[0].query_grid, embed_dim=64)
    with torch.no_grad():
        module.pos_embed[0, 0] = 0
        module.pos_embed[0, 1:] = torch.from_numpy(table)
        assert not model.positions_learned
        module.pos_embed[0, 1:] *= 1.1
    assert model.positions_learned


@pytest.mark.parametrize(("name", "norm"), [("test_vit", "norm"), ("test_vit2", "fc_norm")])
def test_final_norm_is_the_one_that_is_not_idle(name: str, norm: str) -> None:
    model = timm_model(name)
    assert model.final_norm is model.module.get_submodule(norm)
    assert not isinstance(model.final_norm, nn.Identity)


# --- preprocessing ------------------------------------------------------------------------------


def preprocessing(**options: Any) -> Preprocessing:
    settings = dict(input_size=(16, 24), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.1))
    return Preprocessing(**{**settings, **options})


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_a_picture_of_the_right_size_is_only_scaled_and_can_be_shown_again(order: str) -> None:
    image, rule = picture(24, 16), preprocessing(channel_order=order)
    x = rule(image)
    assert x.dtype == torch.float32
    assert x.shape == (3, 16, 24)
    channels = np.asarray(image)[..., ["RGB".index(colour) for colour in order]]
    expected = (channels / 255 - [0.5, 0.4, 0.3]) / [0.25, 0.2, 0.1]
    assert_allclose(x.permute(1, 2, 0), expected, rtol=0, atol=1e-5)
    assert_allclose(np.asarray(rule.picture_of(x)), np.asarray(image))


@pytest.mark.parametrize("given", [7, None, np.zeros((16, 24, 3), np.uint8)])
def test_what_is_no_picture_is_refused_in_one_sentence(given: Any) -> None:
    model = own_model()
    for ask in (model.preprocess, lambda what: capture(model, what)):
        with pytest.raises(TypeError, match=f"a PIL image, got {type(given).__name__}") as no:
            ask(given)
        assert_clear_error(no.value)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_every_colour_mode_gives_three_channels(mode: str) -> None:
    image = picture(50, 40).convert(mode)
    assert torch.equal(preprocessing()(image), preprocessing()(image.convert("RGB")))


@pytest.mark.parametrize(
    ("mode", "top", "fits"),
    [
        ("I;16", 65535, False),
        ("I;16B", 4095, False),
        ("I", 1000, False),
        ("F", 1, False),
        ("F", math.nan, False),
        ("I;16", 255, True),
        ("I", 255, True),
        ("F", 255, True),
    ],
)
def test_deep_grey_is_refused_where_pillow_would_clip_it(mode: str, top: float, fits: bool) -> None:
    image = Image.new(mode, (20, 20), top)
    if fits:
        white = Image.new("L", (20, 20), 255)
        assert torch.equal(preprocessing()(image), preprocessing()(white))
        return
    model = own_model()
    for ask in (model.preprocess, lambda picture: capture(model, picture)):
        with pytest.raises(ImageError, match=f"mode {mode} with values from {top:g} to") as no:
            ask(image)
        assert_clear_error(no.value)


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_padding_has_the_mean_colour(order: str) -> None:
    wide = Image.new("RGB", (240, 40), "white")  # padded above and below
    x = preprocessing(crop_mode="border", channel_order=order)(wide)
    assert_allclose(x[:, 0], 0, atol=0.5 / 255 / 0.1 + 1e-6)  # half a level of 8 bits
    assert (x[:, 8] > 1).all()


def test_a_picture_keeps_the_detail_that_is_asked_for() -> None:
    """Stripes of one pixel are lost at half the resolution, stripes of four are not."""
    fine, coarse = (
        Image.fromarray(np.tile((np.arange(24) // width % 2 * 255).astype(np.uint8), (16, 1)))
        for width in (1, 4)
    )
    whole = preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    half = replace(whole, detail=0.5)
    assert whole(fine).std() > 5 * half(fine).std()
    assert half(coarse).std() > 0.7 * whole(coarse).std()
    assert half(fine).shape == whole(fine).shape


@pytest.mark.parametrize("size", [(50, 33), (33, 50), (101, 40), (24, 16), (7, 5)])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_a_picture_of_less_detail_lies_where_its_placement_says(
    size: tuple[int, int], crop_mode: str
) -> None:
    """A ramp across the picture is found again at the columns and rows of the crop."""
    rule = preprocessing(mean=(0, 0, 0), std=(1, 1, 1), detail=0.5, crop_mode=crop_mode)
    width, height = size
    ramps = np.zeros((height, width, 3), np.uint8)
    ramps[..., 0] = np.linspace(0, 255, width).round()
    ramps[..., 1] = np.linspace(0, 255, height).round()[:, None]
    image = Image.fromarray(ramps)
    x = rule(image).numpy()
    left, top, right, bottom = rule.place(image).crop
    col = left + (np.arange(24) + 0.5) / 24 * (right - left) - 0.5
    row = top + (np.arange(16) + 0.5) / 16 * (bottom - top) - 0.5
    inside = (slice(6, 10), slice(9, 15))  # away from the edges, whose colour is held
    assert_allclose(x[0][inside], np.tile(col / (width - 1), (16, 1))[inside], atol=0.02)
    assert_allclose(x[1][inside], np.tile(row / (height - 1), (24, 1)).T[inside], atol=0.03)


def test_a_picture_of_the_detail_is_enlarged_once() -> None:
    image = picture(12, 8)
    rule = preprocessing(mean=(0, 0, 0), std=(1, 1, 1), detail=0.5)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    enlarged = F.interpolate(x[None], size=(16, 24), mode="bicubic", antialias=True)[0].clamp(0, 1)
    assert_allclose(rule(image), enlarged, rtol=0, atol=1e-5)
