"""Limits of a public server: the real one tries to be broken, and its counters keep the hour."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import unescape
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

import pytest
from app_server import Server, serving
from examples import assert_clear_error, picture
from pages.driver import encoded
from visitor import Visitor
from websockets.exceptions import InvalidStatus

from vitviz.app.shared import limits
from vitviz.app.shared.limits import IDLE, Allowance, Door, name_of

SECONDS = 3
FULL = "You are number {place} in line."
FULL_IN_KOREAN = "대기 순서는 {place}번째입니다."
USED_UP = re.compile(rf"You have used the {SECONDS} seconds .* come back in (\d+) min\.")


class Clock:
    def __init__(self) -> None:
        self.now = 1e6

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits, "time", clock)
    return clock


# --- what is counted in an hour -------------------------------------------------------------------


def test_what_was_used_counts_for_an_hour(clock: Clock) -> None:
    allowance = Allowance(10)
    allowance.spend("a", 6)
    clock.now += 20 * 60
    assert allowance.minutes_to_wait("a") == 0
    allowance.spend("a", 5)  # begun while there was something left
    assert allowance.minutes_to_wait("a") == 40  # until the first six are forgotten
    assert allowance.minutes_to_wait("b") == 0
    clock.now += 39 * 60
    assert allowance.minutes_to_wait("a") == 1
    clock.now += 60
    assert allowance.minutes_to_wait("a") == 0
    allowance.spend("a", 5)
    assert allowance.minutes_to_wait("a") == 20  # until the five are


def test_visitors_who_stay_away_for_an_hour_are_forgotten(clock: Clock) -> None:
    allowance = Allowance(10)
    for number in range(100):
        allowance.spend(str(number), 1)
    clock.now += 3540
    allowance.spend("a", 1)
    assert len(allowance._used) == 101
    clock.now += 60
    allowance.spend("a", 1)
    assert set(allowance._used) == {"a"}


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("no address", "no address"),
    ],
)
def test_a_household_is_one_visitor(address: str, name: str) -> None:
    assert name_of(address) == name


# --- the line -------------------------------------------------------------------------------------


def test_visitors_are_let_in_in_the_order_in_which_they_came(clock: Clock) -> None:
    door, present = Door(2), {*"abcd"}
    assert [door.place(one, present) for one in "abcd"] == [0, 0, 1, 2]
    assert [door.place(one, present) for one in "dcba"] == [2, 1, 0, 0]
    present.remove("a")
    assert [door.place(one, present) for one in "dc"] == [1, 0]  # c is next, whoever asks first
    present.add("a")
    assert door.place("a", present) == 2  # who leaves and comes back stands at the end
    present.remove("d")
    assert door.place("a", present) == 1


def test_who_does_nothing_for_long_makes_room_for_one_who_waits(clock: Clock) -> None:
    door, present = Door(2), {*"abc"}
    assert [door.place(one, present) for one in "ab"] == [0, 0]
    clock.now += IDLE - 1
    assert [door.place(one, present) for one in "bc"] == [0, 1]
    clock.now += 1
    assert [door.place(one, present) for one in "cba"] == [0, 0, 1]


def test_nobody_has_to_leave_while_nobody_waits(clock: Clock) -> None:
    door = Door(2)
    door.place("a", {*"ab"})
    clock.now += 100 * IDLE
    assert [door.place(one, {*"ab"}) for one in "ba"] == [0, 0]


# --- the real server ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    words = ["--", "--max-visitors=2", "--visitor-uploads=3", f"--visitor-seconds={SECONDS}"]
    with serving(tmp_path_factory.mktemp("server") / "log", *words) as server:
        yield server


@pytest.fixture
def coming(server: Server) -> Iterator[Callable[..., Visitor]]:
    with ExitStack() as leaving:

        def come(number: int, query: str = "", **more: str) -> Visitor:
            address = f"198.51.100.{number}" if number else ""
            visitor = Visitor(server.url, query, address=address, **more)
            return leaving.enter_context(visitor)

        yield come


def words_of(visitor: Visitor) -> str:
    return "\n".join(one.body for one in visitor.elements("markdown"))


def test_a_full_server_says_so_in_every_language_and_lets_the_next_one_in(
    coming: Callable[..., Visitor],
) -> None:
    first, second = coming(1).run(), coming(2).run()
    assert first.codes.size
    assert second.codes.size
    third, fourth = coming(3, "layer=2").run(), coming(4).run()
    for place, visitor in enumerate((third, fourth), start=1):
        said = words_of(visitor)
        assert not visitor.codes.size
        assert FULL.format(place=place) in said
        assert FULL_IN_KOREAN.format(place=place) in said
        assert "lets in 2 at a time" in said
    assert first.run().codes.size
    first.close()
    assert FULL.format(place=1) in words_of(fourth.run())  # and not in, as it came later
    assert "layer 2 of 6" in third.run().provenance  # and not another view than that of the link
    assert FULL.format(place=1) in words_of(fourth.run())


def test_a_teacher_is_let_in_where_it_is_full(coming: Callable[..., Visitor]) -> None:
    assert all(coming(number).run().codes.size for number in (1, 2))
    assert not coming(3).run().codes.size
    assert coming(0).run().codes.size


def test_who_waits_cannot_use_what_is_inside(coming: Callable[..., Visitor]) -> None:
    """By a button or an uploader that their page was never given."""
    inside = [coming(number, "block=2", page="classify").run() for number in (11, 12)]
    waiting = coming(13, "block=2", page="classify").run()
    waiting._drawn = dict(inside[0]._drawn)
    waiting.press("Hide blocks (65 passes)")
    waiting.read_until("script_finished")
    assert not [text for text in waiting.progress if "Pass" in text]
    assert FULL.format(place=1) in words_of(waiting)


def test_a_visitor_sends_so_many_pictures_an_hour(coming: Callable[..., Visitor]) -> None:
    pictures = [encoded(picture(64, 48, seed=seed)) for seed in range(3)]
    visitor = coming(21).run()
    for number, data in enumerate(pictures):
        visitor.upload(f"{number}.png", data)
    (said,) = visitor.complaints
    assert_clear_error(said)
    minutes = int(re.findall(r"in an hour: 3 of 3\. .* in (\d+) min", said)[0])
    assert 55 <= minutes <= 60
    (uploader,) = visitor.elements("file_uploader")
    assert uploader.disabled
    assert visitor.provenance.endswith(" · 2.png")
    visitor.close()
    again = coming(21).run()  # another session of the same visitor
    place = f"/_stcore/upload_file/{again.session}/{uuid4()}"
    assert [again.put(place, "a.png", pictures[0]) for _ in range(3)] == [429] * 3
    other = coming(22).run()
    assert other.upload("mine.png", pictures[0]).provenance.endswith(" · mine.png")
    teacher = coming(0).run()
    for number in range(4):
        teacher.upload(f"{number}.png", pictures[0])
        assert not teacher.complaints
    assert teacher.provenance.endswith(" · 3.png")


def test_a_visitor_computes_so_many_seconds_an_hour(coming: Callable[..., Visitor]) -> None:
    """Whoever has used them up still sees what was computed, and nobody else is refused."""
    said: list[str] = []
    for view in ("block=4", "block=2", "block=2&picture=duck"):  # until all seconds are used
        visitor = coming(31, view, page="classify").run()
        seen = visitor.provenance
        labels = [one.label for one in visitor.elements("button")]
        for label in [label for label in labels if "passes" in label]:
            visitor.press(label)
            visitor.read_until("script_finished")
            said = said or [one for one in visitor.complaints if USED_UP.search(one)]
        if said:
            break
        visitor.close()
    assert_clear_error(said[0])
    assert 55 <= int(USED_UP.findall(said[0])[0]) <= 60
    assert visitor.run().provenance == seen  # of the cache
    assert not visitor.complaints
    visitor.choose("Picture", "moose").run()
    assert USED_UP.search("\n".join(visitor.complaints))
    report = visitor.choose("Picture", "red_panda").run().download("Report")
    assert USED_UP.search(unescape(report.decode()))
    visitor.close()
    again = coming(31, "picture=moose").run()  # another session of the same visitor
    assert USED_UP.search("\n".join(again.complaints))
    other = coming(32, "picture=moose").run()
    assert other.codes.size
    assert not other.complaints


def test_nobody_waits_where_too_many_do(
    server: Server, coming: Callable[..., Visitor], tmp_path: pytest.TempPathFactory
) -> None:
    waiting = [coming(41 + number) for number in range(2 + limits.MAX_WAITING_VISITORS)]
    with pytest.raises(InvalidStatus) as caught:
        coming(40)
    assert caught.value.response.status_code == 403
    with pytest.raises(HTTPError) as refused:
        urlopen(server.url)
    with refused.value as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "60")
        said = answer.read().decode()
    assert "lets in 2 at a time" in said
    assert "2명까지" in said
    waiting[0].close()
    assert coming(40).run()
