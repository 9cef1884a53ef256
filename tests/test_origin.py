"""Every file says which weights and which picture it is of, and by which versions it was made."""

import copy
import gc
import hashlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import plotly.io as pio
import pytest
import torch
from examples import own_model, picture
from numpy.testing import assert_array_equal
from PIL import Image

import vitviz
from vitviz import Activations, capture, plots
from vitviz.model import Model, origin
from vitviz.model.inputs import shown_input
from vitviz.model.origin import weights_digest
from vitviz.profiling import profile
from vitviz.web import report

LARGE = (1700, 1500)  # pixels: a capture has a smaller copy of it


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def change(model: Model) -> None:
    with torch.no_grad():
        next(model.module.parameters()).add_(1e-3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine, too.png"
    picture().save(path)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The modules whose weights were read for a digest."""
    read: list[Any] = []

    def counted(module: Any) -> str:
        read.append(module)
        return digest(module)

    digest = origin.weights_digest
    monkeypatch.setattr(origin, "weights_digest", counted)
    return read


# --- the picture --------------------------------------------------------------------------------


def test_a_picture_has_the_name_and_the_digest_of_its_file(file: Path) -> None:
    model, digest = own_model(), sha256(file.read_bytes())
    for given in (file, str(file)):
        found = capture(model, given).record["picture"]
        assert found == {"name": "mine, too.png", "sha256": digest, "of": "file"}
    for data in (file.read_bytes(), bytearray(file.read_bytes())):
        found = capture(model, data).record["picture"]
        assert found == {"name": None, "sha256": digest, "of": "file"}
    with Image.open(file) as image:
        assert capture(model, image).record["picture"]["name"] == "mine, too.png"


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("size", [(60, 50), LARGE])
def test_a_picture_in_memory_has_the_digest_of_its_pixels(mode: str, size: tuple[int, int]) -> None:
    image = picture(*size).convert(mode)
    found = capture(own_model(), image).record["picture"]
    expected = sha256(image.convert("RGB").tobytes())
    assert found == {"name": None, "sha256": expected, "of": "pixels"}
    assert profile(own_model(), [image]).pictures["sha256"] == [expected]


def test_a_prepared_input_has_the_digest_of_its_numbers(file: Path) -> None:
    model = own_model()
    x = model.preprocess(picture())
    found = capture(model, x, picture=file)
    expected = sha256(x.numpy().tobytes())
    x += 1  # a DataLoader may use its memory again
    assert found.record["picture"] == {
        **{"name": "mine, too.png", "sha256": expected, "of": "prepared input"}
    }
    assert capture(model, x).record["picture"]["name"] is None


def test_a_large_picture_that_was_drawn_on_has_no_digest() -> None:
    image, model = picture(*LARGE), own_model()
    drawn, lost = capture(model, image), capture(model, image.copy())
    image.paste((255, 0, 0), (0, 0, 300, 300))
    gc.collect()
    for acts in (drawn, lost):
        record = acts.record
        assert record["picture"]["sha256"] is None
        assert record["notes"] == [
            "Picture digest unknown: the picture was changed or deleted after the capture."
        ]


def test_a_small_picture_that_was_drawn_on_has_its_own_digest() -> None:
    image = picture()
    acts, expected = capture(own_model(), image), sha256(image.tobytes())
    image.paste((255, 0, 0), (0, 0, 30, 30))
    assert acts.record["picture"]["sha256"] == expected


# --- the weights --------------------------------------------------------------------------------


def test_weights_are_read_once_and_only_when_the_record_is_asked_for(reads: list[Any]) -> None:
    model = own_model()
    several = [capture(model, picture()), *vitviz.captures(model, [picture(), picture()])]
    assert not reads
    digests = {acts.record["weights_sha256"] for acts in several}
    assert reads == [model.module]
    assert digests == {weights_digest(model.module)}


def test_a_capture_has_the_digest_of_the_weights_that_it_was_made_with() -> None:
    model = own_model()
    before = capture(model, picture())
    digest = before.record["weights_sha256"]
    change(model)
    after = capture(model, picture())
    assert before.record["weights_sha256"] == digest == weights_digest(own_model().module)
    assert after.record["weights_sha256"] == weights_digest(model.module) != digest


def another_head(model: Model) -> None:
    module: Any = model.module
    module.head = torch.nn.Linear(module.head.in_features, module.head.out_features)


def other_numbers(model: Model) -> None:
    model.module.load_state_dict({k: v + 1 for k, v in model.module.state_dict().items()})


@pytest.mark.parametrize("how", [change, another_head, other_numbers, lambda m: m.module.half()])
def test_weights_that_were_changed_since_have_no_digest(how: Any) -> None:
    model = own_model()
    acts = capture(model, picture())
    how(model)
    assert acts.record["weights_sha256"] is None
    assert acts.record["notes"] == [
        "Weights digest unknown: the weights were changed after the capture."
    ]


def test_a_capture_does_not_keep_the_model(reads: list[Any]) -> None:
    model = own_model()
    known, unknown = capture(model, picture()), capture(own_model(), picture())
    digest = known.record["weights_sha256"]
    del model
    reads.clear()
    gc.collect()
    assert known.record["weights_sha256"] == digest
    assert unknown.record["weights_sha256"] is None
    assert unknown.record["notes"] == [
        "Weights digest unknown: the model was deleted before its weights were read."
    ]


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda m: cloudpickle.loads(cloudpickle.dumps(m))]
)
def test_a_model_that_was_captured_can_be_copied(again: Any) -> None:
    model = own_model()
    before = capture(model, picture())
    other: Model = again(model)
    after = capture(other, picture())
    assert before.record["weights_sha256"] == after.record["weights_sha256"] is not None


def test_weights_of_inference_mode_have_a_digest() -> None:
    with torch.inference_mode():
        model = own_model()
    acts = capture(model, picture())
    assert acts.record["weights_sha256"] == weights_digest(model.module)


# --- files --------------------------------------------------------------------------------------


def assert_whole(record: dict[str, Any], model: Model) -> None:
    assert set(record["versions"]) >= {"vitviz", "torch", "timm", "transformers"}
    assert record["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\+00:00", record["date"])
    assert (record["model"], record["weights"]) == (model.name, model.weights)
    assert record["weights_sha256"] == weights_digest(model.module)


def test_a_saved_capture_keeps_its_record(file: Path, tmp_path: Path) -> None:
    model = own_model()
    acts = capture(model, file)
    acts.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
    assert_whole(about, model)
    assert about["picture"]["sha256"] == sha256(file.read_bytes())
    again = vitviz.load_activations(tmp_path / "a.npz")
    assert again.record == acts.record
    again.save(tmp_path / "b.npz")
    assert vitviz.load_activations(tmp_path / "b.npz").record == acts.record


@pytest.mark.parametrize("again", [copy.deepcopy, lambda acts: pickle.loads(pickle.dumps(acts))])
def test_a_copy_of_a_capture_has_the_same_record(again: Any) -> None:
    model = own_model()
    acts = capture(model, picture())
    other: Activations = again(acts)
    assert other.record == acts.record
    assert_array_equal(other.logits, acts.logits)
    assert_whole(other.record, model)


def test_the_record_is_a_copy() -> None:
    acts = capture(own_model(), picture())
    acts.record["picture"]["name"] = "another"
    assert acts.record["picture"]["name"] is None


def test_a_file_from_before_edits_were_recorded_has_none() -> None:
    record = capture(own_model(), picture()).record
    older = {key: value for key, value in record.items() if key != "edits"}
    assert origin.Origin.of_record(older).record() == record


def test_figures_of_a_capture_have_its_record(file: Path) -> None:
    model = own_model()
    acts = capture(model, file)
    drawn = [plots.attention_map(acts, 1), plots.token_norms(acts), plots.head_grid(acts, 1)]
    for figure in (*drawn, plots.for_paper(drawn[0])):
        made = json.loads(pio.to_json(figure))["layout"]["meta"]["made_with"]
        assert made == acts.record
        assert_whole(made, model)
        assert made["picture"]["name"] == "mine, too.png"


def test_a_report_has_the_records_of_its_captures_for_people_and_for_programs(file: Path) -> None:
    model = own_model()
    x = model.preprocess(picture())
    both = [capture(model, file), capture(model, x)]
    sides = [
        report.CapturedPicture(model, "mine", both[0], picture(), sha256(file.read_bytes())),
        report.CapturedPicture(model, "</script>", both[1], shown_input(model, x)),
    ]
    text = report.html(sides)
    (packed,) = re.findall(
        r'<script type="application/json" id="data-made-with">(.*?)</script>', text
    )
    made = json.loads(packed)
    assert made["versions"] == both[0].record["versions"]
    for record, acts in zip(made["captures"], both, strict=True):
        assert_whole(record, model)
        assert record["picture"]["sha256"] == acts.record["picture"]["sha256"]
    assert [record["picture"]["name"] for record in made["captures"]] == ["mine", "</script>"]
    assert text.count(f"SHA-256 of the weights {weights_digest(model.module)}.") == 2
    assert "transformers " in text
