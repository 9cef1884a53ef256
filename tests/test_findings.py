"""The sentences on what is to be seen, on patterns that are planted."""

from typing import Any

import numpy as np
import pytest

from vitviz.inspection import (
    Patterns,
    attention_distance,
    attention_patterns,
    uniform_distance,
)
from vitviz.inspection.patterns import Sinks
from vitviz.text import findings

#: One that is not square, its other way round, one with a single narrow side, and a square.
GRIDS = ((6, 5), (5, 6), (4, 14), (8, 8))
OFFSETS = ((0, 1), (-1, 0), (2, -1), (-2, 2), (1, 1))
SAID = {
    "row": "along the row of the query",
    "column": "along the column of the query",
    "neighbours": "to the neighbours of the query",
    "itself": "to the query itself",
    "one patch": "from everywhere to row 3, column 4",
    "one offset": "to the patch at one offset from the query, where there is one (1 row down and "
    "2 columns left)",
}
GRID = GRIDS[0]
COUNT = GRID[0] * GRID[1]


def pattern(name: str, grid: tuple[int, int], offset: tuple[int, int] = (1, -2)) -> np.ndarray:
    """Where the queries of a planted head look, (N, N); at the border as far as the grid goes."""
    row, col = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    down, across = (place - place[:, None] for place in (row, col))  # key minus query
    itself = (down == 0) & (across == 0)
    masks = {
        "row": (down == 0) & ~itself,
        "column": (across == 0) & ~itself,
        "neighbours": (abs(down) <= 1) & (abs(across) <= 1) & ~itself,
        "itself": itself,
        "one patch": np.tile((row == 2) & (col == 3), (len(row), 1)),
        "uniform": np.ones_like(itself),
        "one offset": (down == offset[0]) & (across == offset[1]),
    }
    return masks[name]


def head(
    name: str,
    share: float = 1.0,
    grid: tuple[int, int] = GRID,
    cls: float = 0.2,
    **more: tuple[int, int],
) -> np.ndarray:
    """Attention (1 + N, 1 + N) that follows a pattern by this share, and is uniform beside it.

    `cls` of every row goes to CLS. A query at whose offset there is no patch attends uniformly.
    """
    mask = pattern(name, grid, **more)
    count = len(mask)
    mask = mask | ~mask.any(axis=1, keepdims=True)
    patches = share * mask / mask.sum(axis=1, keepdims=True) + (1 - share) / count
    whole = np.full((1 + count, 1 + count), 1 / (1 + count))
    whole[1:, 0], whole[1:, 1:] = cls, (1 - cls) * patches
    return whole


def measured(*heads: np.ndarray, grid: tuple[int, int] = GRID) -> Patterns:
    return attention_patterns(np.stack(heads), grid=grid, num_prefix_tokens=1)


def said(*layers: Patterns, columns: int = GRID[1]) -> str:
    return findings.attention(range(1, len(layers) + 1), layers, columns, ("CLS",))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", SAID)
def test_a_head_is_named_by_what_it_does(name: str, grid: tuple[int, int]) -> None:
    even, planted = head("uniform", grid=grid), head(name, grid=grid)
    sentence = said(
        measured(even, even, grid=grid), measured(even, planted, grid=grid), columns=grid[1]
    )
    assert sentence.startswith(f"**Layer 2, head 2** attends {SAID[name]}: 100 % of its attention")
    assert sentence.endswith("All heads of **layer 1** attend almost uniformly.")


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("other", ["row", "column"])
def test_the_query_itself_counts_in_neither_its_row_nor_its_column(
    name: str, other: str, grid: tuple[int, int]
) -> None:
    """Two thirds to itself and a third to row and column: it attends to itself."""
    mixed = (4 * head("itself", grid=grid) + head(other, grid=grid) + head(name, grid=grid)) / 6
    found = measured(mixed, grid=grid)
    if name != "itself":
        assert "to the query itself" in said(found, columns=grid[1])
    assert measured(head("itself", grid=grid), grid=grid).shares[other] == 0


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_fixed_offset_is_found_with_its_signs(
    offset: tuple[int, int], grid: tuple[int, int]
) -> None:
    found = measured(head("one offset", 0.6, grid=grid, offset=offset), grid=grid)
    assert tuple(found.offset[0]) == offset
    assert found.shares["one offset"] == pytest.approx(0.6 + 0.4 / (grid[0] * grid[1]))
    assert "at one offset from the query" in said(found, columns=grid[1])


@pytest.mark.parametrize("grid", GRIDS)
def test_a_head_of_one_prefix_token_is_named_by_it_whatever_the_rest_does(
    grid: tuple[int, int],
) -> None:
    sink = [head(name, cls=0.6, grid=grid) for name in ("row", "uniform", "itself")]
    sentence = said(measured(*sink, grid=grid), columns=grid[1])
    assert "attends from everywhere to CLS: 60 % of its" in sentence
    assert "uniformly" not in sentence
    sentence = said(measured(*sink, head("column", grid=grid), grid=grid), columns=grid[1])
    assert "**Layer 1, head 4** attends along the column" in sentence


def test_registers_are_told_apart() -> None:
    attention = np.full((2, 3 + COUNT, 3 + COUNT), 0.1 / (2 + COUNT))
    attention[0, :, 2] = attention[1, :, 1] = 0.9
    attention[1, :, 1] = 0.95
    found = attention_patterns(attention, grid=GRID, num_prefix_tokens=3)
    assert found.token.tolist() == [2, 1]
    assert "to REG 1" in findings.attention([1], [found], GRID[1], ("CLS", "REG 1", "REG 2"))


@pytest.mark.parametrize("name", SAID)
def test_the_share_of_a_pattern_is_what_was_planted(name: str) -> None:
    even = measured(head("uniform"))
    found, uniform = measured(head(name, 0.4)), even.uniform[name]
    assert even.shares[name] == pytest.approx(uniform)
    assert found.shares[name] == pytest.approx(0.4 + 0.6 * uniform)
    assert f"{SAID[name]}: {100 * (0.4 + 0.6 * uniform):.0f} %" in said(found)


def test_of_two_patterns_the_clearer_one_is_told() -> None:
    assert "**Layer 1, head 2** attends along the column" in said(
        measured(head("row", 0.3), head("column", 0.6), head("itself", 0.2))
    )


@pytest.mark.parametrize("name", SAID)
def test_a_faint_pattern_is_not_told(name: str) -> None:
    assert said(measured(head(name, 0.05))).startswith("No head attends clearly")


def test_what_would_have_to_move_is_the_distance_to_uniform() -> None:
    found = measured(head("uniform"), head("itself"), head("itself", 0.5))
    assert found.moved == pytest.approx([0, 1 - 1 / COUNT, 0.5 * (1 - 1 / COUNT)])


def test_some_and_all_uniform_heads_are_counted() -> None:
    mixed = measured(head("uniform"), head("row"), head("uniform"))
    assert said(mixed, measured(*3 * [head("row")])).endswith(
        "2 of 3 heads of **layer 1** attend almost uniformly."
    )
    assert "uniformly" not in said(measured(head("row")))
    even = measured(head("uniform"))
    assert said(even, even).endswith("All heads of **every layer** attend almost uniformly.")


def test_a_query_without_attention_on_patches_is_left_out() -> None:
    attention = head("row")
    attention[3] = np.eye(1 + COUNT)[0]
    assert measured(attention).shares["row"] == pytest.approx(1)


def test_a_grid_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="A grid of 2 x 2 has 4 patches, not 30"):
        attention_patterns(head("row")[None], grid=(2, 2), num_prefix_tokens=1)


@pytest.mark.parametrize(
    ("pixels", "begins"),
    [
        ([[10.0, 12.0], [9.0, 100.0]], "Most heads attend **near**"),
        (
            [[95.0, 105.0], [100.0, 20.0]],
            "Most heads attend **as far as uniform attention** would.",
        ),
        ([[70.0, 150.0], [100.0, 20.0]], "The heads are **mixed**."),
    ],
)
def test_local_or_global(pixels: list[list[float]], begins: str) -> None:
    sentence = findings.distance(np.array(pixels), 100.0)
    assert sentence.startswith(begins)
    values = np.array(pixels)
    even, near = (np.abs(values - 100) <= 10).sum(), (values < 50).sum()
    counted = (
        f" {even} of 4 are within 10 % of the distance of uniform attention (100.0 px), {near}"
    )
    assert f"{counted} below half of it." in sentence
    layer, one = np.unravel_index(values.argmin(), values.shape)
    assert sentence.endswith(f"layer {layer + 1}, head {one + 1} ({values.min():.1f} px).")


def test_a_head_on_cls_is_not_said_to_attend_near() -> None:
    """Without renormalisation its distance is short, though it attends to all patches alike."""
    attention = np.full((1, 1 + COUNT, 1 + COUNT), 0.2 / COUNT)
    attention[..., 0] = 0.8
    where: dict[str, Any] = dict(grid=GRID, patch_size=16, num_prefix_tokens=1)
    uniform = uniform_distance(GRID, 16)
    whole = attention_distance([attention], **where)
    assert "**as far as uniform attention**" in findings.distance(whole, uniform)
    short = attention_distance([attention], **where, variant="paper")
    np.testing.assert_allclose(short, 0.2 * uniform)
    sentence = findings.distance(short, uniform, renormalised=False)
    assert sentence.startswith("Attention on prefix tokens counts as 0 px here")
    assert "**near**" not in sentence


def test_heads_that_attend_to_no_patch_are_not_counted() -> None:
    pixels = np.array([[np.nan, 100.0]])
    assert "1 of 1 are within" in findings.distance(pixels, 100.0)
    assert findings.distance(np.full((1, 2), np.nan), 100.0) == ""


@pytest.mark.parametrize(
    ("cosines", "shown", "ends"),
    [
        ([0.5, 0.9], 1, "a cosine of **0.50** on average."),
        ([0.5, 0.9], 2, "**0.90** on average, more alike than after layer 1 (0.50)."),
        ([0.5, 0.2], 2, "**0.20** on average, less alike than after layer 1 (0.50)."),
        ([0.5, 0.55], 2, "**0.55** on average, about as alike as after layer 1 (0.50)."),
    ],
)
def test_how_alike_tokens_are(cosines: list[float], shown: int, ends: str) -> None:
    sentence = findings.tokens(cosines, shown)
    assert sentence.startswith(f"After layer {shown} two patches have")
    assert sentence.endswith(ends)


def test_positions() -> None:
    masks = {name: pattern(name, GRID) for name in (*SAID, "uniform")}
    masks["row"], masks["column"] = (masks[name] | masks["itself"] for name in ("row", "column"))
    table = {name: mask.astype(float).reshape(*GRID, *GRID) for name, mask in masks.items()}
    rows = findings.positions(table["row"])  # each position as all of its row
    assert rows.startswith("Neighbouring positions are alike: a cosine of **0.49** on average")
    assert rows.endswith(
        "Positions of one row are more alike (1.00) than those of one column (0.00)."
    )
    assert "Positions of one column are more alike" in findings.positions(table["column"])
    near = findings.positions(np.maximum(table["neighbours"], table["itself"]))
    assert "**1.00**" in near
    assert findings.positions(table["itself"]).startswith("Neighbouring positions are hardly more")
    assert findings.positions(np.ones((1, 4, 1, 4))) == ""  # no column to compare with


@pytest.mark.parametrize(
    ("before", "ends"),
    [
        (None, "in **2 of 9** components."),
        ([0.2, 0.2, 0.2], "components, fewer than before training (3)."),
        ([0.3, 0.2, 0.2], "components, as many as before training."),
        ([0.6, 0.1], "components, more than before training (1)."),
        ([0.1, 0.1], "in **2 of 9** components."),  # half is not reached
    ],
)
def test_half_of_the_variance(before: list[float] | None, ends: str) -> None:
    known = None if before is None else np.array(before)
    assert findings.filters(np.array([0.4, 0.2, 0.1]), known, 9).endswith(ends)


def test_components_that_do_not_reach_half() -> None:
    assert findings.filters(np.array([0.2, 0.1]), None, 9) == (
        "The first 2 of 9 components hold less than half of the variance."
    )


# --- two maps, two pictures ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correlation", "words"),
    [
        (0.93, "much alike: their correlation is **0.93**"),
        (0.5, "partly alike: their correlation is **0.50**"),
        (-0.1, "hardly alike: their correlation is **-0.10**"),
        (-0.6, "opposed to each other: their correlation is **-0.60**"),
    ],
)
def test_two_maps_are_said_to_be_as_alike_as_they_correlate(correlation: float, words: str) -> None:
    assert findings.maps(correlation, [GRID, GRID], GRID) == f"The two maps are {words}."


def test_maps_of_two_grids_say_in_which_they_are_compared() -> None:
    said = findings.maps(0.5, [(16, 16), (14, 7)], (14, 7))
    assert said.endswith(
        "They lie in grids of 16 x 16 and of 14 x 7 patches and are compared on the picture, "
        "resampled by area to 14 x 7."
    )
    even = findings.maps(float("nan"), [GRID, GRID], GRID)
    assert even == "One of the two maps is the same everywhere, so they have no correlation."


def test_mutual_matches_are_counted_and_those_at_one_place_too() -> None:
    pairs, cosines = np.array([[0, 0], [3, 5], [7, 7]]), np.array([0.2, 0.4, 0.9])
    assert findings.matches(pairs, cosines, COUNT) == (
        "**3 of 30** patches have a mutual match in the other picture, with a median cosine of "
        "0.40; 2 of them at the same place."
    )
    nothing = findings.matches(pairs[:0], cosines[:0], COUNT)
    assert nothing == "None of the 30 patches has a mutual match in the other picture."


# --- keys that stand out, and muted heads --------------------------------------------------------


def test_keys_that_stand_out_are_named_by_their_places() -> None:
    keys, other = Sinks((0, 2, 7, 8, 9, 12), (3,)), Sinks((), (0,))
    prefix = ("cls", "reg1")  # before 6 columns
    named = "CLS; row 1, column 1; row 1, column 6; row 2, column 1; 2 more"
    told = findings.sinks(4, keys, 6, prefix)
    assert told.startswith("In layer 4 ")
    assert f"(**no-op sinks**): {named}." in told
    assert told.endswith("(**broadcasts**): row 1, column 2.")
    no_ops, broadcasts = findings.sinks_by_layer({1: keys, 3: other}, 6, prefix)
    assert no_ops.endswith(f": layer 1 ({named}).")
    assert broadcasts.endswith(": layer 1 (row 1, column 2), layer 3 (CLS).")
    counts = {"no_ops": [3, 3], "broadcasts": [0, 0], "pictures": [6, 4]}
    no_ops, broadcasts = findings.sinks_over_pictures(
        {name: np.array(by_layer) for name, by_layer in counts.items()}
    )
    assert no_ops.endswith(" an equal share: layer 1 in 50 %, layer 2 in 75 % of 6 pictures.")
    assert broadcasts.endswith(" in ten queries: in none of 6 pictures.")


def test_the_muted_head_that_decides_most_clearly_is_named() -> None:
    logits = np.tile(np.array([3.0, 1.0, 0.0]), (2, 3, 1))
    assert findings.muted_heads(logits, 0, str) == (
        "Muting any one of the 6 heads leaves the answer at **0**.",
        None,
    )
    logits[0, 1] = 0, -9, 0.5  # another class wins, but hardly
    logits[1, 2, 1] = 5
    told, head = findings.muted_heads(logits, 0, str)
    assert head == (1, 2)
    assert "**2 of 6** heads, most clearly layer 2, head 3: 0 becomes **1**." in told
