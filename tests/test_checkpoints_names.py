"""Names of transformers, Meta and Microsoft: a file gives what its own program computes."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from examples import randomise, timm_module
from safetensors.torch import save_file

from vitviz import ModelError, load_model

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

State = dict[str, torch.Tensor]
TINY: dict[str, Any] = dict(
    hidden_size=192, num_hidden_layers=2, num_attention_heads=3, intermediate_size=768
)
SMALL: dict[str, Any] = dict(
    hidden_size=384, num_hidden_layers=2, num_attention_heads=6, intermediate_size=1536
)
BASE: dict[str, Any] = dict(
    hidden_size=768, num_hidden_layers=1, num_attention_heads=12, intermediate_size=3072
)
EXACT: dict[str, Any] = dict(layer_norm_eps=1e-6, num_labels=3)
#: The class, the architecture of timm, and the settings of a model of its width.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViTForImageClassification": ("vit_tiny_patch16_224", dict(TINY, **EXACT)),
    "ViTModel": ("vit_tiny_patch16_224", dict(TINY, **EXACT)),
    "ViTMAEModel": ("vit_tiny_patch16_224", dict(TINY, **EXACT, mask_ratio=0.0)),
    "DeiTForImageClassificationWithTeacher": (
        "deit_tiny_distilled_patch16_224",
        dict(TINY, **EXACT),
    ),
    "Dinov2Model": ("vit_small_patch14_dinov2", dict(SMALL, image_size=56, patch_size=14)),
    "Dinov2WithRegistersModel": (
        "vit_small_patch14_reg4_dinov2",
        dict(SMALL, image_size=56, patch_size=14, num_register_tokens=4),
    ),
    "DINOv3ViTModel": (
        "vit_small_patch16_dinov3_qkvb",
        dict(SMALL, image_size=256, num_register_tokens=4, layerscale_value=1.0),
    ),
    "BeitForImageClassification": (
        "beit_base_patch16_224",
        dict(BASE, **EXACT, use_relative_position_bias=True),
    ),
    "CLIPVisionModelWithProjection": (
        "vit_base_patch16_clip_quickgelu_224",
        dict(BASE, patch_size=16, projection_dim=512),
    ),
    "SiglipVisionModel": (
        "vit_base_patch16_siglip_224",
        dict(BASE, patch_size=16, hidden_act="gelu"),
    ),
    "SwinForImageClassification": ("swin_tiny_patch4_window7_224", dict(num_labels=3)),
    "Swinv2ForImageClassification": (
        "swinv2_tiny_window8_256",
        dict(num_labels=3, image_size=256, window_size=8),
    ),
}


def module_of(kind: str, settings: dict[str, Any]) -> Any:
    made = getattr(transformers, kind)
    module = made(made.config_class(**settings))
    randomise(module)
    return module.eval()


def answer_of(module: Any, x: torch.Tensor) -> torch.Tensor:
    """The output of a head, or else the tokens."""
    ordered: Any = {}
    if isinstance(module, transformers.ViTMAEModel):  # else it shuffles the patches
        ordered = dict(noise=torch.arange(196.0)[None])
    found = module(x, **ordered)
    names = ("logits", "image_embeds", "pooler_output", "last_hidden_state")
    pooled = isinstance(module, transformers.SiglipVisionModel)
    known = [name for name in names if pooled or name != "pooler_output"]
    answer: torch.Tensor = next(found[name] for name in known if found.get(name) is not None)
    return answer


def saved_as(saved: str, module: Any, folder: Path) -> Path:
    if saved == "state dict":
        torch.save(module.state_dict(), folder / "mine.pth")
        return folder / "mine.pth"
    module.save_pretrained(folder)
    return folder / "model.safetensors"


@pytest.mark.parametrize("saved", ["state dict", "folder"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_transformers_gives_what_transformers_computes(
    kind: str, saved: str, tmp_path: Path
) -> None:
    """The names of version 5 are in a state dict, those of version 4 in a folder's file."""
    name, settings = KINDS[kind]
    module = module_of(kind, settings)
    path = saved_as(saved, module, tmp_path)
    model = load_model(name, checkpoint=path)
    read: Any = model.module
    x = torch.randn(1, 3, *model.preprocess.input_size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = answer_of(module, x)
        tokens = expected.ndim == 3
        found = read.forward_features(x) if tokens else read(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# --- the authors' own files -----------------------------------------------------------------------


def meta_dinov2(module: Any) -> State:
    """As the program dinov2 names the parts: with a mask token, and a position for CLS."""
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    width = state["cls_token"].shape[-1]
    state["mask_token"] = torch.randn(1, width)
    if "reg_token" in state:
        state["register_tokens"] = state.pop("reg_token")
        state["pos_embed"] = torch.cat([torch.randn(1, 1, width), state["pos_embed"]], 1)
    return state


def meta_dinov3(module: Any) -> State:
    """As the program dinov3 does: one bias for queries, keys and values, with a mask."""
    found: State = {"mask_token": torch.randn(1, module.embed_dim)}
    for name, tensor in module.state_dict().items():
        name = name.replace("reg_token", "storage_tokens")
        name = name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")
        if name.endswith("q_bias"):
            keys = torch.zeros_like(tensor)
            values = module.state_dict()[name.replace("q_bias", "v_bias")]
            bias = name.replace("q_bias", "qkv.bias")
            found[bias] = torch.cat([tensor, keys, values])
            found[f"{bias}_mask"] = torch.full_like(found[bias], torch.nan)
        elif not name.endswith("v_bias"):
            found[name] = tensor
    found["rope_embed.periods"] = torch.ones(16, dtype=torch.bfloat16)
    return found


def early_swin(module: Any) -> State:
    """As Microsoft's files, and those of timm before 0.9: downsampling ends a stage."""
    found: State = {}
    for name, tensor in module.state_dict().items():
        name = name.replace("head.fc.", "head.")
        for stage in (1, 2, 3):
            name = name.replace(f"layers.{stage}.downsample", f"layers.{stage - 1}.downsample")
        found[name] = tensor
        if name.endswith("relative_position_bias_table") and "blocks.1." in name:
            found[name.replace("bias_table", "index")] = torch.zeros(49, 49, dtype=torch.long)
            found[name.replace("attn.relative_position_bias_table", "attn_mask")] = torch.zeros(
                4, 49, 49
            )
    return found


AUTHORS: dict[str, Any] = {
    "vit_small_patch14_dinov2": (meta_dinov2, dict(num_classes=0)),
    "vit_small_patch14_reg4_dinov2": (meta_dinov2, dict(num_classes=0)),
    "vit_small_patch16_dinov3": (meta_dinov3, {}),
    "vit_small_patch16_dinov3_qkvb": (meta_dinov3, {}),
    "swin_tiny_patch4_window7_224": (early_swin, {}),
    "swinv2_tiny_window8_256": (early_swin, {}),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, ".pth") for name in AUTHORS), ("vit_small_patch16_dinov3", ".safetensors")],
)
def test_the_authors_own_file_is_read_as_timm_reads_it(
    name: str, form: str, tmp_path: Path
) -> None:
    made, options = AUTHORS[name]
    module = timm.create_model(name, pretrained=False, **options)
    randomise(module)
    state = made(module)
    if form == ".pth":
        torch.save(state, tmp_path / "mine.pth")
    else:
        save_file(
            {key: tensor.contiguous() for key, tensor in state.items()},
            tmp_path / "mine.safetensors",
        )
    path = tmp_path / f"mine{form}"
    overlay = dict(file=str(path), custom_load=False)
    oracle = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
    model = load_model(name, checkpoint=path)
    found = model.module.state_dict()
    assert "resampled" not in model.weights
    for key, tensor in oracle.state_dict().items():
        assert torch.equal(found[key], tensor), key


def eva02(module: Any) -> State:
    """As the program EVA names the parts, with its positions in every block."""
    names = {
        "q_proj.bias": "q_bias",
        "v_proj.bias": "v_bias",
        "attn.norm.": "attn.inner_attn_ln.",
        "mlp.fc1_g.": "mlp.w1.",
        "mlp.fc1_x.": "mlp.w2.",
        "mlp.norm.": "mlp.ffn_ln.",
        "mlp.fc2.": "mlp.w3.",
    }
    found: State = {"blocks.0.attn.rope.freqs_cos": torch.ones(4, 32)}
    for name, tensor in module.state_dict().items():
        for new, old in names.items():
            name = name.replace(new, old)
        found[name] = tensor
    return {**found, "rope.freqs_cos": torch.ones(4, 32), "rope.freqs_sin": torch.ones(4, 32)}


def clip_of_eva(module: Any) -> State:
    beside = {"text.token_embedding.weight": torch.ones(3, 3), "logit_scale": torch.ones(())}
    return {**{f"visual.{name}": tensor for name, tensor in eva02(module).items()}, **beside}


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("eva02_tiny_patch14_224", eva02),
        ("eva02_base_patch14_224", eva02),  # whose MLP and attention have norms inside
        ("eva02_base_patch16_clip_224", clip_of_eva),
    ],
)
def test_files_of_eva02_are_read(name: str, made: Any, tmp_path: Path) -> None:
    options: Any = {} if "clip" in name else dict(num_classes=3)
    module = timm.create_model(name, pretrained=False, depth=1, **options)
    randomise(module)
    torch.save({"module": made(module)}, tmp_path / "mine.pt")
    found: Any = load_model(name, checkpoint=tmp_path / "mine.pt").module
    for key, tensor in module.state_dict().items():
        assert torch.equal(found.state_dict()[key], tensor), key


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "beit_base_patch16_224"])
def test_a_file_of_pretraining_has_its_norm_before_any_pooling(name: str, tmp_path: Path) -> None:
    module: Any = timm.create_model(name, depth=1, num_classes=0, global_pool="token").eval()
    randomise(module)
    state = (eva02 if "eva" in name else dict)(module.state_dict() if "beit" in name else module)
    beside = {"mask_token": torch.ones(1, 1, 192), "lm_head.weight": torch.ones(3, 192)}
    torch.save({"model": {**state, **beside}}, tmp_path / "mine.pth")
    model = load_model(name, checkpoint=tmp_path / "mine.pth")
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(model.run(x), module(x))
    assert (model.answers, model.read_tokens) == ("embedding", ("cls",))


def of_torchvision(kind: str) -> Any:
    vision: Any = pytest.importorskip("torchvision").models
    if kind == "ViT":
        sizes = dict(image_size=224, patch_size=16, num_layers=1, num_heads=12)
        return vision.VisionTransformer(
            **sizes, hidden_dim=768, mlp_dim=3072, num_classes=3
        ), "vit_base_patch16_224"
    return vision.swin_t(num_classes=3), "swin_tiny_patch4_window7_224"


@pytest.mark.parametrize(("kind", "prefix"), [("ViT", "module."), ("Swin", "")])
def test_files_of_torchvision_are_read(kind: str, prefix: str, tmp_path: Path) -> None:
    module, name = of_torchvision(kind)
    randomise(module.eval())
    state = {f"{prefix}{key}": tensor for key, tensor in module.state_dict().items()}
    torch.save({"model": state}, tmp_path / "mine.pth")
    model = load_model(name, checkpoint=tmp_path / "mine.pth")
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(model.run(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["visual", "whole", "in training"])
def test_files_of_clip_are_read(part: str, tmp_path: Path) -> None:
    open_clip: Any = pytest.importorskip("open_clip", reason="open_clip is not installed")
    vision = dict(image_size=224, layers=1, width=768, patch_size=32)
    text = dict(context_length=8, vocab_size=50, width=64, heads=2, layers=1)
    module = open_clip.CLIP(embed_dim=512, vision_cfg=vision, text_cfg=text, quick_gelu=True)
    randomise(module.eval())
    state: Any = (module.visual if part == "visual" else module).state_dict()
    if part == "in training":
        state = {"epoch": 1, "state_dict": {f"module.{key}": t for key, t in state.items()}}
    torch.save(state, tmp_path / "mine.pt")
    name = "vit_base_patch32_clip_quickgelu_224"
    model = load_model(name, checkpoint=tmp_path / "mine.pt")
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(model.run(x), module.visual(x), rtol=1e-4, atol=1e-4)
    assert model.embeds


def test_biases_that_the_architecture_lacks_are_refused_unless_they_are_zero(
    tmp_path: Path,
) -> None:
    module: Any = timm.create_model("vit_small_patch16_dinov3_qkvb", pretrained=False, depth=1)
    randomise(module)
    torch.save(meta_dinov3(module), tmp_path / "mine.pth")
    with pytest.raises(ModelError, match=r"the model lacks, blocks.0.attn.q_bias"):
        load_model("vit_small_patch16_dinov3", checkpoint=tmp_path / "mine.pth")
    with torch.no_grad():
        module.blocks[0].attn.q_bias.zero_()
        module.blocks[0].attn.v_bias.zero_()
    torch.save(meta_dinov3(module), tmp_path / "zero.pth")
    assert load_model("vit_small_patch16_dinov3", checkpoint=tmp_path / "zero.pth").trained


@pytest.mark.parametrize(
    ("name", "of", "said"),
    [
        ("vit_small_patch14_reg4_dinov2", "vit_small_patch14_dinov2", "lacks reg_token"),
        ("vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "model lacks, reg_token"),
        ("vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "model lacks, dist_token"),
        ("deit_tiny_distilled_patch16_224", "vit_tiny_patch16_224", "lacks dist_token"),
    ],
)
def test_other_tokens_before_the_patches_are_the_reason(
    name: str, of: str, said: str, tmp_path: Path
) -> None:
    """And not the number of positions, which fills no square then."""
    torch.save(timm_module(of, depth=1).state_dict(), tmp_path / "mine.pth")
    with pytest.raises(ModelError, match=said) as caught:
        load_model(name, checkpoint=tmp_path / "mine.pth")
    assert "square" not in str(caught.value)


def test_the_blocks_of_dinov2s_training_are_in_chunks(tmp_path: Path) -> None:
    module = timm_module("vit_small_patch14_dinov2", depth=2, num_classes=0, img_size=56)
    state = {
        f"backbone.{name.replace('blocks.', f'blocks.{n}.')}": tensor
        for n in (0,)
        for name, tensor in meta_dinov2(module).items()
    }
    state |= {"dino_head.mlp.0.weight": torch.ones(8, 384), "dino_head.mlp.0.bias": torch.ones(8)}
    torch.save({"teacher": state}, tmp_path / "teacher_checkpoint.pth")
    model = load_model("vit_small_patch14_dinov2", checkpoint=tmp_path / "teacher_checkpoint.pth")
    assert model.weights.endswith(
        ", its teacher, its names without backbone., without dino_head.mlp.0.weight and 1 more, "
        "2 layers as in the file, not 12"
    )
    for key, tensor in module.state_dict().items():
        assert torch.equal(model.module.state_dict()[key], tensor), key


def test_mae_has_a_decoder_in_training_and_a_norm_after_the_mean_in_fine_tuning(
    tmp_path: Path,
) -> None:
    module = timm_module("vit_tiny_patch16_224", depth=1, num_classes=0)
    state = {
        **module.state_dict(),
        "mask_token": torch.ones(1, 1, 8),
        "decoder_pos_embed": torch.ones(1, 197, 8),
        "decoder_blocks.0.norm1.weight": torch.ones(8),
    }
    torch.save({"model": state, "epoch": 799}, tmp_path / "pretrain.pth")
    assert load_model("vit_tiny_patch16_224", checkpoint=tmp_path / "pretrain.pth").trained
    tuned = timm_module("vit_tiny_patch16_224", depth=1, num_classes=3, global_pool="avg")
    torch.save({"model": tuned.state_dict()}, tmp_path / "finetune.pth")
    model = load_model("vit_tiny_patch16_224", checkpoint=tmp_path / "finetune.pth")
    x = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(model.module(x), tuned(x))


def test_a_classifier_that_reads_something_else_is_refused_by_that_reason(tmp_path: Path) -> None:
    tower = dict(TINY, patch_size=16)
    config = transformers.SiglipConfig(vision_config=tower, text_config=dict(TINY, vocab_size=9))
    torch.save(transformers.SiglipForImageClassification(config).state_dict(), tmp_path / "a.pth")
    with pytest.raises(ModelError, match="its classifier reads the mean of the patches"):
        load_model("vit_base_patch16_siglip_224", checkpoint=tmp_path / "a.pth")
    settings = dict(SMALL, image_size=56, patch_size=14, num_labels=3)
    module = module_of("Dinov2ForImageClassification", settings)
    torch.save(module.state_dict(), tmp_path / "b.pth")
    with pytest.raises(ModelError, match="its classifier reads CLS and the mean of the patches"):
        load_model("vit_small_patch14_dinov2", checkpoint=tmp_path / "b.pth")
