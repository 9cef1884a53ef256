"""The strings of the lesson: every page has its file, every file its page, nothing is missing."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from vitviz import text
from vitviz.text import PAGES, lesson

FOLDER = Path(text.__file__).parent
SECTIONS = ["Equation", "What you see", "Try this"]
WHOLE = """# Title

Who?

## Equation

a = b

## What you see

A figure.

## Try this

Look.
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], text.Lesson]:
    """Reads the given content as if it were the file of a page."""
    monkeypatch.setattr(text, "__file__", str(tmp_path / "__init__.py"))

    def read(content: str) -> text.Lesson:
        (tmp_path / "page.md").write_text(content, encoding="utf-8")
        return lesson.__wrapped__("page")

    return read


def test_every_page_has_a_file_and_every_file_is_a_page() -> None:
    assert len(set(PAGES)) == len(PAGES)
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)
    assert {path.suffix for path in FOLDER.iterdir() if path.is_file()} == {".md", ".py"}


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_a_module_that_draws_it(page: str) -> None:
    assert callable(import_module(f"vitviz.app.{page}").page)


@pytest.mark.parametrize("page", PAGES)
def test_a_file_has_a_title_a_question_and_all_sections_in_order(page: str) -> None:
    content = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", content, re.MULTILINE) == SECTIONS
    words = lesson(page)
    assert re.fullmatch(r"\w[\w ]*", words.title)
    assert re.fullmatch(r"\w[^?\n]*\?", words.question)
    for part in (words.equation, words.see, words.try_this):
        assert part
        assert part == part.strip()
        assert not re.search(r"^#", part, re.MULTILINE)


def test_titles_and_questions_differ_from_page_to_page() -> None:
    assert len({lesson(page).title for page in PAGES}) == len(PAGES)
    assert len({lesson(page).question for page in PAGES}) == len(PAGES)
    assert "Attention" in lesson("attention").title


@pytest.mark.parametrize("page", PAGES)
def test_an_equation_is_one_balanced_piece_of_latex(page: str) -> None:
    equation = lesson(page).equation
    assert "\n" not in equation
    assert "$" not in equation
    assert equation.count("{") == equation.count("}")
    assert equation.count(r"\left") == equation.count(r"\right")


@pytest.mark.parametrize("page", PAGES)
def test_prose_ends_its_sentences_and_holds_no_markup_that_streamlit_would_obey(page: str) -> None:
    words = lesson(page)
    for prose in (words.see, words.try_this):
        assert re.search(r"[.?][*_]*\Z", prose)
        assert not re.search(r"<\w|&\w+;|\$|:\w+\[|!\[", prose)
        assert prose.count("**") % 2 == 0
        assert prose.replace("**", "").count("*") % 2 == 0


def test_a_lesson_is_read_section_by_section(written: Callable[[str], text.Lesson]) -> None:
    read = written(WHOLE)
    assert read == text.Lesson("Title", "Who?", "a = b", "A figure.", "Look.")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_section_is_named(written: Callable[[str], text.Lesson], section: str) -> None:
    with pytest.raises(ValueError, match=rf"page\.md has no section '{section}'"):
        written(WHOLE.replace(f"## {section}\n", "## Elsewhere\n"))
