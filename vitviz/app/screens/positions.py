"""The page Positions: similarity of position embeddings, learned and sine-cosine."""

import math
from typing import Literal

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import records, settings
from vitviz.app.screens import shuffle
from vitviz.app.settings import setting
from vitviz.app.shared import models, results
from vitviz.app.shared.view import View
from vitviz.app.widgets import lesson
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.figure import Points, show_figure
from vitviz.app.widgets.places import draw_finding, places
from vitviz.app.widgets.token_map import frames_to_send, middle, token_map
from vitviz.common.language import Message, capitalize, literal, mark, tr, tr_md
from vitviz.inspection.positions import Interpolation
from vitviz.text import findings
from vitviz.text.families import explain_positions
from vitviz.web.token_map import Frame, encode_frame, matching_patch

EmbeddingKind = Literal["learned", "sincos1d", "sincos2d", "random"]
EMBEDDING_KINDS: dict[EmbeddingKind, str] = {
    "learned": mark("learned"),
    "sincos1d": mark("sine-cosine 1-D"),
    "sincos2d": mark("sine-cosine 2-D"),
    "random": mark("random"),
}
FORMULAS: dict[EmbeddingKind, str] = {
    "sincos1d": r"E_{pos}^{\,i} = \left[\sin(i\,\omega_k),\; \cos(i\,\omega_k)\right]_k, \quad"
    r"\omega_k = 10000^{-2k/D}",
    "sincos2d": r"E_{pos}^{\,(r,c)} = \left[\sin(r\,\omega_k),\; \cos(r\,\omega_k),\; "
    r"\sin(c\,\omega_k),\; \cos(c\,\omega_k)\right]_k, \quad \omega_k = 10000^{-4k/D}",
}
COSINE_SCALES = {"minimum": mark("from the minimum, {least}"), "whole": mark("from −1 to 1")}
MIRRORED = 0.5  # cosine with the mirror image from which it is worth a word
GRIDS = (7, 8, 10, 12, 14, 16, 20, 24, 32)
USUAL_GRID = 24
MOST_POSITIONS = 5000  # whose cosines with one another take 100 MB
INTERPOLATION_NAMES: dict[Interpolation, str] = {
    "bicubic": mark("bicubic"),
    "bilinear": mark("bilinear"),
    "nearest": mark("nearest"),
}


def page(view: View) -> Data | None:
    from vitviz.model.families import position_encodings

    grid = view.grid
    refusal = _why_not_learned(view)
    if refusal:
        places().top.info(refusal)
    encodings = position_encodings(view.model.part, view.model.layers)
    reasons = explain_positions(literal(view.model.name), encodings)
    places().notes.markdown(f"{capitalize(reasons)}.")
    width = view.acts.tokens(0).shape[1]
    kinds = [
        kind
        for kind in EMBEDDING_KINDS
        if _fits(kind, width) and not (refusal and kind == "learned")
    ]
    settings.follow_default("kind", kinds[0])
    kind = setting("kind", kinds, kinds[0])
    name = tr(_name(view, kind))
    similarity = _similarity(view, kind)
    low = _lowest(similarity)
    draw_finding(findings.positions(similarity), of=tr("Positions, {kind}", kind=name))
    with places().stage:
        token_map(
            view,
            _frames(view, kinds, kind),
            name="positions",
            kind="cosine",
            strip="frames",
            titles={"row": tr("Similar positions:"), "strip": tr("The same position in each kind")},
            frame_setting=("kind", kinds),
            frame_names=[tr(_name(view, each)) for each in kinds],
            version="-".join(kinds),
            low=None if low == -1 else low,
            patches_only=True,
        )
    if view.query_patch is None:
        st.markdown(
            tr(
                "{query} has no position in the picture, so the middle patch is shown. Point at a "
                "patch, or click one.",
                query=capitalize(view.query_name),
            )
        )
    position = view.query_patch or middle(grid)
    control(  # below the map, which stands in the first screen
        "cosines",
        tr("Scale"),
        list(COSINE_SCALES),
        words=lambda name: tr(COSINE_SCALES[name], least=f"{similarity.min():.2f}"),
        width="content",
    )
    tables = _shuffle(view) or []
    _all_and_lines(view, similarity, kind, name, position, low)
    _draw_resized(view, kind, name, position, low)
    return Data(lambda: [_numbers(view, kinds, position), *tables])


@lesson.part("shuffle")
def _shuffle(view: View) -> list[Table]:
    """Draw the answer to the patches in another order; returns its table."""
    from vitviz import ModelError

    if not view.acts.all_to_all:
        return []
    heading = st.container()
    try:
        tables = shuffle.draw_shuffled(view)
    except ModelError:  # the line below the figure says what tells the model where patches are
        return []
    heading.subheader(tr(shuffle.QUESTION), anchor=False)
    return tables


def _lowest(similarity: np.ndarray) -> float:
    """Return the cosine at which the scale begins.

    On a scale from -1, cosines that differ little are painted nearly alike.
    """
    chosen = setting("cosines", list(COSINE_SCALES), "minimum")
    return math.floor(100 * float(similarity.min())) / 100 if chosen == "minimum" else -1.0


@lesson.part("tiles")
def _all_and_lines(
    view: View,
    similarity: np.ndarray,
    kind: EmbeddingKind,
    name: str,
    position: tuple[int, int],
    low: float,
) -> None:
    """Draw the tiles of all positions, and cosines along one's row, column and diagonal."""
    every, lines = st.columns(2)
    with every:
        st.subheader(tr("All positions: {kind}", kind=name), anchor=False)
        _all_tiles(view, similarity, position, low)
        st.markdown(_averages(view, similarity, kind))
    with lines:
        st.subheader(
            tr(
                "Cosine with row {row}, column {column}",
                row=position[0] + 1,
                column=position[1] + 1,
            ),
            anchor=False,
        )
        profile = inspection.position_profile(similarity, position=position)
        show_figure(plots.position_profile(profile, position=position))
        if kind in FORMULAS:
            st.latex(FORMULAS[kind])


def _numbers(view: View, kinds: list[EmbeddingKind], position: tuple[int, int]) -> Table:
    cosines: Columns = {
        _name(view, kind): _similarity(view, kind)[position].ravel() for kind in kinds
    }
    return Table(
        tr(
            "Cosine of every position's embedding with that of row {row}, column {column}.",
            row=position[0] + 1,
            column=position[1] + 1,
        ),
        {**patch_columns(view), **cosines},
    )


def _name(view: View, kind: EmbeddingKind) -> Message:
    if kind == "learned" and not view.model.trained:
        return Message("untrained")
    return Message(EMBEDDING_KINDS[kind])


def _why_not_learned(view: View) -> str | None:
    """Explain in one sentence why there is no learned embedding to show."""
    model, grid = view.model, view.grid
    if model.position_embedding is None:
        why = tr("adds no position embedding to its tokens")
    elif not model.positions_learned:
        why = tr("adds fixed sines and cosines")
    elif model.patch_positions is None:
        why = tr(
            "has position embeddings for a grid other than {rows} x {cols}",
            rows=grid[0],
            cols=grid[1],
        )
    else:
        return None
    return tr_md(
        "{name} {why}, so there is no learned embedding to show: choose a model that has one, such "
        "as {shipped}.",
        name=model.name,
        why=why,
        shipped=models.shipped_name(),
    )


def _fits(kind: EmbeddingKind, width: int) -> bool:
    return width % {"sincos1d": 2, "sincos2d": 4}.get(kind, 1) == 0


def _table(view: View, kind: EmbeddingKind) -> np.ndarray:
    """Return the position embeddings of the patches: (N, D)."""
    rows, cols = view.grid
    if kind == "learned":
        table = view.model.patch_positions
        assert table is not None
        return table
    width = view.acts.tokens(0).shape[1]
    return inspection.position_table(kind, grid=(rows, cols), embed_dim=width)


def _similarity(view: View, kind: EmbeddingKind) -> np.ndarray:
    return results.compute(
        ("positions", *view.key[:2], view.grid, kind),
        lambda: inspection.position_similarity(_table(view, kind), grid=view.grid),
    )


def _frames(view: View, kinds: list[EmbeddingKind], current: EmbeddingKind) -> list[Frame]:
    """Return the frames of all kinds where these are small enough, else of the one on screen."""
    count = view.grid[0] * view.grid[1]
    numbers = frames_to_send(len(kinds), kinds.index(current), count**2)

    def make() -> list[Frame]:
        return [
            encode_frame(
                number, _similarity(view, kinds[number]).reshape(1, count, count), 0, "cosine"
            )
            for number in numbers
        ]

    return results.compute(
        ("positions", *view.key[:2], view.grid, tuple(kinds), tuple(numbers)),
        make,
    )


def _averages(view: View, similarity: np.ndarray, kind: EmbeddingKind) -> str:
    """Describe the cosines with neighbours and with mirror images."""
    near = inspection.neighbour_similarity(similarity)
    across, down = inspection.mirror_similarity(similarity)
    if np.isnan([near, across, down]).any():
        return ""
    words = tr(
        "Mean cosine of a position with its neighbours: **{near:.2f}**; with its mirror "
        "image left to right: **{across:.2f}**; top to bottom: **{down:.2f}**.",
        near=near,
        across=across,
        down=down,
    )
    learned = kind == "learned" and view.model.trained
    if learned:
        words += _before_training(view)
    if learned and across > down + MIRRORED and across > MIRRORED:
        # Two runs that differ in the flips alone.
        words += tr(
            " To this model left and right are alike, and top and bottom are not. "
            "Training on pictures that are flipped at random is not needed for that: a "
            "small ViT (3 layers, D = 96, 5 epochs of CIFAR-10, one seed) reached 0.80 and "
            "-0.20 with flips, 0.82 and -0.17 without."
        )
    return words


def _before_training(view: View) -> str:
    """Return the same cosines at the start of a training that began with sines and cosines."""
    similarity = records.positions_put_in(view.model, view.grid)
    if similarity is None:
        return ""
    near = inspection.neighbour_similarity(similarity)
    across, down = inspection.mirror_similarity(similarity)
    return " " + tr(
        "Its training began with sines and cosines, for which, interpolated to this grid, these "
        "are {near:.2f}, {across:.2f} and {down:.2f}: only the difference was learned.",
        near=near,
        across=across,
        down=down,
    )


def _all_tiles(view: View, similarity: np.ndarray, position: tuple[int, int], low: float) -> None:
    def clicked(points: Points) -> None:
        row, col = points[0]["customdata"]
        settings.change(query=f"{row + 1}.{col + 1}")

    figure = plots.position_similarity(similarity, position=position, low=low)
    show_figure(figure, key="tiles", on_click=clicked)


@lesson.part("grid")
def _draw_resized(
    view: View, kind: EmbeddingKind, name: str, position: tuple[int, int], low: float
) -> None:
    """Draw the tile of one position before and after interpolation to another grid."""
    (rows, cols), (high, wide) = view.grid, view.acts.layers[0].patch_side
    st.subheader(tr("Interpolated to another grid: {name}", name=name), anchor=False)
    grids = {count: (count, max(1, round(count * cols / rows))) for count in GRIDS}
    grids = {count: one for count, one in grids.items() if math.prod(one) <= MOST_POSITIONS}
    if not grids:
        st.info(
            tr(
                "A grid of this shape with {least} rows has more than {most:,} positions, too many "
                "to compare with one another.",
                least=GRIDS[0],
                most=MOST_POSITIONS,
            )
        )
        return
    first, second, _ = st.columns([4, 4, 3], vertical_alignment="bottom")
    usual = min(USUAL_GRID, max(grids))
    settings.follow_default("grid", str(usual))
    label = tr("Rows of the new grid")
    new_rows = choose("grid", label, list(grids), usual, first, "select_slider")
    how = choose("interpolation", tr("Interpolation"), INTERPOLATION_NAMES, "bicubic", second)
    grid = grids[new_rows]
    whole = (0, 0, 1, 1)  # both grids cover all of the picture
    there = matching_patch(position, (view.grid, whole), (grid, whole))
    before, after = _similarity(view, kind), _resized_similarity(view, kind, grid, how)
    left, right, words = st.columns([4, 4, 3])
    for column, when, tiles, at in (
        (left, tr("Before"), before, position),
        (right, tr("After"), after, there),
    ):
        size = f"{tiles.shape[0]} x {tiles.shape[1]}"
        with column:
            st.markdown(
                tr(
                    "**{when}: {size}, row {row}, column {column}**",
                    when=when,
                    size=size,
                    row=at[0] + 1,
                    column=at[1] + 1,
                )
            )
            show_figure(plots.position_tile(tiles, position=at, low=low), key=when)
    words.markdown(
        tr(
            "{rows} x {columns} patches of {high} x {wide} px make a picture of {height} x "
            "{width} px.",
            rows=grid[0],
            columns=grid[1],
            high=high,
            wide=wide,
            height=grid[0] * high,
            width=grid[1] * wide,
        )
    )
    if rows * cols > 1:
        near = [inspection.neighbour_similarity(tiles) for tiles in (before, after)]
        words.markdown(
            tr(
                "Neighbours have a cosine of {near:.2f} on average before, {then:.2f} after.",
                near=near[0],
                then=near[1],
            )
        )


def _resized_similarity(
    view: View, kind: EmbeddingKind, grid: tuple[int, int], how: Interpolation
) -> np.ndarray:
    def make() -> np.ndarray:
        table = _table(view, kind)
        resized = inspection.resized_positions(
            table, grid=view.grid, new_grid=grid, interpolation=how
        )
        return inspection.position_similarity(resized, grid=grid)

    return results.compute(
        ("positions", *view.key[:2], view.grid, kind, grid, how),
        make,
    )
