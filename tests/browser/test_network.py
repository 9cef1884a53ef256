"""Between the page and the server: a network that is lost for a while, a proxy with a prefix."""

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from app_server import HERE, Server, serving

from vitviz.text import classroom as text

from .conftest import noted, watched
from .forwarder import forwarding
from .test_class import ELSEWHERE, pressed, provenance
from .test_take import choose, choose_in_box, expect_picture, paste, png
from .walk import settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PREFIX = "/proxy/8501"


@pytest.fixture(scope="module")
def for_class(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if sys.platform != "linux":
        pytest.skip(f"only Linux listens to {ELSEWHERE}")
    log = tmp_path_factory.mktemp("network") / "log"
    with serving(log, "--server.address", "0.0.0.0") as server:
        yield server


def port_of(server: Server) -> int:
    port = urlsplit(server.url).port
    assert port
    return port


@pytest.mark.parametrize("first", ["cut", "key"])
def test_what_is_chosen_without_a_network_is_told_when_it_is_back(
    first: str, browser: "Browser", server: Server
) -> None:
    """The map, the page's address and the line below it agree."""
    from playwright.sync_api import expect

    with (
        forwarding(port_of(server)) as network,
        noted(browser, "light", online=True, host=HERE, locale="en-US") as (page, wrong),
    ):
        page.goto(f"http://{HERE}:{network.port}/attention?layer=2")
        expect(provenance(page)).to_contain_text("layer 2 of 6")
        photo = page.locator("main canvas[data-part=photo][aria-label]")
        title = page.locator("main canvas[data-part=map]").locator("xpath=ancestor::section")
        expect(title).to_contain_text("layer 2")
        app = page.get_by_test_id("stApp")
        if first == "key":
            photo.press("n")
        network.cut()
        expect(app).not_to_have_attribute("data-test-connection-state", "CONNECTED")
        for key in ("n", "n", "3", "ArrowRight")[first == "key" :]:
            photo.press(key)
        expect(title).to_contain_text("layer 4, head 3")
        page.wait_for_timeout(500)  # the page has tried to tell
        network.join()
        expect(app).to_have_attribute("data-test-connection-state", "CONNECTED", timeout=60_000)
        expect(provenance(page)).to_contain_text("layer 4 of 6")
        expect(page).to_have_url(re.compile(r"layer=4&head=3&query=\d"))
        expect(title).to_contain_text("layer 4, head 3")
        expect(page.get_by_role("slider", name="Layer")).to_have_value("4")
        assert all(words.startswith("console") for words in wrong), wrong  # it asked in vain


def test_an_upload_is_shown_where_its_answer_was_lost(browser: "Browser", server: Server) -> None:
    """What the page asks first when the network is back holds its menu of pictures from before."""
    from playwright.sync_api import expect

    with (
        forwarding(port_of(server)) as network,
        noted(browser, "light", online=True, host=HERE, locale="en-US") as (page, wrong),
    ):
        page.goto(f"http://{HERE}:{network.port}/attention?picture=moose")
        page.locator("canvas[data-part=map][aria-label]").wait_for()  # components listen by now
        app = page.get_by_test_id("stApp")
        with page.expect_response("**/upload_file/**"):
            choose_in_box(page, "mine.png", png(300, 200))
        network.cut_next_answer()
        expect(app).not_to_have_attribute("data-test-connection-state", "CONNECTED")
        page.wait_for_timeout(2500)  # the page has told of the file once more, in vain
        network.join()
        expect(app).to_have_attribute("data-test-connection-state", "CONNECTED", timeout=60_000)
        expect_picture(page, "mine.png")
        settled(page)
        expect_picture(page, "mine.png")
        assert all(words.startswith("console") for words in wrong), wrong  # it asked in vain


def test_everything_stays_below_the_prefix_of_a_proxy(
    browser: "Browser", for_class: Server
) -> None:
    from playwright.sync_api import expect

    with (
        forwarding(port_of(for_class), PREFIX) as proxy,
        watched(browser, host=ELSEWHERE) as teacher,
        watched(browser, host=ELSEWHERE) as student,
    ):
        base = f"http://{ELSEWHERE}:{proxy.port}{PREFIX}"
        student.goto(f"{base}/Attention/?layer=2")
        expect(student).to_have_url(f"{base}/attention?layer=2")
        expect(provenance(student)).to_contain_text("layer 2 of 6")
        pressed(student, text.JOIN)
        expect(student.locator(".st-key-join_code code")).to_have_text(base)
        student.goto(f"{base}/anatomy")
        expect(student).to_have_url(f"{base}/")
        student.locator(".anatomy").wait_for()  # components listen by now
        paste(student, png(90, 60))
        expect_picture(student, "from the clipboard")
        student.get_by_role("button", name="Your picture").click()
        student.get_by_text("Use the camera").click()
        student.get_by_text("only over HTTPS").wait_for()
        choose(student.locator("input[capture]"), "photo.png", png(60, 90))
        expect_picture(student, "photo.png")
        student.keyboard.press("Escape")

        (key,) = re.findall(r"/teacher/(\S+)", for_class.log.read_text())
        teacher.goto(f"{base}/teacher/{key}")
        expect(teacher).to_have_url(f"{base}/")
        teacher.goto(f"{base}/tokens?layer=3")
        expect(provenance(teacher)).to_contain_text("layer 3 of 6")
        pressed(teacher, text.PIN)
        expect(student).to_have_url(f"{base}/tokens?layer=3")
        pressed(teacher, text.RELEASE)
