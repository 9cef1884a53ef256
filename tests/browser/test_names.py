"""Names that are markup stay text on every page, in a report and in a profile."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import timm
from app_server import Server, serving
from examples import picture, randomise, skip_random_weights
from hostile import NAMES
from pages.driver import encoded
from timm.models import save_for_hf

import vitviz
from vitviz import cli
from vitviz.app.pages import PAGES

from .conftest import watched
from .walk import opened, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PART = 10  # classes of each model
PHOTO = "*a* ![](http:names.invalid) <b>b<b> $5$ :smile:.png"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models whose classes have these names, and who have such names themselves."""
    made = []
    for number, start in enumerate(range(0, len(NAMES), PART)):
        with skip_random_weights():
            module = timm.create_model("test_vit", num_classes=PART).eval()
        randomise(module)
        folder = tmp_path_factory.mktemp("models") / f"*{number}* <i>m<i> $1$ [x](y)"
        labels = list(NAMES[start : start + PART])
        save_for_hf(module, str(folder), model_config={"label_names": labels})
        made.append(folder)
    return made


@pytest.fixture(scope="module")
def server(
    browser: "Browser", folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    words = [f"--checkpoint={folder}" for folder in folders]
    with serving(tmp_path_factory.mktemp("server") / "log", "--", *words) as server:
        yield server


def text(page: "Page") -> str:
    """All that is written on a page, drawings too."""
    seen: str = page.evaluate(
        "[document.body.innerText, ...[...document.querySelectorAll('svg text')]"
        ".map(one => one.textContent)].join('\\n')"
    )
    return re.sub(r"\s+", " ", seen)


def shows(page: "Page", names: set[str]) -> bool:
    seen = text(page)
    return all(name in seen for name in names)


def test_all_classes_are_named_as_they_are(
    server: Server, folders: list[Path], browser: "Browser"
) -> None:
    with watched(browser) as page:
        for number, folder in enumerate(folders):
            page.goto("about:blank")
            opened(page, server, f"classify?model={quote(folder.name)}")
            names = {folder.name, *NAMES[PART * number : PART * (number + 1)]}
            until(page, partial(shows, page, names))
            bars = page.locator(".js-plotly-plot .ytick text")
            bars.filter(has_text="1. ").first.wait_for()
            ticks = bars.all_text_contents()
            drawn = [words.split(". ", 1)[1] for words in ticks if ". " in words]
            assert len(drawn) >= 5, ticks
            assert {*drawn} <= {*NAMES}


def test_no_name_is_markup_on_any_page(
    server: Server, folders: list[Path], browser: "Browser"
) -> None:
    with watched(browser) as page:
        first, *others = (name for name in PAGES if PAGES[name].shows_model)
        opened(page, server, f"{first}?model={quote(folders[0].name)}&class=1")
        page.get_by_role("button", name="Your picture").click()
        page.locator('[data-testid="stFileUploader"] input[type=file]').set_input_files(
            {"name": PHOTO, "mimeType": "image/png", "buffer": encoded(picture(90, 60))}
        )
        page.locator(".st-key-provenance").get_by_text(PHOTO).wait_for()
        page.keyboard.press("Escape")
        for name in (first, *others):
            if name != first:
                turn(page, name)
            page.wait_for_timeout(500)  # figures are drawn a little later
            seen = text(page)
            assert folders[0].name in seen, name
            assert PHOTO.removesuffix(".png") in seen, name
            assert page.locator("[data-testid=stMain] img[src*=invalid]").count() == 0


def test_no_name_is_markup_in_a_report_or_a_profile(
    folders: list[Path], browser: "Browser", tmp_path: Path
) -> None:
    photo = tmp_path / "pictures" / PHOTO
    photo.parent.mkdir()
    photo.write_bytes(encoded(picture(90, 60)))
    report = tmp_path / "report.html"
    assert cli.main(["report", str(photo), "--model", str(folders[1]), "-o", str(report)]) == 0
    model = vitviz.load_model(folders[1])
    profile = vitviz.profile(model, [photo], out=tmp_path / "profile")
    page_of_profile = tmp_path / "profile.html"
    page_of_profile.write_text(vitviz.plots.profile_page.page(profile), encoding="utf-8")
    answers = vitviz.capture(model, vitviz.open_image(photo))
    assert answers.labels is not None
    for file in (report, page_of_profile):
        with watched(browser, online=False) as page:
            page.goto(file.as_uri())
            page.locator(".main-svg").last.wait_for()
            page.wait_for_timeout(500)  # the rest is drawn a little later
            seen = text(page)
            assert folders[1].name in seen
            if file == report:
                assert PHOTO in seen
                shown = [each for each in answers.labels if each in seen]
                assert len(shown) >= 5
            assert page.locator("img[src*=invalid], a[href*=invalid]").count() == 0
