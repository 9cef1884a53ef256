"""What a class shares: safe for threads, bounded, forgotten. And the sentences on guesses."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vitviz.app.shared.classroom import MAX_GUESSES, PredictionQuestion, Room
from vitviz.text import guesses as text

FIRST, SECOND = (PredictionQuestion("attention", "a model", layer) for layer in (1, 2))


def test_a_pin_has_the_next_number_and_a_release_counts_once() -> None:
    room, texts = Room(), {"layer": "3"}
    room.show("tokens", texts)
    texts["layer"] = "4"  # of the page that goes on
    assert room.pin
    assert (room.pin.page, room.pin.settings, room.pin.number) == ("tokens", {"layer": "3"}, 1)
    room.release()
    room.release()
    assert room.shown == 2
    room.show("tokens", texts)
    assert room.pin.number == 3


def test_a_session_has_one_guess_which_may_change() -> None:
    room = Room()
    room.ask(FIRST)
    for session, answer in (("a", 5), ("b", 5), ("a", 7), ("a", 7)):
        room.guess(FIRST, session, answer)
    assert room.guesses(FIRST) == {5: 1, 7: 1}
    assert room.guessed == 1 + 3  # the question, and what was another guess than before


def test_guesses_are_those_of_the_question_that_is_asked() -> None:
    room = Room()
    room.guess(FIRST, "a", 5)
    assert not room.guesses(FIRST)
    room.ask(FIRST)
    room.guess(SECOND, "a", 5)
    room.guess(FIRST, "b", 6)
    assert (room.guesses(FIRST), room.guesses(SECOND)) == ({6: 1}, {})
    room.ask(FIRST)  # the same forgets nothing
    assert room.guesses(FIRST)


@pytest.mark.parametrize("then", [SECOND, None])
def test_another_question_forgets_guesses_and_hides_them(then: PredictionQuestion | None) -> None:
    room = Room()
    room.ask(FIRST)
    room.guess(FIRST, "a", 5)
    room.reveal(FIRST)
    assert room.is_revealed(FIRST)
    room.ask(then)
    room.ask(FIRST)
    assert not room.guesses(FIRST)
    assert not room.is_revealed(FIRST)


def test_only_what_is_asked_is_revealed_and_once() -> None:
    room = Room()
    room.ask(FIRST)
    room.reveal(SECOND)
    assert not room.is_revealed(SECOND)
    room.reveal(FIRST)
    room.reveal(FIRST)
    assert room.shown == 1


def test_no_more_guesses_are_kept_than_there_is_room_for() -> None:
    room = Room()
    room.ask(FIRST)
    for session in range(MAX_GUESSES + 50):
        room.guess(FIRST, str(session), 0)
    assert room.guesses(FIRST).total() == MAX_GUESSES
    room.guess(FIRST, "0", 1)  # who is in may still change it
    assert room.guesses(FIRST) == {0: MAX_GUESSES - 1, 1: 1}


def test_no_guess_of_sessions_at_once_is_lost() -> None:
    room = Room()
    room.ask(FIRST)

    def guess(session: int) -> None:
        for answer in range(20):
            room.guess(FIRST, str(session), answer)
            room.guesses(FIRST)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(guess, range(100)))
    assert room.guesses(FIRST) == {19: 100}
    assert room.guessed == 1 + 20 * 100


# --- sentences ------------------------------------------------------------------------------------


def test_the_sentence_on_a_patch_has_its_share_its_rank_and_the_strongest() -> None:
    shares = np.array([[0.019, 0.30, 0.2], [0.01, 0.019, 0.05]])
    said = text.describe_patch(shares, 0, "the CLS token", "layer 6", True)
    assert said == (
        "The patch at row 1, column 1 gets 1.9 % of the attention of the CLS token in layer 6: "
        "rank 4 of 6. The strongest is row 1, column 2, with 30 %."
    )
    said = text.describe_patch(shares, 1, "the CLS token", "layer 6", False)
    assert "gives 30 % of its attention to the CLS token" in said
    assert said.endswith("rank 1 of 6. No other ranks higher.")


def test_the_sentence_on_a_block_has_its_fall_in_points() -> None:
    falls = np.array([[0.031, -0.02], [0.0, 0.2]])
    assert text.describe_block(falls, 0, "dog") == (
        "Without the block at row 1, column 1 of the blocks the probability of dog falls by 3.1 "
        "percentage points: rank 2 of 4. The block that matters most is row 2, column 2, without "
        "which it falls by 20.0 percentage points."
    )
    assert "rises by 2.0 percentage points: rank 4 of 4" in text.describe_block(falls, 1, "dog")
    assert "hardly changes: rank 3 of 4" in text.describe_block(falls, 2, "dog")


def test_of_equals_none_ranks_higher() -> None:
    """As where the answer is so sure that no block changes it."""
    for said in (
        text.describe_block(np.zeros((2, 2)), 3, "dog"),
        text.describe_patch(np.full((2, 2), 0.25), 3, "CLS", "layer 1", True),
        text.describe_layer(np.array([3.0, 3.0]), 1),
    ):
        assert re.search(r": rank 1 of \d\. No other ranks higher\.$", said)


def test_one_point_is_one() -> None:
    assert " 67 %, 1 percentage point away;" in text.describe_accuracy(0.67, 0.78, 66)
    assert " 67 %, 0 percentage points away;" in text.describe_accuracy(0.67, 0.78, 67)


def test_the_sentence_on_a_layer_has_its_distance_and_leaves_out_what_has_none() -> None:
    pixels = np.array([np.nan, 21.0, 17.5, 30.0])
    assert text.describe_layer(pixels, 1) == (
        "The heads of layer 2 attend 21.0 px far on average: rank 2 of 3. The most local is layer "
        "3, with 17.5 px."
    )
    assert text.describe_layer(pixels, 2).endswith("rank 1 of 3. No other ranks higher.")
    assert text.describe_layer(pixels, 0).startswith(
        "In layer 1 no patch attends to a patch. The most"
    )
