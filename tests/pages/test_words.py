"""Classify and Rollout with words as the classes of models like CLIP and SigLIP."""

import sys
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
from examples import assert_clear_error, randomise, timm_module, watched
from numpy.testing import assert_allclose
from PIL import Image
from safetensors.torch import save_file
from streamlit.testing.v1 import AppTest

import vitviz
from pages.driver import (
    assert_works,
    at_page,
    complaints,
    figures,
    numbers,
    open_data,
    opened,
    prose,
    provenance,
)
from vitviz import Words, cli
from vitviz.app.shared import models, pictures
from vitviz.attribution import direct_logit_attribution
from vitviz.common.files import assets
from vitviz.intervention import word_map

NAMES = ("a cat", "a dog", "a teapot")
ARCHITECTURE = "vit_xsmall_patch16_clip_224"
TITLE = f"{ARCHITECTURE} · clip.safetensors"
pytestmark = pytest.mark.usefixtures("narrow", "read_anew")


def vectors(width: int) -> np.ndarray:
    made = np.random.default_rng(0).normal(size=(len(NAMES), width)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, width: int | None) -> None:
    """Start the app with a CLIP of random weights in a file, and with words of some width."""
    module = timm_module(ARCHITECTURE, img_size=64, num_classes=512)
    save_file(module.state_dict(), folder / "clip.safetensors")
    said = ["--checkpoint", f"{ARCHITECTURE}={folder / 'clip.safetensors'}"]
    if width:
        np.savez(
            folder / "animals.npz", names=NAMES, vectors=vectors(width), logit_scale=np.array(100.0)
        )
        said += ["--words", str(folder / "animals.npz")]
    monkeypatch.setattr(sys, "argv", ["/somewhere/app.py", *said])


def test_clip_answers_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch, tmp_path, 512)
    at = opened("classify", model=TITLE)
    assert_works(at)
    assert "It compares the picture with 3 words: a cat, a dog, a teapot." in prose(at)
    assert "words of animals.npz, sha256 " in provenance(at)
    assert "scale 100, softmax" in provenance(at)
    assert list(at.selectbox(key="class").options)[1:] == list(NAMES)
    assert any(r"s \cos(y, t_1)" in formula.value for formula in at.latex)
    at.selectbox(key="class").set_value(1).run()
    at_page(at, "explain").run()
    assert_works(at)
    assert "logit of **a dog**" in prose(at)


def test_siglip_gives_each_word_a_probability_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = timm.create_model(
        "vit_base_patch16_siglip_224", img_size=64, embed_dim=48, depth=2, num_heads=3
    ).eval()
    randomise(module)
    said = Words(NAMES, vectors(48), logit_scale=10.0, logit_bias=-3.0)
    model = watched(module, (64, 64), name="small SigLIP").with_words(said)
    monkeypatch.setattr(models, "load_by_name", lambda *_: model)
    at = opened("classify")
    assert_works(at)
    assert "need not add up to 100 %" in prose(at)
    assert prose(at).count("These are **random weights**: ") == 2  # of the answer, and of the map
    assert "bias -3, sigmoid" in provenance(at)
    table = at.table[0].value
    assert "1 / (1 + exp(-y))" in table.columns
    at_page(at, "explain").run()
    assert_works(at)
    at_page(at, "anatomy").run()
    assert_works(at)


def test_a_tips_of_timm_says_that_its_patches_were_brought_near_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = timm.create_model(
        "vit_base_patch14_reg1_tipsv2", img_size=56, embed_dim=48, depth=2, num_heads=3
    ).eval()
    randomise(module)
    said = Words(NAMES, vectors(48), logit_scale=100.0)
    model = watched(module, (56, 56), name="small TIPS").with_words(said)
    monkeypatch.setattr(models, "load_by_name", lambda *_: model)
    at = opened("classify")
    assert_works(at)
    assert "brought patches nearer to the texts of what they show" in prose(at)
    assert "never a patch" not in prose(at)
    assert "Here each patch attends to itself alone in the last layer" in prose(at)


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (None, "The operator can start the app with --words"),
        (768, "has 512 numbers and the vectors of the words have 768"),
    ],
)
def test_an_embedding_without_words_that_fit_says_what_would_help(
    width: int | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(monkeypatch, tmp_path, width)
    at = opened("classify", model=TITLE)
    assert not at.exception
    (said,) = [info.value for info in at.info]
    assert words in said


def test_a_file_that_holds_no_words_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "words.npz"
    path.write_text("cat")
    assert cli.main(["app", "--words", str(path)]) == 2
    said = capsys.readouterr().err.strip()
    assert_clear_error(said.replace(".npz", ""))
    monkeypatch.setattr(sys, "argv", ["/somewhere/app.py", "--words", str(path)])
    at = AppTest.from_file(str(Path(models.__file__).parents[1] / "main.py"), default_timeout=120)
    at.run()
    assert complaints(at) == [said]


def start_with_text_tower(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, library: str = "open_clip"
) -> AppTest:
    """Open Classify with a model of random weights in a folder."""
    towers = pytest.importorskip("test_text_towers")
    towers.saved(library, name, folder / "mine")
    monkeypatch.setattr(sys, "argv", ["/somewhere/app.py", "--checkpoint", str(folder / "mine")])
    return opened("classify", model="mine")


@pytest.mark.parametrize("name", ["CLIP", "SigLIP"])
def test_phrases_that_a_visitor_types_are_the_classes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = start_with_text_tower(monkeypatch, tmp_path, name)
    assert "as saved" in at.segmented_control(key="weights").options  # perhaps never trained
    assert "Write phrases into *Words*" in at.info[0].value
    at.text_area(key="words").set_value("a cat\n\n개 <b>**한**</b> 마리\n🎉").run()
    assert_works(at)
    assert "compares the picture with 3 words: a cat, " in prose(at)
    assert "<b>" not in prose(at)
    assert "Their vectors are from the text tower of" in prose(at)
    at.selectbox(key="template").set_value("mean").run()
    assert_works(at)
    assert "mean of the templates" in provenance(at)
    assert ("need not add up to 100 %" in prose(at)) == (name == "SigLIP")
    before = at.table[0].value.to_numpy().tolist()
    at.text_area(key="words").set_value("a dog\na fox\n🎉").run()  # as many others
    assert_works(at)
    assert at.table[0].value.to_numpy().tolist() != before
    at_page(at, "explain").run()
    assert_works(at)
    assert list(at.selectbox(key="class").options)[1:] == ["a dog", "a fox", "🎉"]
    at.text_area(key="words").set_value("").run()
    assert not at.exception


def test_a_phrase_stands_whole_with_its_comma(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phrases = ["a dog, asleep", "a dog, awake", "a photo of a dog that runs on snow"]
    at = start_with_text_tower(monkeypatch, tmp_path, "CLIP")
    at.text_area(key="words").set_value("\n".join(phrases)).run()
    assert_works(at)
    assert list(at.selectbox(key="class").options)[1:] == phrases
    assert list(at.selectbox(key="phrase").options) == phrases
    assert list(at.selectbox(key="less").options)[1:] in (phrases[1:], phrases[:1] + phrases[2:])
    assert "with 3 words: a dog, asleep, a dog, awake, a photo" in prose(at)
    table = open_data(at, "classify").dataframe[0].value
    assert list(table["class"]) == phrases
    assert "also called" not in table.columns
    at_page(at, "compare").run()
    assert_works(at)
    (answers,) = (one.value for one in open_data(at, "compare").dataframe if "class" in one.value)
    assert {*answers["class"]} == {*phrases}


@pytest.mark.parametrize("name", ["CLIP", "SigLIP"])
def test_the_only_phrase_is_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = start_with_text_tower(monkeypatch, tmp_path, name)
    at.text_area(key="words").set_value("a cat").run()
    assert_works(at)
    assert "It compares the picture with one phrase: a cat. Its vector is from the" in prose(at)
    assert "One of them always comes first" not in prose(at)
    assert ("its probability is always 100 %" in prose(at)) == (name == "CLIP")


def drawn(at: AppTest) -> np.ndarray:
    """The map of a phrase on screen."""
    return numbers(map_of_phrase(at)["z"])


def scale(at: AppTest) -> tuple[float, float]:
    """The ends of its colours."""
    return map_of_phrase(at)["zmin"], map_of_phrase(at)["zmax"]


def map_of_phrase(at: AppTest) -> dict[str, Any]:
    traces = [trace for figure in figures(at) for trace in figure["data"]]
    (found,) = (each for each in traces if "z" in each and "opacity" in each)
    return found


def default_photo() -> Image.Image:
    return vitviz.open_image((assets() / "samples" / f"{pictures.DEFAULT}.jpg").read_bytes())


@pytest.mark.parametrize(("library", "name"), [("open_clip", "CLIP"), ("transformers", "SigLIP")])
def test_a_map_shows_a_phrase_or_it_minus_another(
    library: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = start_with_text_tower(monkeypatch, tmp_path, name, library)
    at.text_area(key="words").set_value("a cat\na <b>dog</b>\na fox").run()
    model = vitviz.load_model(tmp_path / "mine").with_words(["a cat", "a <b>dog</b>", "a fox"])
    photo = default_photo()
    for path in ("values", "tokens"):
        at.segmented_control(key="word_map").set_value(path).run()
        at.selectbox(key="phrase").set_value(1).run()
        assert_works(at)
        maps = word_map(model, photo, path=path)
        assert_allclose(drawn(at), maps[..., 1], atol=1e-6)
        ends = maps[..., 1].min(), maps[..., 1].max()
        assert scale(at) == pytest.approx(ends, abs=1e-6)
        at.selectbox(key="less").set_value(2).run()
        assert_works(at)
        difference = maps[..., 1] - maps[..., 2]
        assert_allclose(drawn(at), difference, atol=1e-6)
        reach = np.abs(difference).max()
        assert scale(at) == pytest.approx((-reach, reach), abs=1e-6)
        assert "</b>**, blue ones for **a fox**." in unescape(prose(at))
        at.selectbox(key="less").set_value("nothing").run()
    at.selectbox(key="less").set_value(0).run()
    at.selectbox(key="phrase").set_value(0).run()  # nothing is left of it
    assert_works(at)
    assert at.selectbox(key="less").value == "nothing"
    assert "never a patch" in prose(at)
    assert ("pools its patches" in prose(at)) == (name == "SigLIP")


def test_a_map_shows_what_heads_write_for_a_phrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = start_with_text_tower(monkeypatch, tmp_path, "CLIP")
    at.text_area(key="words").set_value("a cat\na dog").run()
    at.segmented_control(key="word_map").set_value("heads").run()
    at.selectbox(key="phrase").set_value(0).run()
    at.selectbox(key="less").set_value(1).run()
    model = vitviz.load_model(tmp_path / "mine").with_words(["a cat", "a dog"])
    photo = default_photo()
    parts = direct_logit_attribution(model, photo, np.array([1.0, -1.0]))
    by_token = parts.by_token[..., 1:].reshape(2, 2, 4, 4)
    assert_works(at)
    assert_allclose(drawn(at), by_token[1].sum(axis=0), atol=1e-5)
    assert f"it adds up to {parts.answer:.2f}" in prose(at)
    table = open_data(at, "classify").dataframe[-1].value
    wanted = by_token[1].sum(axis=0)
    assert_allclose(table["logit of a cat minus a dog"], wanted.ravel(), atol=1e-5)
    assert scale(at) == pytest.approx((-np.abs(wanted).max(), np.abs(wanted).max()), abs=1e-5)
    rest = parts.by_token[1, :, :1].sum()
    said = f"{wanted.sum():+.2g} from all patches together, {rest:+.2g} from the other tokens"
    assert said in prose(at)
    at.select_slider(key="layer").set_value(1).run()
    at.selectbox(key="head").set_value(2).run()
    assert_works(at)
    assert_allclose(drawn(at), by_token[0, 1], atol=1e-5)
    assert "What head 2 of layer 1 wrote" in prose(at)
    at.selectbox(key="less").set_value("nothing").run()
    alone = direct_logit_attribution(model, photo, 0).by_token[0, 1, 1:].reshape(4, 4)
    assert_allclose(drawn(at), alone, atol=1e-5)


def test_heads_that_are_pooled_by_attention_write_no_part_of_a_logit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = start_with_text_tower(monkeypatch, tmp_path, "SigLIP", "transformers")
    at.text_area(key="words").set_value("a cat\na dog").run()
    at.segmented_control(key="word_map").set_value("heads").run()
    assert not at.exception
    assert "does more than a linear layer" in at.warning[0].value


def test_phrases_that_cannot_be_compared_are_refused_and_stay_in_the_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = start_with_text_tower(monkeypatch, tmp_path, "CLIP")
    for text, words in (
        ("\n".join(map(str, range(51))), "51 phrases are too many: at most 50"),
        ("a cat\na cat", "got 'a cat' twice"),
    ):
        at.text_area(key="words").set_value(text).run()
        assert not at.exception
        assert words in at.error[0].value
        assert at.text_area(key="words").value == text
