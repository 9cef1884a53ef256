"""What goes wrong on the server costs a sentence, and nothing that was there."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from examples import assert_clear_error, own_module, timm_module, watched
from hub_server import put_in_cache
from safetensors.torch import save
from streamlit.testing.v1 import AppTest

from pages.driver import (
    MINE,
    SHIPPED,
    address,
    assert_works,
    at_page,
    choose,
    complaints,
    drawn,
    forget,
    opened,
    provenance,
    upload,
)
from vitviz import Model, ModelError
from vitviz.app.options import LocalFile, Options
from vitviz.app.shared import models, pictures, queue, results
from vitviz.model import memory
from vitviz.zoo import weights_of

NAME = "deit_tiny_patch16_224"
OTHER = "vitviz_tiny_cifar10"


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    forget()


def assert_told(at: AppTest, words: str) -> None:
    """One sentence, which ends with the model that is on screen."""
    (said,) = complaints(at)
    sentence = said.removesuffix(f" {SHIPPED} is shown.")
    assert sentence != said
    assert_clear_error(sentence)
    assert words in sentence
    assert not at.exception
    assert provenance(at).startswith(SHIPPED)


# --- numbers that are none ----------------------------------------------------------------------


@pytest.mark.usefixtures("narrow")
def test_damaged_weights_show_no_map_and_the_last_model_stays(cache: Path) -> None:
    weights = dict(timm_module(NAME).state_dict())
    weights["head.bias"][0] = torch.nan
    put_in_cache(cache, weights_of(NAME), save(weights))
    at = upload(opened(layer="2"), "mine.png", MINE)
    before = drawn(at)
    choose(at, NAME)
    assert_told(at, "NaN or infinite")
    assert drawn(at) == before
    assert address(at) == {"model": NAME, "layer": "2", "picture": "upload"}
    at_page(at, "distance").run()
    assert_told(at, "NaN or infinite")
    assert provenance(at).endswith("mine.png")
    assert_works(choose(at, SHIPPED))
    at.segmented_control(key="weights").set_value("random")
    assert_works(choose(at, NAME))  # these are others


@pytest.mark.usefixtures("narrow")
def test_numbers_that_overflow_in_the_pass_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is not finite itself is refused when it is read; this one is finite."""
    weights = dict(timm_module(NAME).state_dict())
    weights["blocks.3.mlp.fc1.weight"] = weights["blocks.3.mlp.fc1.weight"] * 1e38
    file = tmp_path / "mine.safetensors"
    file.write_bytes(save(weights))
    name = f"{NAME} · mine.safetensors"
    monkeypatch.setattr(models, "options", lambda: Options({name: LocalFile(NAME, file)}))
    assert_told(opened(model=name), f"{NAME} (local file mine.safetensors, sha256")


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("narrow")
def test_a_model_that_does_not_fit_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = opened(weights="random")
    with monkeypatch.context() as patch:
        patch.setattr(memory, "free_bytes", lambda: 200_000)
        choose(at, NAME)
        assert_told(at, "GB of memory, and 0.0 GB are free")
    assert_works(at.run())
    assert provenance(at).startswith(NAME)


@pytest.mark.usefixtures("narrow")
def test_a_capture_that_does_not_fit_leaves_the_last_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = choose(opened(weights="random"), NAME)
    model = models.load_by_name(NAME, "random")
    needed = model.capture_bytes + memory.page_bytes(model.sites)
    choose(at, SHIPPED)
    before = drawn(at)
    results.capture_cache.clear()
    sample = pictures.sample(pictures.DEFAULT)
    results.capture_picture(models.load_by_name(SHIPPED, "random"), sample)  # which takes more
    monkeypatch.setattr(memory, "free_bytes", lambda: needed - 1)
    choose(at, NAME)
    assert_told(at, f"A capture of {NAME} needs")
    assert drawn(at) == before
    monkeypatch.setattr(memory, "free_bytes", lambda: needed)
    assert_works(at.run())
    assert provenance(at).startswith(NAME)


def test_no_memory_at_all_is_one_sentence_and_no_setting_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = opened(layer="2", head="3")
    line, before = provenance(at), drawn(at)
    results.capture_cache.clear()
    with monkeypatch.context() as patch:
        patch.setattr(memory, "free_bytes", lambda: 0)
        at.run()
        said = complaints(at)
        assert f"A capture of {SHIPPED} needs" in said[-1]
        assert not at.exception
    assert_works(at.run())
    assert (provenance(at), drawn(at)) == (line, before)


def test_an_experiment_that_does_not_fit_is_told_in_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results.capture_cache.clear()
    at = opened("classify")
    line = provenance(at)
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    at.button(key="run occlusion").click().run()
    (said,) = complaints(at)
    assert said.startswith(f"A capture of {SHIPPED} needs")
    assert not at.exception
    assert provenance(at) == line


# --- models that are shared ---------------------------------------------------------------------


def test_models_are_bounded_by_the_bytes_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    loading: list[str] = []
    models.cache.clear()

    def make(name: str, weights: str, wanted: models.Input) -> Model:
        loading.append(name)
        module = own_module(embed_dim=256, num_heads=1, depth=1)
        return watched(module, module.patch_embed.image_size, name=name)

    monkeypatch.setattr(models, "_load", make)
    model = models.load_by_name("a")
    size = models.cache().nbytes
    weights = sum(tensor.nbytes for tensor in model.module.state_dict().values())
    assert 1e6 < weights <= size <= weights + models.OUTLINE_BYTES
    monkeypatch.setattr(models.cache(), "max_bytes", 2 * size)
    for name in "bcdef":
        models.load_by_name(name)
    assert models.cache().nbytes == 2 * size
    assert models.load_by_name("a") is model  # dropped, but still somebody's
    models.load_by_name("b")
    assert loading == [*"abcdef", "b"]
    monkeypatch.setattr(models.cache(), "max_bytes", 1)
    for _ in range(2):
        models.load_by_name("large")  # which is kept alone
    assert loading[-2:] == ["b", "large"]


def test_a_model_that_cannot_be_loaded_again_does_not_hide_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, load = opened(model=OTHER), models._load

    def missing(name: str, weights: str, wanted: models.Input) -> Model:
        if name == OTHER:
            raise ModelError("There is no file {file}.", file=name)
        return load(name, weights, wanted)

    monkeypatch.setattr(models, "_load", missing)
    models.cache.clear()  # as others took its place
    gc.collect()
    choose(at, SHIPPED)
    assert_works(at)
    assert provenance(at).startswith(SHIPPED)


def test_a_load_waits_for_no_pass_and_stops_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []

    def make(name: str, weights: str, wanted: models.Input) -> Model:
        lengths.append((models.load_queue().length, queue.pass_queue().length))
        module = own_module(depth=1)
        return watched(module, module.patch_embed.image_size, name=name)

    monkeypatch.setattr(models, "_load", make)
    models.cache(), models.load_queue()  # made here, where Streamlit knows the thread
    with ThreadPoolExecutor(1) as pool, queue.pass_queue().turn(lambda ahead: None):
        pool.submit(models.load_by_name, "a").result(10)
    models.load_by_name("b")
    assert lengths == [(1, 1), (1, 0)]


def test_one_model_is_loaded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []

    def make(name: str, weights: str, wanted: models.Input) -> Model:
        running.append(name)
        time.sleep(0.2)
        assert running == [name]
        running.remove(name)
        module = own_module(depth=1)
        return watched(module, module.patch_embed.image_size, name=name)

    monkeypatch.setattr(models, "_load", make)
    models.cache(), models.load_queue()  # made here, where Streamlit knows the thread
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda name: models.load_by_name(name), "abc"))
    assert [model.name for model in found] == ["a", "b", "c"]
