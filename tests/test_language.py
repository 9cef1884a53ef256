"""Every string in every language: nothing is missing, stale, or says other numbers."""

import ast
import csv
import json
import re
import threading
from pathlib import Path
from string import Formatter

import pytest
from babel.messages import Catalog, Message
from babel.messages.pofile import read_po

from vitviz import language, text
from vitviz.app.widgets.caption import with_definitions
from vitviz.checkpoints import assets
from vitviz.language import LANGUAGES, speak, spoken, tr, tr_n

PACKAGE = Path(language.__file__).parent
OTHERS = [code for code in LANGUAGES if code != "en"]
FILES = [f"{name}.md" for name in (*text.PAGES, "glossary")]
#: Asterisks that Markdown does not close: after a punctuation mark no letter may follow them.
OPEN = re.compile(r"[^\w\s*}(]\*{1,2}[가-힣]")
NUMERALS = {"zero": "0", "two": "2", "four": "4"}  # which a translation may write as digits


@pytest.fixture
def korean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "spoken", lambda: "ko")
    monkeypatch.setattr(text, "spoken", lambda: "ko")


def content(name: str, code: str) -> str:
    return (PACKAGE / "text" / code / name).read_text(encoding="utf-8")


def paragraphs(content: str) -> list[str]:
    return re.split(r"\n\s*\n", content.strip())


def catalogue(code: str, name: str = "strings") -> Catalog:
    with (PACKAGE / "text" / code / f"{name}.po").open("rb") as file:
        return read_po(file, locale=code, abort_invalid=True)


def marked() -> set[str | tuple[str, ...]]:
    """The English of every string of the sources that is to be translated."""
    found: set[str | tuple[str, ...]] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Name("tr" | "mark"), [ast.Constant(str(english)), *_]):
                    found.add(english)
                case ast.Call(
                    ast.Name("tr_n"), [ast.Constant(str(one)), ast.Constant(str(many)), *_]
                ):
                    found.add((one, many))
    record = (assets() / "curves" / "distance_vit_s14.json").read_text(encoding="utf-8")
    found.add(json.loads(record)["about"])
    with (assets() / "samples" / "LICENCES.csv").open(encoding="utf-8", newline="") as file:
        return found | {row["subject"] for row in csv.DictReader(file)}


def placeholders(string: str) -> list[tuple[str, str | None]]:
    """The names in braces, each with its format: numbers are written alike in every language."""
    return sorted((name, how) for _, name, how, _ in Formatter().parse(string) if name)


def test_every_string_is_given_its_placeholders() -> None:
    calls = 0
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Name("tr"), [ast.Constant(str(english))], [*values]):
                    given = {each.arg for each in values}
                    if values and None not in given:  # which would be **values
                        assert given == {name for name, _ in placeholders(english)}, english
                        calls += 1
    assert calls


def in_browser() -> set[str]:
    """The same of the components; what they are sent by name, such as "query", is among it."""
    sources = [*PACKAGE.glob("*_map/*.js"), *PACKAGE.glob("app/widgets/*.js")]
    return {
        json.loads(english)
        for path in sources
        for english in re.findall(
            r'(?<![\w.])tr\(\s*("(?:[^"\\]|\\.)*")', path.read_text(encoding="utf-8")
        )
    }


def messages(code: str, *names: str) -> list[Message]:
    catalogues = [catalogue(code, name) for name in names or ("strings", "browser")]
    return [message for each in catalogues for message in each if message.id]


# --- the pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", LANGUAGES)
def test_every_language_has_every_file(code: str) -> None:
    assert {path.name for path in (PACKAGE / "text" / code).glob("*.md")} == set(FILES)


@pytest.mark.parametrize("code", OTHERS)
@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_same_paragraphs_in_the_same_order(name: str, code: str) -> None:
    english, other = (paragraphs(content(name, each)) for each in ("en", code))
    assert len(english) == len(other)
    for first, second in zip(english, other, strict=True):
        assert first.startswith("#") == second.startswith("#")
        assert first.startswith("- ") == second.startswith("- ")
        if first.startswith("## ") and name != "glossary.md":
            assert first == second
        conditions = [re.findall(r"\A\[[^]]*\] ", each) for each in (first, second)]
        assert conditions[0] == conditions[1]


@pytest.mark.parametrize("code", OTHERS)
@pytest.mark.parametrize("name", FILES)
def test_a_paragraph_has_the_same_numbers_and_the_same_equations(name: str, code: str) -> None:
    english, other = (paragraphs(content(name, each)) for each in ("en", code))
    for first, second in zip(english, other, strict=True):
        if "\\" in first:
            first, second = (re.sub(r"\\text\{[^}]*\}", "", each) for each in (first, second))
            assert first == second
        numbers, others = (set(re.findall(r"\d+(?:[.,]\d+)*", each)) for each in (first, second))
        assert numbers <= others, second
        words = set(re.findall(r"\w+", first.lower()))
        assert others - numbers <= {NUMERALS[word] for word in words & {*NUMERALS}}, second


@pytest.mark.parametrize("code", OTHERS)
@pytest.mark.parametrize("name", FILES)
def test_nothing_is_left_in_english(name: str, code: str) -> None:
    """Every paragraph of prose has words of the language."""
    for paragraph in paragraphs(content(name, code)):
        if not paragraph.startswith("## ") and "\\" not in paragraph:
            assert re.search("[가-힣]", paragraph), paragraph


def test_emphasis_is_closed_where_markdown_sees_it() -> None:
    """After a punctuation mark no letter may follow the asterisks that close."""
    for name in FILES:
        words = content(name, "ko")
        assert words.count("**") % 2 == 0
        assert not OPEN.search(words), name


@pytest.mark.usefixtures("korean")
def test_a_lesson_and_its_terms_are_in_the_language() -> None:
    assert text.tab("attention") == "4 어텐션"
    assert text.page_text("anatomy").question == "내 이미지에 무슨 일이 일어나는가?"
    assert text.glossary()["쿼리"] == text.glossary()["query"]
    (defined,) = with_definitions("쿼리가 쿼리를")
    assert defined.count('class="meaning"') == 1
    assert defined.endswith("</span></span>가 쿼리를")


# --- strings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", OTHERS)
def test_no_string_is_missing_and_none_is_stale(code: str) -> None:
    assert {message.id for message in messages(code, "strings")} == marked()
    assert {message.id for message in messages(code, "browser")} == in_browser()


@pytest.mark.parametrize("code", OTHERS)
def test_every_string_is_translated_with_its_placeholders(code: str) -> None:
    for message in messages(code):
        english = message.id if isinstance(message.id, str) else list(message.id)[-1]
        said = message.string if isinstance(message.string, tuple) else (message.string,)
        for string in said:
            assert string, english
            assert isinstance(string, str)
            assert placeholders(string) == placeholders(english), english
            assert re.findall(r"\A\s|\s\Z", string) == re.findall(r"\A\s|\s\Z", english), english
            assert not OPEN.search(string), string
        assert not message.fuzzy, english


def test_a_language_is_of_one_thread() -> None:
    heard: list[str] = []

    def talk() -> None:
        speak("ko")
        heard.append(spoken())

    thread = threading.Thread(target=talk)
    thread.start()
    thread.join()
    assert (heard, spoken()) == (["ko"], "en")


def test_a_string_is_english_where_nothing_else_is_asked_for() -> None:
    assert tr("Layer {layer} of {depth}", layer=3, depth=6) == "Layer 3 of 6"
    assert tr("{not filled}") == "{not filled}"
    assert tr_n("{count} head", "{count} heads", 1) == "1 head"
    assert tr_n("{count} head", "{count} heads", 2) == "2 heads"
