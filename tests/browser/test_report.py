"""The report of a picture, opened from disk with the network cut: it is whole, live and exact."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import timm
from app_server import Server
from examples import example, picture, timm_model
from examples import watched as of_pixels
from plotly.io import to_json

import vitviz
from vitviz import Activations, cli, inspection, plots
from vitviz.common.files import assets
from vitviz.common.language import as_percent
from vitviz.plots.template import as_white_json
from vitviz.text.class_names import common_names, full_names
from vitviz.web import anatomy_map, report, token_map
from vitviz.web.report import CapturedPicture, components

from .conftest import watched
from .walk import middle_of, open_menu, turn, written
from .walk import opened as opened_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHOTO = assets() / "samples" / "dog.jpg"
MODEL = "vitviz_tiny_cifar100"


@pytest.fixture(scope="module")
def acts() -> Activations:
    return vitviz.capture(vitviz.load_model(MODEL), PHOTO)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the command."""
    path = tmp_path_factory.mktemp("report") / "dog <1>.html"
    assert cli.main(["report", str(PHOTO), "--model", MODEL, "-o", str(path)]) == 0
    return path


#: The page, what it asked for, and what the browser complained about.
Opened = tuple["Page", list[str], list[str]]


@pytest.fixture(scope="module")
def opened(file: Path, browser: "Browser") -> Iterator[Opened]:
    """For all tests: of the attention, as of Anatomy, one of them chooses what it shows."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page, asked, wrong = context.new_page(), [], []  # type: Page, list[str], list[str]
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    page.locator("body[data-ready]").wait_for(state="attached")
    yield page, asked, wrong
    context.close()


def test_it_is_drawn_asks_for_nothing_and_breaks_no_policy(opened: Opened, file: Path) -> None:
    page, asked, wrong = opened
    figures = page.locator(".js-plotly-plot")
    assert figures.count() == page.locator(".js-plotly-plot:has(.main-svg)").count() == 11
    assert file.stat().st_size < 8e6
    assert asked == [file.as_uri()]
    assert not wrong
    assert page.get_by_text("Scripts draw the figures of this file").is_hidden()
    text = file.read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "eval" not in policy
    assert "http" not in policy
    modules = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    assert len(modules) == 3  # the token map, Anatomy and the figures
    for module in modules:
        digest = base64.b64encode(hashlib.sha256(module.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256-") == 4  # those, and Plotly's script
    page.evaluate(
        """() => document.head.append(
          Object.assign(document.createElement("script"), { textContent: "window.other = 1" }))"""
    )
    assert page.evaluate("() => typeof window.other") == "undefined"  # no script but its own


@pytest.mark.parametrize("component", [token_map, anatomy_map])
def test_a_component_is_the_module_of_the_app_byte_for_byte(file: Path, component: Any) -> None:
    text = file.read_text(encoding="utf-8")
    assert f'<script type="module">{component.script()}' in text


def test_the_map_is_live_and_its_numbers_are_those_of_the_capture(
    opened: Opened, acts: Activations
) -> None:
    page, _, _ = opened
    map_ = page.locator("canvas[data-part=map]")

    def strongest(layer: int, head: int, query: int) -> str:
        shares = acts.attention(layer)[head, query, 1:]
        row, col = divmod(int(shares.argmax()), acts.grid[1])
        return f"strongest key row {row + 1} column {col + 1}, {as_percent(shares.max())}"

    assert strongest(5, 0, 0) in str(map_.get_attribute("aria-label"))
    page.locator(".strip button", has_text="head 3").click()
    page.locator(".sections h4", has_text="layer 6, head 3").wait_for()
    assert strongest(5, 2, 0) in str(map_.get_attribute("aria-label"))
    page.keyboard.press("p")  # the layer before, of the component that has the focus
    page.locator(".sections h4", has_text="layer 5, head 3").wait_for()
    assert strongest(4, 2, 0) in str(map_.get_attribute("aria-label"))


def test_each_figure_in_the_file_is_that_of_the_capture(file: Path, acts: Activations) -> None:
    text = file.read_text(encoding="utf-8")
    (data,) = re.findall(r'id="data-figures">(.*?)</script>', text, re.DOTALL)
    model = vitviz.load_model(MODEL)
    kernel, table = model.patch_kernel, model.position_embedding
    assert kernel is not None
    assert table is not None
    drawn = (
        plots.class_probabilities(
            acts, labels=common_names(acts.output_names), full_names=full_names(acts.output_names)
        ),
        plots.attention_distance(acts, selected=(5, None)),
        plots.distance_histogram(acts, 5, 0),
        plots.offset_attention(acts, 5, 0),
        plots.attention_rollout(acts),
        plots.token_components(acts),
        plots.token_scatter(acts),
        plots.token_norms(acts),
        plots.token_film(acts),
        plots.filter_components(*inspection.filter_components(kernel)),
        plots.position_similarity(inspection.position_similarity(table, grid=acts.grid)),
    )
    found = [*json.loads(data)["figures"].values()]
    expected = [json.loads(to_json(as_white_json(figure), validate=False)) for figure in drawn]
    for figure in (*found, *expected):
        figure["layout"]["meta"].pop("made_with", None)  # each capture has a date of its own
    assert found == expected


@pytest.mark.parametrize("kind", ["attention", "anatomy"])
def test_two_fingers_on_a_picture_enlarge_the_page(
    kind: str, tmp_path: Path, browser: "Browser"
) -> None:
    model = example("plain")
    acts = vitviz.capture(model, picture())
    if kind == "attention":
        made = components.attention(acts, "shown")
    else:
        made = components.anatomy(model, picture(), acts, "shown")
    file = tmp_path / "report.html"
    file.write_text(
        components.build_file("x", "<div id=shown></div>", {kind: {"shown": made}}),
        encoding="utf-8",
    )
    phone: Any = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}
    context = browser.new_context(**phone)
    try:
        page = context.new_page()
        page.goto(file.as_uri())
        photo = page.locator("canvas[data-part=photo][aria-label]")
        photo.wait_for()
        box = photo.bounding_box()
        assert box
        x, y = box["x"] + box["width"] / 2, box["y"] + min(150, box["height"] / 2)
        fingers = context.new_cdp_session(page)

        def touch(kind: str, *offsets: int) -> None:
            points = [{"x": x + across, "y": y, "id": id} for id, across in enumerate(offsets)]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        touch("touchStart", -20)
        touch("touchStart", -20, 20)
        for apart in range(24, 120, 6):
            touch("touchMove", -apart, apart)
            page.evaluate("() => new Promise(requestAnimationFrame)")
        touch("touchEnd")
        assert page.evaluate("visualViewport.scale") > 1.5
    finally:
        context.close()


def test_it_prints_on_a4(opened: Opened) -> None:
    page, _, _ = opened
    pdf = page.pdf(prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    sizes = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf))
    assert {(round(float(w)), round(float(h))) for w, h in sizes} == {(595, 842)}  # points
    assert 2 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 9


def test_anatomy_is_live_with_the_numbers_of_the_capture_and_says_what_the_file_has_not(
    opened: Opened, acts: Activations
) -> None:
    page, _, _ = opened
    anatomy = page.locator(".anatomy")
    assert anatomy.locator(".card").count() == 9
    anatomy.locator(".card", has_text="Encoder").click()
    items = anatomy.locator("[data-part=items]")
    items.get_by_text("softmax over 257 keys").wait_for()
    shares = acts.attention(5)

    def said(head: int, query: int) -> str:
        share = float(shares[head, query, 1:].max())
        return f"softmax over 257 keys = {written(share)}"

    assert said(0, 0) in items.inner_text()
    anatomy.locator("select[aria-label=Head]").select_option("3")
    items.get_by_text(said(3, 0)).wait_for()
    photo = anatomy.locator("canvas[data-part=photo]")
    photo.click(position=middle_of(photo, acts, 4, 2))
    photo.hover(position={"x": 2, "y": 2})  # outside of what the model saw
    items.get_by_text(said(3, 1 + 4 * 16 + 2)).wait_for()
    open_layers = anatomy.locator("select[aria-label=Layer] option:not([disabled])")
    assert open_layers.all_inner_texts() == ["layer 6 of 6"]
    anatomy.locator("[data-id=hidden]").click()
    anatomy.get_by_role("button", name="CLS", exact=True).click()
    items.get_by_text("768 numbers").wait_for()
    photo.focus()
    page.keyboard.press("ArrowRight")
    items.get_by_text("This file holds these numbers for CLS only").wait_for()


def test_equations_are_drawn_by_the_browser(opened: Opened) -> None:
    page, _, _ = opened
    drawn = page.locator("figcaption math")
    assert drawn.count() >= page.locator("figcaption").count() >= 10
    assert "\\" not in "".join(page.locator("figcaption").all_inner_texts())
    root = page.locator("figcaption math msqrt").first  # of attention's scale
    box = root.bounding_box()
    assert box is not None
    assert box["height"] > 10
    names = "maths => maths.flatMap((one) => [...one.querySelectorAll('*')].map((e) => e.tagName))"
    known = {*("mrow", "mi", "mo", "mn", "mtext", "mspace", "mstyle", "msqrt", "mfrac", "mover")}
    assert set(drawn.evaluate_all(names)) <= known | {"msub", "msup", "msubsup", "munder"}


def test_a_family_that_has_no_rollout_says_so(acts: Activations) -> None:
    name = "swin_tiny_patch4_window7_224"
    model = of_pixels(timm.create_model(name, embed_dim=24).eval(), (224, 224), name=name)
    text = report.html([CapturedPicture(model, "dog", vitviz.capture(model, acts.photo))])
    assert text.count("which is not so in swin_tiny_patch4_window7_224.") == 1
    assert "they have no common" not in text
    assert 'id="attention-0"' in text
    assert len(text.encode()) < 16e6


def test_maps_that_are_too_large_for_a_file_are_refused(
    acts: Activations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(components, "FILE_MAP_BYTES", 1_000_000)
    with pytest.raises(vitviz.ModelError, match="take 2 MB, more than the 1 MB"):
        acts.show()
    text = report.html([CapturedPicture(vitviz.load_model(MODEL), "dog", acts)])
    assert "the app shows them by layer." in text
    assert 'id="data-attention"' not in text


def test_a_base_model_fits_in_a_file_and_names_of_pictures_and_weights_are_no_markup() -> None:
    model = timm_model("vit_base_patch16_224")
    image = vitviz.open_image(PHOTO.read_bytes())
    text = report.html(
        [CapturedPicture(model, "<img src=x>.png", vitviz.capture(model, image), image)]
    )
    assert "<img" not in text
    assert "&lt;img src=x&gt;.png" in text
    assert "random weights" in text
    assert '{"components": {"attention-0": {"stacks"' in text
    assert '{"components": {"anatomy-0": {"stacks"' in text
    assert len(text.encode()) < 16e6


@pytest.mark.parametrize("missing", ["scripts", "DecompressionStream"])
def test_where_its_scripts_do_not_run_it_says_why_it_has_no_figures(
    missing: str, file: Path, browser: "Browser"
) -> None:
    context = browser.new_context(offline=True, java_script_enabled=missing != "scripts")
    page = context.new_page()
    if missing != "scripts":
        page.add_init_script(f"delete globalThis.{missing}")
    try:
        page.goto(file.as_uri())
        page.get_by_text("Scripts draw the figures of this file").wait_for()
    finally:
        context.close()


def test_a_page_offers_the_report_and_that_of_compare_holds_both_sides(
    page: "Page", server: Server, acts: Activations, browser: "Browser"
) -> None:
    opened_app(page, server, f"compare?compare=weights&picture=dog&model={MODEL}&layer=6&head=1")
    page.get_by_text("their correlation is").wait_for()
    button = page.get_by_role("button", name="Report")
    open_menu(page)
    with page.expect_download() as download:
        button.click()
    page.keyboard.press("Escape")
    turn(page, "attention")
    open_menu(page)
    with page.expect_download() as of_attention:
        button.click()
    text = Path(of_attention.value.path()).read_text(encoding="utf-8")
    assert of_attention.value.suggested_filename == "vitviz_report.html"
    line = page.locator(".st-key-provenance").inner_text()
    assert line.split(" · ")[0] in text
    assert line.split(" · ")[-1] in text
    with watched(browser, online=False) as other:
        path = Path(download.value.path())
        html = path.rename(path.with_name("compare.html"))
        other.goto(html.as_uri())
        other.locator("body[data-ready]").wait_for(state="attached")
        assert other.locator(".anatomy").count() == other.locator(".token-map").count() == 2
        words = other.locator("body").inner_text()
        assert "their correlation is" in words
        untrained = vitviz.load_model(MODEL, pretrained=False)
        drawn = other.locator("canvas[data-part=map]")
        for which, one in enumerate((acts, vitviz.capture(untrained, PHOTO))):
            assert one.provenance in words
            shares = one.attention(5)[0, 0, 1:]
            row, col = divmod(int(shares.argmax()), one.grid[1])
            said = f"strongest key row {row + 1} column {col + 1}, "
            assert said in str(drawn.nth(which).get_attribute("aria-label"))
