"""What is read a block of rows at a time equals what is read whole, wherever a capture is kept."""

from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest
import timm
from examples import narrow_mixer, own_model, picture, sharpened, watched
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor
from torch.nn import functional as F

from vitviz.activations import Activations, batches, calls, capture, forward
from vitviz.inspection import Measurements, measurements
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.vit import Attention


def of_timm(name: str, **options: Any) -> Model:
    module: Any = timm.create_model(name, **options).eval()
    return watched(module, module.pretrained_cfg["input_size"][-2:])


MODELS: dict[str, Any] = {
    "class token": lambda: own_model(),
    "no class token": lambda: own_model(class_token=False),
    "registers": lambda: own_model(registers=4),
    "timm": lambda: of_timm("test_vit"),
    "relative positions, biased": lambda: of_timm("test_vit_relpos"),
}


def measured(acts: Activations, *, whole: bool) -> Measurements:
    layers = acts.attention_layers()
    return measurements(
        (layer for layer in layers) if whole else layers,
        grid=acts.grid,
        patch_size=acts.patch_size,
        num_prefix_tokens=acts.num_prefix_tokens,
    )


@cache
def sharp(name: str) -> tuple[Activations, Measurements]:
    """A capture, and the measurements of its whole layers."""
    acts = capture(sharpened(MODELS[name](), 5), picture())
    return acts, measured(acts, whole=True)


@pytest.mark.parametrize("block", [1, 700])
@pytest.mark.parametrize("name", MODELS)
def test_measurements_of_blocks_equal_those_of_whole_layers(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts, expected = sharp(name)
    assert expected.entropy.mean() < np.log2(len(expected.rollout)) - 0.1
    monkeypatch.setattr(calls, "BLOCK_NUMBERS", block)
    found = measured(acts, whole=False)
    for field in fields(found):
        some, all_ = getattr(found, field.name), getattr(expected, field.name)
        assert some.dtype == all_.dtype
        assert not some.flags.writeable
        assert_allclose(some, all_, rtol=2e-5, atol=1e-5, err_msg=field.name)


@pytest.mark.parametrize("name", MODELS)
def test_only_a_plain_softmax_is_read_in_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    acts = capture(MODELS[name](), picture())
    asked: list[int] = []
    read = Activations.attention

    def watching(self: Activations, layer: int) -> np.ndarray:
        asked.append(layer)
        return read(self, layer)

    monkeypatch.setattr(Activations, "attention", watching)
    measured(acts, whole=False)
    biased = "biased" in name
    assert acts.attention_layers().in_blocks is not biased
    assert asked == (list(range(acts.depth)) if biased else [])


def test_blocks_prove_themselves() -> None:
    class SpoilsOneRow(Attention):
        def forward(self, z: Tensor) -> Tensor:
            B, T, D = z.shape
            qkv = self.qkv(z).reshape(B, T, 3, self.num_heads, D // self.num_heads)
            heads = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
            heads[:, :, 1] += 1  # of 25 rows, 0, 3, 6, ... are checked at capture
            return self.proj(heads.transpose(1, 2).reshape(B, T, D))

    model = own_model()
    module: Any = model.module
    module.blocks[1].attn = SpoilsOneRow(32, 4).eval()
    acts = capture(model, picture())
    assert acts.layers[1].refusal is None
    with pytest.raises(ModelError, match=r"blocks\.1 does not reproduce"):
        measured(acts, whole=False)


#: Rotated queries, talking heads and class attention, pooled keys, and no attention at all.
OTHERS: dict[str, Any] = {
    "EVA": lambda: of_timm("eva02_tiny_patch14_224", depth=3),
    "CaiT": lambda: of_timm("cait_xxs24_224", depth=3),
    "PVT": lambda: of_timm("pvt_v2_b0", depths=(1, 1, 1, 1)),
    "Mixer": lambda: watched(narrow_mixer(), (224, 224)),
}


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_a_large_capture_is_the_same_in_an_arena(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {**MODELS, **OTHERS}[name]()
    small = capture(model, picture())
    monkeypatch.setattr(forward, "LARGE", 0)
    large = capture(model, picture())
    assert_array_equal(large.logits, small.logits)
    assert large.layers == small.layers
    for depth in range(small.depth + 1):
        assert_array_equal(large.tokens(depth), small.tokens(depth))
    for layer in range(small.depth):
        if small.layers[layer].refusal is None:
            assert_array_equal(large.attention(layer), small.attention(layer))
    assert large.nbytes <= small.nbytes * 1.05


@pytest.mark.parametrize("piece", [batches.ARENA_PIECE, 1 << 10])  # smaller than the tokens
def test_a_large_capture_lets_the_outputs_go(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LARGE", 0)
    monkeypatch.setattr(batches, "ARENA_PIECE", piece)
    acts = capture(own_model(), picture())
    layer = 25 * 32 * 4  # tokens x width x bytes of a float32
    proof = 9 * 32 * 4 + 25 * 4 * 4 * 4  # 9 rows, and 4 numbers of every token in each of 4 heads
    photo = 60 * 50 * 4  # four bytes a pixel
    kept = 3 * (3 * layer + proof) + 4 * layer + 3 * layer + photo
    assert kept <= acts.nbytes <= kept + 1024
