"""`watch`: modules in memory become models, and are put back as they were."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    Net,
    assert_clear_error,
    narrow_stages,
    own_model,
    own_module,
    picture,
    randomise,
    seeded,
)
from test_families_staged import STAGED
from torch import nn

import vitviz
from vitviz import ModelError
from vitviz.intervention import head_effects
from vitviz.intervention.equivariance import shuffle_patches
from vitviz.model import Preprocessing, families

SIZE = Preprocessing(input_size=(16, 24), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))


#: Names of timm, and what keeps them small without another input size.
OF_TIMM: dict[str, dict[str, Any]] = {
    "test_vit": {},
    "vit_tiny_patch16_224": dict(depth=3),
    "swin_tiny_patch4_window7_224": dict(depths=(2, 1, 1, 1), embed_dim=24),
    "pvt_v2_b0": dict(depths=(1, 1, 1, 1)),
    "coatnet_nano_rw_224": narrow_stages(),  # whose stem is no patch embedding
    "maxvit_nano_rw_256": narrow_stages(),
}


@pytest.mark.parametrize("name", OF_TIMM)
def test_a_module_of_timm_needs_nothing_else(name: str) -> None:
    with seeded():
        module = timm.create_model(name, **OF_TIMM[name])
    model = vitviz.watch(module)
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        expected = module(model.preprocess(picture())[None])[0].numpy()
    np.testing.assert_array_equal(acts.logits, expected)
    config = timm.data.resolve_model_data_config(module)
    assert model.preprocess.input_size == config["input_size"][-2:]
    assert model.name == type(module).__name__
    assert model.weights == "weights in memory"


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("vit_tiny_patch16_224", dict(depth=1)),
        ("mixer_s32_224", {}),
        ("twins_svt_small", dict(depths=(1, 1, 1, 2), embed_dims=(16, 16, 32, 32))),
        ("maxvit_tiny_tf_224", narrow_stages()),
        ("coatnet_nano_rw_224", narrow_stages()),
    ],
)
def test_another_input_size_is_that_of_the_module(name: str, small: dict[str, Any]) -> None:
    module = timm.create_model(name, img_size=(64, 96), **small)
    model = vitviz.watch(module)
    assert model.preprocess.input_size == (64, 96)
    assert vitviz.capture(model, picture()).logits is not None


@pytest.mark.parametrize("name", ["maxvit_tiny_tf_224", "coatnet_nano_rw_224"])
def test_an_input_that_does_not_fit_the_windows_is_refused(name: str) -> None:
    module = timm.create_model(name, img_size=64, **narrow_stages())
    size = replace(SIZE, input_size=(72, 64))
    with pytest.raises(ModelError, match=r"(2 x 2|4 x 4) patches.* 72 x 64 .* has (9 x 8|5 x 4)"):
        vitviz.watch(module, preprocessing=size)


def test_every_part_has_its_mode_again_afterwards() -> None:
    module = Wrapper(backbone=own_module(), fc=nn.Linear(5, 2)).train()
    module.backbone.blocks[1].eval()  # as somebody may freeze a part
    before = {name: part.training for name, part in module.named_modules()}
    wanted = {name: p.requires_grad for name, p in module.named_parameters()}
    with vitviz.watch(module, preprocessing=SIZE) as model:
        assert not any(part.training for part in module.modules())
        vitviz.capture(model, picture())
    assert {name: part.training for name, part in module.named_modules()} == before
    assert {name: p.requires_grad for name, p in module.named_parameters()} == wanted
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    with pytest.raises(ZeroDivisionError), vitviz.watch(module, preprocessing=SIZE):
        raise ZeroDivisionError
    assert {name: part.training for name, part in module.named_modules()} == before
    with pytest.raises(ModelError, match="training mode"):
        vitviz.capture(model, picture())


def answer_of(acts: vitviz.Activations) -> np.ndarray:
    assert acts.output is not None
    return acts.output


class Normalise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 0.3) / 0.6


class Wrapper(Net):
    """A backbone with a head, or what stands before it, as people write them."""

    backbone: Any
    fc: Any

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.backbone(x))


class OfFeatures(Wrapper):
    """Reads the tokens of a backbone and pools them in its own way."""

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.backbone.forward_features(x)[:, 1:].mean(dim=1))


class Held(Wrapper):
    """Calls its backbone by a function that a copy of the module would share."""

    def __init__(self, backbone: nn.Module, fc: nn.Module) -> None:
        super().__init__(backbone=backbone, fc=fc)
        self.run = backbone.forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.run(x))


def timm_backbone(**options: Any) -> Any:
    with seeded():
        module = timm.create_model("test_vit", **options)
    randomise(module)
    return module.eval()


#: Modules around a part that is known, and the path of that part.
AROUND: dict[str, tuple[Any, str]] = {
    "normalise": (lambda: nn.Sequential(Normalise(), own_module()), "1"),
    "head": (lambda: nn.Sequential(own_module(), nn.Linear(5, 2)), "0"),
    "attributes": (lambda: Wrapper(backbone=own_module(), fc=nn.Linear(5, 2)), "backbone"),
    "in a wrapper": (
        lambda: nn.Sequential(Wrapper(backbone=own_module(), fc=nn.Tanh())),
        "0.backbone",
    ),
    "a function": (lambda: Held(own_module(), nn.Linear(5, 2)), "backbone"),
    "features": (
        lambda: OfFeatures(backbone=timm_backbone(num_classes=0), fc=nn.Linear(64, 2)),
        "backbone",
    ),
}


@pytest.mark.parametrize("name", AROUND)
def test_the_whole_of_a_wrapper_answers(name: str) -> None:
    make, path = AROUND[name]
    with seeded():
        net = make().eval()
    randomise(net)
    size = (160, 160) if name == "features" else (16, 24)
    how = Preprocessing(input_size=size, mean=SIZE.mean, std=SIZE.std)
    model = vitviz.watch(net, preprocessing=how)
    assert model.module is net
    assert model.part is net.get_submodule(path)
    assert path in model.weights
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        x = model.preprocess(picture())[None]
        expected = net(x)[0]
        np.testing.assert_array_equal(acts.output, expected.numpy())
        last = torch.tensor(acts.tokens(acts.depth))[None]
        torch.testing.assert_close(model.answer(last)[0], expected)
    pooled = name == "features"
    assert model.read_tokens == (("patches",) if pooled else ("cls",))
    muted = vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(1, 0)])])
    assert np.abs(answer_of(muted) - answer_of(acts)).max() > 1e-4
    assert model.outputs == len(expected)
    effects = head_effects(model, picture())
    np.testing.assert_allclose(effects[1, 0], answer_of(muted), rtol=1e-5, atol=1e-6)
    if name != "normalise":  # labels of the part would name other outputs
        assert model.labels is None


class ResizedByItself(timm.models.vision_transformer.VisionTransformer):
    """Resizes its input, as a subclass may."""

    def forward(self, x: torch.Tensor, *rest: Any, **options: Any) -> Any:
        x = nn.functional.interpolate(x, size=(16, 24), mode="bilinear")
        return super().forward(x, *rest, **options)


class Resized(Wrapper):
    """Resizes its input for its backbone, as one does for small pictures."""

    def __init__(self, size: tuple[int, int] = (16, 24), **options: Any) -> None:
        super().__init__(backbone=own_module())
        self.size, self.options = size, options

    def forward(self, x: torch.Tensor) -> Any:
        x = nn.functional.interpolate((x - 0.1) / 0.7, size=self.size, **self.options)
        return self.backbone(x).tanh()


@pytest.mark.parametrize("size", [(8, 12), (20, 30)])
@pytest.mark.parametrize(
    "options",
    [
        dict(mode="bilinear"),
        dict(mode="bilinear", antialias=True),
        dict(mode="bicubic", align_corners=True),
        dict(mode="nearest"),
    ],
    ids=str,
)
def test_what_a_wrapper_resizes_is_resized_before_it(options: Any, size: tuple[int, int]) -> None:
    with seeded():
        net = Resized(**options).eval()
    randomise(net)
    small = Preprocessing(input_size=size, mean=SIZE.mean, std=SIZE.std)
    model = vitviz.watch(net, preprocessing=small)
    assert f"inputs of {size[0]} x {size[1]} px resized" in model.provenance
    acts, x = vitviz.capture(model, picture()), small(picture())
    with torch.inference_mode():
        expected = net(x[None])[0].numpy()
    np.testing.assert_allclose(answer_of(acts), expected, atol=1e-6)
    np.testing.assert_allclose(answer_of(vitviz.capture(model, x)), expected, atol=1e-6)
    assert acts.grid == (4, 6)
    assert acts.crop == pytest.approx(np.array(small.place(picture()).box) * 60 / size[1])


class OtherChannels(Net):
    """Changes the channels before it embeds patches: an X-ray's grey is repeated, say."""

    change: Callable[[torch.Tensor], torch.Tensor]
    backbone: Any

    def forward(self, x: torch.Tensor) -> Any:
        return self.backbone(type(self).change(x))


class Repeated(OtherChannels):
    change = staticmethod(lambda x: x.repeat(1, 3, 1, 1))


class Expanded(OtherChannels):
    change = staticmethod(lambda x: x.expand(-1, 3, -1, -1))


class Averaged(OtherChannels):
    change = staticmethod(lambda x: x.mean(dim=1, keepdim=True))


@pytest.mark.parametrize(
    ("kind", "reads", "takes"), [(Repeated, 3, 1), (Expanded, 3, 1), (Averaged, 1, 3)]
)
def test_a_module_that_changes_the_channels_gets_those_of_its_preprocessing(
    kind: type[OtherChannels], reads: int, takes: int
) -> None:
    with seeded():
        part = timm.create_model("test_vit", in_chans=reads, img_size=(16, 24), patch_size=4)
    module = kind(backbone=part).eval()
    given = replace(SIZE, mean=(0.4,) * takes, std=(0.25,) * takes)
    acts = vitviz.capture(vitviz.watch(module, preprocessing=given), picture())
    with torch.inference_mode():
        expected = module(given(picture())[None])[0]
    np.testing.assert_array_equal(acts.output, expected)


def test_channels_that_a_module_does_not_take_are_averaged() -> None:
    with seeded():
        part = timm.create_model("test_vit", in_chans=1, img_size=(16, 24), patch_size=4)
    model = vitviz.watch(nn.Sequential(nn.Identity(), part).eval(), preprocessing=SIZE)
    assert len(model.preprocess.mean) == 1
    assert vitviz.capture(model, picture()).output is not None


def test_what_enlarges_by_a_factor_is_not_run_on_what_it_has_enlarged() -> None:
    net: Any = nn.Sequential(nn.Upsample(scale_factor=2), timm_backbone())
    tokens: list[int] = []
    first = net[1].blocks[0]
    first.register_forward_pre_hook(lambda block, given: tokens.append(given[0].shape[1]))
    with pytest.raises(ModelError, match="16 x 24 to 32 x 48 pixels before it embeds"):
        vitviz.watch(net, preprocessing=SIZE)
    assert len(set(tokens)) == 1


def test_what_a_subclass_resizes_is_resized_before_it() -> None:
    sizes: Any = dict(img_size=(16, 24), patch_size=4, embed_dim=32, depth=2, num_heads=4)
    net = ResizedByItself(**sizes, num_classes=5).eval()
    small = Preprocessing(input_size=(8, 12), mean=SIZE.mean, std=SIZE.std)
    acts = vitviz.capture(vitviz.watch(net, preprocessing=small), picture())
    with torch.inference_mode():
        expected = net(small(picture())[None])[0].numpy()
    np.testing.assert_allclose(answer_of(acts), expected, atol=1e-6)
    assert acts.grid == (4, 6)


class Shares(Net):
    fc: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares: torch.Tensor = self.fc(x).softmax(dim=-1)
        return shares


def with_head(head: nn.Module) -> nn.Module:
    module: Any = timm_backbone()
    module.head = head.eval()
    whole: nn.Module = module
    return whole


#: Modules whose answers are shares, made by a head, beside it or around the whole.
SHARING: dict[str, Callable[[], nn.Module]] = {
    "softmax around it": lambda: nn.Sequential(timm_backbone(), nn.Softmax(dim=1)),
    "sigmoid around it": lambda: nn.Sequential(timm_backbone(), nn.Sigmoid()),
    "softmax": lambda: with_head(nn.Sequential(nn.Linear(64, 4), nn.Softmax(dim=1))),
    # two logits are in 0..1 more often
    "sigmoid": lambda: with_head(nn.Sequential(nn.Linear(64, 2), nn.Sigmoid())),
    "own head": lambda: with_head(Shares(fc=nn.Linear(64, 4))),
    "hook": lambda: softened(timm_backbone(), by_hook=True),
    "method": lambda: softened(timm_backbone(), by_hook=False),
}


def softened(module: Any, *, by_hook: bool) -> nn.Module:
    if by_hook:
        module.head.register_forward_hook(lambda head, inputs, output: output.softmax(dim=-1))
    else:
        head = module.forward_head
        module.forward_head = lambda *inputs, **options: head(*inputs, **options).softmax(dim=-1)
    whole: nn.Module = module
    return whole


@pytest.mark.parametrize("name", SHARING)
def test_shares_are_not_made_again(name: str) -> None:
    module: Any = SHARING[name]().eval()
    model = vitviz.watch(module)
    acts = vitviz.capture(model, picture())
    assert (model.answers, acts.answers, acts.probabilities) == ("values", "values", None)
    with torch.inference_mode():
        own = module(model.preprocess(picture())[None])[0]
    np.testing.assert_array_equal(answer_of(acts), own)
    if name == "softmax":
        module.head = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
        assert vitviz.capture(model, picture()).answers == "classes"


class Head(nn.Linear):
    """A head of the user's own, whose answer is not known from its class."""


def test_small_logits_are_no_shares() -> None:
    """Five may all lie in 0..1, as those of a new head; or all be 0."""
    module: Any = with_head(Head(64, 5, bias=False))
    with torch.no_grad():
        module.head.weight.zero_()
    assert vitviz.watch(module).answers == "classes"
    net: Any = nn.Sequential(timm_backbone(num_classes=0), nn.Linear(64, 5, bias=False)).eval()
    noise = torch.randn((1, 3, 160, 160), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = net[0](noise)[0]
        wanted = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
        net[1].weight.copy_(wanted[:, None] * features / features.square().sum())
        np.testing.assert_allclose(net(noise)[0], wanted, rtol=1e-3)
    assert vitviz.watch(net).answers == "classes"


class Returning(Wrapper):
    """Returns its answer in a container."""

    def __init__(self, container: Any) -> None:
        super().__init__(backbone=timm_backbone(num_classes=0), fc=nn.Linear(64, 4))
        self.container = container

    def forward(self, x: torch.Tensor) -> Any:
        return self.container(super().forward(x))


@pytest.mark.parametrize(
    "container",
    [
        lambda answer: [answer],
        lambda answer: {"out": answer},
        lambda answer: {"features": answer.mean(), "logits": answer},
    ],
)
def test_an_answer_is_found_in_a_container(container: Any) -> None:
    net = Returning(container).eval()
    model = vitviz.watch(net)
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        expected = net.fc(net.backbone(model.preprocess(picture())[None]))[0]
    np.testing.assert_array_equal(acts.logits, expected)
    assert model.answers == "classes"


@pytest.mark.parametrize("whole", [True, False])
def test_a_class_map_of_a_wrapped_swin_begins_at_its_mean(whole: bool) -> None:
    """Its head stands outside, and it may call parts of the backbone alone."""
    with seeded():
        swin: Any = timm.create_model(
            "swin_tiny_patch4_window7_224",
            img_size=56,
            depths=(2, 1),
            num_heads=(2, 2),
            embed_dim=24,
            num_classes=4,
        )
    randomise(swin.eval())
    fc, expected = swin.head.fc, vitviz.attribution.relevance(vitviz.watch(swin), picture(), 1)
    if whole:
        swin.head.fc = nn.Identity()
        net: nn.Module = nn.Sequential(swin, fc)
    else:
        net = OfMap(backbone=swin, fc=fc)
    found = vitviz.attribution.relevance(vitviz.watch(net), picture(), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    with pytest.raises(ModelError, match="does not read the mean"):
        vitviz.attribution.relevance(vitviz.watch(Largest(backbone=swin, fc=fc)), picture(), 1)


class OfMap(Wrapper):
    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.backbone.forward_features(x).mean(dim=(1, 2)))


class Largest(Wrapper):
    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.backbone.forward_features(x).amax(dim=(1, 2)))


class Flipped(nn.Module):
    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(self.axes)


def library_flip() -> nn.Module:
    transforms: Any = pytest.importorskip("torchvision.transforms")
    flip: nn.Module = transforms.RandomHorizontalFlip(p=1)
    return flip


class ClassTokenLast(timm.models.vision_transformer.VisionTransformer):
    """Moves its class token behind the patches, as a subclass may."""

    def _pos_embed(self, x: torch.Tensor) -> torch.Tensor:
        tokens = super()._pos_embed(x)
        return torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1)


def class_token_last() -> nn.Module:
    sizes: Any = dict(img_size=(16, 24), patch_size=4, embed_dim=32, depth=1, num_heads=4)
    return ClassTokenLast(**sizes, num_classes=5).train()


class Beside(Wrapper):
    """Answers without its backbone."""

    def forward(self, x: torch.Tensor) -> Any:
        self.backbone(x)
        return x.mean(dim=(2, 3))


class Both(Wrapper):
    def forward(self, x: torch.Tensor) -> Any:
        return self.backbone(x), x


class Twice(Wrapper):
    def forward(self, x: torch.Tensor) -> Any:
        return self.backbone(x) + self.backbone(x.flip(-1))


class Pooled(Wrapper):
    """Its answer depends on the tokens of two layers."""

    def forward(self, x: torch.Tensor) -> Any:
        seen: list[Any] = []
        handle = self.backbone.blocks[0].register_forward_hook(lambda *all_: seen.append(all_[-1]))
        answer = self.backbone(x)
        handle.remove()
        return answer + seen[0][:, 0, :5]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Net(backbone=own_module()), "cannot be run as a whole"),
        (lambda: nn.Sequential(Flipped(-1), own_module()), "maps would be misplaced"),
        (lambda: nn.Sequential(Flipped(-2), own_module()), "maps would be misplaced"),
        (  # of parts of libraries alone
            lambda: nn.Sequential(library_flip(), own_module()),
            "maps would be misplaced",
        ),
        (class_token_last, "patch in row 0, column 5 into token 5"),
        (
            lambda: nn.Sequential(nn.ZeroPad2d(4), own_module()),
            r"\(Expected a picture of 16 x 24 pixels, got 24 x 32\)",
        ),
        (lambda: nn.Sequential(Flipped(-1), Resized(mode="bilinear")), "maps would be misplaced"),
        (
            lambda: Beside(backbone=own_module()),
            "does not depend on the last block of its part backbone",
        ),
        (lambda: Both(backbone=own_module()), "returns tuple of 2 instead of one tensor"),
        (lambda: Twice(backbone=own_module()), "once each in their order"),
    ],
)
def test_a_wrapper_that_cannot_be_followed_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        vitviz.watch(make(), preprocessing=SIZE)


def flip_before_attention(module: Any) -> None:
    module.blocks[1].attn.register_forward_pre_hook(lambda _, inputs: (inputs[0].flip(1),))


def flip_keys_and_values(module: Any) -> None:
    def flip(_: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return torch.cat([output[..., :32], output[..., 32:].flip(1)], dim=-1)

    module.blocks[1].attn.qkv.register_forward_hook(flip)


def shuffle_in_a_block(module: Any, layer: int) -> None:
    block = module.blocks[layer]
    plain, order = block.forward, torch.randperm(25, generator=torch.Generator().manual_seed(0))
    block.forward = lambda tokens: plain(tokens[:, order])


def flip_after_a_block(module: Any, layer: int) -> None:
    module.blocks[layer].register_forward_hook(lambda _, inputs, output: 1.1 * output.flip(1) + 0.1)


def flip_for_the_attention_alone(module: Any) -> None:
    attn = module.blocks[1].attn
    plain = attn.forward
    attn.forward = lambda tokens: plain(tokens.flip(1)).flip(1)


def change_no_order(module: Any) -> None:
    module.blocks[0].register_forward_hook(lambda _, inputs, output: 1.1 * output + 0.1)
    module.blocks[1].mlp.register_forward_hook(lambda _, inputs, output: output.mean(1, True))
    attn = module.blocks[2].attn
    plain = attn.forward
    attn.forward = lambda tokens: 2 * plain(tokens * 0.5) + tokens.mean(1, True)


def attend_without_queries(module: Any) -> None:
    with torch.no_grad():
        module.blocks[1].attn.qkv.weight[:32] = 0
    change_no_order(module)


@pytest.mark.parametrize(
    ("change", "misplaced"),
    [
        (flip_before_attention, [1]),
        (flip_keys_and_values, [1]),
        (flip_for_the_attention_alone, [1]),
        (change_no_order, []),
        (attend_without_queries, []),
    ],
)
def test_a_layer_that_reorders_its_tokens_is_refused(change: Any, misplaced: list[int]) -> None:
    """The proof of the layer holds: its attention is right, and would be drawn at wrong places."""
    module = own_module()
    change(module)
    model = vitviz.watch(module, preprocessing=SIZE)
    acts = vitviz.capture(model, picture())
    for layer in range(3):
        if layer not in misplaced:
            acts.attention(layer)
            continue
        with pytest.raises(ModelError, match=r"into another order .* would be misplaced"):
            acts.attention(layer)
    if misplaced:
        with pytest.raises(ModelError, match="would be misplaced"):
            vitviz.attribution.relevance(model, picture(), 0)


@pytest.mark.parametrize(
    ("change", "layer"),
    [(shuffle_in_a_block, 0), (shuffle_in_a_block, 2), (flip_after_a_block, 1)],
)
def test_a_module_whose_block_returns_other_tokens_is_refused(change: Any, layer: int) -> None:
    module = own_module()
    change(module, layer)
    with pytest.raises(ModelError, match=rf"its tokens in blocks\.{layer} .* would be misplaced"):
        vitviz.watch(module, preprocessing=SIZE)


@pytest.mark.parametrize(
    ("name", "options"),
    [*STAGED.items(), ("cait_xxs24_224", dict(depth=2)), ("mixer_s32_224", {})],
)
def test_a_harmless_hook_loses_no_layer(name: str, options: dict[str, Any]) -> None:
    module = timm.create_model(name, **options)
    module.register_forward_hook(lambda *_: None)
    assert not vitviz.watch(module).misplaced


def test_answers_that_differ_from_pass_to_pass_are_refused() -> None:
    module: Any = own_module()
    module.blocks[1].mlp.register_forward_hook(
        lambda _, inputs, output: nn.functional.dropout(output)
    )
    with pytest.raises(ModelError, match="another answer each time"):
        vitviz.watch(module, preprocessing=SIZE)


class Unfolded(nn.Module):
    """Embeds patches without a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 32)

    def forward(self, x: torch.Tensor) -> Any:
        patches = nn.functional.unfold(x, 4, stride=4)
        return self.linear(patches.transpose(1, 2))


def test_a_part_of_another_kind_is_named() -> None:
    module: Any = timm_backbone()
    module.patch_embed = Unfolded()
    with pytest.raises(ModelError, match=r"'Unfolded' object has no attribute .* of another kind"):
        vitviz.watch(module)
    narrow: Any = own_module()
    narrow.forward = lambda x: x.view(1, 7)
    with pytest.raises(ModelError, match=r"run on an input of shape \(1, 3, 16, 24\)"):
        vitviz.watch(narrow, preprocessing=SIZE)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.flip(3),
        lambda x: nn.functional.interpolate(x[..., 1:-1, 2:-2], size=x.shape[2:]),
        lambda x: x.roll(2, dims=3),
    ],
)
def test_a_picture_that_a_replaced_method_moves_is_refused(change: Any) -> None:
    module: Any = own_module()
    plain = module.patch_embed.forward
    module.patch_embed.forward = lambda x: plain(change(x))
    with pytest.raises(ModelError, match="would be misplaced"):
        vitviz.watch(module, preprocessing=SIZE)


def test_a_wrapper_that_changes_the_picture_needs_a_preprocessing() -> None:
    net = nn.Sequential(Normalise(), timm_backbone())
    with pytest.raises(ModelError, match="preprocessing is wrong for it"):
        vitviz.watch(net)
    assert vitviz.watch(nn.Sequential(timm_backbone(), nn.Tanh())).preprocess.input_size == (
        160,
        160,
    )


def test_an_answer_of_two_layers_is_not_asked_of_the_last_alone() -> None:
    labels = ["cat", "dog", "bird", "ship", "frog"]
    pooled = Pooled(backbone=own_module())
    model = vitviz.watch(pooled, preprocessing=SIZE, labels=labels, name="mine")
    acts = vitviz.capture(model, picture())
    assert (model.name, acts.labels) == ("mine", tuple(labels))
    with pytest.raises(ModelError, match="depends on more than the tokens after its last block"):
        vitviz.intervention.logit_lens(model, acts)
    assert model.read_tokens == ("cls",)
    muted = vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(1, 0)])])
    effects = head_effects(model, picture())
    np.testing.assert_allclose(effects[1, 0], answer_of(muted), atol=1e-6)


def two_backbones() -> nn.Module:
    return Net(left=own_module(), right=own_module())


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (two_backbones, dict(preprocessing=SIZE), "2 parts .* of them: left, right"),
        (own_module, {}, "preprocessing of VisionTransformer is unknown"),
        (own_module, dict(preprocessing=SIZE, labels=["a"]), "each of 5 outputs, got 1"),
        (lambda: Net(fc=nn.Linear(3, 3)), {}, "Net"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_one_sentence(
    make: Any, options: dict[str, Any], words: str
) -> None:
    module = make().train()
    with pytest.raises(ModelError, match=words) as caught:
        vitviz.watch(module, **options)
    assert_clear_error(caught.value)
    assert all(part.training for part in module.modules())


def compiled(module: Any) -> Any:
    return torch.compile(module)


def compiled_in_place(module: Any) -> Any:
    module.compile()
    return module


def compiled_block(module: Any) -> Any:
    module.blocks[0] = torch.compile(module.blocks[0])
    return module


def compiled_forward(module: Any) -> Any:
    module.forward = torch.compile(module.forward)
    return module


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # of torch 2.10
@pytest.mark.parametrize("change", [compiled, compiled_in_place, compiled_block, compiled_forward])
def test_a_compiled_module_is_refused_as_such(change: Any) -> None:
    with pytest.raises(ModelError, match="was compiled"):
        vitviz.watch(change(own_module()), preprocessing=SIZE)


def test_offloaded_weights_are_the_reason() -> None:
    """As accelerate's hooks leave them: nowhere, until a part runs."""
    module: Any = own_module().to("meta")
    forward = module.forward
    module.forward = lambda *inputs: forward(*inputs)
    module.blocks[0]._hf_hook = SimpleNamespace(offload=True)
    with pytest.raises(ModelError, match="are offloaded, and loaded only while a part runs"):
        vitviz.watch(module, preprocessing=SIZE)


def test_a_name_is_no_module() -> None:
    name: Any = "vit_tiny_patch16_224"
    with pytest.raises(ModelError, match="a module of torch, got str") as caught:
        vitviz.watch(name)
    assert_clear_error(caught.value)


# --- a forward that was replaced ----------------------------------------------------------------


def replace_method(module: Any) -> None:
    forward = module.forward
    module.forward = lambda *inputs, **options: forward(*inputs, **options)


def replace_as_hooks_do(module: Any) -> None:
    old = module.forward
    module._old_forward = old
    module.forward = functools.partial(lambda module, *inputs: module._old_forward(*inputs), module)


def replace_inside(module: Any) -> None:
    """Replace the forward of what holds the blocks, between the module and them."""
    replace_method(module.blocks)


def replace_a_part_of_it(module: Any) -> None:
    """Replace a method that the forward of the module calls."""
    features = module.forward_features
    module.forward_features = lambda *inputs, **options: features(*inputs, **options)


@pytest.mark.parametrize(
    "change", [replace_method, replace_as_hooks_do, replace_inside, replace_a_part_of_it]
)
def test_a_replaced_forward_answers_as_the_module_does(change: Any) -> None:
    plain = vitviz.watch(timm_backbone(global_pool="avg", num_classes=5))
    module = timm_backbone(global_pool="avg", num_classes=5)
    change(module)
    model = vitviz.watch(module)
    assert model.read_tokens == plain.read_tokens == ("patches",)
    acts, expected = (vitviz.capture(each, picture()) for each in (model, plain))
    np.testing.assert_array_equal(acts.output, expected.output)
    for measure in (
        vitviz.intervention.logit_lens,
        lambda model, acts: vitviz.intervention.patch_lens(model, acts, 1),
        lambda model, acts: head_effects(model, picture()),
        lambda model, acts: vitviz.attribution.relevance(model, picture(), 1),
    ):
        found, wanted = measure(model, acts), measure(plain, expected)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert np.ptp(vitviz.intervention.logit_lens(model, acts), axis=0).max() > 1e-3
    with pytest.raises(ModelError, match="was replaced by a function"):
        shuffle_patches(model, picture())


# --- a module that changes after it is watched --------------------------------------------------


def test_another_input_size_set_later_is_read() -> None:
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # timm's own, of a tensor that is not contiguous
        module: Any = timm.create_model(
            "swin_tiny_patch4_window7_224",
            depths=(2, 1),
            num_heads=(2, 2),
            embed_dim=24,
            img_size=(56, 112),
        )
    model = vitviz.watch(module)
    vitviz.capture(model, picture())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.set_input_size(img_size=(112, 56))  # as many windows, in other places
    with pytest.raises(ModelError, match=r"grid of|could not compute"):
        vitviz.capture(model, picture())
    model.preprocess = replace(model.preprocess, input_size=(112, 56))
    acts = vitviz.capture(model, picture())
    assert acts.layers[0].query_grid == (28, 14)
    fresh = vitviz.capture(vitviz.watch(module), picture())
    np.testing.assert_array_equal(acts.attention(1), fresh.attention(1))


def test_a_head_exchanged_later_is_the_one_that_is_read() -> None:
    module: Any = timm_backbone(num_classes=5)
    model = vitviz.watch(module)
    assert model.read_tokens == ("cls",)
    module.global_pool = "avg"
    assert model.read_tokens == ("patches",)


def test_a_capture_looks_at_the_module_once_and_trusts_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = own_model()
    vitviz.capture(model, picture(24, 16))
    looks: list[str] = []
    own = families.explain_unready

    def looked(module: nn.Module) -> Any:
        looks.append("ready")
        return own(module)

    monkeypatch.setattr("vitviz.model.model.explain_unready", looked)
    vitviz.capture(model, picture(24, 16))
    assert len(looks) == 1
    model.module.train()
    with pytest.raises(ModelError, match="training mode"):
        vitviz.capture(model, picture(24, 16))
    with pytest.raises(ModelError, match="training mode"), model.assume_unchanged():
        pass
    model.module.eval()
    with model.assume_unchanged():
        layers = model.layers
    module: Any = model.module
    module.blocks = module.blocks[:1]
    assert len(model.layers) == 1 < len(layers)


@pytest.mark.parametrize(
    ("block", "part"),
    [("Block", "norm2"), ("Block", "attn"), ("ResPostBlock", "mlp"), ("ResPostBlock", "attn")],
)
def test_a_part_that_blocks_share_is_read_in_each_of_them(block: str, part: str) -> None:
    with seeded():
        kind = getattr(timm.models.vision_transformer, block)
        module: Any = timm.create_model(
            "test_vit", img_size=32, patch_size=8, depth=3, block_fn=kind
        )
    randomise(module.eval())
    for other in module.blocks[1:]:
        setattr(other, part, getattr(module.blocks[0], part))
    model = vitviz.watch(module)
    middle = [getattr(each, "norm2" if block == "Block" else "mlp") for each in module.blocks]
    acts = vitviz.capture(model, picture())
    seen: list[np.ndarray] = []
    handles = [
        each.register_forward_pre_hook(lambda _, given: seen.append(given[0][0].numpy()))
        for each in {*middle}
    ]
    with torch.inference_mode():
        module(model.preprocess(picture())[None])
    for handle in handles:
        handle.remove()
    for layer in range(3):
        np.testing.assert_array_equal(acts.tokens_after_attention(layer), seen[layer])
    muted = vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(1, 0)])])
    np.testing.assert_array_equal(muted.tokens(1), acts.tokens(1))
    assert not np.array_equal(muted.tokens(2), acts.tokens(2))
