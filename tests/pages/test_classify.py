"""Classify: what is taken away is in the address, in the answer, and can be taken back."""

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from examples import own_module, picture, watched
from streamlit.runtime.scriptrunner_utils.exceptions import StopException
from streamlit.testing.v1 import AppTest

from pages.driver import (
    SHIPPED,
    address,
    assert_works,
    charts,
    click,
    numbers,
    of_sample,
    open_data,
    opened,
    prose,
    until,
)
from vitviz import Model, ModelError, attribution, capture
from vitviz.activations import DropPatches, FillPatches, MuteHeads
from vitviz.app import cells
from vitviz.app.shared import models, pictures, queue, results
from vitviz.app.widgets import class_menu
from vitviz.common.language import tr, use_language
from vitviz.intervention import head_effects, mean_head_outputs, occlusion
from vitviz.model.answers import Grade, Grades
from vitviz.text.class_names import common_names


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    results.capture_cache.clear()  # what one test has measured is drawn at once in the next


PATCHES, ANSWER, HEADS = 0, 1, 2
LITTLE = "vitviz_tiny_cifar10"


def alt(at: AppTest, figure: int) -> str:
    text: str = charts(at)[figure].alt
    return text


def expected(model: Model, *edits: Any) -> np.ndarray:
    image = pictures.sample(pictures.DEFAULT).image
    probabilities = capture(model, image, edits=edits).probabilities
    assert probabilities is not None
    return probabilities


def assert_answers(at: AppTest, probabilities: np.ndarray) -> None:
    for share in probabilities:
        assert f"and then {100 * share:.1f} %" in alt(at, ANSWER)


# --- cells as text ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_cells_are_read_as_they_were_written(seed: int) -> None:
    mask = np.random.default_rng(seed).random((5, 8)) < 0.2 * seed
    read = cells.read_cells(cells.cells_text(mask), (5, 8))
    assert read is not None
    np.testing.assert_array_equal(read, mask)


def test_a_rectangle_is_one_piece() -> None:
    mask = np.zeros((5, 8), bool)
    mask[1:4, 2:8] = True
    assert cells.cells_text(mask) == "2.3-4.8"
    mask[0, 0] = True
    assert cells.cells_text(mask) == "1.1 2.3-4.8"
    assert cells.cells_text(np.zeros((2, 2))) == ""


@pytest.mark.parametrize("text", ["0.1", "6.1", "1.9", "3", "a", "2.2-1.1", "1.1,2.2", "1.1-", "²"])
def test_a_text_that_cannot_be_read_is_none(text: str) -> None:
    assert cells.read_cells(text, (5, 8)) is None


def test_chosen_cells_are_added_and_taken_out_only_where_all_were_in() -> None:
    mask = cells.toggle_cells(np.zeros((2, 3), bool), [0, 4])
    assert np.flatnonzero(mask).tolist() == [0, 4]
    assert np.flatnonzero(cells.toggle_cells(mask, [0, 1])).tolist() == [0, 1, 4]
    assert np.flatnonzero(cells.toggle_cells(mask, [0])).tolist() == [4]


# --- the page -----------------------------------------------------------------------------------


def test_patches_that_are_clicked_go_and_come_back(serve: Callable[[str], Model]) -> None:
    model = serve("plain")  # 4 x 6 patches
    at = opened("classify")
    assert_works(at)
    before = alt(at, ANSWER)
    click(at, PATCHES, 0, 1, 6, 7)
    assert_works(at)
    assert address(at) == {"painted": "1.1-2.2"}
    assert "4 of 24 patches removed (tokens dropped)" in alt(at, PATCHES)
    mask = np.zeros((4, 6), bool)
    mask[:2, :2] = True
    assert_answers(at, expected(model, DropPatches(mask)))
    assert "Logit lens after your changes" in [heading.value for heading in at.subheader]
    removals: dict[Any, str] = {"blur": "blur", "mean": "mean colour"}
    for fill, words in removals.items():
        at.segmented_control(key="fill").set_value(fill).run()
        assert address(at) == {"painted": "1.1-2.2", "fill": fill}
        assert_answers(at, expected(model, FillPatches(mask, fill)))
        assert f"Blocks are hidden as chosen above: {words}." in prose(at)
    click(at, PATCHES, 7)
    assert address(at)["painted"] == "1.1-1.2 2.1"
    at.button(key="opposite painted").click().run()
    assert "21 of 24" in alt(at, PATCHES)
    at.button(key="clear painted").click().run()
    assert address(at) == {"fill": "mean"}
    assert alt(at, ANSWER) == before
    assert "Logit lens" in [heading.value for heading in at.subheader]


def test_heads_that_are_clicked_are_mute(serve: Callable[[str], Model]) -> None:
    model = serve("plain")  # 3 layers of 4 heads
    at = opened("classify", painted="4.6")
    click(at, HEADS, 4)
    assert_works(at)
    assert address(at) == {"painted": "4.6", "muted": "2.1"}
    assert "1 of 12 heads are muted: layer 2, head 1" in alt(at, HEADS)
    mask = np.zeros((4, 6), bool)
    mask[3, 5] = True
    assert_answers(at, expected(model, DropPatches(mask), MuteHeads([(1, 0)])))


def test_cells_can_be_typed(serve: Callable[[str], Model]) -> None:
    serve("plain")
    at = opened("classify")
    at.text_input(key="muted").set_value("1.1-3.4").run()
    assert "12 of 12 heads are muted" in alt(at, HEADS)
    at.text_input(key="muted").set_value("head two").run()
    (said,) = [info.value for info in at.info]
    assert said == "Muted: head two is not valid here; none is used."
    assert "No head is muted" in alt(at, HEADS)
    assert address(at) == {}


def test_what_starts_from_the_unedited_picture_is_named(serve: Callable[[str], Model]) -> None:
    """And not the logit lens, which is of the edited one."""
    serve("plain")
    at = opened("classify")
    (sentence,) = re.findall(r"^.* unedited .*$", prose(at), re.MULTILINE)
    named = re.findall(r"\*([A-Z][a-z ]+)\*", sentence)
    buttons = [button.label.partition(" (")[0] for button in at.button]
    assert set(named) == {"Hide blocks", "Mute each alone", "Split the logit"} <= {*buttons}
    edited = opened("classify", painted="1.1")
    assert "Logit lens after your changes" in [each.value for each in edited.subheader]


def test_what_does_not_fit_the_next_model_is_told(serve: Callable[[str], Model]) -> None:
    serve("square")  # 6 x 6 patches
    at = opened("classify", painted="6.6")
    assert not at.info
    serve("plain")
    at.run()
    assert [info.value.split(":")[0] for info in at.info] == ["Painted"]
    assert address(at) == {}


def test_what_each_block_costs_stands_over_the_unchanged_picture(
    serve: Callable[[str], Model],
) -> None:
    model = serve("plain")
    image = pictures.sample(pictures.DEFAULT).image
    effect = 100 * occlusion(model, image, target=3, block=2, removal="mean")
    at = opened("classify", **{"class": "3", "block": "2", "fill": "mean"})
    assert "Hiding a block" not in alt(at, PATCHES)
    at.button(key="run occlusion").click().run()
    assert_works(at)
    drawn = json.loads(charts(at)[PATCHES].spec)
    np.testing.assert_allclose(numbers(drawn["data"][1]["z"]), effect, atol=1e-4)
    texts = [re.sub("</?b>", "", one["text"]) for one in drawn["layout"]["annotations"]]
    assert texts == [f"{points:+.1f}" for points in effect[::2, ::2].ravel()]
    assert f"from {effect.min():+.1f} percentage points" in alt(at, PATCHES)
    assert "Percentage points that the probability of **output 3** loses" in prose(at)
    changed = opened("classify", painted="1.1", **address(at))
    assert "Hiding a block" not in alt(changed, PATCHES)  # that was of the whole picture


def test_blocks_of_few_patches_are_parts_of_the_picture(serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("classify")
    assert at.segmented_control(key="block").value == 4
    serve("plain", image_size=(8, 16))  # 2 x 4 patches
    at.run()
    assert at.segmented_control(key="block").value == 2
    assert at.button(key="run occlusion").label == "Hide blocks (3 passes)"
    assert not at.info  # nobody has chosen 4
    assert address(at) == {}


def test_experiments_of_many_passes_wait_for_their_button(
    serve: Callable[[str], Model],
) -> None:
    model, image = serve("plain"), pictures.sample(pictures.DEFAULT).image
    plain = capture(model, image)
    assert plain.logits is not None
    assert plain.probabilities is not None
    at = opened("classify", **{"class": "3"})
    assert_works(at)
    drawn = len(charts(at))
    labels = ("Hide blocks (3 passes)", "Mute each alone (12 passes)")
    for key, label in zip(("run occlusion", "run head effects"), labels, strict=True):
        assert at.button(key=key).label == label
        at.button(key=key).click().run()
        assert_works(at)
        assert key not in [button.key for button in at.button]
        assert not [button for button in at.button if button.label == "Cancel"]
        assert len(charts(at)) == drawn
    assert "changes the logit of output 3" in alt(at, HEADS)
    assert address(at) == {"class": "3"}
    at.segmented_control(key="block").set_value(2).run()
    assert "Hiding a block" not in alt(at, PATCHES)  # of other blocks nothing is known yet
    at.segmented_control(key="block").set_value(4)
    open_data(at, "classify")
    assert len(charts(at)) == drawn

    _, heads, blocks = (frame.value for frame in at.dataframe)
    assert list(heads["layer"]) == [1] * 4 + [2] * 4 + [3] * 4
    effects = head_effects(model, image)[..., 3] - plain.logits[3]  # muted minus as it is
    np.testing.assert_allclose(heads["logit of output 3"], effects.ravel(), atol=1e-5)
    (squares, *_) = json.loads(charts(at)[HEADS].spec)["data"]
    np.testing.assert_allclose(numbers(squares["marker"]["color"]), effects.ravel(), atol=1e-5)
    falls = 100 * occlusion(model, image, target=3, block=4, removal="drop")
    np.testing.assert_allclose(blocks["fall, percentage points"], falls.ravel(), atol=1e-4)


def test_between_two_passes_others_go_first(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    order, line = [], queue.pass_queue()

    def other() -> None:
        with line.turn(lambda ahead: None):
            order.append("another's pass")
            until(lambda: len(drawn) > 1)

    thread = threading.Thread(target=other)

    def made(
        model: Model, image: object, *, values: object, progress: Callable[[int, int], None]
    ) -> np.ndarray:
        order.append("a pass")
        thread.start()
        until(lambda: line.length == 2)
        progress(1, 2)
        order.append("a pass")
        return np.zeros((3, 4, 5), np.float32)

    drawn: list[str] = []

    def draw(place: object, value: float, text: str = "") -> object:
        drawn.append(text)
        return place

    monkeypatch.setattr("vitviz.intervention.head_effects", made)
    at = opened("classify")
    monkeypatch.setattr("streamlit.delta_generator.DeltaGenerator.progress", draw)
    at.button(key="run head effects").click().run()
    thread.join()
    assert not at.exception
    assert order == ["a pass", "another's pass", "a pass"]
    assert drawn[0] == "Pass 2 of 2"
    assert set(drawn[1:]) == {"Pass 2 of 2 · 1 ahead of you"}
    assert not line.length


def test_a_cancelled_experiment_leaves_nothing_behind(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    at = opened("classify")

    def stopped(*_: object, **__: object) -> object:
        raise StopException  # as drawing does once a newer run is asked for

    with monkeypatch.context() as patch:
        patch.setattr("streamlit.delta_generator.DeltaGenerator.progress", stopped)
        at.button(key="run occlusion").click().run()
    assert not queue.pass_queue().length
    at.run()
    assert_works(at)
    assert "run occlusion" in [button.key for button in at.button]


def test_the_page_says_what_the_answer_cannot_say_and_how_far_it_can_be_relied_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = opened("classify", model=LITTLE)
    assert_works(at)
    assert "All 10 classes that it knows: airplane, " in prose(at)
    assert "It can only answer with one of these names" in prose(at)
    many = opened("classify")
    (field,) = [one for one in many.text_input if one.label == "Find a name"]
    field.set_value("lesser").run()
    listed = next(frame.value for frame in many.dataframe if "also called" in frame.value)
    assert listed.to_numpy().tolist() == [["red panda", "lesser panda"]]
    assert "trained on the last layer only" in prose(at)
    assert "test pictures, " not in prose(at) or models.load_by_name(LITTLE).grades is not None
    rates: Mapping[Grade, float] = {
        "confident": 0.91,
        "unsure": 0.62,
        "weak": 0.17,
    }
    for (low, high), said in {
        (0.1, 0.11): "**Confident answer.** It has 11 % or more. On 10,000 test pictures, 91 % of",
        (0.1, 1.01): "**Unsure answer.** It has between 10 % and 101 %. On 10,000 test pictures, 6",
        (1.01, 1.02): "**Weak answer.** It has less than 101 %. On 10,000 test pictures, 17 % of",
    }.items():
        grades = Grades(low, high, rates, 10_000)
        monkeypatch.setattr(models.load_by_name(LITTLE), "grades", grades)
        at = opened("classify", model=LITTLE)
        assert said in prose(at)
        assert "it can be confident and wrong" in prose(at)
    assert "answer.** It has" not in prose(opened("classify", model=LITTLE, painted="1.1"))
    at = opened("classify", model=LITTLE)
    at.segmented_control(key="weights").set_value("random").run()
    assert "**random weights**: the answer means nothing" in prose(at)


def test_a_class_of_many_names_has_one_in_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ("tabby, tabby cat", "a", "great white shark alone, man-eater", "b", "c")
    acts = capture(watched(own_module(), (16, 24), labels=labels), picture())
    named = Mock(wraps=common_names)
    monkeypatch.setattr(class_menu, "common_names", named)
    assert class_menu.names(acts) == ("tabby", "a", "great white shark alo…", "b", "c")
    assert named.call_count == 1  # all together: 1,000 classes one by one took seconds


def test_outputs_without_names_are_numbered_and_said_to_have_none(
    serve: Callable[..., Model],
) -> None:
    serve("plain")
    at = opened("classify")
    assert_works(at)
    names = [bar.split(". ", 1)[1] for bar in json.loads(charts(at)[ANSWER].spec)["data"][0]["y"]]
    assert len(names) == 5
    assert all(re.fullmatch(r"output \d+", name) for name in names)
    assert "Its 5 outputs have no names that are known here." in prose(at)
    assert "It knows" not in prose(at)


def test_patches_are_painted_where_attention_knows_positions(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr(Model, "positional_attention", True)
    at = opened("classify")
    assert at.session_state["fill"] == "mean"


@pytest.mark.usefixtures("few_samples")
def test_a_muted_head_gives_what_it_gives_on_other_pictures(serve: Callable[..., Model]) -> None:
    model = serve("plain", depth=2)
    at = opened("classify", muted="2.1")
    for instead, meant in (("cat", ["cat"]), ("mean", list(pictures.samples()))):
        at.selectbox(key="mute_to").set_value(instead).run()
        assert_works(at)
        assert address(at)["mute_to"] == instead
        values = mean_head_outputs(of_sample(model, name) for name in meant)
        assert_answers(at, expected(model, MuteHeads([(1, 0)], values)))
    at.button(key="run head effects").click().run()
    assert_works(at)
    assert "run head effects" not in [button.key for button in at.button]


def test_a_head_that_decides_is_offered_and_where_none_does_it_is_said(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve("plain")
    logits = of_sample(model).logits
    assert logits is not None
    answer, other = int(logits.argmax()), int(logits.argmin())
    effects = np.tile(logits, (3, 4, 1))
    effects[1, 2, other] = logits[answer] + 1  # decides
    effects[2, 3, other] = logits[answer] + 0.5  # less clearly
    monkeypatch.setattr("vitviz.intervention.head_effects", lambda *_, **__: effects)
    at = opened("classify")
    at.button(key="run head effects").click().run()
    assert_works(at)
    assert "changes the answer for **2 of 12** heads, most clearly layer 2, head 3" in prose(at)
    assert f"output {answer} becomes **output {other}**" in prose(at)
    assert at.button(key="mute deciding").label == "Mute layer 2, head 3"
    at.button(key="mute deciding").click().run()
    assert address(at)["muted"] == "2.3"

    effects[:] = logits  # none decides
    results.capture_cache.clear()
    at = opened("classify")
    at.button(key="run head effects").click().run()
    assert f"heads leaves the answer at **output {answer}**" in prose(at)
    assert "mute deciding" not in [button.key for button in at.button]


def test_probabilities_are_worked_out_from_logits() -> None:
    at = opened("classify")
    model = models.load_by_name(SHIPPED)
    logits = of_sample(model).logits
    assert logits is not None
    (table,) = [table.value for table in at.table]
    best = np.argsort(-logits)[:3]
    assert list(table["class"])[:3] == [common_names(model.labels or ())[at] for at in best]
    assert list(table["logit y"])[:3] == [f"{logits[at]:.2f}" for at in best]
    total = float(list(table["exp(y - max y)"])[3])
    assert total == pytest.approx(np.exp(logits - logits.max()).sum(), abs=1e-3)
    assert next(iter(table["share"])) == f"{100 / total:.0f} %"


def test_the_parts_of_a_logit_are_split_on_request_and_compared_with_what_is_needed(
    serve: Callable[[str], Model],
) -> None:
    model, image = serve("plain"), pictures.sample(pictures.DEFAULT).image
    parts = attribution.direct_logit_attribution(model, image, 3)
    at = opened("classify", **{"class": "3"})
    before = len(charts(at))
    at.button(key="run logit parts").click().run()
    assert_works(at)
    assert len(charts(at)) == before + 1
    (heat,) = json.loads(charts(at)[-1].spec)["data"]
    np.testing.assert_allclose(numbers(heat["z"])[:, :-1], parts.heads, atol=1e-5)
    np.testing.assert_allclose(numbers(heat["z"])[:, -1], parts.mlps, atol=1e-5)
    said = re.search(r"together \*\*(.+?)\*\*, and the logit is \*\*(.+?)\*\*", prose(at))
    assert said
    assert float(said[1]) == pytest.approx(float(said[2]), abs=2e-4)
    assert float(said[2]) == pytest.approx(parts.answer, abs=1e-4)
    words = f"Embedding {parts.embedding:+.2f}, heads {parts.heads.sum():+.2f}, "
    words += f"MLPs {parts.mlps.sum():+.2f}, biases {parts.biases:+.2f}: "
    assert words in prose(at)
    assert "mute each head alone, above, to compare" in prose(at)
    at.button(key="run head effects").click().run()
    plain = capture(model, image).logits
    assert plain is not None
    needed = plain[3] - head_effects(model, image)[..., 3]
    like = np.corrcoef(parts.heads.ravel(), needed.ravel())[0, 1]
    assert f"have a correlation of **{like:.2f}**" in prose(at)
    open_data(at, "classify")
    table = at.dataframe[-1].value
    assert table["logit of output 3"].sum() == pytest.approx(parts.answer, abs=1e-4)
    rows = table.set_index(["part", "layer"])["logit of output 3"]
    assert rows["embedding"].item() == pytest.approx(parts.embedding, abs=1e-5)
    assert rows["MLP", 2] == pytest.approx(parts.mlps[1], abs=1e-5)
    assert rows["head 3", 2] == pytest.approx(parts.heads[1, 2], abs=1e-5)
    at.selectbox(key="class").set_value(1).run()
    assert "run logit parts" in [button.key for button in at.button]


def test_a_model_whose_logit_is_no_sum_says_why(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    said = "The answer of {model} is no sum of its layers' parts: convolutions lie between them."

    def refused(*_: object) -> None:
        raise ModelError(said, model="mine")

    monkeypatch.setattr(attribution, "direct_logit_attribution", refused)
    at = opened("classify").button(key="run logit parts").click().run()
    assert not at.exception
    assert said.format(model="mine") in [warning.value for warning in at.warning]
    at = opened("classify", lang="ko")  # another visitor, who finds it computed
    with use_language("ko"):
        assert tr(said, model="mine") in [warning.value for warning in at.warning]
