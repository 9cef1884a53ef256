"""The numbers of every page: those that are drawn, in a table and in a file that says of what."""

import csv
import gc
import hashlib
import io
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import (
    MINE,
    assert_works,
    at_page,
    charts,
    commit,
    of_sample,
    open_data,
    opened,
    opened_with_data,
    prose,
    provenance,
    token_map,
    upload,
)
from vitviz import Model, inspection
from vitviz.app.pages import PAGES
from vitviz.app.shared import pictures, results
from vitviz.app.widgets import report_button
from vitviz.app.widgets.data_table import Table

every_page = pytest.mark.parametrize("page", [page for page in PAGES if PAGES[page].shows_model])


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the files hold that a page offers, in their order."""
    return written(monkeypatch, "csv")


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The same of the files for numpy."""
    return written(monkeypatch, "npz")


def written(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[Any]:
    """A list that gets whatever tables write as files of this kind."""
    made: list[Any] = []
    write = getattr(Table, kind)

    def kept(table: Table, line: str) -> Any:
        made.append(write(table, line))
        return made[-1]

    monkeypatch.setattr(Table, kind, kept)
    return made


def offered(at: AppTest) -> list[str]:
    """The buttons that save tables."""
    labels = [button.proto.label for button in at.get("download_button")]
    return [label for label in labels if label in ("CSV", "NPZ")]


def tables(at: AppTest) -> list[Any]:
    """Those of a page that is open with its data."""
    assert_works(at)
    return [frame.value for frame in at.dataframe]


def table_in(text: str) -> list[str]:
    """The lines of a file without its comments."""
    return [line for line in text.splitlines() if not line.startswith("# ")]


def assert_made_with(record: dict[str, Any], page: str) -> None:
    """The file says by which versions, of which weights and of which picture it is."""
    assert {"vitviz", "torch", "timm", "transformers"} <= set(record["versions"])
    for side in record["compared"] if page == "compare" else [record]:
        assert len(side["weights_sha256"]) == 64
        if side["picture"]["of"] is None:  # of many pictures, or none
            assert side["picture"]["sha256"] is None
        else:
            assert side["picture"]["name"] == "mine, too.png"
            assert side["picture"]["sha256"] == hashlib.sha256(MINE).hexdigest()


def assert_same(found: float, wanted: float, share: float) -> None:
    """As `pytest.approx` has it, which takes long for each number of a table."""
    both_none = found != found and wanted != wanted
    assert both_none or abs(found - wanted) <= max(share * abs(wanted), 1e-12)


def assert_files_hold(frame: Any, text: str, archive: bytes) -> None:
    """Both files have the columns and the numbers of the table."""
    header, *lines = csv.reader(io.StringIO("\n".join(table_in(text))))
    assert header == list(frame.columns)
    assert len(lines) == len(frame)
    with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
        assert set(arrays) == {*header, "provenance", "about", "made_with"}
        for name, column in zip(header, zip(*lines, strict=True), strict=True):
            kept = arrays[name].tolist()
            for of_text, of_archive, value in zip(column, kept, frame[name], strict=True):
                if isinstance(value, float):
                    assert_same(np.nan if of_text == "" else float(of_text), value, 1e-6)
                    assert_same(of_archive, value, 1e-5)
                else:
                    assert of_text == str(value)
                    assert of_archive == ("" if value is None else value)


# --- a table as a file --------------------------------------------------------------------------


def test_a_file_begins_with_what_was_measured() -> None:
    table = Table(
        "Two\nnumbers.", {"a, %": np.array([1 / 3, np.nan]), "b": [None, 2], "c": ["x,", "y"]}
    )
    assert table.csv("model · mine\r\n=1+1\u2028.png") == (
        '# model · mine =1+1 .png\n# Two numbers.\n"a, %",b,c\n0.333333,,"x,"\n,2,y\n'
    )


def test_numpy_reads_the_same_table_in_all_its_digits() -> None:
    numbers = np.array([1 / 3, np.nan], np.float32)
    table = Table("Two\nnumbers.", {"a/b, %": numbers, "n": [None, 2], "c": ["x,", None]})
    with np.load(io.BytesIO(table.npz("model · mine\r\n.png")), allow_pickle=False) as file:
        assert str(file["provenance"]) == "model · mine .png"
        assert str(file["about"]) == "Two numbers."
        np.testing.assert_array_equal(file["a/b, %"], numbers)
        assert file["a/b, %"].dtype == np.float32
        np.testing.assert_array_equal(file["n"], [np.nan, 2])
        assert file["c"].tolist() == ["x,", ""]


# --- every page ---------------------------------------------------------------------------------


@cache
def uploaded() -> AppTest:
    """A session with a picture of its own, which walks from page to page."""
    at = opened(weights="random", scale="log", layer="2", compare="weights")
    return upload(at, "mine, too.png", MINE)


@every_page
def test_files_are_made_when_asked_for_and_hold_the_table_and_the_provenance(
    page: str, files: list[str], archives: list[bytes]
) -> None:
    at = uploaded()
    files.clear()
    archives.clear()
    at.selectbox(key="picture").set_value("upload")
    at_page(at, page).run()
    assert_works(at)
    assert not files
    assert not at.dataframe
    assert not offered(at)
    shown = tables(open_data(at, page))
    assert len(shown) == len(files) == len(archives) == len(offered(at)) / 2 > 0
    for frame, text, archive in zip(shown, files, archives, strict=True):
        first, about, made, *_ = text.splitlines()
        assert first == f"# {provenance(at)}"
        assert first.endswith("mine, too.png")
        assert "random weights" in first
        assert about.startswith("# ")
        assert about.endswith(".")
        assert_made_with(json.loads(made.removeprefix("# made with ")), page)
        assert_files_hold(frame, text, archive)
        with np.load(io.BytesIO(archive), allow_pickle=False) as arrays:
            assert str(arrays["provenance"]) == provenance(at)
            assert_made_with(json.loads(str(arrays["made_with"])), page)

    # Of another picture the numbers are others; what is of many pictures is no part of it.
    mine = [file for file in files if "mine, too.png" in file.splitlines()[0]][-1]
    at.selectbox(key="picture").set_value("moose")
    open_data(at, page)
    moose = [file for file in files if "sample: moose" in file.splitlines()[0]][-1]
    assert table_in(moose) != table_in(mine)


def test_files_name_the_picture_after_a_report_that_captured_it_again(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Callable[[], bytes]] = []
    monkeypatch.setattr(report_button, "file_button", lambda label, make, **_: made.append(make))
    at = upload(opened("attention"), "mine, too.png", MINE)
    results.capture_cache.clear()  # as others took their place
    gc.collect()
    made[-1]()
    open_data(at, "attention")
    note = files[-1].splitlines()[2]
    assert_made_with(json.loads(note.removeprefix("# made with ")), "attention")


@pytest.mark.parametrize("page", ["training", "zoo"])
def test_files_of_recorded_numbers_hold_their_tables(
    page: str, files: list[str], archives: list[bytes]
) -> None:
    shown = tables(opened_with_data(page))
    assert len(shown) == len(files) == len(archives) > 0
    for frame, text, archive in zip(shown, files, archives, strict=True):
        made = json.loads(text.splitlines()[2].removeprefix("# made with "))
        assert set(made) == {"versions", "date"}  # nothing of the model on screen
        assert_files_hold(frame, text, archive)


def test_the_files_of_a_comparison_name_both_pictures(
    serve: Callable[[str], Model], files: list[str]
) -> None:
    serve("plain")
    tables(opened_with_data("compare", compare="pictures", picture="dog", other_picture="cat"))
    for text in files:
        made = json.loads(text.splitlines()[2].removeprefix("# made with "))
        names = [side["picture"]["name"] for side in made["compared"]]
        assert names == ["sample: dog", "sample: cat"]


# --- the numbers --------------------------------------------------------------------------------


def test_attention_is_the_row_or_column_of_the_query(
    serve: Callable[[str], Model], archives: list[bytes]
) -> None:
    acts = of_sample(serve("registers"))  # CLS, 4 registers, 4 x 6 patches
    at = opened_with_data("attention", layer="2", query="3.4", head="2")
    (table,) = tables(at)
    token, attention = 5 + 2 * 6 + 3, acts.attention(1)
    np.testing.assert_allclose(table["head 2, %"], 100 * attention[1, token], rtol=1e-4)
    with np.load(io.BytesIO(archives[0])) as file:  # in all digits
        np.testing.assert_array_equal(file["head 2, %"], 100 * attention[1, token])
        assert "attention from the patch at row 3, column 4 to each token." in str(file["about"])
    mean = 100 * attention[:, token].mean(axis=0)
    np.testing.assert_allclose(table["mean of heads, %"], mean, rtol=1e-4)
    assert list(table["token"]) == ["CLS", "REG1", "REG2", "REG3", "REG4", *["patch"] * 24]
    assert list(table["row"][5:]) == [row for row in (1, 2, 3, 4) for _ in range(6)]
    assert list(table["column"][5:]) == [1, 2, 3, 4, 5, 6] * 4
    (table,) = tables(open_data(commit(at, direction="column"), "attention"))
    column = table["head 2, %"]
    np.testing.assert_allclose(column, 100 * attention[1, :, token], rtol=1e-4)
    with np.load(io.BytesIO(archives[-1])) as file:
        assert "attention from each token to the patch at row 3, column 4." in str(file["about"])
    (table,) = tables(opened_with_data("attention", layer="2", query="3.4", counts="values"))
    added = attention[1, token] * np.linalg.norm(acts.values(1)[1], axis=-1)
    np.testing.assert_allclose(table["head 2, %"], 100 * added / added.sum(), rtol=1e-4)


def test_without_cls_attention_is_that_of_the_mean_of_the_patches(
    serve: Callable[[str], Model],
) -> None:
    acts = of_sample(serve("registers alone"))  # 2 registers
    (table,) = tables(opened_with_data("attention", layer="1"))
    wanted = 100 * acts.attention(0)[2, 2:].mean(axis=0)
    np.testing.assert_allclose(table["head 3, %"], wanted, rtol=1e-4)


@pytest.mark.parametrize("direction", ["row", "column"])
def test_rollout_is_that_of_the_settings(
    direction: str, serve: Callable[[str], Model], files: list[str]
) -> None:
    acts = of_sample(serve("plain"))
    settings = dict(layer="3", start_layer="2", fusion="max", residual="0.3", discard="0.2")
    link = {"query": "2.2", "read": direction, **settings}
    at = opened_with_data("rollout", **link)
    (table,) = tables(at)
    *_, last = inspection.rollout_steps(
        acts.attention_layers(), fusion="max", residual=0.3, discard=0.2, start_layer=1
    )
    titles = token_map(at)["titles"]
    assert (titles["row"], titles["column"]) == (
        "Rollout: what reaches it",
        "Rollout: what it reaches",
    )
    query = "the patch at row 2, column 2"
    what = {"row": f"each token to {query}", "column": f"{query} to each token"}[direction]
    assert (
        f"# What goes from {what} through layers 2 to 3: heads fused by max, residual 0.3, the "
        "smallest 0.2 discarded." in files[-1]
    )
    half = {"row": "reaches {} from patches up to", "column": "goes out from {} to patches up to"}
    assert f"Half of what {half[direction].format(query)}" in prose(at)
    token, alone = 1 + 6 + 1, acts.attention(2).mean(axis=0)
    for heading, matrix in (
        ("rollout, %", last),
        ("attention of layer 3, mean of heads, %", alone),
    ):
        wanted = matrix[token] if direction == "row" else matrix[:, token]
        np.testing.assert_allclose(table[heading], 100 * wanted, rtol=1e-4)


def test_positions_are_cosines_with_the_chosen_one(serve: Callable[[str], Model]) -> None:
    model = serve("plain")
    table, *_ = tables(opened_with_data("positions", query="4.5"))
    embedding = model.position_embedding
    assert embedding is not None
    wanted = inspection.position_similarity(embedding, grid=(4, 6))[3, 4]
    np.testing.assert_allclose(table["untrained"], wanted.ravel(), atol=1e-5)
    fixed = inspection.position_table("sincos2d", grid=(4, 6), embed_dim=32)
    wanted = inspection.position_similarity(fixed, grid=(4, 6))[3, 4]
    np.testing.assert_allclose(table["sine-cosine 2-D"], wanted.ravel(), atol=1e-5)


def test_filters_and_their_responses(serve: Callable[[str], Model]) -> None:
    model = serve("plain")
    link = dict(filters="raw filters", order="as in the model", filter="3")
    at = opened_with_data("filters", **link)
    tiles, response = tables(at)
    assert "Response of each patch to filter 3, before the bias is added." in prose(at)
    kernel = model.patch_kernel
    assert kernel is not None
    norms = np.linalg.norm(kernel.reshape(len(kernel), -1), axis=1)
    np.testing.assert_allclose(tiles["norm"], norms, rtol=1e-4)
    assert tiles["tile"][2] == "Filter 3"
    x = model.preprocess(pictures.sample(pictures.DEFAULT).image).numpy()
    wanted = inspection.filter_response(x, kernel[2])
    np.testing.assert_allclose(response["inner product x E"], wanted.ravel(), rtol=1e-4)
    components, _ = tables(opened_with_data("filters"))
    _, explained = inspection.filter_components(kernel, n_components=len(components))
    np.testing.assert_allclose(components["variance, %"], 100 * explained, rtol=1e-4)


def test_classes_before_and_after(serve: Callable[[str], Model], files: list[str]) -> None:
    acts = of_sample(serve("plain"))
    results.capture_cache.clear()
    link = {"class": "1", "block": "2", "fill": "mean"}
    at = opened_with_data("classify", muted="2.1", painted="1.1-1.2", **link)
    (answer,) = tables(at)
    assert (
        "2 of 24 patches removed (mean colour), 1 of 12 heads muted (layer.head: 2.1)."
        in (files[-1].splitlines()[1])
    )
    assert acts.probabilities is not None
    np.testing.assert_allclose(answer["before, %"], 100 * acts.probabilities, rtol=1e-4)
    assert not np.allclose(answer["after, %"], answer["before, %"], rtol=1e-3)
    np.testing.assert_array_equal(answer["after, %"], answer["lens: layer 3, %"])
    assert answer["after, %"].sum() == pytest.approx(100, rel=1e-4)


def test_what_the_model_refuses_is_no_change(
    serve: Callable[[str], Model], files: list[str]
) -> None:
    serve("no class token")
    at = opened_with_data("classify", painted="1.1-4.6", fill="drop")
    assert not at.exception
    assert ["Keep at least one" in error.value for error in at.error] == [True]
    assert "Most probable classes" in charts(at)[1].alt
    assert files[-1].splitlines()[1].endswith("before and after: nothing is changed.")
