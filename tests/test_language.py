"""Every string in every language: nothing is missing, stale, or says other numbers."""

import ast
import copy
import csv
import io
import json
import pickle
import re
import threading
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from string import Formatter

import numpy as np
import pytest
from babel.messages import Catalog
from babel.messages import Message as Entry
from babel.messages.pofile import read_po
from examples import example, picture, write_shipped
from PIL import Image

from vitviz import capture, cli, language, text
from vitviz.app.widgets.caption import with_definitions
from vitviz.app.widgets.data_table import Table
from vitviz.checkpoints import assets, shipped
from vitviz.families import ModelError
from vitviz.images import ImageError, open_image
from vitviz.language import LANGUAGES, Message, speak, speaking, spoken, tr, tr_n

PACKAGE = Path(language.__file__).parent
OTHERS = [code for code in LANGUAGES if code != "en"]
FILES = [f"{name}.md" for name in (*text.PAGES, "glossary")]
#: Asterisks that Markdown does not close: after a punctuation mark no letter may follow them.
OPEN = re.compile(r"[^\w\s*}(]\*{1,2}[가-힣]")
#: What the app and the report show of an error. ProfileError is not among them: of those, only that
#: of a file that cannot be read is shown.
ERRORS = ("ModelError", "CheckpointError", "HubError", "ImageError", "OptionError", "MessageError")
NOT_ON_SCREEN = (  # where their errors reach a program or a terminal alone
    "profiling",  # of `vitviz profile` and `vitviz compare`
    "training",  # of `vitviz train`
    "cli",
    "zoo/watching.py",  # of `vitviz.watch`, which is given a module of Python
    "activations/loading.py",  # of `load_activations`: the app saves and loads no captures
    "language.py",
)
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


@cache
def calls() -> tuple[tuple[Path, ast.Call], ...]:
    """Of functions by their plain names, each with its file."""
    return tuple(
        (path.relative_to(PACKAGE), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )


def errors() -> Iterator[tuple[Path, ast.Call]]:
    """Every error that is made and can reach the screen."""
    for path, call in calls():
        assert isinstance(call.func, ast.Name)
        unseen = any(path.is_relative_to(place) for place in NOT_ON_SCREEN)
        if call.func.id in ERRORS and call.args and not unseen:
            yield path, call


def marked() -> set[str | tuple[str, ...]]:
    """The English of every string of the sources that is to be translated."""
    found: set[str | tuple[str, ...]] = set()
    for _, call in calls():
        match call:
            case ast.Call(ast.Name("tr" | "mark" | "Message"), [ast.Constant(str(english)), *_]):
                found.add(english)
            case ast.Call(ast.Name("tr_n"), [ast.Constant(str(one)), ast.Constant(str(many)), *_]):
                found.add((one, many))
    for _, call in errors():
        match call.args[0]:
            case ast.Constant(str(english)):
                found.add(english)
    record = (assets() / "curves" / "distance_vit_s14.json").read_text(encoding="utf-8")
    found.add(json.loads(record)["about"])
    for path in (assets() / "profiles").glob("*.npz"):
        with np.load(path, allow_pickle=False) as file:
            found.add(json.loads(str(file["about"]))["source"])
    with (assets() / "samples" / "LICENCES.csv").open(encoding="utf-8", newline="") as file:
        return found | {row["subject"] for row in csv.DictReader(file)}


def placeholders(string: str) -> list[tuple[str, str | None]]:
    """The names in braces, each with its format: numbers are written alike in every language."""
    return sorted((name, how) for _, name, how, _ in Formatter().parse(string) if name)


def test_every_string_is_given_its_placeholders() -> None:
    seen = 0
    for _, call in (*calls(), *errors()):
        match call:
            case ast.Call(ast.Name(name), [ast.Constant(str(english))], [*values]):
                given = {each.arg for each in values}
                if name == "HubError":
                    given -= {"local", "missing"}
                made = name in ("Message", *ERRORS) or (name == "tr" and given)
                if made and None not in given:  # which would be **values
                    assert given == {name for name, _ in placeholders(english)}, english
                    seen += 1
    assert seen


def test_an_error_on_the_screen_is_made_of_a_string_that_is_translated() -> None:
    """Not of one with values in it, which no catalogue has."""
    made = [*errors()]
    assert len(made) > 100
    for path, call in made:
        given = call.args[0]
        assert not isinstance(given, ast.JoinedStr | ast.BinOp), f"{path}, line {call.lineno}"
        for part in ast.walk(given):  # Message(...), or what somebody else has made
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                assert part.func.id != "str", f"{path}, line {call.lineno}"


def test_an_error_is_shown_in_the_language_in_use() -> None:
    """By `tr(error)`, and not by `str(error)` or in an f-string, which are English."""
    handlers = 0
    folders = ("app/**", "lessons", "report")
    for path in (path for folder in folders for path in PACKAGE.glob(f"{folder}/*.py")):
        for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(handler, ast.ExceptHandler) and handler.name:
                handlers += 1
                for node in ast.walk(handler):
                    match node:
                        case ast.Call(
                            ast.Name("str" | "repr"), [ast.Name(name)]
                        ) | ast.FormattedValue(ast.Name(name)):
                            assert name != handler.name, f"{path.name}, line {node.lineno}"
    assert handlers


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


def messages(code: str, *names: str) -> list[Entry]:
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


@pytest.mark.usefixtures("korean")
def test_emphasis_is_closed_where_markdown_sees_it() -> None:
    """After a punctuation mark, or the mark-up of a term, no letter may follow the asterisks."""
    for name in FILES:
        words = content(name, "ko")
        assert words.count("**") % 2 == 0
        assert not OPEN.search(words), name
        for paragraph in with_definitions(*paragraphs(words)):
            assert not OPEN.search(paragraph), paragraph


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


def test_an_error_is_english_and_is_told_in_the_language_in_use() -> None:
    inside = ModelError("The file lacks {key}.", key="head.{0}")
    error = ModelError("{name}: {error}", name="mine", error=inside)
    for one in (error, copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert str(one) == tr(one) == "mine: The file lacks head.{0}."
        with speaking("ko"):
            assert str(one) == "mine: The file lacks head.{0}."
            assert tr(one) == "mine: 파일에 없는 것: head.{0}."


def test_an_error_of_a_subprocess_is_translated_too() -> None:
    """Pictures of most kinds are decoded in one."""
    damaged = io.BytesIO()
    Image.new("RGB", (64, 64)).save(damaged, "WEBP", lossless=True)
    with pytest.raises(ImageError) as caught:
        open_image(damaged.getvalue()[:-8])
    with speaking("ko"):
        assert tr(caught.value).startswith("WebP 파일을 읽을 수 없습니다.")
    assert tr(caught.value) == str(caught.value)


def test_a_heading_is_english_in_a_file() -> None:
    heading = Message("head {number}, %", number=1)
    table = Table("", {heading: [1.0], Message("token"): [Message("patch")]})
    with speaking("ko"):
        assert table.csv("").splitlines()[2:] == ['"head 1, %",token', "1,patch"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of one photo and a small model, by the command, in every language."""
    folder, photo = tmp_path_factory.mktemp("reports"), assets() / "samples" / "dog.jpg"
    write_shipped(folder)
    made = {code: folder / f"{code}.html" for code in LANGUAGES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "assets", lambda: folder)
        for code, path in made.items():
            order = ["report", str(photo), "--model", "little", "--lang", code, "-o", str(path)]
            assert cli.main(order) == 0
    return {code: path.read_text(encoding="utf-8") for code, path in made.items()}


def test_a_report_is_in_the_language_that_is_asked_for(reports: dict[str, str]) -> None:
    assert spoken() == "en"
    for code, report in reports.items():
        assert f'<html lang="{code}">' in report
        body = report[report.index("<body") :]
        words = re.sub(r"(?s)<(script|math|code)\b.*?</\1>", "", body)
        said = re.findall(r"<(?:p|figcaption)\b.*?</(?:p|figcaption)>", words)
        assert len(said) > 15
        assert {bool(re.search("[가-힣]", each)) for each in said} == {code == "ko"}
    labels = [re.findall(r'aria-label="([^"]+)"', report) for report in reports.values()]
    assert len(labels[0]) == len(labels[1]) > 8
    assert all(re.search("[가-힣]", label) for label in labels[1])


def test_the_components_of_a_report_have_its_strings(reports: dict[str, str]) -> None:
    for code, report in reports.items():
        for kind in ("attention", "anatomy"):
            (data,) = re.findall(rf'id="data-{kind}">(.*?)</script>', report)
            (shown,) = json.loads(data)["components"].values()
            assert bool(shown["view"]["strings"]) == (code != "en")


def test_what_a_notebook_shows_is_in_the_language_in_use() -> None:
    acts = capture(example("plain"), picture())
    assert 'title="Attention"' in acts.show()._repr_html_()
    with speaking("ko"):
        shown = acts.show()._repr_html_()
    assert 'title="어텐션"' in shown
    assert escape('<html lang="ko">') in shown
    assert spoken() == "en"
