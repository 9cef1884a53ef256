"""Backbones and whole CLIP models of transformers: what they compute themselves is shown."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import narrow_stages, picture, randomise, seeded, watched
from numpy.testing import assert_allclose, assert_array_equal

import vitviz
from vitviz.model import Preprocessing

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

PLAIN: dict[str, Any] = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    image_size=32,
    patch_size=8,
)
SWIN: dict[str, Any] = dict(
    image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4
)
PVT: dict[str, Any] = dict(depths=[1, 1, 1, 1])
#: By class: options of its configuration, and the size of a picture.
BACKBONES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "Dinov2Backbone": (PLAIN, (32, 48)),
    "Dinov2WithRegistersBackbone": (dict(PLAIN, num_register_tokens=3), (32, 48)),
    "DINOv3ViTBackbone": (dict(PLAIN, num_register_tokens=3), (32, 48)),
    "BeitBackbone": (PLAIN, (32, 32)),
    "SwinBackbone": (SWIN, (32, 32)),
    "Swinv2Backbone": (SWIN, (32, 32)),
    "PvtV2Backbone": (PVT, (64, 96)),
}


def backbone(name: str, attention: str = "eager", **options: Any) -> Any:
    kind = getattr(transformers, name)
    config = kind.config_class(**{**BACKBONES[name][0], **options})
    config._attn_implementation = attention if kind._supports_sdpa else "eager"
    module = kind(config).eval()
    randomise(module)
    return module


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BACKBONES)
def test_the_answer_of_a_backbone_is_the_mean_of_its_last_map(name: str, attention: str) -> None:
    module, size = backbone(name, attention), BACKBONES[name][1]
    model = watched(module, size)
    x = model.preprocess(picture())[None]
    with torch.inference_mode():
        before = module(x).feature_maps[-1]
        acts = vitviz.capture(model, picture())
        after = module(x).feature_maps[-1]
    assert torch.equal(before, after)
    assert (acts.logits, model.num_classes, model.embeds) == (None, 0, False)
    assert acts.output is not None
    assert_array_equal(acts.output, before[0].flatten(1).mean(dim=1))
    assert not acts.refusal
    for layer in range(acts.depth):
        assert_allclose(acts.attention(layer).sum(axis=2), 1, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in BACKBONES if "ViT" in name or "ino" in name])
def test_attention_of_a_backbone_is_its_own(name: str) -> None:
    module = backbone(name)
    model = watched(module, (32, 48))
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        own = module(model.preprocess(picture())[None], output_attentions=True)
    for layer in range(acts.depth):
        assert_allclose(acts.attention(layer), own.attentions[layer][0], atol=1e-5)
    assert acts.grid == (4, 6)
    assert model.read_tokens == ("patches",)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_without_its_last_stage_ends_at_its_last_map(name: str) -> None:
    """Blocks behind it run, but nothing of the answer comes from them."""
    stem = [] if name.startswith("Pvt") else ["stem"]
    module, size = backbone(name, out_features=[*stem, "stage1"]), BACKBONES[name][1]
    whole = vitviz.capture(watched(backbone(name), size), picture())
    model = watched(module, size)
    acts = vitviz.capture(model, picture())
    assert 1 <= acts.depth < whole.depth
    for layer in range(acts.depth):
        assert_array_equal(acts.attention(layer), whole.attention(layer))
    assert model.read_tokens == (("patches",) if acts.layers[0].kind == "global" else ())
    with torch.inference_mode():
        expected = module(model.preprocess(picture())[None]).feature_maps[-1]
    assert_array_equal(acts.output, expected[0].flatten(1).mean(dim=1))


UNNORMED = dict(apply_layernorm=False)
FIRST = dict(out_features=["stage1"])


@pytest.mark.parametrize(
    ("name", "options", "normed"),
    [
        ("Dinov2Backbone", {}, True),
        ("Dinov2Backbone", UNNORMED, False),
        ("Dinov2WithRegistersBackbone", UNNORMED, False),
        ("DINOv3ViTBackbone", UNNORMED, True),  # of the last block
        ("DINOv3ViTBackbone", UNNORMED | FIRST, False),
        ("BeitBackbone", dict(use_mean_pooling=False), False),
        ("SwinBackbone", {}, True),
        ("SwinBackbone", FIRST, True),
        ("Swinv2Backbone", {}, False),
        ("PvtV2Backbone", {}, True),
        ("PvtV2Backbone", FIRST, True),
    ],
)
def test_the_final_norm_of_a_backbone_is_that_of_its_last_map(
    name: str, options: dict[str, Any], normed: bool
) -> None:
    module = backbone(name, **options)
    model = watched(module, BACKBONES[name][1])
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        last = module(model.preprocess(picture())[None]).feature_maps[-1][0].flatten(1).T
    assert (model.final_norm is not None) == normed
    tokens = acts.tokens(acts.depth, normalised=normed)
    assert_allclose(tokens[-len(last) :], last, atol=1e-5)


def test_a_backbone_of_its_stem_alone_has_no_layers() -> None:
    module = backbone("Dinov2Backbone", out_features=["stem"])
    with pytest.raises(vitviz.ModelError, match="only the map of its patch embedding"):
        watched(module, (32, 48))


STAGES: dict[str, dict[str, Any]] = {
    "swin_tiny_patch4_window7_224": dict(
        img_size=56, depths=(2, 1), num_heads=(2, 2), embed_dim=24
    ),
    "swinv2_tiny_window8_256": dict(img_size=64, depths=(2, 1), num_heads=(2, 2), embed_dim=24),
    "swinv2_cr_tiny_224": dict(
        img_size=64, depths=(2, 1), num_heads=(2, 2), embed_dim=24, window_size=4
    ),
    "pvt_v2_b0": dict(depths=(1, 1, 1, 1)),
    "maxvit_nano_rw_256": dict(img_size=64, **narrow_stages()),
    "coatnet_nano_rw_224": dict(img_size=64, **narrow_stages()),
}


@pytest.mark.parametrize("net", ["list", "dict"])
@pytest.mark.parametrize("name", STAGES)
def test_a_model_that_timm_took_apart_attends_as_the_whole_does(name: str, net: str) -> None:
    with seeded():
        whole = timm.create_model(name, num_classes=3, **STAGES[name]).eval()
        stages: dict[str, Any] = {} if name[0] != "s" else dict(out_indices=(0, 1))
        apart = timm.create_model(
            name, features_only=True, feature_cls=net, **stages, **STAGES[name]
        ).eval()
    randomise(whole)
    state = {key.replace("_", "."): value for key, value in whole.state_dict().items()}
    apart.load_state_dict({key: state[key.replace("_", ".")] for key in apart.state_dict()})
    side = 56 if name.startswith("swin_") else 64
    expected = vitviz.capture(watched(whole, (side, side)), picture())
    model = watched(apart, (side, side))
    acts = vitviz.capture(model, picture())
    assert [layer.query_grid for layer in acts.layers] == [
        layer.query_grid for layer in expected.layers
    ]
    for layer in range(acts.depth):
        for one, other in zip(acts.windows(layer), expected.windows(layer), strict=True):
            for found, wanted in zip(one, other, strict=True):
                assert_array_equal(found, wanted)
    with torch.inference_mode():
        maps = apart(model.preprocess(picture())[None])
    assert acts.output is not None
    last = [*maps.values()][-1] if net == "dict" else maps[-1]
    axes = (0, 1) if name.startswith(("swin_", "swinv2_tiny")) else (1, 2)  # of the places
    assert_allclose(acts.output, last[0].mean(dim=axes), rtol=1e-5, atol=1e-6)
    assert model.answers == "embedding"


def test_a_backbone_of_timm_in_transformers_has_a_number_for_each_channel() -> None:
    config = transformers.TimmBackboneConfig(
        backbone="swin_tiny_patch4_window7_224", use_pretrained_backbone=False, out_indices=(0, 1)
    )
    with seeded():
        module = transformers.TimmBackbone(config).eval()
    size = Preprocessing(input_size=(224, 224), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
    model = vitviz.watch(module, preprocessing=size)
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        last = module(model.preprocess(picture())[None]).feature_maps[-1]
    assert last.shape == (1, 28, 28, 192)
    assert acts.output is not None
    assert_allclose(acts.output, last[0].mean(dim=(0, 1)), rtol=1e-5, atol=1e-6)


def test_stages_without_attention_are_refused_by_that_reason() -> None:
    module = timm.create_model("coatnet_nano_rw_224", features_only=True, out_indices=(0, 1))
    with pytest.raises(vitviz.ModelError, match="has no attention"):
        vitviz.watch(module)


def test_swin_as_a_backbone_shifts_its_windows_where_one_is_the_whole_grid() -> None:
    module = backbone("SwinBackbone")
    attention = module.swin.encoder.layers[1].blocks[1].attention
    seen: list[torch.Tensor] = []
    handle = attention.register_forward_hook(lambda part, given, output: seen.append(output[1]))
    acts = vitviz.capture(watched(module, (32, 32)), picture())
    handle.remove()
    places = np.roll(np.arange(16).reshape(4, 4), (-2, -2), (0, 1)).ravel()
    own = np.zeros((2, 16, 16), np.float32)
    own[:, places[:, None], places] = seen[-1][0]
    assert_allclose(acts.attention(3), own, atol=1e-5)
    assert int(module.swin.encoder.layers[1].blocks[1].shift_size) == 2


TOWERS: dict[str, str] = {
    "CLIPModel": "CLIP",
    "MetaClip2Model": "MetaClip2",
    "SiglipModel": "Siglip",
}


@pytest.mark.parametrize("name", TOWERS)
def test_a_whole_clip_model_gives_its_projected_embedding(name: str) -> None:
    text = dict(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=50,
        max_position_embeddings=16,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 1),
    )
    config = getattr(transformers, f"{TOWERS[name]}Config")
    vision = PLAIN
    projection = {} if name == "SiglipModel" else dict(projection_dim=6)
    module = getattr(transformers, name)(
        config(vision_config=vision, text_config=text, **projection)
    ).eval()
    randomise(module)
    module.set_attn_implementation("eager")
    model = watched(module, (32, 32))
    with torch.inference_mode():
        x = model.preprocess(picture())[None]
        own = module.get_image_features(pixel_values=x, output_attentions=True)
    acts = vitviz.capture(model, picture())
    assert (model.embeds, model.num_classes) == (True, 0)
    assert_array_equal(acts.logits, own.pooler_output[0])
    for layer in range(acts.depth):
        assert_allclose(acts.attention(layer), own.attentions[layer][0], atol=1e-5)
    assert model.read_tokens == (("patches",) if name == "SiglipModel" else ("cls",))


def test_a_wrapper_of_timm_answers_with_its_labels_and_features_only_with_its_last_map() -> None:
    size = Preprocessing(input_size=(64, 64), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
    made = dict(architecture="vit_tiny_patch16_224", model_args=dict(img_size=64, depth=2))
    named = {0: "cat", 1: "dog", 2: "ship"}
    config = transformers.TimmWrapperConfig(**made, num_labels=3, id2label=named)
    module = transformers.TimmWrapperForImageClassification(config)
    maps = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, features_only=True)
    for each in (module, maps):
        randomise(each.eval())
        with vitviz.watch(each, preprocessing=size) as model, torch.inference_mode():
            own = each(model.preprocess(picture())[None])
            acts = vitviz.capture(model, picture())
        expected = own[-1].flatten(2).mean(dim=2) if each is maps else own.logits
        assert_array_equal(acts.output, expected[0])
        assert acts.labels == (None if each is maps else ("cat", "dog", "ship"))
        assert model.read_tokens == (("patches",) if each is maps else ("cls",))
