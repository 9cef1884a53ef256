"""The lessons: every step has an address, and the address names the step."""

from urllib.parse import parse_qs, urlparse

import pytest

from vitviz.app.settings import NAMES
from vitviz.checkpoints import assets
from vitviz.text import PAGES
from vitviz.text.lessons import LESSONS, link, named, settings_of

STEPS = [
    (number, step)
    for number, lesson in enumerate(LESSONS, start=1)
    for step in range(1, len(lesson.steps) + 1)
]


def test_there_are_seven_lessons_of_two_to_four_steps() -> None:
    assert len(LESSONS) == 7
    assert {len(lesson.steps) for lesson in LESSONS} <= {2, 3, 4}


@pytest.mark.parametrize(("number", "step"), STEPS)
def test_a_link_holds_the_whole_view_and_names_its_step(number: int, step: int) -> None:
    parts = urlparse(link(number, step))
    held = {name: value for name, (value,) in parse_qs(parts.query).items()}
    assert parts.path in PAGES
    assert held == settings_of(number, step)
    assert set(held) <= set(NAMES)
    assert named(held["lesson"]) == (number, step)
    assert (assets() / "samples" / f"{held['picture']}.jpg").is_file()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3", (3, 1)),
        ("3.2", (3, 2)),
        ("0", None),
        ("8", None),
        ("3.0", None),
        ("3.9", None),
        ("3.", None),
        ("three", None),
        ("-1", None),
        ("٣", None),  # a digit, but not one that a link has
        ("", None),
    ],
)
def test_a_text_names_a_lesson_and_a_step_or_none(
    text: str, numbers: tuple[int, int] | None
) -> None:
    assert named(text) == numbers
