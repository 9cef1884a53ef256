"""Names that are markup stay text, whatever a page makes of them."""

import html
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from examples import own_module, watched
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, Node

import vitviz
from pages.driver import MINE, charts, opened, opened_with_data, upload
from vitviz import Model
from vitviz.app import lessons
from vitviz.app.pages import PAGES
from vitviz.app.shared import models, pictures

pytestmark = pytest.mark.usefixtures("narrow", "read_anew")
NAME, PHOTO = "*m* <i>", "*p* <i>.png"
LABELS = tuple(f"*{letter}* <i>" for letter in "abc")
RAW = re.compile(r"\*[mpabc]\* |<i>")  # what is left of a name that is not escaped
#: Elements, and fields of others, that show text as it is.
PLAIN = {
    "text",
    "selectbox",
    "dataframe",
    "bidi_component",
    "plotly_chart",
    "file_uploader",
    "html",
}
EXPERIMENTS = {
    "run head effects": "classify",
    "run occlusion": "classify",
    "run curves": "explain",
}


def serve(answers: Any, monkeypatch: pytest.MonkeyPatch) -> Model:
    module = own_module(image_size=32, num_classes=3)
    model = watched(module, (32, 32), name=NAME, answers=answers, labels=LABELS)
    monkeypatch.setattr(models, "load_by_name", lambda *_: model)
    monkeypatch.setattr(models, "cached_random_kernel", lambda model: model.patch_kernel)
    return model


def nodes(of: Node) -> Iterator[Node]:
    yield of
    if isinstance(of, Block):
        for child in of.children.values():
            yield from nodes(child)


def strings(of: Any) -> Iterator[str]:
    for field, value in of.ListFields():
        if field.name in ("id", "key", "form_id", "page_script_hash"):
            continue
        for each in value if field.is_repeated else [value]:
            if isinstance(each, str):
                yield each
            elif hasattr(each, "ListFields"):
                yield from strings(each)


def read_as_markdown(at: AppTest) -> Iterator[str]:
    """All texts on screen in which Streamlit reads Markdown."""
    for node in nodes(at._tree):
        if node.type == "table":
            table: Any = node
            yield from (str(cell) for cell in table.value.to_numpy().ravel())
        elif node.type not in PLAIN and hasattr(getattr(node, "proto", None), "ListFields"):
            yield from strings(node.proto)


def drawn(at: AppTest) -> Iterator[str]:
    """All texts that Plotly draws, as it is given them."""

    def texts(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            for name, one in part.items():
                if name not in ("meta", "template", "source"):
                    yield from texts(one)
        elif isinstance(part, list):
            for one in part:
                yield from texts(one)
        elif isinstance(part, str):
            yield part

    for chart in charts(at):
        yield from texts(json.loads(chart.spec))


def assert_text(at: AppTest) -> None:
    assert not at.exception, [error.value for error in at.exception]
    assert not at.error
    assert not [words for words in read_as_markdown(at) if RAW.search(words)]
    assert not [words for words in drawn(at) if "<i>" in words]
    assert not [one for one in at.get("html") if "<i>" in one.proto.body]


def shows(at: AppTest, name: str) -> bool:
    """Whether a name stands on screen, as it is."""
    said = html.unescape("\n".join([*read_as_markdown(at), *drawn(at)]))
    return name in said


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("answers", ["classes", "labels", "values", "embedding"])
def test_no_name_is_markup(answers: Any, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(answers, monkeypatch)
    at = opened_with_data(page)
    if page != "training":  # which shows no picture
        at = upload(at, PHOTO, MINE)
    assert_text(at)
    if page == "classify":
        assert shows(at, LABELS[0]) == (answers != "embedding")


@pytest.mark.parametrize("run", EXPERIMENTS)
def test_no_name_is_markup_in_an_experiment(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve("classes", monkeypatch)
    at = opened(EXPERIMENTS[run], **{"class": "0"}).button(key=run).click().run()
    assert_text(at)
    assert shows(at, LABELS[0])


@pytest.mark.parametrize("mode", ["models", "pictures"])
def test_no_name_is_markup_beside_another(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve("classes", monkeypatch)
    at = upload(opened_with_data("compare", compare=mode), PHOTO, MINE)
    assert_text(at)
    assert shows(at, PHOTO if mode == "pictures" else NAME)


@pytest.mark.parametrize("number", range(1, 8))
def test_no_name_is_markup_in_a_lesson(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve("classes", monkeypatch)
    image = pictures.chosen_picture(pictures.DEFAULT).image
    acts = vitviz.capture(model, image)
    for sentence in lessons.findings(number, model, image, acts):
        assert not RAW.search(sentence)


def test_no_name_is_markup_in_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("classes", monkeypatch)
    assert_text(opened("classify", predict="True"))
