"""A server for a class: its address, who is a teacher, and the view that is pinned for all."""

import re
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import pytest
import segno
from streamlit import config
from streamlit.testing.v1 import AppTest

from pages.driver import (
    MINE,
    address,
    assert_works,
    at_page,
    components,
    listen,
    opened,
    prose,
    provenance,
    upload,
)
from vitviz.app.shared import classroom, visitors
from vitviz.text import classroom as text

Came = Callable[..., None]
LAN = "192.0.2.7"


@pytest.fixture(autouse=True)
def _class(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that listens to all, whose machine has one address in its network."""
    classroom.room.cache_clear()
    listen("0.0.0.0")
    monkeypatch.setattr(visitors, "get_internal_ip", lambda: LAN)
    monkeypatch.setattr(visitors, "is_manually_set", lambda name: False)
    yield
    classroom.room.cache_clear()


@pytest.fixture
def option() -> Iterator[Callable[[str, object], None]]:
    """Sets options of Streamlit until the end of the test."""
    before: dict[str, object] = {}

    def set_to(name: str, value: object) -> None:
        before.setdefault(name, config.get_option(name))
        config.set_option(name, value)

    yield set_to
    for name, value in before.items():
        config.set_option(name, value)


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> Came:
    """How the visitors of the next runs came; by default from another machine, to the LAN's one."""

    def set_to(
        url: str = f"http://{LAN}:8501/attention",
        *,
        peer: str | None = "192.0.2.20",
        headers: Mapping[str, str] = {},
        cookies: Mapping[str, str] = {},
    ) -> None:
        host = re.sub("^https?://([^/]*).*", r"\1", url)
        monkeypatch.setattr(
            "streamlit.context",
            SimpleNamespace(
                url=url,
                ip_address=peer,
                locale="en-US",
                headers={"Host": host, **headers},
                cookies=cookies,
            ),
        )

    set_to()
    return set_to


def as_teacher(came: Came) -> None:
    came("http://localhost:8501/", peer=None)


def said(at: AppTest) -> list[str]:
    return [*(one.value for one in at.info), *(one.value for one in at.warning)]


def buttons(at: AppTest) -> set[str]:
    return {button.label for button in at.button} & {text.PIN, text.PIN_INSTEAD, text.RELEASE}


def told_of(at: AppTest) -> str:
    """The address that the page shows; empty where there is none."""
    return "".join(block.value for block in at.code)


# --- the address ----------------------------------------------------------------------------------


def test_a_server_on_localhost_alone_shows_nothing_of_a_class(came: Came) -> None:
    as_teacher(came)
    listen("127.0.0.1")
    at = opened()
    assert_works(at)
    assert not told_of(at)
    assert not buttons(at)
    assert not components(at, "vitviz_watch")
    assert not [html for html in at.get("html") if text.CODE in html.proto.body]


def test_the_code_is_of_the_address_that_stands_below_it(came: Came) -> None:
    """The picture has the modules that the library gives this address."""
    at = opened()
    assert_works(at)
    assert told_of(at) == f"http://{LAN}:8501"
    (html,) = [html.proto.body for html in at.get("html") if text.CODE in html.proto.body]
    again = segno.make(told_of(at), micro=False)
    assert f'"{again.svg_data_uri(omitsize=True, light="white", border=4)}"' in html


@pytest.mark.parametrize(
    ("came_by", "options", "operator", "expected"),
    [
        ("http://localhost:8501/", {}, None, f"http://{LAN}:8501"),
        ("http://127.0.0.1:8501/tokens", {}, None, f"http://{LAN}:8501"),
        ("http://localhost:9000/", {"server.port": 9000}, None, f"http://{LAN}:9000"),
        ("http://192.0.2.9:8501/tokens?layer=2", {}, None, "http://192.0.2.9:8501"),
        (
            "https://lab.example/x/tokens",
            {"server.baseUrlPath": "x"},
            None,
            "https://lab.example/x",
        ),
        ("https://lab.example/proxy/8501/tokens", {}, None, "https://lab.example/proxy/8501"),
        ("https://lab.example/proxy/8501", {}, None, "https://lab.example/proxy/8501"),
        ("http://localhost:8501/", {"server.baseUrlPath": "/x/"}, None, f"http://{LAN}:8501/x"),
        ("http://localhost:8501/", {"server.sslCertFile": "c"}, None, f"https://{LAN}:8501"),
        ("http://localhost:8501/", {"server.address": "192.0.2.8"}, None, "http://192.0.2.8:8501"),
        ("http://localhost:8501/", {"server.address": "fd00::2"}, None, "http://[fd00::2]:8501"),
        ("http://192.0.2.9:8501/", {}, "vit.example", "http://vit.example:8501"),
        ("http://192.0.2.9:8501/", {}, "fd00::2", "http://[fd00::2]:8501"),
        ("http://192.0.2.9:8501/", {}, "[fd00::2]", "http://[fd00::2]:8501"),
    ],
)
def test_the_address_is_one_that_a_class_can_reach(
    came_by: str,
    options: dict[str, object],
    operator: str | None,
    expected: str,
    came: Came,
    option: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came(came_by)
    for name, value in options.items():
        option(name, value)
    if operator:
        option("browser.serverAddress", operator)
    manually = "browser.serverAddress" if operator else ""
    monkeypatch.setattr(visitors, "is_manually_set", lambda name: name == manually)
    assert visitors.address() == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"server.address": "::1"}, "http://[::1]:8501"),
        ({"server.address": "::"}, "http://localhost:8501"),
        ({"server.address": "127.0.0.1", "server.baseUrlPath": "/x"}, "http://127.0.0.1:8501/x"),
        ({"server.address": "0.0.0.0", "server.sslCertFile": "c"}, "https://localhost:8501"),
    ],
)
def test_the_url_that_the_servers_own_browser_opens(
    options: dict[str, object], expected: str, option: Callable[[str, object], None]
) -> None:
    for name, value in options.items():
        option(name, value)
    assert visitors.local_address() == expected


@pytest.mark.parametrize(
    ("came_by", "camera"),
    [
        ("http://192.0.2.9:8501/attention", False),
        ("https://lab.example/attention", True),
        ("http://localhost:8501/attention", True),
    ],
)
def test_the_camera_needs_https_and_a_phones_own_does_not(
    came_by: str, camera: bool, came: Came
) -> None:
    came(came_by)
    at = opened("attention")
    at.toggle(key="camera_on").set_value(True).run()
    assert_works(at)
    assert bool(at.get("camera_input")) == camera
    assert any("only over HTTPS" in one.value for one in at.caption) != camera
    buttons = [one for one in components(at, "vitviz_own_picture") if one["kind"] == "camera"]
    assert bool(buttons) != camera


def test_a_machine_without_a_network_says_so(came: Came, monkeypatch: pytest.MonkeyPatch) -> None:
    as_teacher(came)
    monkeypatch.setattr(visitors, "get_internal_ip", lambda: "127.0.0.1")
    at = opened()
    assert text.NO_ADDRESS in said(at)
    assert not told_of(at)


def test_a_teacher_who_opens_the_app_sees_the_address_first(came: Came) -> None:
    assert not opened("anatomy").session_state["join"]  # a student
    as_teacher(came)
    assert opened("anatomy").session_state["join"]
    assert not opened("anatomy", layer="2").session_state["join"]  # a link
    assert not opened("distance").session_state["join"]


# --- who is a teacher -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "peer", "headers", "expected"),
    [
        ("http://localhost:8501/", None, {}, True),
        ("http://127.0.0.1:8501/", None, {}, True),
        ("http://[::1]:8501/", None, {}, True),
        (f"http://{LAN}:8501/", "192.0.2.20", {}, False),
        ("http://localhost:8501/", "192.0.2.20", {}, False),  # who says another host than was asked
        (f"http://{LAN}:8501/", None, {}, False),  # as through a proxy on this machine
        ("http://localhost:8501/", None, {"X-Forwarded-For": "127.0.0.1"}, False),
        ("http://localhost:8501/", None, {"Via": "1.1 proxy"}, False),
    ],
)
def test_who_sits_at_the_machine_is_a_teacher(
    url: str, peer: str | None, headers: dict[str, str], expected: bool, came: Came
) -> None:
    came(url, peer=peer, headers=headers)
    assert visitors.is_teacher() is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [(visitors.LINK_KEY, True), (visitors.LINK_KEY[:-1], False), ("", False), ("é", False)],
    ids=["whole", "cut off", "none", "another"],  # the key is another in each process
)
def test_who_has_the_key_is_a_teacher(key: str, expected: bool, came: Came) -> None:
    came(cookies={visitors.COOKIE: key})
    assert visitors.is_teacher() is expected


def test_students_are_given_nothing_that_pins(came: Came) -> None:
    assert not buttons(opened())
    as_teacher(came)
    assert buttons(opened()) == {text.PIN}


# --- the view that is pinned ----------------------------------------------------------------------


def pinned(came: Came, page: str = "attention", **link: str) -> AppTest:
    """A teacher's page, which is pinned."""
    as_teacher(came)
    teacher = opened(page, **link)
    teacher.button(key="pin").click().run()
    assert classroom.room().pin
    return teacher


def released(teacher: AppTest, came: Came) -> None:
    as_teacher(came)
    teacher.button(key="release").click().run()
    assert not classroom.room().pin
    came()


def on(at: AppTest) -> str:
    """The page that is on screen, which the browser asks for from then on."""
    (watch,) = components(at, "vitviz_watch")
    assert watch["seen"] == classroom.room().shown
    title = at.title[0].value.lower()
    found = next(page for page in ("attention", "tokens", "distance") if page in title)
    at_page(at, found)
    return found


def follow(student: AppTest, came: Came) -> AppTest:
    came()
    assert on(student.run()) == "attention"
    return student


def test_a_student_sees_the_teachers_view_and_goes_back_to_his_own(came: Came) -> None:
    student = opened("distance", layer="2", query="3.4", presenter="True")
    mine = provenance(student)
    teacher = pinned(came, "attention", layer="3", picture="moose")
    shown = provenance(teacher)
    assert buttons(teacher) == {text.PIN_INSTEAD, text.RELEASE}

    assert_works(follow(student, came))
    assert provenance(student) == shown != mine
    assert text.PINNED in prose(student)
    assert address(student) == {"layer": "3", "picture": "moose", "presenter": "True"}

    student.slider(key="layer").set_value(5).run()  # is not theirs to change now
    assert provenance(student) == shown
    at_page(student, "tokens").run()
    assert on(student) == "attention"

    released(teacher, came)
    student.run()
    assert text.PINNED not in prose(student)
    assert text.RELEASED in prose(student)
    assert provenance(student) == shown
    student.slider(key="layer").set_value(5).run()
    assert "layer 5" in provenance(student)
    student.button(key="go back").click().run()
    assert on(student) == "distance"
    assert provenance(student) == mine
    assert address(student) == {"layer": "2", "query": "3.4", "presenter": "True"}
    assert text.RELEASED not in prose(student)


def test_the_teacher_is_not_led_by_his_own_pin(came: Came) -> None:
    teacher = pinned(came, "attention", layer="3")
    teacher.slider(key="layer").set_value(5).run()
    assert "layer 5" in provenance(teacher)
    pin = classroom.room().pin
    assert pin
    assert (pin.page, pin.settings) == ("attention", {"layer": "3"})
    teacher.button(key="pin").click().run()
    pin = classroom.room().pin
    assert pin
    assert pin.settings == {"layer": "5"}


def test_several_pins_in_a_row_keep_the_students_own_view(came: Came) -> None:
    student = opened("distance", layer="2")
    teacher = pinned(came, "attention", layer="3")
    follow(student, came)
    released(teacher, came)
    student.run()  # and changes nothing
    as_teacher(came)
    teacher.button(key="pin").click().run()
    teacher.slider(key="layer").set_value(4).run()
    teacher.button(key="pin").click().run()
    follow(student, came)
    assert "layer 4" in provenance(student)
    released(teacher, came)
    student.run()
    student.button(key="go back").click().run()
    assert on(student) == "distance"
    assert "layer 2" in provenance(student)


def test_what_a_student_did_between_two_pins_is_kept(came: Came) -> None:
    student = opened("distance", layer="2")
    teacher = pinned(came, "attention", layer="3")
    follow(student, came)
    released(teacher, came)
    student.run().slider(key="layer").set_value(6).run()
    as_teacher(came)
    teacher.button(key="pin").click().run()
    follow(student, came)
    released(teacher, came)
    student.run().button(key="go back").click().run()
    assert on(student) == "attention"
    assert "layer 6" in provenance(student)


def test_a_student_may_stay_where_the_class_was(came: Came) -> None:
    student = opened("distance", layer="2")
    teacher = pinned(came, "attention", layer="3")
    follow(student, came)
    released(teacher, came)
    student.run().button(key="stay").click().run()
    assert on(student) == "attention"
    assert text.RELEASED not in prose(student)
    assert "go back" not in [button.key for button in student.button]


def test_a_student_who_comes_later_sees_the_pinned_view_at_once(came: Came) -> None:
    pinned(came, "attention", layer="3")
    came()
    student = opened("distance", layer="2")
    assert on(student) == "attention"
    assert "layer 3" in provenance(student)


def test_an_uploaded_picture_is_not_pinned(came: Came) -> None:
    as_teacher(came)
    teacher = upload(opened(), "mine.png", MINE)
    teacher.button(key="pin").click().run()
    assert classroom.room().pin is None
    assert text.NO_UPLOAD in said(teacher)
    assert buttons(teacher) == {text.PIN}


def test_an_own_picture_is_there_again_after_the_release(came: Came) -> None:
    student = upload(opened(), "mine.png", MINE)
    teacher = pinned(came, "attention")
    follow(student, came)
    assert provenance(student).endswith("sample: red panda")
    released(teacher, came)
    student.run().button(key="go back").click().run()
    assert provenance(student).endswith("mine.png")
