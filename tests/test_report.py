"""What a report says of each figure, and of weights that are random."""

import json
import re
from html import escape, unescape
from pathlib import Path

import pytest
from examples import own_model, own_module, picture, vit_of_transformers, watched

from vitviz import Model, app, capture, plots
from vitviz.app.pages import PAGES
from vitviz.text import page_text
from vitviz.text import report as text
from vitviz.web import report
from vitviz.web.report import CapturedPicture
from vitviz.web.traits import traits

#: How the alt text of a figure begins, by the page whose caption it has.
FIGURES = {
    "classify": ["Most probable classes"],
    "distance": ["Attention distance of", "Attention of", "Mean attention of"],
    "rollout": ["Attention rollout"],
    "tokens": [
        "Principal components:",
        "24 patches on component",
        "Norm of each patch",
        "Three components",
    ],
    "filters": ["28 principal components of the filters"],
    "positions": ["One tile for every position"],
}


def html_of(*models: Model) -> str:
    return report.html(
        [CapturedPicture(model, "x.png", capture(model, picture())) for model in models]
    )


def test_each_figure_has_the_caption_of_its_page() -> None:
    figures = re.findall(r'aria-label="(.*?)">.*?<figcaption><b>(.*?):', html_of(own_model()))
    titles = {page: page_text(page).title for page in FIGURES}
    found = [
        next(page for page in FIGURES if titles[page] == unescape(said)) for _, said in figures
    ]
    assert set(found) == set(FIGURES)
    for (alt, _), page in zip(figures, found, strict=True):
        assert unescape(alt).startswith(tuple(FIGURES[page])), (page, alt)


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        ([False], text.UNTRAINED),
        ([True], None),
        ([True, False], text.SOME_UNTRAINED),
        ([True, True], None),
    ],
)
def test_random_weights_are_told(trained: list[bool], said: str | None) -> None:
    models = [own_model() for _ in trained]
    for model, known in zip(models, trained, strict=True):
        model.trained = known
    warnings = re.findall(r"<p class=warning>(.*?)</p>", html_of(*models))
    assert warnings == ([] if said is None else [said])


def test_what_is_left_out_is_on_the_pages_that_are_named() -> None:
    words = text.NO_EXPERIMENTS.rpartition("on the pages ")[2]
    named = {page for page in PAGES if page_text(page).title in words}
    made = {
        "muted heads": "intervention.head_effects",
        "occlusion": "intervention.occlusion",
        "curves of removal": "intervention.deletion_curve",
        "shuffled patches": "shuffle.draw_shuffled",
        "maps of one class": "attribution import METHODS",
    }
    for said, code in made.items():
        assert said in text.NO_EXPERIMENTS
        files = (Path(app.__file__).parent / "screens").glob("*.py")
        on = {file.stem.partition("_")[0] for file in files if code in file.read_text("utf-8")}
        assert named & on, said


def test_what_was_compared_comes_first_in_plain_words() -> None:
    model = own_model()
    acts = capture(model, picture())
    figure = plots.attention_map(acts, 0, 1)
    document = report.html(
        [CapturedPicture(model, "x.png", acts)] * 2,
        compared=("They are **much alike**: 0.91 < 1.", "two models & a picture", [figure]),
    )
    finding = "<p>They are much alike: 0.91 &lt; 1.</p><p class=line>two models &amp; a picture</p>"
    assert document.count(finding) == 1
    alt = escape(figure.layout.meta["alt"], quote=True)
    assert document.index(finding) < document.index(f'aria-label="{alt}"')
    assert document.index(f'aria-label="{alt}"') < document.index('aria-label="Most probable')


def test_every_part_says_of_what_it_is() -> None:
    model, image = own_model(), picture()
    acts = capture(model, image)
    figure = plots.class_probabilities(acts)
    written = report.html(
        [CapturedPicture(model, "x <b>.png", acts, image, "ab12")],
        compared=("They are **alike**.", "left · right", [figure]),
    )
    said = unescape(written)
    found = r"<figcaption><b>(.*?):.*?<span class=line>(.*?)</span>"
    captions = re.findall(found, written, re.DOTALL)
    assert captions[0] == (page_text("compare").title, "left · right")
    lines = [unescape(line) for _, line in captions[1:]]
    of_picture, of_weights = f"{acts.provenance} · x <b>.png", str(model.provenance)
    assert lines == [of_picture] * (len(lines) - 2) + [of_weights] * 2
    width, height = image.size
    for words in (
        "They are alike.",
        f"{width} × {height} pixels. SHA-256 ab12 ",
        text.WEIGHTS_DIGEST.format(sha256=acts.record["weights_sha256"]),
        text.NO_EXPERIMENTS,
        text.OPENED.format(layer=acts.depth),
        f"Attention of layer {acts.depth}, head 1 by distance",
    ):
        assert words in said
    assert text.NOT_ALIKE.partition(":")[0] not in said
    (record,) = re.findall(r'id="data-made-with">(.*?)</script>', written)
    made = json.loads(record)["captures"][0]["picture"]
    assert (made["name"], made["sha256"], made["of"]) == ("x <b>.png", "ab12", "file")


def test_the_captions_of_each_model_are_its_own() -> None:
    models = own_model(), watched(own_module(), (16, 24), answers="labels")
    sections = html_of(*models).split("<section>")[1:3]
    known = [traits(model, capture(model, picture())) for model in models]
    equations = [report._mathml(page_text("classify", one).equation) for one in known]
    for section, own, other in zip(sections, equations, equations[::-1], strict=True):
        assert own in section
        assert other not in section


def test_position_embeddings_of_another_grid_are_left_out() -> None:
    module = vit_of_transformers(image_size=48, patch_size=8)
    for size, drawn in (((48, 48), True), ((32, 40), False)):
        written = html_of(watched(module, size))
        assert ("One tile for every position" in written) == drawn
