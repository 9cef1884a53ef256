"""Write the teacher's guide and the worksheet, with every number computed anew.

    python docs/teaching.py

It fills the templates in docs/templates/ and writes docs/teaching.md and docs/worksheet.md.
tests/test_docs.py checks that these are up to date.
"""

import argparse
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import answers
import jinja2
import mistakes

from vitviz.cli.lesson import MORE_MODELS, READY
from vitviz.common import DEFAULT_MODEL
from vitviz.text.lessons import LESSONS, lesson_link, settings_of

HERE = Path(__file__).parent
GUIDE, SHEET = HERE / "teaching.md", HERE / "worksheet.md"
SERVER = "http://localhost:8501"  # where the app is on the teacher's machine
#: Minutes before the first lesson, between the fourth and the fifth, and at the end of each.
OPENING, DISCUSSION, COMPARISON = 8, 5, 1
_NUMBER = re.compile(r"(\d+\.\d+|\d+(?= %| times))")  # measurements; counts must be equal
_ROUNDING = re.compile(r"\b\de-(?:0[6-9]|[1-9]\d)\b")  # rounding errors around 0


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def points(share: float) -> str:
    """Return the difference of two shares in words."""
    return f"{100 * abs(share):.1f} percentage points"


def place(patch: tuple[int, ...] | str) -> str:
    """Return the row and column of a patch in words; in a link it is written as "8.11"."""
    row, column = patch.split(".") if isinstance(patch, str) else patch[:2]
    return f"row {row}, column {column}"


def number(value: float, digits: int = 1) -> str:
    return f"{value:,.{digits}f}"


def lesson_minutes() -> list[tuple[int, int]]:
    """Return the minute of the class at which each lesson begins, and that at which it ends."""
    spans, end = [], OPENING
    for which, lesson in enumerate(LESSONS, 1):
        begin = end + (DISCUSSION if which == 5 else 0)
        end = begin + sum(step.minutes for step in lesson.required) + COMPARISON
        spans.append((begin, end))
    return spans


def texts() -> dict[Path, str]:
    """Return the text of the guide and of the worksheet.

    Raises
    ------
    ValueError
        When the guide lacks a step of a lesson, or a number contradicts its sentence.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= dict(percent=percent, points=points, place=place, number=number)
    found: dict[str, Any] = {each.__name__: each() for each in answers.LESSONS}
    facts = dict(
        **found,
        wrong=mistakes.numbers(),
        picture=mistakes.PICTURE.replace("_", " "),
        lessons=LESSONS,
        minutes=lesson_minutes(),
        asked=settings_of,
        said=answers.final_sentences,
        link=lambda which, step=1: f"{SERVER}/{lesson_link(which, step)}",
        server=SERVER,
        model=DEFAULT_MODEL,
        more_models=MORE_MODELS,
        ready=READY,
    )
    pages = {
        file: environment.get_template(f"{file.name}.jinja2").render(facts)
        for file in (GUIDE, SHEET)
    }
    for which, lesson in enumerate(LESSONS, 1):
        for step in range(1, len(lesson.steps) + 1):
            if f"({SERVER}/{lesson_link(which, step)})" not in pages[GUIDE]:
                raise ValueError(f"The guide does not answer step {which}.{step}.")
    return pages


def differences(committed: str, made: str) -> list[str]:
    """Return the lines that differ by more than one in the last digit of a measurement.

    Another machine may round a measurement differently, by one in its last digit.
    """
    lines = zip_longest(committed.splitlines(), made.splitlines(), fillvalue="(no line)")
    return [f"{one}\n{other}" for one, other in lines if not _alike(one, other)]


def _alike(one: str, other: str) -> bool:
    words, others = (_NUMBER.split(_ROUNDING.sub("0", line)) for line in (one, other))
    if words[::2] != others[::2]:
        return False
    return all(
        len(first.partition(".")[2]) == len(second.partition(".")[2])
        and abs(int(first.replace(".", "")) - int(second.replace(".", ""))) <= 1
        for first, second in zip(words[1::2], others[1::2], strict=True)
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0]).parse_args()
    for file, text in texts().items():
        file.write_text(text, encoding="utf-8")
