"""A class in real browsers: a teacher at the server's machine, a student from elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from app_server import HERE, Server, serving

from browser.conftest import watched
from browser.walk import slowness
from vitviz.text import classroom as text
from vitviz.text import guesses

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ELSEWHERE = "127.0.0.2"  # another name of this machine, by which no teacher comes
# How white the three pixels are around a place of the picture, which is in parts of its sides.
EDGE = """(canvas, [x, y]) => {
  const [left, top] = [Math.round(x * canvas.width) - 1, Math.round(y * canvas.height)];
  const at = canvas.getContext("2d").getImageData(left, top, 3, 1).data;
  return [0, 4, 8].map((first) => Math.min(...at.slice(first, first + 3)));
}"""
FOLLOWS_WITHIN = 3000  # milliseconds, where the machine has nothing else to do: a poll and a page


@pytest.fixture(scope="module")
def for_class(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if sys.platform != "linux":
        pytest.skip(f"only Linux listens to {ELSEWHERE}")
    words = ["--server.address", "0.0.0.0", "--browser.serverAddress", ELSEWHERE]
    with serving(tmp_path_factory.mktemp("class") / "log", *words) as server:
        yield server


@pytest.fixture(scope="module")
def browser_of_teacher(browser: "Browser", for_class: Server) -> "Iterator[Page]":
    with watched(browser) as page:
        yield page


@pytest.fixture(scope="module")
def browser_of_student(browser: "Browser", for_class: Server) -> "Iterator[Page]":
    with watched(browser, host=ELSEWHERE) as page:
        yield page


@pytest.fixture
def teacher(browser_of_teacher: "Page") -> "Iterator[Page]":
    """Each test gets an empty page, and in the app a session of its own."""
    yield browser_of_teacher
    browser_of_teacher.goto("about:blank")


@pytest.fixture
def student(browser_of_student: "Page") -> "Iterator[Page]":
    yield browser_of_student
    browser_of_student.goto("about:blank")


def there(server: Server, path: str = "") -> str:
    """A page of the server as students open it."""
    return server.url.replace(HERE, ELSEWHERE) + path


def provenance(page: "Page") -> "Locator":
    return page.locator(".st-key-provenance p")


def pressed(page: "Page", name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_the_first_page_of_a_teacher_shows_a_code_above_the_servers_address(
    teacher: "Page", for_class: Server
) -> None:
    from playwright.sync_api import expect

    teacher.goto(for_class.url)
    code = teacher.locator(".st-key-join_code img")
    expect(code).to_be_visible()
    assert code.evaluate("image => image.complete && image.naturalWidth > 0")
    expect(teacher.locator(".st-key-join_code code")).to_have_text(there(for_class))
    box = code.bounding_box()
    assert box
    assert min(box["x"], box["y"]) >= 0
    assert box["x"] + box["width"] <= 1280
    assert box["y"] + box["height"] <= 720
    assert box["width"] >= 300


def test_a_students_page_follows_the_teacher_and_is_free_again(
    teacher: "Page", student: "Page", for_class: Server
) -> None:
    from playwright.sync_api import expect

    student.goto(there(for_class, "/attention?layer=2&query=3.4"))
    expect(provenance(student)).to_contain_text("layer 2 of 6")
    teacher.goto(f"{for_class.url}/tokens?layer=3&picture=moose")
    expect(provenance(teacher)).to_contain_text("layer 3 of 6")
    expect(student.get_by_role("button", name=text.PIN)).to_have_count(0)
    pressed(teacher, text.PIN)
    expect(provenance(student)).to_contain_text("layer 3 of 6 · sample: moose")
    expect(student.get_by_text("The teacher’s view is shown.")).to_be_visible()
    expect(student).to_have_url(there(for_class, "/tokens?layer=3&picture=moose"))
    pressed(teacher, text.RELEASE)
    pressed(student, text.GO_BACK)
    expect(provenance(student)).to_contain_text("layer 2 of 6")
    expect(student).to_have_url(there(for_class, "/attention?layer=2&query=3.4"))
    expect(student.get_by_role("button", name=text.GO_BACK)).to_have_count(0)


def test_a_student_guesses_with_keys_and_the_teacher_sees_it_and_shows_it(
    teacher: "Page", student: "Page", for_class: Server
) -> None:
    from playwright.sync_api import expect

    path = "/attention?layer=4&predict=True"
    teacher.goto(for_class.url + path)
    expect(teacher.get_by_text(guesses.describe_count(0))).to_be_visible()
    student.goto(there(for_class, path))
    board = student.locator(".guess-board canvas")
    send = student.get_by_role("button", name=guesses.SEND)
    expect(send).to_be_disabled()
    board.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft"):  # the first is in the middle: row 9, column 9
        student.keyboard.press(key)
    expect(student.locator(".guess-board .row")).to_contain_text("row 8 column 8")
    assert not student.locator(".token-map").count()
    student.keyboard.press("Enter")
    expect(student.locator("[data-part=map]")).to_be_visible()
    expect(student.get_by_text("The patch at row 8, column 8 gets")).to_be_visible()
    expect(student.get_by_text(guesses.OF_CLASS)).to_have_count(0)
    edge = [7 / 16, 7.5 / 16]  # of the patch, half way down, in what the model saw of the picture
    outline = student.locator("[data-part=map]").evaluate(EDGE, edge)
    assert max(outline) > 250
    expect(teacher.get_by_text(guesses.describe_count(1))).to_be_visible()
    assert not teacher.locator(".token-map").count()
    student.reload()  # who guesses anew is still one
    board.click()
    pressed(student, guesses.SEND)
    expect(student.locator("[data-part=map]")).to_be_visible()
    pressed(teacher, guesses.REVEAL)
    expect(teacher.locator("[data-part=map]")).to_be_visible()
    expect(student.get_by_text(guesses.describe_count(1))).to_be_visible()


@pytest.mark.bars
def test_a_students_page_follows_within_seconds(
    browser: "Browser", teacher: "Page", for_class: Server
) -> None:
    from playwright.sync_api import expect

    teacher.goto(f"{for_class.url}/tokens?layer=3")
    expect(provenance(teacher)).to_contain_text("layer 3 of 6")
    with ExitStack() as stack:
        student = stack.enter_context(watched(browser, host=ELSEWHERE))
        student.goto(there(for_class, "/tokens?layer=2"))
        expect(provenance(student)).to_contain_text("layer 2 of 6")
        pressed(teacher, text.PIN)
        expect(provenance(student)).to_contain_text(
            "layer 3 of 6", timeout=FOLLOWS_WITHIN * slowness()
        )
    pressed(teacher, text.RELEASE)
