"""The settings of every page: they outlive a change of page, and the address holds them.

Streamlit forgets a widget's value on a page that does not draw it, and silently drops values of
the address that do not fit. So each setting is stored here, as the text that the address holds.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from vitviz.app.pages import MODEL, PAGES, SHARED
from vitviz.common import language
from vitviz.common.language import tr, tr_md

T = TypeVar("T")
MAX_QUOTED = 40  # characters of a text that somebody typed or linked, in a message
_address = st.components.v2.component(
    "vitviz_address", js=Path(__file__).with_name("address.js").read_text(encoding="utf-8")
)
PRESENTER = 1.25  # how much larger everything is on a projector

#: What the address may hold. Other words in it are dropped.
NAMES = frozenset((*SHARED, *(name for page in PAGES.values() for name in page.settings)))
#: Of a reader, and not of a view that is shown to others.
_PERSONAL = ("lang", "presenter")
#: What a view keeps when all its other settings get their defaults, and when a lesson goes on.
STAYING = ("lang", "presenter", "lesson", *MODEL, "words", "template")


def setting(name: str, options: Sequence[T], default: T) -> T:
    """Return the value of a setting: its widget's, else the stored one, else the address's.

    Call it before the widget that has `name` as its key. An invalid value is replaced by the
    default, with a notice.

    Parameters
    ----------
    options : sequence
        All values that fit; `str` of one is its text in the address.
    """
    fitting = {str(option): option for option in options}
    if stored_text(name) in fitting and str(st.session_state.get(name)) not in fitting:
        st.session_state.pop(name, None)  # an option from before: the browser has not heard of it
    text = _valid_text(name, fitting.__contains__, default)
    value = default if text is None else fitting[text]
    _store(name, value, default)
    return value


def text_setting(name: str, fits: Callable[[str], bool], default: str = "") -> str:
    """Return the value of a setting that is free text; `fits` decides whether it is valid."""
    text = _valid_text(name, fits, default)
    value = default if text is None else text
    _store(name, value, default)
    return value


def _valid_text(name: str, fits: Callable[[str], bool], default: object) -> str | None:
    """Return the text of a setting; None, with a notice, if it is invalid, or if there is none."""
    value = st.session_state.get(name)  # None where it is not on this page, or nothing is selected
    text = _session_settings().get(name) if value is None else str(value)
    if text is None or fits(text):
        return text
    show_message(
        tr_md(
            "{called}: {said} is not valid here; {shown} is used.",
            called=name.replace("_", " ").capitalize(),
            said=text[:MAX_QUOTED],
            shown=tr("none") if default == "" else default,
        )
    )
    return None


def _store(name: str, value: object, default: object) -> None:
    st.session_state[name] = value
    _session_settings()[name] = str(value)
    if value == default:
        _defaults().add(name)
    else:
        _defaults().discard(name)


def stored_text(name: str) -> str | None:
    """Return the stored text of a setting, whether it is valid or not."""
    return _session_settings().get(name)


def follow_default(name: str, default: str) -> None:
    """Give a setting that no one has chosen the default of the page and model that are drawn now.

    Call it before the setting is read.
    """
    stored, chosen = stored_text(name), _chosen()
    if stored is None:
        chosen.discard(name)
    elif name not in _defaults() or str(st.session_state.get(name, stored)) != stored:
        chosen.add(name)
    elif name not in chosen and stored != default:
        change(**{name: default})


def keep_in_address(name: str) -> None:
    """Put a setting into the address of this page, even at its default."""
    _defaults().discard(name)


def is_presenting() -> bool:
    """Return whether everything is drawn larger, for a projector."""
    return stored_text("presenter") == "True"


def change(**values: object) -> None:
    """Set settings as their widgets would. Call it before those are drawn."""
    for name, value in values.items():
        _session_settings()[name] = str(value)
        _defaults().discard(name)  # until it is read
        st.session_state.pop(name, None)


def reset() -> None:
    """Reset all settings but `STAYING` to their defaults."""
    for name in (*NAMES, "query_grid", "query_asked"):
        if name not in STAYING:
            _session_settings().pop(name, None)
            st.session_state.pop(name, None)


def show_message(message: str) -> None:
    """Show a message once, at the top of the page."""
    messages: list[str] = st.session_state.setdefault("messages", [])
    if message not in messages:
        messages.append(message)


def take_messages() -> list[str]:
    """Return the messages of this run, and forget them."""
    messages: list[str] = st.session_state.pop("messages", [])
    return messages


def follow_address() -> None:
    """Read the settings from the address after Back or Forward in the browser.

    Call it before any setting is read.
    """
    run = get_script_run_ctx()
    if run is not None and run.is_history_navigation:
        for name in (*NAMES, "query_grid", "written"):
            st.session_state.pop(name, None)
        _keep(st.query_params.to_dict())
        _defaults().clear()  # until they are read


def watch_address() -> None:
    """Mount the component that reports Back and Forward in the browser."""
    _address(
        key="address",
        height=1,
        data={"lang": language.current_language()},
        on_reconnected_change=lambda: None,
    )


def store_language() -> None:
    """Use the language of this session; by default that of the browser, else English."""
    browser = (st.context.locale or "").split("-")[0]
    default = browser if browser in language.LANGUAGES else "en"
    language.set_language(setting("lang", list(language.LANGUAGES), default))


def use_stored_language() -> None:
    """Use the session's language in another thread: that of a fragment or a callback."""
    language.set_language(stored_text("lang") or "en")


def is_from_link() -> bool:
    """Return whether this is a link's first run, before any setting was changed."""
    return "written" not in st.session_state


def write_address() -> None:
    """Put every setting that is not at its default into the address."""
    st.session_state.written = True
    wanted = _address_settings()
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def _address_settings() -> dict[str, str]:
    texts, defaults = _session_settings(), _defaults()
    return {name: text for name, text in texts.items() if name in NAMES and name not in defaults}


def link_to() -> dict[str, str]:
    """Return the settings of the view on screen, without the reader's personal ones."""
    return {name: text for name, text in _address_settings().items() if name not in _PERSONAL}


def replace_all(texts: Mapping[str, str]) -> None:
    """Replace all settings by those of another view, as `link` returns them.

    Settings that the view lacks get their defaults; personal ones stay. Call it before any setting
    is read.
    """
    own = {name: text for name, text in _session_settings().items() if name in _PERSONAL}
    for name in (*NAMES, "query_grid"):
        if name not in _PERSONAL:
            st.session_state.pop(name, None)
    _keep({**own, **texts})
    _defaults().difference_update(texts)


def _keep(texts: dict[str, str]) -> None:
    """Store the settings of another view."""
    st.session_state.kept = texts
    st.session_state.query_asked = "query" in texts


def _session_settings() -> dict[str, str]:
    if "kept" not in st.session_state:
        _keep(st.query_params.to_dict())  # a link that was opened
    texts: dict[str, str] = st.session_state.kept
    return texts


def _chosen() -> set[str]:
    """Return the settings of `follow_default` that somebody has chosen, by a link too."""
    chosen: set[str] = st.session_state.setdefault("chosen", set())
    return chosen


def _defaults() -> set[str]:
    defaults: set[str] = st.session_state.setdefault("defaults", set())
    return defaults
