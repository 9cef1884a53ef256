"""The player on Training: moments follow one another, and not where motion is unwanted."""

from typing import TYPE_CHECKING

from app_server import Server

from .walk import until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def at_moment(page: "Page", server: Server, number: int) -> None:
    page.goto(f"{server.url}/training?model=vitviz_tiny_cifar100&moment={number}")
    page.get_by_role("slider", name="Moment").wait_for()


def moment(page: "Page") -> str:
    return page.get_by_role("slider", name="Moment").get_attribute("aria-valuetext") or ""


def test_it_pauses_and_plays_to_the_last_moment_and_where_motion_is_unwanted_each_press_is_one_step(
    page: "Page", server: Server
) -> None:
    page.emulate_media(reduced_motion="reduce")
    at_moment(page, server, 8)
    first = moment(page)
    page.get_by_role("button", name="Next moment").click()
    until(page, lambda: moment(page) == "epoch 29.0, input of 32 px")
    page.wait_for_timeout(2500)
    assert moment(page) == "epoch 29.0, input of 32 px"

    page.emulate_media(reduced_motion="no-preference")
    slider = page.get_by_role("slider", name="Moment")
    slider.press("ArrowLeft")
    until(page, lambda: moment(page) == first)
    page.get_by_role("button", name="Play", exact=True).click()
    until(page, lambda: moment(page) != first)
    page.get_by_role("button", name="Pause", exact=True).click()
    page.wait_for_timeout(1000)
    before = moment(page)
    page.wait_for_timeout(2500)
    assert moment(page) == before
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_role("button", name="Pause", exact=True).wait_for()
    last = slider.get_attribute("aria-valuemax")
    until(page, lambda: slider.get_attribute("aria-valuenow") == last)
    page.get_by_role("button", name="Play", exact=True).wait_for()
