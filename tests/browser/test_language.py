"""Every page in Korean, whose words are longer or shorter than the English ones."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitviz.app.pages import PAGES
from vitviz.common.language import use_language

from .conftest import WIDTH, Server, watched
from .test_every_screen import TOO_WIDE, resized
from .walk import open_menu, opened, reading, settled, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


# What a browser's translator does: other nodes take the place of all texts that may be translated.
TRANSLATE = """() => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walk.nextNode()) texts.push(walk.currentNode);
  const changed = texts.filter(({ data, parentElement }) => data.trim() && parentElement.translate);
  for (const text of changed)
    text.replaceWith(Object.assign(document.createElement("font"), { textContent: "~" }));
  return changed.length;
}"""
LINK = "picture=moose&layer=2&head=3&query=4.9&read=column&scale=log"


def test_the_menu_turns_every_word_nothing_is_too_wide_in_korean_and_a_link_outlives_all_pages(
    page: "Page", server: Server
) -> None:
    opened(page, server, f"attention?{LINK}")
    assert reading(page).startswith("key row 4 column 9, head 3: strongest query")
    open_menu(page)
    page.locator(".st-key-lang").get_by_role("combobox").click()
    page.get_by_role("option", name="한국어").click()
    page.locator("h1").get_by_text("어텐션: 누가 어디를 보는가?").wait_for()
    until(page, lambda: "lang=ko" in page.url)
    settled(page)
    before = reading(page)
    menu = page.get_by_test_id("stExpandSidebarButton")  # in sight where the entries are not
    with use_language("ko"):
        for place, name in enumerate((*(one for one in PAGES if one != "attention"), "attention")):
            if menu.is_visible():
                menu.click()
            turn(page, name)
            until(page, lambda: all(part in page.url for part in LINK.split("&")))
            assert {*page.locator(".save-menu summary:visible").all_inner_texts()} <= {"저장"}
            # First as wide as the window is already: a figure of another width is drawn anew.
            for width in (390, WIDTH) if place % 2 else (WIDTH, 390):
                resized(page, width)
                assert page.evaluate(TOO_WIDE)["wide"] <= 0, (name, width)
                until(page, lambda: not page.evaluate(TOO_WIDE)["cut"])  # it is drawn anew
    assert reading(page) == before
    assert "행 4" in before


def test_a_browser_in_korean_gets_korean_pages_and_a_korean_report(
    browser: "Browser", server: Server
) -> None:
    with watched(browser, locale="ko-KR") as page:
        opened(page, server, "attention")
        assert page.locator("h1").inner_text() == "어텐션: 누가 어디를 보는가?"
        assert "lang" not in page.url
        page.locator("html[lang=ko]").wait_for(state="attached")
        open_menu(page, "메뉴")
        with page.expect_download() as download:
            page.get_by_role("button", name="보고서").click()
        report = Path(download.value.path()).read_text(encoding="utf-8")
        assert '<html lang="ko">' in report
        assert page.locator(".st-key-provenance").inner_text().split(" · ")[0] in report
        opened(page, server, "attention?lang=en")
        assert page.locator("h1").inner_text() == "Attention: Who looks where?"


def test_a_browser_that_translates_shows_the_answer_of_the_picture_on_screen(
    page: "Page", server: Server
) -> None:
    page.set_content("<p>one <b>two</b></p>")
    assert page.evaluate(TRANSLATE) == 2
    opened(page, server, "classify")
    assert page.evaluate(TRANSLATE) == 0
    page.get_by_role("combobox", name="Picture").click()
    option = page.get_by_role("option", name="triumphal arch")
    option.wait_for()
    assert page.evaluate(TRANSLATE) == 0  # in the open menu neither
    option.click()
    page.locator(".st-key-top").get_by_text("Answer: triumphal arch").wait_for()
    page.locator(".st-key-provenance").get_by_text("sample: triumphal arch").wait_for()
    turn(page, "tokens")
    assert page.evaluate(TRANSLATE) == 0
