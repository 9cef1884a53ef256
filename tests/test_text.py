"""The strings of the lesson: every page has its file, every file its page, nothing is missing."""

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import narrow_mixer, picture, randomise, timm_module, watched
from timm.models import mlp_mixer

from vitviz import capture, load_profile, text
from vitviz.app.pages import PAGES
from vitviz.common.files import assets
from vitviz.model import Model
from vitviz.model.families import family_of
from vitviz.text import page_text
from vitviz.text.families import CARDS
from vitviz.web.anatomy_map.message import build_cards
from vitviz.web.anatomy_map.numbers import compute_anatomy
from vitviz.web.traits import traits as traits_of
from vitviz.zoo import catalogue
from vitviz.zoo.architectures import build_outline, preprocessing_of

FOLDER = Path(text.__file__).parent / "en"
README = Path(__file__).parents[1] / "README.md"
SECTIONS = ["In a sentence", "Equation", "What you see", "Try this"]
BOXES = ["What the papers found", "Often said, and wrong"]  # which not every page has
MODELS: dict[str, frozenset[str]] = {
    "ViT": frozenset(("global", "all-to-all", "prefix", "cls", "classes", "trained", "shipped")),
    "ViT that began with mimetic initialisation": frozenset(
        ("global", "all-to-all", "prefix", "cls", "classes", "trained", "shipped", "mimetic")
    ),
    "ViT whose added vectors are counted": frozenset(
        ("global", "all-to-all", "prefix", "cls", "classes", "trained", "shipped", "carried")
    ),
    "random ViT": frozenset(("global", "all-to-all", "prefix", "cls", "classes")),
    "no CLS": frozenset(("global", "all-to-all", "trained")),
    "registers": frozenset(("global", "all-to-all", "prefix", "rotary", "trained")),
    "BEiT": frozenset(("global", "all-to-all", "prefix", "relative bias", "classes", "trained")),
    "Swin": frozenset(("window", "relative bias", "classes", "trained")),
    "MaxViT": frozenset(("window", "grid", "relative bias", "convolutions", "classes")),
    "PVT": frozenset(("pooled", "global", "overlap", "convolutions", "classes")),
    "CaiT": frozenset(("global", "class", "prefix", "classes", "trained")),
    "Mixer": frozenset(("mixing", "classes", "trained")),
    "CLIP": frozenset(("global", "all-to-all", "prefix", "cls", "classes", "words", "trained")),
    "SigLIP": frozenset(("global", "all-to-all", "classes", "words", "sigmoid", "trained")),
    "random Mixer": frozenset(("mixing", "classes")),
    "ResMLP Mixer": frozenset(("mixing", "linear mixing", "classes", "trained")),
    "gMLP Mixer": frozenset(("mixing", "gated", "classes", "trained")),
    "hybrid": frozenset(
        ("global", "all-to-all", "convolutions", "prefix", "cls", "classes", "trained")
    ),
}
WHOLE = """# Title

Who?

## In a sentence

A map.

## Equation

a = b

## What you see

A figure.

## Try this

Look.
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., text.PageText]:
    """Reads the given content as if it were the file of a page."""
    monkeypatch.setattr(text, "__file__", str(tmp_path / "__init__.py"))

    def read(content: str, *traits: frozenset[str]) -> text.PageText:
        (tmp_path / "en").mkdir(exist_ok=True)
        (tmp_path / "en" / "page.md").write_text(content, encoding="utf-8")
        text._page_text.cache_clear()
        return page_text("page", *traits)

    return read


@pytest.mark.parametrize("page", PAGES)
def test_a_file_has_a_title_a_question_and_all_sections_in_order(page: str) -> None:
    content = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    names = re.findall(r"^## (.+)$", content, re.MULTILINE)
    assert names == SECTIONS + [name for name in BOXES if name in names]
    words = page_text(page)
    assert re.fullmatch(r"\w[\w ]*", words.title)
    assert re.fullmatch(r"\w[^?\n]*\?", words.question)


@pytest.mark.parametrize("page", PAGES)
def test_no_section_is_empty_for_any_model(page: str) -> None:
    for model, traits in MODELS.items():
        words = page_text(page, traits)
        for part in (words.lead, words.equation, words.see, words.try_this):
            assert part, model
            assert part == part.strip(), model
        for part in (*vars(words).values(),):
            assert not re.search(r"^#|^\[|\[not ", part, re.MULTILINE), model


@pytest.mark.parametrize("page", PAGES)
def test_an_equation_is_one_balanced_piece_of_latex(page: str) -> None:
    for equation in {page_text(page, traits).equation for traits in MODELS.values()}:
        assert "\n" not in equation
        assert "$" not in equation
        assert equation.count("{") == equation.count("}")
        assert equation.count(r"\left") == equation.count(r"\right")


@pytest.mark.parametrize("page", PAGES)
def test_prose_ends_its_sentences_and_holds_no_markup_that_streamlit_would_obey(page: str) -> None:
    for words in {page_text(page, traits) for traits in MODELS.values()}:
        for prose in (words.lead, words.see, words.try_this, words.papers, words.wrong):
            assert re.search(r"(\A|[.?][*_]*)\Z", prose)
            assert not re.search(r"<\w|&\w+;|\$|:\w+\[|!\[", prose)
            assert prose.count("**") % 2 == 0
            assert prose.replace("**", "").count("*") % 2 == 0
        for box in filter(None, (words.papers, words.wrong)):
            assert all(item.startswith("- ") for item in box.split("\n\n"))


def test_a_page_is_read_by_sections_and_paragraphs_are_shown_where_their_conditions_hold(
    written: Callable[..., text.PageText],
) -> None:
    read = written(WHOLE)
    assert read == text.PageText("Title", "Who?", "A map.", "a = b", "A figure.", "Look.", "", "")
    content = WHOLE.replace("A figure.", "[window, not trained] A.\n\nB.\n\n[window] [C].")
    assert written(content).see == "B."
    assert written(content, frozenset(("window",))).see == "A. B. [C]."
    assert written(content, frozenset(("window", "trained"))).see == "B. [C]."


def test_a_file_with_an_unknown_condition_or_without_a_section_is_refused(
    written: Callable[..., text.PageText],
) -> None:
    with pytest.raises(ValueError, match=r"trait .windows. in a caption condition"):
        written(WHOLE.replace("A figure.", "[not windows] A figure."))
    with pytest.raises(ValueError, match=r"page\.md has no section 'Try this'"):
        written(WHOLE.replace("## Try this\n", "## Elsewhere\n"))


def test_every_condition_of_the_files_is_a_trait_and_can_be_true_and_false() -> None:
    asked = set()
    for path in FOLDER.glob("*.md"):
        for found in re.findall(r"^\[([^]]*)\] ", path.read_text(encoding="utf-8"), re.MULTILINE):
            asked |= {each.removeprefix("not ") for each in found.split(", ")}
    assert asked == text.TRAITS
    for trait in asked:
        assert {trait in traits for traits in MODELS.values()} == {True, False}


# --- what is said is true of the model -----------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_only_models_with_attention_are_told_of_it(model: str) -> None:
    for page in ("attention", "classify", "filters", "positions"):  # what a Mixer has
        words = page_text(page, MODELS[model])
        told = " ".join((words.equation, words.see, words.try_this))
        if "Mixer" in model:
            assert not re.search(r"q\\,k|quer(y|ies)\b|\bkeys?\b|\bheads\b", told), page
    equation = page_text("attention", MODELS[model]).equation
    assert ("softmax" in equation) == ("Mixer" not in model)
    assert ("B_h" in equation) == ("relative bias" in MODELS[model])


@pytest.mark.parametrize("model", MODELS)
def test_where_information_moves_is_said_of_the_model_on_screen(model: str) -> None:
    """PVT, CoAtNet, MaxViT and Swin move it by more than attention."""
    traits = MODELS[model]
    said = [page_text(page, traits) for page in ("anatomy", "attention")]
    everywhere = "attention is the only step" in " ".join(said[0].see.split())
    assert everywhere == ("all-to-all" in traits)
    assert ("Only attention moves" in " ".join(said[1].wrong.split())) == everywhere
    assert ("the merging of patches" in said[1].wrong.replace("\n", " ")) == (
        not everywhere and "mixing" not in traits
    )
    dropped = page_text("classify", traits).see.replace("\n", " ")
    alone = traits & {"all-to-all", "relative bias", "rotary", "convolutions"} == {"all-to-all"}
    assert ("leaves nothing behind" in dropped) == (alone and "classes" in traits)
    assert ("leaves traces" in dropped) == ({"all-to-all", "convolutions"} <= traits)


SMALL_MODULES: dict[str, tuple[Callable[[], Any], str]] = {
    "MLP-Mixer": (narrow_mixer, "sigma"),
    "ResMLP": (
        lambda: narrow_mixer(
            block_layer=mlp_mixer.ResBlock, mlp_ratio=4, norm_layer=mlp_mixer.Affine
        ),
        r"W\,A(X)",
    ),
    "gMLP": (
        lambda: narrow_mixer(
            block_layer=mlp_mixer.SpatialGatingBlock, mlp_ratio=4, mlp_layer=mlp_mixer.GatedMlp
        ),
        r"Z \odot",
    ),
    "ViT": (lambda: timm_module("vit_tiny_patch16_224", depth=1), "softmax"),
    "hybrid": (lambda: timm_module("vit_small_r26_s32_224", depth=1), "softmax"),
}


@pytest.mark.parametrize("name", SMALL_MODULES)
def test_the_words_are_those_of_the_module(name: str) -> None:
    make, equation = SMALL_MODULES[name]
    module = make()
    randomise(module)
    model = watched(module, (224, 224))
    traits = traits_of(model, capture(model, picture()))
    assert equation in page_text("attention", traits).equation
    words = page_text("classify", traits).see.replace("\n", " ")
    assert ("leaves nothing behind" in words) == (name == "ViT")
    assert ("leaves traces" in words) == (name == "hybrid")
    mixer = boxes_of_steps(model)
    assert ("MLP across the patches" in mixer) == (name == "MLP-Mixer")
    assert ("one linear layer across the patches" in mixer) == (name == "ResMLP")
    assert ("with a gate in its middle" in mixer) == (name == "gMLP")


def boxes_of_steps(model: Model) -> str:
    acts = capture(model, picture())
    return " ".join(
        card["say"] for card in build_cards(compute_anatomy(model, picture(), acts, 0, None))
    )


@pytest.mark.parametrize("model", [name for name, one in MODELS.items() if "trained" not in one])
@pytest.mark.parametrize("page", [page for page in PAGES if PAGES[page].shows_model])
def test_random_weights_are_not_said_to_be_trained(page: str, model: str) -> None:
    words = page_text(page, MODELS[model])
    told = " ".join((words.see, words.try_this))
    told = re.sub(r"the \*trained\* weights|own learned embeddings, where it has them", "", told)
    for said in re.findall(r"[^.?:]*\b(?:trained|learn\w*|[Tt]raining)\b[^.?:]*", told):
        assert re.search(r"\bno\b|nothing|learned bias", said), said


@pytest.mark.parametrize("model", MODELS)
def test_shuffled_patches_are_told_of_where_they_are_shown(model: str) -> None:
    """As `shuffle_patches` can: where nothing but the embedding tells the place of a patch."""
    traits = MODELS[model]
    shows = traits & {"all-to-all", "relative bias", "rotary", "convolutions"} == {"all-to-all"}
    words = page_text("positions", traits)
    assert ("shuffled" in words.see) == shows
    assert ("shuffled" in words.try_this) == shows


@pytest.mark.parametrize("model", MODELS)
def test_panels_that_are_not_there_are_not_explained(model: str) -> None:
    """Of Distance, of which other families have the dots alone, and of Classify."""
    everywhere = "all-to-all" in MODELS[model]
    distance, classify = page_text("distance", MODELS[model]), page_text("classify", MODELS[model])
    assert ("**On the photo:**" in distance.see) == everywhere
    assert ("all samples" in distance.try_this) == everywhere
    assert ("As commonly implemented" in distance.see) == (everywhere and "prefix" in MODELS[model])
    edits = everywhere and "classes" in MODELS[model]  # values are shown alone
    assert ("mute" in classify.see) == edits
    assert ("filled with" in classify.see) == ("classes" in MODELS[model])
    assert ("Opposite" in classify.try_this) == edits
    assert ("depend" in classify.try_this) == ("classes" in MODELS[model])
    assert ("**Deletion**" in page_text("explain", MODELS[model]).see) == (
        "classes" in MODELS[model]
    )
    assert ("CLS" in page_text("attention", MODELS[model]).try_this) == ("cls" in MODELS[model])
    lies = "lies on the main object" in page_text("tokens", MODELS[model]).see  # as measured
    assert lies == ("shipped" in MODELS[model])
    changed = "What training changed" in page_text("filters", MODELS[model]).see
    assert changed == ("shipped" in MODELS[model])


# --- what is said is so -------------------------------------------------------------------------


def test_heads_of_one_number_are_as_alike_as_the_file_says() -> None:
    """Of two models that began with the same mimetic initialisation, within each layer."""
    profiles = [load_profile(path) for path in sorted((assets() / "profiles").glob("*.npz"))]
    alike = [
        np.corrcoef(one, other)[0, 1]
        for pair in combinations(profiles, 2)
        for one, other in zip(*(each.mean("distance") for each in pair), strict=True)
    ]
    written = (FOLDER / "compare.md").read_text(encoding="utf-8")
    assert f"correlate by {min(alike):.2f} to {max(alike):.2f}" in " ".join(written.split())


def test_the_mean_distance_grows_with_depth_in_as_many_models_as_the_file_says() -> None:
    profiles = map(load_profile, sorted((assets() / "profiles").glob("*.npz")))
    grows = {one.about["model"]: one.mean("distance").mean(axis=1) for one in profiles}
    others = [name for name, means in grows.items() if not (np.diff(means) > 0).all()]
    assert (len(grows), others) == (4, ["vitviz_things200_p16"])
    written = " ".join((FOLDER / "distance.md").read_text(encoding="utf-8").split())
    assert "in three of the four models that come with vitviz, and not in *vitviz" in written


@pytest.fixture
def readme() -> str:
    return " ".join(README.read_text(encoding="utf-8").split())


def test_the_readme_promises_as_many_moments_as_were_recorded(readme: str) -> None:
    records = sorted((assets() / "curves").glob("*.npz"))
    for record in records:
        with np.load(record) as arrays:
            assert f"at {len(arrays['epoch'])} moments" in readme
    assert records
    assert "any moment" not in readme


def test_the_readme_promises_no_more_pages_than_there_are(readme: str) -> None:
    table = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]*) \| ([^|]*\?) \|", table, re.MULTILINE)
    pages = [(page.title, page_text(page.name).question) for page in PAGES.values()]
    assert rows
    assert rows == [page for page in pages if page in rows]


def test_the_docs_name_the_families_of_the_menu() -> None:
    page = " ".join((README.parent / "docs" / "weights.md").read_text(encoding="utf-8").split())
    (named,) = re.findall(r"many families: ([^:]*), each with trained", page)
    families = {entry.family for entry in catalogue()}
    words = {"hybrids": "Hybrid", "relative positions": "RelPos ViT"}
    found = {words.get(name, name) for name in re.split(", | and ", named)}
    assert found == families


@pytest.mark.parametrize("name", [one.name for one in catalogue() if one.family == "DeiT"])
def test_the_distillation_token_is_said_of_distilled_models_alone(name: str) -> None:
    outline = build_outline(name, {})
    size = preprocessing_of(outline, None).input_size
    prefix = family_of(outline).layers(outline, size)[0].prefix
    assert ("dist" in prefix) == ("distilled" in name)
    first, second = CARDS["DeiT"].differs.split(". ")[:2]
    assert "token" not in first
    assert second.startswith("The distilled models, such as the one on the picture,")
    others = [card.differs + card.omissions for family, card in CARDS.items() if family != "DeiT"]
    assert not any("DIST" in words for words in others)
