"""The sentences on what is to be seen, on patterns that are planted."""

import numpy as np
import pytest

from vitviz import inspection
from vitviz.inspection import Patterns, attention_patterns
from vitviz.text import findings

GRID = (6, 5)
COUNT = GRID[0] * GRID[1]
ROW, COL = np.divmod(np.arange(COUNT), GRID[1])
DOWN, ACROSS = (np.abs(place[:, None] - place) for place in (ROW, COL))
PLACES = {
    "row": DOWN == 0,
    "column": ACROSS == 0,
    "neighbours": (DOWN <= 1) & (ACROSS <= 1) & (DOWN + ACROSS > 0),
    "itself": np.eye(COUNT, dtype=bool),
    "one patch": np.tile(np.arange(COUNT) == 2 * GRID[1] + 3, (COUNT, 1)),
    "uniform": np.ones((COUNT, COUNT), bool),
}
SAID = {
    "row": "along the row of the query",
    "column": "along the column of the query",
    "neighbours": "to the neighbours of the query",
    "itself": "to the query itself",
    "one patch": "from everywhere to row 3, column 4",
}


def head(name: str, share: float = 1.0) -> np.ndarray:
    """Attention (1 + N, 1 + N) that follows a pattern by this share, and is uniform beside it.

    A fifth of every row goes to CLS.
    """
    mask = PLACES[name]
    patches = share * mask / mask.sum(axis=1, keepdims=True) + (1 - share) / COUNT
    whole = np.full((1 + COUNT, 1 + COUNT), 1 / (1 + COUNT))
    whole[1:, 0], whole[1:, 1:] = 0.2, 0.8 * patches
    return whole


def measured(*heads: np.ndarray) -> Patterns:
    return attention_patterns(np.stack(heads), grid=GRID, num_prefix_tokens=1)


def said(*layers: Patterns) -> str:
    return findings.attention(
        range(1, len(layers) + 1),
        [layer.shares for layer in layers],
        layers[0].uniform,
        [layer.patch for layer in layers],
        [layer.moved for layer in layers],
        GRID[1],
    )


@pytest.mark.parametrize("name", SAID)
def test_a_head_is_named_by_what_it_does(name: str) -> None:
    sentence = said(
        measured(head("uniform"), head("uniform")), measured(head("uniform"), head(name))
    )
    assert sentence.startswith(f"**Layer 2, head 2** attends {SAID[name]}: 100 % of its attention")
    assert sentence.endswith("All heads of **layer 1** attend almost uniformly.")


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
    table = {name: mask.astype(float).reshape(*GRID, *GRID) for name, mask in PLACES.items()}
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


def test_the_positions_of_the_papers_formula_are_alike_nearby() -> None:
    table = inspection.position_table("sincos2d", grid=(8, 8), embed_dim=64)
    similarity = inspection.position_similarity(table, grid=(8, 8))
    near = inspection.neighbour_similarity(similarity)
    assert f"are alike: a cosine of **{near:.2f}**" in findings.positions(similarity)


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
