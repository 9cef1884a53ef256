"""The Positions page: four kinds of embedding on the token map, all tiles, lines, other grids."""

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from examples import assert_clear_error
from streamlit.testing.v1 import AppTest

from pages.driver import (
    SHIPPED,
    alts,
    assert_works,
    at_page,
    charts,
    click,
    commit,
    components,
    figures,
    opened,
    prose,
    shown,
    stack,
    token_map,
)
from vitviz import Model, inspection
from vitviz.app.shared import models
from vitviz.inspection import (
    mirror_similarity,
    neighbour_similarity,
    position_similarity,
    position_table,
    resized_positions,
)
from vitviz.inspection.positions import Interpolation
from vitviz.plots import position_similarity as sprite
from vitviz.plots import position_tile
from vitviz.text import findings

SHUFFLED, WITH, WITHOUT, TILES, LINES, BEFORE, AFTER = range(7)
ORDER = "Does the order of the patches matter?"
NAMES = ["learned", "sine-cosine 1-D", "sine-cosine 2-D", "random"]


def titles(at: AppTest) -> list[str]:
    return [heading.value for heading in at.subheader if heading.value != ORDER]


def query(at: AppTest) -> str:
    kept: dict[str, str] = at.session_state["kept"]
    return kept["query"]


def cosines(model: Model, grid: tuple[int, int]) -> list[np.ndarray]:
    """Similarities of the four kinds, from the model's own tables."""
    learned = model.position_embedding
    assert learned is not None
    tables = [
        position_table(kind, grid=grid, embed_dim=learned.shape[1])
        for kind in ("sincos1d", "sincos2d", "random")
    ]
    return [position_similarity(table, grid=grid) for table in (learned, *tables)]


def test_it_opens_on_the_middle_as_cls_has_no_place() -> None:
    at = shown("positions")
    assert_works(at)
    sent = token_map(at)
    assert sent["kind"] == "cosine"
    assert sent["frames"] == NAMES
    assert sent["prefix"] == []
    assert sent["state"]["query"] == sent["home"] == 8 * 16 + 8
    assert not sent["state"]["pinned"]
    assert "The CLS token has no position in the picture" in prose(at)
    assert titles(at)[1] == "Cosine with row 9, column 9"
    assert query(at) == "cls"
    assert "every second position" in alts(at)[TILES]  # of a grid of 16


def test_a_grid_that_is_not_square_keeps_rows_and_columns(serve: Callable[..., Model]) -> None:
    model = serve("distilled")
    at = opened("positions")
    sent = token_map(at)
    assert (sent["rows"], sent["cols"]) == (4, 6)
    assert sent["state"]["query"] == 2 * 6 + 3
    found = (stack(at)["codes"].astype(float) - 127) / 127
    expected = np.concatenate([each.ravel() for each in cosines(model, (4, 6))])
    np.testing.assert_allclose(found, expected, atol=0.5 / 127 + 1e-6)
    assert "**After: 24 x 36, row 16, column 22**" in prose(at)
    assert "24 x 36 patches of 4 x 4 px make a picture of 96 x 144 px" in prose(at)


@pytest.mark.parametrize(("kind", "prefix"), [("plain", 1), ("registers", 5)])
def test_a_click_on_a_patch_is_the_query_of_every_page(
    kind: str, prefix: int, serve: Callable[..., Model]
) -> None:
    serve(kind)
    at = commit(opened("positions"), query=9, pinned=True)
    assert not at.exception
    assert query(at) == "2.4"
    assert token_map(at)["state"] == {**token_map(at)["state"], "query": 9, "pinned": True}
    assert titles(at)[1] == "Cosine with row 2, column 4"
    assert "has no position" not in prose(at)
    at_page(at, "attention").run()
    assert token_map(at)["state"]["query"] == prefix + 9


def test_another_kind_leaves_a_token_that_is_no_patch_the_query(
    serve: Callable[..., Model],
) -> None:
    serve("registers")
    at = opened("positions", query="reg2")
    assert "The REG2 token has no position" in prose(at)
    commit(at, frame=2)
    assert query(at) == "reg2"
    assert titles(at)[0] == "All positions: sine-cosine 2-D"


def test_a_model_without_cls_shows_the_middle_too(serve: Callable[..., Model]) -> None:
    serve("no class token")
    at = opened("positions")
    assert "The mean of the patches has no position" in prose(at)
    commit(at, query=0, pinned=True)
    assert query(at) == "1.1"
    commit(at, query=15, pinned=False)
    assert query(at) == "mean"


def test_the_chosen_kind_is_that_of_all_figures() -> None:
    model = models.load_by_name(SHIPPED)
    at, seen = opened("positions"), []
    for frame, (name, tiles) in enumerate(zip(NAMES, cosines(model, (16, 16)), strict=True)):
        if frame:  # the first is that which it opens with
            commit(at, frame=frame)
        assert_works(at)
        assert titles(at)[0] == f"All positions: {name}"
        assert titles(at)[2] == f"Interpolated to another grid: {name}"
        assert alts(at)[TILES] == sprite(tiles).layout.meta["alt"]
        assert alts(at)[BEFORE] == position_tile(tiles, position=(8, 8)).layout.meta["alt"]
        assert f"**Positions, {name}:** {findings.positions(tiles)}" in prose(at)
        powers = re.findall(r"10000\^\{(.*?)\}", " ".join(one.value for one in at.latex))
        assert powers == {"sine-cosine 1-D": ["-2k/D"], "sine-cosine 2-D": ["-4k/D"]}.get(name, [])
        seen.append([chart.spec for chart in charts(at)])
    for chart in (TILES, LINES, BEFORE, AFTER):
        assert len({specs[chart] for specs in seen}) == 4


def test_a_click_here_leaves_the_direction_of_attention() -> None:
    at = opened("positions", read="column")
    assert token_map(at)["state"]["direction"] == "row"
    commit(at, query=3, pinned=True)
    at_page(at, "attention").run()
    assert token_map(at)["state"]["direction"] == "column"


def test_a_click_on_a_tile_chooses_its_position() -> None:
    at = opened("positions")
    click(at, "tiles", {"point_index": 10, "curve_number": 1, "customdata": [2, 4]})
    assert_works(at)
    assert query(at) == "3.5"
    assert titles(at)[1] == "Cosine with row 3, column 5"


def test_the_lines_are_those_of_the_chosen_position() -> None:
    model = models.load_by_name(SHIPPED)
    tile = cosines(model, (16, 16))[0][2, 4]
    at = opened("positions", query="3.5")
    words = alts(at)[LINES]
    assert "row 3, column 5" in words
    assert f"{tile[2].min():.2f} along its row, at offset {tile[2].argmin() - 4:+d}" in words
    assert f"{tile[:, 4].min():.2f} along its column" in words


def test_resizing_is_of_the_whole_table() -> None:
    table = models.load_by_name(SHIPPED).position_embedding
    assert table is not None
    at = opened("positions")
    before = charts(at)[BEFORE].spec
    cases: dict[Interpolation, tuple[int, tuple[int, int]]] = {
        "bicubic": (24, (13, 13)),
        "bilinear": (7, (4, 4)),
        "nearest": (32, (18, 18)),
    }
    for interpolation, (grid, place) in cases.items():
        at.select_slider(key="grid").set_value(grid)
        at.segmented_control(key="interpolation").set_value(interpolation).run()
        assert_works(at)
        assert charts(at)[BEFORE].spec == before
        resized = resized_positions(
            table[1:], grid=(16, 16), new_grid=(grid, grid), interpolation=interpolation
        )
        tiles = position_similarity(resized, grid=(grid, grid))
        figure = position_tile(tiles, position=(place[0] - 1, place[1] - 1))
        assert alts(at)[AFTER] == figure.layout.meta["alt"]
        assert f"**After: {grid} x {grid}, row {place[0]}, column {place[1]}**" in prose(at)
        assert f"make a picture of {4 * grid} x {4 * grid} px" in prose(at)
        was = neighbour_similarity(position_similarity(table[1:], grid=(16, 16)))
        near = f"{was:.2f} on average before, {neighbour_similarity(tiles):.2f} after."
        assert f"Neighbours have a cosine of {near}" in prose(at)


@pytest.mark.parametrize(("columns", "rows"), [(9, 20), (64, 8), (800, None)])
def test_a_new_grid_has_no_more_positions_than_can_be_compared(
    columns: int, rows: int | None, serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 rows of 1536 columns, as of 1 x 64 patches, would have cosines of 5 GB."""
    serve("plain", image_size=(2, 2 * columns), patch_size=2, depth=1)
    compared: list[int] = []
    real = position_similarity

    def compare(table: np.ndarray, *, grid: tuple[int, int]) -> np.ndarray:
        compared.append(len(table))
        assert len(table) <= 5000
        return real(table, grid=grid)

    monkeypatch.setattr(inspection, "position_similarity", compare)
    at = opened("positions")
    assert_works(at)
    if rows is None:
        assert "with 7 rows has more than 5,000 positions" in at.info[-1].value
    else:
        assert at.select_slider(key="grid").value == rows
        assert max(compared) == rows * rows * columns
        assert "grid" not in at.query_params


def test_weights_that_never_learned_are_not_called_learned() -> None:
    at = opened("positions", weights="random")
    assert not at.exception
    assert token_map(at)["frames"][0] == "untrained"
    assert titles(at)[0] == "All positions: untrained"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("no positions", "adds no position embedding"),
        ("sincos1d", "adds fixed sines and cosines"),
        ("sincos2d", "adds fixed sines and cosines"),
    ],
)
def test_a_model_that_learns_no_positions_shows_the_other_kinds(
    kind: str, why: str, serve: Callable[..., Model]
) -> None:
    serve(kind)
    at = opened("positions")
    assert not at.exception
    (message,) = at.info
    assert_clear_error(message.value)
    assert why in message.value
    assert SHIPPED in message.value
    assert token_map(at)["frames"] == NAMES[1:]
    assert len(charts(at)) == (4 if kind == "no positions" else 7)
    commit(at, frame=2)
    assert titles(at)[0] == "All positions: random"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "plain",
            "Nothing tells {} where a patch lies, except the position embedding added to it.",
        ),
        ("no positions", "Nothing tells {} where a patch lies."),
        ("stem", "is the position embedding added to it and its convolutions, which see"),
    ],
)
def test_what_tells_the_model_where_patches_are_is_said(
    kind: str, said: str, serve: Callable[..., Model]
) -> None:
    model = serve(kind)
    assert said.format(model.name) in prose(opened("positions"))


@pytest.mark.usefixtures("narrow")
def test_a_model_of_many_grids_is_said_to_know_places_by_what_it_has() -> None:
    (said,) = opened("positions", model="swin_tiny_patch4_window7_224", weights="random").info
    assert_clear_error(said.value)
    assert "a bias that attention adds to each score, by the offset" in said.value
    assert "convolutions" not in said.value


def test_a_table_of_another_grid_is_not_shown(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr(Model, "position_embedding", property(lambda model: np.ones((50, 32))))
    at = opened("positions")
    assert not at.exception
    (message,) = at.info
    assert_clear_error(message.value)
    assert "a grid other than 4 x 6" in message.value
    assert token_map(at)["frames"] == NAMES[1:]
    assert (token_map(at)["rows"], token_map(at)["cols"]) == (4, 6)


def test_one_kind_at_a_time_where_all_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.app.widgets.token_map.MAX_MAP_BYTES", 100_000)
    at = opened("positions")
    one = stack(at)["codes"]
    assert one.size == 256**2
    commit(at, frame=1)
    assert_works(at)
    assert stack(at)["codes"].size == 256**2
    assert not np.array_equal(stack(at)["codes"], one)
    (sent,) = [data["stack"] for data in components(at, "vitviz_token_map") if "stack" in data]
    assert [frame["index"] for frame in sent["frames"]] == [1]  # the one that is asked for


def test_mirror_images_are_told_with_their_numbers(put: Callable[..., str]) -> None:
    noise = torch.Generator().manual_seed(0)
    half = torch.randn(1, 10, 5, 64, generator=noise)
    alike = torch.cat([half, half.flip(2)], 2).flatten(1, 2)  # left and right
    mine = put(pos_embed=torch.cat([torch.zeros(1, 1, 64), alike], 1))
    similarity = position_similarity(alike[0].numpy(), grid=(10, 10))
    across, down = mirror_similarity(similarity)
    assert across > 0.99 > 0.2 > abs(down)
    text = prose(opened("positions", model=mine))
    assert f"mirror image left to right: **{across:.2f}**; top to bottom: **{down:.2f}**" in text
    assert "flipped at random is not needed" in text
    assert "to this grid, these are" not in text
    fixed = prose(opened("positions", model=mine, kind="sincos2d"))
    assert "mirror image left to right" in fixed
    assert "flipped" not in fixed


def test_cosines_are_painted_from_their_minimum(
    serve: Callable[[str], Model],
) -> None:
    model = serve("plain")
    table = model.position_embedding
    assert table is not None
    least = inspection.position_similarity(table[-24:], grid=(4, 6)).min()
    at = opened("positions")
    assert least - 0.01 < token_map(at)["low"] <= least
    assert f"from the minimum, {least:.2f}" in at.segmented_control(key="cosines").options
    positive = opened("positions", kind="sincos2d")
    assert token_map(positive).get("low", -1) > -1
    tiles = json.loads(charts(positive)[TILES].spec)["data"][1]["marker"]
    assert tiles["cmin"] == token_map(positive)["low"]
    for tile in (BEFORE, AFTER):
        assert figures(positive)[tile]["data"][0]["zmin"] == token_map(positive)["low"]
    positive.segmented_control(key="cosines").set_value("whole").run()
    assert "low" not in token_map(positive)
    assert json.loads(charts(positive)[TILES].spec)["data"][1]["marker"]["cmin"] == -1


def test_cosines_are_told_beside_those_that_were_put_in() -> None:
    began = models.load_by_name(SHIPPED, "mimetic", models.Input((32, 96))).position_embedding
    assert began is not None
    similarity = position_similarity(began[-192:], grid=(8, 24))
    near, (across, down) = neighbour_similarity(similarity), mirror_similarity(similarity)
    assert f"{across:.2f}" != f"{down:.2f}"  # else their order would not show
    text = prose(opened("positions", size="32x96"))
    assert f"to this grid, these are {near:.2f}, {across:.2f} and {down:.2f}" in text
    for link in ({"kind": "random"}, {"weights": "mimetic"}):
        assert "to this grid, these are" not in prose(opened("positions", **link))


def test_the_shuffle_is_that_of_anatomy() -> None:
    at = opened("positions", shuffle="4")
    assert_works(at)
    there = opened("anatomy", shuffle="4", experiment="order")
    specs = {chart.spec for chart in charts(there)}
    assert {charts(at)[chart].spec for chart in (SHUFFLED, WITH, WITHOUT)} <= specs
    assert ORDER in [heading.value for heading in at.subheader]
