"""Fixtures of the page tests: no network, small models, nothing left behind."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from examples import OWN, own_module, timm_module, watched
from plotly import basedatatypes
from plotly.basedatatypes import BasePlotlyType, _str_to_dict_path_full
from plotly.validator_cache import ValidatorCache
from safetensors.torch import save_file
from streamlit.components.v2 import manifest_scanner
from streamlit.components.v2.bidi_component import serialization
from streamlit.runtime import context
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.runtime.scriptrunner_utils import script_run_context
from streamlit.testing.v1 import local_script_runner
from timm.models.mlp_mixer import MlpMixer

from pages import driver
from vitviz import Model
from vitviz.app.shared import models, pictures, results
from vitviz.zoo import architectures


@pytest.fixture(autouse=True)
def _nothing_downloaded(cache: Path) -> None:
    """The hub's cache is empty, whatever this machine has."""


@pytest.fixture(autouse=True)
def _on_localhost() -> Iterator[None]:
    """The server listens on localhost alone, wherever the tests are run from."""
    driver.listen("127.0.0.1")
    yield
    driver.listen("127.0.0.1")


@pytest.fixture(autouse=True, scope="session")
def _read_once() -> Iterator[None]:
    """A server does once what Streamlit does anew for every AppTest, or for every run of one: it
    looks for components in all that is installed, and compiles the script. Plotly takes the name
    of each property apart once, instead of once a figure, and imports nothing where it checks one.
    A run is waited for without going through all that it has sent, a thousand times a second; what
    it sends gets no hashes, which are for a browser's memory, or cheap ones; and who asks has no
    headers, instead of mocks of them."""
    with pytest.MonkeyPatch.context() as patch:

        def validator(of: BasePlotlyType, name: str) -> Any:
            return ValidatorCache.get_validator(of._path_str, name)

        scan = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        patch.setattr(ScriptCache, "get_bytecode", staticmethod(ScriptCache().get_bytecode))
        patch.setattr(basedatatypes, "_str_to_dict_path_full", cache(_str_to_dict_path_full))
        patch.setattr(BasePlotlyType, "_get_validator", validator)
        check = local_script_runner.require_widgets_deltas

        def wait(runner: Any, timeout: float = 3) -> None:
            runner._script_thread.join(timeout)
            check(runner, timeout)

        patch.setattr(local_script_runner, "require_widgets_deltas", wait)
        patch.setattr(serialization, "calc_hash", lambda sent: f"{hash(sent):x}")
        patch.setattr(script_run_context, "populate_hash_if_needed", lambda message: None)
        patch.setattr(context, "_get_client_context", lambda: None)
        yield


@cache
def _small(kind: str, **options: Any) -> Model:
    """One model of a kind, which no test changes."""
    module = own_module(**OWN.get(kind, {}), **options)
    return watched(module, module.patch_embed.image_size, name=f"{kind} {options}")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Model]:
    """Makes the app show a small model instead of those of the menu."""

    def show(kind: str, **options: Any) -> Model:
        model = _small(kind, **options)
        monkeypatch.setattr(models, "load_by_name", lambda name, weights="trained": model)
        monkeypatch.setattr(models, "cached_random_kernel", lambda model: model.patch_kernel)
        return model

    return show


@pytest.fixture
def read_anew() -> Iterator[None]:
    """The command line is that of each test, whichever is the first in its process."""
    driver.read_anew()
    yield
    driver.read_anew()


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_anew: None) -> Callable[..., str]:
    """Puts weights of test_vit into the menu, some of them given, and returns their name there.

    They count as trained, and how their training began is not known.
    """

    def in_menu(**given: torch.Tensor) -> str:
        path = tmp_path / "mine.safetensors"
        save_file({**timm_module("test_vit").state_dict(), **given}, path)
        monkeypatch.setattr(sys, "argv", ["app.py", f"--checkpoint=test_vit={path}"])
        driver.read_anew()
        return "test_vit · mine.safetensors"

    return in_menu


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All sample pictures are three; what was measured on all of them is measured anew."""
    few = {name: pictures.samples()[name] for name in (pictures.DEFAULT, "dog", "cat")}
    for module in (pictures, results):
        monkeypatch.setattr(module, "samples", lambda: few)
    results.capture_cache.clear()
    yield
    results.capture_cache.clear()


MAXXVIT: dict[str, Any] = dict(
    stem_width=16, embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1), conv_expand_ratio=1
)
#: Few channels, and of CoAtNet and MaxViT one block in each stage; other layers, and all grids, are
#: those of each architecture.
NARROW: dict[str, dict[str, Any]] = {
    "swin_tiny_patch4_window7_224": dict(embed_dim=24),
    "pvt_v2_b0": dict(embed_dims=(8, 16, 20, 32)),
    "twins_svt_small": dict(embed_dims=(8, 16, 32, 32), num_heads=(1, 2, 4, 4)),
    "cait_xxs24_224": dict(embed_dim=32),
    "vit_tiny_patch16_224": dict(embed_dim=48, num_heads=3),
    "vit_xsmall_patch16_clip_224": dict(embed_dim=48, num_heads=3),
    "deit_tiny_patch16_224": dict(embed_dim=48, num_heads=3),
    "deit_tiny_distilled_patch16_224": dict(embed_dim=48, num_heads=3),
    "coatnet_0_rw_224": MAXXVIT,
    "maxvit_tiny_tf_224": MAXXVIT,
    "beit_base_patch16_224": dict(embed_dim=48, num_heads=3),
    "vit_small_patch16_dinov3": dict(embed_dim=48, num_heads=3),
    "vit_base_patch16_siglip_224": dict(embed_dim=48, num_heads=3),
}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The models of timm have few channels, in the app and beside it."""
    real = timm.create_model

    def create(name: str, **options: Any) -> Any:
        if name == "mixer_b16_224":  # whose name alone says how wide it is
            return MlpMixer(num_blocks=12, embed_dim=32)
        return real(name, **{**NARROW.get(name, {}), **options})

    monkeypatch.setattr(timm, "create_model", create)
    architectures._build_outline.cache_clear()
    yield
    architectures._build_outline.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def _released() -> Iterator[None]:
    yield
    driver.forget()
