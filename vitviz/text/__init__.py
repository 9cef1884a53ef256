"""Load the text of every page: title, question, equation and explanations, one Markdown file each.

Each language has a folder with the same files. Lines that begin with `## ` or with a condition are
the same in all languages.

A file begins with `# Title` and the page's question on its own line. Then come the sections
`## In a sentence`, which stands above the figure, `## Equation` (LaTeX), `## What you see` and
`## Try this`. Some pages also have `## What the papers found` and `## Often said, and wrong`.

HTML comments are not shown. In the English files they name the source of a claim.

A paragraph that begins with a condition in brackets, such as `[window, not trained]`, is shown only
for models that have every trait in it, and none that follows `not`. `TRAITS` lists all traits.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vitviz.common.language import current_language

#: Traits of the model on screen that a caption may depend on. The first six are kinds of layers.
TRAITS = frozenset(
    (
        *("global", "class", "window", "grid", "pooled", "mixing"),
        "all-to-all",  # every token attends to every token, with the same tokens in each layer
        "relative bias",  # added to the scores of attention
        "rotary",  # queries and keys are rotated by their positions
        "prefix",  # there are tokens that are no patches
        "cls",  # the head reads the CLS token
        "classes",  # the head names classes
        "words",  # classes are words, whose embeddings are compared with the picture's
        "sigmoid",  # each class has its own probability
        "overlap",  # neighbouring patches share pixels
        "convolutions",  # that see more than one patch, before the layers or in them
        "linear mixing",  # one linear layer mixes the patches, as in ResMLP
        "gated",  # a gate mixes the patches, as in gMLP
        "trained",
        "shipped",  # trained by this project, so that the initial weights are known
        "carried",  # the maps count the vectors that attention adds, as chosen on the page
        "mimetic",  # initialised with local and global heads, and 2-D positions
    )
)
_PLAIN = frozenset(("global", "all-to-all", "prefix", "cls", "classes", "trained", "shipped"))


@dataclass(frozen=True)
class PageText:
    """The texts of one page; `papers` and `wrong` are Markdown lists, or empty."""

    title: str
    question: str
    lead: str
    equation: str
    see: str
    try_this: str
    papers: str
    wrong: str


def page_text(page: str, traits: frozenset[str] = _PLAIN) -> PageText:
    """Return the texts of one page for a model with these traits, by default a trained ViT.

    Raises
    ------
    ValueError
        When the file lacks a section, or a condition has an unknown trait.
    """
    return _page_text(page, traits, current_language())


@cache
def _page_text(page: str, traits: frozenset[str], language: str) -> PageText:
    head, *sections = _content(page, language).split("\n## ")
    title, question = (line for line in head.splitlines() if line.strip())
    by_name = {"What the papers found": "", "Often said, and wrong": ""}
    by_name |= dict(section.split("\n", 1) for section in sections)

    def section(name: str, between: str = " ") -> str:
        paragraphs = re.split(r"\n\s*\n", by_name[name].strip())
        return between.join(filter(None, (_apply_condition(each, traits) for each in paragraphs)))

    try:
        return PageText(
            title=title.removeprefix("# "),
            question=question,
            lead=section("In a sentence"),
            equation=section("Equation"),
            see=section("What you see"),
            try_this=section("Try this"),
            papers=section("What the papers found", "\n\n"),
            wrong=section("Often said, and wrong", "\n\n"),
        )
    except KeyError as missing:
        raise ValueError(f"{page}.md has no section {missing}.") from missing


def glossary() -> dict[str, str]:
    """Return the definition of each term by each of its forms, in lower case."""
    return _glossary(current_language())


@cache
def _glossary(language: str) -> dict[str, str]:
    entries = (entry.split("\n", 1) for entry in _content("glossary", language).split("\n## ")[1:])
    return {
        form: " ".join(definition.split())
        for forms, definition in entries
        for form in forms.lower().split(", ")
    }


def _content(name: str, language: str) -> str:
    content = (Path(__file__).parent / language / f"{name}.md").read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->\s*", "", content, flags=re.DOTALL)  # sources, for authors


def _apply_condition(paragraph: str, traits: frozenset[str]) -> str:
    """Return the paragraph without its condition, or nothing if the condition is false."""
    match = re.match(r"\[([^]]*)\]\s+", paragraph)
    if not match:
        return paragraph
    for condition in match[1].split(", "):
        trait = condition.removeprefix("not ")
        if trait not in TRAITS:
            names = ", ".join(sorted(TRAITS))
            raise ValueError(f"Unknown trait {trait!r} in a caption condition. Known: {names}.")
        if (trait in traits) == condition.startswith("not "):
            return ""
    return paragraph[match.end() :]
