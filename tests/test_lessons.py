"""The lessons: every step has an address, and what they say of models and pictures of all kinds.

What they find on their own pictures is proved where the teacher's guide is, in test_docs.py.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest
import timm
import torch
from examples import own_module, remembered_experiments, timm_model, vit_of_transformers, watched
from PIL import Image
from timm.models.vision_transformer import ParallelScalingBlock

import vitviz
from vitviz.app import lessons
from vitviz.app.lessons import same_rows
from vitviz.app.pages import PAGES
from vitviz.app.settings import NAMES
from vitviz.common.files import assets
from vitviz.common.language import as_percent, patch_name, use_language
from vitviz.text.lessons import LESSONS, lesson_link, parse_step, settings_of

STEPS = [
    (number, step)
    for number, lesson in enumerate(LESSONS, start=1)
    for step in range(1, len(lesson.steps) + 1)
]


def test_seven_lessons_have_sixteen_steps_and_take_ten_minutes_at_most() -> None:
    assert len(LESSONS) == 7
    assert sum(len(lesson.required) for lesson in LESSONS) == 16
    assert [lesson.steps[: len(lesson.required)] for lesson in LESSONS] == [
        lesson.required for lesson in LESSONS
    ]
    minutes = [[step.minutes for step in lesson.required] for lesson in LESSONS]
    assert {each for lesson in minutes for each in lesson} <= {3, 4, 5}
    assert max(sum(lesson) + 1 for lesson in minutes) == 10  # one, to compare what was found


@pytest.mark.parametrize(("number", "step"), STEPS)
def test_a_link_holds_the_whole_view_and_names_its_step(number: int, step: int) -> None:
    parts = urlparse(lesson_link(number, step))
    held = {name: value for name, (value,) in parse_qs(parts.query).items()}
    assert parts.path in PAGES
    assert held == settings_of(number, step)
    assert set(held) <= set(NAMES)
    assert parse_step(held["lesson"]) == (number, step)
    assert (assets() / "samples" / f"{held['picture']}.jpg").is_file()


@pytest.mark.parametrize("text", ["", "3", "0", "3.0", "3.9", "8.1", "3.", "three", "-1", "3.٣"])
def test_a_text_that_names_no_step_is_none(text: str) -> None:
    assert parse_step(text) is None


# --- what was found ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> vitviz.Model:
    return vitviz.load_model("vitviz_things200")


@pytest.fixture(scope="module")
def pictures(model: vitviz.Model) -> dict[str, tuple[Image.Image, vitviz.Activations]]:
    """The sample of each lesson, and its capture."""
    found = {}
    for lesson in LESSONS[:6]:
        data = (assets() / "samples" / f"{lesson.picture}.jpg").read_bytes()
        image = vitviz.open_image(data)
        found[lesson.picture] = image, vitviz.capture(model, image)
    return found


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """What was computed for one language need not be computed for the other."""
    with remembered_experiments():
        yield


def test_a_block_has_its_place_where_blocks_have_no_square(pictures: Any) -> None:
    model, image = watched(own_module(image_size=(16, 48)), (16, 48)), pictures["goldfish"][0]
    acts = vitviz.capture(model, image)
    assert acts.probabilities is not None
    block, *_ = lessons.findings(6, model, image, acts, own=False)
    best = int(acts.probabilities.argmax())
    falls = vitviz.intervention.occlusion(model, image, target=best, block=4, removal="drop")
    col = int(falls[0, ::4].argmax())
    assert col > 0  # else rows and columns may be exchanged
    assert f"Of 3 blocks the one at row 1, column {col + 1} matters most" in block


def test_a_block_that_changes_nothing_does_not_matter_most(pictures: Any) -> None:
    module = own_module(image_size=16)
    head = module.get_submodule("head")  # the answer is the same for every picture
    torch.nn.init.zeros_(head.get_parameter("weight"))
    model = watched(module, (16, 16))
    acts = vitviz.capture(model, pictures["duck"][0])
    block, *_ = lessons.findings(6, model, pictures["duck"][0], acts, own=False)
    assert "Hiding any one of 4 blocks does not lower" in block
    assert "-0.0" not in block
    assert "Hiding 0 of them" in block


@pytest.mark.parametrize(("side", "blocks"), [(16, 4), (8, 4), (20, 4)])
def test_no_block_that_is_hidden_is_the_whole_grid(side: int, blocks: int, pictures: Any) -> None:
    """A model that pools its patches has no answer without any."""
    options = dict(img_size=side, patch_size=4, class_token=False, global_pool="avg")
    model = timm_model("test_vit", **options)
    acts = vitviz.capture(model, pictures["duck"][0])
    block, *_ = lessons.findings(6, model, pictures["duck"][0], acts, own=False)
    assert f" {blocks} blocks" in block


def test_the_equal_share_is_that_of_every_token_the_prefix_too(pictures: Any) -> None:
    model = watched(own_module(image_size=64, depth=1, registers=255), (64, 64))  # 256 + 256
    acts = vitviz.capture(model, pictures["goldfish"][0])
    attention = acts.attention(0)
    look, *_ = lessons.findings(3, model, pictures["goldfish"][0], acts)
    (times,) = re.findall(r"\*\*, (\d+) times the equal share", look)
    most = attention[:, 0, 256:].mean(axis=0).max()
    assert int(times) == round(512 * most) != round(256 * most)
    exchange = lessons.findings(1, model, pictures["goldfish"][0], acts)[1]
    (times,) = re.findall(r"\*\*, (\d+) times its equal share", exchange)
    most = attention[3, 256 + 2 * 16 + 2, 256:].max()  # head 4, row 3 and column 3
    assert int(times) == round(512 * most) != round(256 * most)


def test_what_looks_is_named_where_the_head_reads_cls_and_the_patches(pictures: Any) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32)
    config = transformers.Dinov2Config(patch_size=8, num_labels=3, **sizes)
    model = watched(transformers.Dinov2ForImageClassification(config).eval(), (32, 32))
    acts, image = vitviz.capture(model, pictures["duck"][0]), pictures["duck"][0]
    assert acts.read_tokens == ("cls", "patches")
    patches = acts.attention(1)[:, 1:, 1:].mean(axis=(0, 1))
    best = patch_name(*divmod(int(patches.argmax()), 4))
    look, *_ = lessons.findings(3, model, image, acts)
    assert f"the mean of the patches looks most at {best}: " in look
    reach, *_ = lessons.findings(5, model, image, acts)
    assert "of what reaches the mean of the patches up to layer 1" in reach


def test_one_head_is_not_compared_with_itself(pictures: Any) -> None:
    for heads in (1, 2):
        model = watched(own_module(image_size=16, num_heads=heads), (16, 16))
        acts = vitviz.capture(model, pictures["duck"][0])
        sentences = lessons.findings(3, model, pictures["duck"][0], acts)
        assert ("wherever the query is" in " ".join(sentences)) == (heads == 2)


@pytest.mark.parametrize(
    ("far", "near", "said"),
    [(0, 0, "every head looks"), (0, 1, "**Head 2** follows"), (1, 1, "every head follows")],
)
def test_no_head_follows_the_query_where_all_rows_are_alike(
    far: int, near: int, said: str, pictures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none looks the same everywhere where all attend to themselves."""
    model, image = watched(own_module(image_size=16, num_heads=2), (16, 16)), pictures["duck"][0]
    acts = vitviz.capture(model, image)
    rows = np.stack([np.full((17, 17), 1 / 17), np.eye(17)])[[far, near]]
    monkeypatch.setattr(vitviz.Activations, "attention", lambda acts, layer: rows)
    _, same = lessons.findings(3, model, image, acts)
    assert said in same


def test_random_heads_do_not_follow_the_query(pictures: Any) -> None:
    model = vitviz.load_model("vitviz_things200", pretrained=False)
    acts = vitviz.capture(model, pictures["duck"][0])
    _, same = lessons.findings(3, model, pictures["duck"][0], acts)
    least = same_rows(acts.attention(0)[:, 1:, 1:]).min()
    assert least > 0.95
    assert f"wherever the query is: at least {as_percent(least)} of a row" in same


def test_one_output_has_no_other_map(pictures: Any) -> None:
    """As of a yes or no, whose probability is one number."""
    model, image = watched(own_module(image_size=16, num_classes=1), (16, 16)), pictures["duck"][0]
    model.answers = "labels"
    acts = vitviz.capture(model, image)
    assert acts.probabilities is not None
    assert len(acts.probabilities) == 1
    assert "has one output" in lessons.findings(5, model, image, acts)[-1]


def test_where_attention_and_mlp_run_side_by_side_the_rest_is_found(pictures: Any) -> None:
    """Only the share of the residual connection is unknown there."""
    sizes: dict[str, Any] = dict(img_size=32, depth=1, embed_dim=32, num_heads=2, num_classes=3)
    module = timm.create_model(
        "vit_tiny_patch16_224", patch_size=8, block_fn=ParallelScalingBlock, **sizes
    )
    model, image = watched(module.eval(), (32, 32)), pictures["duck"][0]
    rollout, maps = lessons.findings(5, model, image, vitviz.capture(model, image))
    assert "of what reaches CLS up to layer 1 comes from patches" in rollout
    assert "both run side by side" in rollout
    assert "class-specific maps" in maps


def test_a_picture_of_ones_own_has_no_marked_patches(pictures: Any) -> None:
    model, image = watched(own_module(image_size=64, depth=1), (64, 64)), pictures["goldfish"][0]
    acts = vitviz.capture(model, image)
    own, other = (lessons.findings(6, model, image, acts, own=own) for own in (True, False))
    assert [sentence for sentence in own if "210 marked patches" not in sentence] == [*other]
    assert len(own) == len(other) + 1


def test_a_model_without_a_head_or_positions_is_told_so(pictures: Any) -> None:
    image = pictures["duck"][0]
    for options in ({"num_classes": 0}, {"positions": "none"}):
        model = watched(own_module(image_size=16, **options), (16, 16))
        acts = vitviz.capture(model, image)
        for number in range(1, 8):
            sentences = lessons.findings(number, model, image, acts)
            assert sentences
            assert not any("nan" in sentence for sentence in sentences)
    assert any(
        "no learned position" in sentence for sentence in lessons.findings(2, model, image, acts)
    )


def test_position_embeddings_of_another_grid_are_not_compared(pictures: Any) -> None:
    module, image = vit_of_transformers(image_size=48, patch_size=8), pictures["duck"][0]
    for size, compared in (((48, 48), True), ((32, 40), False)):
        model = watched(module, size)
        said = " ".join(lessons.findings(2, model, image, vitviz.capture(model, image)))
        assert ("a grid other than 4 x 5" in said) != compared
        assert ("Neighbouring positions" in said) == compared


def test_a_model_of_another_kind_gets_one_sentence(pictures: Any) -> None:
    module = timm.create_model("pvt_v2_b0", embed_dims=(8, 16, 20, 32)).eval()
    model = watched(module, (64, 64))
    acts = vitviz.capture(model, pictures["duck"][0])
    for number in range(1, 7):
        (sentence,) = lessons.findings(number, model, pictures["duck"][0], acts)
        assert "not about models such as" in sentence


def test_rows_that_are_all_the_same_agree_and_others_do_not() -> None:
    even, own = np.full((9, 9), 1 / 9), np.eye(9)
    np.testing.assert_allclose(same_rows(np.stack([even, own])), [1, 1 / 9])
    empty = own.copy()
    empty[4:] = 0  # queries that attend to no patch
    np.testing.assert_allclose(same_rows(empty[None]), [1 / 4])


def test_few_patches_are_refused(pictures: Any) -> None:
    for size in ((4, 4), (4, 8)):
        model = watched(own_module(image_size=size), size)
        acts = vitviz.capture(model, pictures["duck"][0])
        for number in range(1, 7):
            (sentence,) = lessons.findings(number, model, pictures["duck"][0], acts)
            assert f"has {acts.grid[1]} patches" in sentence


def test_maps_without_differences_have_no_correlation_and_that_is_said(pictures: Any) -> None:
    """Attention is uniform where the queries are 0, and so are all maps that are made of it."""
    module = own_module()
    for name, parameter in module.named_parameters():
        if "qkv" in name:
            torch.nn.init.zeros_(parameter)
    model, image = watched(module, (16, 24)), pictures["duck"][0]
    acts = vitviz.capture(model, image)
    for number in (3, 5):
        assert not any("nan" in each for each in lessons.findings(number, model, image, acts))
    assert any("has no correlation" in each for each in lessons.findings(5, model, image, acts))


def test_what_is_bold_in_korean_is_closed(
    model: vitviz.Model, pictures: dict[str, tuple[Image.Image, vitviz.Activations]]
) -> None:
    """By CommonMark, stars after a sign and before a letter close nothing, and are shown."""
    with use_language("ko"):
        for number, lesson in enumerate(LESSONS, start=1):
            image, acts = pictures.get(lesson.picture, pictures["dog"])
            for sentence in lessons.findings(number, model, image, acts):
                assert sentence.count("**") % 2 == 0
                for bold in re.finditer(r"\*\*[^*]+\*\*", sentence):
                    after = sentence[bold.end() : bold.end() + 1]
                    assert bold[0][-3].isalnum() or not after.isalpha(), sentence
