"""Every string in every language: nothing is missing, stale, or says other numbers."""

import ast
import copy
import csv
import html
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
from hostile import NAMES
from PIL import Image

from vitviz import capture, cli, text
from vitviz.app.pages import PAGES
from vitviz.app.widgets.data_table import Table
from vitviz.app.widgets.places import with_definitions
from vitviz.common import language
from vitviz.common.files import assets
from vitviz.common.images import ImageError, open_image
from vitviz.common.language import (
    LANGUAGES,
    Message,
    current_language,
    literal,
    set_language,
    tr,
    tr_md,
    tr_n,
    use_language,
)
from vitviz.model.families import ModelError
from vitviz.zoo.checkpoints import shipped

PACKAGE = Path(language.__file__).parents[1]
OTHERS = [code for code in LANGUAGES if code != "en"]
FILES = [f"{name}.md" for name in (*PAGES, "glossary")]
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
    "common/language.py",
)
NUMERALS = {"zero": "0", "two": "2", "four": "4"}  # which a translation may write as digits


@pytest.fixture
def korean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "current_language", lambda: "ko")
    monkeypatch.setattr(text, "current_language", lambda: "ko")


def content(name: str, code: str) -> str:
    written = (PACKAGE / "text" / code / name).read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->\s*", "", written, flags=re.DOTALL)  # sources, which are not shown


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
            case ast.Call(
                ast.Name("tr" | "tr_md" | "mark" | "Message"), [ast.Constant(str(english)), *_]
            ):
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
                    given -= {"local", "missing", "settings"}
                made = name in ("Message", *ERRORS) or (name in ("tr", "tr_md") and given)
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
    folders = ("app/**", "web/**")
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
    sources = [*PACKAGE.glob("web/*/*.js"), *PACKAGE.glob("app/widgets/*.js")]
    return {
        json.loads(english)
        for path in sources
        if not path.name.endswith(".built.js")  # in which `tr` is any other name
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
def test_a_file_has_the_same_paragraphs_numbers_and_equations(name: str, code: str) -> None:
    """And every paragraph of prose is another one, in the letters of the language."""
    english, other = (paragraphs(content(name, each)) for each in ("en", code))
    for first, second in zip(english, other, strict=True):
        assert first.startswith("#") == second.startswith("#")
        assert first.startswith("- ") == second.startswith("- ")
        if first.startswith("## ") and name != "glossary.md":
            assert first == second
        conditions = [re.findall(r"\A\[[^]]*\] ", each) for each in (first, second)]
        assert conditions[0] == conditions[1]
        if "\\" in first:
            first, second = (re.sub(r"\\text\{[^}]*\}", "", each) for each in (first, second))
            assert first == second
        elif not first.startswith("#"):
            assert second not in english
            assert code != "ko" or re.search("[가-힣]", second)
        numbers, others = (set(re.findall(r"\d+(?:[.,]\d+)*", each)) for each in (first, second))
        assert numbers <= others, second
        words = set(re.findall(r"\w+", first.lower()))
        assert others - numbers <= {NUMERALS[word] for word in words & {*NUMERALS}}, second


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
    assert PAGES["attention"].tab == "4 어텐션"
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
    assert [message.id for message in messages(code) if not all(message.string or [""])] == []
    for message in messages(code):
        english = message.id if isinstance(message.id, str) else list(message.id)[-1]
        said = message.string if isinstance(message.string, tuple) else (message.string,)
        for string in said:
            assert isinstance(string, str)
            assert placeholders(string) == placeholders(english), english
            assert re.findall(r"\A\s|\s\Z", string) == re.findall(r"\A\s|\s\Z", english), english
            assert not OPEN.search(string), string
        assert not message.fuzzy, english


def test_queries_and_keys_are_not_exchanged() -> None:
    key = re.compile(r"(?<![가-힣])키(?=[^가-힣]|\Z|[가는를에의와로들마])")
    terms = {r"\bquer(y|ies)\b": re.compile("쿼리"), r"\bkeys?\b": key}
    seen = 0
    for message in messages("ko"):
        if isinstance(message.id, str) and isinstance(message.string, str):
            english, korean = (
                re.sub(r"\{.*?\}", "", text) for text in (message.id, message.string)
            )
            there = [bool(re.search(term, english, re.IGNORECASE)) for term in terms]
            if sum(there) == 1:
                seen += 1
                assert [bool(term.search(korean)) for term in terms.values()] == there, english
    assert seen > 20


def test_a_language_is_of_one_thread() -> None:
    heard: list[str] = []

    def talk() -> None:
        set_language("ko")
        heard.append(current_language())

    thread = threading.Thread(target=talk)
    thread.start()
    thread.join()
    assert (heard, current_language()) == (["ko"], "en")


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
        with use_language("ko"):
            assert str(one) == "mine: The file lacks head.{0}."
            assert tr(one) == "mine: 파일에 없는 것: head.{0}."


def test_an_error_of_a_subprocess_is_translated_too() -> None:
    """Pictures of most kinds are decoded in one."""
    damaged = io.BytesIO()
    Image.new("RGB", (64, 64)).save(damaged, "WEBP", lossless=True)
    with pytest.raises(ImageError) as caught:
        open_image(damaged.getvalue()[:-8])
    with use_language("ko"):
        assert tr(caught.value).startswith("WebP 파일을 읽을 수 없습니다.")
    assert tr(caught.value) == str(caught.value)


def test_a_heading_is_english_in_a_file() -> None:
    heading = Message("head {number}, %", number=1)
    table = Table("", {heading: [1.0], Message("token"): [Message("patch")]})
    with use_language("ko"):
        assert table.csv("").splitlines()[2:] == ['"head 1, %",token', "1,patch"]


def test_a_report_is_in_the_language_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shipped(tmp_path)
    photo = str(assets() / "samples" / "dog.jpg")
    monkeypatch.setattr(shipped, "assets", lambda: tmp_path)
    labels = []
    for code in LANGUAGES:
        path = tmp_path / f"{code}.html"
        order = ["report", photo, "--model", "little", "--lang", code, "-o", str(path)]
        assert cli.main(order) == 0
        assert current_language() == "en"
        report = path.read_text(encoding="utf-8")
        assert f'<html lang="{code}">' in report
        body = report[report.index("<body") :]
        words = re.sub(r"(?s)<(script|math|code)\b.*?</\1>", "", body)
        said = re.findall(r"<(?:p|figcaption)\b.*?</(?:p|figcaption)>", words)
        assert len(said) > 15
        assert {bool(re.search("[가-힣]", each)) for each in said} == {code == "ko"}
        labels.append(re.findall(r'aria-label="([^"]+)"', report))
        for kind in ("attention", "anatomy"):
            (data,) = re.findall(rf'id="data-{kind}">(.*?)</script>', report)
            (shown,) = json.loads(data)["components"].values()
            assert bool(shown["view"]["strings"]) == (code != "en")
    assert len(labels[0]) == len(labels[1]) > 8
    assert all(re.search("[가-힣]", label) for label in labels[1])


def test_what_a_notebook_shows_is_in_the_language_in_use() -> None:
    acts = capture(example("plain"), picture())
    assert 'title="Attention"' in acts.show()._repr_html_()
    with use_language("ko"):
        shown = acts.show()._repr_html_()
    assert 'title="어텐션"' in shown
    assert escape('<html lang="ko">') in shown
    assert current_language() == "en"


# --- names that come from elsewhere ---------------------------------------------------------------


COMMON = ("vit_small_patch16_224.augreg", "T-shirt, jersey", "St. Bernard (dog)", "0.023")


@pytest.mark.parametrize("name", [*NAMES, *COMMON])
def test_a_name_is_text_in_markdown(name: str) -> None:
    """How it looks on screen shows tests/browser/test_names.py."""
    words = tr_md("{model} is shown.", model=name)
    shown = literal(name)
    assert words == shown + " is shown."
    assert shown == name or name not in COMMON
    if fence := "`" * (len(shown) - len(shown.lstrip("`"))):  # code, which Streamlit leaves alone
        assert fence not in name
        assert shown == f"{fence}{shown.removeprefix(fence).removesuffix(fence)}{fence}"
        assert shown.strip("` ") == name.strip("` ")
    else:
        assert html.unescape(shown) == name
        assert not re.search(r"[*`$\[\]<>~|]|&(?!#\d+;)|\b_|_\b|\A[-+=#]|\A\d+[.)] ", shown)


def test_what_is_markdown_already_stays() -> None:
    bold = tr_md("{model} is shown.", model="*x*")
    assert bold == "&#42;x&#42; is shown."
    assert tr_md("{model} is shown.", model=bold) == "&#42;x&#42; is shown. is shown."
    error = ModelError(
        "{what} needs about {needed:.1f} GB of memory{where}, and {free:.1f} GB are free.",
        what=Message("A capture of {model}", model="<b>"),
        needed=2,
        where="",
        free=1,
    )
    assert tr_md(error).startswith("A capture of &#60;b&#62; needs about 2.0 GB")
