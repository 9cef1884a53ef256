"""The teacher's guide, with every number and answer computed anew, and the worksheet.

    python docs/teaching.py

writes docs/teaching.md and docs/worksheet.md from docs/templates/; tests/test_docs.py checks that
they are up to date.
"""

import re
from itertools import zip_longest
from pathlib import Path
from typing import Any

import answers
import jinja2
import mistakes

from vitviz.cli.lesson_files import MODEL, MORE_MODELS, READY
from vitviz.text.lessons import LESSONS, link, settings_of

HERE = Path(__file__).parent
GUIDE, SHEET = HERE / "teaching.md", HERE / "worksheet.md"
SERVER = "http://localhost:8501"  # where the app is on the teacher's machine
_NUMBER = re.compile(r"(\d+\.\d+|\d+(?= %| times))")  # what is measured; counts are exact
_ROUNDING = re.compile(r"\b\de-(?:0[6-9]|[1-9]\d)\b")  # what is left of a difference that is none


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def points(share: float) -> str:
    """A difference of two shares."""
    return f"{100 * abs(share):.1f} percentage points"


def place(patch: tuple[int, ...] | str) -> str:
    """A patch by its row and column, or as an address has it: "8.11"."""
    row, column = patch.split(".") if isinstance(patch, str) else patch[:2]
    return f"row {row}, column {column}"


def number(value: float, digits: int = 1) -> str:
    return f"{value:,.{digits}f}"


def texts() -> dict[Path, str]:
    """What the guide and the worksheet say.

    Raises
    ------
    ValueError
        When a step of a lesson is missing in it, or a number does not show what the guide says.
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
        lessons=LESSONS,
        asked=settings_of,
        said=answers.said,
        link=lambda which, step=1: f"{SERVER}/{link(which, step)}",
        server=SERVER,
        model=MODEL,
        more_models=MORE_MODELS,
        ready=READY,
    )
    made = {
        file: environment.get_template(f"{file.name}.jinja2").render(facts)
        for file in (GUIDE, SHEET)
    }
    for which, lesson in enumerate(LESSONS, 1):
        for step in range(1, len(lesson.steps) + 1):
            if f"({SERVER}/{link(which, step)})" not in made[GUIDE]:
                raise ValueError(f"The guide does not answer step {which}.{step}.")
    return made


def differences(committed: str, made: str) -> list[str]:
    """The lines of two guides that differ by more than the last digit of what is measured.

    Another machine's arithmetic may round a number otherwise: by one in its last digit, not more.
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
    for file, text in texts().items():
        file.write_text(text, encoding="utf-8")
