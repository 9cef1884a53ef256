"""The text of every page: title, question, equation and explanations, one Markdown file each.

There is a folder for each language, with the same files in it; a line that begins with `## ` or
with a condition is the same in all of them.

A file begins with `# Title`, the page's question on a line of its own, and then the sections
`## Equation` (LaTeX), `## What you see` and `## Try this`; `## What the papers found` and
`## Often said, and wrong` follow on the pages that have them.

A paragraph that begins with a condition in brackets, such as `[window, not trained]`, is shown only
for models that have every trait in it, and none that follows `not`. `TRAITS` lists them all.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vitviz.language import spoken

#: Pages in the order in which a class goes through them.
PAGES = (
    *("anatomy", "filters", "positions", "attention", "distance", "rollout", "tokens", "classify"),
    *("training", "zoo", "compare"),
)
OPENING = PAGES[0]  #: the page that the app opens with
#: What a caption may ask about the model on screen. The first six are kinds of its layers.
TRAITS = frozenset(
    (
        *("global", "class", "window", "grid", "pooled", "mixing"),
        "all-to-all",  # every token attends to every token, and they are the same in each layer
        "relative bias",  # added to the scores of attention
        "rotary",  # queries and keys are rotated by their positions
        "prefix",  # there are tokens beside the patches
        "cls",  # the head reads the CLS token
        "classes",  # there is a head that names classes
        "words",  # the classes are words, with whose vectors the picture's embedding is compared
        "sigmoid",  # each of them has a probability of its own
        "overlap",  # neighbouring patches share pixels
        "trained",
        "shipped",  # trained here, so that the initial weights are known
        "mimetic",  # and these were given heads that are local or global, and 2-D positions
    )
)
_PLAIN = frozenset(("global", "all-to-all", "prefix", "cls", "classes", "trained", "shipped"))


@dataclass(frozen=True)
class PageText:
    """The strings of one page; `papers` and `wrong` are lists, or empty."""

    title: str
    question: str
    equation: str
    see: str
    try_this: str
    papers: str
    wrong: str


def tab(page: str) -> str:
    """The name of a page in the navigation: its number in the lesson, and its title."""
    return f"{PAGES.index(page) + 1} {page_text(page).title}"


def page_after(page: str) -> str | None:
    """The next page of the lesson; None after the last."""
    later = PAGES[PAGES.index(page) + 1 :]
    return later[0] if later else None


def page_text(page: str, traits: frozenset[str] = _PLAIN) -> PageText:
    """The strings of one page, for a model of these traits; by default a trained ViT.

    Raises
    ------
    ValueError
        When the file lacks a section, or has a condition that is no trait.
    """
    return _page_text(page, traits, spoken())


@cache
def _page_text(page: str, traits: frozenset[str], language: str) -> PageText:
    head, *sections = _content(page, language).split("\n## ")
    title, question = (line for line in head.splitlines() if line.strip())
    named = dict(section.split("\n", 1) for section in sections)

    def shown(name: str, between: str = " ") -> str:
        paragraphs = re.split(r"\n\s*\n", named[name].strip())
        return between.join(filter(None, (_if_true(each, traits) for each in paragraphs)))

    named = {"What the papers found": "", "Often said, and wrong": "", **named}
    try:
        return PageText(
            title=title.removeprefix("# "),
            question=question,
            equation=shown("Equation"),
            see=shown("What you see"),
            try_this=shown("Try this"),
            papers=shown("What the papers found", "\n\n"),
            wrong=shown("Often said, and wrong", "\n\n"),
        )
    except KeyError as missing:
        raise ValueError(f"{page}.md has no section {missing}.") from missing


def glossary() -> dict[str, str]:
    """The definition of each term in all its forms, which are in small letters."""
    return _glossary(spoken())


@cache
def _glossary(language: str) -> dict[str, str]:
    entries = (entry.split("\n", 1) for entry in _content("glossary", language).split("\n## ")[1:])
    return {
        form: " ".join(definition.split())
        for forms, definition in entries
        for form in forms.lower().split(", ")
    }


def _content(name: str, language: str) -> str:
    return (Path(__file__).parent / language / f"{name}.md").read_text(encoding="utf-8")


def _if_true(paragraph: str, traits: frozenset[str]) -> str:
    """The paragraph without its condition; empty where that is false."""
    found = re.match(r"\[([^]]*)\]\s+", paragraph)
    if not found:
        return paragraph
    for condition in found[1].split(", "):
        trait = condition.removeprefix("not ")
        if trait not in TRAITS:
            raise ValueError(f"{trait} in a condition is none of the traits.")
        if (trait in traits) == condition.startswith("not "):
            return ""
    return paragraph[found.end() :]
