"""Predict first: what is hidden until there is a guess, what is said then, and the class's."""

import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import vitviz
from pages.driver import (
    SHIPPED,
    address,
    assert_works,
    at_page,
    charts,
    components,
    listen,
    open_data,
    opened,
    opened_with_data,
    prose,
    shown,
    token_map,
    trigger,
)
from vitviz import inspection, intervention
from vitviz.app.shared import classroom, pictures, results, visitors
from vitviz.common.files import assets
from vitviz.text import guesses as text

WHO = Callable[[str], None]


@pytest.fixture(scope="module")
def acts() -> vitviz.Activations:
    data = (assets() / "samples" / f"{pictures.DEFAULT}.jpg").read_bytes()
    return vitviz.capture(vitviz.load_model(SHIPPED), vitviz.open_image(data))


@pytest.fixture
def who(monkeypatch: pytest.MonkeyPatch) -> Iterator[WHO]:
    """Who runs the next page, on a server for a class."""
    classroom.room.cache_clear()
    listen("0.0.0.0")
    monkeypatch.setattr(visitors, "address", lambda: "http://192.0.2.7:8501")

    def comes(name: str) -> None:
        monkeypatch.setattr(visitors, "is_teacher", lambda: name == "teacher")

    comes("student")
    yield comes
    classroom.room.cache_clear()


def board(at: AppTest) -> dict[str, object]:
    """What the board is told; empty where there is none."""
    return next((data for data in components(at, "vitviz_guess") if "state" in data), {})


def guess(at: AppTest, patch: int) -> AppTest:
    """What the browser tells of a patch that was guessed."""
    version = board(at)["version"]
    assert isinstance(version, int)
    return trigger(at, "vitviz_guess", "commit", {"patch": patch, "version": version + 1})


def told(at: AppTest) -> str:
    """The sentence on one's own guess; empty where there is none."""
    found = re.findall(rf"^\*\*{text.YOURS}:\*\* (.*)$", prose(at), re.MULTILINE)
    return found[0] if found else ""


def counted(at: AppTest) -> str:
    """What is said of the guesses of the class; empty where they are not shown."""
    found = re.findall(rf"^\*\*{text.OF_CLASS}:\*\* (.*)$", prose(at), re.MULTILINE)
    return found[0] if found else ""


def test_data_hunger_is_hidden_until_an_accuracy_is_guessed() -> None:
    hidden = opened_with_data("training", predict="True")
    assert not hidden.exception
    assert "right on 72 % of the test pictures. **How accurate" in prose(hidden)
    named = [alt for chart in charts(hidden) if "CNN" in (alt := chart.alt)]
    assert not any("4,500" in alt for alt in named)
    assert not hidden.dataframe
    hidden.slider(key="guess_percent").set_value(50).run()
    hidden.button(key="send guess").click().run()
    assert_works(hidden)
    assert told(hidden) == (
        "50 %. With a tenth of the pictures the ViT reaches 67 %, 17 percentage points away; "
        "the CNN reaches 78 %."
    )
    curve = next(chart for chart in charts(hidden) if "small CNN" in chart.alt)
    star = json.loads(curve.spec)["data"][-1]
    assert (star["x"], star["y"]) == ([4500], [50])
    hidden.button(key="guess again").click().run()
    assert "**How accurate" in prose(hidden)
    assert "How accurate" not in prose(shown("training"))


# --- alone ----------------------------------------------------------------------------------------


def test_attention_is_hidden_until_a_patch_is_guessed(acts: vitviz.Activations) -> None:
    at = opened(predict="True", layer="4", head="2")
    assert not at.exception
    assert not token_map(at)
    assert "On this picture" not in prose(at)
    assert "**Where does the CLS token look most** in layer 4, head 2?" in prose(at)
    assert board(at)["grid"] == {"rows": 16, "cols": 16, "crop": list(acts.crop)}
    assert not at.get("download_button")  # a report would show the map
    guess(at, 37)
    assert_works(at)
    assert at.get("download_button")
    assert not board(at)
    assert token_map(at)["guess"] == {"patch": 37, "rows": 16, "cols": 16}
    shares = acts.attention(3)[1, 0, 1:].reshape(16, 16)
    assert told(at) == text.describe_patch(shares, 37, "the CLS token", "layer 4, head 2", True)
    rank = 1 + int((shares > shares.flat[37]).sum())
    assert f"rank {rank} of 256" in told(at)


def test_a_guess_stays_with_its_layer_until_another_is_asked_for(acts: vitviz.Activations) -> None:
    at = guess(opened(predict="True", layer="4"), 37)
    said = told(at)
    at.slider(key="layer").set_value(6).run()
    assert token_map(at)["state"]["frame"] == 5
    assert told(at) == said
    at.button(key="guess again").click().run()
    assert not token_map(at)
    assert "in layer 6, mean of heads?" in prose(at)
    guess(at, 37)
    shares = acts.attention(5)[:, 0, 1:].mean(axis=0).reshape(16, 16)
    assert told(at) == text.describe_patch(
        shares, 37, "the CLS token", "layer 6, mean of heads", True
    )


def test_another_picture_is_another_question() -> None:
    at = guess(opened(predict="True"), 37)
    at.selectbox(key="picture").set_value("moose").run()
    assert board(at)
    assert not token_map(at)


def test_a_column_asks_who_attends_to_it(acts: vitviz.Activations) -> None:
    at = opened(predict="True", read="column", query="3.4")
    where = "the patch at row 3, column 4"
    assert f"**Which patch attends most to {where}** in layer 6" in prose(at)
    guess(at, 0)
    shares = acts.attention(5).mean(axis=0)[1:, 1 + 2 * 16 + 3].reshape(16, 16)
    assert told(at) == text.describe_patch(shares, 0, where, "layer 6, mean of heads", False)


def test_switched_off_and_on_it_asks_anew() -> None:
    at = guess(opened(predict="True"), 37)
    at.toggle(key="predict").set_value(False).run()
    assert_works(at)
    assert not told(at)
    assert token_map(at)["guess"] is None
    assert address(at) == {}
    at.toggle(key="predict").set_value(True).run()
    assert board(at)
    assert address(at) == {"predict": "True"}


def test_a_guess_beyond_the_grid_is_none() -> None:
    at = guess(opened(predict="True"), 256)
    assert not at.exception
    assert board(at)


def test_distance_is_hidden_until_a_layer_is_guessed(acts: vitviz.Activations) -> None:
    at = opened("distance", predict="True")
    assert not at.exception
    assert not charts(at)
    assert "On this picture" not in prose(at)
    assert at.button(key="send guess").disabled
    at.pills(key="guess_layer").set_value(3).run()
    at.button(key="send guess").click().run()
    assert_works(at)
    by_layer = np.nanmean(inspection.attention_distance(acts), axis=1)
    assert told(at) == text.describe_layer(by_layer, 2)
    assert charts(at)[0].alt.endswith("Layer 3 was guessed.")


def test_layers_that_cannot_be_compared_are_not_guessed(narrow: None) -> None:
    at = opened("distance", predict="True", model="swin_tiny_patch4_window7_224", weights="random")
    assert_works(at)
    assert charts(at)
    assert text.NOT_COMPARED in [one.value for one in at.info]


def test_windows_are_guessed_in_the_grid_of_their_layer(narrow: None) -> None:
    swin = dict(model="swin_tiny_patch4_window7_224", weights="random")
    at = opened(predict="True", layer="3", query="1.1", **swin)
    grid = board(at)["grid"]
    assert isinstance(grid, dict)
    assert (grid["rows"], grid["cols"]) == (28, 28)
    guess(at, 28 * 28 - 1)  # outside of the window of the query
    assert_works(at)
    assert "gets 0 % of the attention of the patch at row 1, column 1 in layer 3" in told(at)
    assert token_map(at)["guess"] == {"patch": 783, "rows": 28, "cols": 28}


@pytest.mark.parametrize("page", ["attention", "distance"])
def test_no_table_holds_what_is_hidden(page: str) -> None:
    at = opened_with_data(page, predict="True")
    assert not at.exception
    assert not at.dataframe
    at.toggle(key="predict").set_value(False).run()
    assert at.dataframe


def test_blocks_are_hidden_until_one_is_guessed(serve: Callable[..., vitviz.Model]) -> None:
    model = serve("plain", image_size=(32, 48), depth=1)  # 8 x 12 patches, 2 x 3 blocks
    results.capture_cache.clear()
    at = opened("classify", predict="True", fill="mean")
    image = pictures.sample(pictures.DEFAULT).image
    left, top, right, bottom = vitviz.capture(model, image).crop
    run = "run occlusion"
    assert run not in [button.key for button in at.button]
    assert board(at)["grid"] == {"rows": 2, "cols": 3, "crop": [left, top, right, bottom]}
    guess(at, 4)
    assert not board(at)
    assert told(at) == text.describe_pending_block(4, 3)
    at.button(key=run).click().run()
    assert_works(at)
    (chart,) = [one for one in charts(at) if "Hiding a block" in one.alt]
    assert chart.alt.endswith("A white box is around the guess.")
    box = json.loads(chart.spec)["layout"]["shapes"][-1]
    wide, high = (right - left) / 3, (bottom - top) / 2
    wanted = (left + wide, top + high, left + 2 * wide, bottom)
    assert [box[edge] for edge in ("x0", "y0", "x1", "y1")] == pytest.approx(wanted)
    best = int(intervention.logit_lens(model, vitviz.capture(model, image))[-1].argmax())
    falls = intervention.occlusion(model, image, target=best, block=4, removal="mean")
    assert told(at) == text.describe_block(falls[::4, ::4], 4, f"output {best}")
    at.button(key="guess again").click().run()
    assert board(at)
    assert not [one for one in charts(at) if "Hiding a block" in one.alt]
    tables = [frame.value for frame in open_data(at, "classify").dataframe]
    assert not any("fall, percentage points" in table for table in tables)


# --- with a class ---------------------------------------------------------------------------------


def test_a_teacher_sees_all_guesses_and_shows_them(who: WHO) -> None:
    who("teacher")
    teacher = opened(predict="True", layer="4")
    assert counted(teacher) == "No guess yet."
    who("student")
    students = [opened(predict="True", layer="4") for _ in range(3)]
    for student, patch in zip(students, (37, 37, 40), strict=True):
        guess(student, patch)
        assert told(student)
        assert not counted(student)
    who("teacher")
    teacher.run()
    assert counted(teacher) == text.describe_count(3)
    assert not token_map(teacher)
    (chart,) = charts(teacher)
    assert chart.alt == "Guesses of the class: most at row 3, column 6, 2 of 3."
    late = opened(predict="True", layer="4")
    (reveal,) = [button for button in teacher.button if button.label == text.REVEAL]
    reveal.click().run()
    assert token_map(teacher)
    who("student")
    for student in (*students, late):
        student.run()
        assert token_map(student)
        assert counted(student) == text.describe_count(3)
    assert not told(late)


@pytest.mark.parametrize("page", ["attention", "distance"])
def test_students_wait_for_the_figure_where_the_teacher_wants_it(page: str, who: WHO) -> None:
    def guessed(at: AppTest) -> AppTest:
        if page == "attention":
            return guess(at, 37)
        at.pills(key="guess_layer").set_value(3).run()
        return at.button(key="send guess").click().run()

    who("teacher")
    teacher = opened(page, predict="True")
    teacher.toggle(key="wait").set_value(True).run()
    who("student")
    asked, other = guessed(opened(page, predict="True")), opened(page, predict="True")
    assert text.SENT in [info.value for info in asked.info]
    assert not other.info
    assert not told(asked)
    elsewhere = guess(opened(predict="True", layer="5", query="1.1"), 37)
    assert told(elsewhere)  # the class is not asked this
    who("teacher")
    assert counted(teacher.run()) == "One guess."
    (reveal,) = [button for button in teacher.button if button.label == text.REVEAL]
    reveal.click().run()
    who("student")
    assert told(asked.run())
    assert not asked.info
    assert not told(other.run())
    assert counted(other) == "One guess."


def test_a_teacher_who_turns_to_another_view_forgets_the_guesses(who: WHO) -> None:
    who("teacher")
    teacher = opened(predict="True", layer="4")
    who("student")
    guess(opened(predict="True", layer="4"), 37)
    who("teacher")
    assert counted(teacher.run()) == "One guess."
    teacher.slider(key="layer").set_value(5).run()
    assert counted(teacher) == "No guess yet."
    teacher.slider(key="layer").set_value(4).run()
    assert counted(teacher) == "No guess yet."


def test_a_pin_asks_all_students_anew(who: WHO) -> None:
    who("student")
    student = guess(opened(predict="True", layer="4"), 37)
    assert token_map(student)
    who("teacher")
    teacher = guess(opened(predict="True", layer="5"), 1)
    teacher.button(key="pin").click().run()
    assert not token_map(teacher)
    who("student")
    student.run()
    assert not token_map(student)
    assert "in layer 5, mean of heads?" in prose(student)
    guess(student, 38)
    who("teacher")
    at_page(teacher, "attention").run()
    assert counted(teacher) == "One guess."


def test_a_teacher_looks_elsewhere_while_students_guess_at_what_is_pinned(who: WHO) -> None:
    who("teacher")
    teacher = opened(predict="True", layer="4")
    teacher.button(key="pin").click().run()
    who("student")
    student = guess(opened(), 37)
    late = opened()
    who("teacher")
    teacher.slider(key="layer").set_value(5).run()
    assert counted(teacher) == "No guess yet."  # at this question
    teacher.slider(key="layer").set_value(4).run()
    assert counted(teacher) == "One guess."
    (reveal,) = [button for button in teacher.button if button.label == text.REVEAL]
    reveal.click().run()
    who("student")
    for one in (student, late):
        assert token_map(one.run())
        assert counted(one) == "One guess."


def test_layers_guessed_by_a_class_are_bars(who: WHO) -> None:
    who("teacher")
    teacher = opened("distance", predict="True")
    who("student")
    student = opened("distance", predict="True")
    student.pills(key="guess_layer").set_value(3).run()
    student.button(key="send guess").click().run()
    who("teacher")
    (chart,) = charts(teacher.run())
    assert chart.alt == "Guesses of the class: most for layer 3, 1 of 1."
