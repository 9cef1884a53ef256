"""LoRA of peft: the module is read with its adapters, wherever they are."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from examples import picture, randomise, timm_module
from numpy.testing import assert_allclose, assert_array_equal
from timm.models import maxxvit

import vitviz
from vitviz.model import Preprocessing

peft: Any = pytest.importorskip("peft", reason="peft is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

SIZE = Preprocessing(input_size=(32, 48), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
SMALL: dict[str, Any] = dict(image_size=(32, 48), patch_size=8, num_labels=3, num_channels=3)
VIT: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
)
SWIN: dict[str, Any] = dict(
    image_size=32, embed_dim=16, depths=[2, 1], num_heads=[2, 2], window_size=4, patch_size=4
)


def adapted(module: Any, *targets: str, **options: Any) -> Any:
    config = peft.LoraConfig(target_modules=[*targets], r=2, init_lora_weights=False, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks transformers by an outdated name
        whole = peft.get_peft_model(module, config).eval()
    randomise(whole)
    return whole


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("targets", "options"),
    [
        (("projection",), {}),
        (("projection", "q_proj", "k_proj", "v_proj"), {}),
        (("q_proj",), dict(use_dora=True)),
        (("v_proj",), dict(modules_to_save=["classifier"])),
    ],
)
def test_vit_of_transformers_is_read_with_its_adapters(
    targets: tuple[str, ...], options: dict[str, Any], attention: str
) -> None:
    module = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, **VIT))
    whole = adapted(module, *targets, **options)
    whole.set_attn_implementation("eager")
    with vitviz.watch(whole, preprocessing=SIZE) as model:
        with torch.inference_mode():
            x = model.preprocess(picture())[None]
            own = whole(pixel_values=x, output_attentions=True)
            whole.set_attn_implementation(attention)
            plain = whole(pixel_values=x)
        acts = vitviz.capture(model, picture())
        assert (acts.grid, acts.patch_size, model.read_tokens) == ((4, 6), 8, ("cls",))
        for layer in range(acts.depth):
            assert_allclose(acts.attention(layer), own.attentions[layer][0], atol=1e-5)
        assert_array_equal(acts.logits, plain.logits[0])
        with whole.disable_adapter():
            bare = vitviz.capture(model, picture())
        assert np.abs(bare.attention(1) - acts.attention(1)).max() > 1e-4


def test_filters_of_a_patch_embedding_are_those_that_it_computes_with() -> None:
    """LoRA adds to them; there is no CNN before the first block."""
    module = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, **VIT))
    whole = adapted(module, "projection")
    base = module.vit.embeddings.patch_embeddings.projection.base_layer.weight.detach().numpy()
    found = vitviz.watch(whole, preprocessing=SIZE).patch_kernel
    assert found is not None
    assert np.abs(found - base).max() > 1e-2
    merged = vitviz.watch(whole.merge_and_unload(), preprocessing=SIZE).patch_kernel
    assert merged is not None
    assert_allclose(found, merged, atol=1e-5)
    pvt = timm_module("pvt_v2_b0", depths=(1, 1, 1, 1), num_classes=3)  # padded
    whole = adapted(pvt, "proj")
    how = Preprocessing(input_size=(32, 32), mean=SIZE.mean, std=SIZE.std)
    found = vitviz.watch(whole, preprocessing=how).patch_kernel
    merged = vitviz.watch(whole.merge_and_unload(), preprocessing=how).patch_kernel
    assert found is not None
    assert merged is not None
    assert_allclose(found, merged, atol=1e-4)


def test_staged_models_are_read_with_adapters_on_their_convolutions() -> None:
    swin = transformers.SwinForImageClassification(transformers.SwinConfig(**SWIN, num_labels=3))
    timms = timm_module("test_vit", img_size=32)
    pvt = timm_module("pvt_v2_b0", depths=(1, 1, 1, 1), num_classes=3)
    for module, grid in ((swin, (8, 8)), (timms, (2, 2)), (pvt, (8, 8))):
        whole = adapted(module, "projection", "proj")
        how = Preprocessing(input_size=(32, 32), mean=SIZE.mean, std=SIZE.std)
        with vitviz.watch(whole, preprocessing=how) as model:
            acts = vitviz.capture(model, picture())
            assert acts.layers[0].query_grid == grid
            assert not acts.refusal
            with torch.inference_mode():
                plain = whole(model.preprocess(picture())[None])
            assert_array_equal(acts.logits, getattr(plain, "logits", plain)[0])


def test_patches_are_exchanged_after_a_convolution_with_an_adapter() -> None:
    """CLIP embeds its patches by the convolution alone, whose output is a map."""
    sizes = dict(VIT, image_size=32, patch_size=8, num_labels=3)
    config = transformers.CLIPConfig(vision_config=sizes, num_labels=3)
    whole = adapted(transformers.CLIPForImageClassification(config), "patch_embedding")
    how = Preprocessing(input_size=(32, 32), mean=SIZE.mean, std=SIZE.std)
    with vitviz.watch(whole, preprocessing=how) as model:
        swapped = vitviz.capture(model, picture(), edits=[vitviz.SwapTokens([(1, 14)])])
        x = model.preprocess(picture())
        other = x.clone()
        other[:, :8, 8:16], other[:, 24:, 16:24] = x[:, 24:, 16:24], x[:, :8, 8:16]
        with torch.inference_mode():
            plain, expected = (model.run(each[None])[0].numpy() for each in (x, other))
    assert swapped.logits is not None
    assert_allclose(swapped.logits, expected, atol=1e-5)
    assert np.abs(expected - plain).max() > 1e-3


def test_heads_are_muted_before_a_convolution_with_an_adapter() -> None:
    """CoAtNet joins its heads in the channels of a map."""
    attention = maxxvit.MaxxVitTransformerCfg(dim_head=2, rel_pos_type="bias")
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16, 16, 16, 16),
        depths=(1, 1, 1, 1),
        block_type=("C", "C", "C", "T"),
        stem_width=16,
        transformer_cfg=attention,
    )
    module: Any = maxxvit.MaxxVit(config, img_size=(128, 192), num_classes=3)
    whole = adapted(module, "proj")
    how = Preprocessing(input_size=(128, 192), mean=SIZE.mean, std=SIZE.std)

    def muted() -> np.ndarray:
        with vitviz.watch(whole, preprocessing=how) as model:
            acts = vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(0, 2)])])
        assert acts.logits is not None
        return acts.logits

    found = muted()
    whole = whole.merge_and_unload()
    assert_allclose(found, muted(), atol=1e-4)
