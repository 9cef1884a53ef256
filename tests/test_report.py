"""What a report says of each figure, and of weights that are random."""

import re
from html import escape, unescape

import pytest
from examples import own_model, picture

from vitviz import Model, capture, plots
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


def test_what_was_compared_comes_first_in_plain_words() -> None:
    model = own_model()
    acts = capture(model, picture())
    figure = plots.attention_map(acts, 0, 1)
    document = report.html(
        [Captured(model, "x.png", acts)] * 2,
        compared=("They are **much alike**: 0.91 < 1.", "two models & a picture", [figure]),
    )
    finding = "<p>They are much alike: 0.91 &lt; 1.</p><p class=line>two models &amp; a picture</p>"
    assert document.count(finding) == 1
    alt = escape(figure.layout.meta["alt"], quote=True)
    assert document.index(finding) < document.index(f'aria-label="{alt}"')
    assert document.index(f'aria-label="{alt}"') < document.index('aria-label="Most probable')
