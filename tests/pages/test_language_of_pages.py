"""The language of a session: asked for by a link, or by the browser once it is whole."""

import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import APP, address, at_page, opened
from vitviz import language
from vitviz.language import spoken


def title(at: AppTest) -> str:
    return at.title[0].value


def test_a_link_asks_for_a_language_which_stays_at_another_page_and_at_a_reset() -> None:
    at = opened("attention", lang="ko")
    assert not at.exception
    assert title(at) == "어텐션 Attention: 누가 어디를 보는가?"
    assert address(at)["lang"] == "ko"
    at.button(key="reset").click().run()
    assert title(at) == "어텐션 Attention: 누가 어디를 보는가?"
    at_page(at, "distance").run()
    assert title(at) == "거리: 가까이 보는가, 멀리 보는가?"
    assert address(at)["lang"] == "ko"
    assert spoken() == "en"  # of this thread


def test_an_unknown_language_is_told_and_english_is_used() -> None:
    at = opened("attention", lang="xx")
    assert title(at) == "Attention: Who looks where?"
    assert any("xx is not valid here" in message.value for message in at.info)
    assert "lang" not in address(at)


@pytest.mark.parametrize("whole", [("en",), ("en", "ko")])
def test_the_browsers_language_is_used_where_it_is_whole(
    whole: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "WHOLE", whole)
    at = AppTest.from_file(APP, default_timeout=120)
    at.context["locale"] = "ko-KR"
    at_page(at, "zoo").run()
    korean = "ko" in whole
    assert title(at).startswith("모델 계열: " if korean else "Zoo: ")
    assert "lang" not in address(at)
    menus = [menu for menu in at.selectbox if menu.key == "lang"]
    assert len(menus) == korean
    if korean:
        menus[0].select("en").run()
        assert title(at).startswith("Zoo: ")
        assert address(at)["lang"] == "en"
