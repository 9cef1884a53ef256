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
from vitviz import intervention, lessons
from vitviz.app.settings import NAMES
from vitviz.checkpoints import assets
from vitviz.language import speaking
from vitviz.lessons.looking import same_rows
from vitviz.text import PAGES
from vitviz.text.lessons import LESSONS, link, named, settings_of

STEPS = [
    (number, step)
    for number, lesson in enumerate(LESSONS, start=1)
    for step in range(1, len(lesson.steps) + 1)
]


def test_there_are_seven_lessons_of_two_to_four_steps() -> None:
    assert len(LESSONS) == 7
    assert {len(lesson.steps) for lesson in LESSONS} <= {2, 3, 4}


@pytest.mark.parametrize(("number", "step"), STEPS)
def test_a_link_holds_the_whole_view_and_names_its_step(number: int, step: int) -> None:
    parts = urlparse(link(number, step))
    held = {name: value for name, (value,) in parse_qs(parts.query).items()}
    assert parts.path in PAGES
    assert held == settings_of(number, step)
    assert set(held) <= set(NAMES)
    assert named(held["lesson"]) == (number, step)
    assert (assets() / "samples" / f"{held['picture']}.jpg").is_file()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3", (3, 1)),
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
    assert named(text) == numbers


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
        others = [other for _, other in pictures.values()]
        return lessons.found(number, model, image, acts, others=others)

    return sentences


def numbers(sentence: str) -> list[float]:
    return [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", sentence)]


def percent(share: float) -> str:
    digits = 0 if share >= 0.0995 else 1 if share >= 0.00995 else 2
    return f"{100 * share:.{digits}f} %"


def test_a_picture_on_its_path(said: Said, pictures: Any, model: vitviz.Model) -> None:
    _, acts = pictures["red_panda"]
    tokens, exchange, answer = said(1)
    assert numbers(tokens) == [16, 16, 256, 257, 192, 6]
    row = acts.attention(0)[0, 1 + 8 * 16 + 8]  # head 1, row 9 and column 9
    best = int(row[1:].argmax())
    assert numbers(exchange)[:6] == [1, 1, 9, 9, best // 16 + 1, best % 16 + 1]
    assert f"**{percent(row[1:].max())}**" in exchange
    module: Any = model.module
    lens = [
        module.forward_head(module.norm(torch.tensor(acts.tokens(depth))[None]))
        for depth in range(7)
    ]
    after = [each.softmax(dim=-1)[0].detach().numpy() for each in lens]
    right = int(after[6].argmax())
    assert [int(each.argmax()) == right for each in after] == [False] * 6 + [True]
    assert f"**lesser panda** only after the last, with {percent(after[6].max())}." in answer
    assert answer.endswith(f"After layer 5 it has {percent(after[5][right])}.")


def test_an_answer_that_comes_earlier(pictures: Any, model: vitviz.Model) -> None:
    image, acts = pictures["bison"]
    lens = intervention.logit_lens(model, acts)
    right = lens[-1].argmax()
    assert [bool(row.argmax() == right) for row in lens] == [False] * 5 + [True] * 2
    *_, answer = lessons.found(1, model, image, acts, others=[])
    then, last = percent(lens[5, right]), percent(lens[6, right])
    assert f"**bison** from layer 5 on: {then} there, and {last} after the last layer." in answer


def test_patches_and_positions(said: Said, model: vitviz.Model) -> None:
    with_positions, without, near = said(2)
    assert percent(0.958) in with_positions  # the answer itself, which the page shows
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
    reads, heads, columns = said(3)
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
    mean, token = acts.attention(4).mean(axis=0), 1 + 5 * 16 + 11
    away = np.arange(1, 257) != token
    row, column = mean[token, 1:], mean[1:, token]
    order = [place for place in np.argsort(-column) if away[place]][:3]
    assert "; ".join(f"row {at // 16 + 1}, column {at % 16 + 1}" for at in order) in columns
    assert f"**{np.corrcoef(row[away], column[away])[0, 1]:.2f}**" in columns


def test_local_or_global(said: Said, pictures: Any) -> None:
    layers, _, heads, every = said(4)
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
    assert f"head 1 is {100 * here[0, 0] / apart.mean():.0f} % of that of equal sharing" in heads
    others = [distances(acts) for _, acts in pictures.values()]
    least, most = min(each[0, 0] for each in others), max(each[0, 0] for each in others)
    assert (
        f"Over 6 pictures, the distance of that head lies between {least:.1f} and {most:.1f} px"
        in every
    )
    same = sum(int(each.argmin()) == int(here.argmin()) for each in others)
    assert f"**{same} of 6**" in every


def test_what_reaches_cls(said: Said, pictures: Any) -> None:
    shares, fusions, classes = said(5)
    _, acts = pictures["bison"]

    def rollout(layers: int, fuse: Any) -> np.ndarray:
        product = np.eye(257)
        for layer in range(layers):
            fused = fuse(acts.attention(layer).astype(np.float64), axis=0)
            fused /= fused.sum(axis=1, keepdims=True)
            product = (fused + np.eye(257)) / 2 @ product
        reached: np.ndarray = product[0]
        return reached

    final = rollout(6, np.mean)
    assert percent(rollout(1, np.mean)[1:].sum()) in shares
    assert f"**{percent(final[1:].sum())}**" in shares
    for fuse, words in ((np.max, "maximum"), (np.min, "minimum")):
        like = np.corrcoef(rollout(6, fuse)[1:], final[1:])[0, 1]
        assert re.search(rf"{words} (has a correlation|one) of {like:.2f}", fusions)
    assert "**bison**" in classes
    assert "**ox**" in classes


def test_what_would_change_the_answer(said: Said, pictures: Any, model: vitviz.Model) -> None:
    image, acts = pictures["goldfish"]
    block, marked, heads = said(6)
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
    muted = intervention.head_effects(model, image)
    assert muted.shape[:2] == (6, 6)
    assert {acts.output_names[top] for top in muted.argmax(axis=-1).flat} == {"goldfish"}
    assert {without_head(model, image, layer, 5 - layer) for layer in range(6)} == {"goldfish"}
    assert heads == "Muting any one of the 36 heads leaves the answer at **goldfish**."


def without_head(model: vitviz.Model, image: Image.Image, layer: int, head: int) -> str:
    muted = vitviz.capture(model, image, edits=[vitviz.MuteHeads([(layer, head)])])
    assert muted.probabilities is not None
    return muted.output_names[int(muted.probabilities.argmax())]


def test_a_head_without_which_the_answer_is_another(pictures: Any) -> None:
    model, image = watched(own_module(depth=2), (16, 24)), pictures["bison"][0]
    acts = vitviz.capture(model, image)
    assert acts.probabilities is not None
    *_, heads = lessons.found(6, model, image, acts, others=[])
    layer, head = (int(text) - 1 for text in re.findall(r"layer (\d), head (\d)", heads)[0])
    other = without_head(model, image, layer, head)
    answer = acts.output_names[int(acts.probabilities.argmax())]
    assert other != answer
    assert f"{answer} becomes **{other}**" in heads


def test_why_so_much_data(said: Said) -> None:
    _, accuracy, papers = said(7)
    record = json.loads((assets() / "curves" / "data_hunger.json").read_text(encoding="utf-8"))
    for network in ("vit", "cnn"):
        for share in (0.01, 1.0):
            runs = [r for r in record["runs"] if (r["network"], r["share"]) == (network, share)]
            assert f"{100 * np.mean([run['test_accuracy'] for run in runs]):.1f} %" in accuracy
    assert "ViT" in papers


def test_a_picture_of_ones_own_has_no_marked_patches(pictures: Any) -> None:
    model, image = watched(own_module(image_size=64, depth=1), (64, 64)), pictures["goldfish"][0]
    acts = vitviz.capture(model, image)
    own, other = (lessons.found(6, model, image, acts, own=own) for own in (True, False))
    assert [sentence for sentence in own if "210 marked patches" not in sentence] == [*other]
    assert len(own) == len(other) + 1


def test_a_model_without_a_head_or_positions_is_told_so(pictures: Any) -> None:
    image = pictures["duck"][0]
    for options in ({"num_classes": 0}, {"positions": "none"}):
        model = watched(own_module(image_size=16, **options), (16, 16))
        acts = vitviz.capture(model, image)
        for number in range(1, 8):
            sentences = lessons.found(number, model, image, acts)
            assert sentences
            assert not any("nan" in sentence for sentence in sentences)
    assert any(
        "no learned position" in sentence for sentence in lessons.found(2, model, image, acts)
    )


def test_a_model_of_another_kind_gets_one_sentence(pictures: Any) -> None:
    module = timm.create_model("pvt_v2_b0", embed_dims=(8, 16, 20, 32)).eval()
    model = watched(module, (64, 64))
    acts = vitviz.capture(model, pictures["duck"][0])
    for number in range(1, 7):
        (sentence,) = lessons.found(number, model, pictures["duck"][0], acts)
        assert "none of the models that this lesson is about" in sentence


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
            (sentence,) = lessons.found(number, model, pictures["duck"][0], acts)
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
        sentences = lessons.found(number, model, image, acts)
        assert not any("nan" in sentence for sentence in sentences)
        assert any("has no correlation" in sentence for sentence in sentences)


def test_what_is_bold_in_korean_is_closed(
    model: vitviz.Model, pictures: dict[str, tuple[Image.Image, vitviz.Activations]]
) -> None:
    """By CommonMark, stars after a sign and before a letter close nothing, and are shown."""
    with speaking("ko"):
        for number, lesson in enumerate(LESSONS, start=1):
            image, acts = pictures.get(lesson.picture, pictures["dog"])
            for sentence in lessons.found(number, model, image, acts):
                assert sentence.count("**") % 2 == 0
                for bold in re.finditer(r"\*\*[^*]+\*\*", sentence):
                    after = sentence[bold.end() : bold.end() + 1]
                    assert bold[0][-3].isalnum() or not after.isalpha(), sentence
