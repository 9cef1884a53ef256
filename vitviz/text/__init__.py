"""The text of every page: title, question, equation and explanations, one Markdown file each.

A file begins with `# Title`, the page's question on a line of its own, and then the sections
`## Equation` (LaTeX), `## What you see` and `## Try this`.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: Pages in the order in which a class goes through them.
PAGES = (
    *("filters", "positions", "attention", "distance", "rollout", "tokens", "classify"),
    *("training", "zoo"),
)


@dataclass(frozen=True)
class Lesson:
    title: str
    question: str
    equation: str
    see: str
    try_this: str


def tab(page: str) -> str:
    """The name of a page in the navigation: its number in the lesson, and its title."""
    return f"{PAGES.index(page) + 1} {lesson(page).title}"


def page_after(page: str) -> str | None:
    """The next page of the lesson; None after the last."""
    later = PAGES[PAGES.index(page) + 1 :]
    return later[0] if later else None


@cache
def lesson(page: str) -> Lesson:
    """The strings of one page.

    Raises
    ------
    ValueError
        When the file lacks a section.
    """
    content = (Path(__file__).parent / f"{page}.md").read_text(encoding="utf-8")
    head, *sections = content.split("\n## ")
    title, question = (line for line in head.splitlines() if line.strip())
    named = dict(section.split("\n", 1) for section in sections)
    try:
        return Lesson(
            title=title.removeprefix("# "),
            question=question,
            equation=named["Equation"].strip(),
            see=named["What you see"].strip(),
            try_this=named["Try this"].strip(),
        )
    except KeyError as missing:
        raise ValueError(f"{page}.md has no section {missing}.") from missing
