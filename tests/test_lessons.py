"""The lessons: every step has an address, and what each found is what the numbers say."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest
import timm
import torch
from examples import own_module, remembered_experiments, watched
from PIL import Image

import vitviz
from vitviz.app import lessons
from vitviz.app.lessons import same_rows
from vitviz.app.pages import PAGES
from vitviz.app.settings import NAMES
from vitviz.common import SMALL_MODEL
from vitviz.common.files import assets
from vitviz.common.language import use_language
from vitviz.intervention.equivariance import shuffle_patches
from vitviz.text.lessons import LESSONS, lesson_link, parse_step, settings_of
from vitviz.zoo import TOYS

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


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3", None),
        ("3.2", (3, 2)),
        ("0", None),
        ("8", None),
        ("3.0", None),
        ("3.9", None),
        ("3.", None),
        ("three", None),
        ("-1", None),
        ("٣", None),  # a digit, but not one that a link has
        ("", None),
    ],
)
def test_a_text_names_a_lesson_and_a_step_or_none(
    text: str, numbers: tuple[int, int] | None
) -> None:
    assert parse_step(text) == numbers


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


Said = Callable[[int], tuple[str, ...]]


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """What was computed for one language need not be computed for the other."""
    with remembered_experiments():
        yield


@pytest.fixture(scope="module")
def said(model: vitviz.Model, pictures: dict[str, tuple[Image.Image, vitviz.Activations]]) -> Said:
    """What a lesson found, for all tests once."""

    @cache
    def sentences(number: int) -> tuple[str, ...]:
        image, acts = pictures.get(LESSONS[number - 1].picture, pictures["dog"])
        return lessons.findings(number, model, image, acts)

    return sentences


def numbers(sentence: str) -> list[float]:
    return [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", sentence)]


def percent(share: float) -> str:
    digits = 0 if share >= 0.0995 else 1 if share >= 0.00995 else 2
    return f"{100 * share:.{digits}f} %"


def test_a_picture_on_its_path(pictures: Any) -> None:
    image, _ = pictures["red_panda"]
    small = vitviz.load_model(SMALL_MODEL)
    acts = vitviz.capture(small, image)
    tokens, exchange = lessons.findings(1, small, image, acts)
    assert numbers(tokens) == [4, 4, 16, 17, 192, 6]
    row = acts.attention(0)[3, 1 + 2 * 4 + 2]  # head 4, row 3 and column 3
    best = int(row[1:].argmax())
    assert numbers(exchange)[:6] == [1, 4, 3, 3, best // 4 + 1, best % 4 + 1]
    assert f"**{percent(row[1:].max())}**" in exchange


def test_patches_and_positions(said: Said, model: vitviz.Model, pictures: Any) -> None:
    response, with_positions, without, near = said(2)
    kernel = model.patch_kernel
    assert kernel is not None
    flat = kernel.reshape(len(kernel), -1)
    tile = np.linalg.svd(flat - flat.mean(axis=0))[2][3]
    tile *= np.sign(tile[np.abs(tile).argmax()])
    pixels = model.preprocess(pictures["triumphal_arch"][0]).numpy().reshape(3, 16, 4, 16, 4)
    products = np.einsum("kiyjx,kyx->ij", pixels, tile.reshape(3, 4, 4))
    for at in (products.argmax(), products.argmin()):
        words = f"row {at // 16 + 1}, column {at % 16 + 1} (**{products.flat[at]:+.2f}**)"
        assert words in response
    before, after = shuffle_patches(model, pictures["triumphal_arch"][0], seed=1).outputs[0]
    best = int(before.argmax())
    shares = f"goes from {percent(before[best])} to {percent(after[best])};"
    assert shares in with_positions
    assert f"({percent(after.max())})" in with_positions
    assert "E_pos" in without
    (change,) = re.findall(r"\*\*(\d)e-(\d\d)\*\*", without)
    assert int(change[1]) >= 7
    table = model.position_embedding
    assert table is not None
    unit = table[-256:] / np.linalg.norm(table[-256:], axis=1, keepdims=True)
    grid = (unit @ unit.T).reshape(16, 16, 16, 16)
    rows = np.mean([grid[r, c, r, c + 1] for r in range(16) for c in range(15)])
    cols = np.mean([grid[r, c, r + 1, c] for r in range(15) for c in range(16)])
    assert f"**{(rows + cols) / 2:.2f}**" in near
    assert "put in and not learned" in near


def test_who_looks_where(said: Said, pictures: Any) -> None:
    _, acts = pictures["duck"]
    reads, heads = said(3)
    cls = acts.attention(5).mean(axis=0)[0, 1:]
    best = int(cls.argmax())
    assert f"row {best // 16 + 1}, column {best % 16 + 1}: **{percent(cls.max())}**" in reads
    for layer, words in ((5, "goes to {} of 256"), (0, "layer 1 that takes {}.")):
        ordered = np.sort(acts.attention(layer).mean(axis=0)[0, 1:])[::-1]
        half = next(n for n in range(1, 257) if ordered[:n].sum() >= ordered.sum() / 2)
        assert words.format(half) in reads
    apart = []
    for head in acts.attention(0)[:, 1:, 1:]:
        rows = head / head.sum(axis=1, keepdims=True)
        apart.append(1 - np.abs(rows - rows.mean(axis=0)).sum(axis=1).mean() / 2)
    assert f"**head {np.argmax(apart) + 1}** looks much the same" in heads
    assert f"**Head {np.argmin(apart) + 1}** follows" in heads
    assert percent(max(apart)) in heads
    assert percent(min(apart)) in heads


def test_the_map_lies_on_the_cat_and_the_answer_is_another(model: vitviz.Model) -> None:
    settings = settings_of(3, 3)
    image = vitviz.open_image((assets() / "samples" / f"{settings['picture']}.jpg").read_bytes())
    acts = vitviz.capture(model, image)
    assert acts.logits is not None
    assert acts.labels is not None
    answer = int(acts.logits.argmax())
    assert acts.labels[answer] == "remote control"
    assert any("cat" in label.split() for label in acts.labels)  # it knows them
    found = vitviz.inspection.measurements(acts)
    maps = {
        "relevance": vitviz.attribution.relevance(model, image, answer),
        "rollout": found.rollout[1:].reshape(acts.grid),
        "last": found.query_attention[-1].mean(axis=0),
    }
    assert set(settings["maps"].split()) == set(maps)
    for values in maps.values():  # a tenth of the patches; cat and ball are in half of the rows
        rows, cols = np.divmod(np.argsort(-values, axis=None)[:26], 16)
        assert ((rows >= 3) & (rows <= 11) & (cols >= 2)).mean() > 0.9


def test_local_or_global(said: Said, pictures: Any) -> None:
    layers, _, even, families = said(4)
    whole, windows = families.split(" and only ")
    assert [name for name in TOYS if f" {name}" in windows] == ["Swin", "MaxViT"]
    assert [name for name in TOYS if f" {name}" in whole] == [
        name for name in TOYS if name not in ("Swin", "MaxViT")
    ]
    place = np.stack(np.divmod(np.arange(256), 16), axis=1)
    apart = 4 * np.linalg.norm(place[:, None] - place, axis=-1)

    def distances(acts: vitviz.Activations) -> np.ndarray:
        found = []
        for layer in range(6):
            rows = acts.attention(layer)[:, 1:, 1:].astype(np.float64)
            found.append((rows / rows.sum(axis=2, keepdims=True) * apart).sum(axis=2).mean(axis=1))
        return np.array(found)

    here = distances(pictures["dog"][1])
    means = here.mean(axis=1)
    assert f"**layer {means.argmin() + 1}**, whose heads have" in layers
    assert f"distance of {means.min():.1f} px" in layers
    assert f"layer {means.argmax() + 1}, with {means.max():.1f} px" in layers
    layer, head = divmod(int(np.abs(here - apart.mean()).argmin()), 6)
    assert f"layer {layer + 1}, head {head + 1}, with {here[layer, head]:.1f} px" in even


def test_what_reaches_cls(said: Said, pictures: Any, model: vitviz.Model) -> None:
    shares, classes = said(5)
    image, acts = pictures["bison"]

    def rollout(layers: int) -> np.ndarray:
        product = np.eye(257)
        for layer in range(layers):
            fused = acts.attention(layer).astype(np.float64).mean(axis=0)
            product = (fused + np.eye(257)) / 2 @ product
        reached: np.ndarray = product[0]
        return reached

    final = rollout(6)
    assert percent(rollout(1)[1:].sum()) in shares
    assert f"**{percent(final[1:].sum())}**" in shares
    assert "half of what every layer passes on from the residual connection (r = 0.5)" in shares
    kept = [np.linalg.norm(acts.tokens(layer)[0]) for layer in range(6)]
    added = [
        np.linalg.norm(acts.tokens_after_attention(layer)[0] - acts.tokens(layer)[0])
        for layer in range(6)
    ]
    own = [stream / (stream + more) for stream, more in zip(kept, added, strict=True)]
    assert f"own r is {min(own):.2f} to {max(own):.2f}" in shares
    assert "**bison**" in classes
    assert "**ox**" in classes
    best = [int(index) for index in np.argsort(-acts.probabilities)[:2]]
    one, other = (vitviz.attribution.relevance(model, image, index).ravel() for index in best)
    alike, with_rollout = (np.corrcoef(one, each)[0, 1] for each in (other, final[1:]))
    assert f"have a correlation of {alike:.2f} with each other" in classes
    assert f"that of bison has {with_rollout:.2f} with rollout" in classes


def test_what_would_change_the_answer(said: Said, pictures: Any, model: vitviz.Model) -> None:
    image, acts = pictures["goldfish"]
    block, marked = said(6)
    answer = int(acts.probabilities.argmax())

    def without(mask: np.ndarray) -> np.ndarray:
        edited = vitviz.capture(model, image, edits=[vitviz.DropPatches(mask)])
        assert edited.probabilities is not None
        return edited.probabilities

    fish = np.zeros((16, 16), bool)
    fish[1:15, :15] = True
    assert f"goldfish has {percent(without(fish)[answer])}" in marked
    assert f"goldfish has **{percent(without(~fish)[answer])}**" in marked
    row, col = (int(text) - 1 for text in re.findall(r"row (\d), column (\d)", block)[0])
    hidden = np.zeros((16, 16), bool)
    hidden[4 * row : 4 * row + 4, 4 * col : 4 * col + 4] = True
    change = 100 * (without(hidden)[answer] - acts.probabilities[answer])
    assert f"by {change:+.1f} percentage points" in block
    falls = vitviz.intervention.occlusion(model, image, target=answer, block=4, removal="drop")
    raises = int((falls[::4, ::4] <= -0.005).sum())
    assert f"Hiding {raises} of the others raises it" in block


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


def test_why_so_much_data(said: Said) -> None:
    _, accuracy, papers = said(7)
    record = json.loads((assets() / "curves" / "data_hunger.json").read_text(encoding="utf-8"))
    for network in ("vit", "cnn"):
        for share in (0.01, 1.0):
            runs = [r for r in record["runs"] if (r["network"], r["share"]) == (network, share)]
            assert f"{100 * np.mean([run['test_accuracy'] for run in runs]):.1f} %" in accuracy
    assert "with 9,000,000 pictures and better with 90,000,000, which is 2,000 times" in papers


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
