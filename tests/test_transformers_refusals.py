"""Models of transformers that are not read say why, each by what it does."""

import re
from typing import Any

import pytest
from examples import assert_clear_error, picture

import vitviz
from vitviz import ModelError
from vitviz.model import Preprocessing
from vitviz.zoo.architectures import on_meta_device

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

SIZE = Preprocessing(input_size=(64, 64), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
#: What is said of a class, made on the meta device by its own defaults.
REFUSED = {
    "VideoMAEForVideoClassification": "takes videos",
    "TimesformerForVideoClassification": "takes videos",
    "VivitForVideoClassification": "takes videos",
    "YolosForObjectDetection": "tokens for objects after its patches",
    "SegformerForImageClassification": "keys that a convolution has pooled",
    "PvtForImageClassification": "keys that a convolution has pooled",
    "GLPNForDepthEstimation": "keys that a convolution has pooled",
    "SamModel": "attends in padded windows",
    "VitDetModel": "does not read blocks with VitDetAttention yet",  # without windows by default
    "Sam2VisionModel": "pools its queries within windows",
    "ViTMAEModel": "shuffles its patches",
    "ViTMAEForPreTraining": "shuffles its patches",
    "BlipVisionModel": "does not read blocks with BlipAttention yet",
    "BlipForQuestionAnswering": r"reads a text beside the picture \(input_ids\)",
    "BlipModel": r"reads a text beside the picture \(input_ids\)",
    "InstructBlipForConditionalGeneration": "reads a text beside the picture",
    "CLIPTextModel": "takes input_ids instead of a picture",
    "Blip2QFormerModel": "takes query_embeds instead of a picture",
    "Blip2VisionModel": "does not read blocks with Blip2Attention yet",
    "DPTForDepthEstimation": "does not read blocks with DPTViTAttention yet",
    "HieraForImageClassification": "reorders its tokens by mask unit",
    "CvtForImageClassification": "makes its keys by convolutions",
    "LevitForImageClassification": "shrinks the grid inside its attention",
    "MobileViTForImageClassification": "folds pixel positions",
    "MobileViTV2ForImageClassification": "weighs tokens by one context score",
    "SwiftFormerForImageClassification": "weighs tokens by one global query",
    "OwlViTForObjectDetection": "reads a text beside the picture",
    "GroupViTVisionModel": "assigns its patches to groups",
    "GroupViTModel": "assigns its patches to groups",  # and this and the next three read texts
    "XCLIPModel": "takes videos",
    "AlignModel": "The image encoder of AlignModel has no attention",
    "Siglip2Model": "takes pictures as lists of patches",
    "PerceiverForImageClassificationLearned": "from learned vectors to the pixels",
    "ImageGPTForImageClassification": "row of coloured points",
    "PixtralVisionModel": "patches of all its pictures into one row",
    "Qwen2_5_VLModel": "takes pictures as lists of patches",
    "ViltModel": "picture and text in one row",
    "ConvNextForImageClassification": "has no attention",
    "PoolFormerForImageClassification": "has no attention",
    "Dinov2Encoder": "takes tokens instead of a picture",
    "DetrForObjectDetection": "looks for objects by queries of its own",  # around a CNN of timm
    "MaskFormerForInstanceSegmentation": "looks for objects by queries of its own",
    "VitPoseForPoseEstimation": "does not read blocks with VitPoseBackboneAttention yet",
    "UperNetForSemanticSegmentation": "has no attention",  # a CNN by default
}
STAGES = ["stage1", "stage2"]
PLAIN: dict[str, Any] = dict(
    **dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16),
    **dict(image_size=64, patch_size=16),
)
SWIN: dict[str, Any] = dict(
    **dict(embed_dim=8, depths=[1, 1], num_heads=[1, 1], window_size=2, image_size=64),
    out_features=STAGES,
)


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_is_what_it_does(name: str) -> None:
    module_of = importable(name)
    with on_meta_device():
        module = module_of(configured(module_of.config_class()))
    with pytest.raises(ModelError, match=REFUSED[name]) as caught:
        vitviz.watch(module, preprocessing=SIZE)
    assert_clear_error(caught.value)


def places_of(kind: str) -> Any:
    """A small model that answers each place of the picture, on an encoder that is read."""
    dino = transformers.Dinov2Config(**PLAIN, out_features=STAGES, reshape_hidden_states=False)
    stages = [f"stage{number}" for number in (1, 2, 3, 4)]
    beit = transformers.BeitConfig(
        **PLAIN | dict(num_hidden_layers=4), out_features=stages, reshape_hidden_states=False
    )
    configs = {
        "DepthAnythingForDepthEstimation": dict(
            backbone_config=dino, neck_hidden_sizes=[8, 8], fusion_hidden_size=8,
            reassemble_factors=[1, 1], patch_size=16, reassemble_hidden_size=16, head_hidden_size=4
        ),
        "ZoeDepthForDepthEstimation": dict(
            backbone_config=beit, backbone_hidden_size=16, bottleneck_features=8,
            neck_hidden_sizes=[8] * 4, fusion_hidden_size=8, num_attractors=[2] * 4,
            bin_embedding_dim=8,
        ),
        "UperNetForSemanticSegmentation": dict(
            backbone_config=transformers.SwinConfig(**SWIN), hidden_size=8, pool_scales=[1],
            use_auxiliary_head=False,
        ),
        "ViTForMaskedImageModeling": PLAIN,
        "BeitForMaskedImageModeling": dict(PLAIN, vocab_size=8),
        "SwinForMaskedImageModeling": SWIN,
    }  # fmt: skip
    made = getattr(transformers, kind)
    return made(made.config_class(**configs[kind])).eval()


@pytest.mark.parametrize(
    "kind",
    [
        "DepthAnythingForDepthEstimation",
        "ZoeDepthForDepthEstimation",
        "UperNetForSemanticSegmentation",
        "ViTForMaskedImageModeling",
        "BeitForMaskedImageModeling",
        "SwinForMaskedImageModeling",
    ],
)
def test_what_answers_each_place_names_the_part_that_is_read(kind: str) -> None:
    module = places_of(kind)
    with pytest.raises(ModelError, match="instead of one row of numbers") as caught:
        vitviz.watch(module, preprocessing=SIZE)
    found = re.search(r"encodes the picture, (\w+)\.$", str(caught.value))
    assert found
    acts = vitviz.capture(
        vitviz.watch(module.get_submodule(found[1]), preprocessing=SIZE), picture(64, 64)
    )
    assert acts.depth == (4 if kind.startswith("Zoe") else 2)


def test_a_vitdet_with_windows_is_said_to_have_them() -> None:
    config = transformers.VitDetConfig(
        **dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=64),
        **dict(pretrain_image_size=64, window_size=2, window_block_indices=[0]),
    )
    with pytest.raises(ModelError, match="attends in padded windows"):
        vitviz.watch(transformers.VitDetModel(config), preprocessing=SIZE)


def importable(name: str) -> Any:
    if name == "Dinov2Encoder":  # which transformers does not export
        from transformers.models.dinov2 import modeling_dinov2

        return modeling_dinov2.Dinov2Encoder
    return getattr(transformers, name)


def configured(config: Any) -> Any:
    """Two layers of each kind, and what Perceiver's own defaults lack."""
    for part in (config, *(value for value in vars(config).values() if hasattr(value, "to_dict"))):
        if isinstance(getattr(part, "num_hidden_layers", None), int):
            part.num_hidden_layers = 2
    if hasattr(config, "num_cross_attention_heads"):
        config.num_cross_attention_heads = 1
    return config
