"""The language of a session: asked for by a link, by the menu or by the browser."""

import csv
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import (
    MINE,
    SHIPPED,
    address,
    at_page,
    complaints,
    opened,
    opened_with,
    opened_with_data,
    specs,
    upload,
)
from pages.test_data import written
from vitviz.app.pages import PAGES
from vitviz.common.language import set_language, tr
from vitviz.model import memory
from vitviz.zoo.checkpoints import load_shipped

WORDS = re.compile("[가-힣]")


@pytest.fixture
def korean_driver() -> Iterator[None]:
    """The driver calls what a menu calls its options, in this thread."""
    set_language("ko")
    yield
    set_language("en")


@cache
def korean(page: str) -> tuple[AppTest, list[str]]:
    """A page as a link opens it in Korean, with its data, and its files; for tests that only read
    it."""
    with pytest.MonkeyPatch.context() as patch:
        files = written(patch, "csv")
        return opened_with_data(page, lang="ko"), files


def title(at: AppTest) -> str:
    return at.title[0].value


@pytest.mark.usefixtures("korean_driver")
def test_a_link_asks_for_a_language_which_stays_at_another_page_and_at_a_reset() -> None:
    at = opened("attention", lang="ko")
    assert not at.exception
    assert title(at) == "어텐션: 누가 어디를 보는가?"
    assert address(at)["lang"] == "ko"
    at.button(key="reset").click().run()
    assert title(at) == "어텐션: 누가 어디를 보는가?"
    at_page(at, "distance").run()
    assert title(at) == "거리: 가까이 보는가, 멀리 보는가?"
    assert address(at)["lang"] == "ko"


def test_an_unknown_language_is_told_and_english_is_used() -> None:
    at = opened("attention", lang="xx")
    assert title(at) == "Attention: Who looks where?"
    assert any("xx is not valid here" in message.value for message in at.info)
    assert "lang" not in address(at)


@pytest.mark.usefixtures("korean_driver")
@pytest.mark.parametrize(
    ("locale", "link", "titled"),
    [
        ("ko-KR", {}, "어텐션: "),
        ("ko", {}, "어텐션: "),
        ("en-GB", {}, "Attention: "),
        ("fi", {}, "Attention: "),  # which is none of the languages
        (None, {}, "Attention: "),
        ("ko-KR", {"lang": "en"}, "Attention: "),
        ("en-GB", {"lang": "ko"}, "어텐션: "),
    ],
)
def test_the_browsers_language_is_used_where_the_address_names_none(
    locale: str | None, link: dict[str, str], titled: str
) -> None:
    set_language("en" if titled == "Attention: " else "ko")
    at = opened_with("attention", locale=locale, **link)
    assert title(at).startswith(titled)
    assert not any("valid" in message.value for message in at.info)
    assert link.items() <= address(at).items()
    assert link or "lang" not in address(at)


@pytest.mark.usefixtures("korean_driver")
def test_the_menu_chooses_another_language_than_the_browser() -> None:
    at = opened_with("attention", locale="ko-KR")
    menu = at.selectbox(key="lang")
    assert (menu.options, menu.value) == (["English", "한국어"], "ko")
    menu.select("en").run()
    assert title(at).startswith("Attention: ")
    assert address(at)["lang"] == "en"


@pytest.mark.usefixtures("korean_driver")
@pytest.mark.parametrize("page", PAGES)
def test_every_page_speaks_korean(page: str) -> None:
    """What stands on it, without the tables and figures, has Korean words in it."""
    at, _ = korean(page)
    assert not at.exception
    boxes = [*at.markdown, *at.info, *at.warning, *at.error, *at.subheader, *at.title]
    widgets = [*at.selectbox, *at.slider, *at.select_slider, *at.button, *at.toggle, *at.expander]
    said = [*(box.value for box in boxes), *(widget.label for widget in widgets)]
    english = [text for text in said if re.search("[a-z]{3}", text) and not WORDS.search(text)]
    assert english == []


def headings(at: AppTest) -> list[str]:
    """Those of the tables of numbers of a page."""
    assert not at.exception
    frames = [frame.value for frame in at.dataframe]
    known = [{"class", "also called"}, {tr("class"), tr("also called")}]  # what a model knows
    return [str(name) for frame in frames if {*frame} not in known for name in frame.columns]


@pytest.mark.usefixtures("korean_driver")
@pytest.mark.parametrize("page", PAGES)
def test_the_headings_of_the_tables_are_korean_and_those_of_the_files_english(page: str) -> None:
    at, files = korean(page)
    said = headings(at)
    assert said
    of_files = [name for file in files for name in next(csv.reader(file.splitlines()[3:]))]
    known = {"q", "k", "D", "MLP", "Grad-CAM", "AttnLRP"}
    assert [name for name in said if not WORDS.search(name) and name not in known] == []
    set_language("en")
    assert of_files == headings(opened_with_data(page))


@pytest.mark.usefixtures("korean_driver")
@pytest.mark.parametrize("page", PAGES)
def test_the_words_in_the_tables_are_korean_and_those_of_the_files_english(page: str) -> None:
    """All but what models call their classes, papers their sizes, and the app its pictures."""
    at, files = korean(page)
    names = {tr(heading) for heading in ("class", "also called", "size", "source")}
    known = {"CLS", "ViT", "CutMix", "Grad-CAM", "AttnLRP", "Integrated Gradients"}
    cells = {
        cell
        for frame in at.dataframe
        for heading in {*frame.value.columns} - names
        for cell in frame.value[heading]
        if isinstance(cell, str)
    }
    english = {cell for cell in cells - known if re.search("[A-Za-z]{3}", cell)}
    assert {cell for cell in english if not WORDS.search(cell)} == set()
    in_files = {
        cell for file in files for line in csv.reader(file.splitlines()[3:]) for cell in line
    }
    assert {cell for cell in in_files if WORDS.search(cell)} <= {
        "예시: 고양이",
        "예시: 고양이 얼굴",
    }


@pytest.mark.usefixtures("korean_driver")
def test_the_parts_of_a_logit_are_of_an_english_class_in_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = opened_with_data("classify", lang="ko")
    files = written(monkeypatch, "csv")
    at.button(key="run logit parts").click().run()
    assert next(csv.reader(files[-1].splitlines()[3:])) == ["layer", "part", "logit of red panda"]
    assert at.dataframe[-1].value.columns[2] == "레서판다의 로짓"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "ko",
            "PNG 파일이 잘렸습니다. 마지막 청크가 온전하지 않습니다. 앞의 이미지를 그대로 둡니다.",
        ),
        ("en", "The PNG is cut off: its last chunk is not complete. The previous picture is kept."),
    ],
)
@pytest.mark.usefixtures("korean_driver")
def test_an_error_of_the_library_is_told_in_the_language_of_the_page(code: str, said: str) -> None:
    set_language(code)
    at = opened("attention", lang=code)
    upload(at, "cut.png", MINE[:-20])
    assert [complaint.startswith(said) for complaint in complaints(at)] == [True]


@pytest.mark.usefixtures("korean_driver")
def test_a_refusal_is_told_in_korean(monkeypatch: pytest.MonkeyPatch) -> None:
    at = opened("classify", lang="ko")
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    at.button(key="run occlusion").click().run()
    (said,) = complaints(at)
    assert re.fullmatch(
        r"vitviz_things200: 이미지 한 장을 캡처하는 일: 메모리가 약 0\.\d GB 필요한데 "
        r"0\.0 GB가 남아 있습니다\.",
        said,
    )


def texts(part: Any) -> Iterator[str]:
    """All that is written in a chart: titles, names of traces, texts."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name in ("text", "name", "ticktext") and isinstance(value, str | list):
                yield from [value] if isinstance(value, str) else map(str, value)
            elif name not in ("template", "meta"):
                yield from texts(value)
    elif isinstance(part, list):
        for each in part:
            yield from texts(each)


@pytest.mark.usefixtures("korean_driver")
@pytest.mark.parametrize("page", PAGES)
def test_what_is_written_in_charts_is_korean(page: str) -> None:
    """All but symbols, units and what models call their classes."""
    at, _ = korean(page)
    known = {"CLS", "ViT", "px", "br", "Grad", "CAM", "AttnLRP", *(load_shipped(SHIPPED).classes)}
    written_there = {text for spec in specs(at) for text in texts(json.loads(spec))}
    english = [text for text in written_there - known if not WORDS.search(text)]
    assert {word for text in english for word in re.findall("[A-Za-z]{2,}", text)} <= known
