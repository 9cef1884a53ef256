"""Small models and pictures that several test files use; everything here is made on the spot."""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import timm
import torch
from numpy.testing import assert_allclose
from PIL import Image
from safetensors.torch import save_file
from timm.models import vision_transformer_hybrid
from timm.models.mlp_mixer import MlpMixer
from timm.models.resnetv2 import ResNetV2
from torch import Tensor, nn

from vitviz import attribution, intervention
from vitviz.activations import Activations, capture, captures
from vitviz.model import Model, Preprocessing
from vitviz.vit import VisionTransformer
from vitviz.zoo.architectures import on_meta_device
from vitviz.zoo.architectures import skip_random_weights as skip_random_weights

#: One of each kind of own ViT, named by what is special about it.
OWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "square": dict(image_size=24),
    "no class token": dict(class_token=False),
    "distilled": dict(distillation_token=True),
    "registers": dict(registers=4),
    "registers alone": dict(class_token=False, registers=2),
    "sincos1d": dict(positions="sincos1d"),
    "sincos2d": dict(positions="sincos2d"),
    "no positions": dict(positions="none"),
    "stem": dict(stem_width=8),
    "no head": dict(num_classes=0),
}


#: A shipped model of the tests: a grid of 8 x 8.
LITTLE: dict[str, Any] = dict(image_size=32, depth=1)
CONFIGURATION: dict[str, Any] = dict(
    image_size=32, patch_size=4, embed_dim=32, depth=1, num_heads=4, mlp_dim=48, num_classes=5
)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # that of the CPU alone, which takes no time
        yield


def vit_of_transformers(**options: Any) -> Any:
    """A small one for classification; without transformers, the test is skipped."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    with seeded():
        return transformers.ViTForImageClassification(
            transformers.ViTConfig(**{**sizes, **options})
        ).eval()


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Give every parameter a random value, so that none is inert and attention is far from even."""
    with seeded(seed), torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim < 2:  # biases, and the norms' scales
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=parameter[0].numel() ** -0.5)


def own_module(**options: Any) -> VisionTransformer:
    """Three blocks of width 32, by default on a grid of 4 x 6 patches."""
    sizes = dict(
        image_size=(16, 24),
        patch_size=4,
        embed_dim=32,
        depth=3,
        num_heads=4,
        mlp_dim=48,
        num_classes=5,
    )
    module = VisionTransformer(**{**sizes, **options}).eval()
    randomise(module)
    return module


def watched(module: nn.Module, input_size: tuple[int, int], **options: Any) -> Model:
    """The module as a Model whose input is a picture of `input_size` as it is."""
    settings: dict[str, Any] = dict(name="example", trained=False, weights="random weights")
    preprocessing = Preprocessing(input_size=input_size, mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
    return Model(module, **{"preprocessing": preprocessing, **settings, **options})


def own_model(**options: Any) -> Model:
    module = own_module(**options)
    return watched(module, module.patch_embed.image_size)


def narrow_stages() -> dict[str, Any]:
    """Options of timm's MaxViT and CoAtNet: one block a stage, of two heads where it attends."""
    return dict(depths=(1, 1, 1, 1), stem_width=16, embed_dim=(64, 64, 64, 64))


def narrow_mixer(**options: Any) -> nn.Module:
    """timm's mixer_s32_224 with two blocks of width 64: names of timm say how wide a Mixer is."""
    with seeded():
        module: nn.Module = MlpMixer(patch_size=32, num_blocks=2, embed_dim=64, **options)
    return module.eval()


@contextmanager
def narrow_stems() -> Iterator[None]:
    """The ResNet in front of timm's hybrids has few channels, which no option of theirs sets."""
    few = partial(ResNetV2, stem_chs=32, channels=(128, 128, 128, 128))
    with patch.object(vision_transformer_hybrid, "ResNetV2", few):
        yield


def timm_module(name: str, **options: Any) -> Any:
    """A model of timm, all parameters random."""
    with on_meta_device():  # timm's own initialisation takes longer than all else
        module = timm.create_model(name, pretrained=False, **options)
    module = module.to_empty(device="cpu").eval()
    randomise(module)
    return module


def timm_model(name: str, **options: Any) -> Model:
    module = timm_module(name, **options)
    return watched(module, module.patch_embed.img_size)


TIMM = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_small_patch32_224",
    "test_vit",  # and the small ones: registers, no class token, pooling, normalised queries
    "test_vit2",
    "test_vit3",
    "test_vit4",
)


def shallow(name: str) -> dict[str, Any]:
    """Of the large ones among TIMM, three layers of twelve say the same."""
    return dict(depth=3) if name in TIMM[:3] else {}


@cache
def example(name: str) -> Model:
    """One model a name, which no test changes."""
    return own_model(**OWN[name]) if name in OWN else timm_model(name, **shallow(name))


def picture(width: int = 60, height: int = 50, seed: int = 0) -> Image.Image:
    """Blobs of colour under noise: no two places look alike."""
    return _blobs(width, height, seed).copy()


@lru_cache(maxsize=20)
def _blobs(width: int, height: int, seed: int) -> Image.Image:
    random = np.random.default_rng(seed)
    blobs = Image.fromarray(random.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    smooth = np.asarray(blobs.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noise = random.integers(-25, 26, smooth.shape)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def patch_box(
    crop: tuple[float, float, float, float], grid: tuple[int, int], row: int, col: int
) -> tuple[float, float, float, float]:
    """Where one patch lies in the picture: left, top, right and bottom in pixels."""
    left, top, right, bottom = crop
    width, height = (right - left) / grid[1], (bottom - top) / grid[0]
    x, y = left + col * width, top + row * height
    return (x, y, x + width, y + height)


def write_shipped(folder: Path, name: str = "little") -> Path:
    """Write a file as `vitviz.training` publishes it, into folder/weights."""
    about = {
        "configuration": CONFIGURATION,
        "classes": ["cat", "dog", "fox", "owl", "bat"],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "detail": 1.0,
        "test_accuracy": 0.875,
    }
    path = folder / "weights" / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    state = {key: tensor.half() for key, tensor in own_module(**LITTLE).state_dict().items()}
    save_file(state, path, metadata={"vitviz": json.dumps(about)})
    return path


def plain_logits(model: Model, image: Image.Image) -> Tensor:
    """What the module says of the picture when nobody watches."""
    with torch.inference_mode():
        logits: Tensor = model.module(model.preprocess(image)[None])[0]
    return logits


def sharpened(model: Model, factor: float = 3) -> Model:
    """With attention that looks somewhere: random weights share it almost equally."""
    with torch.no_grad():
        for name, weight in model.module.named_parameters():
            if name.endswith("qkv.weight"):
                weight[: 2 * len(weight) // 3] *= factor
    return model


def assert_same_answer(model: Model, module: nn.Module) -> None:
    """A capture has the logits of the module."""
    with torch.inference_mode():
        expected = module(model.preprocess(picture())[None])[0]
    logits = capture(model, picture()).logits
    assert logits is not None
    assert_allclose(logits, expected, atol=1e-5)


@contextmanager
def remembered_experiments() -> Iterator[None]:
    """Who asks an experiment, or for a map of a class, again gets what was found the first time."""
    found: dict[Any, Any] = {}

    def once(experiment: Any) -> Any:
        def ask(model: Model, image: Image.Image, *asked: Any, **options: Any) -> Any:
            given = sorted((name, value) for name, value in options.items() if value is not None)
            key = experiment, model, id(image), *asked, *given
            if key not in found:
                found[key] = experiment(model, image, *asked, **options), image  # keeps its id
            return found[key][0]

        return ask

    with (
        patch.object(intervention, "occlusion", once(intervention.occlusion)),
        patch.object(intervention, "head_effects", once(intervention.head_effects)),
        patch.object(attribution, "relevance", once(attribution.relevance)),
    ):
        yield


class Net(nn.Module):
    """A wrapper, as people write them."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def equal_captures(first: Activations, second: Activations) -> bool:
    """Whether two captures agree bit by bit."""
    return (
        np.array_equal(first.tokens(first.depth), second.tokens(second.depth))
        and (first.logits is None) == (second.logits is None)
        and (first.logits is None or np.array_equal(first.logits, second.logits))  # type: ignore[arg-type]
        and all(
            np.array_equal(first.attention(layer), second.attention(layer))
            for layer in range(first.depth)
        )
    )


def assert_same_in_a_batch(model: Model, pictures: Sequence[Image.Image]) -> None:
    """Each picture of batches of 3 equals a capture of its own, and every layer proves itself."""
    found = list(captures(model, pictures, batch_size=3))
    assert len(found) == len(pictures)
    for image, acts in zip(pictures, found, strict=True):
        alone = capture(model, image)
        assert acts.layers == alone.layers
        assert acts.crop == alone.crop
        if alone.logits is not None:
            assert acts.logits is not None
            assert_allclose(acts.logits, alone.logits, rtol=0, atol=1e-5)
        for layer, described in enumerate(alone.layers):
            for depth in (layer, layer + 1):
                scale = np.abs(alone.tokens(depth)).max()
                assert_allclose(acts.tokens(depth), alone.tokens(depth), rtol=0, atol=1e-5 * scale)
            if described.refusal is None:
                seen = acts.attention_by_window(layer)
                assert_allclose(seen, alone.attention_by_window(layer), rtol=0, atol=5e-6)


def hook_count(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def assert_clear_error(error: BaseException | str, *naming: str) -> None:
    """Assert that a message is one line for people, and names each of `naming`."""
    message = str(error)
    assert re.fullmatch(r"\S[^\n]*[.?]", message), message
    assert not re.search(r"Error|Traceback|<class |<built-in| object at 0x", message), message
    assert all(name in message for name in naming), message


def damaged(data: bytes, seed: int) -> bytes:
    """The bytes of a file that is cut, or has other bytes somewhere.

    Of a ZIP archive, members that are not compressed and JSON in them are damaged under a sum that
    fits, as else no reader would come to see them.
    """
    rng = np.random.default_rng(seed)
    kind = seed % 5
    if kind == 0:
        return data[: int(rng.integers(len(data)))]
    if kind == 1 or not data.startswith(b"PK"):
        changed = bytearray(data)
        for place in rng.integers(len(data), size=1 + seed % 40):
            changed[place] = int(rng.integers(256))
        return bytes(changed)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(members)[int(rng.integers(len(members)))]
    if kind == 2:
        del members[name]
    elif kind == 3 or "about.npy" not in members:
        members[name] = damaged(members[name], 5 * seed + 1)
    else:
        about = json.loads(str(np.load(io.BytesIO(members["about.npy"]))))
        key = sorted(about)[int(rng.integers(len(about)))]
        about[key] = [None, 7, "x", [], {}, [[]], -1.5][int(rng.integers(7))]
        file = io.BytesIO()
        np.save(file, np.array(json.dumps(about)))
        members["about.npy"] = file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for each, content in members.items():
            archive.writestr(each, content)
    return file.getvalue()
