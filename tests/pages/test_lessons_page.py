"""A lesson on screen: its steps open, hide what they do not need, and end with what was found."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import vitviz
from pages.driver import SHIPPED, address, at_page, components, opened, prose, shown, token_map
from vitviz import Model
from vitviz.app.lessons import findings
from vitviz.app.settings import NAMES
from vitviz.app.shared import classroom, models, pictures, results
from vitviz.app.shared.view import View
from vitviz.common.language import literal
from vitviz.text.lessons import LESSONS, settings_of
from vitviz.web.anatomy_map import script

ROOT = Path(__file__).parents[2]
STEPS = [
    (number, step)
    for number, lesson in enumerate(LESSONS, start=1)
    for step in range(1, len(lesson.steps) + 1)
]
TOOLS = {"read", "view", "scale", "leave_out", "smooth"}  # drawn by the token map itself
KINDS = (
    "selectbox",
    "slider",
    "select_slider",
    "toggle",
    "button_group",
    "radio",
    "checkbox",
    "number_input",
)


def begun(number: int, step: int = 1, **more: str) -> AppTest:
    """A step, from its link."""
    return opened(LESSONS[number - 1].steps[step - 1].page, **settings_of(number, step), **more)


def controls(at: AppTest) -> set[str]:
    """The settings whose controls are on screen."""
    keys = {widget.key for kind in KINDS for widget in at.get(kind)}
    keys |= {getattr(each, "key", None) for each in at.get("segmented_control")}
    return {key for key in keys if key in NAMES} | {*token_map(at).get("tools", ())}


def words(at: AppTest) -> str:
    """All that can be read on screen, and what the browser's components say beside."""
    labels = [getattr(each, "label", "") for kind in (*KINDS, "button") for each in at.get(kind)]
    sent = [proto.proto.mixed.json or proto.proto.json for proto in at.get("bidi_component")]
    popovers = [each.proto.popover.label for each in at.get("popover")]
    return " ".join([prose(at), *labels, *sent, *popovers, script()])


def test_findings_that_are_cancelled_are_not_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(view: View, key: tuple[str, ...], make: object) -> tuple[str, ...]:
        st.button("Cancel", key=f"cancel {key[0]}")  # as while it is computed
        return ()

    monkeypatch.setattr(results, "experiment", begin)
    at = begun(2, len(LESSONS[1].required))
    at.toggle(key="lesson_found").set_value(True).run()
    at.button(key="cancel lesson").click().run()
    assert not at.toggle(key="lesson_found").value
    assert not [button for button in at.button if button.key == "cancel lesson"]


def press(at: AppTest, key: str) -> AppTest:
    return at.button(key=key).click().run()


@pytest.mark.parametrize(("number", "step"), STEPS)
def test_a_link_opens_its_step_and_hides_what_it_does_not_need(number: int, step: int) -> None:
    at, this = begun(number, step), LESSONS[number - 1].steps[step - 1]
    assert not at.exception
    assert not at.error
    assert [info.value for info in at.info] == []  # nothing of the link is refused
    assert at.title[0].value == f"Lesson {number}: {LESSONS[number - 1].title}"
    assert this.task in prose(at)
    assert address(at)["lesson"] == f"{number}.{step}"
    sheet = (ROOT / "docs" / "worksheet.md").read_text(encoding="utf-8")
    (asked,) = re.findall(
        rf"^\*\*{number}{'abc'[step - 1]}\.\*\*(.*?)(?=^\*\*\d|^##)", sheet, re.M | re.S
    )
    for word in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", this.task + asked):
        assert word in words(at)  # what is in italics stands on the screen
    wanted = {name for name in this.shows if name in NAMES}
    if this.optional:  # the rest is drawn for models with a text tower
        wanted &= {"picture", "model"}
    usual = {"lang", "presenter", *(["seen"] if "picture" in wanted else [])}
    assert controls(at) == wanted - (set() if token_map(at) else TOOLS) | usual
    assert not {"reset", "next", "report"} & {button.key for button in at.button}
    for anatomy in components(at, "vitviz_anatomy"):
        assert anatomy.get("guided", True)  # its steps have no numbers of their own
    ends = step >= len(LESSONS[number - 1].required)
    assert ("lesson_found" in {each.key for each in at.toggle}) == ends
    last = step == len(LESSONS[number - 1].steps)
    assert ("lesson next" in {button.key for button in at.button}) == (not last)
    assert "Next" not in "".join(
        button.label for button in at.button if button.key != "lesson next"
    )


def test_outside_a_lesson_everything_is_drawn() -> None:
    assert {"model", "weights", "layer", "predict", *TOOLS} <= controls(shown("attention"))


def test_a_lesson_that_is_none_is_refused() -> None:
    at = opened("attention", lesson="8<b>")
    (info,) = at.info
    assert info.value == f"Lesson: {literal('8<b>')} is not valid here; none is used."
    assert at.title[0].value.startswith("Attention")
    assert "lesson" not in address(at)
    assert "model" in controls(at)


def test_a_picture_of_the_readers_stays_but_where_a_step_has_its_own() -> None:
    at = begun(3, 2)
    at.selectbox(key="picture").set_value("koala").run()
    press(at, "lesson back")
    assert address(at) == {"lesson": "3.1", "picture": "koala", "predict": "True"}
    press(press(at, "lesson next"), "lesson next")
    maps = "relevance rollout last"
    assert address(at) == {"lesson": "3.3", "picture": "cat", "maps": maps}
    press(at, "lesson back")
    assert address(at)["picture"] == "duck"


def test_the_next_lesson_begins_with_its_own_picture() -> None:
    at = begun(3, 3)
    at.selectbox(key="picture").set_value("koala")
    at.toggle(key="lesson_found").set_value(True).run()
    press(at, "lesson after")
    assert at.title[0].value == "Lesson 4: Local or global?"
    assert address(at) == {"lesson": "4.1", "picture": "dog", "predict": "True"}


def test_leaving_keeps_the_picture_and_every_setting() -> None:
    at = begun(3, 3)
    before = address(at)
    press(at, "lesson leave")
    assert address(at) == {name: said for name, said in before.items() if name != "lesson"}
    assert {"picture", "model", "class"} <= controls(at)
    assert at.title[0].value == "Explain: Which patches made the answer, and how do I know?"


def test_another_page_is_whole_and_leads_back() -> None:
    at = begun(5, 2)
    at_page(at, "attention").run()
    assert "model" in controls(at)
    assert "**Lesson 5: What reaches CLS?** is at step 2, on another page." in prose(at)
    press(at, "lesson again")
    assert at.title[0].value == "Lesson 5: What reaches CLS?"
    assert controls(at) == {"lang", "presenter", "picture", "seen", "class"}


def test_the_menu_begins_each_lesson() -> None:
    at = opened("tokens", picture="cat", layer="2")
    keys = [button.key for button in at.button if (button.key or "").startswith("lesson ")]
    assert keys == [f"lesson {number}" for number in range(1, 8)]
    press(at, "lesson 5")
    assert address(at) == {"lesson": "5.1", "picture": "bison", "layer": "1"}


@pytest.mark.parametrize("number", [2, 3])  # with passes of its own, and without
def test_what_was_found_is_of_the_picture_on_screen(number: int) -> None:
    at = begun(number, len(LESSONS[number - 1].steps))
    at.toggle(key="lesson_found").set_value(True).run()
    model = models.load_by_name(SHIPPED)
    picture = pictures.sample(LESSONS[number - 1].picture)
    acts = results.capture_picture(model, picture)
    for sentence in findings(number, model, picture.image, acts):
        assert f"- {sentence}" in prose(at)


def test_a_model_of_another_kind_is_refused_in_a_sentence(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr(vitviz.Activations, "all_to_all", property(lambda self: False))
    at = opened("explain", lesson="3.3")
    at.toggle(key="lesson_found").set_value(True).run()
    assert "is not about models such as" in prose(at)


def test_a_view_that_is_pinned_carries_its_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitviz.app.shared import visitors

    who: dict[str, Any] = {"teacher": True}
    classroom.room.cache_clear()
    monkeypatch.setattr(visitors, "for_class", lambda: True)
    monkeypatch.setattr(visitors, "is_teacher", lambda: who["teacher"])
    monkeypatch.setattr(visitors, "address", lambda: "http://192.0.2.7:8501")
    teacher = begun(4, 1)
    press(teacher, "pin")
    who["teacher"] = False
    student = opened("tokens", picture="cat")
    assert student.title[0].value == "Lesson 4: Local or global?"
    assert address(student) == address(teacher)
    classroom.room.cache_clear()
