"""The way through the lesson: numbered tabs, the answer on every page, Next, and Reset view."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import (
    MINE,
    SHIPPED,
    address,
    assert_works,
    at_page,
    choose,
    commit,
    components,
    opened,
    provenance,
    shown,
    token_map,
    upload,
)
from vitviz import Model
from vitviz.app.pages import PAGES
from vitviz.app.shared import models, pictures, results
from vitviz.app.widgets import class_menu
from vitviz.text import page_text


def test_tabs_are_numbered_in_the_order_of_the_lesson() -> None:
    assert [page.tab for page in PAGES.values()] == [
        f"{number} {page_text(page).title}" for number, page in enumerate(PAGES, start=1)
    ]


def test_every_page_but_the_last_names_the_next() -> None:
    for page, following in pairwise(PAGES):
        assert shown(page).button(key="next").label == f"Next: {PAGES[following].tab}"
    assert "next" not in {button.key for button in shown(following).button}


def test_next_turns_to_the_next_page() -> None:
    first, *others = [*PAGES][:4]
    at = opened(first, layer="3")
    for following in others:
        at.button(key="next").click().run()
        (title,) = at.title
        assert title.value == PAGES[following].heading
        assert address(at) == {"layer": "3"}


def answer(at: AppTest) -> str:
    (said,) = [text.value for text in at.text if "nswer" in text.value]
    return said


@pytest.mark.parametrize("page", PAGES)
def test_every_page_says_the_answer(page: str) -> None:
    acts = results.capture_picture(
        models.load_by_name(SHIPPED),
        pictures.chosen_picture(PAGES[page].picture or pictures.DEFAULT),
    )
    assert acts.labels is not None
    assert acts.probabilities is not None
    name = class_menu.names(acts)[acts.probabilities.argmax()]
    share = acts.probabilities.max()
    assert answer(shown(page)) == f"Answer: {name}, {100 * share:.0f} %"


def test_the_answer_of_a_model_without_names_or_without_a_head(
    serve: Callable[[str], Model],
) -> None:
    assert answer(opened(weights="random")).startswith("Answer of random weights: output ")
    serve("no head")
    assert answer(opened()) == "No answer: this model has no head."
    serve("plain")
    at = opened()
    assert answer(at).startswith("Answer of random weights: output ")
    assert answer(at).endswith("(its outputs have no names)")


def test_a_layer_stays_chosen_where_it_plays_no_part() -> None:
    first, *others = [page for page in PAGES if "layer" not in PAGES[page].settings]
    at = opened(first, layer="2")
    for page in (first, *others):
        if page != first:
            at_page(at, page).run()
        assert "layer" not in [slider.key for slider in at.slider]
        assert address(at) == {"layer": "2"}
    at_page(at, "attention").run()
    assert at.slider(key="layer").value == 2
    assert address(at) == {"layer": "2"}


@pytest.mark.parametrize("page", ["filters", "positions", "attention", "distance", "tokens"])
def test_a_page_says_what_is_to_be_seen(page: str) -> None:
    """How each sentence is found is tested beside it; here that the page has its own."""
    begin = {"filters": "**In this model:** Half of", "positions": "**Positions, learned:** Neigh"}
    said = [text.value for text in shown(page).markdown]
    (sentence,) = [one for one in said if one.startswith(begin.get(page, "**On this picture:** "))]
    assert re.search(r"\d", sentence)
    assert sentence.endswith(".")


def test_reset_leaves_picture_and_model() -> None:
    stays = {"picture": "moose", "weights": "random", "presenter": "True", "size": "32x48"}
    at = opened(layer="2", read="column", fusion="max", **stays)
    commit(at, query=42, head=2, scale="log")
    (reset,) = [button for button in at.button if button.label == "Reset view"]
    reset.click().run()
    assert_works(at)
    assert address(at) == stays
    assert not at.info
    assert token_map(at)["state"] == token_map(opened(**stays))["state"]
    at_page(at, "rollout").run()
    assert at.selectbox(key="fusion").value == "mean"


def test_the_link_of_an_uploaded_picture_says_what_it_shows() -> None:
    at = opened()
    assert [sent["note"] for sent in components(at, "vitviz_copy_link")] == [""]
    upload(at, "mine.png", MINE)
    (sent,) = components(at, "vitviz_copy_link")
    assert "a link cannot include yours" in sent["note"]
    assert provenance(choose(at, SHIPPED)).endswith("mine.png")
