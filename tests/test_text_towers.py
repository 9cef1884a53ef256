"""Words from a model's own text tower: the logits are those of the library that wrote the model."""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import assert_clear_error, picture, randomise
from hub_server import COMMIT, HubServer
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import Tensor

import vitviz
from vitviz import ModelError, Preprocessing, cli, zoo
from vitviz.attribution import direct_logit_attribution
from vitviz.intervention import aligns_patches, word_map
from vitviz.profiling import ProfileError

open_clip: Any = pytest.importorskip("open_clip", reason="open_clip is not installed")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

PHRASES = ("a cat", "고양이 한 마리", "قطة نائمة", "🐈 🎉", "A  photo,\tof TWO dogs!")
HOW = Preprocessing(input_size=(32, 32), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
CONTEXT = 40
VISION: dict[str, Any] = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    image_size=32,
    patch_size=8,
)
END = 49407  # token of the end in open_clip's vocabulary
TEXT: dict[str, Any] = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    vocab_size=49408,
    max_position_embeddings=CONTEXT,
    bos_token_id=49406,
    eos_token_id=END,
    pad_token_id=END,
)


@cache
def tokenizer() -> Any:
    """The tokenizer of CLIP in transformers, from the vocabulary that comes with open_clip."""
    own = open_clip.SimpleTokenizer()
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(token, token): number for token, number in own.encoder.items()}
    return transformers.CLIPTokenizer(
        vocab=vocabulary, merges=[*own.bpe_ranks], model_max_length=CONTEXT
    )


def dual_encoder() -> Any:
    vision = transformers.ViTConfig(**VISION)
    text = transformers.CLIPTextConfig(**TEXT)
    kind = transformers.VisionTextDualEncoderConfig
    config = kind.from_vision_text_configs(vision, text, projection_dim=6)
    return transformers.VisionTextDualEncoderModel(config)


def kin(
    kind: str, text: dict[str, Any], vision: dict[str, Any] = VISION, **rest: Any
) -> Callable[[], Any]:
    def make() -> Any:
        config = getattr(transformers, f"{kind}Config")
        return getattr(transformers, f"{kind}Model")(
            config(vision_config=vision, text_config=text, **rest)
        )

    return make


def whole(kind: str, projection: int | None = 6, **text: Any) -> Callable[[], Any]:
    rest: dict[str, Any] = {} if projection is None else dict(projection_dim=projection)
    return kin(kind, {**TEXT, **text}, **rest)


TRANSFORMERS: dict[str, Callable[[], Any]] = {
    "CLIP": whole("CLIP"),
    "CLIP with the end of old files": whole("CLIP", eos_token_id=2),
    "MetaCLIP 2": whole("MetaClip2", 10),
    "SigLIP": whole("Siglip", None),
    "SigLIP 2": whole("Siglip", None, max_position_embeddings=64, projection_size=32),
    "two encoders": dual_encoder,
}


#: Tokens of BERT, a line each.
VOCABULARY = "\n".join([*("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"), *"acotwdgsphf", "##t"])
_BERT: dict[str, Any] = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=48,
    vocab_size=49408,
    max_position_embeddings=CONTEXT + 2,
    pad_token_id=1,
)


def _without(names: str, given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in names.split()}


KIN: dict[str, Callable[[], Any]] = {
    "AltCLIP": kin("AltCLIP", {**_BERT, "project_dim": 32}, projection_dim=6),
    "Chinese CLIP": kin("ChineseCLIP", _BERT, projection_dim=6),
    "CLIPSeg": kin("CLIPSeg", TEXT, projection_dim=6),
    "TIPS": kin(
        "Tipsv2",
        _without("bos_token_id eos_token_id", TEXT),
        _without("intermediate_size", VISION),
    ),
}


def of_open_clip(vision: Any = None, text: Any = None, **rest: Any) -> dict[str, Any]:
    """A configuration as in open_clip_config.json."""
    towers = dict(
        vision_cfg=dict(layers=2, width=32, head_width=16, patch_size=8, image_size=32),
        text_cfg=dict(context_length=CONTEXT, width=32, heads=2, layers=2),
    )
    towers["vision_cfg"].update(vision or {})
    towers["text_cfg"].update(text or {})
    return dict(embed_dim=6, **towers, **rest)


_SIGLIP = dict(no_causal_mask=True, pool_type="last", proj_bias=True)
OPEN_CLIP: dict[str, dict[str, Any]] = {
    "CLIP": of_open_clip(),
    "quick GELU": of_open_clip(quick_gelu=True),
    "own text tower": of_open_clip(custom_text=True),
    "SigLIP": of_open_clip(text=_SIGLIP, custom_text=True, init_logit_bias=-10.0),
    "class token": of_open_clip(text=dict(embed_cls=True, pad_id=0), custom_text=True),
    "LayerScale": of_open_clip(vision=dict(ls_init_value=0.1), text=dict(ls_init_value=0.1)),
    "CoCa": of_open_clip(
        vision=dict(attentional_pool=True, attn_pooler_heads=2, output_tokens=True),
        text=dict(embed_cls=True, output_tokens=True),
        multimodal_cfg=dict(context_length=CONTEXT, width=32, heads=2, layers=1),
        custom_text=True,
    ),
}


def made_by_open_clip(custom_text: bool = False, **config: Any) -> Any:
    if "multimodal_cfg" in config:
        return open_clip.coca_model.CoCa(**config)
    return (open_clip.CustomTextCLIP if custom_text else open_clip.CLIP)(**config)


@cache
def module_of(library: str, name: str) -> Any:
    in_transformers = library == "transformers"
    module = (
        (TRANSFORMERS | KIN)[name]() if in_transformers else made_by_open_clip(**OPEN_CLIP[name])
    )
    randomise(module.eval())
    with torch.no_grad():
        if name == "TIPS":
            module.temperature.fill_(1 / 17.3)
        else:
            module.logit_scale.fill_(np.log(17.3))
        if getattr(module, "logit_bias", None) is not None:
            module.logit_bias.fill_(-3.1)
    return module


def watched(library: str, name: str) -> Any:
    given = dict(tokenizer=tokenizer()) if library == "transformers" else {}
    return vitviz.watch(module_of(library, name), preprocessing=HOW, **given)


def own_tokens(name: str, texts: list[str]) -> Any:
    """The tokens of texts as transformers' own processors make them."""
    how: dict[str, Any] = dict(padding=True)
    if "SigLIP" in name:
        longest = module_of("transformers", name).config.text_config.max_position_embeddings
        how = dict(padding="max_length", max_length=longest, return_attention_mask=False)
    return tokenizer()(texts, return_tensors="pt", **how)


def own_logits(library: str, name: str, phrases: list[str], x: Tensor) -> np.ndarray:
    """The logits that the library itself computes, for texts that it has read itself."""
    module = module_of(library, name)
    with torch.inference_mode():
        if library == "open_clip":
            tokens = open_clip.SimpleTokenizer(context_length=module.context_length)(phrases)
            if name == "CoCa":
                pair = module.encode_image(x), module.encode_text(tokens)
                return (module.logit_scale.exp() * pair[0] @ pair[1].T)[0].numpy()
            return module.get_logits(x, tokens)[0][0].numpy()
        return module(pixel_values=x, **own_tokens(name, phrases)).logits_per_image[0].numpy()


def logits_of(model: vitviz.Model) -> np.ndarray:
    logits = vitviz.capture(model.with_words(PHRASES), picture()).logits
    assert logits is not None
    return logits


def own_logits_of_templates(
    library: str, name: str, phrases: list[str], templates: list[str], x: Tensor
) -> np.ndarray:
    """The logits of the mean of templates, by the library's own vectors of each text."""
    module = module_of(library, name)
    with torch.inference_mode():
        if library == "open_clip":
            image = module.encode_image(x, normalize=True)
            classifier = open_clip.build_zero_shot_classifier(
                module,
                open_clip.SimpleTokenizer(context_length=module.context_length),
                phrases,
                templates,
            )
        else:
            texts = [each.format(phrase) for phrase in phrases for each in templates]
            output = module(pixel_values=x, **own_tokens(name, texts))
            image, rows = output.image_embeds, output.text_embeds
            means = rows.view(len(phrases), len(templates), -1).mean(dim=1)
            classifier = torch.nn.functional.normalize(means, dim=1).T
    bias = -3.1 if getattr(module, "logit_bias", None) is not None else 0.0
    return (17.3 * (image @ classifier)[0] + bias).numpy()


def largest_differences(library: str, name: str) -> dict[str, float]:
    """Compare logits with the library's own, for each kind of text.

    The texts: phrases in several scripts and lengths, so that all but one are padded; one that
    fills the context exactly, beside a short one; and phrases in two templates.
    """
    x = HOW(picture())[None]
    most = 64 if name == "SigLIP 2" else CONTEXT
    longest = [" ".join(["cat"] * (most - 2)), "cat"]  # beside the tokens of begin and end
    templates = ["a photo of a {}.", "{}, drawn"]
    with watched(library, name) as model:
        found = {
            "phrases": (model.with_words(PHRASES), own_logits(library, name, [*PHRASES], x)),
            "longest": (model.with_words(longest), own_logits(library, name, longest, x)),
            "templates": (
                model.with_words(PHRASES, templates),
                own_logits_of_templates(library, name, [*PHRASES], templates, x),
            ),
        }
        return {
            kind: float(np.abs(vitviz.capture(asked, picture()).logits - own).max())
            for kind, (asked, own) in found.items()
        }


EVERY = [*(("transformers", n) for n in TRANSFORMERS), *(("open_clip", n) for n in OPEN_CLIP)]
ALL = [*EVERY, *(("transformers", n) for n in KIN)]


@pytest.mark.parametrize(("library", "name"), ALL)
def test_logits_are_those_of_the_library(library: str, name: str) -> None:
    assert max(largest_differences(library, name).values()) <= 1e-5
    with watched(library, name) as model:
        asked = model.with_words(PHRASES)
        acts = vitviz.capture(asked, picture())
    assert acts.logits is not None
    assert np.ptp(acts.logits) > 0.1  # the phrases differ
    assert acts.labels == PHRASES
    assert asked.words.activation == ("sigmoid" if "SigLIP" in name else "softmax")
    assert model.words is None


def test_a_folder_of_towers_that_are_not_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    transformers.AlignConfig().save_pretrained(tmp_path / "mine")
    reason = "mine.*image encoder of AlignModel has no attention"
    with pytest.raises(ModelError, match=reason) as refused:
        vitviz.load_model(tmp_path / "mine")
    assert_clear_error(refused.value)


def test_a_siglip_whose_bias_is_0_has_a_sigmoid() -> None:
    module = module_of(*EVERY[9])
    with watched(*EVERY[9]) as model, torch.no_grad():
        before = float(module.logit_bias)
        module.logit_bias.zero_()
        asked = model.with_words(PHRASES).words
        module.logit_bias.fill_(before)
    assert (asked.logit_bias, asked.activation) == (0, "sigmoid")


BOTH = pytest.mark.parametrize(("library", "name"), [EVERY[0], EVERY[6]])


def test_a_phrase_with_braces_is_data_and_its_templates_are_told() -> None:
    with watched("open_clip", "CLIP") as model:
        words = model.text_tower.words(["cat", "dog {}"], ("a photo of a {}.", "{}, drawn"))
        written_out = ["a photo of a dog {}.", "dog {}, drawn"]
        alone = model.text_tower.words(written_out).vectors
        one = model.with_words(["cat"], "a photo of a {}.")
    assert_allclose(words.vectors[1], alone.sum(0) / np.linalg.norm(alone.sum(0)), atol=1e-6)
    assert words.names == ("cat", "dog {}")
    assert 'mean of the templates "a photo of a {}.", "{}, drawn"' in words.provenance
    assert 'template "a photo of a {}."' in one.weights


@BOTH
def test_a_phrase_fits_into_the_context_or_is_refused(library: str, name: str) -> None:
    fits = " ".join(["cat"] * (CONTEXT - 2))  # and the tokens of begin and end
    with watched(library, name) as model:
        assert len(model.with_words([fits, "cat"]).labels) == 2
        told = f"has {CONTEXT + 1} tokens, and the text tower of .* reads {CONTEXT}"
        with pytest.raises(ModelError, match=told) as refused:
            model.with_words(["cat", f"{fits} dog"])
        assert_clear_error(refused.value)
        with pytest.raises(ModelError, match=f"has {CONTEXT + 1} tokens"):
            model.with_words([fits], "{} dog")


@pytest.mark.parametrize(
    ("phrases", "template", "message"),
    [
        ([], "{}", "Expected a list of phrases"),
        ("a cat", "{}", "Expected a list of phrases, got 'a cat'"),
        (["cat", " \t"], "{}", "A phrase is empty"),
        (["c" * 1001], "{}", "1,001 characters; at most 1,000"),
        (["cat", "cat "], "{}", "got 'cat' twice"),
        (["cat"], "a photo", "one {} for the phrase, got 'a photo'"),
        (["cat"], "{} and {}", "one {} for the phrase"),
    ],
)
def test_phrases_that_say_nothing_are_refused(phrases: Any, template: str, message: str) -> None:
    with watched("open_clip", "CLIP") as model, pytest.raises(ModelError) as refused:
        model.with_words(phrases, template)
    assert message in str(refused.value)
    assert_clear_error(refused.value)


def test_a_model_without_a_text_tower_names_the_way_of_a_file() -> None:
    model = vitviz.watch(module_of("open_clip", "CLIP").visual, preprocessing=HOW)
    with pytest.raises(ModelError, match=r"no text tower .*Words\.read") as refused:
        model.with_words(["a cat"])
    assert_clear_error(refused.value)


def test_a_tokenizer_that_does_not_belong_is_refused() -> None:
    module = whole("CLIP", vocab_size=99)().eval()
    with pytest.raises(ModelError, match=r"Give vitviz\.watch the one that belongs"):
        vitviz.watch(module, preprocessing=HOW).with_words(["a cat"])
    with pytest.raises(ModelError, match=r"gives token 49407, and .* knows 99 tokens") as refused:
        vitviz.watch(module, preprocessing=HOW, tokenizer=tokenizer()).with_words(["a cat"])
    assert_clear_error(refused.value)
    model = vitviz.watch(module, preprocessing=HOW, tokenizer=open_clip.SimpleTokenizer())
    with pytest.raises(ModelError, match=r"could not read the phrases") as refused:
        model.with_words(["a cat"])
    assert_clear_error(refused.value)


# --- folders --------------------------------------------------------------------------------------


def saved(library: str, name: str, folder: Path) -> Path:
    """The folder that each library writes, with its tokenizer."""
    module = module_of(library, name)
    if library == "transformers":
        module.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        transformers.CLIPImageProcessor(
            size=dict(height=32, width=32), do_center_crop=False, image_mean=HOW.mean
        ).save_pretrained(folder)
        return folder
    folder.mkdir()
    config = dict(model_cfg=OPEN_CLIP[name], preprocess_cfg=dict(mean=HOW.mean, std=HOW.std))
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(module.state_dict(), folder / "open_clip_model.safetensors")
    return folder


@pytest.mark.parametrize(
    "case",
    [
        *(EVERY[at] for at in (0, 2, 3, 4, 6, 9)),
        *(("transformers", name) for name in ("AltCLIP", "CLIPSeg", "TIPS")),
    ],
)
def test_a_folder_of_both_towers_loads_the_text_tower_when_it_is_asked_for(
    case: tuple[str, str], tmp_path: Path
) -> None:
    library, name = case
    model = vitviz.load_model(saved(library, name, tmp_path / "mine"))
    (tmp_path / "mine/code.py").write_text("raise SystemExit")
    assert model._text_tower is None
    before = model.parameter_count
    if library == "transformers":  # the vocabulary of the text tower takes no memory yet
        assert before < 49408 * 32
    asked = model.with_words(PHRASES)
    assert model.parameter_count == before
    x = model.preprocess(picture())[None]
    assert_allclose(logits_of(model), own_logits(library, name, [*PHRASES], x), atol=1e-5)
    assert "5 classes by the text tower of mine, scale 17.3" in asked.weights
    assert model.with_words(["a cat"]).labels == ("a cat",)


def test_a_clipseg_with_a_decoder_has_both_towers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [caplog.handler])
    decoder = dict(extract_layers=[1], reduce_dim=8, decoder_num_attention_heads=2)
    config = transformers.CLIPSegConfig(
        vision_config=VISION, text_config=TEXT, projection_dim=6, **decoder
    )
    module = transformers.CLIPSegForImageSegmentation(config).eval()
    randomise(module)
    module.save_pretrained(tmp_path / "mine")
    tokenizer().save_pretrained(tmp_path / "mine")
    model = vitviz.load_model(tmp_path / "mine", preprocessing=HOW)
    given = tokenizer()([*PHRASES], padding=True, return_tensors="pt")
    with torch.inference_mode():
        own = module.clip(pixel_values=HOW(picture())[None], **given).logits_per_image[0]
    assert_allclose(logits_of(model), own, atol=1e-5)
    assert "UNEXPECTED" not in caplog.text  # transformers says so of the decoder


def test_random_weights_of_a_folder_have_a_random_text_tower(tmp_path: Path) -> None:
    folder = saved(*EVERY[0], tmp_path / "mine")
    pair = [vitviz.load_model(folder, pretrained=False) for _ in range(2)]
    assert not pair[0].with_words(PHRASES).trained
    assert_array_equal(logits_of(pair[0]), logits_of(pair[1]))


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    folder = saved(*EVERY[0], tmp_path / "mine")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    model = vitviz.load_model(folder)
    with pytest.raises(ModelError, match="tokenizer of mine cannot be read") as refused:
        model.with_words(["a cat"])
    assert_clear_error(refused.value)


@pytest.mark.parametrize(
    ("tower", "key", "value"),
    [
        ("text_cfg", "tokenizer_kwargs", dict(trust_remote_code=True)),
        ("text_cfg", "hf_model_name", "somebody/bert"),
        ("vision_cfg", "timm_model_name", "hf-hub:somebody/vit"),
        ("vision_cfg", "layers", 10**9),
    ],
)
def test_a_configuration_that_would_run_or_download_something_is_refused(
    tower: str, key: str, value: Any, tmp_path: Path
) -> None:
    folder = saved(*EVERY[6], tmp_path / "mine")
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"][tower][key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=f"unsupported value for {key}") as refused:
        vitviz.load_model(folder)
    assert_clear_error(refused.value)


# --- vitviz words ---------------------------------------------------------------------------------


def test_the_command_writes_the_file_of_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(*EVERY[6], tmp_path / "mine")
    (tmp_path / "animals.txt").write_text("a cat\n\n  고양이 \n", encoding="utf-8")
    out = tmp_path / "animals.npz"
    command = ["words", str(folder), str(tmp_path / "animals.txt"), "--out", str(out)]
    assert cli.main([*command, "--template", "{}", "--template", "a photo of {}."]) == 0
    assert "2 classes by the text tower of" in capsys.readouterr().out
    model = vitviz.load_model(folder)
    expected = model.with_words(["a cat", "고양이"], ["{}", "a photo of {}."]).words
    read = vitviz.Words.read(out)
    assert expected is not None
    assert (read.names, read.logit_scale) == (expected.names, expected.logit_scale)
    assert_array_equal(read.vectors, expected.vectors)
    assert read.source.startswith("words of animals.npz, sha256 ")
    assert read.source.endswith('mean of the templates "{}", "a photo of {}."')
    assert (expected.templates, read.templates) == (("{}", "a photo of {}."), ())


@pytest.mark.parametrize(
    ("model", "phrases", "message"),
    [
        ("vitviz_things200", "a cat", "gives no embedding"),
        ("mine", " \n", "Expected a list of phrases"),
        ("mine", None, "cannot be read"),
        ("nowhere/mine", "a cat", "nowhere/mine"),
    ],
)
def test_the_command_says_what_it_cannot_do(
    model: str, phrases: str | None, message: str, tmp_path: Path, capsys: Any
) -> None:
    saved(*EVERY[6], tmp_path / "mine")
    if phrases is not None:
        (tmp_path / "animals.txt").write_text(phrases)
    given = str(tmp_path / "mine") if model == "mine" else model
    out = tmp_path / "animals.npz"
    assert cli.main(["words", given, str(tmp_path / "animals.txt"), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_repository_brings_its_tokenizer(
    server: HubServer, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name = saved(*EVERY[0], tmp_path / "mine"), "hf-hub:somebody/clip"
    server.serve(folder, "somebody/clip")
    server.files["somebody/clip/tokenization.py"] = b"raise SystemExit"
    assert cli.main(["prepare", name]) == 0
    assert ", takes words" in capsys.readouterr().out
    assert cli.main(["prepare", "--lesson", name]) == 0
    assert f"The optional step 6.3, in words, works with {name}." in capsys.readouterr().out
    server.close()
    model = vitviz.load_model(name).with_words(PHRASES)
    assert model.labels == PHRASES
    asked = {path.rpartition("/")[2] for _, path, _ in server.asked}
    assert "tokenizer.json" in asked
    assert not {"tokenization.py", "merges.txt"} & asked


def test_a_repository_without_the_file_of_a_whole_tokenizer_brings_its_vocabulary(
    server: HubServer, cache: Path, tmp_path: Path
) -> None:
    """As Chinese CLIP is published."""
    folder = saved("transformers", "Chinese CLIP", tmp_path / "mine")
    (folder / "vocab.txt").write_text(VOCABULARY)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    server.serve(folder, "somebody/kin")
    vitviz.load_model("hf-hub:somebody/kin")
    server.close()
    model = vitviz.load_model("hf-hub:somebody/kin")
    own = transformers.BertTokenizer.from_pretrained(folder)
    given = own([*PHRASES], padding=True, return_tensors="pt")
    with torch.inference_mode():
        x = model.preprocess(picture())[None]
        output = module_of("transformers", "Chinese CLIP")(pixel_values=x, **given)
    assert_allclose(logits_of(model), output.logits_per_image[0], atol=1e-5)


def test_a_repository_of_open_clip_alone_brings_both_towers(
    server: HubServer, cache: Path, tmp_path: Path
) -> None:
    folder, name = saved(*EVERY[9], tmp_path / "mine"), "hf-hub:somebody/siglip"
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["hf_tokenizer_name"] = "somebody/elsewhere"
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    (folder / "open_clip_model.safetensors").unlink()
    torch.save(module_of(*EVERY[9]).state_dict(), folder / "open_clip_pytorch_model.bin")
    tokenizer().save_pretrained(folder)
    server.serve(folder, "somebody/siglip")
    server.files["somebody/siglip/tokenization.py"] = b"raise SystemExit"
    drawn = vitviz.load_model(name, pretrained=False)
    assert (drawn.trained, drawn.weights) == (False, "random weights")
    assert not zoo.on_disk(name)
    model = vitviz.load_model(name)
    assert model.weights.startswith(f"{name}, revision {COMMIT[:7]}, open_clip_pytorch_model.bin, ")
    server.close()
    asked = {path.rpartition("/")[2] for _, path, _ in server.asked}
    assert "tokenizer.json" in asked
    assert not {"tokenization.py", "preprocessor_config.json"} & asked
    assert {path.split("/")[:2] == ["somebody", "siglip"] for _, path, _ in server.asked} == {True}
    assert zoo.on_disk(name)
    with torch.inference_mode():
        module, texts = module_of(*EVERY[9]), [*PHRASES]
        ids = tokenizer()(texts, padding="max_length", max_length=CONTEXT, return_tensors="pt")
        x = model.preprocess(picture())[None]
        expected = module.get_logits(x, ids["input_ids"])[0][0].numpy()
    assert_allclose(logits_of(vitviz.load_model(name)), expected, atol=1e-5)


def saved_beside_timm(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """The folder of open_clip with timm's files beside it, whose tower differs."""
    saved(*EVERY[6], folder)
    if config is not None:
        path = folder / "open_clip_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | dict(model_cfg=config)))
    shape: dict[str, Any] = dict(img_size=32, depth=1)
    alone = timm.create_model("vit_xsmall_patch16_clip_224", **shape)
    save_for_hf(alone, str(folder), model_config=dict(model_args=shape), safe_serialization=True)
    return folder


def test_files_of_open_clip_beside_those_of_timm_bring_both_towers(
    server: HubServer, cache: Path, tmp_path: Path
) -> None:
    folder, name = saved_beside_timm(tmp_path / "mine"), "hf-hub:timm/clip"
    server.serve(folder, "timm/clip")
    assert vitviz.load_model(name, pretrained=False).text_loader is not None
    assert not zoo.on_disk(name)
    from_folder, from_hub = vitviz.load_model(folder), vitviz.load_model(name)
    asked = {path.rpartition("/")[2] for _, path, _ in server.asked}
    assert asked == {"config.json", "open_clip_config.json", "open_clip_model.safetensors"}
    server.close()
    assert zoo.on_disk(name)
    for model in (from_folder, from_hub, vitviz.load_model(name)):
        expected = own_logits(*EVERY[6], [*PHRASES], model.preprocess(picture())[None])
        assert_allclose(logits_of(model), expected, atol=1e-5)
        assert "open_clip_model.safetensors, sha256 " in model.weights
        assert "alone" not in model.weights


def test_without_open_clip_the_image_tower_of_timm_says_how_to_get_the_words(
    server: HubServer, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name = saved_beside_timm(tmp_path / "mine"), "hf-hub:timm/clip"
    server.serve(folder, "timm/clip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "open_clip", None)
        for each in (vitviz.load_model(folder), vitviz.load_model(name)):
            assert (each.text_loader, len(each.layers)) == (None, 1)
            assert "model.safetensors, sha256 " in each.weights
            assert "image tower alone (" in each.weights
            assert "Run `pip install open_clip_torch`" in each.weights
            with pytest.raises(ModelError, match="pip install open_clip_torch") as refused:
                each.with_words(PHRASES)
            assert_clear_error(refused.value)
        assert zoo.on_disk(name)
        assert not any("open_clip_model" in path for _, path, _ in server.asked)
    later = vitviz.load_model(name)  # open_clip was installed since then
    assert "image tower alone (open_clip_model.safetensors is not on disk. Run " in later.weights
    with pytest.raises(ModelError, match=f"Run `vitviz fetch {name}`"):
        later.with_words(PHRASES)
    assert cli.main(["fetch", name]) == 0
    capsys.readouterr()
    model = vitviz.load_model(name)
    expected = own_logits(*EVERY[6], [*PHRASES], model.preprocess(picture())[None])
    assert_allclose(logits_of(model), expected, atol=1e-5)


def test_the_image_tower_of_timm_is_read_where_open_clip_would_download_a_part(
    server: HubServer, cache: Path, tmp_path: Path
) -> None:
    folder = saved_beside_timm(
        tmp_path / "mine", of_open_clip(text=dict(hf_model_name="somebody/bert"))
    )
    server.serve(folder, "timm/clip")
    for given in (folder, "hf-hub:timm/clip"):
        model = vitviz.load_model(given)
        assert "unsupported value for hf_model_name" in model.weights
        assert model.text_loader is None
    assert not any("open_clip_model" in path for _, path, _ in server.asked)


@pytest.mark.parametrize("tower", [None, "test_vit"])
def test_both_towers_of_open_clip_take_other_sizes(tower: str | None, tmp_path: Path) -> None:
    config = OPEN_CLIP["CLIP"]
    if tower is not None:
        vision = dict(timm_model_name=tower, timm_pool="token", timm_proj="linear", image_size=160)
        config = dict(config, vision_cfg=vision)
    folder = tmp_path / "mine"
    folder.mkdir()
    made = dict(model_cfg=config, preprocess_cfg=dict(mean=HOW.mean, std=HOW.std))
    (folder / "open_clip_config.json").write_text(json.dumps(made))
    module = made_by_open_clip(**config).eval()
    randomise(module)
    save_file(module.state_dict(), folder / "open_clip_model.safetensors")
    model = vitviz.load_model(folder, image_size=(64, 96))
    side = model.layers[0].patch_side[0]
    assert model.layers[0].query_grid == (64 // side, 96 // side)
    assert "positions resampled" in model.weights
    assert logits_of(model).shape == (len(PHRASES),)
    own = open_clip.transform.PreprocessCfg(size=(64, 96), mean=HOW.mean, std=HOW.std)
    x = open_clip.transform.image_transform_v2(own, is_train=False)(picture())
    assert_allclose(model.preprocess(picture()), x, atol=1e-6)


class _Code:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("code of a file was run",))


def test_weights_of_open_clip_run_no_code(tmp_path: Path) -> None:
    folder = saved(*EVERY[6], tmp_path / "mine")
    (folder / "open_clip_model.safetensors").unlink()
    torch.save({"code": _Code()}, folder / "open_clip_pytorch_model.bin")
    with pytest.raises(ModelError, match="mine") as refused:
        vitviz.load_model(folder)
    assert_clear_error(refused.value)


def test_a_repository_of_open_clip_that_is_not_read_is_not_downloaded(
    server: HubServer, cache: Path
) -> None:
    stages = dict(layers=[1, 1, 1, 1], width=32, patch_size=None)
    config = dict(model_cfg=of_open_clip(vision=stages), preprocess_cfg={})
    server.files["somebody/resnet/open_clip_config.json"] = json.dumps(config).encode()
    with pytest.raises(ModelError, match=r"hf-hub:somebody/resnet: .*AttentionPool2d") as refused:
        vitviz.load_model("hf-hub:somebody/resnet")
    assert_clear_error(refused.value)
    assert not any("model." in path for _, path, _ in server.asked)


def test_a_profile_has_the_accuracy_of_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(*EVERY[9], tmp_path / "mine")
    for label in ("cat", "dog"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for seed in range(3):
            picture(seed=seed + 3 * (label == "cat")).save(
                tmp_path / "pictures" / label / f"{seed}.png"
            )
    (tmp_path / "animals.txt").write_text("dog\ncat\n")
    command = ["profile", str(folder), str(tmp_path / "pictures"), "--out", str(tmp_path / "out")]
    command += ["--labels", str(tmp_path / "pictures")]
    words = ["--words", str(tmp_path / "animals.txt"), "--template", "a photo of a {}."]
    assert cli.main([*command, *words, "--importance", "zero"]) == 0
    said = capsys.readouterr().out
    found = vitviz.load_profile(tmp_path / "out")
    model = vitviz.load_model(folder).with_words(["dog", "cat"], "a photo of a {}.")
    right = 0
    for path in (tmp_path / "pictures").rglob("*.png"):
        shares = vitviz.capture(model, str(path)).probabilities
        assert shares is not None
        right += ("dog", "cat")[int(shares.argmax())] == path.parent.name
    assert found.accuracy is not None
    assert found.accuracy[0] == right / 6
    assert found.about["labels"] == ["dog", "cat"]
    assert f"accuracy {right / 6:.1%} of 6 labelled pictures" in said
    for label, answer, count, _ in found.top_confusions():
        assert f"{label} answered with {answer}: {count} picture" in said
    pictures = [*(tmp_path / "pictures").rglob("*.png")]
    lost = []
    for path in pictures:
        plain = vitviz.capture(model, str(path)).probabilities
        muted = vitviz.capture(model, str(path), edits=[vitviz.MuteHeads([(1, 0)])]).probabilities
        assert plain is not None
        assert muted is not None
        lost.append(np.log(plain.max() / muted[plain.argmax()]))
    assert_allclose(found.importance("zero")[1].means[1, 0], np.mean(lost), atol=1e-4)
    (tmp_path / "animals.txt").write_text("dog\ncat\nfox\n")
    assert cli.main([*command, *words, "--importance", "zero", "--resume"]) == 2
    assert "has another list of words" in capsys.readouterr().err
    asked = vitviz.load_model(folder).with_words(["dog", "cat"])  # in no template
    other = vitviz.profile(asked, pictures[:2], importance=["zero"])
    with pytest.raises(ProfileError, match="differ in list_of_words"):
        found.merge(other)


def test_a_run_does_not_go_on_with_other_phrases(tmp_path: Path) -> None:
    model, out = watched(*EVERY[0]), tmp_path / "out"
    vitviz.profile(model.with_words(["dog", "cat"]), picture(), out=out)
    with pytest.raises(ProfileError, match="has another list of words"):
        vitviz.profile(model.with_words(["dog", "wolf"]), picture(), out=out, resume=True)


@pytest.mark.parametrize("case", [EVERY[0], EVERY[6], EVERY[9]])
def test_the_parts_of_a_model_sum_to_the_logit_of_a_phrase(case: tuple[str, str]) -> None:
    model = watched(*case).with_words(PHRASES)
    logits = vitviz.capture(model, picture()).logits
    assert logits is not None
    for target, expected in ((1, logits[1]), (np.eye(5)[0] - np.eye(5)[2], logits[0] - logits[2])):
        parts = direct_logit_attribution(model, picture(), target)
        assert parts.total == pytest.approx(float(expected), abs=1e-4)
        assert np.abs(parts.heads).min() > 1e-5


# --- maps of words over patches -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["values", "tokens"])
def test_a_map_of_words_is_the_cosine_of_each_patch(path: Any) -> None:
    module = module_of(*EVERY[0])
    model = watched(*EVERY[0]).with_words(PHRASES)
    x = HOW(picture())[None]
    with torch.inference_mode():
        states = module.vision_model(x, output_hidden_states=True).hidden_states
        last, z = module.vision_model.encoder.layers[-1], states[-2]
        if path == "values":  # each token attends to itself
            z = z + last.self_attn.out_proj(last.self_attn.v_proj(last.layer_norm1(z)))
            z = z + last.mlp(last.layer_norm2(z))
        else:
            z = states[-1]
        patches = module.visual_projection(module.vision_model.post_layernorm(z))[0, 1:]
        patches = patches / patches.norm(dim=-1, keepdim=True)
    assert model.words is not None
    expected = (patches.numpy() @ model.words.vectors.T).reshape(4, 4, len(PHRASES))
    found = word_map(model, picture(), path=path)
    assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found, axis=(0, 1)).min() > 0.01


@pytest.mark.parametrize("case", [EVERY[3], EVERY[6]])
def test_both_maps_of_words_differ_for_every_kind_of_pooling(case: tuple[str, str]) -> None:
    model = watched(*case).with_words(PHRASES)
    maps = [word_map(model, picture(), path=path) for path in ("values", "tokens")]
    assert all(np.abs(each).max() <= 1 + 1e-6 for each in maps)
    assert np.abs(maps[0] - maps[1]).max() > 1e-3
    assert model.words is not None
    other = watched(*case).with_words(replace(model.words, logit_scale=7.0, logit_bias=-3.1))
    assert_allclose(word_map(other, picture()), maps[0], atol=1e-5)  # cosines, whatever they become


def test_a_map_of_a_tips_is_that_of_its_authors() -> None:
    module, model = module_of("transformers", "TIPS"), watched("transformers", "TIPS")
    asked = model.with_words(PHRASES)
    assert asked.words is not None
    tower, x = module.vision_model, HOW(picture())[None]
    maps: dict[Any, Tensor] = {}
    with torch.inference_mode():
        output = tower(x, output_hidden_states=True)
        maps["tokens"] = output.last_hidden_state
        last, z = tower.encoder.layer[-1], output.hidden_states[-2]
        values = last.attention.v_proj(last.norm1(z))  # each token attends to itself
        z = z + last.layer_scale1(last.attention.o_proj(values))
        maps["values"] = tower.layernorm(z + last.layer_scale2(last.mlp(last.norm2(z))))
    for path, tokens in maps.items():
        patches = torch.nn.functional.normalize(tokens[0, 2:], dim=-1).numpy()
        expected = (patches @ asked.words.vectors.T).reshape(4, 4, len(PHRASES))
        assert_allclose(word_map(asked, picture(), path=path), expected, atol=1e-5)
    assert_array_equal(word_map(asked, picture()), word_map(asked, picture(), path="values"))
    assert aligns_patches(model)
    assert not aligns_patches(watched(*EVERY[0]))


@pytest.mark.parametrize("head", [0, 5])
def test_a_tips_of_timm_takes_words_if_no_head_replaced_its_embedding(head: int) -> None:
    module: Any = timm.create_model(
        "vit_base_patch14_reg1_tipsv2",
        img_size=56,
        embed_dim=48,
        depth=2,
        num_heads=3,
        num_classes=head,
    ).eval()
    randomise(module)
    model = vitviz.watch(module)
    assert aligns_patches(model)
    assert model.embeds == (head == 0)


def test_a_map_of_words_needs_words() -> None:
    with pytest.raises(ModelError, match="has no words to compare patches with") as refused:
        word_map(watched(*EVERY[6]), picture())
    assert_clear_error(refused.value)
