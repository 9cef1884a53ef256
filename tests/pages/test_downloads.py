"""Weights that are not on disk: marked in the menu, fetched beside the page, or given up."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from examples import assert_clear_error, timm_module
from hub_server import COMMIT, HubServer, contents, put_in_cache
from safetensors.torch import save
from streamlit.testing.v1 import AppTest

from pages.conftest import NARROW
from pages.driver import (
    SHIPPED,
    address,
    assert_works,
    choose,
    complaints,
    downloading,
    drawn,
    listen,
    opened,
    provenance,
    settled,
    until,
)
from vitviz.app.options import Options
from vitviz.app.shared import models
from vitviz.app.shared.downloads import may_download
from vitviz.zoo import weights_of

NAME = "deit_tiny_patch16_224"
pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture(scope="module")
def weights() -> bytes:
    return save(timm_module(NAME, **NARROW[NAME]).state_dict())


@pytest.fixture
def server(server: HubServer, weights: bytes) -> HubServer:
    server.delay = 0.07  # a download takes longer than a page
    server.files[f"timm/{NAME}.fb_in1k/model.safetensors"] = weights
    return server


def cancel(at: AppTest) -> AppTest:
    return at.button(key="cancel download").click().run()


def until_asked(server: HubServer) -> None:
    """Wait until the server was asked for the file itself, or for anything if it is silent."""
    wanted = "HEAD" if server.mode == "silent" else "GET"
    until(lambda: any(method == wanted for method, *_ in server.asked))


def test_the_menu_tells_what_is_on_disk_and_how_large_the_rest_is(cache: Path) -> None:
    put_in_cache(cache, weights_of(NAME), b"weights")
    options = opened().selectbox(key="model").options
    assert options[0] == SHIPPED
    assert f"DeiT: {NAME} · on disk" in options
    gap = "\N{NO-BREAK SPACE}"  # so that no line breaks before the unit
    assert f"ViT: vit_base_patch16_224 · ↓{gap}346{gap}MB" in options
    assert f"ViT: vit_tiny_patch16_224 · ↓{gap}23{gap}MB" in options
    assert f"ViT: vit_large_patch16_224 · ↓{gap}1.2{gap}GB" in options


def test_a_model_is_shown_when_its_weights_have_come(server: HubServer) -> None:
    at = opened()
    before = drawn(at)
    choose(at, NAME)
    assert downloading(at)
    assert drawn(at) == before  # the last model stays
    assert provenance(at).startswith(SHIPPED)
    assert_works(settled(at))
    assert provenance(at).startswith(NAME)
    assert f"trained weights of timm, fb_in1k, revision {COMMIT[:7]}" in provenance(at)
    assert f"DeiT: {NAME} · on disk" in at.selectbox(key="model").options


def test_the_page_works_during_a_download_and_does_not_begin_it_again(server: HubServer) -> None:
    server.mode = "silent"
    at = choose(opened(), NAME)
    until_asked(server)
    begun = time.monotonic()
    at.slider(key="layer").set_value(2).run()
    assert "layer 2 of 6" in provenance(at)
    assert time.monotonic() - begun < 20  # and not the timeout of 30 s
    assert not complaints(at)
    assert downloading(at)
    other = opened(model=NAME)  # somebody else wants the same
    assert downloading(other)
    assert provenance(other).startswith(SHIPPED)
    assert len(server.asked) == 1
    cancel(at)
    (said,) = complaints(settled(other))
    assert "was cancelled" in said


def test_cancel_goes_back_to_the_last_model(server: HubServer, cache: Path) -> None:
    server.mode = "silent half"
    at = opened(weights="random")
    choose(at, NAME)  # random weights need no download
    assert not downloading(at)
    choose(at, SHIPPED)
    at.segmented_control(key="weights").set_value("trained").run()
    before = drawn(at)
    choose(at, NAME)
    assert address(at)["model"] == NAME
    until_asked(server)
    cancel(at)
    (said,) = at.info
    assert said.value == f"The download of the weights of {NAME} was cancelled."
    assert_clear_error(said.value)
    assert not downloading(at)
    assert not complaints(at)
    assert at.selectbox(key="model").value == SHIPPED
    assert address(at) == {}
    assert drawn(at) == before
    until(lambda: not contents(cache))  # the child is still tidying


def test_a_model_can_be_chosen_again_right_after_cancel(server: HubServer) -> None:
    at = choose(opened(), NAME)
    until_asked(server)
    cancel(at)
    choose(at, NAME)
    assert downloading(at)
    other = opened(model=NAME)  # in a second tab
    assert downloading(other)
    for each in (at, other):
        assert_works(settled(each))
        assert provenance(each).startswith(NAME)


def test_a_failure_stays_until_it_is_tried_again_or_another_model_is_chosen(
    server: HubServer,
) -> None:
    server.mode = "503"
    at = settled(choose(opened(), NAME))
    (said,) = complaints(at)
    assert f"run `vitviz fetch {NAME}`" in said
    assert "error 503" in said
    assert_clear_error(said.removesuffix(f" {SHIPPED} is shown."))
    asked = len(server.asked)
    at.slider(key="layer").set_value(3).run()
    assert complaints(at) == [said]
    assert len(server.asked) == asked
    choose(at, SHIPPED)
    assert_works(at)
    choose(at, NAME)
    assert downloading(at)
    assert complaints(settled(at)) == [said]
    assert len(server.asked) > asked
    server.mode = "ok"
    at.button(key="try again").click().run()
    assert downloading(at)
    assert_works(settled(at))
    assert provenance(at).startswith(NAME)


def test_a_shipped_model_is_shown_where_the_only_allowed_one_is_not_there(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.mode = "silent"
    monkeypatch.setattr(models, "options", lambda: Options(models=(NAME,)))
    at = opened()
    assert downloading(at)
    assert provenance(at).startswith(SHIPPED)
    until_asked(server)
    cancel(at)
    assert not downloading(at)
    assert not complaints(at)
    assert at.selectbox(key="model").value == SHIPPED


# --- a server that others reach -----------------------------------------------------------------


def test_a_server_that_others_reach_offers_what_is_on_disk(
    server: HubServer, cache: Path, weights: bytes
) -> None:
    listen("0.0.0.0")
    put_in_cache(cache, weights_of(NAME), weights)
    at = opened()
    assert not at.info
    shown = [name for name in at.selectbox(key="model").options if NAME in name]
    assert len(shown) == 1
    assert not [name for name in at.selectbox(key="model").options if "↓" in name]
    assert_works(choose(at, NAME))
    assert provenance(at).startswith(NAME)
    assert server.asked == []


def test_a_link_to_what_is_not_there_says_how_to_have_it(server: HubServer) -> None:
    listen("0.0.0.0")
    for weights in ("trained", "random"):
        at = opened(model=NAME, weights=weights, layer="2")
        (said,) = at.info
        assert_clear_error(said.value)
        assert f"`vitviz fetch {NAME}`" in said.value
        assert not at.exception
        assert provenance(at).startswith(SHIPPED)
        assert address(at).get("layer") == "2"
        assert "model" not in address(at)
    at = opened(model="no_such_model")
    assert "is not valid here" in at.info[0].value
    assert server.asked == []


def test_what_is_not_allowed_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listen("0.0.0.0")
    monkeypatch.setattr(models, "options", lambda: Options(models=(SHIPPED,)))
    at = opened(model=NAME)
    assert "is not valid here" in at.info[0].value
    assert at.selectbox(key="model").options == [SHIPPED]


@pytest.mark.parametrize(
    ("where", "headers", "expected"),
    [
        ("127.0.0.1", {}, True),
        ("localhost", {}, True),
        ("127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, False),
        ("127.0.0.1", {"Forwarded": "for=10.0.0.1"}, False),
        ("127.0.0.1", {"X-Forwarded-Host": "a.example"}, False),
        ("127.0.0.1", {"x-forwarded-proto": "https"}, False),
        ("127.0.0.1", {"X-Real-IP": "127.0.0.1"}, False),
        ("127.0.0.1", {"Via": "1.1 proxy"}, False),
        ("127.0.0.1", {"Host": "a.example"}, False),
        ("127.0.0.1", {"Host": "127.0.0.1.example:8501"}, False),
        ("127.0.0.1", {"Host": "127.0.0.1:8501", "Origin": "http://127.0.0.1:8501"}, True),
        ("::1", {"Host": "[::1]:8501"}, True),
        ("127.0.0.1", {"host": "localhost:8501"}, True),
        *((where, {}, False) for where in ("0.0.0.0", "192.168.0.7", "::")),
        (None, {}, False),
    ],
)
def test_only_who_sits_at_the_machine_may_download(
    where: str | None, headers: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(where)
    monkeypatch.setattr("streamlit.context", SimpleNamespace(headers=headers))
    assert may_download() is expected
