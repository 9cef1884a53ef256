"""What is estimated before it is spent is what is spent."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from examples import assert_one_sentence, own_model, picture, timm_model, watched

from vitviz import memory
from vitviz.activations import capture
from vitviz.families import ModelError, family_of
from vitviz.memory import check, footprint, free_bytes


def test_weights_are_counted_without_being_made() -> None:
    with torch.device("meta"):
        module = timm.create_model("vit_gigantic_patch14_224")
    found = footprint(module, family_of(module).sites(module, (224, 224)))
    assert found.weights == 4 * 1_844_440_680
    tokens, width, layers = 257, 1664, 48
    assert found.capture == 4 * 8 * tokens * width * layers
    assert found.layer == 2 * 4 * 16 * tokens**2
    assert found.total == found.weights + found.capture + found.layer


@pytest.mark.parametrize(
    "name",
    [
        "test_vit",
        "vit_tiny_patch16_224",
        "eva02_tiny_patch14_224",
        "test_vit_relpos",
        "cait_xxs24_224",
        "swin_tiny_patch4_window7_224",
        "pvt_v2_b0",
        "coatnet_nano_rw_224",
        "maxvit_tiny_tf_224",
        "mixer_s32_224",
    ],
)
def test_a_capture_holds_about_what_was_estimated(name: str) -> None:
    module: Any = timm.create_model(name).eval()
    model = watched(module, module.pretrained_cfg["input_size"][-2:])
    estimated = footprint(model.module, model.sites).capture
    held = capture(model, picture()).nbytes
    assert held < 1.1 * estimated
    assert estimated < 2 * held


def test_half_precision_needs_half() -> None:
    model = timm_model("test_vit")
    whole = footprint(model.module, model.sites)
    half = footprint(model.module.bfloat16(), model.sites)
    assert (2 * half.weights, 2 * half.capture) == (whole.weights, whole.capture)


def test_a_capture_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = own_model()
    needed = footprint(model.module, model.sites).capture
    assert needed > 0
    monkeypatch.setattr(memory, "free_bytes", lambda: needed)
    capture(model, picture())
    monkeypatch.setattr(memory, "free_bytes", lambda: needed - 1)
    with pytest.raises(ModelError, match="A capture of example needs") as caught:
        capture(model, picture())
    assert_one_sentence(str(caught.value).replace("0.0", "0"))


def test_nothing_is_refused_where_the_system_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    check(10**18, "Everything")


def test_free_memory_is_the_least_of_what_is_there_and_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert free_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal:  900 kB\nMemAvailable:  500 kB\n")
    assert free_bytes() == 500 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100000\n")
    assert free_bytes() == 500 * 1024
    (tmp_path / "memory.max").write_text("300000\n")
    assert free_bytes() == 200_000
    (tmp_path / "memory.max").write_text("90000\n")
    assert free_bytes() == 0
