"""What a report says of each figure, and of weights that are random."""

import re
from html import unescape

import pytest
from examples import own_model, picture

from vitviz import Model, capture
from vitviz.text import page_text
from vitviz.text import report as text
from vitviz.web import report
from vitviz.web.report import Captured

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
    return report.html([Captured(model, "x.png", capture(model, picture())) for model in models])


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
