"""Folders as transformers' own function saves them, with random weights made on the spot."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import assert_clear_error, picture, randomise
from safetensors.torch import load_file, save_file
from test_checkpoints_wrapped import sharded
from torch import nn

from vitviz import Model, ModelError, capture, load_model
from vitviz.model.families import family_of
from vitviz.zoo import random_kernel

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

SMALL: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
)
PLAIN: dict[str, Any] = dict(SMALL, image_size=32, patch_size=8)
STAGED: dict[str, Any] = dict(image_size=32, patch_size=4, embed_dim=16, window_size=4)
KINDS: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": PLAIN,
    "ViTModel": PLAIN,
    "ViTMSNForImageClassification": PLAIN,
    "IJepaForImageClassification": PLAIN,
    "DeiTForImageClassificationWithTeacher": PLAIN,
    "Dinov2ForImageClassification": PLAIN,
    "Dinov2WithRegistersForImageClassification": PLAIN,
    "DINOv3ViTModel": dict(PLAIN, num_register_tokens=3),
    "BeitForImageClassification": PLAIN,
    "SwinForImageClassification": dict(STAGED, depths=[2, 2], num_heads=[2, 4]),
    "Swinv2ForImageClassification": dict(STAGED, depths=[2, 2], num_heads=[2, 4]),
    "PvtV2ForImageClassification": dict(
        image_size=32, hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 2, 2, 4]
    ),
    "CLIPVisionModelWithProjection": dict(PLAIN, projection_dim=16),
    "MetaClip2VisionModel": PLAIN,
    "SiglipVisionModel": PLAIN,
}
PROCESSOR: dict[str, Any] = dict(
    size={"height": 32, "width": 32},
    resample=2,
    image_mean=[0.1, 0.2, 0.3],
    image_std=[0.4, 0.5, 0.6],
)


def module_of(kind: str, **options: Any) -> Any:
    """A small module of this class of transformers, all parameters random."""
    made = getattr(transformers, kind)
    settings = {**KINDS.get(kind, PLAIN), **options}
    if kind.endswith("Classification") or kind.endswith("Teacher"):
        settings["id2label"] = {0: "cat", 1: "dog", 2: "fox"}
    module = made(made.config_class(**settings)).eval()
    randomise(module)
    return module


def saved(module: Any, folder: Path, processor: dict[str, Any] | None = PROCESSOR) -> Path:
    """The folder that `save_pretrained` writes."""
    module.save_pretrained(folder)
    if processor is not None:
        kind = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
        kind(**processor).save_pretrained(folder)
    return folder


def assert_same_answer(model: Model, module: nn.Module) -> None:
    with torch.inference_mode():
        x = model.preprocess(picture())[None]
        other: dict[str, Any] = (
            {} if x.shape[-2:] == (32, 32) else {"interpolate_pos_encoding": True}
        )
        found = module(x, **other)
    logits = capture(model, picture()).logits
    if logits is not None:
        name = next(n for n in ("logits", "image_embeds", "pooler_output") if n in found)
        np.testing.assert_allclose(logits, found[name][0], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_says_all_that_its_model_is(kind: str, tmp_path: Path) -> None:
    module = module_of(kind)
    model = load_model(saved(module, tmp_path / "mine"))
    assert model.name == "mine"
    assert model.weights.startswith("folder mine, model.safetensors, sha256 ")
    assert "preprocessing" not in model.weights
    assert "resampled" not in model.weights
    assert model.trained
    assert model.preprocess.input_size == (32, 32)
    assert model.preprocess.mean == (0.1, 0.2, 0.3)
    assert model.preprocess.interpolation == "bilinear"
    if "Classification" in kind:
        assert model.labels == ("cat", "dog", "fox")
    own = module.state_dict()
    for key, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, own[key]), key
    assert_same_answer(model, module)
    acts = capture(model, picture())
    assert (acts.probabilities is None) == ("Classification" not in kind)
    for layer in range(acts.depth):
        acts.attention_map(layer, 0)  # proved


@pytest.mark.parametrize("architectures", [None, ["MyViTForImageClassification"]])
def test_a_classifier_that_config_json_does_not_name_is_told(
    architectures: list[str] | None, tmp_path: Path
) -> None:
    folder = saved(module_of("ViTForImageClassification"), tmp_path)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": architectures}))
    model = load_model(folder)
    assert model.answers == "embedding"
    assert model.weights.endswith(", without classifier.bias and 1 more")


@pytest.mark.parametrize("kind", ["ViTModel", "DeiTModel", "BeitModel"])
def test_a_pooler_that_the_file_lacks_computes_nothing(kind: str, tmp_path: Path) -> None:
    own = getattr(transformers, kind)
    module = own(own.config_class(**PLAIN), add_pooling_layer=False).eval()
    randomise(module)
    model = load_model(saved(module, tmp_path))
    acts = capture(model, picture())
    with torch.inference_mode():
        states = module(model.preprocess(picture())[None]).last_hidden_state
    assert acts.output is not None
    np.testing.assert_allclose(acts.output, states[0, 0], atol=1e-5)


def test_a_pooler_below_a_classifier_must_be_in_the_file(tmp_path: Path) -> None:
    folder = saved(module_of("BeitForImageClassification"), tmp_path)
    state = load_file(folder / "model.safetensors")
    kept = {key: tensor for key, tensor in state.items() if ".pooler." not in key}
    assert len(kept) == len(state) - 2
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks beit\.pooler\.layernorm\.bias"):
        load_model(folder)


def test_a_folder_without_a_processor_gets_timms_defaults_and_that_is_said(
    tmp_path: Path,
) -> None:
    model = load_model(saved(module_of("ViTForImageClassification"), tmp_path / "mine", None))
    told = ", with timm's default preprocessing, as the folder has none"
    assert model.weights.endswith(told)
    assert model.preprocess.mean == (0.485, 0.456, 0.406)


def test_positions_that_are_resampled_are_told(tmp_path: Path) -> None:
    module = module_of("ViTForImageClassification")
    folder = saved(module, tmp_path / "mine")
    model = load_model(folder, image_size=(32, 48))
    assert model.weights.endswith(", positions resampled from 4x4 to 4x6")
    assert model.layers[0].query_grid == (4, 6)
    assert_same_answer(model, module)
    whole = load_model(folder, image_size=(16, 64), crop=False)  # as many patches as before
    assert whole.weights.endswith(", positions resampled from 4x4 to 2x8")
    assert whole.preprocess.place(picture(300, 75)).crop == (0, 0, 300, 75)
    assert_same_answer(whole, module)


def test_random_weights_are_of_the_same_architecture(tmp_path: Path) -> None:
    folder = saved(module_of("ViTForImageClassification"), tmp_path / "mine")
    model = load_model(folder, pretrained=False)
    assert (model.weights, model.labels, model.trained) == ("random weights", None, False)
    again = load_model(folder, pretrained=False)
    assert model.patch_kernel is not None
    np.testing.assert_array_equal(model.patch_kernel, again.patch_kernel)
    np.testing.assert_array_equal(random_kernel(load_model(folder)), model.patch_kernel)


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_a_folder_may_be_sharded(suffix: str, tmp_path: Path) -> None:
    module = module_of("ViTForImageClassification")
    folder = tmp_path / "mine"
    module.config.save_pretrained(folder)
    index = sharded(module.state_dict(), folder, suffix)
    model = load_model(folder)
    assert ".index.json, sha256 " in model.weights
    assert_same_answer(model, module)
    by_file = load_model("vit_small_patch32_224", checkpoint=folder)
    assert by_file.weights == model.weights
    (shard,) = folder.glob("*-00002-of-*")
    shard.unlink()
    with pytest.raises(ModelError, match=f"{index.name} lists the shard {shard.name}, which is"):
        load_model(folder)


# --- what is refused ----------------------------------------------------------------------------


def test_an_adapters_folder_is_refused_with_its_base(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "google/vit-base-patch16-224"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({"a": torch.ones(1)}, folder / "adapter_model.safetensors")
    for options in (dict(name=folder), dict(name="x", checkpoint=folder)):
        with pytest.raises(ModelError) as caught:
            load_model(**options)
        assert str(caught.value) == (
            "The folder mine holds an adapter (LORA) of google/vit-base-patch16-224, and not a "
            "whole model. Load google/vit-base-patch16-224 with peft, call merge_and_unload(), and "
            "give the module to vitviz.watch."
        )
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"adapter \(peft\) and not .* Load its base model"):
        load_model(folder)


def test_a_classifier_of_several_layers_is_refused_by_that_reason(tmp_path: Path) -> None:
    module = module_of("ViTForImageClassification")
    module.classifier = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 3))
    folder = saved(module, tmp_path / "mine")
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert str(caught.value) == (
        "mine: the classifier in model.safetensors has several layers (classifier.0.weight, "
        "classifier.2.weight), and config.json describes one. Build the model in Python, and give "
        "it to vitviz.watch."
    )


def test_the_reason_of_another_architecture_is_its_familys(tmp_path: Path) -> None:
    """And not the list of the types that are read."""
    config = transformers.Siglip2VisionConfig(**SMALL, num_patches=16)
    module = transformers.Siglip2VisionModel(config)
    with pytest.raises(ModelError) as reason:
        family_of(module)
    module.save_pretrained(tmp_path / "mine")
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path / "mine")
    assert str(caught.value) == f"mine: {reason.value}"


def test_a_backbone_is_read_as_the_model_that_it_is_of(tmp_path: Path) -> None:
    module = module_of("Dinov2Model")
    config = transformers.Dinov2Config(**PLAIN, architectures=["Dinov2Backbone"])
    saved(module, tmp_path / "mine")
    config.save_pretrained(tmp_path / "mine")
    model = load_model(tmp_path / "mine")
    for key, tensor in module.state_dict().items():
        assert torch.equal(model.module.state_dict()[key], tensor), key


def test_a_model_of_text_takes_no_picture(tmp_path: Path) -> None:
    module = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=9))
    module.save_pretrained(tmp_path / "mine")
    with pytest.raises(ModelError, match="mine is a BertModel, whose input is input_ids"):
        load_model(tmp_path / "mine")


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    folder = saved(module_of("ViTForImageClassification"), tmp_path / "mine")
    changed(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    with pytest.raises(ModelError, match="The weights of mine are quantized"):
        load_model(folder)


def test_quantised_tensors_that_the_configuration_keeps_silent_about_are_named(
    tmp_path: Path,
) -> None:
    """Transformers reads integers as if they were the weights, and leaves their scales out."""
    folder = saved(module_of("ViTForImageClassification"), tmp_path / "mine")
    state = load_file(folder / "model.safetensors")
    name = next(name for name in state if name.endswith("classifier.weight"))
    state |= {name: (100 * state[name]).to(torch.int8), f"{name}_scale": torch.tensor(0.01)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"mine: {name} in model.safetensors is stored as int8"):
        load_model(folder)


def test_timms_models_inside_transformers_are_read(tmp_path: Path) -> None:
    config = transformers.TimmWrapperConfig(architecture="test_vit", num_labels=3)
    module = transformers.TimmWrapperForImageClassification(config).eval()
    randomise(module)
    module.save_pretrained(tmp_path / "mine")
    model = load_model(tmp_path / "mine")
    assert ", its names without timm_model." in model.weights
    for key, tensor in module.timm_model.state_dict().items():
        assert torch.equal(model.module.state_dict()[key], tensor), key


def changed(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def lacking(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state.pop("classifier.weight")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda f: changed(f, model_type="resnet"), "ResNet"),
        (lambda f: changed(f, num_hidden_layers=10**9), "cannot be read by transformers"),
        (lambda f: changed(f, num_hidden_layers="many"), "cannot be read by transformers"),
        (lambda f: changed(f, hidden_size=30), "cannot"),
        (lambda f: changed(f, hidden_size=64), "transformers cannot read model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"no"), "no weights that can be read"),
        (lacking, "model.safetensors lacks classifier.weight"),
        (
            lambda f: (f / "preprocessor_config.json").write_text('{"do_resize": false}'),
            "does not resize pictures",
        ),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_in_a_sentence(
    break_it: Any, said: str, tmp_path: Path
) -> None:
    folder = saved(module_of("ViTForImageClassification"), tmp_path / "mine")
    break_it(folder)
    with pytest.raises(ModelError, match=said) as caught:
        load_model(folder)
    assert_clear_error(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_no_code_of_a_folder_is_run(tmp_path: Path) -> None:
    folder = saved(module_of("ViTForImageClassification"), tmp_path / "mine")
    trace = tmp_path / "trace"
    (folder / "modeling_mine.py").write_text(f"open({str(trace)!r}, 'w')\nclass Mine: ...\n")
    changed(
        folder,
        auto_map={"AutoModelForImageClassification": "modeling_mine.Mine"},
        architectures=["Mine"],
    )
    model = load_model(folder)  # transformers' own ViT, without a head
    assert model.labels is None
    assert not trace.exists()
    changed(folder, model_type="mine")
    with pytest.raises(ModelError, match="has the type mine, which transformers") as caught:
        load_model(folder)
    assert_clear_error(caught.value)
    assert not trace.exists()


def test_without_transformers_there_is_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(module_of("ViTForImageClassification"), tmp_path / "mine")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ModelError, match="`pip install transformers`") as caught:
        load_model(folder)
    assert_clear_error(caught.value)
