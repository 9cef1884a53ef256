"""Captions: true of the model on screen, absent where nothing is shown, with definitions."""

import html
import re
from collections.abc import Callable

import pytest

from pages.driver import (
    OPENING_TRAITS,
    SHIPPED,
    opened,
    prose,
    provenance,
    shown,
    token_maps,
)
from pages.test_other_families import KINDS, OTHERS, latex
from vitviz import Model, capture, inspection
from vitviz.app.pages import PAGES
from vitviz.app.shared import models, pictures
from vitviz.app.widgets.counts import COUNTS
from vitviz.app.widgets.places import with_definitions
from vitviz.text import findings, glossary, page_text


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("model", [name for name in KINDS if name not in OTHERS])
def test_the_traits_of_a_model_choose_its_caption(model: str) -> None:
    at = opened(model=model, weights="random")
    words = page_text("attention", frozenset(KINDS[model]))
    assert words.see in prose(at)
    assert words.try_this in prose(at)
    assert latex(at) == [words.equation]


def test_a_model_without_cls_is_not_told_to_have_one(serve: Callable[[str], Model]) -> None:
    serve("registers alone")
    at = opened()
    assert "CLS" not in prose(at)
    assert "goes back to the mean of the patches" in " ".join(prose(at).split())


def test_the_explanation_is_closed_and_holds_what_the_files_say() -> None:
    for page in PAGES:
        at, words = shown(page), page_text(page, OPENING_TRAITS)
        (box,) = [one for one in at.expander if one.label == "What this shows, and what to try"]
        assert not box.proto.expanded
        assert [formula.value.strip("$\n") for formula in box.latex] == [words.equation]
        for part in (words.see, words.try_this, words.papers, words.wrong):
            assert part in prose(at)


def test_the_sentence_of_a_page_is_left_out_for_a_presenter() -> None:
    lead = page_text("attention").lead
    assert lead in prose(opened("attention"))
    assert lead not in prose(opened("attention", presenter="True"))


# --- definitions --------------------------------------------------------------------------------

SPAN = re.compile(
    r'<span class="term" tabindex="0">([^<]+)<span class="meaning" role="tooltip">([^<]+)</span>'
)


def test_a_term_is_defined_where_it_first_occurs_and_nowhere_else() -> None:
    first, second = with_definitions("A **Query** and queries.", "A query, a logit lens, a logit.")
    found = [(term, html.unescape(meaning)) for term, meaning in SPAN.findall(first + second)]
    meanings = glossary()
    assert found == [
        ("Query", meanings["query"]),
        ("logit lens", meanings["logit lens"]),
        ("logit", meanings["logit"]),
    ]
    assert re.sub(r"<span class=\"meaning.*?</span>|</?span[^>]*>", "", first) == (
        "A **Query** and queries."
    )
    (parts_of_words,) = with_definitions("Headless monkeys are keyed and evaluated.")
    assert "<" not in parts_of_words


def test_a_definition_cannot_become_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    meaning = 'A <b>b</b> *c* _d_ `e` $f$ [g](h) :red[i] & "j" 1 * 2.'
    monkeypatch.setattr("vitviz.app.widgets.places.glossary", lambda: {"key": meaning})
    (text,) = with_definitions("A key.")
    ((term, shown),) = SPAN.findall(text)
    assert (term, html.unescape(shown)) == ("key", meaning)
    assert not re.search(r"[*_`$\[\]<>]", shown)


@pytest.mark.parametrize("page", PAGES)
def test_the_card_defines_its_terms(page: str) -> None:
    words = page_text(page)
    text = "\n".join(markdown.value for markdown in shown(page).markdown)
    met = [meaning for _, meaning in SPAN.findall(text)]
    assert len(met) == len(set(met))
    used = {
        meaning
        for term, meaning in glossary().items()
        if re.search(rf"\b{term}\b", f"{words.lead} {words.see} {words.try_this}", re.IGNORECASE)
    }
    assert {html.unescape(meaning) for meaning in met} <= used
    assert met or not used


@pytest.mark.parametrize("counts", ["values", "output"])
def test_a_map_of_what_is_added_does_not_speak_of_attention(counts: str) -> None:
    of_attention = "the more attention passes"
    assert of_attention in prose(opened("attention"))
    at = opened("attention", counts=counts)
    assert of_attention not in prose(at)
    assert "The map counts the lengths of the vectors" in prose(at)
    assert f" · {COUNTS[counts]} · " in provenance(at)  # type: ignore[index]
    (message,) = token_maps(at)
    assert message["titles"]["row"] == "What is added to it"
    assert message["titles"]["column"] == "What it adds to others"
    assert not message["matrix"]  # which is A
    acts = capture(models.load_by_name(SHIPPED), pictures.sample(pictures.DEFAULT).image)
    keys = acts.sinks(models.load_by_name(SHIPPED), acts.depth - 1)
    sinks = findings.sinks(acts.depth, keys, acts.grid[1], acts.layers[-1].prefix)
    layers = range(1, acts.depth + 1)
    patterns = [
        inspection.attention_patterns(
            acts.attention(layer - 1), grid=acts.grid, num_prefix_tokens=1
        )
        for layer in layers
    ]
    pattern = findings.attention(layers, patterns, acts.grid[1], acts.layers[-1].prefix)
    assert (sinks if counts == "output" else pattern) in prose(at)
